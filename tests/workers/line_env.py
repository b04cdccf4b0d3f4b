"""A vector of one-dimensional arms for tests of the workers: small enough to compute by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
from gymnasium.spaces import Box

from rlinf_lab.policies import make_policy
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec

OBSERVATION, ACTION = Box(-np.inf, np.inf, (2,), np.float32), Box(-np.inf, np.inf, (1,), np.float32)
MAKE = partial(make_policy, OBSERVATION, ACTION, log_std_init=-0.5, seed=3)


class LineEnv:
    """State x in one dimension, starts at the environment's seed modulo 8, moves by the action; success where |x| < 0.5; reward −|x|.

    Cut after ``max_episode_steps``; terminates where |x| > 1000. Every later episode starts a quarter further.
    """

    def __init__(self, num_envs, max_episode_steps):
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.spec = EnvSpec("test/Line-v0", OBSERVATION, ACTION, max_episode_steps, "near zero", renders=True)
        self.resets, self.closed = [], False

    def reset(self, *, seed):
        self.resets.append(seed)
        self.start = (seed + np.arange(self.num_envs, dtype=float)) % 8
        self.x, self.t = self.start.copy(), np.zeros(self.num_envs)
        return self._obs()

    def step(self, action_N):
        self.x += np.asarray(action_N)[:, 0]
        self.t += 1
        terminated, success, reward = np.abs(self.x) > 1000, np.abs(self.x) < 0.5, -np.abs(self.x)
        truncated = (self.t >= self.limit) & ~terminated
        final = self._obs()
        ended = terminated | truncated
        self.x[ended], self.t[ended] = self.start[ended] + 0.25, 0
        return EnvStep(self._obs(), reward, terminated, truncated, success, final)

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        self.closed = True

    def _obs(self):
        return np.stack([self.x, self.t], 1)


class SavedLineEnv(LineEnv):
    """One that can leave its device."""

    def save_state(self):
        return self.start.copy(), self.x.copy(), self.t.copy()

    def restore_state(self, state):
        self.start, self.x, self.t = (part.copy() for part in state)
