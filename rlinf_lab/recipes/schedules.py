"""Numbers that change while a run goes on."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from rlinf_lab.errors import ConfigError, shown


@dataclass(frozen=True)
class Schedule:
    """From ``start`` to ``end`` in a straight line over the run. Called with the share of it that is done. Made by `linear`."""

    start: float
    """in the first update"""
    end: float
    """after the last one"""

    def __call__(self, progress: float) -> float:
        return self.start + (self.end - self.start) * progress

    def __repr__(self) -> str:
        return f"linear({self.start!r}, {self.end!r})"


def linear(start: float, end: float = 0.0) -> Schedule:
    """A number that goes from ``start`` to ``end`` over the run: ``PPOConfig(..., learning_rate=lab.linear(3e-4))``. `ConfigError` for what is no number."""
    for name, value in (("start", start), ("end", end)):
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
            raise ConfigError(f"linear({name}={shown(value)}): a finite number.")
    return Schedule(float(start), float(end))
