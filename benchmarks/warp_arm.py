"""Simulators on one GPU: the arm on MuJoCo Warp through the socket, PPO with everything on the GPU, and the three ways to share it. In make env-warp.

    python benchmarks/harness.py warp_arm            on a GPU machine, at full size
    python benchmarks/harness.py warp_arm --smoke    on cores too, at a tiny size: whether it runs

Compilation is apart: everything has stepped before it is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from harness import Case
from prediction_error import Point, compared

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build

ON_GPU = torch.cuda.is_available()
HOME = "cuda:0" if ON_GPU else "cpu:0"
STREAMS = [f"{HOME}.1", f"{HOME}.2"]  # shares of it, which work at the same time
SECONDS = 4.0
SEEDS = 3
GOAL = 0.9  # of the episodes that end in an iteration


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def made(task: str, num_envs: int) -> Any:
    return lab.envs.make_vec(f"warp/Arm{task}-v0", num_envs, engine="warp", **({} if ON_GPU else {"device": "cpu"}))


def rate(work: Callable[[], None], num_envs: int, seconds: float) -> float:
    """Environment steps a second."""
    work()
    wait()
    done, start = 0, time.perf_counter()
    while done < 2 or time.perf_counter() - start < seconds:
        for _ in range(4 if ON_GPU else 1):
            work()
            done += 1
        wait()
    return num_envs * done / (time.perf_counter() - start)


def warp_sim(smoke: bool) -> list[Case]:
    sizes, seconds = ((16,), 0.0) if smoke else ((1024, 4096, 16_384), SECONDS)
    rows = []
    for task in ("Reach",) if smoke else ("Reach", "Push", "Lift"):
        for n in sizes:

            @cache
            def env(task: str = task, n: int = n) -> Any:
                vector = made(task, n)
                vector.reset(seed=0)
                return vector

            def ours(env: Any = env, n: int = n) -> float:
                action_N = 2 * torch.rand(n, 7, device=env().spec.device) - 1
                return rate(lambda: env().step(action_N), n, seconds)

            def bare(env: Any = env, n: int = n) -> float:
                return rate(env()._physics.advance, n, seconds)  # the simulator alone: no control, reward, reset or observation

            target = ">= 0.9" if not smoke else ""
            rows.append(Case(f"warp_sim_{task.lower()}_{n}", "steps/s", ours, {"physics alone": bare}, target, runs=3, note="8 steps of physics an action"))
    return rows


def seconds_to_learn(task: str, seed: int, smoke: bool) -> float:
    """Of all iterations until 90 % succeed at the episode's end, kernels compiled; infinite where it does not get there."""
    settings: dict[str, Any] = {"num_envs": 16, "n_steps": 4, "batch_size": 32, "iterations": 1} if smoke else {"until": {"success_rate": GOAL}}
    done = lab.train("ppo", f"warp/Arm{task}-v0", plan=None, folder=False, progress=False, seed=seed, **settings).wait()
    reached = smoke or bool((done.metrics["success_rate"] >= GOAL).any())
    return float(done.metrics["seconds"].sum()) if reached else float("inf")


def warp_ppo(smoke: bool) -> list[Case]:
    rows = []
    for task, target in (("Reach", 6), ("Push", 15)):
        seeds = iter(range(SEEDS))
        rows.append(
            Case(
                f"warp_ppo_{task.lower()}", "s", lambda task=task, seeds=seeds: seconds_to_learn(task, next(seeds), smoke), target=f"<= {target}",
                target_of="value", runs=SEEDS, note="4,096 environments, until 90 % succeed at the episode's end, one seed a run",
            )
        )  # fmt: skip
    return rows[:1] if smoke else rows


# --- ways to share one GPU --------------------------------------------------------------------------------------------------
def plans(flow: lab.Workflow) -> list[ExecutionPlan]:
    """Two halves of the environments: answered together; in turn; in turn on another stream; and by a policy that is one unit with the simulator.

    All others are predicted from the first.
    """
    halves = {"simulator": 2}
    places = {"simulator": [0], "policy": [1], "learner": [1]}
    return [
        ExecutionPlan.temporal(flow, [HOME], sub_batches=halves, micro_batches={"obs": 2}),
        ExecutionPlan.temporal(flow, [HOME], name="hybrid", sub_batches=halves, micro_batches={"obs": 1}),
        ExecutionPlan.spatial(flow, STREAMS, places, sub_batches=halves, micro_batches={"obs": 1}),
        ExecutionPlan.fused_cells(flow, [HOME], name="fused", sub_batches=halves, micro_batches={"obs": 1}),
    ]


@cache
def points(smoke: bool) -> list[Point]:
    changed = {} if ON_GPU and not smoke else {"num_envs": 16, "n_steps": 4, "batch_size": 32}
    flow = build(PPOConfig.preset("warp/ArmPush-v0", render=False, **changed))
    with lab.profiling.Crowd("local", STREAMS, flow) as crowd:  # how much two streams slow each other down
        for _ in range(2 if smoke else 12):
            crowd.round()
    return compared("warp", flow, iter(plans(flow)), 2 if smoke else 12, crowding=crowd.factors())


def error(smoke: bool) -> float:
    """The largest, of the iteration's seconds, in per cent."""
    return 100 * max(point.error for point in points(smoke))


def is_ordered(smoke: bool) -> float:
    """1 where the plans are in the same order by prediction and by measurement, but for such as are within 3 %."""
    found = points(smoke)
    pairs = [(a, b) for a in found for b in found if a.measured > 1.03 * b.measured]
    return float(all(a.predicted > b.predicted for a, b in pairs))


def warp_plans(smoke: bool) -> list[Case]:
    note = "push with PPO on one GPU: temporal measured; halves in turn, on two streams, and fused predicted from it, then run"
    return [
        Case("warp_plans_error", "%", lambda: error(smoke), target="<= 10", target_of="value", runs=1, note=note),
        Case("warp_plans_order", "", lambda: is_ordered(smoke), target=">= 1", target_of="value", runs=1, note=note),
    ]


def cases(smoke: bool) -> list[Case]:
    return [*warp_sim(smoke), *warp_ppo(smoke), *warp_plans(smoke)]
