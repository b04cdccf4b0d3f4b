"""One slot's environments where they hand over torch tensors.

What is large stays where the simulator put it, and nothing waits for it step by step.

    observations, actions ──stay on the device──────────────────▶ Trajectory (tensors)
    rewards, ends, success of all steps ──copied once, at the end──▶ Trajectory (arrays)

Legend: leading axes; T time, N environments, E ended episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_lab.records import Action, EnvStep, Observation, Trajectory
from rlinf_lab.trees import Tree, leaves, map_tree
from rlinf_lab.vecenv.stepping.on_host import arrays
from rlinf_lab.workers.environments import EnvGroup
from rlinf_lab.workers.seeds import Purpose, environment_seed

if TYPE_CHECKING:
    from rlinf_lab.vecenv.stepping.on_host import HostVecEnv


class TensorEnvGroup(EnvGroup):
    """`EnvGroup` for a vector that `on_host` has wrapped.

    Evaluations go through the host, trajectories do not.

    Tensors that a step handed over are kept as they are, for nobody writes to them again. A number that is not finite
    is found when the trajectory is finished: before an update, without a wait at every step.
    """

    env: HostVecEnv
    _shown: list[Tree]
    """what the policy is shown before each step of the trajectory, and after the last; empty while evaluating"""

    def begin(self, steps: int) -> None:
        self._is_fresh = self._obs_N is None
        if self._is_fresh:
            self.restart(environment_seed(self.seed, Purpose.TRAINING, self.taken))
            self._last_N = map_tree(
                lambda leaf: torch.as_tensor(leaf, device=torch.device(str(self.env.env.spec.device))), self._obs_N
            )
        self._shown, self._answers, self._steps = [self._last_N], list[Action](), list[EnvStep]()

    def restart(self, seed: int) -> None:
        self._shown = []
        super().restart(seed)

    def observation(self) -> Observation:
        return Observation(self.slot, self.first_env, self.taken, self._shown[-1] if self._shown else self._obs_N)

    def record(self, action: Action) -> None:
        step = self.env.env.step(action.for_environment_N)
        self._answers.append(action)
        self._steps.append(step)
        self._shown.append(step.obs_N)
        self.taken += 1

    def finish(self) -> Trajectory:
        told = {
            name: self._told(name) for name in ("reward_N", "terminated_N", "truncated_N", "success_N", "reset_only_N")
        }
        end_E2, *ended = self._ended_episodes(told, self._is_finite(told["reward_N"]))
        shown_TN, self._last_N = _stacked(self._shown), self._shown[-1]
        final_TN = _stacked([step.final_obs_N for step in self._steps])
        place_E2 = torch.from_numpy(end_E2).to(leaves(final_TN)[0].device)
        trajectory = Trajectory(
            slot=self.slot, first_env=self.first_env, is_fresh=self._is_fresh,
            obs_TN=map_tree(lambda leaf: leaf[:-1], shown_TN), action_TN=_stacked([a.action_N for a in self._answers]),
            log_prob_TN=torch.stack([torch.as_tensor(a.log_prob_N) for a in self._answers]).cpu().numpy(),
            version_T=np.array([a.policy_version for a in self._answers], np.int64),
            reward_TN=told["reward_N"], terminated_TN=told["terminated_N"], truncated_TN=told["truncated_N"],
            last_obs_N=self._last_N, end_E2=end_E2,
            end_obs_E=map_tree(lambda leaf: leaf[place_E2[:, 0], place_E2[:, 1]], final_TN),
            end_return_E=ended[0].astype(np.float32), end_length_E=ended[1], end_success_E=ended[2].astype(np.float32),
            end_success_once_E=ended[3].astype(np.float32), reset_only_TN=told["reset_only_N"],
        )  # fmt: skip
        self._answers, self._steps = [], []
        return trajectory

    def _told(self, name: str) -> Any:
        """A number of each step, T×N, in host memory; None where the steps say nothing."""
        parts = [getattr(step, name) for step in self._steps]
        if all(part is None for part in parts):
            return None
        first = next(part for part in parts if part is not None)
        return torch.stack([torch.zeros_like(first) if part is None else part for part in parts]).cpu().numpy()

    def _is_finite(self, reward_TN: NDArray) -> bool:
        """Whether all rewards and observations are."""
        shown = [
            [leaf for leaf in leaves(obs_N) if leaf.is_floating_point()]
            for obs_N in (*self._shown[1:], *(step.final_obs_N for step in self._steps))
        ]
        fine_2T = torch.stack(
            [torch.stack([torch.isfinite(leaf).all() for leaf in parts]).all() for parts in shown if parts]
            or [torch.tensor(True)]
        )
        return bool(np.isfinite(reward_TN).all()) and bool(fine_2T.all())

    def _check_step(self, t: int, reward_N: NDArray) -> None:
        """`EnvError` where a number of step ``t`` is not finite."""
        self.taken -= len(self._steps) - t  # as it was then
        self._check("reward", reward_N)
        self._check("observation", arrays(self._steps[t].obs_N))
        self._check("final observation", arrays(self._steps[t].final_obs_N))
        self.taken += len(self._steps) - t

    def _ended_episodes(
        self, told: dict[str, Any], is_finite: bool
    ) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
        """Each episode that ended.

        (t, n), sum of rewards, steps, success at the end and once (nan where the task gives no signal).
        """
        found: list[tuple[NDArray, ...]] = []
        success_TN, fresh_TN = told["success_N"], told["reset_only_N"]
        done_TN = told["terminated_N"] | told["truncated_N"]
        for t, reward_N in enumerate(told["reward_N"]):
            self._now += 1
            if fresh_TN is not None:
                self._began_N[fresh_TN[t]] = self._now
            if not is_finite:
                self._check_step(t, reward_N)
            self._return_N += reward_N
            if success_TN is not None:
                self._told_N[:] = True
                self._once_N |= success_TN[t]
            n_E = np.flatnonzero(done_TN[t])
            if not len(n_E):
                continue
            at_end_E = np.full(len(n_E), np.nan) if success_TN is None else success_TN[t, n_E].astype(float)
            once_E = np.where(self._told_N[n_E], self._once_N[n_E].astype(float), np.nan)
            found.append(
                (
                    np.stack([np.full(len(n_E), t), n_E], 1),
                    self._return_N[n_E],
                    self._now - self._began_N[n_E],
                    at_end_E,
                    once_E,
                )
            )
            self._return_N[n_E], self._began_N[n_E], self._once_N[n_E], self._told_N[n_E] = 0.0, self._now, False, False
        if not found:
            return np.zeros((0, 2), np.int64), np.zeros(0), np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        end_E2, *numbers = (np.concatenate(column) for column in zip(*found, strict=True))
        return end_E2, numbers[0], numbers[1], numbers[2], numbers[3]


def _stacked(parts: list[Tree]) -> Tree:
    """Trees of tensors one after another, along a new leading axis."""
    return map_tree(lambda *tensors: torch.stack(tensors), *parts)
