"""A trained policy by itself: observations of the environment in, actions for it out, normalisation inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_lab.errors import ConfigError
from rlinf_lab.experiments.evaluation import Evaluation, Told, check_counts, play
from rlinf_lab.policies.weights import Weights
from rlinf_lab.vecenv import make_vec
from rlinf_lab.workers.seeds import Purpose, environment_seed


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

    def predict(self, obs: Any, deterministic: bool = True) -> tuple[Any, None]:
        """As stable-baselines3 has it: the greedy action, and no state."""
        if not deterministic:
            raise ConfigError("predict(deterministic=False): a policy by itself acts greedily. Next: predict(obs).")
        return self.act(obs), None

    def evaluate(self, episodes: int = 50, seed: int | None = None) -> Evaluation:
        """Play whole episodes greedily on environments of its own; ``seed``: of these, None: the run's."""
        seed = self.config.seed if seed is None else seed
        check_counts("evaluate", episodes, seed)
        first = environment_seed(seed, Purpose.EVALUATION)
        return play(lambda n: vector_of(self.config, n), self.act, episodes, first, Told(self.version, seed))

    def __repr__(self) -> str:
        return f"TrainedPolicy({self.config.env_id!r}, after {self.version} updates)"


def vector_of(config: Any, num_envs: int) -> Any:
    """Environments of the run's task, for evaluation."""
    if isinstance(config.env_id, str):
        return make_vec(config.env_id, num_envs, config.horizon)
    return config.env_id(num_envs=num_envs, horizon=config.horizon)
