"""How far the simulator's prediction of a plan is from the plan's execution: one plan is measured, all others are predicted from it and then run.

Timed workers sleep, so that 1 to 16 devices can be emulated on any machine; the real ones are PPO on ReachArm (numpy) and on
Meta-World, in processes on two cores. An error is |predicted / measured - 1| of the seconds of an iteration, medians over the iterations of a run, the
first one left out. Real plans are all open at once and work in turn, round after round, so that a machine that is slower in one minute than in the next is
so for all of them.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Case

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.executors.ray_start import shutdown
from rlinf_lab.runtime.run.run import run
from rlinf_lab.timeline.timeline import Timeline

PICTURE = Path(__file__).parents[1] / "docs" / "prediction_error.png"
ITEMS = 48


# --- timed workers --------------------------------------------------------------------------------------------
class Source(lab.Worker):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def produce(self, n: int, out: lab.Outbox) -> None:
        for i in range(n):
            self.compute(self.seconds)
            out.put(i)


class Stage(lab.Worker):
    """``fixed`` seconds a batch and ``each`` an item."""

    def __init__(self, fixed: float, each: float) -> None:
        self.fixed, self.each = fixed, each

    def work(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        for batch in inbox:
            self.compute(self.fixed + self.each * len(batch))
            out.put_all(batch)


class Learner(lab.Worker):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def learn(self, inbox: lab.Inbox) -> int:
        items = inbox.get_all()
        self.compute(self.seconds)
        return len(items)


class Sim(lab.Worker):
    """The simulator of a cell: ``steps`` steps of each token."""

    def __init__(self, seconds: float, steps: int, tokens: int) -> None:
        self.seconds, self.steps, self.tokens = seconds, steps, tokens

    def collect(self, actions: lab.Inbox, obs: lab.Outbox, traj: lab.Outbox) -> None:
        share = self.tokens // self.ranks
        mine = range(self.rank * share, (self.rank + 1) * share)
        for key in mine:
            self.compute(self.seconds)
            obs.put(key)
        for left in range(self.steps - 1, -1, -1):
            for key in mine:
                actions.take(key=key)
                self.compute(self.seconds)
                if left:
                    obs.put(key)
        for key in mine:
            traj.put(key)


class Policy(lab.Worker):
    def __init__(self, fixed: float, each: float) -> None:
        self.fixed, self.each = fixed, each

    def act(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in obs:
            self.compute(self.fixed + self.each * len(batch))
            for key in batch:
                actions.put(key, key=key)


def chain(source: float, fixed: float, each: float, learn: float, stages: int = 1) -> lab.Workflow:
    flow = lab.Workflow(f"chain of {stages + 2}")
    channels = [flow.channel(f"c{i}") for i in range(stages)] + [flow.channel("done", whole=True)]
    first = flow.worker(Source, source, name="source")
    middle = [flow.worker(Stage, fixed * (1 + i / 2), each, name=f"stage{i}") for i in range(stages)]
    learner = flow.worker(Learner, learn, name="learner")

    @flow.iteration
    def iteration() -> Any:
        first.produce(ITEMS, channels[0])
        for stage, inbox, out in zip(middle, channels, channels[1:], strict=False):
            stage.work(inbox, out)
        return learner.learn(channels[-1])

    return flow


def cell(sim: float, fixed: float, each: float, learn: float, tokens: int = 4) -> lab.Workflow:
    flow = lab.Workflow("cell")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    simulator = flow.worker(Sim, sim, 13, tokens, name="sim")
    policy, learner = flow.worker(Policy, fixed, each, name="policy"), flow.worker(Learner, learn, name="learner")

    @flow.iteration
    def iteration() -> Any:
        simulator.collect(act, obs, traj)
        policy.act(obs, act)
        return learner.learn(traj)

    return flow


def devices(n: int) -> list[str]:
    return [f"cpu:{i}" for i in range(n)]


def chain_plans(flow: lab.Workflow, stages: int) -> Iterator[ExecutionPlan]:
    """Temporal, spatial with several micro-batch sizes and ranks, and hybrids that share one device."""
    middle = [f"stage{i}" for i in range(stages)]
    # Batches of two sizes, so that a batch's and an item's seconds can be told apart.
    yield ExecutionPlan.temporal(flow, devices(1), name="temporal on 1", micro_batches={f"c{i}": 20 for i in range(stages)})
    for ranks in (1, 2, 4, 14 // stages):
        used = {"source": [0]}
        for i, name in enumerate(middle):
            used[name] = list(range(1 + i * ranks, 1 + (i + 1) * ranks))
        last = 1 + stages * ranks
        for micro_batch in (1, 4, 12):
            yield ExecutionPlan.spatial(
                flow, devices(last + 1), {**used, "learner": [last]}, micro_batch=micro_batch, name=f"spatial on {last + 1}, micro-batch {micro_batch}"
            )
        yield ExecutionPlan.spatial(flow, devices(last), {**used, "learner": [0]}, micro_batch=4, name=f"hybrid on {last}")


def cell_plans(flow: lab.Workflow, tokens: int) -> Iterator[ExecutionPlan]:
    """The tokens are shared by ranks and sub-batches; their number stays."""
    whole = {"sub_batches": {"sim": tokens}}
    yield ExecutionPlan.temporal(flow, devices(1), name="temporal on 1", micro_batches={"obs": 3}, **whole)  # 52 observations: batches of three and of one
    for ranks in (2, 4):
        split = {"sub_batches": {"sim": tokens // ranks}}
        yield ExecutionPlan.temporal(flow, devices(ranks), {"sim": ranks, "policy": ranks}, name=f"temporal on {ranks}", **split)
        yield ExecutionPlan.fused_cells(flow, devices(ranks), {"sim": ranks}, name=f"fused on {ranks}", **split)
    for ranks in (1, 2, 4):
        for micro_batch in (1, tokens // 2):
            on = {"sim": list(range(ranks)), "policy": [ranks], "learner": [ranks + 1]}
            split = {"sub_batches": {"sim": tokens // ranks}, "micro_batches": {"obs": micro_batch}}
            yield ExecutionPlan.spatial(flow, devices(ranks + 2), on, name=f"spatial on {ranks + 2}, micro-batch {micro_batch}", **split)


# --- real workers ---------------------------------------------------------------------------------------------
def ppo_plans(flow: lab.Workflow) -> Iterator[ExecutionPlan]:
    """Two tokens on one core and on two; the policy answers them one by one."""
    double, single = {"sub_batches": {"simulator": 2}}, {"sub_batches": {"simulator": 1}}
    yield ExecutionPlan.temporal(flow, devices(1), name="temporal on 1", micro_batches={"obs": 1}, **double)
    yield ExecutionPlan.fused_cells(flow, devices(1), name="fused on 1", micro_batches={"obs": 1}, **double)
    yield ExecutionPlan.fused_cells(flow, devices(2), {"simulator": 2}, name="fused on 2", micro_batches={"obs": 1}, **single)
    yield ExecutionPlan.temporal(flow, devices(2), {"simulator": 2, "policy": 2}, name="temporal on 2", micro_batches={"obs": 1}, **single)
    on = {"simulator": [0], "policy": [1], "learner": [1]}
    yield ExecutionPlan.spatial(flow, devices(2), on, name="spatial on 2", micro_batches={"obs": 1}, **double)
    on = {"simulator": [0], "policy": [1], "learner": [0]}
    yield ExecutionPlan.spatial(flow, devices(2), on, name="hybrid on 2", micro_batches={"obs": 1}, **double)


@dataclass(frozen=True)
class Point:
    workers: str
    """timed or real, which workflow"""
    plan: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)


def executed(flow: lab.Workflow, plan: ExecutionPlan, iterations: int, executor: str) -> tuple[Timeline, float]:
    """The timeline, and the median seconds of an iteration but the first."""
    done = run(flow, plan, iterations + 1, executor, emulate=True)
    done.wait(300)
    return done.timeline, statistics.median(done.metrics["seconds"].tolist()[1:])


def in_turn(flow: lab.Workflow, plans: Sequence[ExecutionPlan], rounds: int, executor: str) -> tuple[list[tuple[Timeline, float]], dict[str, Any]]:
    """Each plan's timeline and the median seconds of its iterations that count: a round is two iterations of each plan after another, and of those the
    first brings back to the caches what the other plans have driven out, which no run does.

    And what an estimate wants to know: which iterations count, and, measured in the same rounds, how much two busy cores slow this workflow down and what
    messages cost.
    """
    with (
        lab.profiling.Crowd(executor, devices(2), flow, emulate=True) as crowd,
        lab.profiling.PingPong(executor, devices(2), emulate=True) as messages,
        contextlib.ExitStack() as stack,
    ):
        sessions = [stack.enter_context(lab.session(flow, plan, executor, emulate=True)) for plan in plans]
        for _ in range(rounds + 1):
            for session in sessions:
                session.step()
                session.step()
            crowd.round()
            messages.round()
    seconds = [s.timeline.iterations().set_index("iteration")["seconds"] for s in sessions]
    counted = range(1, 2 * rounds + 2, 2)
    ran = [(s.timeline, float(own.loc[list(counted[1:])].median())) for s, own in zip(sessions, seconds, strict=True)]
    return ran, {"iterations": counted, "messages": messages.costs(), "crowding": crowd.factors()}


def compared(name: str, flow: lab.Workflow, plans: Iterator[ExecutionPlan], iterations: int, **known: Any) -> list[Point]:
    """In threads. The first plan is measured and the estimate made from it and what else is ``known``; the others are predicted and run."""
    first, *others = plans
    estimate = lab.estimate(flow, first, executed(flow, first, iterations, "local")[0], **known)
    return [Point(name, plan.name, estimate.iteration_seconds(plan), executed(flow, plan, iterations, "local")[1]) for plan in others]


def compared_in_processes(name: str, flow: lab.Workflow, plans: Iterator[ExecutionPlan], rounds: int, executor: str) -> list[Point]:
    """The same for real workers; what messages cost and how much two busy cores slow each other down is measured, too."""
    every = list(plans)
    ((timeline, _), *ran), found = in_turn(flow, every, rounds, executor)
    estimate = lab.estimate(flow, every[0], timeline, **found)
    return [Point(name, plan.name, estimate.iteration_seconds(plan), measured) for plan, (_, measured) in zip(every[1:], ran, strict=True)]


def experiments(smoke: bool) -> Iterator[Callable[[], list[Point]]]:
    for source, fixed, each, learn, stages in ((0.002, 0.004, 0.002, 0.03, 1), (0.004, 0.001, 0.006, 0.06, 1), (0.001, 0.008, 0.001, 0.02, 2)):
        flow = chain(source, fixed, each, learn, stages)
        yield lambda flow=flow, stages=stages: compared(f"timed {flow.name}", flow, chain_plans(flow, stages), 1 if smoke else 5)
        if smoke:
            return
    for sim, fixed, each, learn in ((0.004, 0.002, 0.001, 0.03), (0.002, 0.006, 0.001, 0.05)):
        flow = cell(sim, fixed, each, learn)
        yield lambda flow=flow: compared("timed cell", flow, cell_plans(flow, 4), 5)
    for task in ("numpy/ReachArm-v0", "metaworld/button-press-v3"):
        flow = build(PPOConfig.preset(task))
        yield lambda flow=flow, task=task: compared_in_processes(f"PPO, {task}", flow, ppo_plans(flow), 12, "ray")


class Points:
    """All experiments, run once; what the rows and the picture are made from."""

    def __init__(self, smoke: bool) -> None:
        self._smoke, self._found = smoke, None  # type: ignore[var-annotated]

    def get(self) -> list[Point]:
        if self._found is None:
            self._found = [point for experiment in experiments(self._smoke) for point in experiment()]
            shutdown()
            if not self._smoke:
                draw(self._found)
        return self._found

    def timed(self) -> list[Point]:
        return [p for p in self.get() if p.workers.startswith("timed")]

    def note(self) -> str:
        worst = sorted(self.get(), key=lambda p: -p.error)[:4]
        return json.dumps([f"{p.workers}, {p.plan}: predicted {p.predicted:.3f} s, measured {p.measured:.3f}" for p in worst])


def draw(points: list[Point]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 5.2), dpi=130)
    ends = [min(p.measured for p in points) * 0.8, max(p.measured for p in points) * 1.2]
    axes.fill_between(ends, [0.85 * e for e in ends], [1.15 * e for e in ends], color="#9aa5b1", alpha=0.25, lw=0, label="within 15 %")
    axes.plot(ends, ends, color="#444", lw=1)
    for name, marker in zip(dict.fromkeys(p.workers for p in points), "o^sDvPX*", strict=False):
        mine = [p for p in points if p.workers == name]
        axes.scatter([p.measured for p in mine], [p.predicted for p in mine], marker=marker, s=26, alpha=0.8, label=f"{name} ({len(mine)})")
    axes.set(xscale="log", yscale="log", xlabel="measured seconds of an iteration", ylabel="predicted", xlim=ends, ylim=ends)
    mean = statistics.mean(p.error for p in points)
    axes.set_title(f"{len(points)} plans: mean error {100 * mean:.1f} %, worst {100 * max(p.error for p in points):.0f} %", fontsize=11)
    axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURE)


def cases(smoke: bool) -> list[Case]:
    points = Points(smoke)
    rows = (
        ("prediction_error, mean", lambda: statistics.mean(p.error for p in points.get()), "<= 0.05"),
        ("prediction_error, worst", lambda: max(p.error for p in points.get()), "<= 0.15"),
        ("prediction_error, timed workers, mean", lambda: statistics.mean(p.error for p in points.timed()), "<= 0.05"),
        ("prediction_error, timed workers, worst", lambda: max(p.error for p in points.timed()), "<= 0.15"),
    )
    return [
        Case(
            name, "|predicted / measured - 1|", ours, target=target, target_of="value", runs=1,
            note="docs/prediction_error.png; curve: plan, predicted, measured",
            curve=(lambda: [[i, p.predicted, p.measured] for i, p in enumerate(points.get())]) if name.endswith("error, mean") else None,
        )
        for name, ours, target in rows
    ]  # fmt: skip
