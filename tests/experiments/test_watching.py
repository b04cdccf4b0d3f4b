"""What a dashboard is told of a training: each update once, whatever the runtime was asked, evaluations too, over changes of the plan."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_lab.experiments import starting, train
from rlinf_lab.experiments.autoplan.choice import Choice
from rlinf_lab.experiments.autoplan.phases import AutoPlan, Phase
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.widgets.dashboard import Dashboard
from rlinf_lab.workflow.workflow import Workflow


class AfterTwo(AutoPlan):
    """Changes the plan once, after two iterations."""

    def first(self, flow: Workflow) -> Phase:
        return Phase(ExecutionPlan.temporal(flow, self.devices[:1]), "local")

    def ends_phase(self, seconds: Any, remaining: int) -> bool:
        return self.choice is None and len(seconds) == 2

    def next(self, flow: Workflow, timeline: Any, remaining: int, setup_s: float) -> Phase:
        old, new = (ExecutionPlan.temporal(flow, self.devices[:1], name=name) for name in ("temporal", "auto temporal"))
        self.choice = Choice(old, new, 0.5, 0.25, True, "as the test has it")
        return Phase(new, "local")


def told(board: Dashboard) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content, _ = board._history()
    return content["state"], content["metrics"]


def test_every_update_is_a_row_with_all_that_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations whose state was asked for too, the last one, evaluations, the user's own numbers; over a change of plans."""
    monkeypatch.setattr(starting, "AutoPlan", AfterTwo)
    run = train(
        "ppo", "numpy/ReachArm-v0", num_envs=8, iterations=5, folder=False, progress=False, devices=["cpu:0"], eval_every={"iterations": 2},
        eval_episodes=2, on_iteration=lambda row: {"mine": row["iteration"] * 10},
    )  # fmt: skip
    board = run.show()
    run.wait()
    later = run.show()
    replaced = run._shown[0].board  # that of the first phase was on the page until the plan changed
    assert board is not replaced
    for seen in (replaced, later):
        state, rows = told(seen)
        assert state["state"] == "finished" and state["iteration"] == state["iterations"] == 5
        assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
        assert [row["mine"] for row in rows] == [10, 20, 30, 40, 50]
        assert ["eval_return" in row for row in rows] == [False, True, False, True, False]
        assert all("seconds" in row and "env_steps" in row for row in rows)
        assert state["plan_note"] == "old plan temporal 0.5 s → new plan auto temporal: predicted 0.25 s, not measured yet, gain 2.00×"


def test_a_training_that_fails_after_its_last_update_is_shown_as_failed() -> None:
    def fails(row: Any) -> None:
        raise ZeroDivisionError("mine")

    run = train("ppo", "numpy/ReachArm-v0", num_envs=8, iterations=2, folder=False, progress=False, plan=None, on_iteration=fails)
    board = run.show()
    with pytest.raises(ZeroDivisionError):
        run.wait()
    state, _ = told(board)
    assert state["state"] == "failed" and "mine" in state["message"]
