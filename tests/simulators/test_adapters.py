"""Every adapter keeps the contract with one of its tasks of each kind, and lists its tasks."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_maniskill_batched
import test_warp

from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, UnknownNameError
from rlinf_lab.trees import leaves
from rlinf_lab.vecenv import check_env, ids, make_vec
from rlinf_lab.vecenv.registry import adapters

# What a family has of each kind; those of the second dict are checked in `make test-long`.
CASES = {
    "dm_control/cheetah-run": "dm_control",
    "dm_control/ball_in_cup-catch": "dm_control",
    "envpool/CartPole-v1": "envpool",
    "envpool/HalfCheetah-v5": "envpool",
    "gymnasium/CartPole-v1": "gymnasium",
    "gymnasium/Hopper-v5": "mujoco",
    "metaworld/reach-v3": "metaworld",
    "numpy/ReachArm-v0": "numpy",
    "panda/PandaReach-v3": "panda_gym",
    "robotics/AdroitHandDoor-v1": "gymnasium_robotics",
    "robotics/FetchReach-v4": "gymnasium_robotics",
}
LONG = {
    "atari/Breakout-v5": "ale_py",
    "dm_control/quadruped-walk": "dm_control",
    "envpool/MetaWorld/Reach-v3": "envpool",
    "gymnasium/Blackjack-v1": "gymnasium",
    "gymnasium/Humanoid-v5": "mujoco",
    "gymnasium/Taxi-v4": "gymnasium",
    "metaworld/pick-place-v3": "metaworld",
    "panda/PandaPickAndPlace-v3": "panda_gym",
    "robotics/FrankaKitchen-v1": "gymnasium_robotics",
    "robotics/HandManipulateEgg-v1": "gymnasium_robotics",
    "robotics/HandManipulatePenDense-v1": "gymnasium_robotics",
    "robotics/HandReach-v3": "gymnasium_robotics",
    "robotics/PointMaze_UMaze-v3": "gymnasium_robotics",
}

ENVS = Path(__file__).parents[2] / "envs"
SWEPT = {"atari": "ale_py", "dm_control": "dm_control", "gymnasium": "mujoco", "metaworld": "metaworld", "numpy": "numpy", "panda": "panda_gym", "robotics": "gymnasium_robotics"}


def need(package: str) -> None:
    """A simulator that is not installed is skipped, but not where everything is said to be there."""
    if importlib.util.find_spec(package) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{package} is not installed")


@pytest.mark.parametrize(("id", "package"), [*CASES.items(), *(pytest.param(*case, marks=pytest.mark.long) for case in LONG.items())])
def test_the_contract_is_kept(id: str, package: str) -> None:
    need(package)
    check_env(lambda: make_vec(id, 2, 6))
    assert id in ids(id.partition("/")[0])


@pytest.mark.parametrize("family", [pytest.param(name, marks=pytest.mark.slow) for name in SWEPT])
def test_every_task_keeps_the_contract(family: str) -> None:
    """All that `ids` lists: a task that is listed can be made."""
    need(SWEPT[family])
    broken = {}
    for id in ids(family):
        try:
            check_env(lambda id=id: make_vec(id, 2, 6))
        except Exception as error:
            broken[id] = f"{type(error).__name__}: {error}"
    assert not broken


@pytest.mark.long
def test_all_of_metaworld_can_be_made_and_stepped() -> None:
    need("metaworld")
    assert len(ids("metaworld")) == 50
    for id in ids("metaworld"):
        env = make_vec(id, 1, 3)
        first = env.reset(seed=0)
        step = env.step(np.zeros((1, 4), np.float32))
        assert first.shape == step.obs_N.shape == (1, 39) and first[0, -3:].any(), f"{id}: the goal is shown"
        assert np.isfinite(step.reward_N).all() and step.success_N is not None
        env.close()


def test_no_adapter_is_left_out() -> None:
    """Who announces one adds it here, or to a file whose test checks it."""
    elsewhere = {
        "libero": test_libero_says_what_to_fetch,
        "maniskill": test_maniskill_batched.test_maniskill_keeps_the_contract_without_vulkan,
        "mjlab": test_warp.test_mjlabs_lift_keeps_the_contract,
        "warp": test_warp.test_both_engines_keep_the_contract,
    }
    assert {id.partition("/")[0] for id in (*CASES, *LONG)} | set(elsewhere) == set(adapters())


def test_no_module_takes_the_place_of_an_adapters_function() -> None:
    """A package that has a function and a module of one name has the module as soon as somebody imports it."""
    hidden = {
        f"envs/{adapter}/{module.name}"
        for adapter in adapters()
        for module in (ENVS / adapter).glob("*.py")
        if re.search(rf"^def {module.stem}\(", (ENVS / adapter / "__init__.py").read_text(), re.MULTILINE)
    }
    assert not hidden


APART = {"libero": pytest.mark.skipif(importlib.util.find_spec("libero") is None, reason="in an environment of its own"), "mjlab": pytest.mark.warp, "warp": pytest.mark.warp}


@pytest.mark.parametrize("adapter", [pytest.param(name, marks=APART.get(name, pytest.mark.long)) for name in sorted(adapters())])
def test_what_a_readme_shows_runs(adapter: str) -> None:
    """In a process of its own, as a newcomer runs it: what one simulator does to its process is nothing to the others."""
    text = (ENVS / adapter / "README.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert shown and "nstall" in text
    told = "from gymnasium.envs.classic_control import CartPoleEnv as MyEnv"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", "\n".join([told, *shown])], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_goals_are_a_dict_with_success() -> None:
    need("gymnasium_robotics")
    env = make_vec("robotics/FetchReach-v4", 2, 50)
    obs_N = env.reset(seed=0)
    assert set(obs_N) == {"observation", "achieved_goal", "desired_goal"} and obs_N["desired_goal"].shape == (2, 3)
    for _ in range(50):  # towards the goal
        step = env.step(np.concatenate([np.clip(20 * (obs_N["desired_goal"] - obs_N["achieved_goal"]), -1, 1), np.zeros((2, 1))], axis=1))
        obs_N = step.obs_N
    assert step.success_N.all() and step.truncated_N.all()
    env.close()


def test_envpool_shows_goals_and_spends_no_step_on_a_reset() -> None:
    need("envpool")
    import envpool

    env = make_vec("envpool/MetaWorld/Reach-v3", 3, 4)
    bare = envpool.make_gymnasium("MetaWorld/Reach-v3", num_envs=3, seed=5, max_episode_steps=4, partially_observable=False)
    assert env.reset(seed=5)[:, -3:].any(axis=1).all()  # the goal, which EnvPool hides by default
    bare.reset()
    for t in range(9):
        action_N = np.full((3, 4), 0.1 * t, np.float32)
        step = env.step(action_N)
        seen, reward_N, _, truncated_N, _ = bare.step(action_N)
        assert np.allclose(step.final_obs_N, seen, atol=1e-6) and np.allclose(step.reward_N, reward_N, rtol=1e-5)
        assert np.array_equal(step.truncated_N, truncated_N) and truncated_N.all() == (t % 4 == 3)
        if truncated_N.any():
            first, _, _, _, info = bare.step(action_N)  # the step that is lost there
            assert (info["elapsed_step"] == 0).all() and np.allclose(step.obs_N, first, atol=1e-6)
    env.close()
    with pytest.raises(ConfigError, match="reset\\(seed=...\\)"):
        make_vec("envpool/CartPole-v1", 2, seed=3)
    with pytest.raises(UnknownNameError, match="frame_skip"):
        make_vec("envpool/HalfCheetah-v5", 2, frame_skp=3)


def test_seeds_fix_later_episodes_of_panda_too() -> None:
    """panda-gym seeds itself from the system at every reset without a seed."""
    need("panda_gym")
    ends = []
    for _ in range(2):
        env = make_vec("panda/PandaReach-v3", 1, 3)
        env.reset(seed=2)
        for _ in range(7):
            step = env.step(np.zeros((1, 3)))
        ends.append([leaf.copy() for leaf in leaves(step.obs_N)])
        env.close()
    assert all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))


def test_libero_says_what_to_fetch() -> None:
    from envs import libero

    assert libero.has("libero_goal-3") and not libero.has("libero_goal-10") and not libero.has("libero_gaol-1")
    assert libero.spec("libero_10-2").max_episode_steps == 520
    if importlib.util.find_spec("libero") is None:
        with pytest.raises(MissingDependencyError, match="hf-libero .*README"):
            make_vec("libero/libero_goal-3")
    else:
        try:
            check_env(lambda: make_vec("libero/libero_goal-3", 2, 3))
        except EnvError as error:
            assert "hf download lerobot/libero-assets" in str(error)
