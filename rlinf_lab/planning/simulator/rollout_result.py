"""What asynchronous training gave. It tells of each response when, by which weights, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

UNUSED, USED, DROPPED = 0, 1, 2
FATES = ("unused", "used", "dropped")


@dataclass(frozen=True, eq=False)
class Rollouts:
    """N responses, in the order they were asked for. Times in seconds, NaN where it did not come to that."""

    concurrency: int
    seconds_N: NDArray[np.float64]
    """that each takes by itself"""
    begin_N: NDArray[np.float64]
    end_N: NDArray[np.float64]
    began_with_N: NDArray[np.int64]
    """version that gave its first token; -1: never begun"""
    take_N: NDArray[np.float64]
    """when it was learnt from"""
    used_by_N: NDArray[np.int64]
    """version that learnt from it; -1: none"""
    fate_N: NDArray[np.int8]
    """0 unused when the simulation ended, 1 used, 2 dropped"""
    published: NDArray[np.float64]
    """when each version came"""
    elapsed_s: float
    trained_s: float
    filled: tuple[float, float] = (0.0, 0.0)
    """seconds of all slots in which they were busy, and seconds, until the last response began"""

    def used(self, skip: int = 0) -> NDArray[np.bool_]:
        """(N,) those learnt from. But for the first ``skip`` updates, in which nothing can be stale yet."""
        return np.asarray((self.fate_N == USED) & (self.used_by_N >= skip))

    def staleness_N(self, skip: int = 0) -> NDArray[np.int64]:
        """Of each response that was used: updates between its first token and its use."""
        of = self.used(skip)
        return np.asarray(self.used_by_N[of] - self.began_with_N[of])

    def token_staleness_N(self, skip: int = 0) -> NDArray[np.float64]:
        """The same as a mean over its tokens. They take the newest weights while it runs ("in_place", "resume")."""
        of = self.used(skip)
        begin, end = self.begin_N[of], self.end_N[of]
        integral = np.concatenate([[0.0], np.cumsum(np.arange(1, len(self.published)) * np.diff(self.published))])

        def until(time: NDArray[np.float64]) -> NDArray[np.float64]:
            """Integral of the version over time."""
            version = np.searchsorted(self.published, time, side="right")
            last = np.maximum(version - 1, 0)
            return np.where(version > 0, integral[last] + version * (time - self.published[last]), 0.0)

        if not len(self.published):
            return np.zeros(int(of.sum()))
        span = np.maximum(end - begin, 1e-12)
        return np.asarray(self.used_by_N[of] - (until(end) - until(begin)) / span)

    def histogram(self, skip: int = 0) -> dict[int, int]:
        """Responses that were used, by staleness."""
        values, counts = np.unique(self.staleness_N(skip), return_counts=True)
        return {int(v): int(n) for v, n in zip(values, counts, strict=True)}

    @property
    def updates(self) -> int:
        return len(self.published)

    @property
    def trainer_idle(self) -> float:
        """Share of the time in which nobody learns."""
        return 1.0 - self.trained_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def generator_idle(self) -> float:
        """Share of the slots' time in which they are empty, until the last response begins. 0 with steady arrivals."""
        busy_s, until_s = self.filled
        return float(max(0.0, 1.0 - busy_s / (until_s * self.concurrency))) if until_s else 0.0

    @property
    def length_bias(self) -> float:
        """Mean length of what was used over that of all that ended. Used or dropped; 1: none."""
        decided = (self.fate_N == USED) | (self.fate_N == DROPPED)
        used = self.fate_N == USED
        if not used.any():
            return float("nan")
        return float(self.seconds_N[used].mean() / self.seconds_N[decided].mean())

    @property
    def responses(self) -> pd.DataFrame:
        """A row for each response."""
        import pandas as pd

        fate = np.array(FATES)[self.fate_N]
        staleness = np.where(self.used_by_N >= 0, self.used_by_N - self.began_with_N, -1)
        return pd.DataFrame({
            "seconds": self.seconds_N, "begin": self.begin_N, "end": self.end_N, "taken": self.take_N, "began_with":
            self.began_with_N, "used_by": self.used_by_N, "staleness": pd.Series(staleness).where(staleness >= 0),
            "fate": fate, })  # fmt: skip

    def __repr__(self) -> str:
        stale = self.staleness_N()
        mean = f"staleness {stale.mean():.2f} (at most {stale.max()})" if len(stale) else "nothing used"
        return (
            f"Rollouts({len(self.seconds_N)} responses, {self.updates} updates in {self.elapsed_s:.4g} s, {mean}, "
            f"trainer idle {self.trainer_idle:.0%}, slots idle {self.generator_idle:.0%}, "
            f"length bias {self.length_bias:.2f})"
        )
