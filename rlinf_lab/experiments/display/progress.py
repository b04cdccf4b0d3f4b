"""The line in a shell: steps, return, steps a second, what remains. A recipe may count something else than steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QUIET_SECONDS = 15.0  # between lines where nobody watches: a log file
LOOK_SECONDS = 0.2


class Line:
    """A bar of tqdm on stderr, fed with the metrics of each iteration. ``first``: said before the first of them.

    ``unit``: what is counted, in the plural.
    """

    def __init__(self, label: str, total: int, done: int = 0, first: str = "", unit: str = "steps") -> None:
        from tqdm import tqdm

        if first:
            print(f"{label}: {first}", file=sys.stderr, flush=True)

        live = sys.stderr is not None and sys.stderr.isatty()
        self._bar: Any = tqdm(
            total=total, initial=done, desc=label, unit=f" {unit}", unit_scale=True,
            mininterval=LOOK_SECONDS if live else QUIET_SECONDS,
            dynamic_ncols=live, file=sys.stderr, delay=0.01,
        )  # fmt: skip

    def __call__(self, row: Mapping[str, float]) -> None:
        """Metrics of an iteration."""
        values = {
            name: row[name]
            for name in ("return", "reward", "success_rate", "eval_return")
            if not math.isnan(row.get(name, math.nan))
        }
        self._bar.set_postfix({name: f"{value:.4g}" for name, value in values.items()}, refresh=False)
        self._bar.update(max(0, int(row.get("env_steps", 0)) - self._bar.n))

    def say(self, text: str) -> None:
        """A line of text above the bar."""
        self._bar.write(text, file=sys.stderr)

    def close(self, said: str = "") -> None:
        """The run has ended."""
        self._bar.close()
        if said:
            print(said, file=sys.stderr)


def first_words(config: Any, done: int, folder: Path | None, auto: Any = None) -> str:
    """Of a line of progress, before the first iteration.

    What comes before it, which may take minutes, the run's folder, and whether it is measured.

    ``done``: iterations of an earlier run that this one goes on from; ``auto``: an `AutoPlan`.
    """
    before = "" if done else getattr(config, "begins_with", "")
    words = [f"begins with {before}"] * bool(before) + [f"kept in {folder}"] * (folder is not None)
    return ", ".join([*words, *([auto.note] if auto is not None and auto.measures else [])])
