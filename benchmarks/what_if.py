"""What answers a person or a running job: a slider's question, a simulation of ten iterations, a look at a run that drifts. CPU milliseconds of one core."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from harness import Case

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.adapt.whatif import Question, described, moved, sliders
from rlinf_lab.planning.costs import fitted
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.planner.gantt import gantt
from rlinf_lab.planning.planner.planner import Plans, plan, simulated_one_by_one
from rlinf_lab.planning.profile.profile import Profile

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planning"))
from six_workers import six_workers

PROFILES = Path(__file__).parents[1] / "docs" / "profiles"
SIX = "six workers"
NAMES = (*sorted(p.stem for p in PROFILES.glob("*.json")), SIX)
DEVICES = 64


@cache
def plans_of(name: str) -> Plans:
    return plan(six_workers() if name == SIX else Profile.load(PROFILES / f"{name}.json"), DEVICES, simulate=False)


def milliseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def quantile(values: list[float], q: float) -> float:
    return statistics.quantiles(values, n=20)[round(20 * q) - 1]


def drags(name: str) -> list[float]:
    """CPU ms of every position of every slider."""
    plans, found = plans_of(name), list[float]()
    fitted.cache_clear()  # as if nothing had been asked before
    asked = Question.of(plans)
    for slider in sliders(plans.profile, asked):
        for value in slider.values:
            question = moved(asked, slider.field, value)

            def answer(question: Question = question) -> None:
                try:
                    made = question.answer(plans.profile, like=plans)  # as the explorer asks
                except PlanError:  # says what would help: an answer as well
                    return
                described(made)
                [gantt(p) for p in made]

            found.append(milliseconds(answer))
    return found


def rest(name: str) -> float:
    """All plans searched, the first six simulated, described and drawn: when a slider rests."""
    plans = plans_of(name)

    def answer() -> None:
        made = Question.of(plans).answer(plans.profile, simulate=True)
        described(made)
        [gantt(p) for p in made]

    return milliseconds(answer)


def first_simulated(name: str, staleness: int) -> float:
    """After a quick answer its best plan, simulated, described and drawn: the first that is seen when a slider rests."""
    quick = dataclasses.replace(Question.of(plans_of(name)), staleness=staleness).answer(plans_of(name).profile, like=plans_of(name))

    def answer() -> None:
        made = next(simulated_one_by_one(quick))
        described(made)
        [gantt(p) for p in made]

    return milliseconds(answer)


def simulation(name: str) -> float:
    best = plans_of(name).best
    return milliseconds(lambda: forecast(best.candidate.placement, 10, best.devices))


def look(name: str) -> float:
    """A run whose first worker drifts by half: seen, and planned anew."""
    best = plans_of(name).best
    profile = best.candidate.placement.setting.profile
    truth = profile.scaled(next(iter(profile.workers)), 1.5)
    setting = dataclasses.replace(best.candidate.placement.setting, profile=truth)
    timeline = forecast(dataclasses.replace(best.candidate.placement, setting=setting), 10, best.devices)
    return milliseconds(lambda: replan(timeline, best))


def cases(smoke: bool) -> list[Case]:
    names = ("maniskill_openvla",) if smoke else NAMES
    runs = 1 if smoke else 5
    some = f"{DEVICES} devices, the slowest of the profiles in docs/profiles and of a branching flow of six workers with memory and switching"
    return [
        Case("explorer_drag", "ms, 95th percentile", lambda: max(quantile(drags(n), 0.95) for n in names), target="<= 200", target_of="value", runs=runs,
             curve=lambda: [[q, max(quantile(drags(n), q) for n in names)] for q in (0.5, 0.75, 0.95)],
             note=f"one question of a moving slider, all positions of all sliders; {some}; curve: quantile, ms"),
        Case("explorer_simulated", "ms", lambda: max(first_simulated(n, 0) for n in names), runs=runs,
             curve=lambda: [[staleness, max(first_simulated(n, staleness) for n in names)] for staleness in (0, 1, 2)],
             note=f"when a slider rests, the best plan of the quick answer is simulated and shown; {some}; curve: iterations of staleness, ms"),
        Case("explorer_rest", "ms", lambda: max(rest(n) for n in names), runs=runs,
             note=f"every plan searched, six of them simulated for two iterations; {some}"),
        Case("simulation_64x10", "ms", lambda: max(simulation(n) for n in names), target="<= 400", target_of="value", runs=runs,
             note=f"ten iterations of the best plan in the real scheduler, spans recorded; {some}"),
        Case("replan_64", "ms", lambda: max(look(n) for n in names), target="<= 200", target_of="value", runs=runs,
             note=f"eight iterations compared with the plan, the search again; {some}"),
    ]  # fmt: skip
