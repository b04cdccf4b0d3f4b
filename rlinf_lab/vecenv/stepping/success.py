"""Success as the only reward.

1 in the step in which a task first succeeds, and the episode is over there.

An environment that has no end of its own at success goes on to its limit of steps; what it does in between is no part of an
episode (`EnvStep.reset_only_N`). All environments that began together thus begin together again. Legend: N environments.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree
from rlinf_lab.vecenv.base import EnvSpec, Restorable, VecEnv, cannot_leave
from rlinf_lab.vecenv.registry import EnvFactory
from rlinf_lab.vecenv.spaces import sampled


class SuccessVecEnv:
    """Another vector, rewarded for success alone. `EnvError` at the first step where the task gives no signal of it."""

    def __init__(self, env: VecEnv) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.spec: EnvSpec = env.spec
        self._waits_N = np.zeros(env.num_envs, bool)  # for the end of an episode that has succeeded

    def reset(self, *, seed: int | None = None) -> Tree:
        self._waits_N[:] = False
        return self.env.reset(seed=seed)

    def step(self, action_N: Tree) -> EnvStep:
        step = self.env.step(action_N)
        if step.success_N is None:
            raise EnvError(
                f"{self.spec.id} says nothing about success, which reward='success' is made of. Next: reward='environment', or an environment whose every step "
                "says it, info['success'] = True or False."
            )
        waited_N = self._waits_N.copy()
        idle_N = waited_N if step.reset_only_N is None else waited_N | step.reset_only_N
        succeeded_N = step.success_N & ~idle_N
        ended_N = step.terminated_N | step.truncated_N
        self._waits_N = (waited_N | succeeded_N) & ~ended_N
        return EnvStep(
            step.obs_N, succeeded_N.astype(np.float32), (succeeded_N | step.terminated_N) & ~idle_N,
            step.truncated_N & ~idle_N & ~succeeded_N, succeeded_N, step.final_obs_N, idle_N if idle_N.any() else None,
        )  # fmt: skip

    # --- leaving the device, see `base.Restorable` ---------------------------------------------------------
    def save_state(self) -> tuple[NDArray[np.bool_], Any]:
        return self._waits_N.copy(), cast(Restorable, self.env).save_state()

    def restore_state(self, state: tuple[NDArray[np.bool_], Any]) -> None:
        self._waits_N = state[0].copy()
        cast(Restorable, self.env).restore_state(state[1])

    def cannot_leave(self) -> str:
        return cannot_leave(self.env)

    def render(self) -> NDArray[np.uint8] | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __repr__(self) -> str:
        return f"SuccessVecEnv({self.env!r})"


def rewarded_for_success(factory: EnvFactory) -> EnvFactory:
    """The same environments, rewarded for success alone."""
    return SuccessFactory(**{f.name: getattr(factory, f.name) for f in fields(factory)})


class SuccessFactory(EnvFactory):
    """Makes what another factory makes, as `SuccessVecEnv`."""

    def __call__(self, *args: Any, **options: Any) -> VecEnv:
        return SuccessVecEnv(super().__call__(*args, **options))

    def for_run(self, num_envs: int, max_episode_steps: int | None = None, *, elsewhere: bool = True, **options: Any) -> EnvFactory:
        """As of other factories.

        Where the run will live here a step is taken before it: `EnvError` where that tells nothing of success.
        """
        factory = super().for_run(num_envs, max_episode_steps, elsewhere=elsewhere, **options)
        known = self._known_spec(max_episode_steps)
        if not elsewhere and (known is None or known.success is None):
            env = self(self.size or 1, max_episode_steps, runner=next(iter(self.runners())))
            try:
                if env.spec.success is None:
                    env.reset(seed=0)
                    env.step(sampled(env.spec.action_space, np.random.default_rng(0), env.num_envs))
            finally:
                env.close()
        return factory
