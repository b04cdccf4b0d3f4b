"""What workflow, recorder and engine cost on top of a bare loop: the same PPO on the same task, one core each."""

from __future__ import annotations

import time

import bare_ppo
import kernel_cell
from harness import Case

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.executors.ray_start import shutdown
from rlinf_lab.runtime.run.run import session

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


CELL = """
import rlinf_lab as lab
from rlinf_lab.recipes.ppo import PPOConfig, build
config = PPOConfig.preset({task!r})
flow = build(config)
run = lab.run(flow, lab.ExecutionPlan.fused_cells(flow, ["cpu:0"], {{"simulator": 1}}), {iterations} + 1, "local")
run.wait()
print("STEPS", {iterations} * config.env_steps / run.metrics["seconds"].iloc[1:].sum())
"""


def notebook_steps_per_second(iterations: int) -> float:
    """In a Jupyter kernel, with the live dashboard fed eight times a second; what a browser draws costs other cores, or other machines."""
    return float(kernel_cell.printed(CELL.format(task=TASK, iterations=iterations)).split("STEPS")[1])


def bare_steps_per_second(iterations: int, processes: int) -> float:
    """Training only: neither building the environments nor an evaluation counts on either side."""
    config = PPOConfig.preset(TASK)
    settings = bare_ppo.Settings(
        steps=config.env_steps * (iterations + 1), num_envs=config.num_envs, rollout=config.n_steps, epochs=config.n_epochs,
        minibatch=config.batch_size, horizon=config.max_episode_steps, eval_episodes=0, processes=processes,
    )  # fmt: skip
    seconds = [row["seconds"] for row in bare_ppo.train(settings)["curve"][1:]]
    return iterations * config.env_steps / sum(seconds)


def cases(smoke: bool) -> list[Case]:
    iterations = 1 if smoke else 12
    found = [
        Case(
            "workflow_local_one_core", "steps/s", lambda: workflow_steps_per_second(iterations, "local", 1),
            {"bare loop, one process": lambda: bare_steps_per_second(iterations, 1)}, ">= 0.95", runs=7, note="fused plan, threads; recorder and pictures on",
        ),
    ]  # fmt: skip
    found.append(
        Case(
            "workflow_in_a_notebook", "steps/s", lambda: notebook_steps_per_second(iterations),
            {"bare loop, one process": lambda: bare_steps_per_second(iterations, 1)}, ">= 0.9", runs=7,
            note="fused plan, threads of a kernel; recorder, timeline, pictures and live dashboard on, no browser",
        )
    )  # fmt: skip
    if not smoke:
        found.append(
            Case(
                "workflow_ray_two_cores", "steps/s", lambda: _on_ray(iterations),
                {"bare loop, two processes": lambda: bare_steps_per_second(iterations, 2)}, ">= 0.95", runs=7,
                note="fused plan, two device hosts of Ray; recorder and pictures on",
            )
        )  # fmt: skip
    return found


def _on_ray(iterations: int) -> float:
    try:
        return workflow_steps_per_second(iterations, "ray", 2)
    finally:
        shutdown()
