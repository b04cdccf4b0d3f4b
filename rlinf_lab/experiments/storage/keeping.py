"""Keeps a run on disk while it goes on.

State and best weights when they come, tables at checkpoints and at the end.

What cannot be written (a full disk) is said once and tried again at the next checkpoint; what was there before stays.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError
from rlinf_lab.experiments.evaluation import Evaluation
from rlinf_lab.experiments.storage.folder import Best, RunFolder
from rlinf_lab.experiments.storage.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from rlinf_lab.timeline.timeline import Timeline


LEAST_S = 60.0  # between checkpoints, and before the first: what a run that dies soon loses
SHARE = 0.01  # of the time may be spent in writing them; a replay buffer of gigabytes is written more seldom


class Keeper:
    """``folder``: None keeps nothing on disk. ``minutes``: between checkpoints at most; None: none. ``best``: the best
    evaluation so far, an earlier run's too.
    """

    def __init__(self, folder: RunFolder | None, minutes: float | None, keep: int, best: Best | None = None) -> None:
        self.folder, self.keep = folder, keep
        self.seconds = None if minutes is None else 60 * minutes
        self.best = best
        self.asked = False  # for a checkpoint as soon as possible
        self._due = time.monotonic() + min(LEAST_S, self.seconds or 0)
        self.unwritten = ""  # what could not be written at the end, and why
        self._told = False

    def wants_state(self) -> bool:
        """Whether a checkpoint is due."""
        return self.folder is not None and (self.asked or (self.seconds is not None and time.monotonic() >= self._due))

    def checkpoint(self, snapshot: Snapshot, tables: Callable[[], tuple[pd.DataFrame, pd.DataFrame]]) -> None:
        """If one is due. ``tables``: metrics and samples."""
        if self.wants_state():
            self.asked, began = False, time.monotonic()
            self.attempt(lambda folder: folder.write_tables(*tables()))  # first: a resumed run drops rows too many
            self.attempt(lambda folder: self._write(folder, snapshot))
            ended = time.monotonic()
            self._due = ended + min(self.seconds or 0, max(LEAST_S, (ended - began) / SHARE))

    def evaluated(self, found: Evaluation, snapshot: Snapshot) -> None:
        """Keep the weights if they are the best so far."""
        if self.best is None or found["return"] > self.best.about["return"]:
            best = self.best = Best(as_plain(found), snapshot.weights)
            self.attempt(lambda folder: folder.write_best(best))

    def _write(self, folder: RunFolder, snapshot: Snapshot) -> None:
        folder.write_state(snapshot, self.keep)
        folder.about(iteration=snapshot.iteration)

    def end(
        self, snapshot: Snapshot | None, tables: Callable[[], tuple[pd.DataFrame, pd.DataFrame]], timeline: Timeline,
        **about: Any
    ) -> None:  # fmt: skip
        """The run has ended: each by itself, as far as there is room. What is missing is said, once more."""
        self.unwritten, self._told = "", False
        if snapshot is not None:
            self.attempt(lambda folder: folder.write_state(snapshot))
        self.attempt(lambda folder: folder.write_tables(*tables(), timeline))
        self.attempt(lambda folder: folder.about(ended=time.time(), unwritten=self.unwritten, **about))

    def attempt(self, write: Callable[[RunFolder], object]) -> None:
        """Write something; what cannot be written is said once and stops nothing."""
        if self.folder is None:
            return
        try:
            write(self.folder)
        except (OSError, ConfigError, ValueError) as error:  # pyarrow and safetensors have their own kinds
            self.unwritten = self.unwritten or str(error)[:200]
            if not self._told:
                self._told = True
                logging.getLogger("rlinf_lab").warning(
                    "%s cannot be written: %s. The run goes on, and what was there before stays. Next: make room, or "
                    "run.save(another folder).",
                    self.folder.path, error,
                )  # fmt: skip


def as_plain(found: Evaluation) -> dict[str, Any]:
    """For JSON: infinite ends of an interval as None."""
    plain = found.as_dict() | {"seed": found.of.seed}
    return {
        k: [None if abs(x) == float("inf") else x for x in v] if isinstance(v, tuple) else v for k, v in plain.items()
    }
