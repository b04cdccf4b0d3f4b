"""What generation of language would like of the runtime and does not get yet, each as the smallest thing that shows it."""

from __future__ import annotations

import pytest

import rlinf_lab as lab


def ran(flow, plan, iterations=1):
    run = lab.run(flow, plan, iterations=iterations, dashboard=False)
    run.wait(30)
    return run


@pytest.mark.xfail(strict=True, raises=AttributeError, reason="weights cannot say whether there is a newer version without waiting")
def test_weights_say_whether_there_is_a_newer_version():
    weights = lab.workflow.weights.Weights()
    weights.publish({"w": 1})
    assert weights.newest() == 1


@pytest.mark.xfail(strict=True, raises=AttributeError, reason="the weights of a run that has ended cannot be had by their name")
def test_a_run_has_its_final_weights():
    class Learner(lab.Worker):
        def learn(self, weights: lab.Weights) -> None:
            weights.publish({"w": 1})

    flow = lab.Workflow("final")
    weights, learner = flow.weights("policy"), flow.worker(Learner)
    flow.iteration(lambda: learner.learn(weights))
    run = ran(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]))
    assert run.weights("policy") == (1, {"w": 1})
