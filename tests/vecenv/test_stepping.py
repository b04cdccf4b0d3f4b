"""Chunks and success against one environment at a time, followed by hand. Legend: N environments, K actions of a chunk, C chunks."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlinf_lab.errors import EnvError
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, environment
from rlinf_lab.vecenv.stepping import SuccessVecEnv, is_chunk, rewarded_for_success, step_chunk

ACTION = Box(-1, 1, (1,), np.float32)


class Counter:
    """Adds its action to x, from 0; ends (terminated) where x > 3, is cut after ``limit`` steps; the reward is x after the step; success where x is 2 or more."""

    def __init__(self, num_envs: int, limit: int, autoreset: str = "same") -> None:
        self.num_envs, self.limit, self.autoreset = num_envs, limit, autoreset
        self.spec = EnvSpec("test/Counter-v0", Box(-9, 9, (2,), np.float32), ACTION, limit, "x ≥ 2")

    def reset(self, *, seed: int | None = None) -> np.ndarray:
        self.x, self.t, self.over = np.zeros((3, self.num_envs))
        return self._obs()

    def _obs(self) -> np.ndarray:
        return np.stack([self.x, self.t], 1).astype(np.float32)

    def step(self, action_N: np.ndarray) -> EnvStep:
        waits = self.over.astype(bool)
        self.x, self.t = np.where(waits, 0, self.x + action_N[:, 0]), np.where(waits, 0, self.t + 1)
        terminated, success, final = (self.x > 3) & ~waits, self.x >= 2, self._obs()
        truncated = (self.t >= self.limit) & ~terminated & ~waits
        reward, ended = self.x.copy(), terminated | truncated
        if self.autoreset == "same":
            self.x[ended], self.t[ended] = 0, 0
        else:
            self.over = ended.astype(float)
        return EnvStep(self._obs(), reward, terminated, truncated, success, final, waits if self.autoreset == "next" else None)

    def close(self) -> None: ...


def by_hand(actions_CK: np.ndarray, limit: int, autoreset: str) -> list[tuple]:
    """What each chunk gives one environment: (rewards, steps, terminated, truncated, final observation)."""
    x, t, pending, found = 0.0, 0, False, []
    for chunk in actions_CK:
        rewards, ended, final = [], (False, False), None
        live = True
        for action in chunk:
            if pending:
                x, t, pending, live = 0.0, 0, False, False
                continue
            x, t = x + (action if live else 0.0), t + 1
            over = (x > 3, x <= 3 and t >= limit)
            if live:
                rewards.append(x)
                final = (x, t)
                ended = over
            if any(over):
                live = False
                if autoreset == "same":
                    x, t = 0.0, 0
                else:
                    pending = True
        found.append((rewards, len(rewards), *ended, final))
    return found


@pytest.mark.parametrize("autoreset", ["same", "next"])
@pytest.mark.parametrize(("K", "limit"), [(1, 3), (3, 7), (4, 4), (5, 3), (2, 6)])
def test_a_chunk_is_its_actions_up_to_the_end_of_the_episode(K: int, limit: int, autoreset: str) -> None:
    N, C = 6, 12
    actions_CNK = np.random.default_rng(K * limit).uniform(0, 1, (C, N, K))
    env = Counter(N, limit, autoreset)
    env.reset()
    chunks = [step_chunk(env, a[..., None]) for a in actions_CNK]
    for n in range(N):
        for chunk, (rewards, steps, terminated, truncated, final) in zip(chunks, by_hand(actions_CNK[:, n], limit, autoreset), strict=True):
            assert chunk.steps_N[n] == steps and (chunk.terminated_N[n], chunk.truncated_N[n]) == (terminated, truncated)
            np.testing.assert_allclose(chunk.reward_NK[n], [*rewards, *[0.0] * (K - steps)], rtol=1e-6)
            np.testing.assert_array_equal(chunk.success_NK[n], [r >= 2 for r in rewards] + [False] * (K - steps))
            if final is not None:
                np.testing.assert_allclose(chunk.final_obs_N[n], final, rtol=1e-6)


def test_what_an_environment_does_does_not_depend_on_the_others() -> None:
    actions = np.random.default_rng(0).uniform(0, 1, (9, 4, 3, 1))
    together = Counter(4, 5)
    together.reset()
    whole = [step_chunk(together, a) for a in actions]
    alone = Counter(1, 5)
    alone.reset()
    for chunk, action in zip(whole, actions, strict=True):
        one = step_chunk(alone, action[2:3])
        np.testing.assert_array_equal(one.obs_N[0], chunk.obs_N[2])
        np.testing.assert_array_equal(one.reward_NK[0], chunk.reward_NK[2])


def test_a_vector_of_ones_own_may_take_chunks_itself() -> None:
    class Own(Counter):
        def step_chunk(self, action_NKA: np.ndarray) -> str:
            return f"took {action_NKA.shape}"

    assert step_chunk(Own(2, 5), np.zeros((2, 3, 1))) == "took (2, 3, 1)"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("action", [np.zeros((2, 1)), np.zeros((2, 0, 1)), np.zeros((3, 4, 1)), np.zeros((2, 4, 2)), np.zeros((2, 4, 1, 1))])
def test_what_is_no_chunk_is_refused_by_shape(action: np.ndarray) -> None:
    env = Counter(2, 5)
    env.reset()
    with pytest.raises(EnvError, match=r"test/Counter-v0: step_chunk was given .*\(2, 'K', 1\)"):
        step_chunk(env, action)


def test_chunks_are_told_from_actions_by_their_axes() -> None:
    assert is_chunk(ACTION, np.zeros((2, 5, 1))) and not is_chunk(ACTION, np.zeros((2, 1))) and not is_chunk(Discrete(3), np.zeros((2, 5)))


def test_success_ends_an_episode_and_is_its_only_reward() -> None:
    env, raw = SuccessVecEnv(Counter(2, 6)), Counter(2, 6)  # type: ignore[arg-type]
    env.reset()
    raw.reset()
    action_N = np.array([[1.0], [0.1]])  # the first succeeds in step 2 and ends in step 4; the second is cut after 6
    rows = []
    for _ in range(12):
        step, below = env.step(action_N), raw.step(action_N)
        np.testing.assert_array_equal(step.obs_N, below.obs_N)
        idle = [False, False] if step.reset_only_N is None else step.reset_only_N.tolist()
        rows.append([step.reward_N.tolist(), step.terminated_N.tolist(), step.truncated_N.tolist(), idle])
    first = [(r[0], t[0], c[0], i[0]) for r, t, c, i in rows]
    assert first == 3 * [(0, False, False, False), (1, True, False, False), (0, False, False, True), (0, False, False, True)]
    second = [(r[1], t[1], c[1], i[1]) for r, t, c, i in rows]
    assert second == 2 * [*[(0, False, False, False)] * 5, (0, False, True, False)]


def test_success_needs_a_task_that_says_so() -> None:
    env = rewarded_for_success(environment("Pendulum-v1"))(2)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"gymnasium/Pendulum-v1 says nothing about success.*Next: reward='environment'"):
        env.step(np.zeros((2, 1), np.float32))
