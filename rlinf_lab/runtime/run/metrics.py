"""The numbers of a run. There is a row for each iteration, and it knows which rows have changed since somebody looked.

Adding a number costs the same however many iterations there were, and so does asking what is new.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.quantities import FailedSample

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str]  # who said it (a worker, or the driver's loop), under which name
MOST_FAILURES = 1000


class MetricTable:
    """See the module's docstring. Thread-safe.

    Columns: ``iteration``, ``seconds``, then the names that the loop returned or workers logged. Of several ranks of a
    worker, the mean of each one's last value. A name that several workers log (or a worker and the loop) is
    ``worker.name`` for each of the workers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[int, float] = {}  # by iteration, of those that have finished
        self._columns: dict[Key, dict[int, float]] = {}
        self._labels: dict[Key, str] = {}
        self._ranks: dict[int, dict[Key, dict[int, float]]] = {}  # of iterations that may still change
        self._journal = array("q")  # iterations in the order in which they changed
        self._failed: list[tuple[str, int, int, str, str]] = []
        self._failures = 0
        self._told = 0  # how much of the journal somebody has read

    # --- writing ----------------------------------------------------------------------------------------
    def finished(self, iteration: int, seconds: float, returned: Mapping[str, float]) -> None:
        """An iteration has ended; ``returned``: numbers among what the loop returned."""
        with self._lock:
            self._seconds[iteration] = seconds
            for name, value in returned.items():
                self._set(iteration, (DRIVER, name), value)
            self._changed(iteration)

    def logged(self, worker: str, rank: int, iteration: int, values: Mapping[str, float]) -> None:
        """What a rank says of an iteration, also after its end."""
        with self._lock:
            said = self._ranks.setdefault(iteration, {})
            for name, value in values.items():
                ranks = said.setdefault((worker, name), {})
                ranks[rank] = value
                self._set(iteration, (worker, name), sum(ranks.values()) / len(ranks))
            self._changed(iteration)

    def failed(self, worker: str, rank: int, iteration: int, failure: FailedSample) -> None:
        """A sample of this rank has."""
        with self._lock:
            self._failures += 1
            if len(self._failed) < MOST_FAILURES:
                self._failed.append((worker, rank, iteration, failure.error, failure.sample))

    def settle(self, iteration: int) -> None:
        """No rank has anything more to say of this iteration, nor of earlier ones."""
        with self._lock:
            for old in [i for i in self._ranks if i <= iteration]:
                del self._ranks[old]

    def _set(self, iteration: int, key: Key, value: float) -> None:
        if key not in self._columns:
            self._columns[key] = {}
            before, self._labels = self._labels, labels(self._columns)
            # a name is not one worker's alone any more
            if any(self._labels[known] != label for known, label in before.items()):
                self._journal.extend(self._seconds)
        self._columns[key][iteration] = value

    def _changed(self, iteration: int) -> None:
        if len(self._journal) == self._told or self._journal[-1] != iteration:
            self._journal.append(iteration)

    # --- reading ----------------------------------------------------------------------------------------
    def since(self, version: int) -> tuple[list[dict[str, float]], int]:
        """Rows of finished iterations that are new or changed, and the version now. ``version``: since when (0: all).
        """
        with self._lock:
            self._told = len(self._journal)
            if version == self._told:
                return [], version
            changed = sorted(set(self._journal[version:]))
            return [row for i in changed if (row := self._row(i)) is not None], self._told

    def _row(self, iteration: int) -> dict[str, float] | None:
        if iteration not in self._seconds:
            return None
        said = {self._labels[key]: column[iteration] for key, column in self._columns.items() if iteration in column}
        return {"iteration": iteration, "seconds": self._seconds[iteration], **said}

    def frame(self) -> pd.DataFrame:
        """One row for each finished iteration."""
        import pandas as pd

        with self._lock:
            named = {"seconds": self._seconds} | {self._labels[key]: column for key, column in self._columns.items()}
            columns = {name: pd.Series(column, dtype="float64") for name, column in named.items()}
        done = np.sort(columns["seconds"].index.to_numpy(np.int64))
        said = {name: column.reindex(done).to_numpy() for name, column in columns.items()}
        return pd.DataFrame({"iteration": done, **said})

    def failures(self) -> pd.DataFrame:
        """Of samples; the first ones."""
        import pandas as pd

        with self._lock:
            found = pd.DataFrame(list(self._failed), columns=["worker", "rank", "iteration", "error", "sample"])
            found.attrs["total"] = self._failures
        return found

    def pace(self, last: int = 10) -> float | None:
        """Mean seconds of the last iterations; None before the first has ended."""
        with self._lock:
            recent = list(itertools.islice(reversed(self._seconds.values()), last))
        return sum(recent) / len(recent) if recent else None


def labels(keys: Iterable[Key]) -> dict[Key, str]:
    """Column names. A name that one worker alone uses is as it was logged, the loop's too; else the worker is put
    before it.
    """
    keys = list(keys)
    users = Counter(name for _, name in keys)
    long = {key for key in keys if users[key[1]] > 1 and key[0] != DRIVER}
    while clash := {key for key in keys if key not in long and key[1] in {f"{worker}.{name}" for worker, name in long}}:
        long |= clash  # somebody logs a name with a dot that reads like another's
    return {key: f"{key[0]}.{key[1]}" if key in long else key[1] for key in keys}
