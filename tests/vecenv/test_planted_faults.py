"""`check_env` against environments that each break one rule; the environment that all of them are made from breaks none."""

from __future__ import annotations

import dataclasses
import threading
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete

from rlinf_lab.errors import ConfigError, EnvError
from rlinf_lab.trees import map_tree
from rlinf_lab.vecenv import LoopVecEnv, check_env, environment, make_vec

LIMIT = 6


class Good(gymnasium.Env):
    """A point on a plane shall go to a goal."""

    observation_space: Any = Dict(
        at=Box(-9, 9, (2,), np.float32), goal=Box(-9, 9, (2,), np.float32), camera=Box(0, 255, (8, 8, 1), np.uint8), mode=Discrete(3, start=1)
    )  # fmt: skip
    action_space: Any = Box(-0.5, 0.5, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self.age = 0
        return self.seen(), {}

    def seen(self):
        return {"at": self.at.copy(), "goal": self.goal.copy(), "camera": np.full((8, 8, 1), 10 * self.age, np.uint8), "mode": 1 + self.age % 3}

    def step(self, action):
        self.at, self.age = self.at + action, self.age + 1
        return self.seen(), self.reward(), False, self.age >= LIMIT, {}

    def reward(self):
        return -float(np.linalg.norm(self.at - self.goal))


class UsesArrayAgain(Good):
    def reset(self, **given):
        self.buffer = np.zeros(2, np.float32)
        return super().reset(**given)

    def seen(self):
        self.buffer[:] = self.at
        return {**super().seen(), "at": self.buffer}


class OtherType(Good):
    def seen(self):
        return {**super().seen(), "at": self.at.astype(np.float64)}


class OtherShape(Good):
    def seen(self):
        return {**super().seen(), "at": self.at[:1]}  # numpy would stretch it over both places


class OutOfChoices(Good):
    def seen(self):
        return {**super().seen(), "mode": self.age % 3}


class MissingPart(Good):
    def seen(self):
        return {"at": self.at.copy()}


class NotFiniteReward(Good):
    def reward(self):
        return np.nan if self.age == 3 else super().reward()


class NotFiniteObservation(Good):
    def seen(self):
        return {**super().seen(), "at": self.at / (0 if self.age == 5 else 1)}


class IgnoresSeed(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class RemembersEpisodes(Good):
    """Every reset makes it harder, whatever the seed."""

    level = 0.0

    def reset(self, **given):
        self.level += 0.1
        return super().reset(**given)

    def reward(self):
        return super().reward() - self.level


class HidesZeroedGoal(Good):
    def seen(self):
        return {**super().seen(), "goal": np.zeros(2, np.float32)}


class HidesFlatGoal(Good):
    observation_space = Box(-9, 9, (4,), np.float32)

    def seen(self):
        return np.array([*self.at, 0, 0], np.float32)


class ShowsFlatGoal(HidesFlatGoal):
    """Zeros in an observation are no fault by themselves."""

    observation_space = Box(-9, 9, (5,), np.float32)

    def seen(self):
        return np.array([*self.at, *self.goal, 0], np.float32)


class SparseReward(ShowsFlatGoal):
    """Few first steps are rewarded: a touch sensor that shows zeros, and nothing hidden."""

    def reward(self):
        return float(np.linalg.norm(self.at - self.goal) < 0.4)


class OldReset(Good):
    def reset(self, **given):
        return super().reset(**given)[0]


class NoSeed(Good):
    def reset(self):
        return super().reset()


class OldStep(Good):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class RewardIsAnArray(Good):
    def reward(self):
        return np.array([1.0, 2.0])


class NoSpaces(Good):
    observation_space = None


class Text(Good):
    observation_space = Dict(at=Box(-9, 9, (2,), np.float32), words=spaces.Text(5))


@pytest.mark.parametrize("cls", [Good, ShowsFlatGoal, SparseReward])
def test_what_is_sound_passes(cls) -> None:
    check_env(cls)


@pytest.mark.parametrize("id", ["CliffWalking-v1", "FrozenLake-v1"])
def test_chance_and_one_beginning_are_no_fault(id: str) -> None:
    """Ends where episodes begin; on ice two actions come to the same, sometimes."""
    check_env(lambda: make_vec(id, 2, 6))


class Doors(gymnasium.Env):
    """Every second episode begins at a door that is shut, where both actions come to the same."""

    observation_space, action_space = Box(0, 99, (2,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.open, self.t = bool(self.np_random.integers(2)), 0
        return np.array([self.open, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.open, self.t], np.float32), float(action and self.open), bool(self.np_random.integers(10) == 0), False, {}


@pytest.mark.parametrize("seed", [1, 17, 18, 19])
def test_few_beginnings_are_no_fault(seed: int) -> None:
    """Two episodes begin alike now and then, and what two actions come to is the same now and then."""
    check_env(Doors, steps=60, seed=seed)


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (UsesArrayAgain, r"observation\['at'\] is one array that is used again: step 0 changed"),
        (OtherType, r"observation\['at'\] of float64, its space says float32"),
        (OtherShape, r"observation\['at'\] of the shape \(1,\), its space says \(2,\)"),
        (OutOfChoices, r"observation\['mode'\] 0, which is not in Discrete\(3, start=1\)"),
        (MissingPart, r"observation, which has no '\w+'; its space has"),
        (NotFiniteReward, "reward is not finite"),
        (NotFiniteObservation, r"step 4: obs_N\['at'\] is not finite|step 4: final_obs_N\['at'\] is not finite"),
        (IgnoresSeed, "the same seed gives another first observation"),
        (RemembersEpisodes, "the same seed and actions give another reward at step 0"),
        (HidesZeroedGoal, r"2 numbers of its observation are always 0, and observations explain \d+% .*the goal is hidden"),
        (HidesFlatGoal, "the goal is hidden"),
        (NoSeed, r"its reset\(\) takes no seed; gymnasium's signature is reset\(self, \*, seed=None, options=None\)\. Next"),
        (OldReset, r"reset\(\) gave .*gymnasium's gives \(observation, info\)"),
        (OldStep, r"step\(\) gave .*five things"),
        (RewardIsAnArray, "one number and two truth values are needed"),
        (NoSpaces, "it has no observation_space"),
        (Text, r"its observation_space\['words'\] is Text.*what fits is Box, Discrete"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_fault_in_a_single_environment_is_named(cls, said: str) -> None:
    with pytest.raises(EnvError, match=said):
        check_env(cls)


def test_an_environment_that_has_been_made_is_checked_too() -> None:
    check_env(Good(), steps=20)
    check_env(gymnasium.make("CartPole-v1"), steps=20)
    with pytest.raises(EnvError, match=r"test_planted_faults/IgnoresSeed.*the same seed gives another first observation"):
        check_env(IgnoresSeed())
    held = Good()
    held.lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be copied.*Next: the class, check_env\(Good\)"):
        check_env(held)


# --- faults of vectors -----------------------------------------------------------------------------------------------------
class Vector(LoopVecEnv):
    def __init__(self, num_envs: int = 3) -> None:
        made = make_vec(Good, num_envs)
        super().__init__(made.envs, dataclasses.replace(made.spec, max_episode_steps=LIMIT), made.native)


class UsesArraysAgain(Vector):
    kept: ClassVar[dict] = {}

    def step(self, action_N):
        step = super().step(action_N)
        kept = self.__dict__.setdefault("kept", map_tree(np.copy, step.obs_N))
        for key, leaf in step.obs_N.items():
            kept[key][...] = leaf
        return dataclasses.replace(step, obs_N=kept)


class ResetsOneStepLate(Vector):
    """As gymnasium's NEXT_STEP: what is shown after the end is the end, and the next step only begins."""

    def __init__(self, num_envs: int = 3) -> None:
        super().__init__(num_envs)
        self.over, self.first = np.zeros(num_envs, bool), None

    def step(self, action_N):
        if self.over.any():
            self.over[:] = False
            still = np.zeros(self.num_envs, bool)
            return dataclasses.replace(self.last, obs_N=self.first, final_obs_N=self.first, truncated_N=still, reward_N=np.zeros(self.num_envs, np.float32))
        self.last = super().step(action_N)
        self.over, self.first = self.last.truncated_N.copy(), self.last.obs_N
        return dataclasses.replace(self.last, obs_N=self.last.final_obs_N)


class SwallowsFirstStep(ResetsOneStepLate):
    """The new episode's first observation is shown in time, and the first step does nothing all the same."""

    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, obs_N=self.first) if self.over.any() else step


class LosesOneFinalObservation(Vector):
    """Of one environment only."""

    def step(self, action_N):
        step = super().step(action_N)
        final = map_tree(np.copy, step.final_obs_N)
        if step.truncated_N[1]:
            for key in final:
                final[key][1] = step.obs_N[key][1]
        return dataclasses.replace(step, final_obs_N=final)


class GoesOnTooLong(Vector):
    def __init__(self, num_envs: int = 3) -> None:
        super().__init__(num_envs)
        self.spec = dataclasses.replace(self.spec, max_episode_steps=LIMIT - 1)


class BothEnds(Vector):
    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, terminated_N=step.truncated_N.copy())


class ChangesWithoutAnEnd(Vector):
    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, final_obs_N=map_tree(np.zeros_like, step.final_obs_N))


class EndsAreNumbers(Vector):
    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, truncated_N=step.truncated_N.astype(np.float32))


class OtherNumbers(Vector):
    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, reward_N=step.reward_N[:, None])


def test_the_vector_that_they_are_made_from_is_sound() -> None:
    check_env(Vector)
    check_env(partial(Vector, 2))


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (UsesArraysAgain, "step 1 changed arrays that step 0 had handed over"),
        (ResetsOneStepLate, "reset in the same step|goes on after 6 steps"),
        (SwallowsFirstStep, r"the first step after an end does nothing in environment \[0\].*NEXT_STEP"),
        (LosesOneFinalObservation, r"an episode of environment \[1\] ended, but obs_N is still its last"),
        (GoesOnTooLong, "goes on after 5 steps, which is max_episode_steps"),
        (BothEnds, "both terminated and truncated"),
        (ChangesWithoutAnEnd, "final_obs_N differs without an end"),
        (EndsAreNumbers, "truncated_N is float32, not bool"),
        (OtherNumbers, r"reward_N has shape \(3, 1\), not \(3,\)"),
    ],
)
def test_a_fault_of_a_vector_is_named(cls, said: str) -> None:
    with pytest.raises(EnvError, match=said):
        check_env(cls)


# --- the wrong kind of object ----------------------------------------------------------------------------------------------
class OldGym:
    def reset(self): ...
    def step(self, action): ...


OldGym.__module__ = "gym.envs"


@pytest.mark.parametrize(
    ("thing", "error", "said"),
    [
        (3, ConfigError, "an id, a class, or a function"),
        (OldGym(), ConfigError, "an id, a class, or a function"),
        (lambda: None, EnvError, "gave None, None, and no environment"),
        (lambda: OldGym(), EnvError, "old package gym"),
        (lambda: np.zeros(3), EnvError, "no environment"),
        (lambda num_envs: Good(), EnvError, "takes num_envs and gave a single environment"),
        (lambda num_envs: Vector(num_envs + 1), EnvError, "gave 4 environments, 3 are needed"),
        (lambda num_envs, horizon: Vector(num_envs), ConfigError, "'horizon' is called 'max_episode_steps' now"),
    ],
)
def test_what_is_no_environment_is_said(thing, error, said: str) -> None:
    with pytest.raises(error, match=said):
        check_env(thing)


def test_an_instance_with_a_spec_will_do_and_one_without_names_its_class() -> None:
    assert environment(gymnasium.make("CartPole-v1")).id == "gymnasium/CartPole-v1"
    with pytest.raises(ConfigError, match=r"has been made already.*lambda: Good\("):
        environment(Good())
    one = Good()
    with pytest.raises(ConfigError, match="the same environment twice"):
        make_vec(lambda: one, 2)
