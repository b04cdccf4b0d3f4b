"""Searches and forecasts that nobody wants any more end soon, wherever they are, and leave nothing behind."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf_lab.planning.adapt.whatif import Question
from rlinf_lab.planning.cancellation import Abandoned, as_long_as, check
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.forecast.stream_estimate import follow
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import Profile

PROFILE = Profile.load(Path(__file__).parents[2] / "docs" / "profiles" / "grpo_7b_by_hand.json")


@functools.cache
def plans() -> Plans:
    return plan(PROFILE, 8, simulate=False)


def some_looks(number: int) -> Callable[[], bool]:
    """Wanted until somebody has looked so often."""
    looks = itertools.count()
    return lambda: next(looks) < number


def test_all_that_takes_long_looks_whether_it_is_wanted() -> None:
    placement = plans().best.candidate.placement
    works: list[Callable[[], object]] = [
        lambda: plan(PROFILE, 8), lambda: forecast(placement), lambda: follow(placement), lambda: Question.of(plans()).answer(PROFILE),
    ]  # fmt: skip
    for work in works:
        with pytest.raises(Abandoned), as_long_as(lambda: False):
            work()


@pytest.mark.slow
def test_what_was_given_up_anywhere_leaves_no_trace() -> None:
    asked = Question.of(plans())
    looks = itertools.count()
    with as_long_as(lambda: next(looks) >= 0):
        expected = asked.answer(PROFILE, simulate=True).to_dict()
    for part in (0.3, 0.9):
        with pytest.raises(Abandoned), as_long_as(some_looks(int(part * next(looks)))):
            asked.answer(PROFILE, simulate=True)
    assert asked.answer(PROFILE, simulate=True).to_dict() == expected


def test_a_forecast_looks_at_every_instant() -> None:
    placement = plans().best.candidate.placement
    looks = itertools.count()
    with as_long_as(lambda: next(looks) >= 0):
        timeline = forecast(placement, 2)
    assert next(looks) > 0.1 * len(timeline.spans)


def test_only_what_is_inside_is_given_up() -> None:
    with as_long_as(lambda: False):
        with as_long_as(lambda: True):
            check()
        with pytest.raises(Abandoned):
            check()
    check()
