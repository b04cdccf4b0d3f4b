"""TD3+BC on recorded swings of a pendulum, half of whose actions are noise: against cloning the same data, and against d3rlpy's TD3PlusBC.

The same transitions, nets, batches, learning rate and number of gradient steps for both implementations; what is compared is the cost (minus the return) of
50 fresh episodes, and CPU seconds. Runs are kept as they are measured, see `kept`. d3rlpy is no part of the project's environment: where it is not
importable its kept runs stand.

    python benchmarks/td3_bc.py td3_bc 0     one run by itself, not kept; also clone, d3rlpy
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from harness import Case
    from kept import Kept

ENV, SEEDS, EPISODES, TESTED, TEST_SEED = "Pendulum-v1", (0, 1, 2), 100, 50, 7
STEPS, CLONE_STEPS, EACH = 20_000, 2_000, 1_000
SHARED: dict[str, Any] = {"net_arch": (128, 128), "batch_size": 256, "learning_rate": 1e-3, "gamma": 0.98}


class Swing:
    """Pumps, and holds the pendulum near the top; every other action is noise. In [-1, 1]."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, obs_N: Any) -> Any:
        angle_N, speed_N = np.arctan2(obs_N[:, 1], obs_N[:, 0]), obs_N[:, 2]
        wanted_N = np.clip(np.where(np.abs(angle_N) < 0.5, -(4 * angle_N + speed_N), np.sign(speed_N)), -1, 1)
        noise_N = self.rng.uniform(-1, 1, len(obs_N))
        return np.where(self.rng.random(len(obs_N)) < 0.5, noise_N, wanted_N)[:, None].astype(np.float32)


def child(who: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Cost of fresh episodes, CPU seconds of learning, and the cost of the data."""
    import rlinf_lab as lab

    data = lab.collect(ENV, Swing(seed), episodes=EPISODES, seed=seed)
    began = sum(os.times()[:4])
    if who == "d3rlpy":
        act, cpu = peer(data, seed, steps)
        costs = rollouts(act)
    else:
        clone = {**SHARED, "gradient_steps": min(steps, CLONE_STEPS)}
        clone.pop("gamma")
        settings = clone if who == "clone" else {**SHARED, "gradient_steps": steps, "steps_per_iteration": min(steps, EACH)}
        run = lab.train(who, data=data, seed=seed, folder=False, progress=False, plan=None, **settings).wait()
        cpu = sum(os.times()[:4]) - began
        costs = rollouts(run.policy().act)
    return {"cost": round(float(np.mean(costs)), 1), "cpu": round(cpu, 1), "data": round(-float(data.to_pandas()["return"].mean()), 1)}


def rollouts(act: Callable[[Any], Any]) -> Any:
    """Minus the returns of fresh episodes, played alike for all: ``act`` gives actions in [-1, 1] of a batch."""
    from rlinf_lab.vecenv import make_vec

    env = make_vec(ENV, TESTED)
    obs_N, cost_N = env.reset(seed=TEST_SEED), np.zeros(TESTED)
    for _ in range(200):
        step = env.step(np.asarray(act(obs_N), np.float32))
        obs_N, cost_N = step.obs_N, cost_N - step.reward_N
    return cost_N


def peer(data: Any, seed: int, steps: int) -> tuple[Callable[[Any], Any], float]:
    """d3rlpy's, with what it has to be told to be the same."""
    import d3rlpy
    import torch
    from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    rows = [np.concatenate([getattr(e, name) for e in data]) for name in ("obs_T", "action_T", "reward_T")]
    ends = np.concatenate([np.arange(len(e)) == len(e) - 1 for e in data]).astype(np.float32)
    found = d3rlpy.dataset.MDPDataset(rows[0], rows[1], rows[2][:, None], np.zeros(len(ends), np.float32), timeouts=ends)
    nets, rate = d3rlpy.models.VectorEncoderFactory(list(SHARED["net_arch"])), SHARED["learning_rate"]
    algorithm = d3rlpy.algos.TD3PlusBCConfig(
        batch_size=SHARED["batch_size"], gamma=SHARED["gamma"], actor_learning_rate=rate, critic_learning_rate=rate, actor_encoder_factory=nets,
        critic_encoder_factory=nets, observation_scaler=StandardObservationScaler(), action_scaler=MinMaxActionScaler(minimum=-2, maximum=2),
    ).create(device="cpu:0")  # fmt: skip
    began = sum(os.times()[:4])
    logs = d3rlpy.logging.NoopAdapterFactory()
    algorithm.fit(found, n_steps=steps, n_steps_per_epoch=min(steps, EACH), show_progress=False, logger_adapter=logs)
    return lambda obs_N: algorithm.predict(obs_N.astype(np.float32)) / 2, sum(os.times()[:4]) - began


def measured(who: str, seed: int, steps: int) -> dict[str, Any]:
    words = [sys.executable, __file__, who, str(seed), str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def of(kept: Kept, who: str, seeds: Sequence[int], steps: int, number: str) -> Callable[[], float]:
    """Of the next seed each time it is called."""
    rest = iter(seeds)

    def measure() -> float:
        seed = next(rest)
        row = kept.get(partial(measured, who, seed, steps), who=who, seed=seed, steps=steps)
        assert row is not None
        return float(row[number])

    return measure


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case
    from kept import ONLY_KEPT, Kept

    kept, steps = Kept(None if smoke else "td3_bc"), 20 if smoke else STEPS
    seeds: Sequence[int] = SEEDS[:1] if smoke else SEEDS
    if ONLY_KEPT and not smoke:
        seeds = [s for s in SEEDS if all(kept.find(who=w, seed=s, steps=steps) for w in ("td3_bc", "clone", "d3rlpy"))]
    has_peer = find_spec("d3rlpy") is not None or all(kept.find(who="d3rlpy", seed=s, steps=steps) for s in seeds)
    if not seeds:
        return
    note = (
        f"minus the return of {TESTED} fresh episodes; learnt from {EPISODES} episodes whose every other action is noise; {steps:,} gradient steps of "
        f"{SHARED}; seeds {list(seeds)}"
    )
    ours = partial(of, kept, "td3_bc", seeds, steps)
    yield Case("td3_bc_clone", "cost", ours("cost"), {"clone": of(kept, "clone", seeds, steps, "cost")}, target="<= 0.8", runs=len(seeds), note=note)
    if has_peer and not smoke:
        theirs = partial(of, kept, "d3rlpy", seeds, steps)
        yield Case("td3_bc_pendulum", "cost", ours("cost"), {"d3rlpy": theirs("cost")}, target="<= 1.1", runs=len(seeds), note=note)
        yield Case("td3_bc_pace", "CPU s", ours("cpu"), {"d3rlpy": theirs("cpu")}, target="<= 1", runs=len(seeds), note=f"{steps:,} gradient steps")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    with contextlib.redirect_stdout(sys.stderr):
        result = child(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
    print(json.dumps(result))
