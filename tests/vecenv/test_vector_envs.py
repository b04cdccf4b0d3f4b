"""gymnasium's own vectors under all three ways of resetting tell what a loop over the same environments tells; so do functions and classes."""

from __future__ import annotations

import gc
import multiprocessing
import os
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

from rlinf_lab.errors import ConfigError, EnvError
from rlinf_lab.recipes.ppo import PPOConfig
from rlinf_lab.records import Action, Trajectory
from rlinf_lab.trees import leaves
from rlinf_lab.vecenv import environment, make_vec
from rlinf_lab.workers.environments import EnvGroup

N, T = 2, 9


class Count(gymnasium.Env):
    """Ends after three steps, terminated where the first action was 1 and truncated elsewhere; reports success when it terminates."""

    observation_space: Any = spaces.Dict(at=spaces.Box(-99, 99, (2,), np.float32), pair=spaces.Tuple((spaces.Discrete(9), spaces.MultiBinary(2))))
    action_space: Any = spaces.Discrete(2)

    def seen(self):
        return {"at": np.array([self.base, self.age], np.float32), "pair": (self.age, np.array([self.age % 2, 1], np.int8))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.base, self.age, self.first = float(self.np_random.integers(50)), 0, 0
        return self.seen(), {}

    def step(self, action):
        self.first = action if self.age == 0 else self.first
        self.age += 1
        over = self.age == 3
        return self.seen(), self.base + action, bool(over and self.first), bool(over and not self.first), {"is_success": bool(over and self.first)}


def trajectory(env: Any, steps: int = T) -> Trajectory:
    """What is recorded when the action depends on the observation alone."""
    group = EnvGroup(env, 0, 0, seed=3)
    group.begin(steps)
    for _ in range(steps):
        shown = group.observation().obs_N["at"]
        group.record(Action(0, (shown.sum(1) % 2).astype(np.int64), np.zeros(len(shown), np.float32), 0))
    return group.finish()


def vector(mode: AutoresetMode, num_envs: int = N, kind: Any = SyncVectorEnv) -> Any:
    return kind([Count] * num_envs, autoreset_mode=mode)


def transitions(t: Trajectory, n: int) -> list[tuple]:
    """Of one environment: all that a step told, with the observation that it led to."""
    ends = {tuple(place): e for e, place in enumerate(t.end_E2.tolist())}
    found = []
    for k in range(len(t.version_T)):
        if t.reset_only_TN is not None and t.reset_only_TN[k, n]:
            continue
        after = [leaf[ends[k, n]] for leaf in leaves(t.end_obs_E)] if (k, n) in ends else None
        row = [np.asarray(leaf[k, n]).tolist() for leaf in (*leaves(t.obs_TN), t.action_TN, t.reward_TN, t.terminated_TN, t.truncated_TN)]
        outcome = (float(t.end_return_E[ends[k, n]]), int(t.end_length_E[ends[k, n]]), float(t.end_success_E[ends[k, n]])) if (k, n) in ends else None
        found.append((row, None if after is None else [np.asarray(a).tolist() for a in after], outcome))
    return found


@pytest.mark.parametrize(("mode", "kind"), [*((mode, SyncVectorEnv) for mode in AutoresetMode), (AutoresetMode.SAME_STEP, AsyncVectorEnv)])
def test_every_way_of_resetting_gives_the_same_transitions(mode: AutoresetMode, kind: Any) -> None:
    expected = trajectory(make_vec(Count, N))
    env = make_vec(partial(lambda num_envs: vector(mode, num_envs, kind)), N)
    found = trajectory(env)
    env.close()
    for n in range(N):
        ours, theirs = transitions(found, n), transitions(expected, n)
        assert len(theirs) == T and len(ours) == (T - 2 if mode is AutoresetMode.NEXT_STEP else T)
        assert ours == theirs[: len(ours)]
    assert found.steps == N * len(transitions(found, 0)) and found.end_length_E.tolist() == [3] * len(found.end_E2)


class Tells(Count):
    """Says what it is told to say of success."""

    def __init__(self, told: dict) -> None:
        self.told = told

    def step(self, action):
        return *super().step(action)[:4], self.told


@pytest.mark.parametrize("in_vector", [False, True])
def test_success_is_a_truth_value_or_a_number(in_vector: bool) -> None:
    def stepped(told: dict) -> Any:
        def one() -> Tells:
            return Tells(told)

        env = make_vec(SyncVectorEnv([one] * N, autoreset_mode=AutoresetMode.SAME_STEP) if in_vector else one, N)
        env.reset(seed=0)
        return env.step(np.zeros(N, np.int64)).success_N.tolist()

    assert [stepped({"success": told}) for told in (True, np.True_, 1, 0.0, np.float32(1))] == [[True] * N, [True] * N, [True] * N, [False] * N, [True] * N]
    assert stepped({"is_success": None, "success": True}) == [True] * N
    assert stepped({"is_success": False, "success": True}) == [False] * N
    for bad in (float("nan"), "False"):
        with pytest.raises(EnvError, match=f"{bad}.* is no truth value and no finite number"):
            stepped({"success": bad})


def test_what_a_vector_lacks_is_said() -> None:
    silent = vector(AutoresetMode.SAME_STEP)
    silent.metadata = {}
    with pytest.raises(EnvError, match=r"does not say how it begins new episodes.*AutoresetMode\.NEXT_STEP, SAME_STEP or DISABLED"):
        make_vec(silent, N)
    with pytest.raises(EnvError, match="has 2 environments, 3 are needed"):
        make_vec(vector(AutoresetMode.SAME_STEP), 3)
    with pytest.warns(UserWarning, match="max_episode_steps=50 is not used"):
        make_vec(vector(AutoresetMode.SAME_STEP), N, 50)
    assert environment(vector(AutoresetMode.SAME_STEP)).spec().action_space == spaces.Discrete(2)
    with pytest.raises(ConfigError, match="two are compared"):
        from rlinf_lab.vecenv import check_env

        check_env(vector(AutoresetMode.SAME_STEP))


class Piped(SyncVectorEnv):
    """A vector of somebody's own that has a process to talk to."""

    def __init__(self) -> None:
        super().__init__([Count] * N)
        self.pipes = [*multiprocessing.Pipe()]


@pytest.mark.parametrize(("make", "why"), [
    (lambda: RecordEpisodeStatistics(vector(AutoresetMode.SAME_STEP, kind=AsyncVectorEnv)), "its environments live in processes of their own"),
    (Piped, r"Piped\.pipes is a Connection"),
])  # fmt: skip
def test_a_vector_of_processes_is_refused_and_stays_as_it_was(make: Any, why: str) -> None:
    """No copy of it is begun, which would have closed the pipes of the original when it was dropped."""
    env = make()
    with pytest.raises(ConfigError, match=rf"several vectors like this .* cannot be copied \({why}.*Next: a function that takes num_envs"):
        environment(env).for_run(N)
    assert make_vec(env, N).env is env
    gc.collect()
    pipes = env.pipes if isinstance(env, Piped) else env.env.parent_pipes
    for pipe in pipes:
        os.fstat(pipe.fileno())
    assert env.reset(seed=3)[0]["at"].shape == (N, 2)
    env.close()


@pytest.mark.parametrize("wrapper", [NormalizeObservation, NormalizeReward])
def test_running_statistics_are_refused_unless_they_are_frozen(wrapper: Any) -> None:
    env = wrapper(gymnasium.make_vec("CartPole-v1", N, vectorization_mode="sync"))
    outer = RecordEpisodeStatistics(env)
    with pytest.raises(ConfigError, match=rf"{wrapper.__name__} keeps running statistics, which no two vectors share.*normalize_obs=True"):
        environment(outer).for_run(N)
    env.update_running_mean = False
    assert environment(outer).for_run(N).runner is not None
    single = SyncVectorEnv([lambda: gymnasium.wrappers.NormalizeReward(Count())] * N)
    with pytest.raises(ConfigError, match="NormalizeReward keeps running statistics"):
        environment(single).for_run(N)


def test_running_statistics_of_what_a_function_makes_are_refused_too() -> None:
    def frozen() -> Any:
        env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))
        env.update_running_mean = False
        return env

    for function in (
        lambda num_envs: NormalizeObservation(gymnasium.make_vec("CartPole-v1", num_envs)),
        lambda: RecordEpisodeStatistics(NormalizeObservation(gymnasium.make_vec("CartPole-v1", 1))),
        lambda: gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1")),
    ):
        with pytest.raises(ConfigError, match="NormalizeObservation keeps running statistics, .*normalize_obs=True"):
            PPOConfig(env=function).spec  # noqa: B018
        assert environment(function)(1).reset(seed=0) is not None, "by itself it is anybody's own affair"
    assert PPOConfig(env=frozen).spec.max_episode_steps == 500


def test_a_vector_that_was_made_is_asked_for_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"a vector that has been made, .* Next: 'gymnasium/CartPole-v1'\.$"):
        environment(make_vec("CartPole-v1", N))
    with pytest.raises(ConfigError, match="Next: the class or function that it was made from"):
        environment(make_vec(Count, N))


class NoPicture(Count):
    """Its constructor takes no render_mode, as that of most first environments."""

    def __init__(self, size: int = 3) -> None:
        self.size = size


def test_limits_are_kept_or_said() -> None:
    gymnasium.register("test-spaces/NoPicture-v0", entry_point=NoPicture, max_episode_steps=2)
    try:
        env = make_vec("test-spaces/NoPicture-v0", 1)
        assert env.spec.max_episode_steps == 2 and not env.spec.renders and env.render() is None
        assert trajectory(env, 4).end_length_E.tolist() == [2, 2]
        longer = make_vec("test-spaces/NoPicture-v0", 1, 7, size=5)
        assert longer.spec.max_episode_steps == 7 and longer.envs[0].env.unwrapped.size == 5
    finally:
        gymnasium.registry.pop("test-spaces/NoPicture-v0")
    with pytest.warns(UserWarning, match=r"max_episode_steps=500 will not be reached, .* after 2 steps itself"):
        made = make_vec(lambda: gymnasium.wrappers.TimeLimit(Count(), 2), 1, 500)
    assert made.spec.max_episode_steps == 2


def test_an_end_at_the_limit_is_an_end_and_not_a_cut() -> None:
    """Of the task's own accord in the very step in which the limit is reached."""
    env = make_vec(Count, 1, 3)
    env.reset(seed=0)
    for action in (1, 0, 0):
        step = env.step(np.array([action]))
    assert step.terminated_N.tolist() == [True] and step.truncated_N.tolist() == [False]
