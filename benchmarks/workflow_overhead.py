"""What workflow, recorder and engine cost on top of a bare loop: the same PPO on the same task, one core each."""

from __future__ import annotations

import time

import bare_ppo
from harness import Case

from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.ray_executor import shutdown
from rlinf_lab.runtime.run import session

TASK = "metaworld/button-press-v3"


def workflow_steps_per_second(iterations: int, executor: str, ranks: int) -> float:
    """After one iteration of warming up."""
    config = PPOConfig.preset(TASK)
    flow = build(config)
    devices = ["cpu:0", "cpu:1"][:ranks]
    plan = ExecutionPlan.fused_cells(flow, devices, {"simulator": ranks})
    with session(flow, plan, executor) as s:
        s.step("train")
        start = time.perf_counter()
        for _ in range(iterations):
            s.step("train")
        return iterations * config.env_steps / (time.perf_counter() - start)


def bare_steps_per_second(iterations: int) -> float:
    settings = bare_ppo.Settings(steps=800 * iterations)
    start = time.perf_counter()
    bare_ppo.train(settings)
    return settings.steps / (time.perf_counter() - start)


def cases(smoke: bool) -> list[Case]:
    iterations = 1 if smoke else 10
    bare = {"bare loop, one process": lambda: bare_steps_per_second(iterations)}
    found = [
        Case("workflow_local_one_core", "steps/s", lambda: workflow_steps_per_second(iterations, "local", 1), bare, runs=5, note="same core, threads"),
    ]
    if not smoke:
        found.append(Case("workflow_ray_two_cores", "steps/s", _on_ray, bare, runs=3, note="fused plan, two device hosts; the peer has one core"))
    return found


def _on_ray() -> float:
    try:
        return workflow_steps_per_second(10, "ray", 2)
    finally:
        shutdown()


