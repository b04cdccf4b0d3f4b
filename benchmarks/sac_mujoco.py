"""SAC on MuJoCo against stable-baselines3: the return after 50,000 environment steps.

Hours: ``make bench-learn`` runs it, ``make bench`` does not.

The interquartile mean of the last evaluation (20 episodes on unseen seeds) over the seeds, and the interval of its difference by bootstrap over seeds
(rliable's definitions, `rlinf_lab.algorithms.statistics`), relative to SB3's; and gradient steps a CPU second, of two runs that take turns
(on a shared machine one run alone differs from the next by 30 %). Both sides have SB3's defaults (`SETTINGS`). Every long run is kept as it is measured
(`kept`), ours and SB3's of a seed after one another, and none is measured twice: a call that was ended goes on in the next one, and the rows say which seeds
there are. A difference is judged when all are there: ten for Reacher, where five left it open.

Pace is measured twice: with an update after each environment step, SB3's default, and after eight with eight gradient steps, ours. An update is an
iteration of the workflow, with a row of metrics and new weights for whoever acts: each takes about a millisecond.

    python benchmarks/sac_mujoco.py learn [Reacher-v5] [ours]        what is missing (of that), run by run, for hours
    python benchmarks/sac_mujoco.py again ours Reacher-v5 0          one run anew, in the place of the kept one
    RLINF_LAB_BENCH_KEPT=1 make bench-learn                          the rows of what is kept
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case
    from kept import Kept

TASKS = ("Reacher-v5", "HalfCheetah-v5")
KINDS = ("ours", "sb3")
STEPS, SEEDS, EPISODES, EVAL_SEED = 50_000, {"Reacher-v5": range(10), "HalfCheetah-v5": range(5)}, 20, 1
#: Of both sides: what SB3's SAC has where nothing is said; so are a gradient step after each environment step in the long runs.
SETTINGS = {
    "net_arch": [256, 256], "activation": "relu", "batch_size": 256, "learning_rate": 3e-4, "buffer_size": 1_000_000, "learning_starts": 100,
    "tau": 0.005, "gamma": 0.99, "ent_coef": "auto",
}  # fmt: skip
WARM, ROUNDS = 504, 60  # environment steps before pace is measured, and turns of each side
BLOCK = {1: 10, 8: 24}  # environment steps of a turn, by those between two updates
PAIRS = 5
RESAMPLES = 2_000


def child(kind: str, env: str, seed: int, steps: int) -> dict[str, Any]:
    """The return at the end; CPU seconds of all, and gradient steps a CPU second after the first thousand steps."""
    warm, marks = min(2 * WARM, steps // 3), dict[int, float]()

    def look(done: int) -> None:
        if done in (warm, steps):
            marks[done] = time.process_time()

    found = (_ours if kind == "ours" else _sb3)(env, seed, steps, look)
    pace = (steps - warm) / (marks[steps] - marks[warm])
    return {"return": found, "cpu": round(sum(os.times()[:4]), 2), "updates_per_cpu_s": round(pace, 2), "versions": versions()}


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "numpy", "gymnasium", "mujoco", "stable-baselines3")}


def _ours(env: str, seed: int, steps: int, look: Callable[[int], None], every: int = 1) -> float:
    import rlinf_lab as lab

    settings = {**SETTINGS, "net_arch": tuple(SETTINGS["net_arch"]), "train_freq": every, "gradient_steps": every}  # type: ignore[arg-type]
    hears: Any = lambda row: look(int(row["env_steps"]))  # noqa: E731
    run = lab.train("sac", env, total_timesteps=steps, seed=seed, plan=None, folder=False, progress=False, on_iteration=hears, **settings).wait()
    return float(run.evaluate(episodes=EPISODES, seed=EVAL_SEED)["return"])


def _sb3(env: str, seed: int, steps: int, look: Callable[[int], None], every: int = 1) -> float:
    import torch
    from front_door import _play, _predict
    from stable_baselines3 import SAC

    def hears(local: dict[str, Any], _: Any) -> bool:
        look(local["self"].num_timesteps)  # before the gradient step of this environment step
        return True

    torch.set_num_threads(1)
    settings = {name: value for name, value in SETTINGS.items() if name not in ("net_arch", "activation")} | {"train_freq": every, "gradient_steps": every}
    net = {"net_arch": SETTINGS["net_arch"], "activation_fn": torch.nn.ReLU}
    model = SAC("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=net, **settings)
    model.learn(steps, callback=hears)
    return _play(env, partial(_predict, model, None))


def measured(kind: str, env: str, seed: int, steps: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "child", kind, env, str(seed), str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    print(f"  {env} {kind} {seed}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "date": time.strftime("%Y-%m-%d")}


def run_of(kept: Kept, kind: str, env: str, seed: int, steps: int) -> dict[str, Any] | None:
    return kept.get(partial(measured, kind, env, seed, steps), env=env, kind=kind, seed=seed, steps=steps)


def relative_low(kept: Kept, env: str, seeds: Sequence[int], steps: int) -> float:
    """Lower end (95 %) of the difference of the interquartile means, over SB3's absolute one: -0.1 is ten per cent worse."""
    import numpy as np

    from rlinf_lab.algorithms.statistics import interquartile_mean

    rows = [[run_of(kept, kind, env, seed, steps) for kind in KINDS] for seed in seeds]  # ours and SB3's of a seed after one another
    ours, theirs = (np.asarray([row["return"] for row in column if row is not None]) for column in zip(*rows, strict=True))
    rng = np.random.default_rng(0)
    draws = [interquartile_mean(rng.choice(ours, len(ours))) - interquartile_mean(rng.choice(theirs, len(theirs))) for _ in range(RESAMPLES)]
    return float(np.percentile(draws, 2.5) / abs(interquartile_mean(theirs)))


def spread(kept: Kept, env: str, seeds: Sequence[int], steps: int) -> str:
    """What the difference is made of, of runs that are kept."""
    import numpy as np

    from rlinf_lab.algorithms.statistics import interquartile_mean

    rows = {kind: [kept.find(env=env, kind=kind, seed=seed, steps=steps) for seed in seeds] for kind in KINDS}
    found = {kind: np.asarray([row["return"] for row in column if row is not None]) for kind, column in rows.items()}
    if not all(map(len, found.values())):
        return ""
    means = " and ".join(f"{interquartile_mean(of):,.4g} ({kind})" for kind, of in found.items())
    return f"; interquartile means {means}, single seeds {', '.join(f'{of.min():,.4g} to {of.max():,.4g} ({kind})' for kind, of in found.items())}"


def paced(kind: str, env: str, seed: int, every: int) -> None:
    """A run that waits after each turn until it is asked to go on, and says how many CPU seconds the turn took."""
    begun: float | None = None

    def look(done: int) -> None:
        nonlocal begun
        if done < WARM or (done - WARM) % BLOCK[every]:
            return
        print(0.0 if begun is None else time.process_time() - begun, file=sys.__stdout__, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        begun = time.process_time()

    (_ours if kind == "ours" else _sb3)(env, seed, STEPS, look, every)


class Turns:
    """Both sides of a seed by turns, so that what a shared machine does to one it does to the other."""

    def __init__(self, env: str, every: int, rounds: int) -> None:
        self.env, self.every, self.rounds, self.seeds, self.theirs = env, every, rounds, iter(range(PAIRS)), 0.0

    def measure(self) -> float:
        """Our gradient steps a CPU second; SB3's are in ``theirs``."""
        seed, spent = next(self.seeds), dict.fromkeys(KINDS, 0.0)
        with contextlib.ExitStack() as stack:
            sides = {kind: stack.enter_context(self._side(kind, seed)) for kind in KINDS}
            for turn in range(self.rounds):
                for kind in KINDS[:: 1 if turn % 2 else -1]:
                    spent[kind] += sides[kind]()
        steps = self.rounds * BLOCK[self.every]
        self.theirs = steps / spent["sb3"]
        return steps / spent["ours"]

    @contextlib.contextmanager
    def _side(self, kind: str, seed: int) -> Iterator[Callable[[], float]]:
        """A turn of that run, in CPU seconds. It has warmed up."""
        words = [sys.executable, __file__, "paced", kind, self.env, str(seed), str(self.every)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert process.stdin is not None and process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def turn() -> float:
            asks.write("on\n")
            asks.flush()
            return float(answers.readline())

        answers.readline()
        yield turn
        asks.close()  # which ends it
        process.wait()


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case
    from kept import ONLY_KEPT, Kept

    kept = Kept(None if smoke else "sac_mujoco")

    def there(env: str, steps: int) -> list[int]:
        if smoke or not ONLY_KEPT:
            return [0] if smoke else list(SEEDS[env])
        return [seed for seed in SEEDS[env] if all(kept.find(env=env, kind=kind, seed=seed, steps=steps) for kind in KINDS)]

    for env in TASKS[:1] if smoke else TASKS:
        steps = 300 if smoke else STEPS
        for every, block in BLOCK.items():
            turns = Turns(env, every, 2 if smoke else ROUNDS)
            yield Case(
                f"sac_mujoco_{env}_updates_every_{every}", "gradient steps / CPU s", turns.measure, {"SB3": lambda turns=turns: turns.theirs},
                target=">= 1.5", runs=PAIRS,
                note=f"train_freq and gradient_steps {every} on both sides, simulator and all else included; {ROUNDS * block} steps of each side after "
                f"{WARM}, {block} at a time by turns; {settings_told()}",
            )  # fmt: skip
        seeds = there(env, steps)
        if smoke or len(seeds) > 1:  # one seed has no interval
            whole = smoke or len(seeds) == len(SEEDS[env])
            judged = spread(kept, env, seeds, steps) if whole else f"; {len(seeds)} of {len(SEEDS[env])} seeds: not judged yet"
            yield Case(
                f"sac_mujoco_{env}", "lower end of the difference from SB3, relative", partial(relative_low, kept, env, seeds, steps),
                target=">= -0.1" if whole else "", target_of="value", runs=1,
                note=f"interquartile mean over seeds {seeds} after {steps:,} environment steps, {EPISODES} episodes each; {settings_told()}{judged}",
            )  # fmt: skip


def settings_told() -> str:
    return "SB3's defaults on both sides: " + ", ".join(f"{name} {value}" for name, value in SETTINGS.items())


def learn(*words: str) -> None:
    """The long runs that are missing, seed by seed; ``words``: of which tasks and sides."""
    from kept import Kept

    kept = Kept("sac_mujoco")
    for env in [name for name in TASKS if name in words] or TASKS:
        for seed in SEEDS[env]:
            for kind in [name for name in KINDS if name in words] or KINDS:
                run_of(kept, kind, env, seed, STEPS)


def again(kind: str, env: str, seed: int) -> None:
    from kept import Kept

    key = {"env": env, "kind": kind, "seed": seed, "steps": STEPS}
    Kept("sac_mujoco").add({**key, **measured(**key)}, **key)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1] == "learn":
        learn(*sys.argv[2:])
    elif sys.argv[1] == "paced":
        with contextlib.redirect_stdout(sys.stderr):
            paced(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1] == "again":
        again(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        with contextlib.redirect_stdout(sys.stderr):
            result = child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        print(json.dumps(result))
