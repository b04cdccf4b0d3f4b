"""Runners that step all environments at once give the numbers of the simulators' own classes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from envs.gymnasium.classic_control import TASKS
from envs.gymnasium.mujoco_rules import RULES
from envs.metaworld.quick import quick
from rlinf_lab.vecenv import check_env, make_vec
from rlinf_lab.vecenv.spaces import Native, sampled

N = 5
METAWORLD = ["pick-place-v3", *(pytest.param(task, marks=pytest.mark.long) for task in ("button-press-v3", "stick-pull-v3"))]


@pytest.mark.parametrize(("task", "steps"), [*((task, 60 if task == "Acrobot-v1" else 500) for task in TASKS if task != "CartPole-v0"), *((task, 60) for task in RULES)])
def test_gymnasiums_numbers(task: str, steps: int) -> None:
    """Observations, rewards and ends over whole episodes, begun by gymnasium's own generators; to the last bit where the runner is not numpy's."""
    runner = "numpy" if task in TASKS else "mujoco"
    env = make_vec(f"gymnasium/{task}", N, runner=runner)
    singles = [gymnasium.make(task, disable_env_checker=True) for _ in range(N)]
    native = Native(singles[0].action_space)
    assert np.allclose(env.reset(seed=11), [single.reset(seed=11 + i)[0] for i, single in enumerate(singles)], atol=1e-6)
    tolerance = 1e-6 if runner == "numpy" else 0.0
    for t in range(steps):
        action_N = sampled(env.spec.action_space, np.random.default_rng(t), N)
        step = env.step(action_N)
        for i, single in enumerate(singles):
            seen, reward, terminated, truncated, _ = single.step(native(action_N)[i])
            expected = np.append(np.asarray(seen, np.float32), np.float32(reward))
            assert np.allclose(np.append(step.final_obs_N[i], step.reward_N[i]), expected, atol=tolerance, rtol=tolerance), (t, i)
            assert (step.terminated_N[i], step.truncated_N[i]) == (terminated, truncated and not terminated)
            if terminated or truncated:
                assert np.allclose(step.obs_N[i], single.reset()[0], atol=1e-6), (t, i)
    env.close()


def test_acrobot_ends_and_begins_as_gymnasiums_does() -> None:
    """One step from states drawn everywhere, set in both: its swings grow a last bit, so that no long walk is comparable."""
    env = make_vec("gymnasium/Acrobot-v1", 64, runner="numpy")
    single = gymnasium.make("Acrobot-v1", disable_env_checker=True).unwrapped
    single.reset(seed=0)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(20):
        env.reset(seed=1)
        state_SN = rng.uniform([[-3.1]] * 2 + [[-12.0], [-28.0]], [[3.1]] * 2 + [[12.0], [28.0]], (4, 64))
        env._state_SN[:] = state_SN
        action_N = rng.integers(3, size=64)
        step = env.step(action_N)
        for i, action in enumerate(action_N.tolist()):
            single.state = state_SN[:, i].copy()
            seen, reward, terminated, _, _ = single.step(action)
            assert np.allclose(step.final_obs_N[i], seen, atol=1e-5) and (step.reward_N[i], step.terminated_N[i]) == (reward, terminated)
            ended += terminated
    assert ended > 100


@pytest.mark.parametrize("id", ["gymnasium/CartPole-v1", "gymnasium/Acrobot-v1", "gymnasium/Ant-v5"])
def test_the_contract_is_kept_and_threads_change_nothing(id: str) -> None:
    runner = "mujoco" if "Ant" in id else "numpy"
    check_env(lambda: make_vec(id, 3, 12, runner=runner))
    if runner == "mujoco":
        one, two = make_vec(id, 3, 12, runner=runner), make_vec(id, 3, 12, runner=runner, cores=2)
        assert (one.cores, two.cores) == (1, 2) and np.array_equal(one.reset(seed=1), two.reset(seed=1))
        for t in range(15):
            action_N = sampled(one.spec.action_space, np.random.default_rng(t), 3)
            assert np.array_equal(one.step(action_N).obs_N, two.step(action_N).obs_N)
        one.close()
        two.close()


def test_options_reach_the_rule() -> None:
    free = make_vec("gymnasium/HalfCheetah-v5", 1, runner="mujoco", ctrl_cost_weight=0.0)
    usual = make_vec("gymnasium/HalfCheetah-v5", 1, runner="mujoco")
    free.reset(seed=0), usual.reset(seed=0)
    action_N = np.full((1, 6), 0.5, np.float32)
    assert free.step(action_N).reward_N[0] - usual.step(action_N).reward_N[0] == pytest.approx(0.1 * 6 * 0.25, rel=1e-5)


def _compare_with_stock(task: str, steps: int) -> None:
    import metaworld
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS as ALL

    tasks = metaworld.MT1(task, seed=0).train_tasks
    stock, ours = ALL[task](), quick(ALL[task])()
    rng = np.random.default_rng(0)
    for episode in range(2):
        chosen = tasks[rng.integers(len(tasks))]
        stock.set_task(chosen)
        ours.set_task(chosen)
        assert np.array_equal(stock.reset()[0], ours.reset()[0])
        for t in range(steps):
            action = rng.uniform(-1, 1, 4).astype(np.float32)
            action[2] -= episode  # downwards, to touch things
            expected, found = stock.step(action), ours.step(action)
            assert np.array_equal(expected[0], found[0]) and expected[1] == found[1], (task, t)
            assert expected[4]["success"] == found[4]["success"]


@pytest.mark.parametrize("task", METAWORLD)
def test_quick_metaworld_equals_its_own_classes(task: str) -> None:
    _compare_with_stock(task, 25)


@pytest.mark.slow
def test_all_of_metaworld_equals_its_own_classes() -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS as ALL

    for task in ALL:
        _compare_with_stock(task, 60)
