"""SAC, TD3 and CrossQ: targets by hand, and losses whose minimum is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlinf_lab.algorithms import (
    critic_loss,
    crossq_values,
    polyak_update,
    sac_actor_loss,
    sac_target,
    smoothed_action,
    td3_actor_loss,
    td3_target,
    temperature_loss,
)
from rlinf_lab.errors import ConfigError

REWARD_B, DISCOUNT_B = torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0])  # the second transition terminated
NEXT_Q_KB = torch.tensor([[3.0, 5.0], [2.0, 9.0], [7.0, 1.0]])


def test_targets_by_hand():
    log_prob_B = torch.tensor([-1.0, -2.0])
    torch.testing.assert_close(sac_target(REWARD_B, DISCOUNT_B, NEXT_Q_KB, log_prob_B, 0.5), torch.tensor([1 + 0.9 * 2.5, 2.0]))
    subset = sac_target(REWARD_B, DISCOUNT_B, NEXT_Q_KB, log_prob_B, 0.5, subset=torch.tensor([0, 2]))
    torch.testing.assert_close(subset, torch.tensor([1 + 0.9 * 3.5, 2.0]))
    torch.testing.assert_close(td3_target(REWARD_B, DISCOUNT_B, NEXT_Q_KB), torch.tensor([1 + 0.9 * 2.0, 2.0]))


def test_critic_loss_sums_critics_and_weighs_rows():
    q_KB = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = critic_loss(q_KB, torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx(0.5 * ((1 + 0.5) / 2 + (9 + 4.5) / 2))
    (gradient,) = torch.autograd.grad(loss, q_KB)
    torch.testing.assert_close(gradient, torch.tensor([[0.5, 0.25], [1.5, 0.75]]))


def test_the_actor_of_least_loss_is_the_boltzmann_policy():
    """On a discrete action, the expected loss is KL to softmax(Q/alpha): its gradient vanishes there."""
    q, alpha = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64), 0.7
    logits = (q / alpha).clone().requires_grad_()
    probability = logits.softmax(-1)
    expected = sum(probability[a] * sac_actor_loss(q[a].view(1, 1), probability[a].log().view(1), alpha) for a in range(3))
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    assert sac_actor_loss(NEXT_Q_KB, torch.zeros(2), alpha).item() == pytest.approx(-(2 + 1) / 2)
    assert td3_actor_loss(NEXT_Q_KB).item() == -4.0


@pytest.mark.parametrize(("entropy", "rises"), [(-3.0, True), (-1.0, False)])
def test_temperature_rises_while_entropy_is_short(entropy, rises):
    log_alpha = torch.zeros((), requires_grad=True)
    loss = temperature_loss(log_alpha, torch.full((4,), -entropy), target_entropy=-2.0)
    (gradient,) = torch.autograd.grad(loss, log_alpha)
    assert gradient.item() == pytest.approx(entropy + 2.0) and (gradient.item() < 0) == rises


def test_smoothing_clips_noise_first_and_the_action_then():
    action, noise = torch.tensor([[0.0, 0.9]]), torch.tensor([[-2.0, 0.3]])
    torch.testing.assert_close(smoothed_action(action, noise), torch.tensor([[-0.5, 1.0]]))


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, obs, action):
        return self.norm(torch.cat([obs, action], -1)).sum(-1)[None]


def test_crossq_normalises_both_steps_together():
    g = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, 6, 2, generator=g)
    action, next_action = torch.randn(2, 6, 1, generator=g)
    q, next_q = crossq_values(Normalised(), obs, action, next_obs + 3, next_action)
    rows = torch.cat([torch.cat([obs, action], -1), torch.cat([next_obs + 3, next_action], -1)])
    expected = ((rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()).sum(-1)
    torch.testing.assert_close(torch.cat([q, next_q], 1)[0], expected)
    with pytest.raises(ConfigError, match="not K × 12"):
        crossq_values(lambda o, a: o[:, 0], obs, action, next_obs, next_action)


def test_polyak_averages_geometrically():
    target, source = [torch.zeros(2)], [torch.ones(2)]
    for _ in range(10):
        polyak_update(target, source, 0.1)
    assert target[0].tolist() == pytest.approx([1 - math.pow(0.9, 10)] * 2)
    with pytest.raises(ConfigError, match="tau=1.5"):
        polyak_update(target, source, 1.5)
