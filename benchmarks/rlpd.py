"""RLPD with ten scripted demonstrations against SAC without any: environment steps until 0.9 of 50 fresh episodes succeed (at their end), greedily.

Only success is rewarded, and ends an episode. Both have the same nets, batches and gradient steps for each environment step; RLPD's critics normalise their
layers, and half of each of its minibatches are demonstrations. What has not come there at the cap counts as infinite. Runs are kept as they are measured,
see `kept`.

    python benchmarks/rlpd.py rlpd button-press 0     one run by itself, not kept
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case
    from kept import Kept

TASKS = {"button-press": "envpool/MetaWorld/ButtonPress-v3"}
SEEDS, LENGTH, MOST = (0, 1, 2), 100, 12_000
GOAL, EVERY, EPISODES, EVAL_SEED = 0.9, 1_000, 50, 7
SHARED: dict[str, Any] = {
    "reward": "success", "num_envs": 8, "train_freq": 5, "gradient_steps": -4, "net_arch": (64, 64), "batch_size": 128, "learning_rate": 1e-3, "gamma": 0.97,
    "tau": 0.01, "ent_coef": "auto_0.01", "normalize_obs": True, "std_floor": 0.02, "learning_starts": 400,
}  # fmt: skip
RLPD: dict[str, Any] = {"n_critics": 2, "target_critics": 2, "policy_delay": 1}


def child(algorithm: str, task: str, seed: int, most: int = MOST) -> dict[str, Any]:
    """Environment steps to the goal, None if not before the cap; what was reached, and CPU seconds, looks included."""
    import rlinf_lab as lab

    env = TASKS[task]
    special: dict[str, Any] = {}
    if algorithm == "rlpd":
        special = {**RLPD, "data": lab.collect(env, "expert", episodes=10, max_episode_steps=LENGTH, seed=seed)}
    run = lab.train(
        algorithm, env, total_timesteps=most, max_episode_steps=LENGTH, seed=seed, folder=False, progress=False, plan=None, eval_every=min(EVERY, most),
        eval_episodes=EPISODES, eval_seed=EVAL_SEED, until={"success_rate": GOAL}, **{**SHARED, **special},
    ).wait()  # fmt: skip
    looks = run.metrics[["env_steps", "eval_success_rate"]].dropna()
    best = float(looks["eval_success_rate"].iloc[-1])
    steps = int(looks["env_steps"].iloc[-1]) if best >= GOAL else None
    curve = [[int(at), round(float(rate), 2)] for at, rate in looks.itertuples(index=False)]
    return {"steps": steps, "reached": best, "cpu": round(sum(os.times()[:4]), 1), "curve": curve}


def measured(algorithm: str, task: str, seed: int, most: int) -> dict[str, Any]:
    words = [sys.executable, __file__, algorithm, task, str(seed), str(most)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def steps_to(kept: Kept, algorithm: str, task: str, seeds: Sequence[int], most: int) -> Callable[[], float]:
    """Of the next seed each time it is called."""
    rest = iter(seeds)

    def measure() -> float:
        seed = next(rest)
        row = kept.get(partial(measured, algorithm, task, seed, most), algorithm=algorithm, task=task, seed=seed, cap=most)
        assert row is not None
        return math.inf if row["steps"] is None else float(row["steps"])

    return measure


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case
    from kept import ONLY_KEPT, Kept

    kept, most = Kept(None if smoke else "rlpd"), 480 if smoke else MOST
    for task in list(TASKS)[:1] if smoke else TASKS:
        seeds: Sequence[int] = SEEDS[:1] if smoke else SEEDS
        if ONLY_KEPT and not smoke:
            seeds = [seed for seed in SEEDS if all(kept.find(algorithm=a, task=task, seed=seed, cap=most) for a in ("rlpd", "sac"))]
        if not seeds:
            continue
        yield Case(
            f"rlpd_{task}", "environment steps", steps_to(kept, "rlpd", task, seeds, most), {"SAC": steps_to(kept, "sac", task, seeds, most)},
            target="<= 0.5", runs=len(seeds),
            note=f"to {GOAL} success at the end of {EPISODES} fresh episodes of {LENGTH} steps, looked at every {EVERY}; cap {most:,}, not reached is infinite; "
            f"seeds {list(seeds)}; both {SHARED}, RLPD {RLPD} and ten scripted demonstrations",
        )  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    with contextlib.redirect_stdout(sys.stderr):
        result = child(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(int, sys.argv[4:]))
    print(json.dumps(result))
