"""reasoning-gym by name and mathematical answers by meaning; both are extras."""

from __future__ import annotations

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import MissingDependencyError, UnknownNameError
from rlinf_lab.tasks import Problem, math_reward


def test_every_data_set_by_name():
    pytest.importorskip("reasoning_gym", reason="extra: tasks")
    task = lab.tasks.make("reasoning_gym/gsm_symbolic")
    problems = task.sample(np.random.default_rng(0), 4)
    assert problems == task.sample(np.random.default_rng(0), 4) and problems[0] != problems[1]
    for problem in problems:
        assert task.reward(problem, f"so it is #{problem.answer}").value == 1.0
        assert task.reward(problem, "#no number").value < 0.1
    assert lab.tasks.list().loc["reasoning_gym/<data set>", "runs_here"]
    with pytest.raises(UnknownNameError, match="gsm_symbolic"):
        lab.tasks.make("reasoning_gym/gsm_symbol")


@pytest.mark.parametrize(("answer", "text", "value"), [
    ("1/2", "#0.5", 1.0), (r"\frac{1}{2}", r"It is $\boxed{\frac{2}{4}}$", 1.0), ("3", "#4", 0.0), ("x+1", "#$1+x$", 1.0), ("7", "nothing", 0.0),
])  # fmt: skip
def test_answers_by_meaning(answer, text, value):
    pytest.importorskip("math_verify", reason="extra: tasks")
    verdict = math_reward(Problem("p", answer), text)
    assert verdict.value == value and not verdict.failed, verdict


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(MissingDependencyError, match=r"rlinf-lab\[tasks\]"):
        lab.tasks.make("reasoning_gym/countdown")
