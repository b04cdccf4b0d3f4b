"""Workers have habits: one takes everything before it works, another gives everything at its end; a simulator asks for all its environments at once, or one by
one. They are seen in a few runs, and every plan takes as long as it says: random workflows, measured and run on a virtual clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_runs import profiled, run, seconds
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.fit.fit import fitted
from rlinf_lab.planning.fit.habits import Moments, agreed
from rlinf_lab.planning.fit.samples import Observed
from rlinf_lab.planning.profile.profile import Profile, RankRule
from rlinf_lab.runtime.profiling.profiler import _Measuring

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
    return Observed.of(flow.graph, plan, run(flow, plan, 3).timeline)


def measured(flow: lab.Workflow) -> Profile:
    """Under the plans of the profiler, on a virtual clock."""
    measuring = _Measuring(flow, tuple(DEVICES), {}, None, 2, "local")
    plan = measuring._plan("one rank", 1)
    first = observed(flow, plan)
    smaller, at_once = measuring._smaller(first), measuring._together(first, plan)
    return fitted([observed(flow, p) if p is not plan else first for p in (plan, measuring._together(first, smaller) or smaller, at_once or plan)])


def took(flow: lab.Workflow, plan: lab.ExecutionPlan | lab.Planned) -> float:
    return seconds(run(flow, plan, 3))


# Of seed 5 the second plan is slower by its prediction than it runs, 0.142 against 0.112 s: two workers that share devices with a third are
# followed batch by batch, although one hands items on within its batch. The plan that is chosen is right.
PESSIMISTIC = pytest.param(5, marks=pytest.mark.xfail(strict=True, reason="items that are handed on within a batch, in a plan that loses"))


@pytest.mark.parametrize("seed", [*range(5), PESSIMISTIC, 6, 8, *(pytest.param(s, marks=pytest.mark.slow) for s in (7, *range(9, 120)))])
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


@pytest.mark.parametrize("micro_batch", [1, 3, 12])
def test_a_plan_by_hand_in_other_batches_is_foreseen_too(micro_batch: int) -> None:
    flow = collecting()
    profile = measured(flow)
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:1], micro_batches={"obs": micro_batch}, in_flight={"simulator": ITEMS})
    assert lab.planning.planned(flow, plan, profile).seconds == pytest.approx(took(flow, plan), rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 5])
def test_no_rank_waits_for_a_batch_that_does_not_fill(ranks: int) -> None:
    flow, devices = collecting(), [f"cpu:{i}" for i in range(6)]
    profile = measured(flow).with_worker("policy", ranks=RankRule(counts=(ranks,)))
    plans = lab.plan(flow, devices, profile)
    assert {p.execution.micro_batches["obs"] for p in plans} == {{2: 6, 5: 2}[ranks]}
    for plan in plans:
        took(flow, plan)  # it would wait for ever
    with pytest.raises(PlanError, match=r"micro-batch of channel 'obs' is 13, but only 12 tokens circulate"):
        lab.ExecutionPlan.temporal(flow, DEVICES[:1], micro_batches={"obs": 13}, in_flight={"simulator": ITEMS})


def test_a_run_in_one_size_says_what_it_cannot_tell() -> None:
    flow = collecting()
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:1])
    notes = lab.planning.profile_from_run(flow, plan, run(flow, plan, 3).timeline).notes
    assert any("'policy' (1 item)" in n and "'learner' (12 items)" in n and "'source'" not in n and "What a batch takes by itself" in n for n in notes)
    assert not any("What a batch takes by itself" in n for n in measured(flow).notes)


def test_a_run_is_read_with_the_plan_that_the_search_found() -> None:
    """As `lab.run` takes it."""
    flow = collecting()
    best = lab.plan(flow, DEVICES, measured(flow)).best
    done = run(flow, best, 3)
    assert lab.planning.profile_from_run(flow, best, done.timeline) == lab.planning.profile_from_run(flow, best.execution, done.timeline)
    with pytest.raises(PlanError, match=r"in which no channel is keyed.*Next: lab\.planning\.planned"):
        lab.estimate(flow, best, done.timeline)
    with pytest.raises(PlanError, match=r"plan is 'best'; it must be an ExecutionPlan"):
        lab.estimate(flow, "best", done.timeline)


# --- own batches: as many as they ask for, several at a time, what another reader left ------------------------------
class Choosy(Habitual):
    """``habit``: "get 6" asks for six items at a time, "2 batches" works on two batches together."""

    def work(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        count, held = int(self.habit.split()[-1 if self.habit.startswith("get") else 0]), []
        if self.habit.startswith("get"):
            while batch := inbox.get(count):
                self.spend(len(batch))
                out.put_all(batch)
            return
        for i, batch in enumerate(inbox, start=1):
            held += batch
            if i % count == 0:
                self.spend(len(held))
                out.put_all(held)
                held = []
        if held:
            self.spend(len(held))
            out.put_all(held)


def choosy(habit: str, capacity: int | None = None) -> lab.Workflow:
    flow = lab.Workflow("choosy")
    a, b, c = flow.channel("a", capacity=None), flow.channel("b", capacity=capacity), flow.channel("c", capacity=None)
    source, stage = flow.worker(Source, "stream", 0.0, 0.001, name="source"), flow.worker(Stage, "batch", 0.002, 0.003, name="stage")
    taker, learner = flow.worker(Choosy, habit, 0.002, 0.003, name="taker"), flow.worker(Learner, "batch", 0.0, 0.001, name="learner")

    @flow.iteration
    def iteration() -> None:
        source.make(a)
        stage.work(a, b)
        taker.work(b, c)
        learner.train(c)

    return flow


@pytest.mark.parametrize(("habit", "group"), [("get 2", 2), ("get 6", 6), ("get 5", 1), ("get 12", 1), ("1 batches", 1)])
def test_who_asks_for_so_many_is_sent_as_many(habit: str, group: int) -> None:
    """Plans had it work on two items where it waited for six: 19 % too fast. Who takes what comes, or all, is in no groups; nor is who asks for a number that
    does not divide all of them, and of that one it is said."""
    flow = choosy(habit)
    profile = measured(flow)
    assert {(e.producer, e.consumer): e.group for e in profile.edges if e.group > 1} == ({("stage", "taker"): group} if group > 1 else {})
    notes = [n for n in profile.notes if f"'taker' asks for {habit.split()[-1]} items at a time" in n]
    assert len(notes) == (habit in ("get 2", "get 6", "get 5")) and all(("whatever a plan's batches are" in n) == (group == 1) for n in notes)
    plans = lab.plan(flow, DEVICES, profile) if group > 1 else []
    for plan in plans:
        assert plan.execution.micro_batches["b"] % group == 0, plan.shape
        assert plan.seconds_are == "followed" or plan.seconds >= 0.97 * took(flow, plan), plan.shape
    for best in plans[:1]:
        assert best.seconds == pytest.approx(took(flow, best), rel=0.01)


@pytest.mark.parametrize(("between", "told"), [(0.01, True), (0.05, None), (0.3, False)])
def test_a_read_that_waited_for_its_core_tells_nothing(between: float, told: bool | None) -> None:
    moments = Moments()
    for took_s in (0.0, between, 1.0 - between):
        moments.computed(took_s)
        if moments.busy < 1.0:
            moments.got("c", 4)
    moments.gave("out", 8)
    assert moments.takes_all("c", 4) is told
    assert agreed([told, True]) is (told is not False)


def test_who_got_nothing_is_not_taken_for_quick() -> None:
    """Where one of two readers took everything, the other one counted as needing no time for it, and any plan was off by any factor."""
    flow = lab.Workflow("two readers")
    a, b = flow.channel("a", capacity=None), flow.channel("b", capacity=None)
    source, learner = flow.worker(Source, "end", 0.0, 0.001, name="source"), flow.worker(Learner, "batch", 0.002, 0.003, name="learner")
    readers = [flow.worker(Stage, "batch", fixed, 0.003, name=name) for name, fixed in (("one", 0.002), ("other", 0.001))]

    @flow.iteration
    def iteration() -> None:
        source.make(a)
        for reader in readers:
            reader.work(a, b)
        learner.train(b)

    profile = measured(flow)
    assert [(s.items, round(s.seconds, 6)) for s in profile.workers["other"].samples] == [(ITEMS / 2, 0.01)]
    assert any("Channel 'a' is read by one, other" in n for n in profile.notes)
    best = lab.plan(flow, DEVICES, profile).best
    assert best.seconds >= 0.9 * took(flow, best)  # it was 0.75 of that; shares are as they were measured


# --- all of one input before the next: seen in a run, and simulated so ------------------------------------------


def reader(a: float, b: float, j: float, in_turn: str = "j") -> lab.Workflow:
    """j takes all of a before it takes any of b, or a batch of each at a time."""
    return timed("aj bj", 16, {"a": (0, a), "b": (0, b), "j": (0, j)}, in_turn=in_turn)[0]


@settings(max_examples=4, deadline=None)
@given(st.tuples(*[st.floats(0.001, 0.05)] * 3))
def test_plans_of_inputs_in_turn_take_what_a_run_takes(times: tuple[float, float, float]) -> None:
    flow = reader(*times)
    profile, together = profiled(flow), profiled(reader(*times, ""))
    assert [(p, pytest.approx(part)) for p, part in profile.workers["j"].in_turn] == [("a", 0.5), ("b", 0.5)] and together.workers["j"].in_turn == ()
    assert Profile.from_json(profile.to_json()) == profile and not lab.plan(together, 3).best.notes
    plans = lab.plan(flow, DEVICES, profile)
    assert plans.bound.seconds <= plans.best.seconds * (1 + 1e-6)
    close = {"a | b | j": 0.02, "(a | b) > j": 1e-6, plans["temporal"].shape: 1e-6}  # in turns a and b may change places
    for plan in plans:
        if plan.shape in close:
            assert seconds(run(flow, plan)) == pytest.approx(plan.seconds, rel=close[plan.shape])
    assert plans["a | b | j"].candidate.seconds == pytest.approx(plans["a | b | j"].seconds, rel=0.02)
