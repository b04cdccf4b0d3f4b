"""Every form that a record takes on its way.

Environment -> policy -> environment -> trajectory -> learner.

Plain numpy in frozen dataclasses; a record knows its policy version and nothing about time. Observations and actions are trees (`trees`): an array
where the space is a leaf, such as a Box; dicts and tuples of arrays where it is a Dict or a Tuple.
Suffixes: leading axes of every leaf. T time, N environments, E episodes that ended, B samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.trees import Tree

# --- simulator ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvStep:
    """What one step of a vector of environments gave. Environments that end are reset in the same step."""

    obs_N: Tree
    """to act on next; after a reset the first observation of the new episode"""
    reward_N: NDArray
    """as the simulator gives it, float32, in its own units"""
    terminated_N: NDArray[np.bool_]
    """the task ended: nothing follows, the value of the final observation is zero"""
    truncated_N: NDArray[np.bool_]
    """the limit of steps was reached: the episode would have gone on. Never together with ``terminated_N``"""
    success_N: NDArray[np.bool_] | None
    """the task's own signal after this step, before any reset; None where the task gives none"""
    final_obs_N: Tree
    """the observation this step led to, before any reset: differs from ``obs_N`` only where an episode ended"""
    reset_only_N: NDArray[np.bool_] | None = None
    """where this was no step: the action was ignored, ``obs_N`` is the first of a new episode (gymnasium's NEXT_STEP). None: nowhere"""


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """What a chunk of K actions of each environment gave, see `vecenv.chunks`. An episode ends with the chunk in which it ends."""

    obs_N: Tree
    """to act on next; after a reset one of the new episode"""
    reward_NK: NDArray
    """of each action, float32; 0 for those that were not carried out in the episode for which the chunk was chosen"""
    steps_N: NDArray[np.int64]
    """how many were, from the first on; 0 where the chunk only waited for a reset"""
    terminated_N: NDArray[np.bool_]
    """the task ended within the chunk"""
    truncated_N: NDArray[np.bool_]
    """the limit of steps was reached within the chunk. Never together with ``terminated_N``"""
    success_NK: NDArray[np.bool_] | None
    """the task's own signal after each action that was carried out; None where the task gives none"""
    final_obs_N: Tree
    """the observation that the last of those steps led to, before any reset"""


# --- simulator <-> policy: the tokens of the cell ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """What one group of environments shows its policy. ``slot`` = rank · sub_batches + k names the group."""

    slot: int
    first_env: int
    """global index of the group's first environment; the others follow. The same under every plan"""
    step: int
    """how often each of these environments has acted in training so far; numbers its exploration noise"""
    obs_N: Tree


@dataclass(frozen=True, slots=True)
class Action:
    """The answer to one `Observation`, same rows."""

    slot: int
    action_N: Tree
    log_prob_N: NDArray
    """log-density under the policy that chose, in nats"""
    policy_version: int
    """number of updates that went into that policy"""
    executed_N: Tree = None
    """what the environments get, where that is only a part of what is learned from (the end of a flow's chain); None: ``action_N``"""

    @property
    def for_environment_N(self) -> Tree:
        """What the environments get."""
        return self.action_N if self.executed_N is None else self.executed_N


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T consecutive steps of N environments. Row ``t`` holds an observation, the action taken on it and what came of it.

    Episodes run through: they may begin before row 0 and end after row T-1. Index E counts the episodes that *ended* in here,
    in the order of ``end_E2``.
    """

    slot: int
    first_env: int
    obs_TN: Tree
    action_TN: Tree
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
    last_obs_N: Tree
    """the observation after row T-1, on which the next trajectory begins"""
    is_fresh: bool
    """row 0 begins new episodes in all environments: what was under way before was given up"""
    end_E2: NDArray[np.int64]
    """(t, n) of each row that ended an episode"""
    end_obs_E: Tree
    """the final observation of each ended episode, before the reset"""
    end_return_E: NDArray
    """sum of the episode's rewards, over all of it"""
    end_length_E: NDArray[np.int64]
    """its steps"""
    end_success_E: NDArray[np.float32]
    """success in the episode's last step ("at the end"), 0 or 1; nan where the task gave no signal"""
    end_success_once_E: NDArray[np.float32]
    """success in any of its steps ("once"); nan where the task gave no signal"""
    reset_only_TN: NDArray[np.bool_] | None = None
    """rows that are no steps and teach nothing, see `EnvStep.reset_only_N`; None: there are none"""
    chunk_reward_TNK: NDArray | None = None
    """where a row is a chunk of K actions: the reward of each; ``reward_TN`` is their sum. None: a row is one action"""
    chunk_steps_TN: NDArray[np.int64] | None = None
    """where a row is a chunk: how many of its actions were carried out, see `ChunkStep`"""

    @property
    def rows(self) -> int:
        """Decisions in here: T·N, without those that only began an episode."""
        return self.reward_TN.size - (0 if self.reset_only_TN is None else int(self.reset_only_TN.sum()))

    @property
    def steps(self) -> int:
        """Environment steps in here: as `rows`, but of chunks their actions."""
        return self.rows if self.chunk_steps_TN is None else int(self.chunk_steps_TN.sum())

    def discounted(self, gamma: float) -> tuple[NDArray, NDArray | float]:
        """The reward of each row, T×N, and what the value after it is discounted by. ``gamma`` is per environment step.

        A row of one action has its reward and ``gamma``. Of a chunk of k actions that were carried out it is
        ``sum(gamma^i · reward_i)`` and ``gamma^k``: options as one decision (Sutton, Precup and Singh, Between MDPs and
        semi-MDPs, 1999, section 3).
        """
        if self.chunk_reward_TNK is None or self.chunk_steps_TN is None:
            return self.reward_TN, gamma
        powers_K = gamma ** np.arange(self.chunk_reward_TNK.shape[-1])
        return (self.chunk_reward_TNK * powers_K).sum(-1), gamma**self.chunk_steps_TN

    def next_values(self, value_TN: NDArray, last_value_N: NDArray, end_value_E: NDArray) -> NDArray:
        """Value of the observation that each step led to.

        That of the row below, except where an episode ended. See `algorithms.gae`.
        """
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
    """Flat samples for a loss: B steps of all trajectories together."""

    obs_B: Tree
    action_B: Tree
    log_prob_B: NDArray
    advantage_B: NDArray
    """not normalised"""
    return_B: NDArray
    """target of the value net"""
    steps_B: NDArray | None = None
    """of chunks: how many actions were carried out; None: a row is one action"""

    def __len__(self) -> int:
        return len(self.return_B)

    def __repr__(self) -> str:
        return f"TrainBatch({len(self)} samples, advantage {self.advantage_B.mean():.3g} ± {self.advantage_B.std():.3g})"


# --- evaluation ----------------------------------------------------------------------------------------

NORMAL_95 = 1.959964  # the 97.5 % quantile of the normal distribution


@dataclass(frozen=True, eq=False)
class Episodes:
    """What whole episodes came to; one entry an episode."""

    return_E: NDArray[np.float64]
    """sum of its rewards, as the environment gave them"""
    length_E: NDArray[np.int64]
    """its steps"""
    success_E: NDArray[np.float64]
    """success in the last step, 0 or 1; nan where the task gave no signal"""
    success_once_E: NDArray[np.float64]
    """success in any step; nan where the task gave no signal"""

    @classmethod
    def joined(cls, parts: list[Episodes]) -> Episodes:
        """All of them, one after another."""
        names = ("return_E", "length_E", "success_E", "success_once_E")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def summary(self) -> dict[str, Any]:
        """``return``, ``return_interval``, ``length``, ``episodes``. ``success_rate`` and ``success_once`` where there is a signal, each with its interval.

        Intervals are of 95 %: `mean_interval` of the mean, `wilson` of a rate. Every evaluation is told so. Empty but for ``episodes`` where there are none.
        """
        count = len(self.return_E)
        if not count:
            return {"episodes": 0}
        found: dict[str, Any] = {
            "return": float(self.return_E.mean()), "return_interval": mean_interval(self.return_E), "length": float(self.length_E.mean()), "episodes": count,
        }  # fmt: skip
        for name, rate in success_rates(self.success_E, self.success_once_E).items():
            found |= {name: rate, f"{name.removesuffix('_rate')}_interval": wilson(round(rate * count), count)}
        return found

    def __repr__(self) -> str:
        return f"Episodes({len(self.return_E)}, return {self.return_E.mean():.4g})" if len(self.return_E) else "Episodes(0)"


def mean_interval(values: NDArray) -> tuple[float, float]:
    """95 % confidence interval of the mean of independent values, Student's t. Infinite for fewer than two."""
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    half = student_t95(n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    mean = float(values.mean())
    return mean - half, mean + half


def student_t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by the expansion of Abramowitz and Stegun 26.7.5. Tables up to four degrees, where it is too coarse."""
    exact = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645}
    if freedom in exact:
        return exact[freedom]
    x, v = NORMAL_95, freedom
    g1, g2 = (x**3 + x) / 4, (5 * x**5 + 16 * x**3 + 3 * x) / 96
    g3 = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    g4 = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + g1 / v + g2 / v**2 + g3 / v**3 + g4 / v**4


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927). Inside [0, 1], and no point where all or none succeeded."""
    z2 = NORMAL_95**2
    centre, spread = successes + z2 / 2, NORMAL_95 * math.sqrt(successes * (n - successes) / n + z2 / 4)
    return max(0.0, (centre - spread) / (n + z2)), min(1.0, (centre + spread) / (n + z2))


def success_rates(success_E: NDArray, once_E: NDArray) -> dict[str, float]:
    """``success_rate`` (at the end) and ``success_once``. Nothing where no episode had a signal, for an absent success is no failure.

    Where some had one the others count as failures: there are tasks that only report success.
    """
    if not len(success_E) or (np.isnan(success_E).all() and np.isnan(once_E).all()):
        return {}
    return {"success_rate": float((success_E == 1).mean()), "success_once": float((once_E == 1).mean())}
