"""PPO with a critic for tokens: GAE against its sum, gradients in parts, a critic that learns what is to come."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_reasoning_update import VERSION, model, response

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.recipes.grpo import GRPOConfig, build
from rlinf_lab.workers.reasoning import UpdateSettings
from rlinf_lab.workers.reasoning.critic import CriticAccumulator, token_gae


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_is_the_sum_of_its_definition(lam):
    rng = np.random.default_rng(0)
    value, mask, reward = rng.normal(size=(3, 6)), rng.random((3, 6)) < 0.7, rng.normal(size=3)
    got = token_gae(*map(torch.as_tensor, (reward, value, mask)), lam)
    for b in range(3):
        places = np.flatnonzero(mask[b])
        after = [*value[b, places[1:]], reward[b]]
        delta = [n - value[b, t] for n, t in zip(after, places, strict=True)]
        expected = [sum(lam**k * d for k, d in enumerate(delta[i:])) for i in range(len(delta))]
        np.testing.assert_allclose(got[b, places].numpy(), expected, atol=1e-12)
        assert (got[b, ~torch.as_tensor(mask[b])] == 0).all()


def accumulator(**fields):
    settings = UpdateSettings(lambda r: r, critic=True, max_grad_norm=1e9, **fields)
    return CriticAccumulator(model(), settings, max_tokens=9)


def test_parts_have_the_gradient_of_the_whole():
    responses = [response(p, 0, 2 + p) for p in range(6)]
    reward = np.arange(6.0) % 2
    parts, whole = accumulator(gae_lambda=0.9), accumulator(gae_lambda=0.9)
    for each in (parts, whole):
        torch.nn.init.normal_(each.critic.head.weight, generator=torch.Generator().manual_seed(0))
    for i in range(0, 6, 2):
        parts.add(responses[i : i + 2], reward[i : i + 2], VERSION)
    whole.add(responses, reward, VERSION)
    for a, b in ((parts.critic, whole.critic), (parts.model.module, whole.model.module)):
        for one, other in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)


def test_the_critic_learns_what_is_to_come():
    learner = accumulator(critic_learning_rate=1e-2)
    responses, reward = [response(p, 0, 5) for p in range(4)], np.array([0.0, 1.0, 0.0, 1.0])
    losses = []
    for _ in range(60):
        learner.add(responses, reward, VERSION)
        losses.append(learner.step(0.0)["value_loss"])
    assert losses[0] == pytest.approx(0.25) and losses[-1] < 0.35 * losses[0]  # 0.2 is left: all begin alike
    again = accumulator()
    again.load_more(learner.more_state())
    again.add(responses, reward, VERSION)
    assert again.step(0.0)["value_loss"] == pytest.approx(losses[-1], abs=2e-3)


def test_the_recipe_runs_with_a_critic_and_goes_on():
    fields = {"prompts": 8, "group_size": 1, "max_tokens": 8, "warm_up_steps": 0, "hidden": 16, "layers": 1, "iterations": 3, "slots": 8}
    config = GRPOConfig.preset("ppo", env="reasoning/remainder", reward=lambda problem, text: float("1" in text), **fields)
    flow = build(config)
    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as session:
        first = session.step("train")
        kept = session.step("checkpoint")
        expected = session.step("train")
    assert first["value_loss"] > 0 and first["grad_norm"] > 0
    again = build(config, kept["state"])
    with lab.session(again, lab.ExecutionPlan.temporal(again, ["cpu:0"])) as session:
        assert session.step("train") == expected
    with pytest.raises(ConfigError, match="at least 1 with a critic"):
        GRPOConfig("remainder", group_size=1)
