"""Staleness as a policy: responses that go on in the next iteration, what is lost, and that it was predicted item by item."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import WorkflowError
from rlinf_lab.generation import SamplingParams, small_model
from rlinf_lab.planning.simulator.staleness import StalenessPolicy
from rlinf_lab.tasks import Problem
from rlinf_lab.workers.reasoning import Asked, ContinuingGenerator, GeneratorWorker, LengthPredictor, ModelWeights
from rlinf_lab.workers.reasoning.prediction import predicted_rollouts
from rlinf_lab.workflow.worker import Collected, Scripted

PROMPTS, SIZE, ASKED, SLOTS, ITERATIONS = 4, 3, 12, 10, 7
MODEL = partial(small_model, "0123456789", hidden=16, layers=1, heads=2, max_length=64)


def problem(round_, prompt):
    return Problem("1" * (1 + (round_ * ASKED + prompt) % 5), "1", 1 + prompt % 3)


class Published:
    """Weights of which every iteration brings new ones."""

    def __init__(self):
        self.version, self.model = 0, MODEL()

    def pull(self, at_least=0):
        state = ModelWeights(self.version, self.model.state_dict()) if self.version else None
        return lab.workflow.weights.Published(self.version, state)


def rollouts(policy, **fields):
    """What a worker hands over in each iteration, and what it logs."""
    worker = ContinuingGenerator(MODEL, SamplingParams(max_tokens=24), policy=policy, batch=PROMPTS, slots=SLOTS, **fields)
    logged = []
    worker.log = lambda **metrics: logged.append(metrics)
    worker.setup()
    weights, handed = Published(), []
    for iteration in range(ITERATIONS):
        asked = [Asked(problem(iteration, p), iteration, p, k) for p in range(ASKED) for k in range(SIZE)]
        out = Collected()
        worker.generate(Scripted(asked), out, weights)
        handed.append(list(out))
        weights.version += 1
    return handed, logged, worker


POLICIES = [
    (StalenessPolicy("pace"), {}), (StalenessPolicy("block", while_generating="resume"), {}), (StalenessPolicy("pace", while_generating="retract"), {}),
    (StalenessPolicy("drop_oldest", queue=1), {"oversample": 1.5}), (StalenessPolicy("drop_stale", bound=0), {}),
    (StalenessPolicy("recycle", bound=1), {"concurrency": 3.0}), (StalenessPolicy("pace"), {"longest_first": True}),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "fields"), POLICIES, ids=lambda v: getattr(v, "name", "") or "-".join(v))
def test_what_runs_is_what_was_predicted(policy, fields):
    handed, logged, _ = rollouts(policy, **fields)
    for group in (batch[i : i + SIZE] for batch in handed for i in range(0, len(batch), SIZE)):
        assert len({(r.asked.round, r.asked.prompt, r.place) for r in group}) == 1 and [r.asked.sample for r in group] == list(range(SIZE))
    for batch in handed:
        assert [r.place for r in batch] == [p for p in range(PROMPTS) for _ in range(SIZE)]
        assert all(len(r) <= 24 and len(r) == len(r.completion.versions) for r in batch)  # the budget counts once
    measured = {(i, r.asked.id): (len(r), i - int(r.completion.versions.min())) for i, batch in enumerate(handed) for r in batch}
    assert len(measured) == ITERATIONS * PROMPTS * SIZE  # nothing twice
    if policy.drops_stale:
        assert max(stale for _, stale in measured.values()) <= policy.bound
    # Only lengths are told to the model of it; those of what was lost are found by asking alone.
    lengths = {key: n for (_, key), (n, _) in measured.items()}
    table = predicted_rollouts(
        policy, lambda one: lengths.get(one.id) or alone(one, policy), prompts=PROMPTS, group_size=SIZE, asked=ASKED, slots=SLOTS,
        iterations=ITERATIONS, problem=problem, **fields,
    )  # fmt: skip
    assert {(r.iteration, r.id): (r.tokens, r.staleness) for r in table.itertuples()} == measured
    assert table.groupby("iteration").decode_steps.first().tolist() == [told["decode_steps"] for told in logged]


def alone(one, policy, _known={}):  # noqa: B006
    """Tokens of an answer that is asked for alone: the weights stay the same, so it is the same answer."""
    if one.id not in _known:
        engine = lab.generation.Engine(MODEL(), slots=1)
        model = MODEL()
        request = lab.generation.Request(model.encode(one.problem.prompt), SamplingParams(max_tokens=24), one.id)
        (done,) = engine.sample([request])
        _known[one.id] = len(done)
    return _known[one.id]


def test_in_place_and_resumed_answers_are_the_same_under_the_same_weights():
    in_place, _, _ = rollouts(StalenessPolicy("pace"))
    resumed, _, _ = rollouts(StalenessPolicy("pace", while_generating="resume"))
    first, again = ({r.asked.id: r.completion.token_ids.tolist() for b in run for r in b} for run in (in_place, resumed))
    both = first.keys() & again.keys()
    assert len(both) > 40 and all(first[k] == again[k] for k in both)
    assert any(len(set(r.completion.versions.tolist())) > 1 for b in in_place for r in b)  # some went on under new weights


def test_an_evaluation_between_does_not_disturb_what_runs():
    _, _, worker = rollouts(StalenessPolicy("pace"))
    running = worker._groups.running
    out = Collected()
    worker.generate(Scripted([Asked(problem(0, p), -1, p, 0) for p in range(20)]), out, Published())
    assert len(out) == 20 and {r.asked.round for r in out} == {-1}
    assert worker._groups.running == running and len(worker._suspended) == len(running)
    worker.offload()
    worker.onload()
    out.clear()
    asked = [Asked(problem(ITERATIONS, p), ITERATIONS, p, k) for p in range(ASKED) for k in range(SIZE)]
    worker.generate(Scripted(asked), out, Published())
    assert len(out) == PROMPTS * SIZE


def test_ranks_must_share_evenly_and_something_must_be_asked():
    worker = ContinuingGenerator(MODEL, SamplingParams(), policy=StalenessPolicy("pace"), batch=4)
    worker._context = type("Three", (), {"name": "generator", "rank": 0, "ranks": 3, "device": "cpu"})()
    with pytest.raises(WorkflowError, match=r"3 ranks, which cannot share 4 groups"):
        worker.preflight()
    worker = ContinuingGenerator(MODEL, SamplingParams(), policy=StalenessPolicy("pace"), batch=4)
    worker.setup()
    with pytest.raises(WorkflowError, match="nothing to answer"):
        worker.generate(Scripted([]), Collected(), Published())


def test_lengths_are_learnt():
    predictor = LengthPredictor()
    assert predictor.of(Problem("1", "1")) == float("inf")
    for tokens in (10, 10, 10):
        predictor.tell(Problem("11", "1"), tokens)
    predictor.tell(Problem("1111", "1"), 40)
    assert predictor.of(Problem("22", "x")) == 10 < predictor.of(Problem("333", "x")) < predictor.of(Problem("4444", "x")) == 40
    assert np.isinf(predictor.of(Problem("1", "1", 2)))


class Enough(Collected):
    """Nobody wants more than two responses, and says so before the next step."""

    def is_wanted(self):
        return len(self) < 2


class Later(Scripted):
    """What is there now is one; who runs something does not wait for the others."""

    def get(self, n=None, *, key=None):
        assert not self.runs(), "a generator that has something to do waits for nothing"
        return super().get(1, key=key)

    def get_nowait(self, n=None, *, key=None):
        return super().get(1, key=key)


def test_a_generator_stops_before_the_step_that_nobody_wants():
    steps = []
    for out in (Collected(), Enough()):
        worker = GeneratorWorker(MODEL, SamplingParams(max_tokens=24), slots=SLOTS)
        worker.log = lambda **metrics: steps.append(metrics["decode_steps"])
        worker.setup()
        worker.generate(Scripted([Asked(problem(0, p), 0, p, 0) for p in range(ASKED)]), out, Published())
        assert not worker.generator.pending
    assert len(out) < ASKED and steps[1] < steps[0]


def test_a_generator_takes_what_is_there_while_it_decodes():
    worker = GeneratorWorker(MODEL, SamplingParams(max_tokens=24), slots=SLOTS, dispatch="shortest_queue")
    worker.log = lambda **metrics: None
    worker.setup()
    asked, out = Later([Asked(problem(0, p), 0, p, 0) for p in range(ASKED)]), Collected()
    asked.runs = lambda: worker.generator.pending
    worker.generate(asked, out, Published())
    assert sorted(r.asked.prompt for r in out) == list(range(ASKED))
