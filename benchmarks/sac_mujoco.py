"""SAC on MuJoCo against stable-baselines3: the return after 50,000 environment steps, five seeds each. Hours: ``make bench-learn`` runs it, ``make bench`` does not.

The interquartile mean of the last evaluation (20 episodes on unseen seeds) over the seeds, and the interval of its difference by bootstrap over seeds
(rliable's definitions, `rlinf_lab.algorithms.statistics`), relative to SB3's; and gradient steps a CPU second of the whole process, start and evaluation
included. Both sides have SB3's defaults: nets 256-256, batches of 256, a gradient step for each environment step. Runs are kept as they are measured, ours
and SB3's of a seed after one another, see `kept`.

    python benchmarks/sac_mujoco.py child ours HalfCheetah-v5 0 50000     one run by itself
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case
    from kept import Kept

TASKS = ("Reacher-v5", "HalfCheetah-v5")
STEPS, SEEDS, EPISODES, EVAL_SEED = 50_000, range(5), 20, 1
RESAMPLES = 2_000


def child(kind: str, env: str, seed: int, steps: int) -> dict[str, float]:
    """The return at the end, and CPU seconds of all."""
    found = _ours(env, seed, steps) if kind == "ours" else _sb3(env, seed, steps)
    return {"return": found, "cpu": sum(os.times()[:4])}


def _ours(env: str, seed: int, steps: int) -> float:
    import rlinf_lab as lab

    run = lab.train("sac", env, total_timesteps=steps, seed=seed, train_freq=1, plan=None, folder=False, progress=False).wait()
    return float(run.evaluate(episodes=EPISODES, seed=EVAL_SEED)["return"])


def _sb3(env: str, seed: int, steps: int) -> float:
    import torch
    from front_door import _play, _predict
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", env, seed=seed, device="cpu")
    model.learn(steps)
    return _play(env, partial(_predict, model, None))


def measured(kind: str, env: str, seed: int, steps: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "child", kind, env, str(seed), str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    print(f"  {env} {kind} {seed}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def pairs(kept: Kept, env: str, seeds: Sequence[int], steps: int) -> dict[str, list[dict[str, Any]]]:
    """By side, of the seeds that both sides have."""
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "sb3": []}
    for seed in seeds:
        both = [kept.get(partial(measured, kind, env, seed, steps), env=env, kind=kind, seed=seed, steps=steps) for kind in found]
        for kind, row in zip(found, both, strict=True):
            found[kind] += [row] if None not in both else []  # type: ignore[list-item]
    return found


def relative_low(kept: Kept, env: str, seeds: Sequence[int], steps: int) -> float:
    """Lower end (95 %) of the difference of the interquartile means, over SB3's absolute one: -0.1 is ten per cent worse."""
    import numpy as np

    from rlinf_lab.algorithms.statistics import interquartile_mean

    ours, theirs = (np.asarray([row["return"] for row in rows]) for rows in pairs(kept, env, seeds, steps).values())
    rng = np.random.default_rng(0)
    draws = [interquartile_mean(rng.choice(ours, len(ours))) - interquartile_mean(rng.choice(theirs, len(theirs))) for _ in range(RESAMPLES)]
    return float(np.percentile(draws, 2.5) / abs(interquartile_mean(theirs)))


def speed(kept: Kept, env: str, seeds: Sequence[int], steps: int, kind: str) -> float:
    """Gradient steps a CPU second, over all seeds."""
    rows = pairs(kept, env, seeds, steps)[kind]
    return steps * len(rows) / sum(row["cpu"] for row in rows)


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case
    from kept import ONLY_KEPT, Kept

    kept = Kept(None if smoke else "sac_mujoco")
    steps = 300 if smoke else STEPS
    for env in TASKS[:1] if smoke else TASKS:
        seeds: Sequence[int] = range(1) if smoke else SEEDS
        if ONLY_KEPT and not smoke:
            seeds = [seed for seed in SEEDS if all(kept.find(env=env, kind=kind, seed=seed, steps=steps) for kind in ("ours", "sb3"))]
        if not seeds:
            continue
        of = partial(partial, kept=kept, env=env, seeds=seeds, steps=steps)
        note = f"{steps:,} environment steps, seeds {list(seeds)}, {EPISODES} episodes at the end, settings SB3's defaults"
        if smoke or len(seeds) > 1:  # one seed has no interval
            yield Case(
                f"sac_mujoco_{env}", "lower end of the difference from SB3, relative", of(relative_low), target=">= -0.1", target_of="value", runs=1, note=note,
            )  # fmt: skip
        yield Case(
            f"sac_mujoco_{env}_speed", "gradient steps / CPU s", of(speed, kind="ours"), {"SB3": of(speed, kind="sb3")}, target=">= 1.5", runs=1,
            note=note + "; whole process: start, simulator and evaluation included",
        )  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _, what, name, number, count = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        result = child(what, name, int(number), int(count))
    print(json.dumps(result))
