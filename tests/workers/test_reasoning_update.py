"""Gradients of groups: whole or in parts, and what the correction of each token is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.algorithms import aggregate, grpo, policy_loss
from rlinf_lab.errors import WorkflowError
from rlinf_lab.generation import Completion, small_model, token_batch, token_log_probs
from rlinf_lab.tasks import Problem, RewardResult
from rlinf_lab.workers.reasoning import Asked, GradientAccumulator, Group, InTurn, Response, UpdateSettings

VERSION = 7


def response(prompt, sample, tokens, *, reward=0.0, version=VERSION, log_probs=None, seed=0):
    rng = np.random.default_rng([seed, prompt, sample])
    log_probs = -rng.random(tokens) * 4 if log_probs is None else log_probs
    completion = Completion(
        np.array([3, 4]),
        rng.integers(2, 12, tokens),
        np.asarray(log_probs, np.float32),
        np.full(tokens, version),
        "stop",
        "x",
    )
    return Response(Asked(Problem("p", "a"), 0, prompt, sample), completion, "", RewardResult(reward))


def model():
    return small_model("0123456789", hidden=16, layers=1, heads=2, seed=1)


def batch_of(P=3, G=4):
    rng = np.random.default_rng(0)
    every = [
        [response(p, g, int(rng.integers(0, 9)), version=VERSION - int(rng.integers(2))) for g in range(G)]
        for p in range(P)
    ]
    return every, grpo(rng.normal(size=(P, G)))


def gradient(accumulator):
    accumulator.step(0.0)  # divides; a learning rate of 0 moves nothing
    # step() forgets the gradient, so it is read off AdamW's first moment, which began at zero
    state = accumulator.optimizer.state_dict()["state"]
    return torch.cat([s["exp_avg"].flatten() for s in state.values()]) / 0.1


@pytest.mark.parametrize("correction", ["truncated", "decoupled", "none"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_parts_have_the_gradient_of_the_whole(aggregation, correction):
    groups, advantage_PG = batch_of()
    settings = UpdateSettings(grpo, aggregation=aggregation, correction=correction, max_grad_norm=1e9)
    in_parts, whole = (GradientAccumulator(model(), settings, max_tokens=9) for _ in range(2))
    for group, advantage_G in zip(groups, advantage_PG, strict=True):
        in_parts.add(group, advantage_G, VERSION)
    whole.add(sum(groups, []), advantage_PG.ravel(), VERSION)  # noqa: RUF017
    torch.testing.assert_close(gradient(in_parts), gradient(whole), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("correction", ["truncated", "decoupled", "none"])
def test_the_gradient_is_that_of_the_formula(correction):
    """Current tokens: A · min(trainer / sampler, cap) · grad log p; older ones: PPO's clip of the ratio to the sampler."""
    groups, advantage_PG = batch_of()
    responses, advantage_B = [r for g in groups for r in g if len(r)], None
    advantage_B = np.array(
        [a for g, row in zip(groups, advantage_PG, strict=True) for r, a in zip(g, row, strict=True) if len(r)]
    )
    accumulator = GradientAccumulator(
        model(), UpdateSettings(grpo, correction=correction, max_grad_norm=1e9), max_tokens=9
    )
    accumulator.add(responses, advantage_B, VERSION)
    got = gradient(accumulator)

    other = model()
    batch = token_batch([r.completion for r in responses])
    log_prob = token_log_probs(other, batch)
    ratio = (log_prob - batch.log_prob_BT).exp()
    A = torch.as_tensor(advantage_B, dtype=torch.float32)[:, None]
    clipped = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
    weighed = ratio.detach().clamp(max=2.0) * log_prob * A  # the gradient of a ratio that is 1
    own = {"truncated": batch.version_BT == VERSION, "decoupled": batch.mask_BT, "none": ~batch.mask_BT}[correction]
    (-aggregate(torch.where(own, weighed, clipped), batch.mask_BT)).backward()
    expected = torch.cat([p.grad.flatten() for p in other.module.parameters()])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)


def test_mismatch_is_told_of_current_tokens_and_staleness_of_all():
    accumulator = GradientAccumulator(model(), UpdateSettings(grpo), max_tokens=9)
    fresh, old = response(0, 0, 5), response(0, 1, 5, version=VERSION - 3)
    accumulator.add([fresh, old], np.array([1.0, -1.0]), VERSION)
    told = accumulator.step(1e-3)
    gap = token_log_probs(model(), token_batch([fresh.completion])).detach() - torch.as_tensor(
        fresh.completion.log_probs
    )
    assert told["mismatch_kl"] == pytest.approx(float((gap.exp() - 1 - gap).mean()), rel=1e-4)
    assert told["mismatch_max"] == pytest.approx(float(gap.abs().max()), rel=1e-4)
    assert told["staleness"] == 1.5 and told["staleness_max"] == 3.0


def test_towards_the_reference_pulls_back():
    settings = UpdateSettings(lambda r: r, kl_coef=1.0, max_grad_norm=1e9, learning_rate=1e-2)
    accumulator = GradientAccumulator(model(), settings, max_tokens=9)
    responses = [response(0, g, 6) for g in range(4)]
    accumulator.add(responses, np.array([1.0, 1.0, -1.0, -1.0]), VERSION)
    assert accumulator.step(1e-2)["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    distances = []
    for _ in range(6):
        accumulator.add(responses, np.zeros(4), VERSION)  # without a reward only the pull is left
        distances.append(accumulator.step(2e-3)["reference_kl"])
    assert distances[0] > 0 and distances[-1] < 0.7 * distances[0]


def test_nothing_to_learn_is_no_step():
    accumulator = GradientAccumulator(model(), UpdateSettings(grpo), max_tokens=9)
    before = {k: v.clone() for k, v in accumulator.model.module.state_dict().items()}
    accumulator.add([response(0, 0, 5), response(0, 1, 0)], np.zeros(2), VERSION)
    assert accumulator.step(1.0)["grad_norm"] == 0.0
    assert all(torch.equal(v, before[k]) for k, v in accumulator.model.module.state_dict().items())


@given(st.permutations(range(5)), st.permutations(range(3)))
def test_groups_are_learnt_from_in_turn_whoever_comes_when(order, samples):
    in_turn, came = InTurn(), []
    for i, prompt in enumerate(order):
        group = Group.of([response(prompt, sample, 1) for sample in samples])
        assert [r.asked.sample for r in group.responses] == [0, 1, 2]
        came += [ready.number for ready in in_turn.add(group)]
        assert set(came) <= set(order[: i + 1]) and len(in_turn.left()) == 3 * (i + 1 - len(came))
    assert came == [0, 1, 2, 3, 4]
    with pytest.raises(WorkflowError, match=r"response 0\.1/2 came twice"):
        Group.of([response(1, 2, 1), response(1, 2, 1)])
    with pytest.raises(WorkflowError, match=r"the group of 0\.1/0 came twice"):
        list(in_turn.add(Group.of([response(1, 0, 1)])))


def test_policy_loss_is_what_is_used_by_default():
    assert UpdateSettings(grpo).loss is policy_loss
