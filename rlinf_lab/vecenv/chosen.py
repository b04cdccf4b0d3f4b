"""A vector whose runner was chosen by measuring. Where a state comes from another runner, it goes on in that one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree
from rlinf_lab.vecenv.base import EnvSpec, Runner, VecEnv, cannot_leave


class ChosenVecEnv:
    """See `base.VecEnv` for the contract. All of it is done by ``env``, the runner's vector, and what else that has is found here, too.

    ``ways``: what makes a vector of each runner. Nobody asked for this runner, and another machine, or the same one on another day, may find another one
    faster: a state is taken in by a vector of the runner that saved it. Runners differ in their last digits, so the numbers stay those of the state.
    """

    step: Callable[[Tree], EnvStep]
    """the runner's own, so that a step costs nothing more"""

    def __init__(self, env: VecEnv, ways: Mapping[str, Callable[[int], VecEnv]]) -> None:
        self._ways, self.num_envs = ways, env.num_envs
        self._take(env)

    def _take(self, env: VecEnv) -> None:
        self.env, self.step = env, env.step

    @property
    def spec(self) -> EnvSpec:
        """Of the runner's vector."""
        return self.env.spec

    @spec.setter
    def spec(self, spec: EnvSpec) -> None:
        self.env.spec = spec

    def reset(self, *, seed: int | None = None) -> Tree:
        return self.env.reset(seed=seed)

    def render(self) -> NDArray[np.uint8] | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def cannot_leave(self) -> str:
        """See `base.cannot_leave`."""
        return cannot_leave(self.env)

    def save_state(self) -> Any:
        """See `base.Restorable`."""
        restorable: Any = self.env
        return restorable.save_state()

    def restore_state(self, state: Any) -> None:
        """See `base.Restorable`. ``spec.runner`` says so where it is another one afterwards."""
        mine = self.spec.runner
        saved = state.get("runner") if isinstance(state, dict) else None
        if mine is None or not isinstance(saved, str) or saved == mine.name or saved not in self._ways:
            kept: Any = self.env
            kept.restore_state(state)
            return
        env: Any = self._ways[saved](self.num_envs)
        try:
            env.restore_state(state)
        except BaseException:
            env.close()
            raise
        env.spec = replace(env.spec, runner=Runner(saved, "as the state was saved", mine.rates, getattr(env, "cores", 1)))
        self.env.close()
        self._take(env)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before it is there
            raise AttributeError(name)
        return getattr(self.env, name)

    def __repr__(self) -> str:
        return repr(self.env)
