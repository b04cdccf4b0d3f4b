"""GRPO on a model made here: what it gains over its supervised warm-up on held-out problems, and what it costs.

    python benchmarks/grpo_small_model.py --seeds 0 1 2 3 4
    python benchmarks/grpo_small_model.py --seeds 0 --random-rewards --set iterations=40

Prints one JSON line a seed: accuracy of sampled answers on 1,000 problems of the test split before and after (temperature
1, no problem of the train split among them), and CPU seconds of everything: warm-up, generation, learning, evaluation.
The recipe runs on the local executor, all workers on one core. The control gives rewards that are a coin's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from typing import Any

import numpy as np
from harness import Case

import rlinf_lab as lab
from rlinf_lab.recipes.grpo import GRPOConfig, build
from rlinf_lab.tasks import Problem

TASK = "reasoning/sorting"
SEEDS = (0, 1, 2, 3, 4)


def coin(problem: Problem, text: str) -> float:
    """A reward that says nothing about the answer, the same for the same answer."""
    return float(hashlib.blake2b(f"{problem.prompt}{text}".encode(), digest_size=1).digest()[0] & 1)


def learn(seed: int, *, random_rewards: bool = False, **overrides: Any) -> dict[str, Any]:
    """One seed: warm-up, evaluation, GRPO, evaluation. CPU seconds of this process, which does all of it."""
    config = GRPOConfig.preset(TASK, seed=seed, reward=coin if random_rewards else None, **overrides)
    start = time.process_time()
    flow = build(config)
    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as session:
        before = session.step("evaluate")
        warm = time.process_time() - start
        rewards = [session.step("train")["reward"] for _ in range(config.updates)]
        learnt = time.process_time() - start
        after = session.step("evaluate")
    return {
        "task": TASK, "seed": seed, "random_rewards": random_rewards, "before": before["reward"], "after": after["reward"],
        "points": round(100 * (after["reward"] - before["reward"]), 1), "samples": before["samples"], "iterations": config.updates,
        "response_tokens": [before["response_tokens"], after["response_tokens"]], "train_reward": [rewards[0], float(np.mean(rewards[-5:]))],
        "warm_up_cpu_s": round(warm, 1), "cpu_s": round(learnt, 1),
    }  # fmt: skip


def worst(rows: list[dict[str, Any]], key: str, best: bool = False) -> float:
    return (max if best else min)(row[key] for row in rows)


def cases(smoke: bool) -> list[Case]:
    """The worst of the seeds counts."""
    small = {"iterations": 2, "warm_up_steps": 2} if smoke else {}
    seeds = SEEDS[:1] if smoke else SEEDS
    rows: dict[bool, list[dict[str, Any]]] = {}

    def of(random_rewards: bool) -> list[dict[str, Any]]:
        if random_rewards not in rows:
            rows[random_rewards] = [learn(s, random_rewards=random_rewards, **small) for s in seeds[: 1 if random_rewards else None]]
        return rows[random_rewards]

    note = f"{TASK}, 1,000 held-out problems, temperature 1, {len(seeds)} seeds, the worst of them; one core, warm-up included"
    return [
        Case("accuracy gained over the warm-up", "points", lambda: worst(of(False), "points"), target=">= 25", target_of="value", runs=1, note=note),
        Case("CPU time of a seed", "s", lambda: worst(of(False), "cpu_s", best=True), target="<= 180", target_of="value", runs=1, note=note),
        Case("the same with random rewards", "points", lambda: worst(of(True), "points", best=True), target="<= 5", target_of="value", runs=1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO on a small model over seeds.")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--random-rewards", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of GRPOConfig, values as JSON")
    arguments = parser.parse_args()
    overrides = {key: json.loads(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    for seed in arguments.seeds:
        print(json.dumps(learn(seed, random_rewards=arguments.random_rewards, **overrides)), flush=True)


if __name__ == "__main__":
    main()
