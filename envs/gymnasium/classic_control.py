"""CartPole, Pendulum, MountainCar and Acrobot as rows of one array.

gymnasium's own arithmetic, all environments of a vector at once.

The operations are those of gymnasium's classes in their order, in float64, so that observations and rewards are the same to the last bit where numpy
gives one number and many the same sines. Environment ``i`` has a generator of its own with the numbers that gymnasium draws from the same seed.

Legend: N environments, S numbers of a state, K states drawn ahead.
"""

from __future__ import annotations

import copy
import math
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.gymnasium.action_names import action_names
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import check_state, described
from rlinf_lab.vecenv.spaces import presented_action

AHEAD = 32  # states that a generator draws at once: the same numbers as one by one, a tenth of the time
_NEVER = np.iinfo(np.int64).max


class Beginnings:
    """First states of episodes. Each environment draws uniformly between ``low_S`` and ``high_S`` from its own generator."""

    def __init__(self, num_envs: int, low_S: Any, high_S: Any) -> None:
        self._low_S, self._high_S = np.asarray(low_S, float), np.asarray(high_S, float)
        self._state_NKS = np.empty((num_envs, AHEAD, len(self._low_S)))
        self._used_N = np.full(num_envs, AHEAD)
        self._rngs = [np.random.default_rng() for _ in range(num_envs)]

    def seed(self, seed: int) -> None:
        self._rngs = [np.random.default_rng(seed + i) for i in range(len(self._rngs))]
        self._used_N[:] = AHEAD

    def state(self) -> dict[str, Any]:
        """What is drawn next, in arrays and generators."""
        return copy.deepcopy({"state_NKS": self._state_NKS, "used_N": self._used_N, "rngs": self._rngs})

    def restore(self, state: dict[str, Any]) -> None:
        held = copy.deepcopy(state)
        self._state_NKS, self._used_N, self._rngs = held["state_NKS"], held["used_N"], held["rngs"]

    def take(self, rows: NDArray) -> NDArray:
        used = self._used_N[rows]
        if used.max() >= AHEAD:
            for i in rows[used >= AHEAD].tolist():
                self._state_NKS[i] = self._rngs[i].uniform(self._low_S, self._high_S, self._state_NKS.shape[1:])
            used[used >= AHEAD] = 0
        self._used_N[rows] = used + 1
        return self._state_NKS[rows, used]


class ClassicVecEnv:
    """What the tasks have in common; see `vecenv.VecEnv` for the contract. ``_state_SN`` holds the states, a row for each of their numbers."""

    numbers: int
    """S"""
    low_S: tuple[float, ...]
    high_S: tuple[float, ...]
    """between which the first numbers of a state begin; the others begin at zero"""

    def __init__(self, id: str, num_envs: int, max_episode_steps: int | None) -> None:
        task = id.partition("/")[2]
        drawn = bool(find_spec("pygame"))
        self._single = gymnasium.make(task, render_mode="rgb_array" if drawn else None, disable_env_checker=True)  # its spaces, and its pictures
        limit = max_episode_steps or gymnasium.spec(task).max_episode_steps
        observation, native = self._single.observation_space, self._single.action_space
        self.num_envs = num_envs
        names = action_names(id, self._single)
        self.spec = EnvSpec(id, observation, presented_action(native, id), limit, renders=drawn, native_action_space=native, action_names=names)
        self._choices = int(self.spec.action_space.n) if isinstance(self.spec.action_space, spaces.Discrete) else None
        self._limit = limit or _NEVER
        self._beginnings = Beginnings(num_envs, self.low_S, self.high_S)
        self._state_SN = np.zeros((self.numbers, num_envs))
        self._age_N = np.zeros(num_envs, np.int64)
        self._started = False

    def reset(self, *, seed: int | None = None) -> NDArray[np.float32]:
        if seed is not None:
            self._beginnings.seed(seed)
        self._started = True
        self._begin(np.arange(self.num_envs))
        return self._observed()

    def step(self, action_N: NDArray) -> EnvStep:
        if not self._is_plain(action_N):
            action_N = checked_actions(self.spec, self.num_envs, action_N, self._started)
        reward_N, terminated_N = self._advance(action_N)
        self._age_N += 1
        truncated_N = self._age_N >= self._limit
        obs_N = final_N = self._observed()
        if terminated_N is None:
            done_N, terminated_N = truncated_N, np.zeros(self.num_envs, bool)
        else:
            done_N = truncated_N | terminated_N
            truncated_N &= ~terminated_N
        if done_N.any():
            self._begin(np.flatnonzero(done_N))
            obs_N = self._observed()
        return EnvStep(obs_N, reward_N, terminated_N, truncated_N, None, final_N)

    def _is_plain(self, action_N: Any) -> bool:
        """Whether nothing needs to be said about these choices, nor changed.

        One look at them, for `checked_actions` takes as long as the arithmetic.
        """
        if self._choices is None or not self._started or type(action_N) is not np.ndarray or action_N.dtype != np.int64:
            return False
        return action_N.shape == (self.num_envs,) and bool(action_N.view(np.uint64).max() < self._choices)  # negative ones are large there

    def _begin(self, rows: NDArray) -> None:
        drawn = self._beginnings.take(rows).T
        if len(drawn) == self.numbers:
            self._state_SN[:, rows] = drawn
        else:
            self._state_SN[: len(drawn), rows], self._state_SN[len(drawn) :, rows] = drawn, 0.0
        self._age_N[rows] = 0

    def _advance(self, action_N: NDArray) -> tuple[NDArray, NDArray | None]:
        """One step of all. Rewards in float32, and which episodes the task ended (None: it never does)."""
        raise NotImplementedError

    def _observed(self) -> NDArray[np.float32]:
        return self._state_SN.T.astype(np.float32, order="C")

    def _kind(self) -> tuple[str, int, int | None]:
        return self.spec.id, self.num_envs, self.spec.max_episode_steps

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`."""
        held = {"state_SN": self._state_SN.copy(), "age_N": self._age_N.copy(), "started": self._started}
        return {"of": self._kind(), "runner": "numpy", "beginnings": self._beginnings.state(), **held}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the state is that of other environments."""
        check_state(state, self._kind(), "numpy")
        self._beginnings.restore(state["beginnings"])
        self._started = state["started"]
        self._state_SN[:], self._age_N[:] = state["state_SN"], state["age_N"]

    def render(self) -> NDArray[np.uint8] | None:
        """The first environment, as gymnasium draws it."""
        if not self.spec.renders:
            return None
        env: Any = self._single.unwrapped
        env.state, env.last_u = self._state_SN[:, 0].copy(), None
        picture = env.render()
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        self._single.close()

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, ", one array of numpy")


class CartPole(ClassicVecEnv):
    """Barto, Sutton and Anderson 1983, as in gymnasium's CartPoleEnv. State: x, its velocity, angle, its velocity."""

    numbers = 4
    low_S, high_S = (-0.05,) * 4, (0.05,) * 4
    GRAVITY, POLE, TOTAL, HALF_LENGTH, FORCE, SECONDS = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    BOUND_21 = np.array([[2.4], [12 * 2 * math.pi / 360]])  # of x and the angle

    def __init__(self, id: str, num_envs: int, max_episode_steps: int | None) -> None:
        super().__init__(id, num_envs, max_episode_steps)
        self._cos_N, self._sin_N, self._push_N, self._turn_N, self._scratch_N = np.empty((5, num_envs))
        self._outside_2N = np.empty((2, num_envs), bool)
        self._scratch_2N = np.empty((2, num_envs))
        self._change_SN = np.empty((4, num_envs))  # a second of each number of the state

    def _advance(self, action_N: NDArray) -> tuple[NDArray, NDArray]:
        _, speed_N, angle_N, turning_N = self._state_SN
        cos_N, sin_N, push_N, turn_N, scratch_N = self._cos_N, self._sin_N, self._push_N, self._turn_N, self._scratch_N
        np.cos(angle_N, out=cos_N)
        np.sin(angle_N, out=sin_N)
        # (force + m·l·turning²·sin) / total
        np.multiply(turning_N, turning_N, out=push_N)
        push_N *= self.POLE * self.HALF_LENGTH
        push_N *= sin_N
        np.multiply(action_N, 2 * self.FORCE, out=scratch_N)
        scratch_N -= self.FORCE
        push_N += scratch_N
        push_N /= self.TOTAL
        # (g·sin - cos·push) / (l·(4/3 - m·cos²/total))
        np.multiply(sin_N, self.GRAVITY, out=turn_N)
        np.multiply(cos_N, push_N, out=scratch_N)
        turn_N -= scratch_N
        np.multiply(cos_N, cos_N, out=scratch_N)
        scratch_N *= self.POLE
        scratch_N /= self.TOTAL
        np.subtract(4.0 / 3.0, scratch_N, out=scratch_N)
        scratch_N *= self.HALF_LENGTH
        turn_N /= scratch_N
        # push - m·l·turn·cos/total
        change_SN = self._change_SN
        np.multiply(turn_N, self.POLE * self.HALF_LENGTH, out=scratch_N)
        scratch_N *= cos_N
        scratch_N /= self.TOTAL
        np.subtract(push_N, scratch_N, out=change_SN[1])
        change_SN[0], change_SN[2], change_SN[3] = speed_N, turning_N, turn_N
        change_SN *= self.SECONDS
        self._state_SN += change_SN
        np.abs(self._state_SN[::2], out=self._scratch_2N)
        np.greater(self._scratch_2N, self.BOUND_21, out=self._outside_2N)
        return np.ones(self.num_envs, np.float32), self._outside_2N[0] | self._outside_2N[1]


class Pendulum(ClassicVecEnv):
    """As in gymnasium's PendulumEnv. State: angle from upright in radians, its velocity."""

    numbers = 2
    low_S, high_S = (-math.pi, -1.0), (math.pi, 1.0)
    GRAVITY, SECONDS, FASTEST = 10.0, 0.05, 8
    TORQUE = np.float32(2.0)

    def _advance(self, action_N: NDArray) -> tuple[NDArray, None]:
        angle_N, turning_N = self._state_SN
        torque_N = np.multiply(action_N[:, 0], self.TORQUE, dtype=np.float32)
        off_N = angle_N + np.pi
        off_N %= 2 * np.pi
        off_N -= np.pi
        off_N *= off_N
        square_N = turning_N * turning_N
        square_N *= 0.1
        off_N += square_N
        off_N += np.float32(0.001) * (torque_N * torque_N)
        np.sin(angle_N, out=square_N)
        square_N *= 3 * self.GRAVITY / 2.0
        square_N += np.float32(3.0) * torque_N
        square_N *= self.SECONDS
        turning_N += square_N
        np.maximum(turning_N, -self.FASTEST, out=turning_N)
        np.minimum(turning_N, self.FASTEST, out=turning_N)
        np.multiply(turning_N, self.SECONDS, out=square_N)
        angle_N += square_N
        return (-off_N).astype(np.float32), None

    def _observed(self) -> NDArray[np.float32]:
        obs_N3 = np.empty((self.num_envs, 3), np.float32)
        obs_N3[:, 0], obs_N3[:, 1], obs_N3[:, 2] = np.cos(self._state_SN[0]), np.sin(self._state_SN[0]), self._state_SN[1]
        return obs_N3


class MountainCar(ClassicVecEnv):
    """Moore 1990, as in gymnasium's MountainCarEnv. State: position, velocity."""

    numbers = 2
    low_S, high_S = (-0.6,), (-0.4,)
    FORCE, GRAVITY, FASTEST, LEFT, RIGHT, GOAL = 0.001, 0.0025, 0.07, -1.2, 0.6, 0.5

    def _advance(self, action_N: NDArray) -> tuple[NDArray, NDArray]:
        position_N, velocity_N = self._state_SN
        velocity_N += (action_N - 1) * self.FORCE + np.cos(3 * position_N) * -self.GRAVITY
        np.clip(velocity_N, -self.FASTEST, self.FASTEST, out=velocity_N)
        position_N += velocity_N
        np.clip(position_N, self.LEFT, self.RIGHT, out=position_N)
        velocity_N[(position_N == self.LEFT) & (velocity_N < 0)] = 0.0
        return np.full(self.num_envs, -1.0, np.float32), (position_N >= self.GOAL) & (velocity_N >= 0)


class Acrobot(ClassicVecEnv):
    """Sutton and Barto's, as in gymnasium's AcrobotEnv. State: both angles, their velocities.

    Its swings grow what a last bit differs in: after hundreds of steps it is another episode, as likely as gymnasium's.
    """

    numbers = 4
    low_S, high_S = (-0.1,) * 4, (0.1,) * 4
    LENGTH, MASS, CENTRE, INERTIA, GRAVITY, SECONDS = 1.0, 1.0, 0.5, 1.0, 9.8, 0.2
    FASTEST_2 = (4 * math.pi, 9 * math.pi)

    def _begin(self, rows: NDArray) -> None:
        super()._begin(rows)
        self._state_SN[:, rows] = self._state_SN[:, rows].astype(np.float32)  # as gymnasium's first states are

    def _advance(self, action_N: NDArray) -> tuple[NDArray, NDArray]:
        state_SN, torque_N = self._state_SN, action_N - 1.0
        half = self.SECONDS / 2.0
        first_SN = self._slope(state_SN, torque_N)  # Runge and Kutta's fourth order
        second_SN = self._slope(state_SN + half * first_SN, torque_N)
        third_SN = self._slope(state_SN + half * second_SN, torque_N)
        fourth_SN = self._slope(state_SN + self.SECONDS * third_SN, torque_N)
        state_SN += self.SECONDS / 6.0 * (first_SN + 2 * second_SN + 2 * third_SN + fourth_SN)
        for angle_N in state_SN[:2]:
            while (over_N := angle_N > np.pi).any():
                angle_N[over_N] -= 2 * np.pi
            while (under_N := angle_N < -np.pi).any():
                angle_N[under_N] += 2 * np.pi
        for speed_N, fastest in zip(state_SN[2:], self.FASTEST_2, strict=True):
            np.clip(speed_N, -fastest, fastest, out=speed_N)
        terminated_N = -np.cos(state_SN[0]) - np.cos(state_SN[1] + state_SN[0]) > 1.0
        return np.where(terminated_N, np.float32(0.0), np.float32(-1.0)), terminated_N

    def _slope(self, state_SN: NDArray, torque_N: NDArray) -> NDArray:
        """Of the state, by the second. Both links have the same mass, length, centre and inertia."""
        m, length, centre, inertia, g = self.MASS, self.LENGTH, self.CENTRE, self.INERTIA, self.GRAVITY
        angle_N, bend_N, speed_N, bending_N = state_SN
        cos_N, sin_N = np.cos(bend_N), np.sin(bend_N)
        d1_N = m * centre**2 + m * (length**2 + centre**2 + 2 * length * centre * cos_N) + inertia + inertia
        d2_N = m * (centre**2 + length * centre * cos_N) + inertia
        phi2_N = m * centre * g * np.cos(angle_N + bend_N - np.pi / 2.0)
        phi1_N = (
            -m * length * centre * bending_N**2 * sin_N
            - 2 * m * length * centre * bending_N * speed_N * sin_N
            + (m * centre + m * length) * g * np.cos(angle_N - np.pi / 2)
            + phi2_N
        )
        pull_N = torque_N + d2_N / d1_N * phi1_N - m * length * centre * speed_N**2 * sin_N - phi2_N
        second_N = pull_N / (m * centre**2 + inertia - d2_N**2 / d1_N)
        return np.stack([speed_N, bending_N, -(d2_N * second_N + phi1_N) / d1_N, second_N])

    def _observed(self) -> NDArray[np.float32]:
        angle_N, bend_N, speed_N, bending_N = self._state_SN
        return np.stack([np.cos(angle_N), np.sin(angle_N), np.cos(bend_N), np.sin(bend_N), speed_N, bending_N], axis=1).astype(np.float32)


TASKS: dict[str, type[ClassicVecEnv]] = {
    "CartPole-v0": CartPole, "CartPole-v1": CartPole, "Pendulum-v1": Pendulum, "MountainCar-v0": MountainCar, "Acrobot-v1": Acrobot,
}  # fmt: skip
