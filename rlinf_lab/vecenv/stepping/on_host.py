"""A vector that hands over torch tensors, as one of numpy arrays.

For whoever looks at environments without learning from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, map_tree
from rlinf_lab.vecenv.base import EnvSpec, VecEnv


class HostVecEnv:
    """See `base.VecEnv` for the contract. Made by `on_host`; what else the vector has is found here, too. ``spec`` says no device."""

    def __init__(self, env: VecEnv) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.spec: EnvSpec = replace(env.spec, device=None)

    def reset(self, *, seed: int | None = None) -> Tree:
        return arrays(self.env.reset(seed=seed))

    def step(self, action_N: Tree) -> EnvStep:
        step = self.env.step(action_N)
        success_N, reset_only_N = (None if part is None else arrays(part) for part in (step.success_N, step.reset_only_N))
        return EnvStep(
            arrays(step.obs_N), arrays(step.reward_N), arrays(step.terminated_N), arrays(step.truncated_N), success_N, arrays(step.final_obs_N), reset_only_N
        )  # fmt: skip

    def render(self) -> NDArray[np.uint8] | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before it is there
            raise AttributeError(name)
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return f"{self.env!r}, on the host"


def on_host(env: VecEnv) -> VecEnv:
    """A vector of numpy arrays: itself, or one that copies to the host. The latter takes actions from there, too."""
    return env if getattr(env.spec, "device", None) is None else HostVecEnv(env)


def arrays(tree: Tree) -> Tree:
    """Copies in host memory of a tree of tensors."""
    return map_tree(lambda leaf: np.array(leaf.cpu()), tree)
