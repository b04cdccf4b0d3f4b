"""PPO's gradients written out, against autograd through `ppo_loss`."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from rlinf_lab.algorithms import ppo_loss
from rlinf_lab.policies import make_policy
from rlinf_lab.policies.ppo_by_hand import Minibatch, PPOByHand

FLAT = Dict({"numbers": Box(-1, 1, (2, 3)), "kind": Discrete(4)})
ROWS = 37


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("net_arch", [(8, 5), ()])
@pytest.mark.parametrize("actions", [Box(-2, 2, (2, 2)), Discrete(3, start=-1), MultiDiscrete([2, 4, 3])], ids=["gaussian", "discrete", "several"])
def test_gradients_and_what_is_logged_are_autograds(actions: gymnasium.Space, net_arch: tuple[int, ...], activation: str) -> None:
    rng = np.random.default_rng(0)
    actions.seed(0)
    policy = make_policy(FLAT, actions, net_arch=net_arch, activation=activation, log_std_init=-0.3, seed=1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    obs = {"numbers": torch.from_numpy(rng.normal(size=(ROWS, 2, 3)).astype(np.float32)), "kind": torch.from_numpy(rng.integers(0, 4, ROWS))}
    action = torch.from_numpy(np.stack([actions.sample() for _ in range(ROWS)]))
    adv, ret = torch.from_numpy(rng.normal(size=(2, ROWS)).astype(np.float32))
    log_prob, entropy, value = policy(obs, action)
    old = log_prob.detach() + torch.linspace(-0.5, 0.5, ROWS)  # on both sides of the clip, with advantages of both signs
    factors = {"clip": 0.2, "value_coefficient": 0.7, "entropy_coefficient": 0.03}
    wanted = ppo_loss(log_prob, old, adv, value, ret, entropy, **factors)
    wanted.total.backward()
    autograd = {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}
    for parameter in policy.parameters():
        parameter.grad = None

    assert PPOByHand.works_for(policy)
    by_hand = PPOByHand(policy)
    for _ in range(2):  # what was written is replaced
        told = by_hand.step(Minibatch(by_hand.features(obs), action, old, adv, ret), **factors)
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(parameter.grad, autograd[name], rtol=1e-5, atol=1e-6, msg=lambda said, name=name: f"{name}: {said}")
    for name, number in {"policy_loss": wanted.policy, "value_loss": wanted.value, "entropy": wanted.entropy, "kl": wanted.kl,
                         "clip_fraction": wanted.clip_fraction}.items():  # fmt: skip
        torch.testing.assert_close(told[name], number, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "observations, actions, options",
    [
        (Box(0, 255, (40, 40, 3), np.uint8), Discrete(2), {}),
        (FLAT, Box(-1, 1, (2,)), {"squash": True}),
        (FLAT, Box(-1, 1, (2,)), {"activation": "elu"}),
        (FLAT, Box(-1, 1, (2,)), {"share_encoder": True}),
        (FLAT, MultiBinary(3), {}),
    ],
    ids=["pictures", "squashed", "elu", "one encoder", "bits"],
)
def test_autograd_does_the_others(observations: gymnasium.Space, actions: gymnasium.Space, options: dict) -> None:
    assert not PPOByHand.works_for(make_policy(observations, actions, seed=0, **options))
