"""What the socket adds to a batched step: a simulator worker's environments that cost nothing, driven as in training.

Checked actions, finite numbers, the row of the trajectory, the book of episodes; everything but the simulator, the policy and the channels. CPU
seconds of this process, best of a few rounds: the machine may be shared.
"""

from __future__ import annotations

import time

import numpy as np
from gymnasium import spaces
from harness import Case

from rlinf_lab.records import Action, EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.workers.environments import EnvGroup

SIZES = (1, 16, 64, 256, 1024, 4096)
FIXED_US, PER_ENV_US = 10.0, 0.05
STEPS = 128


class Free:
    """N environments whose step is nothing: it gives the same arrays each time."""

    def __init__(self, num_envs: int, obs_space: spaces.Space, action_space: spaces.Space) -> None:
        self.num_envs, self.spec = num_envs, EnvSpec("benchmark/Free", obs_space, action_space, 200)
        self._obs_N = np.zeros((num_envs, *(obs_space.shape or ())), obs_space.dtype)
        never_N = np.zeros(num_envs, bool)
        self._step = EnvStep(self._obs_N, np.ones(num_envs, np.float32), never_N, never_N, None, self._obs_N)

    def reset(self, *, seed: int | None = None) -> np.ndarray:
        return self._obs_N

    def step(self, action_N: np.ndarray) -> EnvStep:
        checked_actions(self.spec, self.num_envs, action_N, True)
        return self._step

    def render(self) -> None: ...

    def close(self) -> None: ...


def microseconds_per_step(num_envs: int, rounds: int, discrete: bool = False) -> float:
    """CPU microseconds of one batched step."""
    action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (2,), np.float32)
    group = EnvGroup(Free(num_envs, spaces.Box(-np.inf, np.inf, (8,), np.float32), action_space), 0, 0, 0)
    action_N = np.zeros((num_envs, *action_space.shape), action_space.dtype)
    action = Action(0, action_N, np.zeros(num_envs, np.float32), 0)
    found = []
    for _ in range(rounds):
        group.begin(STEPS)
        start = time.process_time()
        for _ in range(STEPS):
            group.observation()
            group.record(action)
        found.append((time.process_time() - start) / STEPS)
        group.finish()
    return 1e6 * min(found)


def share_of_the_limit(rounds: int, sizes: tuple[int, ...]) -> float:
    """The worst over the sizes of what a step costs, as a part of 10 µs + 50 ns an environment."""
    return max(microseconds_per_step(n, rounds) / (FIXED_US + PER_ENV_US * n) for n in sizes)


def cases(smoke: bool) -> list[Case]:
    rounds, sizes = (2, SIZES[:2]) if smoke else (40, SIZES)
    return [
        Case(
            "socket_cost", "of 10 µs + 50 ns an environment", lambda: share_of_the_limit(rounds, sizes), target="<= 1", target_of="value", runs=5,
            note="worst of 1 to 4,096 environments, CPU time, environments of no cost, 8 numbers seen and 2 done; curve: environments, µs, µs of two choices",
            curve=lambda: [[n, round(microseconds_per_step(n, rounds), 2), round(microseconds_per_step(n, rounds, True), 2)] for n in sizes],
        ),
    ]  # fmt: skip
