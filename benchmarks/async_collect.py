"""SAC with a collector beside the learner on two cores, against turns on one: time, the planner's prediction, and what it costs in return.

Simulator and policy are one worker where a plan has them together, as `lab.train` makes them. Both runs have worker processes (in the notebook's own
process the timeline's work costs them some 10 % as well). The wall clock, for two processes share the work: run it on a machine of its own.

    python benchmarks/async_collect.py return 1 0 40960     one run by itself: asynchronous or not, seed, environment steps
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case

ENV = "Pendulum-v1"
#: A gradient step for eight environment steps: collecting takes about as long as learning.
TURNS = {"net_arch": (64, 64), "batch_size": 128, "learning_rate": 1e-3, "train_freq": 256, "gradient_steps": 32, "learning_starts": 256, "staleness": 1}
WARM, ROUNDS = 4, 4


def in_turns(iterations: int, seed: int = 0) -> tuple[Any, Any]:
    """The workflow and its plan on one core, simulator and policy one worker."""
    import rlinf_lab as lab
    from rlinf_lab.recipes.sac import SACConfig, build, fuse

    config = SACConfig(ENV, iterations=iterations, seed=seed, render=False, **{**TURNS, "learning_starts": 0})
    made = fuse(config, lab.ExecutionPlan.temporal(build(config), ["cpu:0"]))
    assert made is not None
    return made


def foretold(seed: int = 0, iterations: int = 14) -> tuple[Any, float]:
    """The best plan that `lab.plan` finds on two cores from a run in turns on one, and milliseconds of its iterations.

    They are estimated from that run, from what messages between two processes cost and from how much two busy cores slow each other down, as measured
    just before and after it.
    """
    import rlinf_lab as lab
    from rlinf_lab.planning.fit.fit import fitted
    from rlinf_lab.planning.fit.samples import Observed
    from rlinf_lab.planning.profile.parts import RankRule

    flow, plan = in_turns(iterations, seed)
    devices = ["cpu:0", "cpu:1"]
    with lab.profiling.Crowd("processes", devices, flow) as crowd, lab.profiling.PingPong("processes", devices) as messages:
        for turn in range(2 * ROUNDS):
            if turn == ROUNDS:
                run = lab.run(flow, plan, iterations, "processes")
                run.wait()
            crowd.round()
            messages.round()
    rules = {worker: RankRule(most=1) for worker in flow.graph.workers}
    profile = fitted([Observed.of(flow.graph, run.plan, run.timeline)], 1, "sac", rules=rules)
    best = lab.plan(flow, devices, profile, staleness=1).best.execution
    estimate = lab.estimate(flow, run.plan, run.timeline, messages=messages.costs(), crowding=crowd.factors())
    return best, 1e3 * estimate.iteration_seconds(best)


class Foretold:
    """Asynchronous runs, each planned anew from a run in turns just before: what a shared machine does to one it does to the other."""

    def __init__(self, iterations: int) -> None:
        self.iterations, self.predicted = iterations, 0.0

    def measure(self) -> float:
        plan, self.predicted = foretold()
        return side_by_side(plan, self.iterations)


def side_by_side(plan: Any, iterations: int) -> float:
    """Milliseconds from the end of an iteration to the end of the next (they overlap), by the wall clock: the mean after the first ones.

    ``plan``: of an asynchronous run; None: in turns on one core.
    """
    import rlinf_lab as lab

    flow, turns = in_turns(iterations)
    run = lab.run(flow, plan or turns, iterations, "processes")
    run.wait()
    ends = run.timeline.iterations()["end_ns"].sort_values().iloc[WARM:]
    return float(ends.iloc[-1] - ends.iloc[0]) / (len(ends) - 1) / 1e6


def returns(seeds: Sequence[int], steps: int) -> Callable[[], float]:
    """By how much the return of the asynchronous run is better than that of the synchronous one: of the second half of the looks, 20 episodes each."""
    rest = iter(seeds)

    def measure() -> float:
        seed = next(rest)
        found = [in_process("return", str(int(asynchronous)), str(seed), str(steps))["reached"] for asynchronous in (True, False)]
        print(f"  return, asynchronous and synchronous: {found}", flush=True)
        return float(found[0] - found[1])

    return measure


def reached(asynchronous: bool, seed: int, steps: int) -> dict[str, Any]:
    import rlinf_lab as lab

    def plan(flow: Any) -> Any:
        if not asynchronous:
            return lab.ExecutionPlan.temporal(flow, ["cpu:0"])
        on = {"simulator": [0], "policy": [0], "learner": [1]}
        return lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], on, staleness=1, fused=(("simulator", "policy"),))

    run = lab.train(
        "sac", ENV, total_timesteps=steps, seed=seed, plan=plan, folder=False, progress=False, eval_every=2048, eval_episodes=20, eval_seed=1,
        **TURNS,
    ).wait()  # fmt: skip
    looks = run.metrics["eval_return"].dropna()
    return {"reached": float(looks.iloc[len(looks) // 2 :].mean())}


def in_process(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case

    iterations = 8 if smoke else 30
    note = f"SAC on {ENV}, a gradient step for eight environment steps, nets 64-64; one core in turns, two with a staleness of 1"
    runs, found = 1 if smoke else 9, Foretold(iterations)
    yield Case("async_collect", "ms an iteration", found.measure, {"synchronous": lambda: side_by_side(None, iterations)}, target="<= 0.77",
               runs=runs, note=note)  # fmt: skip
    yield Case("async_collect_predicted", "ms an iteration", found.measure, {"predicted": lambda: found.predicted},
               target="<= 1.1", runs=runs, note=note + "; predicted from 14 iterations on one core, just before each run, by lab.estimate, which knows what messages cost and how "
               "much two busy cores slow each other down")  # fmt: skip
    if not smoke:
        yield Case("async_collect_return", "return", returns(range(5), 40_960), target=">= -25", target_of="value", runs=5,
                   note="asynchronous less synchronous, mean of the second half of the looks, 40,960 environment steps, seeds 0 to 4")  # fmt: skip


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = reached(sys.argv[2] == "1", int(sys.argv[3]), int(sys.argv[4]))
    print(json.dumps(result))
