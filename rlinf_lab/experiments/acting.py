"""A trained policy by itself: observations of the environment in, actions for it out, normalisation inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_lab.policies.weights import Weights
from rlinf_lab.vecenv import make_vec


class TrainedPolicy:
    """What `load_policy` and `run.policy()` give. ``version``: updates that went into it."""

    def __init__(self, config: Any, weights: Weights) -> None:
        self.config = config
        self.module = config.policy()()
        self.module.load(weights)
        self.version = weights.version

    def act(self, obs: Any) -> Any:
        """Greedy actions for observations of one environment, or of a vector of them."""
        obs = np.asarray(obs, np.float32)
        action, _ = self.module.act(obs[None] if obs.ndim == 1 else obs, None)
        return action[0] if obs.ndim == 1 else action

    def __repr__(self) -> str:
        return f"TrainedPolicy({self.config.env_id!r}, after {self.version} updates)"


def vector_of(config: Any, num_envs: int) -> Any:
    """Environments of the run's task, for evaluation."""
    if isinstance(config.env_id, str):
        return make_vec(config.env_id, num_envs, config.horizon)
    return config.env_id(num_envs=num_envs, horizon=config.horizon)
