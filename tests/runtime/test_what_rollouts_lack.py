"""What generation of language would like of the runtime: what it does not get yet is expected to fail; groups it does get."""

from __future__ import annotations

import dataclasses

import pytest

import rlinf_lab as lab


def ran(flow, plan, iterations=1):
    run = lab.run(flow, plan, iterations=iterations, dashboard=False)
    run.wait(30)
    return run


@pytest.mark.xfail(strict=True, raises=AttributeError, reason="an inbox cannot say what is there without waiting")
def test_an_inbox_says_what_is_there_without_waiting():
    inbox = lab.workflow.worker.Scripted([1, 2, 3])
    assert inbox.ready() == 3 and lab.workflow.worker.Inbox.get_ready


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


@dataclasses.dataclass(frozen=True)
class Answer:
    prompt: int
    sample: int


class Generator(lab.Worker):
    def generate(self, answers: lab.Outbox) -> None:
        for sample in range(4):
            for prompt in range(3):
                answers.put(Answer(prompt, sample))


class Judge(lab.Worker):
    def judge(self, answers: lab.Inbox, judged: lab.Outbox) -> None:
        for batch in answers:
            for one in batch:
                judged.put(one, key=one.prompt)


class Learner(lab.Worker):
    def learn(self, judged: lab.Inbox) -> list[int]:
        return sorted(len(group) for batch in judged for group in batch)


def test_groups_are_gathered_whoever_judged_them():
    flow = lab.Workflow("groups")
    answers, judged = flow.channel("answers", capacity=None), flow.channel("judged", capacity=None, group=4)
    generator, judge, learner = flow.worker(Generator), flow.worker(Judge), flow.worker(Learner)

    @flow.iteration
    def iteration():
        generator.generate(answers)
        judge.judge(answers, judged)
        return learner.learn(judged)

    on = {"generator": [0], "judge": [0, 1], "learner": [1]}
    run = ran(flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], on, micro_batches={"answers": 1}))
    assert run.results == [[4, 4, 4]]
