"""The arm on MuJoCo Warp and on MuJoCo in C: the same rules, the same numbers, the contract. Warp runs on cores here, at few environments: make test-warp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlinf_lab.errors import ConfigError, EnvError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.run.run import run
from rlinf_lab.trees import map_tree
from rlinf_lab.vecenv import EnvFactory, check_env, environment, make_vec

pytestmark = pytest.mark.warp
N = 16
IDS = [f"warp/Arm{task}-v0" for task in ("Reach", "Push", "Lift")]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def warp(id: str, num_envs: int = N, limit: int | None = None) -> Any:
    return make_vec(id, num_envs, limit, engine="warp", device="cpu")


def mujoco(id: str, num_envs: int = N, limit: int | None = None, **options: Any) -> Any:
    return make_vec(id, num_envs, limit, engine="mujoco", **options)


def actions(steps: int, num_envs: int = N) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, num_envs, 7)).astype(np.float32)


@pytest.mark.parametrize("id", IDS)
def test_both_engines_keep_the_contract(id: str) -> None:
    check_env(lambda: mujoco(id, 3, 12))
    if id != "warp/ArmPush-v0":  # its kernels are lift's: each task compiles for half a minute
        check_env(lambda: warp(id, 3, 6))


@pytest.mark.parametrize(("id", "tolerance"), [("warp/ArmReach-v0", 1e-5), ("warp/ArmLift-v0", 5e-3)])
def test_both_engines_give_the_same_numbers(id: str, tolerance: float) -> None:
    """Over a whole episode and into the next one; a cube that falls for a moment settles a little differently in single precision."""
    one, two = warp(id, limit=12), mujoco(id, limit=12)
    assert one.spec.device == "cpu" and two.spec.device is None and one.spec.runner.name == "warp" and two.spec.runner.name == "mujoco"
    assert np.allclose(one.reset(seed=3).numpy(), two.reset(seed=3), atol=1e-6)
    for action_N in actions(15):
        a, b = one.step(torch.from_numpy(action_N)), two.step(action_N)
        assert isinstance(a.obs_N, torch.Tensor) and isinstance(b.obs_N, np.ndarray)
        assert np.allclose(a.obs_N.numpy(), b.obs_N, atol=tolerance) and np.allclose(a.final_obs_N.numpy(), b.final_obs_N, atol=tolerance)
        assert np.allclose(a.reward_N.numpy(), b.reward_N, atol=tolerance) and np.array_equal(a.truncated_N.numpy(), b.truncated_N)
    one.close()
    two.close()


def test_threads_and_groups_change_no_number() -> None:
    """Environment i of a run begins with seed + i, whichever vector it is in."""
    whole, shared = mujoco("warp/ArmPush-v0", 6), mujoco("warp/ArmPush-v0", 6, cores=3)
    halves = [mujoco("warp/ArmPush-v0", 3) for _ in range(2)]
    assert shared.spec.runner.cores == 3
    first = whole.reset(seed=5)
    assert np.array_equal(first, shared.reset(seed=5))
    assert np.array_equal(first, np.concatenate([half.reset(seed=5 + 3 * k) for k, half in enumerate(halves)]))
    for action_N in actions(60, 6):
        step = whole.step(action_N)
        parts = [half.step(action_N[3 * k : 3 * k + 3]) for k, half in enumerate(halves)]
        assert np.array_equal(step.obs_N, shared.step(action_N).obs_N) and np.array_equal(step.obs_N, np.concatenate([p.obs_N for p in parts]))
    for env in (whole, shared, *halves):
        env.close()


# --- the tasks ------------------------------------------------------------------------------------------------------------
def steered(env: Any, obs_N: np.ndarray) -> np.ndarray:
    """Damped least squares on the hand's Jacobian: what a roboticist does without learning."""
    import mujoco as library

    action_N = np.zeros((env.num_envs, 7), np.float32)
    data, model = library.MjData(env._model), env._model
    for i, obs in enumerate(obs_N):
        data.qpos[:8] = obs[:8]
        library.mj_kinematics(model, data)
        library.mj_comPos(model, data)
        jacobian = np.zeros((3, model.nv))
        library.mj_jacSite(model, data, jacobian, None, model.site("grasp_site").id)
        wanted = jacobian[:, :6].T @ np.linalg.solve(jacobian[:, :6] @ jacobian[:, :6].T + 1e-4 * np.eye(3), obs[19:22] - obs[16:19])
        action_N[i, :6] = np.clip(wanted / 0.08, -1, 1)
    return action_N


def test_reach_can_be_done_and_is_rewarded() -> None:
    env = mujoco("warp/ArmReach-v0", 24)
    obs_N = env.reset(seed=0)
    rewards = []
    for t in range(50):
        step = env.step(steered(env, obs_N))
        obs_N = step.obs_N
        rewards.append(step.reward_N.mean())
        assert step.truncated_N.all() == (t == 49) and not step.terminated_N.any()
    assert step.success_N.mean() > 0.9 and rewards[-1] > 3 * rewards[0]
    far_N = np.linalg.norm(step.final_obs_N[:, 19:22] - step.final_obs_N[:, 16:19], axis=1)
    assert np.array_equal(step.success_N, far_N < 0.03), "success is what the observation shows"


@pytest.mark.parametrize("id", IDS[1:])
def test_a_cube_at_the_goal_is_success(id: str) -> None:
    """Put there by hand, in every second environment: for lift it falls, in 40 ms less than 1 cm."""
    env = mujoco(id, 4)
    env.reset(seed=1)
    env._physics.qpos_NQ[::2, 8:11] = env.goal_N3[::2]
    step = env.step(np.zeros((4, 7), np.float32))
    assert step.success_N.tolist() == [True, False, True, False] and (step.reward_N[::2] > step.reward_N[1::2] + 0.2).all()


def test_ppo_on_tensors_and_on_arrays_learns_alike() -> None:
    """The whole workflow with Warp's tensors, in halves, against C MuJoCo's arrays."""
    found = []
    for engine, halves in (("warp", 2), ("mujoco", 1)):
        factory = environment("warp/ArmReach-v0")
        made = EnvFactory(factory.id, lambda engine=engine, factory=factory, **told: factory.make(engine=engine, **{"device": "cpu"} if engine == "warp" else {}, **told), given=engine)
        flow = build(PPOConfig(made, num_envs=N, n_steps=6, max_episode_steps=4, batch_size=48, n_epochs=2, iterations=2, render=False))
        plan = ExecutionPlan.temporal(flow, ["cpu:0"], sub_batches={"simulator": halves})
        found.append(list(run(flow, plan, 2, executor="local").wait()))
    for one, two in zip(*found, strict=True):
        assert one.keys() == two.keys() and all(one[name] == pytest.approx(two[name], rel=5e-3, abs=1e-3) for name in one)


# --- bad input, the end -----------------------------------------------------------------------------------------------------
def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'mujoco'"):
        make_vec("warp/ArmReach-v0", 2, engine="mujocco")
    with pytest.raises(ConfigError, match="MuJoCo runs on cores"):
        make_vec("warp/ArmReach-v0", 2, engine="mujoco", device="cuda:0")
    with pytest.raises(ConfigError, match="device='tpu'"):
        make_vec("warp/ArmReach-v0", 2, device="tpu")
    env = mujoco("warp/ArmReach-v0", 2)
    with pytest.raises(EnvError, match=r"step\(\) before reset"):
        env.step(np.zeros((2, 7), np.float32))
    env.reset(seed=0)
    with pytest.raises(EnvError, match="not finite"):
        env.step(np.full((2, 7), np.nan, np.float32))
    if not torch.cuda.is_available():
        with pytest.raises(EnvError, match=r"Warp cannot use 'cuda:7' here"):
            make_vec("warp/ArmReach-v0", 2, device="cuda:7")


def test_a_state_that_diverged_ends_its_episode_alone() -> None:
    env = mujoco("warp/ArmPush-v0", 3)
    env.reset(seed=0)
    env._physics.qvel_NV[1, 2] = float("nan")
    step = env.step(np.zeros((3, 7), np.float32))
    assert step.truncated_N.tolist() == [False, True, False] and step.reward_N[1] == 0 and np.isfinite(step.obs_N).all()
    assert all(np.isfinite(env.step(action_N).obs_N).all() for action_N in actions(5, 3))


def test_numbers_at_random_are_splitmix() -> None:
    """Against the generator as its authors write it, in whole numbers without a sign."""
    from envs.warp.counted import uniform

    mask, gamma = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    found = uniform(torch.tensor([0, 7, 2**40]), torch.tensor([0, 3, 5]), 4)
    for row, (seed, episode) in zip(found.tolist(), [(0, 0), (7, 3), (2**40, 5)], strict=True):
        key = mixed((mixed((seed * gamma) & mask) + episode * gamma) & mask)
        assert row == [(mixed((key + k * gamma) & mask) >> 40) * 2.0**-24 for k in range(1, 5)]


def test_pictures_are_of_the_first_environment() -> None:
    env = mujoco("warp/ArmLift-v0", 2)
    if not env.spec.renders:
        pytest.skip("nothing to draw with")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 320, 3) and picture.std() > 5
    env.close()


@pytest.mark.gpu
def test_on_a_gpu_nothing_leaves_it_and_nothing_stays() -> None:
    """A step with torch's alarm for anything that waits for the GPU; afterwards Warp's memory is given back."""
    free = torch.cuda.mem_get_info()[0]
    for id in IDS:
        env = make_vec(id, 1024)
        assert env.spec.device == "cuda:0" and env.reset(seed=0).is_cuda
        action_N = torch.rand(1024, 7, device="cuda") * 2 - 1
        env.step(action_N)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(60):
                step = env.step(action_N)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(leaf.is_cuda for leaf in map_tree(lambda x: x, (step.obs_N, step.reward_N, step.truncated_N, step.success_N, step.final_obs_N)))
        env.close()
    del step, env, action_N
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] < 200 << 20


def test_mjlabs_lift_keeps_the_contract() -> None:
    check_env(lambda: make_vec("mjlab/Mjlab-Lift-Cube-Yam", 2, 4, device="cpu"))
    env = make_vec("mjlab/Mjlab-Lift-Cube-Yam", 2, 4, device="cpu")
    with pytest.raises(EnvError, match=r"step\(\) before reset"):
        env.step(np.zeros((2, 7), np.float32))
    assert isinstance(env.reset(seed=0), torch.Tensor) and env.spec.success and env.spec.device == "cpu"
    with pytest.raises(EnvError, match=r"actions have shape \(2, 3\); \(2, 7\) is needed"):
        env.step(np.zeros((2, 3), np.float32))
    env.close()
