"""Our gradient steps of soft actor-critic are Stable-Baselines3's, from equal weights, minibatches and noise."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.policies import make_actor, make_q_ensemble
from rlinf_lab.workers.off_policy.learner import ALONE
from rlinf_lab.workers.off_policy.minibatches import Minibatch
from rlinf_lab.workers.off_policy.sac import SACStep

sb3 = pytest.importorskip("stable_baselines3", reason="a peer of the benchmarks (pip install rlinf_lab[bench])")

OBS, ACTION, ROWS, STEPS = spaces.Box(-np.inf, np.inf, (5,)), spaces.Box(-1, 1, (3,)), 64, 20


class Idle(gymnasium.Env):
    observation_space, action_space = OBS, ACTION

    def reset(self, *, seed=None, options=None):
        return np.zeros(5, np.float32), {}


def copied(theirs, ours):
    """Their critics' weights, and the actor's, into ours."""
    with torch.no_grad():
        for mine, one, two in zip(ours.critic.parameters(), *(net.parameters() for net in theirs.critic.q_networks), strict=True):
            mine.copy_(torch.stack([one.t(), two.t()]) if one.dim() == 2 else torch.stack([one, two]).unsqueeze(1))
        ours.targets.vector.copy_(ours.critics.vector)
        for mine, given in zip(ours.actor.policy.parameters(), actors_of(theirs), strict=True):
            mine.copy_(given)


def actors_of(theirs):
    heads = [torch.cat(pair) for pair in zip(theirs.actor.mu.parameters(), theirs.actor.log_std.parameters(), strict=True)]
    return [*theirs.actor.latent_pi.parameters(), *heads]


@pytest.mark.parametrize("by_hand", [True, False])
def test_twenty_gradient_steps_are_those_of_stable_baselines3(monkeypatch, by_hand):
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    theirs = sb3.SAC("MlpPolicy", Idle(), seed=0, device="cpu", policy_kwargs={"net_arch": [32, 32]}, gamma=0.9, learning_rate=3e-4, tau=0.05)
    theirs.set_logger(sb3.common.logger.Logger(None, []))
    nets = {"observation_space": OBS, "action_space": ACTION, "net_arch": (32, 32)}
    ours = SACStep(partial(make_actor, **nets), partial(make_q_ensemble, **nets), learning_rate=3e-4, target_entropy=-3.0)
    copied(theirs, ours)
    assert ours.by_hand is not None
    if not by_hand:
        ours.by_hand = None
    rng = np.random.default_rng(0)
    asked: list[torch.Tensor] = []
    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda *_, **__: asked.pop(0))
    for _ in range(STEPS):
        obs, following = (torch.from_numpy(rng.normal(size=(ROWS, 5)).astype(np.float32)) for _ in range(2))
        action = torch.from_numpy(rng.uniform(-1, 1, (ROWS, 3)).astype(np.float32))
        reward = obs[:, 0] - action.square().sum(1)
        ended = torch.from_numpy(rng.random(ROWS) < 0.2).float()
        noise = torch.from_numpy(rng.normal(size=(2, ROWS, 3)).astype(np.float32))
        asked[:] = [noise[1], noise[0]]  # of these observations first
        sample = ReplayBufferSamples(obs, action, following, ended[:, None], reward[:, None])
        monkeypatch.setattr(theirs.replay_buffer, "sample", lambda *_, sample=sample, **__: sample)
        theirs._current_progress_remaining = 1.0
        theirs.train(gradient_steps=1, batch_size=ROWS)
        ours.step(Minibatch(obs, action, reward, 0.9 * (1 - ended), following, None), noise, {"tau": 0.05}, ALONE)
        assert not asked
    wanted = SACStep(partial(make_actor, **nets), partial(make_q_ensemble, **nets), learning_rate=3e-4, target_entropy=-3.0)
    copied(theirs, wanted)
    assert (ours.critics.vector - ours.targets.vector).abs().max() > 1e-3  # a thousand times the tolerance
    torch.testing.assert_close(ours.critics.vector, wanted.critics.vector, atol=2e-6, rtol=0)
    theirs.critic.load_state_dict(theirs.critic_target.state_dict())
    copied(theirs, wanted)
    torch.testing.assert_close(ours.targets.vector, wanted.critics.vector, atol=2e-6, rtol=0)
    for mine, given in zip(ours.actor.policy.parameters(), actors_of(theirs), strict=True):
        torch.testing.assert_close(mine, given, atol=2e-6, rtol=0)
    torch.testing.assert_close(ours.temperature.log_alpha.detach(), theirs.log_ent_coef.detach(), atol=2e-6, rtol=0)
