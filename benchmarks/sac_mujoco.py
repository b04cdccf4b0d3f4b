"""SAC on MuJoCo against stable-baselines3: the return after 50,000 environment steps, five seeds each. Hours: ``make bench-learn`` runs it, ``make bench`` does not.

The interquartile mean of the last evaluation (20 episodes on unseen seeds) over the seeds, and the interval of its difference by bootstrap over seeds
(rliable's definitions, `rlinf_lab.algorithms.statistics`), relative to SB3's. Both sides have SB3's defaults: nets 256-256, batches of 256, a gradient
step for each environment step.

    python benchmarks/sac_mujoco.py child ours HalfCheetah-v5 0 50000     one run by itself
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness import Case

TASKS = ("HalfCheetah-v5", "Reacher-v5")
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


@cache
def returns(kind: str, env: str, seeds: Sequence[int], steps: int) -> tuple[float, ...]:
    found = []
    for seed in seeds:
        words = [sys.executable, __file__, "child", kind, env, str(seed), str(steps)]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
        print(f"  {env} {kind} {seed}: {done.stdout.strip().splitlines()[-1]}", flush=True)
        found.append(float(json.loads(done.stdout.strip().splitlines()[-1])["return"]))
    return tuple(found)


def relative_low(env: str, seeds: Sequence[int], steps: int) -> float:
    """Lower end (95 %) of the difference of the interquartile means, over SB3's absolute one: -0.1 is ten per cent worse."""
    import numpy as np

    from rlinf_lab.algorithms.statistics import interquartile_mean

    ours, theirs = (np.asarray(returns(kind, env, tuple(seeds), steps)) for kind in ("ours", "sb3"))
    rng = np.random.default_rng(0)
    draws = [interquartile_mean(rng.choice(ours, len(ours))) - interquartile_mean(rng.choice(theirs, len(theirs))) for _ in range(RESAMPLES)]
    return float(np.percentile(draws, 2.5) / abs(interquartile_mean(theirs)))


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case

    seeds, steps = (range(1), 300) if smoke else (SEEDS, STEPS)
    for env in TASKS[1:] if smoke else TASKS:
        yield Case(
            f"sac_mujoco_{env}", "lower end of the difference from SB3, relative", partial(relative_low, env, seeds, steps), target=">= -0.1",
            target_of="value", runs=1, note=f"{steps:,} environment steps, seeds {list(seeds)}, {EPISODES} episodes at the end, settings SB3's defaults",
        )  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _, what, name, number, count = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        result = child(what, name, int(number), int(count))
    print(json.dumps(result))
