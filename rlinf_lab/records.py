"""Every form that a record takes on its way: environment -> policy -> environment -> trajectory -> learner.

Plain numpy in frozen dataclasses; a record knows its policy version and nothing about time.
Suffixes: T time, N environments, O observation, A action, E episodes that ended, B samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# --- simulator ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvStep:
    """What one step of a vector of environments gave. Environments that end are reset in the same step."""

    obs_NO: NDArray
    """to act on next; after a reset the first observation of the new episode"""
    reward_N: NDArray
    """as the simulator gives it, float32, in its own units"""
    terminated_N: NDArray[np.bool_]
    """the task ended: nothing follows, the value of the final observation is zero"""
    truncated_N: NDArray[np.bool_]
    """the horizon was reached: the episode would have gone on. Never together with ``terminated_N``"""
    success_N: NDArray[np.bool_]
    """the task's own signal after this step, before any reset"""
    final_obs_NO: NDArray
    """the observation this step led to, before any reset: differs from ``obs_NO`` only where an episode ended"""


# --- simulator <-> policy: the tokens of the cell ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """What one group of environments shows its policy. ``slot`` = rank · sub_batches + k names the group."""

    slot: int
    first_env: int
    """global index of the group's first environment; the others follow. The same under every plan"""
    step: int
    """how often each of these environments has acted in training so far; numbers its exploration noise"""
    obs_NO: NDArray


@dataclass(frozen=True, slots=True)
class Action:
    """The answer to one `Observation`, same rows."""

    slot: int
    action_NA: NDArray
    log_prob_N: NDArray
    """log-density under the policy that chose, in nats"""
    policy_version: int
    """number of updates that went into that policy"""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T consecutive steps of N environments; row ``t`` holds an observation, the action taken on it and what came of it.

    Episodes run through: they may begin before row 0 and end after row T-1. Index E counts the episodes that *ended* in here,
    in the order of ``end_E2``.
    """

    slot: int
    first_env: int
    obs_TNO: NDArray
    action_TNA: NDArray
    log_prob_TN: NDArray
    """in nats, under the policy that acted"""
    version_T: NDArray[np.int64]
    """policy version of each step"""
    reward_TN: NDArray
    """as the environment gave it, not scaled"""
    terminated_TN: NDArray[np.bool_]
    """the task ended: nothing follows"""
    truncated_TN: NDArray[np.bool_]
    """the clock ran out: the episode would have gone on"""
    last_obs_NO: NDArray
    """the observation after row T-1, on which the next trajectory begins"""
    end_E2: NDArray[np.int64]
    """(t, n) of each row that ended an episode"""
    end_obs_EO: NDArray
    """the final observation of each ended episode, before the reset"""
    end_return_E: NDArray
    """sum of the episode's rewards, over all of it"""
    end_success_E: NDArray[np.bool_]
    """success in the episode's last step ("at the end")"""
    end_success_once_E: NDArray[np.bool_]
    """success in any of its steps ("once")"""

    @property
    def steps(self) -> int:
        """Environment steps in here: T·N."""
        return self.reward_TN.size

    def next_values(self, value_TN: NDArray, last_value_N: NDArray, end_value_E: NDArray) -> NDArray:
        """Value of the observation each step led to: the row below, except where an episode ended. See `algorithms.gae`."""
        next_TN = np.concatenate([value_TN[1:], last_value_N[None]])
        next_TN[self.end_E2[:, 0], self.end_E2[:, 1]] = end_value_E
        return next_TN

    def __repr__(self) -> str:
        T, N = self.reward_TN.shape
        return (
            f"Trajectory(slot={self.slot}, {T} steps × {N} environments from {self.first_env}, {len(self.end_E2)} episodes ended, "
            f"policy version {self.version_T.min()}..{self.version_T.max()})"
        )


@dataclass(frozen=True, eq=False)
class TrainBatch:
    """Flat samples for a loss. B = T·N of all trajectories together."""

    obs_BO: NDArray
    action_BA: NDArray
    log_prob_B: NDArray
    advantage_B: NDArray
    """not normalised"""
    return_B: NDArray
    """target of the value net"""

    def __len__(self) -> int:
        return len(self.return_B)

    def __repr__(self) -> str:
        return f"TrainBatch({len(self)} samples, advantage {self.advantage_B.mean():.3g} ± {self.advantage_B.std():.3g})"
