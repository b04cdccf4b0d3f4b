"""A training that changes its plan while it runs keeps its one dashboard: the next phase goes on in the place of the last."""

from __future__ import annotations

from typing import Any

import pytest
from test_live_widgets import data, watch_errors

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

# Changes its plan after three iterations, whatever was measured.
TRAINING = """
import rlinf_lab as lab
from rlinf_lab.experiments import starting
from rlinf_lab.experiments.autoplan.phases import AutoPlan, Phase

class AfterThree(AutoPlan):
    def first(self, flow):
        return Phase(lab.ExecutionPlan.temporal(flow, ["cpu:0"], name="the first plan"), "local")

    def ends_phase(self, seconds, remaining):
        return not self.notes and len(seconds) >= 3

    def next(self, flow, timeline, remaining, setup_s):
        self.notes.append("changed once")
        return Phase(lab.ExecutionPlan.temporal(flow, ["cpu:0"], sub_batches={"simulator": 2}, name="the second plan"), "local")

starting.AutoPlan = AfterThree
run = lab.train("ppo", "numpy/ReachArm-v0", num_envs=8, n_steps=20, batch_size=80, iterations=10, folder=False, devices=["cpu:0"])
"""
# Of the cell that began the training, what is displayed, in words.
OUTPUTS = """() => {
    const outputs = window.jupyterapp.shell.currentWidget.content.widgets[0].model.outputs;
    return Array.from({length: outputs.length}, (_, i) => outputs.get(i).toJSON()).map((o) => (o.data ? o.data['text/plain'] : o.text));
}"""


def test_the_dashboard_of_the_next_plan_takes_the_place_of_the_last(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("changed", [TRAINING, "run.wait(); print('ENDED', [p.plan.name for p in run.phases])"]))
    errors, board = watch_errors(lab.page), ".rl-dashboard"
    lab.run_all()
    said = lambda: "".join(lab.page.locator(".jp-OutputArea").all_inner_texts())  # noqa: E731
    lab.wait_until(lambda: "ENDED" in said() or any(lab.errors()), "the end", 200, every=0.5)
    assert "ENDED ['the first plan', 'the second plan']" in said(), said()[-2000:]
    lab.wait_until(lambda: lab.page.locator(board).count() == 1 and data(lab, board, "state") == "finished", "one dashboard, which has ended")
    text = lab.page.locator(board).inner_text()
    assert "the second plan" in text and "the first plan" not in text, text[:300]
    assert data(lab, board, "iteration") == "10", "iterations are those of the training, of both phases"
    picture, live = lab.page.evaluate(OUTPUTS)
    assert "plan 'the second plan': finished, iteration 10/10" in picture, "what a saved notebook shows is of the end, too"
    assert "the second plan" in live and not errors and not any(lab.errors())
    lab.page.locator(board).evaluate("(e) => e.scrollIntoView({block: 'start'})")
    lab.screenshot("dashboard-after-a-change-of-plan")
