"""From trajectories to the rows of a replay buffer. Legend: T time, N environments, E ended episodes, R rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_lab.records import Trajectory
from rlinf_lab.replay import NStep
from rlinf_lab.trees import Tree, map_tree, rows


def transitions(trajectories: Sequence[Trajectory], n_step: NStep | None = None) -> Tree:
    """``obs``, ``action``, ``reward``, ``next_obs`` (before any reset) and ``terminated``, leaves of leading axis R.

    Step by step, of each step environment by environment: the same rows in the same order however the environments
    were grouped. Rows that only began an episode are left out. Numbers are in single precision. With ``n_step`` those
    over several steps that are complete now, and their ``discount``.
    """
    ordered = sorted(trajectories, key=lambda t: t.first_env)

    def side_by_side(*leaves: np.ndarray) -> np.ndarray:
        return leaves[0] if len(leaves) == 1 else np.concatenate(leaves, axis=1)

    def in_rows(leaf_TN: np.ndarray) -> np.ndarray:
        leaf_R = leaf_TN.reshape(-1, *leaf_TN.shape[2:])
        return leaf_R.astype(np.float32) if leaf_R.dtype == np.float64 else leaf_R

    steps = map_tree(side_by_side, *map(_of, ordered))
    if n_step is None:
        del steps["truncated"]
    else:
        steps = n_step.push(steps, np.repeat([t.is_fresh for t in ordered], [t.reward_TN.shape[1] for t in ordered]))
    found = map_tree(in_rows, steps)
    is_step_R = found.pop("is_step")
    return found if is_step_R.all() else rows(found, is_step_R)


def _of(t: Trajectory) -> dict[str, Tree]:
    def following(obs_TN: np.ndarray, last_N: np.ndarray, end_E: np.ndarray) -> np.ndarray:
        next_TN = np.concatenate([obs_TN[1:], last_N[None]])
        next_TN[t.end_E2[:, 0], t.end_E2[:, 1]] = end_E
        return next_TN

    reset_only_TN = np.zeros(t.reward_TN.shape, bool) if t.reset_only_TN is None else t.reset_only_TN
    return {
        "obs": t.obs_TN, "action": t.action_TN, "reward": t.reward_TN.astype(np.float32),
        "next_obs": map_tree(following, t.obs_TN, t.last_obs_N, t.end_obs_E), "terminated": t.terminated_TN,
        "truncated": t.truncated_TN, "is_step": ~reset_only_TN,
    }  # fmt: skip
