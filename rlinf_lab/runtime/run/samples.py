"""What workers said of samples: a row for each of the latest, put together from what several workers say."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rlinf_lab.workflow.quantities import SAMPLE_COLUMNS, SampleFields

if TYPE_CHECKING:
    import pandas as pd

MOST_SAMPLES = 10_000
_TYPES = {"iteration": "int64", "rank": "Int64", "start_ns": "Int64", "end_ns": "Int64"}  # Int64: some may be missing
Bar = tuple[str, int, int]  # worker, rank and start of the span that shows a sample


class SampleTable:
    """The latest `MOST_SAMPLES`. Thread-safe.

    ``iteration``: the latest in which something was said of it. ``worker``, ``rank``, ``start_ns``, ``end_ns``: who
    made it, and when, by the timeline's clock.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self.most, self.total = most, 0
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}  # in the order of coming
        self._bars: dict[Bar, str] = {}

    def tell(self, iteration: int, said: SampleFields) -> None:
        """Add this to the rows of its ids."""
        with self._lock:
            for id in said.ids:
                row = self._rows.get(id)
                if row is None:
                    row = self._rows[id] = {"id": id}
                    self.total += 1
                row.update(said.fields, iteration=iteration)
                if "start_ns" in said.fields:
                    self._bars[self._bar(row)] = id
            while len(self._rows) > self.most:
                lost = self._rows.pop(next(iter(self._rows)))
                if "start_ns" in lost:
                    self._bars.pop(self._bar(lost), None)

    def of_bar(self, worker: str, rank: int, start_ns: int) -> dict[str, Any] | None:
        """The row of the sample that a bar of the timeline shows; None: it is not known, or not any more."""
        with self._lock:
            id = self._bars.get((worker, rank, start_ns))
            return None if id is None else dict(self._rows[id])

    def frame(self) -> pd.DataFrame:
        """One row a sample, in the order of coming; ``attrs["total"]``: how many there were."""
        import pandas as pd

        with self._lock:
            rows, total = [dict(row) for row in self._rows.values()], self.total
        names = dict.fromkeys([*SAMPLE_COLUMNS, *(name for row in rows for name in row)])
        columns = {name: pd.Series([row.get(name) for row in rows], dtype=_TYPES.get(name)) for name in names}
        found = pd.DataFrame(columns)
        found.attrs["total"] = total
        return found

    @staticmethod
    def _bar(row: dict[str, Any]) -> Bar:
        return str(row["worker"]), int(row["rank"]), int(row["start_ns"])
