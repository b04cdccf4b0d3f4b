"""One slot's environments and the trajectory that they are writing. Legend: T time, N environments, O observation, E ended episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.records import Action, EnvStep, Observation, Trajectory
from rlinf_lab.workers.seeds import Purpose, environment_seed

if TYPE_CHECKING:
    from rlinf_lab.vecenv import VecEnv


class EnvGroup:
    """Environments ``first_env ... first_env + N - 1`` of the run, stepped together.

    ``seed``: of the run. ``taken``: training steps that each environment has behind it, in an earlier run that this one goes on from.
    What an environment does depends on these and on its number in the run, never on the group it is in.
    """

    def __init__(self, env: VecEnv, slot: int, first_env: int, seed: int, taken: int = 0) -> None:
        self.env, self.slot, self.first_env, self.seed, self.taken = env, slot, first_env, seed, taken
        self.size = env.num_envs
        self.has_begun = False  # before the first reset environments have no state to save
        self._obs_NO: NDArray | None = None
        self._t = 0

    # --- leaving the device ---------------------------------------------------------------------------
    def give_up_environments(self) -> None:
        """Close them, and hold their memory no longer; `env` is not there until it is assigned anew."""
        self.env.close()
        del self.env

    # --- a trajectory ---------------------------------------------------------------------------------
    def begin(self, steps: int) -> None:
        """Allocate a trajectory of so many steps; episodes go on where they stand."""
        if self._obs_NO is None:
            self.restart(environment_seed(self.seed, Purpose.TRAINING, self.taken))  # after an evaluation: other episodes than before
        T, N, O = steps, self.size, self.env.spec.obs_size
        self._t = 0
        self._obs_TNO = np.empty((T, N, O), np.float32)
        self._action_TNA = np.empty((T, N, self.env.spec.action_size), np.float32)
        self._log_prob_TN, self._reward_TN = np.empty((2, T, N), np.float32)
        self._terminated_TN, self._truncated_TN = np.empty((2, T, N), bool)
        self._version_T = np.empty(T, np.int64)
        self._ended: list[tuple[int, int]] = []
        self._end_obs: list[NDArray] = []
        self._outcomes: list[tuple[float, bool, bool]] = []

    def observation(self) -> Observation:
        """What the policy shall answer next."""
        assert self._obs_NO is not None
        return Observation(self.slot, self.first_env, self.taken, self._obs_NO)

    def record(self, action: Action) -> None:
        """Carry out the action and write row ``t``."""
        t = self._t
        self._obs_TNO[t] = self._obs_NO
        self._action_TNA[t], self._log_prob_TN[t], self._version_T[t] = action.action_NA, action.log_prob_N, action.policy_version
        step, ended = self.step(action.action_NA)
        self._reward_TN[t], self._terminated_TN[t], self._truncated_TN[t] = step.reward_N, step.terminated_N, step.truncated_N
        for n, outcome in ended:
            self._ended.append((t, n))
            self._end_obs.append(np.asarray(step.final_obs_NO[n], np.float32))
            self._outcomes.append(outcome)
        self._t += 1
        self.taken += 1

    def finish(self) -> Trajectory:
        """Hand over the trajectory; its arrays are not touched again."""
        returns, at_end, once = np.array(self._outcomes, np.float32).reshape(-1, 3).T
        return Trajectory(
            slot=self.slot, first_env=self.first_env,
            obs_TNO=self._obs_TNO, action_TNA=self._action_TNA, log_prob_TN=self._log_prob_TN, version_T=self._version_T,
            reward_TN=self._reward_TN, terminated_TN=self._terminated_TN, truncated_TN=self._truncated_TN,
            last_obs_NO=np.array(self._obs_NO, np.float32),
            end_E2=np.array(self._ended, np.int64).reshape(-1, 2),
            end_obs_EO=np.array(self._end_obs, np.float32).reshape(-1, self._obs_TNO.shape[2]),
            end_return_E=returns, end_success_E=at_end.astype(bool), end_success_once_E=once.astype(bool),
        )  # fmt: skip

    # --- episodes -------------------------------------------------------------------------------------
    def restart(self, seed: int) -> None:
        """Begin new episodes in all environments, environment ``i`` of the run with ``seed + i``."""
        self._obs_NO = self.env.reset(seed=seed + self.first_env)
        self.has_begun = True
        self._return_N = np.zeros(self.size)
        self._once_N = np.zeros(self.size, bool)
        self._first: dict[int, tuple[float, bool, bool]] = {}

    def forget(self) -> None:
        """Give up the episodes under way: the next trajectory begins with a reset."""
        self._obs_NO = None

    def step(self, action_NA: NDArray) -> tuple[EnvStep, list[tuple[int, tuple[float, bool, bool]]]]:
        """One step of all; also (environment, (return, success at the end, success once)) of each episode that ended."""
        step = self.env.step(action_NA)
        self._obs_NO = step.obs_NO
        self._return_N += step.reward_N
        self._once_N |= step.success_N
        ended = []
        for n in np.flatnonzero(step.terminated_N | step.truncated_N).tolist():
            outcome = (float(self._return_N[n]), bool(step.success_N[n]), bool(self._once_N[n]))
            ended.append((n, outcome))
            self._first.setdefault(n, outcome)
            self._return_N[n], self._once_N[n] = 0.0, False
        return step, ended

    def each_has_ended(self) -> bool:
        """Whether every environment has finished an episode since `restart`."""
        return len(self._first) == self.size

    def first_outcomes(self) -> list[tuple[float, bool, bool]]:
        """(return, success at the end, success once) of each environment's first episode since `restart`."""
        return [self._first[n] for n in range(self.size)]
