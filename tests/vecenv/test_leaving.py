"""Vectors that are saved, and go on elsewhere to the last bit: in a new vector, in one that was used, in another process. Who cannot says why."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import random
import subprocess
import sys
import threading
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from test_vecenv_contract import SPEC, Walk, walk

from rlinf_lab.errors import EnvError
from rlinf_lab.vecenv import LoopVecEnv, cannot_leave, check_env, make_vec

N, LIMIT = 2, 11
MUJOCO = [f"gymnasium/{task}" for task in ("Ant-v5", "Hopper-v5", "HalfCheetah-v4", "Humanoid-v5", "Reacher-v5", "InvertedPendulum-v5")]
PLAIN = ["numpy/ReachArm-v0", "gymnasium/Pendulum-v1", "gymnasium/MountainCarContinuous-v0"]
# Some of these keep arrays that lie in MuJoCo's memory, some change the model when an episode begins.
METAWORLD = [f"metaworld/{task}-v3" for task in ("door-lock", "door-open", "soccer", "hammer")]


def bits(step) -> bytes:
    return b"".join(np.ascontiguousarray(getattr(step, field.name)).tobytes() for field in dataclasses.fields(step) if getattr(step, field.name) is not None)


def digest(env, actions_TNA) -> str:
    """Of all that these steps give."""
    return hashlib.sha256(b"".join(bits(env.step(action_NA)) for action_NA in actions_TNA)).hexdigest()


def actions(env, seed: int, steps: int):
    return np.random.default_rng(seed).uniform(-1.1, 1.1, (steps, env.num_envs, *env.spec.action_space.shape))


@pytest.mark.parametrize("id", [*PLAIN, *MUJOCO, METAWORLD[0], *(pytest.param(id, marks=pytest.mark.long) for id in METAWORLD[1:])])
def test_it_goes_on_where_it_was(id: str) -> None:
    """Saved at some step of some episode, often one that ends right then; the ends of several episodes lie behind and before it."""
    rng = random.Random(id)
    env, used = make_vec(id, N, LIMIT), make_vec(id, N, LIMIT)
    befores = (0, LIMIT, rng.randrange(1, LIMIT), rng.randrange(LIMIT + 1, 3 * LIMIT))
    for before in befores[2:] if id.startswith("metaworld") else befores:  # which takes long to make
        env.reset(seed=rng.randrange(1000))
        used.reset(seed=5)
        for action_NA in actions(env, 1, before):
            env.step(action_NA)
        state = pickle.loads(pickle.dumps(env.save_state()))
        there = actions(env, 2, 2 * LIMIT + 3)
        expected = digest(env, there)
        env.close()
        new = make_vec(id, N, LIMIT)
        new.restore_state(state)
        assert digest(new, there) == expected, f"new, after {before} steps"
        used.restore_state(state)
        assert digest(used, there) == expected, f"used, after {before} steps"
        env = used if rng.random() < 0.5 else new  # what came back is saved again
        used = make_vec(id, N, LIMIT)


ELSEWHERE = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from test_leaving import LIMIT, N, digest
from rlinf_lab.vecenv import make_vec
id, state, actions = pickle.load(sys.stdin.buffer)
env = make_vec(id, N, LIMIT)
env.restore_state(state)
print(digest(env, actions))
"""


@pytest.mark.long
@pytest.mark.parametrize("id", ["numpy/ReachArm-v0", "gymnasium/Pendulum-v1", "gymnasium/Ant-v5", "metaworld/door-lock-v3"])
def test_it_goes_on_in_another_process(id: str) -> None:
    env = make_vec(id, N, LIMIT)
    env.reset(seed=3)
    for action_NA in actions(env, 1, LIMIT + 4):
        env.step(action_NA)
    there = actions(env, 2, 2 * LIMIT)
    told = pickle.dumps((id, env.save_state(), there))
    here = __file__.rsplit("/", 1)[0]
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, here], input=told, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.decode().split()[-1] == digest(env, there)


def test_pictures_do_not_keep_an_environment_from_leaving() -> None:
    env = make_vec("gymnasium/Pendulum-v1", 1, LIMIT)
    env.reset(seed=0)
    drawn = env.render()
    state = pickle.loads(pickle.dumps(env.save_state()))
    other = make_vec("gymnasium/Pendulum-v1", 1, LIMIT)
    other.restore_state(state)
    again = other.render()
    assert (drawn is None and again is None) or np.array_equal(drawn, again)


# --- who cannot ---------------------------------------------------------------------------------------------------------
class Elsewhere(gymnasium.Env):
    """As a simulator behind a number: what the steps depend on lies in no Python object of the environment."""

    worlds: ClassVar[list[float]] = []
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    metadata: ClassVar = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.world = len(self.worlds)
        self.worlds.append(0.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.worlds[self.world] = float(self.np_random.normal())
        return np.array([self.worlds[self.world]]), {}

    def step(self, action):
        self.worlds[self.world] += float(action[0])
        return np.array([self.worlds[self.world]]), 0.0, False, False, {}


class Handle(Elsewhere):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.lock = threading.Lock()


class Everybodys(Elsewhere):
    """Its noise comes from a generator that all of the process share."""

    def step(self, action):
        self.worlds[self.world] += float(np.random.normal())
        return np.array([self.worlds[self.world]]), 0.0, False, False, {}


@pytest.mark.parametrize(("cls", "why"), [(Elsewhere, "went on differently"), (Handle, "TypeError: "), (Everybodys, "went on differently")])
def test_what_cannot_be_copied_says_so(cls, why: str) -> None:
    name = f"elsewhere/{cls.__name__}-v0"
    gymnasium.register(name, entry_point=cls, max_episode_steps=LIMIT, disable_env_checker=True)
    try:
        env = make_vec(f"gymnasium/{name}", 2)
        assert why in cannot_leave(env), cannot_leave(env)
        with pytest.raises(EnvError, match=rf"gymnasium/{name} cannot be saved: .*Next: ") as raised:
            env.save_state()
        assert str(raised.value).count("cannot be saved") == 1
    finally:
        gymnasium.registry.pop(name)


def test_environments_of_ones_own_leave_when_each_of_them_can() -> None:
    class Saves(Walk):
        def save_state(self):
            return pickle.dumps((self.x, self.rng))

        def restore_state(self, state):
            self.x, self.rng = pickle.loads(state)

    class SometimesSaves(Saves):
        def cannot_leave(self):
            return "the robot is real"

    assert cannot_leave(walk()) == "Walk has no save_state() and restore_state()" and cannot_leave(object()).startswith("object has no")
    assert cannot_leave(LoopVecEnv([SometimesSaves()], SPEC)) == "the robot is real"
    with pytest.raises(EnvError, match=r"mine/Walk cannot be saved: Walk has no save_state\(\)"):
        walk().restore_state(walk().save_state())
    assert cannot_leave(LoopVecEnv([Saves()], SPEC)) == ""
    check_env(lambda: LoopVecEnv([Saves() for _ in range(3)], SPEC))


@pytest.mark.parametrize("changed", [{"num_envs": 2}, {"max_episode_steps": 12}, {"id": "gymnasium/Hopper-v5"}])
def test_a_state_of_other_environments_is_refused(changed: dict) -> None:
    made = {"id": "gymnasium/Pendulum-v1", "num_envs": 3, "max_episode_steps": 5}
    env = make_vec(**made)
    env.reset(seed=0)
    said = r"A state of gymnasium/Pendulum-v1 × 3 \(max_episode_steps=5\) is not one of .*make_vec\('gymnasium/Pendulum-v1', 3, 5\)"
    with pytest.raises(EnvError, match=said):
        make_vec(**{**made, **changed}).restore_state(env.save_state())


# --- the check ----------------------------------------------------------------------------------------------------------
class Saving(LoopVecEnv):
    def cannot_leave(self):
        return ""

    def save_state(self):
        return {"age": self._age_N.copy(), "envs": [(env.x.copy(), pickle.dumps(env.rng)) for env in self._envs]}

    def restore_state(self, state):
        self._started, self._age_N = True, state["age"].copy()
        for env, (x, rng) in zip(self._envs, state["envs"], strict=True):
            env.x, env.rng = x.copy(), pickle.loads(rng)


class ForgetsAge(Saving):
    def restore_state(self, state):
        age = self._age_N.copy()
        super().restore_state(state)
        self._age_N = age


class ForgetsGenerators(Saving):
    def restore_state(self, state):
        super().restore_state(state)
        for env in self._envs:
            env.rng = np.random.default_rng(0)


class Unpicklable(Saving):
    def save_state(self):
        return {**super().save_state(), "made": lambda: None}


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Saving, None),
        (ForgetsAge, "restored in a new vector, step 1 gives another obs_N"),
        (ForgetsGenerators, "restored in a new vector, step 1 gives another obs_N"),
        (Unpicklable, "its state does not pickle"),
    ],
)
def test_check_env_looks_at_those_that_can(cls, text) -> None:
    def make():
        return cls([Walk() for _ in range(3)], SPEC)

    if text is None:
        check_env(make)
    else:
        with pytest.raises(EnvError, match=text):
            check_env(make)
