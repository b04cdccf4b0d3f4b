"""Running mean and variance that can be merged in any order.

Of batches of one process, or of whole histories of several ranks.

Source: Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979), equation 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of rows of one shape. Immutable: every operation returns a new one.

    Float64 inside, whatever comes in: single precision drifts after some million rows.
    """

    count: float
    """rows seen so far"""
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    """sum of squared deviations from the mean"""

    @classmethod
    def empty(cls, shape: int | tuple[int, ...]) -> Moments:
        """Nothing seen yet: the neutral element of `merge`."""
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, rows: ArrayLike | torch.Tensor) -> Moments:
        """The moments of one batch; the first axis counts the rows."""
        if isinstance(rows, torch.Tensor):
            return cls._of_tensor(rows)
        array = np.asarray(rows, dtype=np.float64)
        if not len(array):
            return cls.empty(array.shape[1:])
        mean = array.mean(0)
        return cls(float(len(array)), mean, np.square(array - mean).sum(0))

    @classmethod
    def _of_tensor(cls, rows: torch.Tensor) -> Moments:
        """Summed where they are: two rows come to the host, not all."""
        if not len(rows):
            return cls.empty(tuple(rows.shape[1:]))
        double = rows.detach().double()
        mean = double.mean(0)
        m2 = (double - mean).square().sum(0)
        return cls(float(len(rows)), mean.cpu().numpy(), m2.cpu().numpy())

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of rows together. Commutative and associative up to rounding."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"cannot merge moments of shape {self.mean.shape} with {other.mean.shape}")
        total = self.count + other.count
        if not total:
            return self
        delta = other.mean - self.mean
        share = other.count / total
        return Moments(total, self.mean + delta * share, self.m2 + other.m2 + delta**2 * (self.count * share))

    def update(self, rows: ArrayLike | torch.Tensor) -> Moments:
        """`merge` with the moments of ``rows``."""
        return self.merge(Moments.of(rows))

    @property
    def variance(self) -> NDArray[np.float64]:
        """Population variance; 1 while nothing was seen, so that normalising changes nothing."""
        return self.m2 / self.count if self.count else np.ones_like(self.m2)

    @property
    def std(self) -> NDArray[np.float64]:
        return np.sqrt(self.variance)

    def __repr__(self) -> str:
        return f"Moments(count={self.count:g}, shape={self.mean.shape}, mean≈{self.mean.mean():.3g}, std≈{self.std.mean():.3g})"
