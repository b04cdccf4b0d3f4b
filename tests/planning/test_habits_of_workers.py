"""Workers have habits: one takes everything before it works, another gives everything at its end; a simulator asks for all its environments at once, or one by
one. They are seen in a few runs, and every plan takes as long as it says: random workflows, measured and run on a virtual clock."""

from __future__ import annotations

import random

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning.fit.fit import fitted
from rlinf_lab.planning.fit.samples import Observed
from rlinf_lab.planning.profile.profile import Cell, EdgeProfile, Profile, RankRule
from rlinf_lab.runtime.profiling.profiler import _Measuring
from rlinf_lab.runtime.threads.clocks import MockClock

ITEMS, STEPS = 12, 3
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Habitual(lab.Worker):
    """Every batch takes ``fixed`` seconds, and ``each`` for each of its items."""

    def __init__(self, habit: str = "", fixed: float = 0.0, each: float = 0.0) -> None:
        self.habit, self.fixed, self.each = habit, fixed, each

    def spend(self, items: int) -> None:
        self.compute(self.fixed + self.each * items)


class Source(Habitual):
    def make(self, out: lab.Outbox) -> None:
        self.spend(0)
        if self.habit == "end":
            self.compute(self.each * ITEMS)
            out.put_all(list(range(ITEMS)))
            return
        for i in range(ITEMS):
            self.compute(self.each)
            out.put(i)


class Stage(Habitual):
    def work(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        if self.habit == "all":
            every = [x for batch in inbox for x in batch]
            self.spend(len(every))
            out.put_all(every)
            return
        kept = []
        for batch in inbox:
            self.spend(len(batch))
            if self.habit == "end":
                kept += batch
            else:
                out.put_all(batch)
        out.put_all(kept)


class Simulator(Habitual):
    def roll(self, seeds: lab.Inbox, actions: lab.Inbox, obs: lab.Outbox, done: lab.Outbox) -> None:
        if self.habit == "all":
            done.put_all(self.play([x for batch in seeds for x in batch], actions, obs))
            return
        for batch in seeds:
            for some in [[x] for x in batch] if self.habit == "one" else [batch]:
                done.put_all(self.play(some, actions, obs))

    def play(self, environments: list[int], actions: lab.Inbox, obs: lab.Outbox) -> list[int]:
        for _ in range(STEPS):
            self.spend(len(environments))
            obs.put_all(environments)
            answered = 0
            while answered < len(environments):
                answered += len(actions.get())
        return environments


class Policy(Habitual):
    def act(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in obs:
            self.spend(len(batch))
            actions.put_all(batch)


class Learner(Habitual):
    def train(self, inbox: lab.Inbox) -> None:
        if self.habit == "all":
            self.spend(sum(len(batch) for batch in inbox))
            return
        for batch in inbox:
            self.spend(len(batch))


def random_flow(seed: int) -> lab.Workflow:
    rng = random.Random(seed)
    flow, letters = lab.Workflow("habits"), iter("abcdefgh")

    def worker(cls: type[Habitual], name: str, *habits: str):
        return flow.worker(cls, rng.choice(habits), rng.choice([0.0, 0.002, 0.01]), rng.choice([0.001, 0.003, 0.006]), name=name)

    def channel():
        return flow.channel(next(letters), capacity=None)

    source, seeds = worker(Source, "source", "end", "stream"), channel()
    made, cell = seeds, None
    if rng.random() < 0.5:
        cell = worker(Simulator, "simulator", "all", "batch", "one"), worker(Policy, "policy", "")
        actions, obs, made = channel(), channel(), channel()
    stages, rolled = [], made
    for i in range(rng.choice([0, 1, 2])):
        stages.append((worker(Stage, f"stage{i}", "all", "end", "batch"), made, made := channel()))
    learner = worker(Learner, "learner", "all", "batch")

    @flow.iteration
    def iteration() -> None:
        source.make(seeds)
        if cell:
            cell[0].roll(seeds, actions, obs, rolled)
            cell[1].act(obs, actions)
        for stage, inbox, out in stages:
            stage.work(inbox, out)
        learner.train(made)

    return flow


def observed(flow: lab.Workflow, plan: lab.ExecutionPlan) -> Observed:
    run = lab.run(flow, plan, 3, dashboard=False, clock=MockClock())
    run.wait()
    return Observed.of(flow.graph, plan, run.timeline)


def measured(flow: lab.Workflow) -> Profile:
    """Under the plans of the profiler, on a virtual clock."""
    measuring = _Measuring(flow, tuple(DEVICES), {}, None, 2, "local")
    plan = measuring._plan("one rank", 1)
    first = observed(flow, plan)
    smaller, at_once = measuring._smaller(first), measuring._together(first, plan)
    return fitted([observed(flow, p) if p is not plan else first for p in (plan, measuring._together(first, smaller) or smaller, at_once or plan)])


def took(flow: lab.Workflow, plan: lab.ExecutionPlan | lab.Planned) -> float:
    run = lab.run(flow, plan, 3, dashboard=False, clock=MockClock())
    run.wait()
    return float(run.timeline.iterations()["seconds"].iloc[-1])


# Of seed 5 the second plan is slower by its prediction than it runs, 0.142 against 0.112 s: two workers that share devices with a third are
# followed batch by batch, although one hands items on within its batch. The plan that is chosen is right.
PESSIMISTIC = pytest.param(5, marks=pytest.mark.xfail(strict=True, reason="items that are handed on within a batch, in a plan that loses"))


@pytest.mark.parametrize(
    "seed", [*range(5), PESSIMISTIC, *range(6, 10), *(pytest.param(s, marks=pytest.mark.slow) for s in range(10, 120))]
)
def test_every_plan_takes_as_long_as_it_says(seed: int) -> None:
    """Only who gives something before its batch is over (a simulator that plays one environment after the other) may be faster."""
    flow = random_flow(seed)
    for plan in lab.plan(flow, DEVICES, measured(flow)):
        assert 0.97 <= plan.seconds / took(flow, plan) <= 1.08, plan.shape


class Join(Habitual):
    def both(self, a: lab.Inbox, b: lab.Inbox) -> None:
        first = [x for batch in a for x in batch]
        self.spend(len(first) + sum(len(batch) for batch in b))

    def one_and_batches(self, a: lab.Inbox, b: lab.Inbox) -> None:
        first = [x for batch in a for x in batch]
        self.compute(self.fixed)
        for batch in b:
            self.compute(self.each * len(batch) * len(first) / ITEMS)


@pytest.mark.parametrize("how", ["both", "one_and_batches"])
def test_who_reads_two_inputs_first_waits_for_both(how: str) -> None:
    """It was taken for one that works on the first input while the second one is still made: its plans took up to half as long again as they said."""
    flow = lab.Workflow("join")
    seeds, a, b = (flow.channel(name, capacity=None) for name in ("seeds", "a", "b"))
    source, stage = flow.worker(Source, "stream", 0.0, 0.001, name="source"), flow.worker(Stage, "batch", 0.002, 0.003, name="stage")
    other, join = flow.worker(Source, "stream", 0.001, 0.005, name="other"), flow.worker(Join, "", 0.002, 0.003, name="join")

    @flow.iteration
    def iteration() -> None:
        source.make(seeds)
        stage.work(seeds, a)
        other.make(b)
        getattr(join, how)(a, b)

    profile = measured(flow)
    assert {e.whole for e in profile.edges if e.consumer == "join"} == {how == "both"}
    assert bool(profile.workers["join"].in_turn) == (how != "both")
    simulated = [plan for plan in lab.plan(flow, DEVICES, profile) if plan.seconds_are == "simulated"]
    assert len(simulated) >= 3
    for plan in simulated:
        assert 0.97 <= plan.seconds / took(flow, plan) <= (1.03 if how == "both" else 1.1), plan.shape


def collecting(simulator: str = "all") -> lab.Workflow:
    """A simulator that reads its seeds, puts an observation for each of them and waits for all answers."""
    flow = lab.Workflow("collecting")
    seeds, actions, obs, done = (flow.channel(name, capacity=None) for name in ("seeds", "actions", "obs", "done"))
    source, learner = flow.worker(Source, "end", each=0.0001, name="source"), flow.worker(Learner, "batch", 0.01, 0.004, name="learner")
    environments, policy = flow.worker(Simulator, simulator, 0.004, 0.0003, name="simulator"), flow.worker(Policy, "", 0.001, 0.0004, name="policy")

    @flow.iteration
    def iteration() -> None:
        source.make(seeds)
        environments.roll(seeds, actions, obs, done)
        policy.act(obs, actions)
        learner.train(done)

    return flow


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 6, 12])
def test_a_plan_by_hand_in_other_batches_is_foreseen_too(micro_batch: int) -> None:
    flow = collecting()
    profile = measured(flow)
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:1], micro_batches={"obs": micro_batch}, in_flight={"simulator": ITEMS})
    assert lab.planning.planned(flow, plan, profile).seconds == pytest.approx(took(flow, plan), rel=1e-6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_no_rank_waits_for_a_batch_that_does_not_fill(ranks: int) -> None:
    flow, devices = collecting(), [f"cpu:{i}" for i in range(6)]
    profile = measured(flow).with_worker("policy", ranks=RankRule(counts=(ranks,)))
    plans = lab.plan(flow, devices, profile)
    assert {p.execution.micro_batches["obs"] for p in plans} == {{1: 12, 2: 6, 3: 4, 5: 2}[ranks]}
    for plan in plans:
        took(flow, plan)  # it would wait for ever
    with pytest.raises(PlanError, match=r"micro-batch of channel 'obs' is 13, but only 12 tokens circulate"):
        lab.ExecutionPlan.temporal(flow, DEVICES[:1], micro_batches={"obs": 13}, in_flight={"simulator": ITEMS})


def test_a_run_in_one_size_says_what_it_cannot_tell() -> None:
    flow = collecting()
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:1])
    run = lab.run(flow, plan, 3, dashboard=False, clock=MockClock())
    run.wait()
    notes = lab.planning.profile_from_run(flow, plan, run.timeline).notes
    assert any("'policy' (1 item)" in n and "'learner' (12 items)" in n and "'source'" not in n and "What a batch takes by itself" in n for n in notes)
    assert not any("What a batch takes by itself" in n for n in measured(flow).notes)


def test_what_cannot_be_of_a_cell_is_refused() -> None:
    profile = measured(collecting())
    with pytest.raises(ConfigError, match=r"profile.cells\[0\] has tokens: 12, which go round together .* sub_batches: \[1, 2\]"):
        profile.replace(cells=(Cell(("simulator", "policy"), (1, 2), 12),))
    edges = [EdgeProfile(e.producer, e.consumer, e.group, e.whole, at_end=e.producer == "policy") for e in profile.edges]
    with pytest.raises(ConfigError, match=r"at_end is True between members of a cell"):
        profile.replace(edges=tuple(edges))


def test_a_run_is_read_with_the_plan_that_the_search_found() -> None:
    """As `lab.run` takes it."""
    flow = collecting()
    best = lab.plan(flow, DEVICES, measured(flow)).best
    run = lab.run(flow, best, 3, dashboard=False, clock=MockClock())
    run.wait()
    assert lab.planning.profile_from_run(flow, best, run.timeline) == lab.planning.profile_from_run(flow, best.execution, run.timeline)
    found = lab.estimate(flow, best, run.timeline)
    assert found.simulate(best, 3).iterations()["seconds"].iloc[-1] == pytest.approx(best.seconds, rel=1e-6)
    with pytest.raises(PlanError, match=r"plan is 'best'; it must be an ExecutionPlan"):
        lab.estimate(flow, "best", run.timeline)


@pytest.mark.parametrize("habit", ["all", "batch", "one"])
def test_the_head_of_a_cell_is_replayed(habit: str) -> None:
    """What it does in a round had been spread evenly over its gets: a simulation that stood still, or an order that was not understood."""
    flow = collecting(habit)
    plans, foretold = list(lab.plan(flow, DEVICES, measured(flow))), 0
    run = lab.run(flow, plans[0], 3, dashboard=False, clock=MockClock())
    run.wait()
    found = lab.estimate(flow, plans[0], run.timeline)
    for plan in plans:
        try:
            seconds = found.simulate(plan, 3).iterations()["seconds"].iloc[-1]
        except PlanError as error:
            assert habit != "all" and "'seeds'" in str(error) and "Next: the same micro-batch, or measure this plan" in str(error)
            continue
        foretold += 1
        assert seconds == pytest.approx(took(flow, plan), rel=1e-6), plan.shape
    assert foretold == len(plans) if habit == "all" else foretold
