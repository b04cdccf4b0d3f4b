"""Environment steps a second of the runners, through ``VecEnv.step``, against the vectors that people use.

Actions are drawn beforehand, uniformly; episodes end and begin as they do. Where a row says CPU, steps are counted per second of the processor and not
of the clock, so that a busy machine does not tell.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bare_sapien
import gymnasium
import numpy as np
import psutil
from harness import Case

import rlinf_lab as lab
from rlinf_lab.vecenv.spaces import sampled

SETS = 32  # of actions, used in turn


class Stepper:
    """Steps one vector; ours take actions in [-1, 1], bare ones their own."""

    def __init__(self, env: Any, steps: int, cpu: bool = False) -> None:
        self.env, self.steps, self.clock = env, steps, time.process_time if cpu else time.perf_counter
        space = env.spec.action_space if hasattr(env.spec, "action_space") else env.single_action_space
        self.actions = [sampled(space, np.random.default_rng(k), env.num_envs) for k in range(SETS)]

    def __call__(self) -> float:
        """Environment steps a second."""
        env, actions = self.env, self.actions
        start = self.clock()
        for t in range(self.steps):
            env.step(actions[t % SETS])
        return self.steps * env.num_envs / (self.clock() - start)


def ours(id: str, num_envs: int, steps: int, cpu: bool = False, **told: Any) -> Stepper:
    env = lab.envs.make_vec(id, num_envs, **told)
    env.reset(seed=0)
    return Stepper(env, steps, cpu)


def sync(id: str, num_envs: int, steps: int, cpu: bool = False) -> Stepper:
    env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(id)] * num_envs)
    env.reset(seed=0)
    return Stepper(env, steps, cpu)


def asynchronous(id: str, num_envs: int, steps: int) -> Stepper:
    env = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make(id)] * num_envs)
    env.reset(seed=0)
    return Stepper(env, steps)


def bare_envpool(id: str, num_envs: int, steps: int, cpu: bool = False, threads: int = 1, **told: Any) -> Stepper:
    import envpool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = envpool.make_gymnasium(id, num_envs=num_envs, num_threads=threads, **told)
    env.reset()
    return Stepper(_Plain(env, num_envs), steps, cpu)


class _Plain:
    """EnvPool's vector has a spec of its own."""

    def __init__(self, env: Any, num_envs: int) -> None:
        self.step, self.num_envs, self.single_action_space, self.spec = env.step, num_envs, env.action_space, None


# --- start and memory -------------------------------------------------------------------------------------------------------
def memory() -> float:
    """MiB of this process and those it has started that no other process shares."""
    process = psutil.Process()
    return sum(p.memory_full_info().uss for p in (process, *process.children(recursive=True))) / 2**20


@contextmanager
def made(num_envs: int, **told: Any) -> Iterator[tuple[Any, float, float]]:
    """A vector of CartPole, the seconds until its first observation, and the MiB that it takes."""
    gc.collect()
    before, start = memory(), time.perf_counter()
    env = lab.envs.make_vec("CartPole-v1", num_envs, **told)
    env.reset(seed=0)
    try:
        yield env, time.perf_counter() - start, memory() - before
    finally:
        env.close()


def start_seconds(num_envs: int, **told: Any) -> float:
    with made(num_envs, **told) as (_, seconds, _):
        return seconds


def mebibytes(num_envs: int, **told: Any) -> float:
    """In a process that has done nothing else: memory that was freed before would be used again."""
    code = f"import simulators as s\ns.lab.envs.make_vec('CartPole-v1', 1).close()\nwith s.made({num_envs}, **{told!r}) as (_, _, m): print(m)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def growth(num_envs: int, episodes: int, **told: Any) -> float:
    """MiB more after so many episodes than after a tenth of them."""
    with made(num_envs, **told) as (env, _, _):
        actions = [sampled(env.spec.action_space, np.random.default_rng(k), num_envs) for k in range(SETS)]
        ended, steps, early = 0, 0, None
        while ended < episodes:
            step = env.step(actions[steps % SETS])
            ended, steps = ended + int((step.terminated_N | step.truncated_N).sum()), steps + 1
            if early is None and ended >= episodes / 10:
                gc.collect()
                early = memory()
        gc.collect()
        return memory() - (early or 0.0)


# --- rows -------------------------------------------------------------------------------------------------------------------
def processes(smoke: bool) -> list[Case]:
    steps = 20 if smoke else 2000
    one = ours("CartPole-v1", 8, steps, runner="processes")
    two = ours("CartPole-v1", 8, steps, runner="processes", cores=2)
    return [
        Case(
            "cartpole_processes", "steps/s", one, target=">= 5", runs=7,
            peers={"gymnasium async": asynchronous("CartPole-v1", 8, steps // 4 or 1)}, note="n=8 in one process, whose runner is numpy",
        ),
        Case("cartpole_processes_sync", "steps/s", one, target=">= 1", runs=7, peers={"gymnasium sync": sync("CartPole-v1", 8, steps)}, note="the same"),
        Case("cartpole_two_processes", "steps/s", two, runs=7, peers={"gymnasium sync": sync("CartPole-v1", 8, steps)}, note="n=8 in two processes"),
    ]  # fmt: skip


def numpy_native(smoke: bool) -> list[Case]:
    steps = 20 if smoke else 4000
    return [
        Case(
            f"numpy_native_{task.split('-')[0].lower()}_{n}", "steps/s", ours(task, n, steps, runner="numpy"), target=f">= {target}", target_of="value", runs=7,
            peers={"EnvPool": bare_envpool(task, n, steps // 4 or 1), "gymnasium sync": sync(task, n, steps // 40 or 1)},
            note="resets included; EnvPool with one thread; equal to gymnasium within 1e-6 over 500 steps (a test)",
        )
        for task, n, target in (("CartPole-v1", 64, 1_300_000), ("CartPole-v1", 256, 2_000_000), ("Pendulum-v1", 256, 1_000_000))
    ]  # fmt: skip


def mujoco(smoke: bool) -> list[Case]:
    n, steps = (2, 3) if smoke else (16, 60)
    rows = []
    for task in ("HalfCheetah-v5", "Ant-v5"):
        name, bare = task.split("-")[0].lower(), bare_envpool(task, n, steps, cpu=True)
        rows += [
            Case(
                f"mujoco_runner_{name}", "steps/CPU s", ours(task, n, steps, cpu=True, runner="mujoco"), target=">= 1.3", runs=7,
                peers={"gymnasium sync": sync(task, n, steps, cpu=True), "EnvPool": bare}, note="n=16, one thread each",
            ),
            Case(
                f"envpool_adapter_{name}", "steps/CPU s", ours(f"envpool/{task}", n, steps, cpu=True), target=">= 0.95", runs=41,
                peers={"EnvPool": bare},
                note="n=16, one thread each; 10 µs of anything between two steps cost EnvPool 40 µs more, for its thread has gone to sleep meanwhile",
            ),
        ]  # fmt: skip
    return rows


def metaworld(smoke: bool) -> list[Case]:
    n, limit = (2, 3) if smoke else (16, 200)
    return [
        Case(
            f"metaworld_runner_{task}", "steps/CPU s", ours(f"metaworld/{task}-v3", n, limit, cpu=True, max_episode_steps=limit), target=f">= {target}", runs=3,
            peers={
                "metaworld's classes in the loop": ours(f"metaworld/{task}-v3", n, limit, cpu=True, max_episode_steps=limit, stock=True),
                "EnvPool adapter": ours(f"envpool/MetaWorld/{theirs}-v3", n, limit, cpu=True, max_episode_steps=limit),
            },
            note="n=16, a reset every 200 steps included; the same numbers to the last bit (a test)",
        )
        for task, theirs, target in (("reach", "Reach", 1.5), ("pick-place", "PickPlace", 2.5), ("button-press", "ButtonPress", 1.1))
    ]  # fmt: skip


def maniskill(smoke: bool) -> list[Case]:
    n, steps = (2, 3) if smoke else (16, 100)

    def started(task: str) -> tuple[Callable[[], float], Callable[[], float]]:
        """Ours and the floor: their processes are started when the row is measured, and end with it."""
        running: dict[str, Any] = {}

        def ours_now() -> float:
            if not running:
                running.update(ours=ours(f"maniskill/{task}", n, steps, runner="processes", cores=2), floor=bare_sapien.Floor(task, n, 2))
            return float(running["ours"]())

        def floor_now() -> float:
            return float(running["floor"]())

        return ours_now, floor_now

    def of_one_core(task: str) -> Case:
        """Made when it is measured."""
        made: dict[str, Callable[[], float]] = {}

        def ours_now() -> float:
            return (made.get("ours") or made.setdefault("ours", ours(f"maniskill/{task}", n // 2, steps, cpu=True)))()

        def floor_now() -> float:
            return (made.get("floor") or made.setdefault("floor", bare_sapien.per_cpu_second(task, n // 2)))()

        return Case(
            f"maniskill_core_{task.split('-')[0].lower()}", "steps/CPU s", ours_now, peers={"SAPIEN's physics alone": floor_now}, runs=15,
            note=f"n={n // 2} in one process; two such processes on two cores would need 2,500 each for 5,000; the peer goes through the same scenes",
        )  # fmt: skip

    rows = []
    for task in ("PushCube-v1", "PickCube-v1")[: 1 if smoke else 2]:
        rows.append(of_one_core(task))
        measured, floor = started(task)
        rows.append(
            Case(
                f"maniskill_cpu_{task.split('-')[0].lower()}", "steps/s", measured, target=">= 5000", target_of="value", runs=9,
                peers={"SAPIEN's physics alone": floor},
                note="n=16 in two processes on two cores; the peer drives the same scenes through a recorded walk in two processes, to the same places "
                "to the last bit, and does nothing else",
            )
        )  # fmt: skip
    return rows


def start_and_memory(smoke: bool) -> list[Case]:
    n, episodes = (4, 50) if smoke else (64, 10_000)
    kinds: dict[str, dict[str, Any]] = {"numpy": {"runner": "numpy"}, "loop": {"runner": "loop"}, "processes": {"runner": "processes", "cores": 2}}
    rows = []
    for name, told in kinds.items():
        rows += [
            Case(f"startup_{name}", "s", lambda t=told: start_seconds(n, **t), runs=3, note=f"{n} CartPole, until the first observation"),
            Case(f"memory_{name}", "MiB", lambda t=told: mebibytes(n, **t), runs=3, note=f"{n} CartPole, memory that no other process shares"),
        ]
        rows.append(
            Case(
                f"memory_growth_{name}", "MiB", lambda t=told: growth(n, episodes, **t), target="<= 1", target_of="value", runs=1,
                note=f"from {episodes // 10:,} to {episodes:,} episodes",
            )
        )  # fmt: skip
    return rows


def cases(smoke: bool) -> list[Case]:
    return [*processes(smoke), *numpy_native(smoke), *mujoco(smoke), *metaworld(smoke), *start_and_memory(smoke), *maniskill(smoke)]
