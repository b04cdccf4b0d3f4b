"""The loss and its gradient against formulas written by hand; the Gaussian against torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf_lab.algorithms import entropy, log_prob, ppo_loss

ZERO = torch.zeros(())


def policy_part(new, old, adv, clip=0.2):
    new = torch.tensor(new, requires_grad=True)
    old, adv = torch.tensor(old), torch.tensor(adv)
    loss = ppo_loss(new, old, adv, torch.zeros(len(adv)), torch.zeros(len(adv)), ZERO, clip=clip)
    (gradient,) = torch.autograd.grad(loss.total, new)
    return loss, gradient


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    loss, gradient = policy_part([-1.0, -2.0, -0.5], [-1.0, -2.0, -0.5], [3.0, -1.0, 0.5])
    assert loss.policy.item() == pytest.approx(-(3 - 1 + 0.5) / 3)
    torch.testing.assert_close(gradient, -torch.tensor([3.0, -1.0, 0.5]) / 3)
    assert loss.kl.item() == 0 and loss.clip_fraction.item() == 0


@pytest.mark.parametrize(("ratio", "advantage", "moves"), [
    (1.5, 1.0, False), (0.5, -1.0, False),   # already too far in the direction that the advantage pushes
    (0.5, 1.0, True), (1.5, -1.0, True),     # too far in the wrong direction: pulled back
    (1.1, 1.0, True), (0.9, -1.0, True),     # inside the region
])  # fmt: skip
def test_clipped_samples_have_no_gradient(ratio, advantage, moves):
    loss, gradient = policy_part([math.log(ratio)], [0.0], [advantage])
    assert gradient.item() == pytest.approx(-ratio * advantage if moves else 0.0)
    bounded = min(max(ratio, 0.8), 1.2)
    assert loss.policy.item() == pytest.approx(-min(ratio * advantage, bounded * advantage))
    assert loss.clip_fraction.item() == float(abs(ratio - 1) > 0.2)


def test_kl_estimate_is_positive():
    loss, _ = policy_part([math.log(1.5), math.log(0.6)], [0.0, 0.0], [1.0, 1.0])
    assert loss.kl.item() == pytest.approx(((0.5 - math.log(1.5)) + (-0.4 - math.log(0.6))) / 2)


def test_value_and_entropy_terms():
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    target = torch.tensor([0.0, 5.0])
    loss = ppo_loss(
        torch.zeros(2), torch.zeros(2), torch.zeros(2), value, target, torch.tensor(2.0),
        value_coefficient=0.5, entropy_coefficient=0.1,
    )  # fmt: skip
    assert loss.value.item() == pytest.approx(0.5 * (1 + 9) / 2)
    assert loss.total.item() == pytest.approx(0.5 * 2.5 - 0.1 * 2.0)
    (gradient,) = torch.autograd.grad(loss.total, value)
    torch.testing.assert_close(gradient, 0.5 * (value.detach() - target) / 2)


def test_value_clip_takes_the_worse_of_both_and_needs_the_old_values():
    value, old, target = torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([3.0])
    args = torch.zeros(1), torch.zeros(1), torch.zeros(1), value, target, ZERO
    assert ppo_loss(*args, old_value_B=old, value_clip=0.5).value.item() == pytest.approx(0.5 * 2.5**2)
    with pytest.raises(ValueError, match="old_value_B"):
        ppo_loss(*args, value_clip=0.5)


def test_gaussian_equals_torch_distributions():
    torch.manual_seed(0)
    mean, log_std, action = torch.randn(7, 3), torch.randn(3), torch.randn(7, 3)
    reference = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(log_prob(action, mean, log_std), reference.log_prob(action).sum(-1))
    torch.testing.assert_close(entropy(log_std).expand(7), reference.entropy().sum(-1))


def test_standard_normal_at_zero():
    assert log_prob(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1)).item() == pytest.approx(-0.9189385)
    assert entropy(torch.zeros(1)).item() == pytest.approx(1.4189385)
