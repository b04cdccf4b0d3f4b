"""ManiSkill stepped as a batch equals ManiSkill's own steps; saved, it goes on elsewhere to the last bit; building and resetting are
safe in threads and never ask at the prompt.

Each script runs in another process: the adapter may replace parts of SAPIEN, and other tests must not see that. Those of every day share one, without Vulkan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAD = """
import builtins, sys, threading
import numpy as np
from rlinf_lab.errors import EnvError
from rlinf_lab.vecenv import make_vec

TASK = sys.argv[1]
"""

# Random actions seldom meet the cube, so it is put where the interesting branches are: in front of the fingers, between them, on the goal.
EQUAL = (
    HEAD
    + """
import torch
from mani_skill.utils.structs import Pose

N = 3
batched, stock = make_vec("maniskill/" + TASK, N, 20), make_vec("maniskill/" + TASK, N, 20, batched=False)
assert type(batched).__name__ == "BatchedVecEnv" and type(stock).__name__ == "LoopVecEnv"
seen = {"moved": 0, "success": 0, "grasped": 0, "reached": 0, "ended": 0}

def put_cube(offset, at_goal=False):
    for vector in (batched, stock):
        for env in vector._envs:
            bare = env.stock
            cube = bare.cube if TASK.startswith("Pick") else bare.obj
            goal = bare.goal_site if TASK.startswith("Pick") else bare.goal_region
            place = (goal if at_goal else bare.agent.tcp).pose.p + torch.tensor([offset])
            cube.set_pose(Pose.create_from_pq(p=place))

def step(action):
    ours, theirs = batched.step(action), stock.step(action)
    for field in ("obs_N", "final_obs_N", "success_N", "truncated_N", "terminated_N"):
        a, b = getattr(ours, field), getattr(theirs, field)
        assert a.dtype == b.dtype and np.array_equal(a, b), (TASK, field, a, b)
    assert ours.reward_N.dtype == theirs.reward_N.dtype == np.float32
    assert np.abs(ours.reward_N - theirs.reward_N).max() <= 1e-7, (TASK, ours.reward_N, theirs.reward_N)
    seen["success"] += int(ours.success_N.sum())
    seen["ended"] += int(ours.truncated_N.sum())
    if TASK.startswith("Pick"):
        seen["grasped"] += int(ours.final_obs_N[:, 18].sum())
    else:
        seen["reached"] += int((~ours.success_N & (ours.reward_N > {"PushCube-v1": 1 / 4, "PullCube-v1": 1 / 3}[TASK])).sum())
    return ours

assert np.array_equal(batched.reset(seed=5), stock.reset(seed=5))
rng = np.random.default_rng(0)
for t in range(45):  # beyond the ends of two episodes, actions beyond the range
    step(rng.uniform(-1.2, 1.2, (N, 8)))

still, closing = np.zeros((N, 8)), np.zeros((N, 8))
still[:, 7], closing[:, 7] = 1.0, -1.0

batched.reset(seed=6), stock.reset(seed=6)
put_cube([0.0, 0.0, 0.02])  # between the fingers: they close on it, then the arm waves it about
before = step(closing).obs_N
for t in range(14):
    action = closing if t < 5 else np.concatenate([rng.uniform(-1, 1, (N, 7)), -np.ones((N, 1))], axis=1)
    after = step(action).final_obs_N
seen["moved"] = float(np.abs(after[:, 28:30] - before[:, 28:30]).max())

batched.reset(seed=7), stock.reset(seed=7)
side = {"PushCube-v1": 0.025, "PullCube-v1": -0.03, "PickCube-v1": 0.0}[TASK]
put_cube([side, 0.0, 0.012])
for t in range(3):
    step(still)
put_cube([0.0, 0.0, 0.0 if TASK.startswith("Pick") else 0.02], at_goal=True)
step(still), step(still)
batched.close(), stock.close()
print(seen)
needed = {"moved", "success", "ended", "grasped" if TASK.startswith("Pick") else "reached"}
assert all(seen[k] > 0.01 for k in needed), seen
"""
)

# The arm reaches down to the table and closes its fingers there: PhysX keeps contacts from step to step.
LEAVES = (
    HEAD
    + """
import pickle, subprocess
from rlinf_lab.vecenv import cannot_leave, check_env

N, HORIZON = 2, 25
batched = sys.argv[2] == "batched"
FIELDS = ("obs_N", "final_obs_N", "reward_N", "success_N", "truncated_N", "terminated_N")
make = lambda: make_vec("maniskill/" + TASK, N, HORIZON, batched=batched)

def walk(env, actions):
    return b"".join(getattr(step, field).tobytes() for step in map(env.step, actions) for field in FIELDS)

def actions(seed, steps):
    rng = np.random.default_rng(seed)
    found = rng.uniform(-1, 1, (steps, N, 8))
    found[..., 1], found[..., 3], found[..., 7] = 0.8, 0.3, np.where(rng.random((steps, N)) < 0.8, -1, 1)
    return found

if len(sys.argv) > 3:  # the other process
    state = pickle.load(open(sys.argv[3], "rb"))
    env = make()
    env.restore_state(state)
    print("went on", __import__("hashlib").sha256(walk(env, actions(3, 40))).hexdigest())
    sys.exit()

check_env(make)
env, used = make(), make()
assert cannot_leave(env) == ""
used.reset(seed=9)
walk(used, actions(8, 30))
for before in (0, 13, 25, 61):
    env.reset(seed=before)
    walk(env, actions(2, before))
    state = pickle.loads(pickle.dumps(env.save_state()))
    expected = walk(env, actions(3, 40))
    env.close()
    env = make()
    env.restore_state(state)
    assert walk(env, actions(3, 40)) == expected, (before, "new")
    used.restore_state(state)
    assert walk(used, actions(3, 40)) == expected, (before, "used")
import tempfile, hashlib
with tempfile.NamedTemporaryFile() as file:
    pickle.dump(state, file)
    file.flush()
    done = subprocess.run([sys.executable, "-c", sys.stdin.read(), *sys.argv[1:], file.name], capture_output=True, text=True)
assert done.stdout.split()[-1:] == [hashlib.sha256(expected).hexdigest()], done.stdout + done.stderr[-1000:]
"""
)

THREADS = (
    HEAD
    + """
K, SEEDS = 3, range(25)
alone = make_vec("maniskill/" + TASK, 2, 5)
expected = [alone.reset(seed=s) for s in SEEDS]
screen, prompt, built, found = sys.stdout, builtins.input, {}, {}

def in_threads(work):
    threads = [threading.Thread(target=work, args=(k,)) for k in range(K)]
    [t.start() for t in threads], [t.join() for t in threads]

in_threads(lambda k: built.update({k: make_vec("maniskill/" + TASK, 2, 5)}))
assert sys.stdout is screen and builtins.input is prompt
in_threads(lambda k: found.update({k: [built[k].reset(seed=s) for s in SEEDS]}))
assert all(np.array_equal(a, b) for k in range(K) for a, b in zip(found[k], expected, strict=True))
"""
)

ASSETS = (
    HEAD
    + """
asked = []
builtins.input = lambda prompt="": asked.append(prompt) or "n"
try:
    make_vec("maniskill/" + TASK, 1)
except EnvError as error:
    text = str(error)
    assert "needs assets" in text and f"download_asset {TASK}" in text, text
else:
    print("assets are here")
assert not asked
"""
)

# Where there is no GPU: its vector over the only environment that ManiSkill's other backend steps, which hands over tensors in the same way.
GPU = (
    HEAD
    + """
import torch
from envs.maniskill import _simulator, gpu

for told, wanted in (("cuda:0", "libPhysXGpu_64.so"), ("gpu", "'cuda:0', or None for cores")):
    try:
        make_vec("maniskill/" + TASK, 2, device=told)
    except (ImportError, ValueError) as error:
        assert wanted in str(error), error
    else:
        raise AssertionError(told)

stock = make_vec("maniskill/" + TASK, 1, 6, batched=False)
bare = _simulator()[0].make(TASK, num_envs=1, obs_mode="state", control_mode="pd_joint_delta_pos", sim_backend="physx_cpu", render_backend="none")
ours = gpu.BatchedGpuVecEnv(bare, TASK, 1, 6, "cpu")
stock.reset(seed=3)
first = ours.reset(seed=stock._envs[0]._began)
assert torch.equal(first, torch.as_tensor(np.array(stock._envs[0]._env.unwrapped._last_obs)))
rng = np.random.default_rng(0)
for t in range(1, 15):
    action = rng.uniform(-1.2, 1.2, (1, 8)).astype(np.float32)
    step, theirs = ours.step(torch.as_tensor(action)), stock.step(action)
    assert (step.final_obs_N.shape, step.obs_N.dtype) == ((1, *ours.spec.observation_space.shape), torch.float32)
    assert not step.terminated_N.any() and bool(step.truncated_N) == (t % 6 == 0) == bool(theirs.truncated_N)
    assert torch.equal(step.obs_N, step.final_obs_N) != bool(step.truncated_N)
    if t <= 6:  # the next episode is another one here and there
        assert np.array_equal(step.final_obs_N.numpy(), theirs.final_obs_N) and np.array_equal(step.reward_N.numpy(), theirs.reward_N)
        assert np.array_equal(step.success_N.numpy(), theirs.success_N)
"""
)


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], input=script, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return done.stdout


CONTRACT = (
    HEAD
    + """
from rlinf_lab.vecenv import check_env
for task in sys.argv[1:]:
    check_env(lambda: make_vec(f"maniskill/{task}", 2, 6))
env = make_vec("maniskill/PushCube-v1", 1)
assert (env.spec.observation_space.shape, env.spec.action_space.shape, env.spec.max_episode_steps) == ((35,), (8,), 50), env.spec
try:
    make_vec("maniskill/PushCub-v1")
except LookupError as error:
    assert "Did you mean 'maniskill/PushCube-v1'" in str(error)
print("kept", env.spec.renders)
"""
)

IN_TURN = """
import contextlib, io, json, sys, traceback
told = {}
for name, script in json.loads(sys.argv[1]).items():
    sys.argv[1:], said = ["PushCube-v1"], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(script, name, "exec"), {"__name__": "__main__"})
        told[name] = ["", said.getvalue()]
    except BaseException:
        told[name] = [traceback.format_exc(), said.getvalue()]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each of them has raised, and said, in a home without files of SAPIEN."""
    away = {name: value for name, value in os.environ.items() if name != "RLINF_LAB_VULKAN"}
    around = {**away, "VK_ICD_FILENAMES": "/nonexistent.json", "HOME": str(tmp_path_factory.mktemp("home")), "OMP_NUM_THREADS": "1"}
    scripts = json.dumps({"contract": CONTRACT, "equal": EQUAL, "gpu": GPU})
    done = subprocess.run([sys.executable, "-c", IN_TURN, scripts], capture_output=True, text=True, env=around, timeout=280)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_maniskill_keeps_the_contract_without_vulkan(found: dict[str, list[str]]) -> None:
    error, said = found["contract"]
    assert not error and said == "kept False\n", error


@pytest.mark.long
def test_maniskill_keeps_the_contract_with_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLINF_LAB_VULKAN", raising=False)
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    tasks = ["PickCube-v1", "PullCube-v1", "RollBall-v1", "MS-CartpoleBalance-v1"]  # the last two one by one, as ManiSkill does
    assert run(CONTRACT, *tasks).strip().split("\n")[-1] in ("kept True", "kept False")


def test_a_batch_equals_the_stock_environments(found: dict[str, list[str]]) -> None:
    assert not found["equal"][0]


def test_the_mode_of_a_gpu_names_the_file_that_it_lacks_and_steps_as_the_stock_environments(found: dict[str, list[str]]) -> None:
    assert not found["gpu"][0]


@pytest.mark.parametrize("task", [pytest.param("PullCube-v1", marks=pytest.mark.slow), pytest.param("PickCube-v1", marks=pytest.mark.long)])
def test_a_batch_of_other_tasks_equals_the_stock_environments(task: str) -> None:
    run(EQUAL, task)


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "how"),
    [("PickCube-v1", "batched"), pytest.param("PushCube-v1", "batched", marks=pytest.mark.slow), pytest.param("PickCube-v1", "stock", marks=pytest.mark.slow)],
)
def test_it_goes_on_where_it_was_saved(task: str, how: str) -> None:
    run(LEAVES, task, how)


@pytest.mark.long
def test_threads_get_the_resets_that_one_alone_gets() -> None:
    run(THREADS, "PushCube-v1")


@pytest.mark.long
def test_a_missing_asset_is_named_and_nobody_is_asked(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    monkeypatch.delenv("MS_SKIP_ASSET_DOWNLOAD_PROMPT", raising=False)
    assert "assets are here" not in run(ASSETS, "PickSingleYCB-v1")
