"""Legend: N environments, E episodes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import rlinf_lab as lab
from rlinf_lab.experiments.evaluation import Told, play
from rlinf_lab.recipes.config import pooled
from rlinf_lab.records import Episodes, mean_interval, student_t95, wilson


class Lengths:
    """Environment n plays episodes of n + 1 steps, the i-th with a reward of 10 n + i each step."""

    def __init__(self, num_envs: int, success: bool) -> None:
        self.num_envs, self.tells, self.closed = num_envs, success, False
        self.spec = SimpleNamespace(action_space=Box(-1, 1, (1,)))

    def reset(self, *, seed: int | None = None) -> np.ndarray:
        self.seed, self.t, self.episode = seed, np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
        return np.zeros((self.num_envs, 1))

    def step(self, action: Any) -> Any:
        n = np.arange(self.num_envs)
        reward = 10.0 * n + self.episode
        self.t += 1
        over = self.t == n + 1
        success = self.episode % 2 == 0
        self.episode, self.t = self.episode + over, np.where(over, 0, self.t)
        return SimpleNamespace(obs_N=np.zeros((self.num_envs, 1)), reward_N=reward, terminated_N=over & (n % 2 == 0), truncated_N=over & (n % 2 == 1),
                               success_N=success if self.tells else None, reset_only_N=None)  # fmt: skip

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("episodes", [1, 5, 16, 39])
def test_each_environment_plays_its_share_however_long_its_episodes(episodes: int) -> None:
    made: list[Lengths] = []
    found = play(lambda n: made.append(Lengths(n, True)) or made[-1], lambda obs: obs, episodes, 7, Told(3, 1))  # type: ignore[func-returns-value]
    n_envs = made[0].num_envs
    expected = sorted((n + 1, (10 * n + i) * (n + 1)) for n in range(n_envs) for i in range((episodes + n) // n_envs))
    assert sorted(zip(found.lengths_E.tolist(), found.returns_E.tolist(), strict=True)) == expected
    assert made[0].closed and made[0].seed == 7 and found["iteration"] == 3 and found["episodes"] == episodes


def test_success_is_there_only_where_the_task_tells() -> None:
    silent, telling = (play(lambda n, tells=tells: Lengths(n, tells), lambda obs: obs, 40, 0, Told(1, 0)) for tells in (False, True))  # type: ignore[misc]
    assert "success_rate" not in silent and "success" not in repr(silent) and "eval_success_rate" not in silent.row()
    assert 0 < telling["success_rate"] < 1 and "success" in repr(telling)


def test_an_evaluation_within_a_workflow_is_told_alike() -> None:
    """What the workers of a workflow have played, and what `evaluate` has, give equal numbers and intervals."""
    found = play(lambda n: Lengths(n, True), lambda obs: obs, 39, 0, Told(2, 0))
    assert found.success_E is not None and found.once_E is not None
    parts = np.array_split(np.arange(39), 3)  # of three ranks
    told = pooled([Episodes(found.returns_E[i], found.lengths_E[i], found.success_E[i], found.once_E[i]) for i in parts])
    assert found.as_dict() == {**told, "iteration": 2} and told["success_interval"] == wilson(int(found.success_E.sum()), 39)
    row = found.row()
    assert (row["eval_return_low"], row["eval_return_high"]) == told["return_interval"] == mean_interval(found.returns_E)


def test_an_environment_that_fails_is_closed() -> None:
    env = Lengths(1, True)
    with pytest.raises(ZeroDivisionError):
        play(lambda n: env, lambda obs: 1 / 0, 1, 0, Told(1, 0))
    assert env.closed


def test_intervals_are_those_of_the_tables() -> None:
    printed = {5: 2.57058, 10: 2.22814, 30: 2.04227, 120: 1.97993}  # of Student's t, 97.5 %
    assert all(math.isclose(student_t95(v), t, abs_tol=2e-3) for v, t in printed.items())
    assert mean_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4) and wilson(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_an_episode_that_nothing_limits_is_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(-1, 1, (1,)), Box(-1, 1, (1,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 1.0, False, False, {}

    monkeypatch.setattr("rlinf_lab.experiments.acting.LONGEST", 30)
    policy = lab.train("ppo", Endless, iterations=1, num_envs=2, n_steps=4, batch_size=8, folder=False, progress=False, plan=None).wait().policy()
    with pytest.warns(UserWarning, match=r"Endless: 3 of 3 evaluated episodes were cut after 30 steps. Next: max_episode_steps="):
        assert policy.evaluate(episodes=3)["return"] == 30.0
