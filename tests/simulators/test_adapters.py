"""Every adapter keeps the contract with one of its tasks of each kind, and lists its tasks."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, UnknownNameError
from rlinf_lab.trees import leaves
from rlinf_lab.vecenv import check_env, ids, make_vec

CASES = {
    "atari/Breakout-v5": "ale_py",
    "dm_control/cheetah-run": "dm_control",
    "dm_control/ball_in_cup-catch": "dm_control",
    "envpool/CartPole-v1": "envpool",
    "envpool/HalfCheetah-v5": "envpool",
    "envpool/MetaWorld/Reach-v3": "envpool",
    "gymnasium/CartPole-v1": "gymnasium",
    "gymnasium/Hopper-v5": "mujoco",
    "metaworld/reach-v3": "metaworld",
    "numpy/ReachArm-v0": "numpy",
    "panda/PandaReach-v3": "panda_gym",
    "robotics/AdroitHandDoor-v1": "gymnasium_robotics",
    "robotics/FetchReach-v4": "gymnasium_robotics",
}
SLOW_TO_MAKE = {"atari/Breakout-v5", "envpool/MetaWorld/Reach-v3"}


def need(package: str) -> None:
    """A simulator that is not installed is skipped, but not where everything is said to be there."""
    if importlib.util.find_spec(package) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{package} is not installed")


@pytest.mark.parametrize("id", [pytest.param(id, marks=[pytest.mark.long] * (id in SLOW_TO_MAKE)) for id in CASES])
def test_the_contract_is_kept(id: str) -> None:
    need(CASES[id])
    check_env(lambda: make_vec(id, 2, 6))
    assert id in ids(id.partition("/")[0])


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
