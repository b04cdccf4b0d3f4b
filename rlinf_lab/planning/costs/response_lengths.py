"""Lengths of responses, drawn from a measured completion curve. Legend: Q points of the curve, N responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf_lab.errors import ConfigError, shown


@dataclass(frozen=True, eq=False)
class ResponseLengths:
    """The distribution of response lengths. It gives the share that has at most so many tokens, straight between the
    points.
    """

    tokens_Q: NDArray[np.float64]
    """rising, from 0"""
    fraction_Q: NDArray[np.float64]
    """of responses that are not longer: rising from 0 to 1"""

    @classmethod
    def of_completion(cls, points: Sequence[tuple[float, float]], tokens_per_s: float) -> ResponseLengths:
        """From (seconds, fraction finished) of a rollout whose requests began together, each at ``tokens_per_s``.

        Raises `ConfigError` for a curve that falls or does not end at 1. Where the rate depends on the load, a
        profile's `Lengths` knows more.
        """
        if not np.isfinite(tokens_per_s) or tokens_per_s <= 0:
            raise ConfigError(f"of_completion(tokens_per_s={shown(tokens_per_s)}). Next: a rate above 0, such as 40.")
        seconds, fraction = (np.array([0.0, *(p[k] for p in points)]) for k in (0, 1))
        if len(points) < 1 or (np.diff(seconds) <= 0).any() or (np.diff(fraction) < 0).any() or fraction[-1] != 1:
            raise ConfigError(
                f"of_completion({shown(points)}): a completion curve rises in both columns and ends at 1. "
                "Next: (seconds, fraction finished) in the order of time."
            )
        return cls(seconds * tokens_per_s, fraction)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """``count`` lengths (N,) in whole tokens, at least 1."""
        drawn = np.interp(rng.random(count), self.fraction_Q, self.tokens_Q)
        return np.maximum(np.ceil(drawn), 1).astype(np.int64)

    def fraction(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """The share of responses that are not longer."""
        return np.asarray(np.interp(np.asarray(tokens, np.float64), self.tokens_Q, self.fraction_Q))

    @property
    def mean(self) -> float:
        """Tokens of an average response."""
        return float(np.sum(np.diff(self.fraction_Q) * (self.tokens_Q[1:] + self.tokens_Q[:-1]) / 2))

    def __repr__(self) -> str:
        half, most = np.interp([0.5, 1.0], self.fraction_Q, self.tokens_Q)
        return f"ResponseLengths(mean {self.mean:.0f} tokens, median {half:.0f}, longest {most:.0f})"
