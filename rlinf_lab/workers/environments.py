"""One slot's environments and the trajectory that they are writing.

Legend: leading axes; T time, N environments, E ended episodes, K actions of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError
from rlinf_lab.records import Action, ChunkStep, EnvStep, Episodes, Observation, Trajectory
from rlinf_lab.trees import Tree, assign, leaves, map_tree, rows
from rlinf_lab.vecenv.spaces import empty, first_not_finite, is_finite
from rlinf_lab.vecenv.stepping import step_chunk
from rlinf_lab.workers.seeds import Purpose, environment_seed
from rlinf_lab.workers.standing import live

if TYPE_CHECKING:
    from rlinf_lab.vecenv import Restorable, VecEnv


class Outcome(NamedTuple):
    """What an episode came to."""

    total: float
    """sum of its rewards"""
    length: int
    """steps"""
    at_end: float
    """success in its last step, 0 or 1; nan where the task gave no signal"""
    once: float
    """success in any step; nan where the task gave no signal"""


class EnvGroup:
    """Environments ``first_env ... first_env + N - 1`` of the run, stepped together.

    ``seed``: of the run. ``taken``: training steps that each environment has behind it, in an earlier run that this one
    goes on from. What an environment does depends on these and on its number in the run, never on the group it is in.
    What a vector hands over is copied at once, into the trajectory: it may use its arrays again. Nothing that is not
    finite gets further than here. ``chunk_size``: so many actions are chosen at once, and a row of the trajectory is a
    chunk; None: single actions.
    """

    def __init__(
        self, env: VecEnv, slot: int, first_env: int, seed: int, taken: int = 0, chunk_size: int | None = None
    ) -> None:
        self.env, self.slot, self.first_env, self.seed, self.taken, self.chunk_size = (
            env,
            slot,
            first_env,
            seed,
            taken,
            chunk_size,
        )
        self.size = env.num_envs
        self.has_begun = False  # before the first reset environments have no state to save
        self._obs_N: Tree = None
        self._first: dict[int, Outcome] = {}
        self._t = 0

    # --- leaving the device ---------------------------------------------------------------------------
    def give_up_environments(self) -> None:
        """Close them, and hold their memory no longer. `env` is not there until it is assigned anew."""
        self.env.close()
        del self.env

    # --- between two runs -----------------------------------------------------------------------------
    def standing(self, env: Any) -> dict[str, Any]:
        """Where its episodes are, so that `go_on` in another run goes on exactly there. ``env``: as the vector has
        saved it; None: before the first reset.
        """
        state: dict[str, Any] = {"first_env": self.first_env, "taken": self.taken, "env": None}
        if self._obs_N is None or env is None:
            return state
        held = {name: getattr(self, name).copy() for name in ("_return_N", "_began_N", "_once_N", "_told_N")}
        return {**state, "env": env, "obs_N": map_tree(np.copy, self._obs_N), "now": self._now, **held}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """From what `standing` gave."""
        self.taken = state["taken"]
        if state["env"] is None:
            return
        cast("Restorable", self.env).restore_state(live(state["env"]))
        self.has_begun, self._now = True, state["now"]
        for name in ("_return_N", "_began_N", "_once_N", "_told_N"):
            setattr(self, name, state[name].copy())
        self._keep(state["obs_N"])

    # --- a trajectory ---------------------------------------------------------------------------------
    def begin(self, steps: int) -> None:
        """Allocate a trajectory of so many rows; episodes go on where they stand."""
        self._is_fresh = self._obs_N is None
        if self._is_fresh:
            # after an evaluation: other episodes than before
            self.restart(environment_seed(self.seed, Purpose.TRAINING, self.taken))
        T, N, spec = steps, self.size, self.env.spec
        self._t = 0
        # row t is what the policy is shown before step t: written once, sent and kept
        self._shown_N = empty(spec.observation_space, T + 1, N)
        assign(self._shown_N, 0, self._obs_N)
        self._obs_N = rows(self._shown_N, 0)
        self._action_TN: Tree = None  # as the first action is
        self._reward_TN = np.empty((T, N), np.float32)
        self._chunk_reward_TNK = self._chunk_steps_TN = None
        if self.chunk_size is not None:
            self._chunk_reward_TNK, self._chunk_steps_TN = (
                np.empty((T, N, self.chunk_size), np.float32),
                np.empty((T, N), np.int64),
            )
        self._terminated_TN, self._truncated_TN = np.empty((2, T, N), bool)
        self._reset_only_TN: NDArray[np.bool_] | None = None
        self._version_T = np.empty(T, np.int64)
        self._ended: list[tuple[int, int]] = []
        self._end_obs: list[Tree] = []
        self._outcomes: list[Outcome] = []

    def observation(self) -> Observation:
        """What the policy shall answer next."""
        return Observation(self.slot, self.first_env, self.taken, self._obs_N)

    def record(self, action: Action) -> None:
        """Carry out the action and write row ``t``."""
        t = self._t
        if self._action_TN is None:
            self._allocate_actions(action)
        assign(self._action_TN, t, action.action_N)
        self._log_prob_TN[t], self._version_T[t] = action.log_prob_N, action.policy_version
        step, ended = self._advance(action.for_environment_N)
        assign(self._shown_N, t + 1, step.obs_N)
        self._obs_N = rows(self._shown_N, t + 1)
        self._terminated_TN[t], self._truncated_TN[t] = step.terminated_N, step.truncated_N
        if isinstance(step, ChunkStep):
            if self._chunk_reward_TNK is not None and self._chunk_steps_TN is not None:
                self._chunk_reward_TNK[t], self._chunk_steps_TN[t] = step.reward_NK, step.steps_N
            self._reward_TN[t] = step.reward_NK.sum(1)
            reset_only_N = step.steps_N == 0 if not step.steps_N.all() else None
        else:
            self._reward_TN[t], reset_only_N = step.reward_N, step.reset_only_N
        if reset_only_N is not None:
            if self._reset_only_TN is None:
                self._reset_only_TN = np.zeros(self._terminated_TN.shape, bool)
            self._reset_only_TN[t] = reset_only_N
        for n, outcome in ended:
            self._ended.append((t, n))
            self._end_obs.append(map_tree(lambda leaf, n=n: np.copy(leaf[n]), step.final_obs_N))
            self._outcomes.append(outcome)
        self._t += 1
        self.taken += 1

    def _allocate_actions(self, action: Action) -> None:
        T, shape = len(self._version_T), np.shape(action.log_prob_N)
        self._log_prob_TN = np.empty((T, *shape), np.float32)
        if self.chunk_size is None and action.executed_N is None:
            self._action_TN = empty(self.env.spec.action_space, T, self.size)
        else:
            self._action_TN = map_tree(lambda leaf: np.empty((T, *np.shape(leaf)), leaf.dtype), action.action_N)

    def finish(self) -> Trajectory:
        """Hand over the trajectory; its arrays are not touched again."""
        T, ended, space = len(self._version_T), episodes(self._outcomes), self.env.spec.observation_space
        end_obs_E = empty(space, len(self._ended))
        for e, obs in enumerate(self._end_obs):
            assign(end_obs_E, e, obs)
        return Trajectory(
            slot=self.slot, first_env=self.first_env, is_fresh=self._is_fresh,
            obs_TN=rows(self._shown_N, slice(0, T)), action_TN=self._action_TN, log_prob_TN=self._log_prob_TN,
            version_T=self._version_T,
            reward_TN=self._reward_TN, terminated_TN=self._terminated_TN, truncated_TN=self._truncated_TN,
            last_obs_N=rows(self._shown_N, T),
            end_E2=np.array(self._ended, np.int64).reshape(-1, 2), end_obs_E=end_obs_E,
            end_return_E=ended.return_E.astype(np.float32), end_length_E=ended.length_E,
            end_success_E=ended.success_E.astype(np.float32),
            end_success_once_E=ended.success_once_E.astype(np.float32),
            reset_only_TN=self._reset_only_TN, chunk_reward_TNK=self._chunk_reward_TNK,
            chunk_steps_TN=self._chunk_steps_TN,
        )  # fmt: skip

    # --- episodes -------------------------------------------------------------------------------------
    def restart(self, seed: int) -> None:
        """Begin new episodes in all environments, environment ``i`` of the run with ``seed + i``."""
        obs_N = self.env.reset(seed=seed + self.first_env)
        self.has_begun = True
        self._return_N = np.zeros(self.size)
        self._now = 0  # steps since then; an episode's length is this less `_began_N`
        self._began_N = np.zeros(self.size, np.int64)
        self._once_N, self._told_N = np.zeros((2, self.size), bool)
        self._first = {}
        self._check("first observation", obs_N)
        self._keep(obs_N)

    def forget(self) -> None:
        """Give up the episodes under way: the next trajectory begins with a reset."""
        self._obs_N = None

    def step(self, action_N: Tree) -> None:
        """One step of all, outside of a trajectory."""
        self._keep(self._advance(action_N)[0].obs_N)

    def _keep(self, obs_N: Tree) -> None:
        self._obs_N = empty(self.env.spec.observation_space, self.size)
        assign(self._obs_N, slice(None), obs_N)

    def _advance(self, action_N: Tree) -> tuple[EnvStep | ChunkStep, list[tuple[int, Outcome]]]:
        """One step, or one chunk, of all; also (environment, outcome) of each episode that ended."""
        if self.chunk_size is not None:
            return self._advance_chunk(action_N)
        step = self.env.step(action_N)
        self._now += 1
        if step.reset_only_N is not None:
            self._began_N[step.reset_only_N] = self._now
        self._check("reward", step.reward_N)
        self._check("observation", step.obs_N)
        self._return_N += step.reward_N
        if step.success_N is not None:
            self._told_N[:] = True
            self._once_N |= step.success_N
        ended_N = step.terminated_N | step.truncated_N
        if not np.count_nonzero(ended_N):  # a third of what any() takes
            return step, []
        self._check("final observation", step.final_obs_N)
        return step, [(n, self._ended_episode(n, step)) for n in np.flatnonzero(ended_N).tolist()]

    def _advance_chunk(self, action_NKA: NDArray) -> tuple[ChunkStep, list[tuple[int, Outcome]]]:
        chunk = step_chunk(self.env, action_NKA)
        K = chunk.reward_NK.shape[1]
        self._now += K
        self._began_N += K - chunk.steps_N  # steps after an episode's end belong to none
        self._check("reward", chunk.reward_NK)
        self._check("observation", chunk.obs_N)
        self._return_N += chunk.reward_NK.sum(1)
        if chunk.success_NK is not None:
            self._told_N[:] = True
            self._once_N |= chunk.success_NK.any(1)
        ended = np.flatnonzero(chunk.terminated_N | chunk.truncated_N).tolist()
        if ended:
            self._check("final observation", chunk.final_obs_N)
        return chunk, [(n, self._ended_episode(n, chunk)) for n in ended]

    def _ended_episode(self, n: int, step: EnvStep | ChunkStep) -> Outcome:
        if isinstance(step, ChunkStep):
            at_end = np.nan if step.success_NK is None else float(step.success_NK[n, step.steps_N[n] - 1])
        else:
            at_end = np.nan if step.success_N is None else float(step.success_N[n])
        outcome = self._outcome(n, at_end)
        self._first.setdefault(n, outcome)
        self._return_N[n], self._began_N[n], self._once_N[n], self._told_N[n] = 0.0, self._now, False, False
        return outcome

    def _outcome(self, n: int, at_end: float) -> Outcome:
        return Outcome(
            float(self._return_N[n]),
            int(self._now - self._began_N[n]),
            at_end,
            float(self._once_N[n]) if self._told_N[n] else np.nan,
        )

    def _check(self, what: str, tree: Tree) -> None:
        """`EnvError` naming environment, step and value, before anybody learns from it."""
        if is_finite(tree) if isinstance(tree, np.ndarray) else all(map(is_finite, leaves(tree))):
            return
        row, name, value = first_not_finite(tree) or (0, "", np.nan)
        raise EnvError(
            f"{self.env.spec.id}, environment {self.first_env + row}, step {int(self._now - self._began_N[row])} of "
            "its episode "
            f"({self.taken} steps in training before): the {what}{name} is {value}. "
            "Nothing was learnt from it. Next: mend the environment; lab.envs.check_env finds such steps without "
            "training."
        )

    def each_has_ended(self) -> bool:
        """Whether every environment has finished an episode since `restart`."""
        return len(self._first) == self.size

    def cut(self) -> None:
        """Count the first episodes that are still under way as they stand."""
        for n in range(self.size):
            self._first.setdefault(n, self._outcome(n, 0.0 if self._told_N[n] else np.nan))

    def first_outcomes(self) -> list[Outcome]:
        """Of each environment's first episode since `restart`."""
        return [self._first[n] for n in range(self.size)]


def episodes(outcomes: list[Outcome]) -> Episodes:
    """As arrays."""
    total, length, at_end, once = np.array(outcomes, float).reshape(-1, 4).T
    return Episodes(total, length.astype(np.int64), at_end, once)
