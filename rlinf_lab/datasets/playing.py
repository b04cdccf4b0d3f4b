"""Whole episodes played by somebody, one in each environment of a vector. Legend: N environments, K actions of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf_lab.datasets.episodes import Episode
from rlinf_lab.errors import ConfigError
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, map_tree
from rlinf_lab.vecenv import VecEnv
from rlinf_lab.vecenv.base import LONGEST
from rlinf_lab.vecenv.stepping import is_chunk


@dataclass
class Recording:
    """Steps of one environment, as they come."""

    obs: list[Tree] = field(default_factory=list)
    action: list[Tree] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    success: list[bool] | None = field(default_factory=list)
    is_over: bool = False

    def __len__(self) -> int:
        return len(self.reward)

    def add(self, obs: Tree, action_N: Tree, step: EnvStep, n: int = 0) -> None:
        """One step of environment ``n``. What was acted on is a copy, see `row`."""
        self.obs.append(obs)
        self.action.append(row(action_N, n))
        self.reward.append(float(step.reward_N[n]))
        if step.success_N is None:
            self.success = None
        elif self.success is not None:
            self.success.append(bool(step.success_N[n]))

    def episode(self, terminated: bool, truncated: bool, final_obs: Tree, seed: int | None, task: str) -> Episode:
        self.is_over = True
        obs_T, action_T = (map_tree(lambda *rows: np.stack(rows), *rows) for rows in (self.obs, self.action))
        success_T = None if self.success is None else np.array(self.success, bool)
        return Episode(obs_T, action_T, np.array(self.reward, np.float32), terminated, truncated, success_T, final_obs, seed, task)


def play_once(env: VecEnv, act: Callable[[Tree], Tree], seed: int, task: str) -> list[Episode]:
    """The first episode of each environment, environment i from ``seed + i``. ``act``: from obs_N to action_N, or to action_NKA.

    Raises `ConfigError` where nothing ends an episode.
    """
    recordings = [Recording() for _ in range(env.num_envs)]
    ended: dict[int, Episode] = {}
    obs_N, steps = env.reset(seed=seed), 0
    while len(ended) < env.num_envs:
        chosen = act(obs_N)
        for action_N in np.swapaxes(chosen, 0, 1) if is_chunk(env.spec.action_space, chosen) else [chosen]:
            obs_N, steps = _step(env, recordings, obs_N, action_N, ended, seed, task), steps + 1
        if steps >= LONGEST and env.spec.max_episode_steps is None:
            raise ConfigError(f"{env.spec.id}: an episode has gone on for {steps} steps, and nothing limits it. Next: max_episode_steps=1000.")
    return [ended[n] for n in range(env.num_envs)]


def _step(env: VecEnv, recordings: list[Recording], obs_N: Tree, action_N: Tree, ended: dict[int, Episode], seed: int, task: str) -> Tree:
    before = {n: row(obs_N, n) for n, r in enumerate(recordings) if not r.is_over}  # copied: a vector may use its arrays again
    step = env.step(action_N)
    for n, obs in before.items():
        recordings[n].add(obs, action_N, step, n)
        terminated, truncated = bool(step.terminated_N[n]), bool(step.truncated_N[n])
        if terminated or truncated:
            ended[n] = recordings[n].episode(terminated, truncated, row(step.final_obs_N, n), seed + n, task)
    return step.obs_N


def row(tree: Tree, n: int) -> Any:
    """A copy of what belongs to environment ``n``."""
    return map_tree(lambda leaf: np.array(np.asarray(leaf)[n]), tree)
