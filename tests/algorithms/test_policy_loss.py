"""The one policy loss: masked tokens against a loop over them, its variants at points where their gradient is known."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf_lab.algorithms import (
    aggregate,
    count_of,
    decoupled_policy_loss,
    policy_loss,
    ppo_loss,
    reinforce_loss,
    truncated_importance,
)
from rlinf_lab.errors import ConfigError, UnknownNameError


def tokens(seed=0, B=5, T=7):
    g = torch.Generator().manual_seed(seed)
    new, old, reference = torch.randn(3, B, T, generator=g, dtype=torch.float64) * 0.5
    mask = (torch.rand(B, T, generator=g) < 0.6).double()
    mask[0] = 0  # a response without a token
    advantage = torch.randn(B, 1, generator=g, dtype=torch.float64)
    return new.requires_grad_(), old, reference, advantage, mask


def by_loop(new, old, reference, advantage, mask, how, constant):
    """Every token by itself, in Python's own numbers."""
    sequences, parts = [], []
    for b in range(len(new)):
        each = []
        for t in range(new.shape[1]):
            if mask[b, t]:
                r, A = math.exp(new[b, t].item() - old[b, t].item()), advantage[b, 0].item()
                objective = min(r * A, min(max(r, 0.8), 1.3) * A)
                if A < 0:
                    objective = max(objective, 2.0 * A)
                x = new[b, t].item() - reference[b, t].item()
                each.append(-objective + 0.1 * (math.exp(-x) - 1 + x))
        parts += each
        sequences += [each] if each else []
    if how == "token_mean":
        return sum(parts) / len(parts)
    if how == "sequence_mean":
        return sum(sum(s) / len(s) for s in sequences) / len(sequences)
    return sum(parts) / constant / len(sequences)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant"])
def test_masked_tokens_equal_a_loop_over_them(how):
    new, old, reference, advantage, mask = tokens()
    with torch.no_grad():  # what lies outside of the mask must not matter, whatever it is
        new[mask == 0] = math.inf
    made = policy_loss(
        new, old, advantage, mask, clip_high=0.3, dual_clip=2.0, reference_log_prob=reference, kl_coefficient=0.1,
        aggregation=how, constant=9.0,
    )  # fmt: skip
    assert made.total.item() == pytest.approx(by_loop(new, old, reference, advantage, mask, how, 9.0))


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant"])
def test_parts_over_the_wholes_count_have_the_wholes_gradient(how):
    new, old, _, advantage, mask = tokens(1)
    options = {"aggregation": how, "constant": 7.0}
    (whole,) = torch.autograd.grad(policy_loss(new, old, advantage, mask, **options).total, new)
    count = count_of(new, mask, how)
    parts = [
        policy_loss(new[rows], old[rows], advantage[rows], mask[rows], denominator=count, **options).total for rows in (slice(0, 1), slice(1, 4), slice(4, 5))
    ]
    torch.testing.assert_close(torch.autograd.grad(sum(parts), new)[0], whole)


def gradient_of(ratio, advantage, **options):
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = policy_loss(new, torch.zeros(1), torch.tensor([advantage]), **options)
    return torch.autograd.grad(loss.total, new)[0].item()


def test_clip_higher_dual_clip_and_no_clip():
    assert gradient_of(1.25, 1.0) == 0.0
    assert gradient_of(1.25, 1.0, clip_high=0.28) == pytest.approx(-1.25)
    assert gradient_of(5.0, -1.0) == pytest.approx(5.0)
    assert gradient_of(5.0, -1.0, dual_clip=3.0) == 0.0
    assert gradient_of(2.0, -1.0, dual_clip=3.0) == pytest.approx(2.0)
    assert gradient_of(9.0, 1.0, clip=None) == pytest.approx(-9.0)
    with pytest.raises(ConfigError, match="dual_clip=0.5"):
        gradient_of(1.0, 1.0, dual_clip=0.5)


def test_steps_and_tokens_are_one_loss():
    g = torch.Generator().manual_seed(3)
    new, old, advantage = torch.randn(3, 8, generator=g)
    of_steps = ppo_loss(new, old, advantage, torch.zeros(8), torch.zeros(8), torch.zeros(()))
    of_tokens = policy_loss(new.view(2, 4), old.view(2, 4), advantage.view(2, 4), torch.ones(2, 4))
    torch.testing.assert_close(of_steps.policy, of_tokens.total)
    torch.testing.assert_close(of_steps.kl, of_tokens.kl)


@pytest.mark.parametrize("padding", [-200.0, -math.inf, math.nan])
@pytest.mark.parametrize("of_policy", [
    policy_loss, reinforce_loss, lambda new, old, *given, **options: decoupled_policy_loss(new, old, *given, proximal_log_prob=old, **options),
], ids=["ppo", "reinforce", "decoupled"])  # fmt: skip
def test_padding_may_hold_anything(of_policy, padding):
    """The loss, what is told of it and the gradient are those without it, with a reference, weights and advantages of tokens, too."""
    found = []
    for rest in (0.0, padding):
        new, old, reference, advantage, mask = tokens(2)
        advantage = advantage.repeat(1, new.shape[1])
        new.detach()[mask == 0], old[mask == 0], reference[mask == 0], advantage[mask == 0] = rest, rest, 0.0, rest
        options = {"reference_log_prob": reference, "kl_coefficient": 0.1, "weight": torch.where(mask > 0, 0.7, rest)}
        loss = of_policy(new, old, advantage, mask, **options)
        (gradient,) = torch.autograd.grad(loss.total, new)
        found.append((loss.total, loss.kl, loss.clip_fraction, loss.reference_kl, gradient))
    torch.testing.assert_close(found[1], found[0])
    assert (mask == 0).any() and (found[0][-1][mask == 0] == 0).all()


def test_decoupled_ppo_is_unbiased_and_clips_around_the_recent_policy():
    """Summed over the old policy's own distribution, the weight restores the gradient of the recent one."""
    behaviour, near = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.3, 0.4]], dtype=torch.float64).log()
    advantage = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    logits = near.clone().requires_grad_()
    new = logits.log_softmax(-1)
    loss = decoupled_policy_loss(new, behaviour, advantage * 3 * behaviour.exp(), proximal_log_prob=near, weight_cap=10.0)
    (got,) = torch.autograd.grad(loss.total, logits)
    other = near.clone().requires_grad_()
    (expected,) = torch.autograd.grad(-(other.log_softmax(-1).exp() * advantage).sum(), other)
    torch.testing.assert_close(got, expected)
    assert loss.clip_fraction == 0  # although the ratio to the old policy is 2


def test_reinforce_has_the_gradient_of_the_log_probability_whatever_is_older():
    new, old, _, advantage, mask = tokens(2)
    (got,) = torch.autograd.grad(reinforce_loss(new, old, advantage, mask).total, new)
    torch.testing.assert_close(got, -advantage * mask / mask.sum())


def test_truncated_importance_is_bounded_and_has_no_gradient():
    trainer = torch.tensor([0.0, 1.0, 5.0], requires_grad=True)
    weight = truncated_importance(trainer, torch.tensor([0.5, 0.9, 0.0]), cap=2.0)
    torch.testing.assert_close(weight, torch.tensor([math.exp(-0.5), math.exp(0.1), 2.0]))
    assert not weight.requires_grad


def test_unknown_and_missing_choices_of_aggregation():
    with pytest.raises(UnknownNameError, match="token_mean"):
        aggregate(torch.ones(2, 2), how="token-mean")
    with pytest.raises(ConfigError, match="constant=None"):
        aggregate(torch.ones(2, 2), how="constant")
