"""The plan that a run finds by itself against every plan: the demo's task, placement × ranks × sub-batches enumerated, in alternating rounds.

Every plan is trained for some iterations in each round, in another order; the median over the rounds is what it takes. The automatic one is the plan that a
whole run of `train` ended with, and is measured among the others. A plan whose best round was a quarter slower than the median of the fastest after two rounds
goes no further: it cannot become the best, and the rounds of the others come nearer to one another in time.
"""

from __future__ import annotations

import random
import statistics
import time
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case

    from rlinf_lab.planning.plan.execution_plan import ExecutionPlan

ROUNDS, ITERATIONS, SECONDS = 7, 6, 60.0
A_MINUTE: dict[str, Any] = {"folder": False, "progress": False, "until": {"hours": SECONDS / 3600}}
ALL_RUN, HOPELESS = 2, 1.25  # rounds of every plan; then only those within this factor of the best


def every_plan(flow: Any, cores: int) -> list[ExecutionPlan]:
    """Simulator ranks × where the policy is × where the learner is × sub-batches, on so many cores."""
    from rlinf_lab.planning.plan.execution_plan import ExecutionPlan

    names, found = [f"cpu:{i}" for i in range(cores)], []
    for ranks in (n for n in range(1, cores + 1) if 8 % n == 0):
        simulators = list(range(ranks))
        alone = {f"on core {i}": [i] for i in range(cores) if [i] != simulators}
        for policy in {"with each simulator": simulators, **alone}.items():
            for learner in range(cores):
                for parts in (1, 2):
                    where, on = policy[0], {"simulator": simulators, "policy": policy[1], "learner": [learner]}
                    fused = (("simulator", "policy"),) if policy[1] == simulators and ranks > 1 else ()
                    name = f"{ranks} simulators × {parts}, policy {where}, learner on core {learner}"
                    found.append(ExecutionPlan.spatial(flow, names, on, name=name, sub_batches={"simulator": parts}, fused=fused))
    return found


def seconds_an_iteration(config: Any, plan: ExecutionPlan, iterations: int, own: bool) -> float:
    """Median, of a run of its own, without the first. ``own``: as the front door would run it."""
    from rlinf_lab.experiments.recipe import find
    from rlinf_lab.recipes.ppo import build
    from rlinf_lab.runtime.run.run import run

    flow, executed = build(config), plan
    if own:
        flow, executed = find("ppo").fused(config, flow, plan)
    executor = "local" if len({i for rank in executed.placements.values() for places in rank for i in places}) == 1 else "processes"
    rows = _waited(run(flow, executed, iterations + 1, executor)).metrics
    return float(rows["seconds"].iloc[1:].median())


def _waited(started: Any) -> Any:
    started.wait()
    return started


class Comparison:
    """All plans on ``cores`` cores, measured once."""

    def __init__(self, cores: int, smoke: bool) -> None:
        self.cores, self.smoke = cores, smoke

    @cached_property
    def every(self) -> dict[str, ExecutionPlan]:
        """By name."""
        from rlinf_lab.recipes.ppo import PPOConfig, build

        plans = every_plan(build(PPOConfig.preset(task(self.smoke))), self.cores)
        return {plan.name: plan for plan in (plans[:2] if self.smoke else plans)}

    @cache  # noqa: B019
    def measured(self) -> dict[str, list[float]]:
        """Seconds an iteration by plan, a number for each round; "auto" is what a run chose."""
        from rlinf_lab.recipes.ppo import PPOConfig

        config = PPOConfig.preset(task(self.smoke))
        plans = {name: (plan, False) for name, plan in self.every.items()}
        plans["auto"] = (self.chosen(), True)
        found: dict[str, list[float]] = {name: [] for name in plans}
        for number in range(1 if self.smoke else ROUNDS):
            order = list(plans)
            random.Random(number).shuffle(order)
            for name in order:
                if number < ALL_RUN or name == "auto" or min(found[name]) <= HOPELESS * min(map(statistics.median, found.values())):
                    found[name].append(seconds_an_iteration(config, plans[name][0], 1 if self.smoke else ITERATIONS, plans[name][1]))
        return found

    @cache  # noqa: B019
    def chosen(self) -> ExecutionPlan:
        """The plan that a run of a minute ended with, for all workers of the recipe."""
        import rlinf_lab as lab

        run = lab.train("ppo", task(self.smoke), iterations=10 if self.smoke else 300, devices=cpus(self.cores), **A_MINUTE)
        run.wait()
        assert run.auto is not None
        choice = run.auto.choice
        from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
        from rlinf_lab.recipes.ppo import build

        return ExecutionPlan.temporal(build(run.config), ["cpu:0"]) if choice is None else choice.new

    def auto(self) -> float:
        return statistics.median(self.measured()["auto"])

    def best(self) -> float:
        return statistics.median(self.measured()[self.best_name()])

    def best_name(self) -> str:
        """Of those that ran in every round."""
        found = self.measured()
        rounds = max(map(len, found.values()))
        return min((name for name in self.every if len(found[name]) == rounds), key=lambda name: statistics.median(found[name]))

    def minute(self) -> float:
        return a_minute(self.smoke, devices=cpus(self.cores))

    def minute_of_the_best(self) -> float:
        return a_minute(self.smoke, plan=self.every[self.best_name()])

    def table(self) -> list[list[Any]]:
        return [[name, statistics.median(seconds), min(seconds), max(seconds), len(seconds)] for name, seconds in sorted(self.measured().items(), key=lambda row: row[1])]


def task(smoke: bool) -> str:
    return "numpy/ReachArm-v0" if smoke else "metaworld/button-press-v3"


def cpus(cores: int) -> list[str]:
    return [f"cpu:{i}" for i in range(cores)]


def a_minute(smoke: bool, **how: Any) -> float:
    """Updates of a run of a minute, its start included; a second."""
    import rlinf_lab as lab

    began = time.perf_counter()
    run = lab.train("ppo", task(smoke), iterations=5 if smoke else 100_000, **how, **A_MINUTE)
    run.wait()
    return run.iteration / (time.perf_counter() - began)


def cases(smoke: bool) -> list[Case]:
    from harness import Case

    from rlinf_lab.runtime.machine.devices import cores as cores_here

    rows = []
    for cores in (1,) if smoke else (1, 2):
        if cores > len(cores_here()):
            continue
        compared = Comparison(cores, smoke)
        note = f"{'median of ' + str(ROUNDS) + ' alternating rounds'}; every plan enumerated; curve: plan, median, lowest, highest seconds of an iteration, rounds"
        rows.append(Case(f"auto_plan, {cores} cores", "s an iteration", compared.auto, {"the best of all plans": compared.best}, "<= 1.03", runs=1, note=note,
                         curve=compared.table))  # fmt: skip
        rows.append(Case(f"auto_plan, {cores} cores, a run of a minute", "updates/s", compared.minute,
                         {"a run of a minute under the best of all plans": compared.minute_of_the_best}, ">= 0.926", runs=1 if smoke else 3,
                         note="start, profiling and change included"))  # fmt: skip
    return rows
