"""Chunks of actions through the socket.

Several steps in a row that were chosen on one observation.

    observation ──policy──> action_NKA ──K steps of the vector──> ChunkStep

An episode that ends inside a chunk ends there: its rewards are those up to the end, and its last observation is the one
before the reset. The rest of the chunk was not chosen for the new episode, so the environment spends those steps with the
action zero; they count for nothing, and the policy is asked again at the next chunk, as all others are. What an
environment does thus depends on its own actions only, never on the group it is stepped with.

Legend: N environments, K actions of a chunk, A numbers of an action.
"""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError, shown
from rlinf_lab.records import ChunkStep, EnvStep
from rlinf_lab.trees import Tree, map_tree
from rlinf_lab.vecenv.base import VecEnv


@runtime_checkable
class StepsChunks(Protocol):
    """A vector that takes a chunk at once, such as a simulator behind a network. It gives what K single steps give."""

    def step_chunk(self, action_NKA: NDArray) -> ChunkStep: ...


def step_chunk(env: VecEnv, action_NKA: NDArray) -> ChunkStep:
    """Carry out K actions of each environment, one after another. See the module's docstring for ends inside a chunk.

    A vector's own ``step_chunk`` is used where it has one. Raises `EnvError` for actions that are no chunk of a Box.
    """
    space = env.spec.action_space
    wanted = (env.num_envs, "K", *(space.shape or ()))
    shape = np.shape(action_NKA)
    if not isinstance(space, Box) or len(shape) != len(wanted) or not shape[1] or (shape[0], *shape[2:]) != (wanted[0], *wanted[2:]):
        raise EnvError(
            f"{env.spec.id}: step_chunk was given {shown(action_NKA)} of the shape {shape}; chunks are arrays of the shape "
            f"{tuple(wanted)} of actions in a Box, and this one's are in {space}. Next: the policy's chunk=, or step() for single actions."
        )
    if isinstance(env, StepsChunks):
        return env.step_chunk(action_NKA)
    return _step_by_step(env, np.asarray(action_NKA), np.clip(0.0, space.low, space.high).astype(space.dtype))


def is_chunk(space: Space, action_N: Any) -> bool:
    """Whether actions for several environments are chunks of actions of ``space``."""
    return isinstance(space, Box) and np.ndim(action_N) == len(space.shape) + 2


def _step_by_step(env: VecEnv, action_NKA: NDArray, idle_A: NDArray) -> ChunkStep:
    N, K = action_NKA.shape[:2]
    reward_NK = np.zeros((N, K), np.float32)
    success_NK: NDArray[np.bool_] | None = None
    steps_N = np.zeros(N, np.int64)
    terminated_N, truncated_N = np.zeros((2, N), bool)
    goes_on_N = np.ones(N, bool)  # in the episode for which the chunk was chosen
    final_obs_N: Tree = None
    for k in range(K):
        whole = bool(goes_on_N.all())
        action_N = action_NKA[:, k] if whole else np.where(_along(goes_on_N, action_NKA[:, k]), action_NKA[:, k], idle_A)
        step = env.step(action_N)
        counts_N = goes_on_N if step.reset_only_N is None else goes_on_N & ~step.reset_only_N
        reward_NK[:, k] = np.where(counts_N, step.reward_N, 0.0)
        steps_N += counts_N
        if step.success_N is not None:
            success_NK = np.zeros((N, K), bool) if success_NK is None else success_NK
            success_NK[:, k] = counts_N & step.success_N
        final_obs_N = _latest(final_obs_N, step, counts_N, whole and bool(counts_N.all()))
        terminated_N |= counts_N & step.terminated_N
        truncated_N |= counts_N & step.truncated_N
        goes_on_N = counts_N & ~(step.terminated_N | step.truncated_N)
    return ChunkStep(step.obs_N, reward_NK, steps_N, terminated_N, truncated_N, success_NK, final_obs_N)


def _latest(final_obs_N: Tree, step: EnvStep, counts_N: NDArray, all_count: bool) -> Tree:
    """The observation that each environment's last step of its episode led to."""
    if final_obs_N is None or all_count:
        return map_tree(np.array, step.final_obs_N)
    return map_tree(lambda old, new: np.where(_along(counts_N, new), new, old), final_obs_N, step.final_obs_N)


def _along(mask_N: NDArray, leaf: Any) -> NDArray:
    return cast(NDArray, mask_N.reshape(-1, *[1] * (np.ndim(leaf) - 1)))
