"""A policy of action chunks, cloned from ten scripted demonstrations, then improved by RL on success alone: through the front door, by seed.

    python benchmarks/clone_then_rl.py --tasks push pick-place --seeds 0 1 2
    python benchmarks/clone_then_rl.py --tasks push --seeds 0 --by flow --keep /tmp/runs --seconds 200

Prints one JSON line a run: successes (in any step) of 400 fresh episodes, greedy, before and after, with 95 % intervals (Wilson), environment steps, and CPU
seconds of this process, which does all of it on one core: ``cpu_s`` of demonstrations, cloning and RL, ``eval_cpu_s`` of both evaluations. ``--by``: "ppo",
"grpo" (no value net), "flow" (PPO of a flow-matching head). With ``--keep`` a run lies in a folder; a call ends after ``--seconds``, and the next one goes on
from there. What has come to its end is kept for the harness, see `kept`.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import Case
from kept import ONLY_KEPT, Kept

import rlinf_lab as lab
from rlinf_lab.policies import Flow
from rlinf_lab.records import wilson

TASKS = {"push": "envpool/MetaWorld/Push-v3", "pick-place": "envpool/MetaWorld/PickPlace-v3"}
SEEDS, BY = (0, 1, 2), ("ppo", "grpo", "flow")
LENGTH, EPISODES, TEST_SEED = 100, 400, 7
QUIET: dict[str, Any] = {"plan": None, "progress": False}
CLONE: dict[str, Any] = {"chunk_size": 5, "gradient_steps": 600}
FLOW = Flow(std=0.25)
"""which explores as widely as the Gaussian head: noise in the last step. In all four of them pick-place's first seed goes from 0.53 to 0.65, in two of two from 0.54 to 0.59"""
ITERATIONS = 100
"""which take less than 3 minutes. After 60 of them pick-place's first seed was at 0.92 (PPO), 0.80 (GRPO) and 0.82 (PPO of a flow)"""
ROWS: tuple[tuple[str, str, str, Any, str, Any], ...] = (
    ("ppo", "the clone succeeds", "share", lambda row: row["before"], ">= 0.4", min),
    ("ppo", "succeeds after PPO", "share", lambda row: row["after"], "", min),
    ("ppo", "gained by PPO", "points", lambda row: row["points"], ">= 30", min),
    ("ppo", "lower bound (95 %) after PPO", "share", lambda row: row["interval"][0], ">= 0.85", min),
    ("ppo", "CPU time of a seed", "s", lambda row: row["cpu_s"], "<= 180", max),
    ("grpo", "succeeds after GRPO", "share", lambda row: row["after"], ">= 0.8", min),
    ("flow", "the clone with a flow succeeds", "share", lambda row: row["before"], "", min),
    ("flow", "succeeds after PPO of a flow", "share", lambda row: row["after"], "", min),
    ("flow", "CPU time of a seed with a flow", "s", lambda row: row["cpu_s"], "", max),
)  # fmt: skip


def learn(task: str, seed: int, by: str, folder: Path, until: float, small: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """One run: demonstrations, clone, evaluation, RL, evaluation. None: the time was over; the next call with this folder goes on."""
    small = small or {}
    env, at = TASKS[task], folder / f"{task}-{seed}-{by}"
    at.mkdir(parents=True, exist_ok=True)
    notes = at / "notes.json"
    row: dict[str, Any] = _notes(at) or {"task": task, "seed": seed, "by": by, "cpu_s": 0.0, "eval_cpu_s": 0.0}
    episodes, length = small.get("episodes", EPISODES), small.get("length", LENGTH)

    def counted(step: Callable[[], Any], as_: str = "cpu_s") -> Any:
        start = time.process_time()
        found = step()
        row[as_] = round(row[as_] + time.process_time() - start, 1)
        notes.write_text(json.dumps(row))
        return found

    def success(policy: Any) -> float:
        return float(counted(lambda: policy.evaluate(episodes, TEST_SEED)["success_once"], "eval_cpu_s"))

    if "before" not in row:
        data = counted(lambda: lab.collect(env, "expert", episodes=10, max_episode_steps=length, seed=seed, only_success=not small))
        settings = {**CLONE, **small.get("clone", {}), **({"flow": FLOW} if by == "flow" else {})}
        fresh = at / f"clone-{time.time_ns()}"
        clone = counted(lambda: lab.train("clone", env, data=data, seed=seed, folder=fresh, **settings, **QUIET).wait())
        row["clone"], row["gradient_steps"], row["before"] = fresh.name, settings["gradient_steps"], success(clone)
        row |= {"flow": repr(FLOW)} if by == "flow" else {}
        notes.write_text(json.dumps(row))
    if "after" not in row:
        run = counted(lambda: _improved(by, env, at, row["clone"], seed, length, until, small))
        if run.iteration < run.config.updates:
            return None
        row["iterations"], row["env_steps"], row["episodes"] = run.iteration, int(run.metrics["env_steps"].max()), episodes
        row["after"] = success(run)
        notes.write_text(json.dumps(row))
    row["points"] = round(100 * (row["after"] - row["before"]), 1)
    row["interval"] = [round(x, 3) for x in wilson(round(row["after"] * row["episodes"]), row["episodes"])]
    return row


def _improved(by: str, env: str, at: Path, clone: str, seed: int, length: int, until: float, small: dict[str, Any]) -> Any:
    """The run, when it has ended or the time is over."""
    folder = at / "rl"
    if folder.exists() and not any(folder.rglob("*.safetensors")):  # a call ended before the first checkpoint
        shutil.rmtree(folder)
    if folder.exists():
        run = lab.resume(folder, **QUIET)
    else:
        settings = {"max_episode_steps": length, "iterations": ITERATIONS, "checkpoint_minutes": 0.5, **small.get("rl", {})}
        algorithm = "grpo" if by == "grpo" else "ppo"
        run = lab.train(algorithm, env, policy=at / clone, reward="success", seed=seed, folder=folder, **settings, **QUIET)
    while run.state not in ("finished", "failed", "stopped") and time.monotonic() < until:
        time.sleep(0.2)
    run.stop()
    return run.wait()


def cases(smoke: bool) -> list[Case]:
    """The worst of the seeds counts."""
    small = {"episodes": 2, "length": 10, "clone": {"gradient_steps": 20}, "rl": {"iterations": 1, "num_envs": 4}} if smoke else None
    folder = Path(tempfile.mkdtemp())
    kept = Kept(None if smoke else "clone_then_rl")

    def of(task: str, by: str) -> list[dict[str, Any]]:
        learnt = [kept.get(lambda seed=seed: learn(task, seed, by, folder, math.inf, small) or {}, task=task, seed=seed, by=by) for seed in seeds_of(task, by)]
        return [row for row in learnt if row is not None]

    def seeds_of(task: str, by: str) -> tuple[int, ...]:
        done = tuple(seed for seed in SEEDS if kept.find(task=task, seed=seed, by=by))
        return SEEDS[:1] if smoke else done if ONLY_KEPT else SEEDS

    def flow_of(task: str) -> str:
        """With which settings, of runs that are kept maybe earlier ones."""
        told = {(kept.find(task=task, seed=seed, by="flow") or {}).get("flow", repr(FLOW)) for seed in seeds_of(task, "flow")}
        return " and ".join(sorted(told)) + ", "

    def iterations_of(task: str, by: str) -> str:
        told = {(kept.find(task=task, seed=seed, by=by) or {}).get("iterations", ITERATIONS) for seed in seeds_of(task, by)}
        return " and ".join(map(str, sorted(told)))

    def worst(task: str, by: str, value: Any, best: Any) -> float:
        return float(best(value(row) for row in of(task, by)))

    found = []
    for task in TASKS:
        for by, name, unit, value, target, best in ROWS:
            if not (seeds := seeds_of(task, by)):
                continue
            note = (
                f"10 demonstrations, chunk of 5, {flow_of(task) if by == 'flow' else ''}{CLONE['gradient_steps']} gradient steps, {iterations_of(task, by)} "
                f"iterations of 64 episodes, {EPISODES} fresh episodes; seeds {', '.join(map(str, seeds))}, the worst of them; one core, evaluations not in the CPU time"
            )
            if (task, name) == ("push", "gained by PPO"):
                note += (
                    "; the clone of seed 2 begins at 0.72, so that 30 points more are not there. No number of gradient steps serves all seeds: for seed 0 to begin at 0.40 it "
                    "takes 600, for seed 2 to begin below 0.68 fewer than 400: after 300, 400, 500, 1,500 (200 episodes of other seeds) seed 2 is at 0.58, 0.715, 0.715, 0.85 and "
                    "seed 0 at 0.28, 0.345, 0.365, 0.495; nets of 64 units 0.57 and 0.335 (600 steps), 0.725 "
                    "and 0.37 (1,000), relu 0.71 and 0.36, std_floor 0.05 0.71 and 0.31 (500). The demonstrations decide it: "
                    "with those of seed 0 all three begin at 0.35 to 0.41, with those of seed 1 at 0.62 to 0.70"
                )
            found.append(Case(f"{task}: {name}", unit, partial(worst, task, by, value, best), target=target, target_of="value", runs=1, note=note))
        if shared := [seed for seed in seeds_of(task, "flow") if seed in seeds_of(task, "ppo")]:
            pairs = [partial(of, task, by) for by in ("flow", "ppo")]
            note = f"seeds {', '.join(map(str, shared))} together, {EPISODES} episodes each; interval of a difference of rates, Newcombe 1998, method 10"
            found.append(Case(
                f"{task}: a flow less a Gaussian after PPO, upper end (95 %)", "points", partial(difference_high, *pairs, shared), target=">= 0", target_of="value",
                runs=1, note=note,
            ))  # fmt: skip
    return found


def difference_high(ours: Callable[[], list[dict[str, Any]]], others: Callable[[], list[dict[str, Any]]], seeds: list[int]) -> float:
    """Of the success rates over these seeds together, in points."""
    rates, low, high = [], [], []
    for rows in (ours(), others()):
        rows = [row for row in rows if row["seed"] in seeds]
        played = sum(row["episodes"] for row in rows)
        rates.append(sum(row["after"] * row["episodes"] for row in rows) / played)
        for ends, end in zip((low, high), wilson(round(rates[-1] * played), played), strict=True):
            ends.append(end)
    return 100 * (rates[0] - rates[1] + math.hypot(high[0] - rates[0], rates[1] - low[1]))


def _notes(at: Path) -> dict[str, Any]:
    path = at / "notes.json"
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description="Clone, then RL, over seeds.")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--by", default="ppo", choices=BY)
    parser.add_argument("--keep", metavar="FOLDER", help="go on in several calls: where runs are kept between them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="wall time of a call with --keep")
    arguments = parser.parse_args()
    folder, until = Path(arguments.keep or tempfile.mkdtemp()), time.monotonic() + arguments.seconds
    for task in arguments.tasks:
        for seed in arguments.seeds:
            row = learn(task, seed, arguments.by, folder, until)
            if row is not None:
                Kept("clone_then_rl").add(row, task=task, seed=seed, by=arguments.by)
            print(json.dumps(row) if row else f"{task}, seed {seed} is not done yet", flush=True)
            if row is None or time.monotonic() > until:
                return


if __name__ == "__main__":
    main()
