"""Plans compared by their seconds under the real scheduler in virtual time. A budget limits how many are simulated.

What follows micro-batches through a plan is quick and good enough to look for plans. It knows less than the scheduler
(who time-shares with whom when ranks differ in number, what overlaps with staleness), so it does not decide which of
two plans is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlinf_lab.planning.cancellation import Abandoned, as_long_as, wanted_now
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.planner.candidates import Candidate
from rlinf_lab.timeline.timeline import Timeline

# of virtual time at which something begins or ends, in all simulations of one question: about 0.1 s
DEFAULT_MOMENTS = 10_000
# bundles of an iteration, an eighth of a forecast's: seconds change by some thousandths, and those of all plans are
# compared in the same detail
DETAIL = 128
MIN_SIMULATED = 1  # plans that are simulated though what was followed of them promises less


@dataclass(frozen=True)
class Trial:
    """One plan under each of some profiles, simulated. ``seconds`` of an iteration and ``timelines``, profile by
    profile.
    """

    candidates: tuple[Candidate, ...]
    seconds: tuple[float, ...]
    timelines: tuple[Timeline, ...]

    def against(self, other: Trial) -> float:
        """How many times as long as another plan it takes. Under the profile that speaks most against it."""
        return max(map(_ratio, self.seconds, other.seconds))


@dataclass(frozen=True)
class Tried:
    """``trials``: plans that were simulated, the fastest first. ``left``: how many of those that promised to be faster
    were not.
    """

    trials: tuple[Trial, ...]
    left: int


class Trials:
    """Simulations on ``devices`` (names) until ``moments`` of virtual time are used up."""

    def __init__(self, devices: Sequence[str], moments: int = DEFAULT_MOMENTS) -> None:
        self._devices, self._left = tuple(devices), moments

    def of(self, candidates: Iterable[Candidate]) -> Trial | None:
        """One plan, profile by profile; None where the budget does not reach."""
        some = tuple(candidates)
        timelines = []
        for candidate in some:
            timeline = self._simulated(candidate)
            if timeline is None:
                return None
            timelines.append(timeline)
        seconds = [settled(t, c.placement.setting.staleness)[1] for t, c in zip(timelines, some, strict=True)]
        return Trial(some, tuple(seconds), tuple(timelines))

    def among(self, plans: Sequence[tuple[Candidate, ...]], now: Trial) -> Tried:
        """Plans against the present one, the most promising first. Until the fastest one that was simulated is faster
        than what the others promise."""
        waiting = sorted(
            ((max(_ratio(c.seconds, s) for c, s in zip(p, now.seconds, strict=True)), i) for i, p in enumerate(plans))
        )
        done: list[Trial] = []
        for at, (promised, i) in enumerate(waiting):
            fastest = min((t.against(now) for t in done), default=1.0)
            if len(done) >= MIN_SIMULATED and fastest <= promised:
                break
            trial = self.of(plans[i])
            if trial is None:
                return Tried(_ordered(done, now), sum(p < fastest for p, _ in waiting[at:]))
            done.append(trial)
        return Tried(_ordered(done, now), 0)

    def _simulated(self, candidate: Candidate) -> Timeline | None:
        outer = wanted_now()

        def wanted() -> bool:
            self._left -= 1
            return self._left >= 0 and (outer is None or outer())

        try:
            with as_long_as(wanted):
                return steady(candidate.placement, self._devices, DETAIL)
        except Abandoned:
            if self._left >= 0:
                raise  # nobody wants the answer any more
            return None


def _ordered(trials: list[Trial], now: Trial) -> tuple[Trial, ...]:
    return tuple(sorted(trials, key=lambda t: t.against(now)))


def _ratio(seconds: float, of: float) -> float:
    return seconds / of if of else 1.0 if not seconds else float("inf")
