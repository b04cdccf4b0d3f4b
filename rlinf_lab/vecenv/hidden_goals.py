"""Rewards that depend on something which observations do not show.

Simulators can hide the goal of a task (EnvPool's Meta-World does by default: its place in the observation is filled with zeros); a policy then learns
nothing, and nobody sees why. Suspected is an observation with a ``desired_goal`` that never changes, or with numbers that are always exactly zero, before a step and after it. It is
convicted where the rewards of many first steps have nothing to do with what is shown: kernel ridge regression from the observations before and
after a step to its reward explains less than half of the variance on episodes that it has not seen. Rewards of which most are about equal, as sparse ones are,
tell too little: nothing is said of them.

Legend: M steps, X numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError
from rlinf_lab.trees import Tree, named_leaves
from rlinf_lab.vecenv.base import VecEnv
from rlinf_lab.vecenv.spaces import sampled

EPISODES = 240
FEW = 24  # episodes that raise a suspicion, or not
EXPLAINED = 0.5
SPARSE = 0.5  # of the rewards


def check_goal_is_shown(env: VecEnv, seed: int) -> None:
    """`EnvError` where rewards depend on a goal that is not in the observation."""
    suspect = ""
    shown_MX, reward_M, before_MX = _first_steps(env, seed, FEW)
    if np.ptp(reward_M) > 0:
        suspect = _suspect(env, before_MX, shown_MX)
    if not suspect:
        return
    shown_MX, reward_M, _ = _first_steps(env, seed, EPISODES)
    if np.histogram(reward_M, bins=100)[0].max() > SPARSE * len(reward_M):
        return
    explained = explained_variance(shown_MX, reward_M)
    if explained < EXPLAINED:
        raise EnvError(
            f"{env.spec.id}: {suspect}, and observations explain {max(0.0, explained):.0%} of the differences between rewards in the first steps of "
            f"{len(reward_M)} episodes: the goal is hidden. Next: let observations hold it (EnvPool: partially_observable=False)."
        )


def _suspect(env: VecEnv, before_MX: NDArray, shown_MX: NDArray) -> str:
    names = list(_columns(env.spec.observation_space, ""))
    still_X = np.ptp(before_MX, axis=0) == 0
    if any("desired_goal" in name for name in names):
        goal_X = np.array(["desired_goal" in name for name in names])
        return "its desired_goal is the same in all episodes" if still_X[goal_X].all() else ""
    zero_X = (before_MX == 0).all(0) & (shown_MX[:, before_MX.shape[1] :] == 0).all(0)  # an action before, say, is not zero after a step
    return f"{zero_X.sum()} numbers of its observation are always 0" if zero_X.any() else ""


def _columns(space: spaces.Space, name: str) -> Iterator[str]:
    """The name of every number in a row."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from _columns(part, f"{name}[{key!r}]")
    elif not _is_picture(space):
        yield from [name] * int(np.prod(space.shape or ()))


def _is_picture(space: spaces.Space) -> bool:
    return len(space.shape or ()) > 1


def _row(tree: Tree, space: spaces.Space) -> NDArray[np.float64]:
    """All numbers of each environment, without pictures."""
    flat = [leaf.reshape(len(leaf), -1) for _, leaf in named_leaves(tree) if leaf.ndim <= 2]
    return np.concatenate([*flat, np.zeros((len(next(iter(named_leaves(tree)))[1]), 0))], axis=1).astype(np.float64)


def _first_steps(env: VecEnv, seed: int, episodes: int) -> tuple[NDArray, NDArray, NDArray]:
    """What is shown before and after the first step, and its reward.

    Of so many episodes, in which all do the same; and what was shown before.
    """
    space, before, after, rewards = env.spec.observation_space, [], [], []
    action_N = sampled(env.spec.action_space, np.random.default_rng(seed), 1)
    for k in range(-(-episodes // env.num_envs)):
        obs_N = env.reset(seed=seed + 10_000 + k * env.num_envs)
        before.append(_row(obs_N, space).copy())
        step = env.step(_repeated(action_N, env.num_envs))
        after.append(_row(step.final_obs_N, space).copy())
        rewards.append(np.array(step.reward_N, np.float64))
    before_MX = np.concatenate(before)
    return np.concatenate([before_MX, np.concatenate(after)], axis=1), np.concatenate(rewards), before_MX


def _repeated(tree: Tree, n: int) -> Tree:
    if isinstance(tree, dict):
        return {key: _repeated(part, n) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_repeated(part, n) for part in tree)
    return np.repeat(tree, n, axis=0)


def explained_variance(x_MX: NDArray, y_M: NDArray) -> float:
    """Share of the variance of ``y`` that ``x`` explains by a smooth function.

    On rows it was not fitted on: 1 all, 0 nothing, below 0 worse than the mean.

    Kernel ridge regression, Gaussian kernel of median width and a linear one, two folds; the best of a few widths and ridges.
    """
    spread_X = x_MX.std(axis=0)
    x_MX = (x_MX - x_MX.mean(axis=0))[:, spread_X > 1e-9] / spread_X[spread_X > 1e-9]
    if not x_MX.shape[1] or y_M.std() == 0:
        return 0.0
    y_M = (y_M - y_M.mean()) / y_M.std()
    length_M = np.square(x_MX).sum(1)
    squared_MM = np.maximum(length_M[:, None] + length_M[None] - 2 * x_MX @ x_MX.T, 0.0)
    width = float(np.median(squared_MM)) or 1.0
    half = np.arange(len(y_M)) % 2 == 0
    best = -np.inf
    for scale in (0.25, 1.0, 4.0):
        kernel_MM = np.exp(-squared_MM / (scale * width)) + 0.1 * (x_MX @ x_MX.T) / x_MX.shape[1]
        for ridge in (1e-3, 1e-1):
            error = 0.0
            for fit in (half, ~half):
                weights = np.linalg.solve(kernel_MM[np.ix_(fit, fit)] + ridge * np.eye(fit.sum()), y_M[fit])
                error += float(np.square(kernel_MM[np.ix_(~fit, fit)] @ weights - y_M[~fit]).sum())
            best = max(best, 1.0 - error / len(y_M))
    return best
