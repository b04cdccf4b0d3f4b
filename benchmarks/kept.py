"""Runs that take long, kept one by one in ``results/kept/NAME.json`` as they are measured: a benchmark that is stopped goes on where it was.

Each run is a dict with what tells it apart (task, seed, …) and what was measured. With ``RLINF_LAB_BENCH_KEPT=1`` nothing is run anew: the rows come from
what is kept, and say of which seeds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results" / "kept"
ONLY_KEPT = os.environ.get("RLINF_LAB_BENCH_KEPT") == "1"


class Kept:
    """The runs of one benchmark; nothing is written where ``name`` is None (a smoke test)."""

    def __init__(self, name: str | None) -> None:
        self._file = None if name is None else FOLDER / f"{name}.json"
        self._rows: list[dict[str, Any]] = json.loads(self._file.read_text()) if self._file is not None and self._file.exists() else []

    def find(self, **key: Any) -> dict[str, Any] | None:
        """The run with these entries, if there is one."""
        return next((row for row in self._rows if key.items() <= row.items()), None)

    def get(self, run: Callable[[], dict[str, Any]], **key: Any) -> dict[str, Any] | None:
        """The kept run with these entries, else ``run()``, which is kept; None where only kept ones are wanted."""
        found = self.find(**key)
        return found if found is not None or (ONLY_KEPT and self._file is not None) else self.add({**key, **run()}, **key)

    def add(self, row: dict[str, Any], **key: Any) -> dict[str, Any]:
        """``row`` instead of the run with the entries ``key``. The file is whole or as it was, whoever writes beside."""
        if self._file is None:
            self._rows = [*self._rows, row]
            return row
        self._file.parent.mkdir(parents=True, exist_ok=True)
        on_disk = json.loads(self._file.read_text()) if self._file.exists() else []
        self._rows = [*(other for other in on_disk if not key.items() <= other.items()), row]
        part = self._file.with_suffix(".part")
        part.write_text("[\n" + ",\n".join(json.dumps(row) for row in self._rows) + "\n]\n")
        part.replace(self._file)
        return row
