"""When a run is done before its last time step. A return, a success rate, hours, patience."""

from __future__ import annotations

import math
import numbers
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_lab.errors import ConfigError, UnknownNameError, shown

WORDS = {
    "return": "mean return of an episode, at least",
    "success_rate": "share of successful episodes, at least",
    "hours": "of wall clock since the run began",
    "patience": "looks at the policy in a row that brought no better return",
}
SMOOTHED = 5  # iterations over which training's own returns are averaged: one of them may have ended three episodes


@dataclass(frozen=True)
class Until:
    """The goals of a run; the first that is reached ends it."""

    goals: Mapping[str, float]

    @classmethod
    def of(cls, given: Mapping[str, Any] | Until | None) -> Until:
        """Check what a user gave. `ConfigError`, or `UnknownNameError` with the nearest goal."""
        if isinstance(given, Until):
            return given
        if given is None:
            return cls({})
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"until={shown(given)}: goals by name, the first that is reached ends the run. Next: until={{'return': "
                f"475}}; also {_words()}."
            )
        for name, value in given.items():
            if name not in WORDS:
                raise UnknownNameError.of(
                    "goal of until", name, WORDS, f"Goals: {_words()}. Next: until={{'return': 475}}."
                )
            if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
                raise ConfigError(
                    f"until={{{name!r}: {shown(value)}}}: {WORDS[name]}, a number. Next: until={{'return': 475}}."
                )
            if name in ("hours", "patience") and not float(value) > 0:
                raise ConfigError(f"until={{{name!r}: {shown(value)}}}: it must be greater than 0.")
        return cls({name: float(value) for name, value in given.items()})


def _words() -> str:
    return ", ".join(f"{name!r} ({meaning})" for name, meaning in WORDS.items())


class Watch:
    """Looks at what each iteration gave and says when a goal is reached."""

    def __init__(self, until: Until, evaluates: bool) -> None:
        self.goals, self.evaluates = until.goals, evaluates
        self._began = time.monotonic()
        self._recent: deque[Mapping[str, float]] = deque(maxlen=SMOOTHED)
        self._best = -math.inf
        self._since = 0
        self.reason = ""

    def look(self, row: Mapping[str, float]) -> bool:
        """Whether the run is done, and then `reason` in words. ``row``: metrics of an iteration, of its evaluation with
        the prefix ``eval_``.
        """
        for name in ("return", "success_rate"):
            if name in self.goals and (found := self._value(row, name)) is not None and found >= self.goals[name]:
                self.reason = f"{name} {found:.4g} ≥ {self.goals[name]:g}"
        if "hours" in self.goals and (hours := (time.monotonic() - self._began) / 3600) >= self.goals["hours"]:
            self.reason = f"{hours:.3g} h have passed"
        if "patience" in self.goals and self._is_tired(row):
            self.reason = f"no better return in {self._since} looks"
        return bool(self.reason)

    def _is_tired(self, row: Mapping[str, float]) -> bool:
        found = row.get("eval_return" if self.evaluates else "return")
        if found is None or math.isnan(found):
            return False
        self._best, self._since = (found, 0) if found > self._best else (self._best, self._since + 1)
        return self._since >= self.goals["patience"]

    def _value(self, row: Mapping[str, float], name: str) -> float | None:
        """The value that a goal is about.

        Of the evaluation where there are any, else the mean of the latest iterations of training that ended episodes.
        """
        if self.evaluates:
            return row.get(f"eval_{name}")
        if name == next(iter(n for n in ("return", "success_rate") if n in self.goals)) and not math.isnan(
            row.get("return", math.nan)
        ):
            self._recent.append(row)
        known = [r[name] for r in self._recent if not math.isnan(r.get(name, math.nan))]
        return sum(known) / len(known) if len(known) == SMOOTHED else None
