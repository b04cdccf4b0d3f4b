from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments import goals
from rlinf_lab.experiments.goals import SMOOTHED, Until, Watch


def ends_at(goals: dict[str, float], rows: list[dict[str, float]], evaluates: bool) -> int | None:
    watch = Watch(Until.of(goals), evaluates)
    return next((i for i, row in enumerate(rows) if watch.look(row)), None)


def test_a_return_of_evaluations_ends_at_once_and_one_of_training_on_average() -> None:
    assert ends_at({"return": 475}, [{"eval_return": 470.0, "return": 500.0}, {"return": 500.0}, {"eval_return": 475.0}], True) == 2
    rows = [{"return": value} for value in [0.0, 500.0, math.nan, 500.0, 500.0, 500.0, 500.0, 500.0]]
    assert SMOOTHED == 5 and ends_at({"return": 475}, rows, False) == 6


def test_success_alone_is_averaged_as_well() -> None:
    assert ends_at({"success_rate": 0.9}, [{"return": 1.0, "success_rate": 1.0}] * 6, False) == 4


def test_patience_counts_looks_without_a_better_return() -> None:
    values = [1.0, 3.0, 2.0, 3.0, 4.0, 4.0, 4.0]
    assert ends_at({"patience": 2}, [{"eval_return": v} for v in values], True) == 3
    assert ends_at({"patience": 3}, [{"eval_return": v} for v in values], True) is None


def test_hours_are_those_since_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0 + 3599.0, 100.0 + 3600.0])
    monkeypatch.setattr(goals, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    watch = Watch(Until.of({"hours": 1}), False)
    assert [watch.look({}), watch.look({})] == [False, True] and watch.reason == "1 h have passed"


@pytest.mark.parametrize(("given", "said"), [(475, "until={'return': 475}"), ({"retrun": 1}, "Did you mean 'return'"), ({"hours": 0}, "greater than 0")])
def test_goals_that_are_none_are_refused(given: object, said: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=said):
        Until.of(given)  # type: ignore[arg-type]
