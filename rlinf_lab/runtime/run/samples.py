"""What workers said of samples. There is a row for each of the latest, put together from what several workers say."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rlinf_lab.workflow.quantities import SAMPLE_COLUMNS, SampleFields

if TYPE_CHECKING:
    import pandas as pd

MOST_SAMPLES = 10_000
_TYPES = {"iteration": "int64", "rank": "Int64", "start_ns": "Int64", "end_ns": "Int64"}  # Int64: some may be missing


class SampleTable:
    """The latest `MOST_SAMPLES`. Thread-safe.

    ``iteration``: the latest in which something was said of it. ``worker``, ``rank``, ``start_ns``, ``end_ns``: who
    made it, and when, by the timeline's clock.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self.most, self.total = most, 0
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}  # in the order of coming
        self._amends: dict[str, dict[str, Any]] = {}  # what was said of samples that have no row yet

    def tell(self, iteration: int, said: SampleFields) -> None:
        """Add this to the rows of its ids."""
        shared, names = {**said.fields, "iteration": iteration}, tuple(said.columns)
        each = zip(*said.columns.values(), strict=True) if names else itertools.repeat(())
        with self._lock:
            rows = self._rows
            for id, values in zip(said.ids, each, strict=False):
                row = rows.get(id)
                if row is None:
                    if not said.makes_rows:
                        self._amends.setdefault(id, {}).update(shared, **dict(zip(names, values, strict=True)))
                        continue
                    row = rows[id] = {"id": id}
                    self.total += 1
                    if self._amends:
                        row.update(self._amends.pop(id, ()))
                row.update(shared)
                row.update(zip(names, values, strict=True))
            for kept in (rows, self._amends):
                while len(kept) > self.most:
                    del kept[next(iter(kept))]

    def of_bar(self, worker: str, rank: int, start_ns: int) -> dict[str, Any] | None:
        """The row of the sample that a bar of the timeline shows. None: it is not known, or not any more."""
        bar = worker, rank, start_ns
        with self._lock:
            rows = self._rows.values()
            found = (dict(r) for r in rows if (r.get("worker"), r.get("rank"), r.get("start_ns")) == bar)
            return next(found, None)

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


def joined(tables: Iterable[pd.DataFrame | None]) -> pd.DataFrame:
    """The latest `MOST_SAMPLES` of runs that went on from each other. What a later one says of a sample counts."""
    import pandas as pd

    some = [table for table in tables if table is not None and len(table)]
    if not some:
        return SampleTable().frame()
    found = some[0]
    if len(some) > 1:
        found = pd.concat(some, ignore_index=True).drop_duplicates("id", keep="last", ignore_index=True)
    total = sum(table.attrs.get("total", len(table)) for table in some) - sum(map(len, some)) + len(found)
    found = found.tail(MOST_SAMPLES).reset_index(drop=True)
    found.attrs["total"] = total
    return found
