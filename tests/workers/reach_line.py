"""A line of arms whose actions are bounded: what off-policy algorithms need. Small enough to follow by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gymnasium.spaces import Box
from line_env import LineEnv

ACTION = Box(-1.0, 1.0, (1,), np.float32)


class ReachLine(LineEnv):
    """Terminates at the goal, where |x| < 0.5."""

    def __init__(self, num_envs, max_episode_steps):
        super().__init__(num_envs, max_episode_steps)
        self.spec = replace(self.spec, action_space=ACTION)

    def step(self, action_N):
        at_goal = np.abs(self.x + np.asarray(action_N)[:, 0]) < 0.5
        step = super().step(action_N)
        begun = at_goal & ~step.truncated_N
        self.x[begun], self.t[begun] = self.start[begun] + 0.25, 0
        return replace(step, terminated_N=step.terminated_N | begun, obs_N=self._obs())
