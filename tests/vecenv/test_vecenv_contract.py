"""The contract of vectors of environments, the registry, and the conformance check against environments that break a rule."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiBinary
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, UnknownNameError
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome, VecEnv, check_env, environment, ids, make_vec, register
from rlinf_lab.vecenv.registry import adapters

SPEC = EnvSpec("mine/Walk", Box(-np.inf, np.inf, (2,), np.float32), Box(-1, 1, (2,)), 5, "near the origin")


class Walk:
    """A position that actions move; the episode has no end of its own."""

    def reset(self, seed):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.x = self.rng.normal(size=2)
        return self.x.copy()

    def step(self, action_A):
        self.x = self.x + action_A
        return Outcome(self.x.copy(), -float(abs(self.x).sum()), False, False, bool(abs(self.x).sum() < 0.1))

    def render(self):
        return None

    def close(self):
        pass


def walk(**changes) -> LoopVecEnv:
    return LoopVecEnv([Walk() for _ in range(3)], dataclasses.replace(SPEC, **changes))


@pytest.mark.parametrize("id", ["numpy/ReachArm-v0", "gymnasium/Pendulum-v1"])
def test_adapters_keep_the_contract(id: str) -> None:
    check_env(lambda: make_vec(id, 3, 12))
    assert isinstance(make_vec(id, 2), VecEnv)


def test_a_good_environment_of_ones_own_passes() -> None:
    check_env(walk)


class Stale(LoopVecEnv):
    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, obs_N=step.final_obs_N)


class Unseeded(LoopVecEnv):
    def reset(self, *, seed=None):
        return super().reset(seed=np.random.default_rng().integers(1 << 30))


class Alike(LoopVecEnv):
    def reset(self, *, seed=None):
        first = super().reset(seed=seed)
        return np.repeat(first[:1], self.num_envs, axis=0)


class Endless(LoopVecEnv):
    def step(self, action_N):
        self._age_N[:] = 0
        return super().step(action_N)


class NotFinite(LoopVecEnv):
    def step(self, action_N):
        step = super().step(action_N)
        return dataclasses.replace(step, reward_N=step.reward_N * np.nan)


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Stale, "reset in the same step"),
        (Unseeded, "same seed gives another first observation"),
        (Alike, "begin alike"),
        (Endless, "goes on after 5 steps, which is max_episode_steps"),
        (NotFinite, "reward_N is not finite"),
    ],
)
def test_each_broken_rule_is_named(cls, text) -> None:
    with pytest.raises(EnvError, match=text):
        check_env(lambda: cls([Walk() for _ in range(3)], SPEC))


class Tells(Walk):
    """Says of success what it is told to, as a simulator may."""

    def __init__(self, told: object) -> None:
        super().__init__()
        self.told = told

    def step(self, action):
        return super().step(action)._replace(success=self.told)


@pytest.mark.parametrize(
    ("told", "means"),
    [(True, True), (np.False_, False), (1.0, True), (0, False), (np.array([True]), True), (torch.tensor([False]), False), (None, None)],
    ids=repr,
)
def test_what_an_adapter_tells_of_success_is_a_truth_value(told: object, means: bool | None) -> None:
    env = LoopVecEnv([Tells(told)], SPEC)
    env.reset(seed=0)
    found = env.step(np.zeros((1, 2))).success_N
    assert found is None if means is None else found.tolist() == [means]


@pytest.mark.parametrize("told", ["False", float("nan"), [True, False], [], {}], ids=repr)
def test_what_is_no_truth_value_is_no_success(told: object) -> None:
    env = LoopVecEnv([Walk(), Tells(told)], SPEC)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=re.escape(f"{SPEC.id}: its success: {told!r} is no")) as error:
        env.step(np.zeros((2, 2)))
    assert error.value.__notes__ == [f"It was raised by environment 1 of {SPEC.id}."]


def test_actions_are_checked_and_clipped() -> None:
    env = walk()
    with pytest.raises(EnvError, match=r"step\(\) before reset\(\)"):
        env.step(np.zeros((3, 2)))
    start = env.reset(seed=0)
    with pytest.raises(EnvError, match=r"shape \(3, 5\); \(3, 2\) is needed"):
        env.step(np.zeros((3, 5)))
    with pytest.raises(EnvError, match="not finite"):
        env.step(np.full((3, 2), np.nan))
    assert np.allclose(env.step(np.full((3, 2), 9.0)).obs_N, start + 1, atol=1e-6)


class Shows(gymnasium.Env):
    """Gives what it is told to, whatever its space says; an episode is one step."""

    action_space = Box(-1, 1, (1,))

    def __init__(self, space, first, then) -> None:
        self.observation_space, self.first, self.then = Dict(seen=space), {"seen": first}, {"seen": then}

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, action):
        return self.then, 0.0, True, False, {}


BYTES, WHOLE = Box(0, 255, (2,), np.uint8), Box(0, 9, (2,), np.int64)


@pytest.mark.parametrize(
    ("space", "given", "text"),
    [
        (BYTES, np.array([0.1, 0.9]), "of float64; its space says uint8, which does not hold such numbers. Next: another dtype in the space"),
        (WHOLE, [0.2, 0.7], "of float64; its space says int64"),
        (BYTES, np.array([0, 300]), "has numbers from 0 to 300; its space says uint8, which holds 0 to 255"),
        (BYTES, [-1, 7], "has numbers from -1 to 7"),
        (BYTES, [1.0, 256.0], "has numbers from 1.0 to 256.0"),
        (WHOLE, [np.nan, 1.0], "has numbers from nan to nan"),
        (Box(-1, 1, (2,)), np.array([1, 1j]), "of complex128; its space says float32"),
        (Box(-1, 1, (2,)), np.array(["1", "0"]), "its space says float32"),
        (Box(-1, 1, (2,)), [[1], [0, 1]], "which is no float32"),
    ],
)
def test_an_observation_that_its_space_cannot_hold_is_refused(space, given, text) -> None:
    """Cast silently, pictures in [0, 1] would all be 0."""
    good = np.zeros(space.shape, space.dtype)
    with pytest.raises(EnvError, match=rf"its observation\['seen'\] of environment 0.*{re.escape(text)}"):
        make_vec(lambda: Shows(space, given, good), 2).reset(seed=0)
    env = make_vec(lambda: Shows(space, good, given), 2)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=re.escape(text)):
        env.step(np.zeros((2, 1)))


def test_numbers_that_their_space_holds_are_taken() -> None:
    whole = np.array([1.0, 0.0])  # of switches, as np.zeros(2) makes them
    for space, given in [(BYTES, [0, 255]), (BYTES, whole == 1), (Box(-1, 1, (2,)), np.array([1, 0])), (MultiBinary(2), whole), (BYTES, whole)]:
        env = make_vec(lambda space=space, given=given: Shows(space, given, given), 1)
        env.reset(seed=0)
        kept = env.step(np.zeros((1, 1))).obs_N["seen"]
        assert kept.dtype == space.dtype and kept.tolist() == [list(given)]


def test_a_vector_of_somebodys_own_is_held_to_its_space_too() -> None:
    class Floats(SyncVectorEnv):
        def reset(self, **given):
            obs, info = super().reset(**given)
            return {"seen": obs["seen"] + 0.5}, info

    good = np.zeros(2, np.uint8)
    env = make_vec(Floats([lambda: Shows(BYTES, good, good)] * 2, autoreset_mode=AutoresetMode.SAME_STEP), 2)
    with pytest.raises(EnvError, match="its observation.*of float64; its space says uint8"):
        env.reset(seed=0)


@pytest.mark.parametrize("bound", [np.finfo(np.float32).max, 1e38, 1e30])
def test_bounds_as_large_as_none_are_none(bound: float) -> None:
    """Their range is no float32: mapped to it, actions would be infinite."""
    got = []

    class Takes(Shows):
        action_space = Box(np.array([-bound, -bound], np.float32), np.array([bound, 3], np.float32))

        def step(self, action):
            got.append(action)
            return super().step(action)

    good = np.zeros(2, np.uint8)
    env = make_vec(lambda: Takes(BYTES, good, good), 1)
    assert env.spec.action_space == Box(-np.inf, np.array([np.inf, 3], np.float32), (2,))
    env.reset(seed=0)
    env.step(np.array([[0.5, 5]]))
    assert got[0].tolist() == [0.5, 3]
    Takes.action_space = Box(-1e29, 1e29, (2,))
    assert make_vec(lambda: Takes(BYTES, good, good), 1).spec.action_space == Box(-1, 1, (2,))


def test_the_registry_suggests_and_refuses() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'numpy/"):
        make_vec("nunpy/ReachArm-v0")
    with pytest.raises(UnknownNameError, match="Did you mean 'numpy/ReachArm-v0'"):
        make_vec("numpy/ReachArm")
    with pytest.raises(ConfigError, match="num_envs=0"):
        make_vec("numpy/ReachArm-v0", 0)
    with pytest.raises(ConfigError, match="max_episode_steps=-3"):
        make_vec("numpy/ReachArm-v0", 1, -3)
    with pytest.raises(ConfigError, match="simulator/task"):
        register("walk", walk)
    with pytest.raises(ConfigError, match=r"register\(3\): an id has the form"):
        register(3, walk)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'mine/Walk-v0', 3.: the second is a class or a function"):
        register("mine/Walk-v0", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"check_env\(3\): an id, a class, or a function"):
        check_env(3)  # type: ignore[arg-type]
    register("mine/Walk-v0", lambda num_envs: walk())
    assert make_vec("mine/Walk-v0", 3).num_envs == 3 and "mine/Walk-v0" in ids()


@pytest.mark.parametrize("id", ["no_such_package:A-v0", ":A-v0"])
def test_an_id_of_a_package_that_is_not_there_says_so(id: str) -> None:
    with pytest.raises(MissingDependencyError, match=f"{id}'.* cannot be imported.*Next: install"):
        environment(id)


@pytest.mark.parametrize("id, said", [("ALE/Nope-v5", "'atari/Nope-v5', preprocessed as usual, or 'ale_py:ALE/Nope-v5'"), ("pkg/A-v0", "or as 'package:pkg/A-v0'")])
def test_ids_of_packages_that_were_not_imported_say_how(id: str, said: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(said)):
        environment(id)


@pytest.mark.parametrize("count", [True, 0, -1, "8", 2.5, None])
def test_a_count_is_a_whole_number(count: object) -> None:
    with pytest.raises(ConfigError, match="num_envs="):
        make_vec("numpy/ReachArm-v0", count)  # type: ignore[arg-type]


def test_an_adapter_that_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(tmp_path, ns=(0, 0))
    monkeypatch.syspath_prepend(tmp_path)
    assert "later" not in adapters() and "numpy" in adapters()
    (tmp_path / "later-1.0.dist-info").mkdir()
    (tmp_path / "later-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (tmp_path / "later-1.0.dist-info" / "entry_points.txt").write_text("[rlinf_lab.envs]\nlater = somewhere\n")
    assert adapters()["later"].value == "somewhere"


def test_unknown_options_are_named_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"metaworld/button-press-v3 has no option 'task_sed'\. Did you mean 'task_seed'"):
        make_vec("metaworld/button-press-v3", 1, task_sed=3)
    with pytest.raises(UnknownNameError, match=r"numpy/ReachArm-v0 has no option 'bogus'\. Known: none"):
        make_vec("numpy/ReachArm-v0", 1, bogus=3)
    register("mine/Walk-v1", lambda num_envs, wind=0: walk())
    with pytest.raises(UnknownNameError, match="mine/Walk-v1 has no option 'winds'"):
        make_vec("mine/Walk-v1", 3, winds=3)
    with pytest.raises(UnknownNameError, match="Unknown simulator 'metaword'. Did you mean 'metaworld'"):
        ids("metaword")


def test_gymnasium_lists_what_can_be_made_whatever_was_imported() -> None:
    class Elsewhere(gymnasium.Env):
        """As packages register theirs when they are imported."""

    before = ids("gymnasium")
    gymnasium.register("elsewhere/Thing-v0", entry_point=Elsewhere)
    try:
        assert ids("gymnasium") == before and "gymnasium/Pendulum-v1" in before
        assert "gymnasium/CartPole-v1" in before and not {"gymnasium/Hopper-v2", "gymnasium/phys2d/Pendulum-v0"} & set(before)
        for id in before:
            make_vec(id, 1).close()
    finally:
        gymnasium.registry.pop("elsewhere/Thing-v0")


def test_the_arm_is_solved_by_turning_towards_the_target() -> None:
    """The task is solvable: the Jacobian's transpose as a controller reaches most targets."""
    env = make_vec("numpy/ReachArm-v0", 64)
    obs = env.reset(seed=0)
    reached = np.zeros(64, bool)
    for _ in range(59):
        cos, sin, velocity, to_target = obs[:, :2], obs[:, 2:4], obs[:, 4:6] * 4, obs[:, 6:8]
        total_sin = sin[:, 0] * cos[:, 1] + cos[:, 0] * sin[:, 1]
        total_cos = cos[:, 0] * cos[:, 1] - sin[:, 0] * sin[:, 1]
        far = 0.5 * np.stack([-total_sin, total_cos], axis=1)
        near = 0.5 * np.stack([-sin[:, 0], cos[:, 0]], axis=1) + far
        torque = 6 * np.stack([(near * to_target).sum(1), (far * to_target).sum(1)], axis=1) - 0.5 * velocity
        step = env.step(torque)
        obs, reached = step.obs_N, step.success_N
    assert reached.mean() > 0.6
    assert env.render().shape == (240, 240, 3)
