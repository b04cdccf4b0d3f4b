"""Learning curves of the PPO recipe over seeds, on the local executor: one device, or with ``--staleness`` two.

    python benchmarks/ppo_seeds.py --seeds 0 1 2 3 4
    python benchmarks/ppo_seeds.py --env numpy/ReachArm-v0 --seeds 0 --set iterations=40
    python benchmarks/ppo_seeds.py --staleness 1 --seeds 0 1     # collects with a policy that is an update behind, while the learner learns

Prints one JSON line a seed: greedy success on fresh seeds before and after, and the environment steps and seconds after which
the mean success (at the episode's end) of the last three iterations reached 90 and 95 %.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from typing import Any

import numpy as np

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Iteration, Session
from rlinf_lab.workflow.workflow import Workflow


def plan_for(flow: Workflow, staleness: int) -> ExecutionPlan:
    """All on one device; with staleness the learner has one of its own."""
    if not staleness:
        return ExecutionPlan.temporal(flow, ["cpu:0"])
    return ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"simulator": [0], "policy": [0], "learner": [1]}, staleness=staleness)


def learn(config: PPOConfig, staleness: int = 0) -> dict[str, Any]:
    flow = build(config)
    executor = LocalExecutor(flow, plan_for(flow, staleness), emulate=True)
    executor.start()
    try:
        session = Session(executor)
        before = session.step("evaluate")
        start, rates, behind, reached = time.perf_counter(), [], [], {}
        started: deque[Iteration] = deque()
        for i in range(config.updates + staleness):
            if i < config.updates:
                started.append(session.submit())
            if len(started) <= staleness and i < config.updates:
                continue
            metrics = started.popleft().wait()
            behind.append(metrics["staleness"])
            rates.append(metrics.get("success_rate", np.nan))
            for goal in (0.90, 0.95):
                if goal not in reached and len(rates) > 2 and np.nanmean(rates[-3:]) >= goal:
                    reached[goal] = (int(metrics["env_steps"]), round(time.perf_counter() - start, 1))
        seconds = time.perf_counter() - start
        after = session.step("evaluate")
    finally:
        executor.stop()
    return {
        "env": config.factory.id, "seed": config.seed, "before": before["success_rate"], "after": after["success_rate"],
        "episodes": after["episodes"], "return_before": before["return"], "return_after": after["return"],
        "reached": reached, "env_steps": int(metrics["env_steps"]), "seconds": round(seconds, 1), "staleness": staleness,
        "mean_staleness": float(np.mean(behind)), "worst_staleness": max(behind),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Learning curves of the PPO recipe over seeds.")
    parser.add_argument("--env", default="metaworld/button-press-v3")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--staleness", type=int, default=0, help="iterations that may be unfinished when one begins")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of PPOConfig, values as JSON")
    arguments = parser.parse_args()
    overrides = {key: json.loads(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    for seed in arguments.seeds:
        print(json.dumps(learn(PPOConfig.preset(arguments.env, seed=seed, **overrides), arguments.staleness)), flush=True)


if __name__ == "__main__":
    main()
