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
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case

import rlinf_lab as lab
from rlinf_lab.recipes.grpo import GRPOConfig, build
from rlinf_lab.tasks import Problem

TASK = "reasoning/sorting"
SEEDS = (0, 1, 2, 3, 4)
PPO = "ppo"
"""as many answers and updates; each prompt once, and a critic instead of the group's mean"""
FIRST = "reasoning/remainder"
"""what the front door's example trains"""
KEPT = os.environ.get("GRPO_SEEDS", "")
"""folder with seeds that `--keep` has finished; the harness takes them from there"""


def coin(problem: Problem, text: str) -> float:
    """A reward that says nothing about the answer, the same for the same answer."""
    return float(hashlib.blake2b(f"{problem.prompt}{text}".encode(), digest_size=1).digest()[0] & 1)


def learn(
    seed: int, *, task: str = TASK, variant: str = "", random_rewards: bool = False, keep: Keep | None = None, **overrides: Any
) -> dict[str, Any] | None:  # fmt: skip
    """One seed: warm-up, evaluation, GRPO, evaluation. CPU seconds of this process, which does all of it.

    None: the time was over; what has been learnt is kept, and the next call goes on.
    """
    named = {"env": task} if variant else {}
    config = GRPOConfig.preset(variant or task, **named, seed=seed, reward=coin if random_rewards else None, **overrides)
    had = keep.load() if keep is not None else None
    if had is not None and "done" in had:
        return had["done"]
    start = time.process_time() - (had["cpu_s"] if had else 0.0)
    flow = build(config, had["state"] if had else None)
    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as session:
        before = had["before"] if had else session.step("evaluate")
        warm = had["warm_s"] if had else time.process_time() - start
        rewards = had["rewards"] if had else []
        while len(rewards) < config.updates:
            rewards.append(session.step("train")["reward"])
            if keep is not None and keep.over:
                state = session.step("state")
                keep.save({"state": state, "before": before, "rewards": rewards, "warm_s": warm, "cpu_s": time.process_time() - start})
                return None
        learnt = time.process_time() - start
        after = session.step("evaluate")
    row = {
        "task": task, "critic": config.critic, "seed": seed, "random_rewards": random_rewards, "before": before["right"], "after": after["right"],
        "points": round(100 * (after["right"] - before["right"]), 1), "samples": before["samples"], "iterations": config.updates,
        "response_tokens": [before["response_tokens"], after["response_tokens"]], "train_reward": [rewards[0], float(np.mean(rewards[-5:]))],
        "warm_up_cpu_s": round(warm, 1), "cpu_s": round(learnt, 1),
    }  # fmt: skip
    if keep is not None:
        keep.save({"done": row})
    return row


class Keep:
    """A file in which a seed is kept between calls that end at ``until`` (`time.monotonic`): a shared machine is not held for long."""

    def __init__(self, folder: str, seed: int, random_rewards: bool, until: float, name: str = "") -> None:
        self.path = Path(folder) / f"{name.split(' ')[0]}{'coin' if random_rewards else 'seed'}{seed}.pickle"
        self._until = until

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until

    def load(self) -> dict[str, Any] | None:
        return pickle.loads(self.path.read_bytes()) if self.path.exists() else None

    def save(self, state: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(pickle.dumps(state))


def worst(rows: list[dict[str, Any]], key: str, best: bool = False) -> float:
    return (max if best else min)(row[key] for row in rows)


def cases(smoke: bool) -> list[Case]:
    """The worst of the seeds counts."""
    small = {"iterations": 2, "warm_up_steps": 2} if smoke else {}
    seeds = SEEDS[:1] if smoke else SEEDS
    rows: dict[bool, list[dict[str, Any]]] = {}

    def of(random_rewards: bool) -> list[dict[str, Any]]:
        if random_rewards not in rows:
            every = []
            for s in seeds[: 1 if random_rewards else None]:
                kept = Keep(KEPT, s, random_rewards, math.inf) if KEPT and not smoke else None
                every.append(learn(s, random_rewards=random_rewards, keep=kept, **small) or {})
            rows[random_rewards] = every
        return rows[random_rewards]

    note = f"{TASK}, 1,000 held-out problems, temperature 1, {len(seeds)} seeds, the worst of them; one core, warm-up included"
    others: dict[str, list[dict[str, Any]]] = {}

    def other(name: str, seeds: tuple[int, ...], **overrides: Any) -> list[dict[str, Any]]:
        if name not in others:
            changed = {**overrides, **small, **({"prompts": 8, "groups_per_pass": 8} if smoke else {})}
            keeps = {s: Keep(KEPT, s, False, math.inf, name) if KEPT and not smoke else None for s in seeds}
            others[name] = [learn(s, keep=keep, **changed) or {} for s, keep in keeps.items()]
        return others[name]

    def rows_of(name: str, what: str, seeds: tuple[int, ...], **overrides: Any) -> list[Case]:
        if KEPT and not smoke:
            seeds = tuple(s for s in seeds if "done" in (Keep(KEPT, s, False, math.inf, name).load() or {})) or seeds
        seeds = seeds[:1] if smoke else seeds
        said = f"{what}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}{': the worst' * (len(seeds) > 1)}; warm-up included"
        gained = lambda: worst(other(name, seeds, **overrides), "points")  # noqa: E731
        cost = lambda: worst(other(name, seeds, **overrides), "cpu_s", best=True)  # noqa: E731
        return [
            Case(f"{name}: gained", "points", gained, target=">= 25", target_of="value", runs=1, note=said),
            Case(f"{name}: CPU time", "s", cost, target="<= 180", target_of="value", runs=1, note=said),
        ]

    return [
        *rows_of("ppo with a critic", f"{TASK}, 512 prompts answered once", SEEDS[:1], variant=PPO),
        *rows_of("remainder", FIRST, SEEDS, task=FIRST),
        Case("accuracy gained over the warm-up", "points", lambda: worst(of(False), "points"), target=">= 25", target_of="value", runs=1, note=note),
        Case("CPU time of a seed", "s", lambda: worst(of(False), "cpu_s", best=True), target="<= 180", target_of="value", runs=1, note=note),
        Case("the same with random rewards", "points", lambda: worst(of(True), "points", best=True), target="<= 5", target_of="value", runs=1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO on a small model over seeds.")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--random-rewards", action="store_true")
    parser.add_argument("--task", default=TASK)
    parser.add_argument("--ppo", action="store_true", help="with a critic, each prompt once")
    parser.add_argument("--keep", metavar="FOLDER", help="go on in several calls: where seeds are kept between them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="wall time of a call with --keep")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="fields of GRPOConfig, values as JSON")
    arguments = parser.parse_args()
    overrides = {key: json.loads(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    overrides = {"task": arguments.task, "variant": PPO * arguments.ppo, **overrides}
    name = "ppo" if arguments.ppo else arguments.task.removeprefix("reasoning/") if arguments.task != TASK else ""
    until = time.monotonic() + arguments.seconds
    for seed in arguments.seeds:
        keep = Keep(arguments.keep, seed, arguments.random_rewards, until, name) if arguments.keep else None
        row = learn(seed, random_rewards=arguments.random_rewards, keep=keep, **overrides)
        print(json.dumps(row) if row else f"seed {seed} is not done yet", flush=True)
        if row is None:
            break


if __name__ == "__main__":
    main()
