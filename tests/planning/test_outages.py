"""Devices that are preempted, fail or come later: in closed form, and on random flows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from random_flows import scenario
from sweeps import sweep

from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.simulator.simulator import Outage, SimCall, Simulator, get, put, run
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DOCS = Path(__file__).parents[2] / "docs" / "profiles"
MS = 1_000_000


class Stage(Worker):
    def make(self, out: Outbox) -> None:
        out.put(1)

    def use(self, inbox: Inbox) -> None:
        for _ in inbox:
            pass


def flow() -> Workflow:
    made = Workflow("two")
    items = made.channel("items", capacity=None)
    a, b = made.worker(Stage, name="a"), made.worker(Stage, name="b")

    @made.iteration
    def iteration() -> None:
        a.make(items)
        b.use(items)

    return made


def simulated(on: dict[str, list[int]], *outages: Outage, devices: int = 2) -> Timeline:
    """``a`` makes four items of 5 ms, ``b`` takes 3 ms for each."""

    def a(turn):
        for _ in range(4):
            yield run(5 * MS)
            yield put("items")

    def b(turn):
        while n := (yield get("items")):
            yield run(3 * MS * n)

    made = flow()
    spatial = ExecutionPlan.spatial(made, [f"cpu:{i}" for i in range(devices)], on)
    calls = [SimCall("a", "make", a, writes=("items",)), SimCall("b", "use", b, ("items",), starts_on_device=False)]
    timeline = Simulator(made, spatial, outages=outages).simulate(calls)
    assert timeline.bubble_sum_error_ns() == 0
    return timeline


APART = {"a": [0], "b": [1]}


def ms(timeline: Timeline) -> float:
    return timeline.elapsed_ns / MS


def busy(timeline: Timeline, device: str) -> float:
    return float(timeline.busy().set_index("device").loc[device, "ns"]) / MS


def test_preempted_work_goes_on_and_lost_work_is_done_again() -> None:
    assert ms(simulated(APART)) == 4 * 5 + 3
    away = Outage("cpu:0", 7 * MS, 15 * MS)
    preempted = simulated(APART, away)
    assert ms(preempted) == 4 * 5 + 3 + 8 and busy(preempted, "cpu:0") == 20
    failed = simulated(APART, Outage("cpu:0", 7 * MS, 15 * MS, lost=True))
    assert ms(failed) == 4 * 5 + 3 + 8 + 2 and busy(failed, "cpu:0") == 22  # two of five milliseconds were done
    causes = preempted.bubbles(by=["device", "cause"])
    own = causes[(causes["device"] == "cpu:0") & (causes["cause"] == "lock")]
    assert own["ns"].sum() == 8 * MS, "its work was ready, its device was not there"


def test_outages_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError, match="from 5 to 5 ns: it must end after it begins"):
        Outage("cpu:0", 5, 5)
    with pytest.raises(UnknownNameError, match=r"cpu:7.*Plan 'spatial' has no other"):
        simulated(APART, Outage("cpu:7", 0, 5))
    assert Outage.of("cuda:1", 0.5, 2) == Outage("cuda:1", 500 * MS, 2000 * MS)


@sweep(25, 60)
def test_random_flows_lose_no_work(seeds: range) -> None:
    """Every nanosecond is accounted for. On one device the same is computed; on several, batches may come in other sizes."""
    later = 0
    for seed in seeds:
        made, rng = scenario(seed, []), random.Random(seed)
        if made.stages[0].kind == "simulator":
            continue
        calm = Simulator(made.flow, made.plan, made.switch).simulate(made.sim_calls(), 2)
        outages = []
        for device in made.plan.devices:
            start = rng.randrange(0, 40) * MS
            outages.append(Outage(device, start, start + rng.randint(1, 20) * MS))
        found = Simulator(made.flow, made.plan, made.switch, outages=outages).simulate(made.sim_calls(), 2)
        assert found.bubble_sum_error_ns() == 0
        runs = [sum(s.end_ns - s.start_ns for s in t.rows() if s.kind.name == "RUN") for t in (calm, found)]
        assert abs(runs[0] - runs[1]) <= 0.5 * runs[0] and (len(made.plan.devices) > 1 or runs[0] == runs[1])
        later += found.elapsed_ns > calm.elapsed_ns
    assert later > len(seeds) // 4


def test_a_plan_with_a_preempted_device() -> None:
    """One rank of the generator has slack until the longest response, a worker group has none: it waits for all of its devices."""
    best = plan(Profile.load(DOCS / "grpo_7b_case4.json"), 16).best
    calm = best.simulate(1).elapsed_ns
    short, long = (best.simulate(1, outages=[Outage.of(best.devices[0], 10, end)]).elapsed_ns for end in (20, 500))
    assert calm == short < long < calm + 490_000 * MS
    training = plan(Profile.load(DOCS / "maniskill_openvla.json"), 16).best
    whole = training.simulate(1).elapsed_ns
    stopped = training.simulate(1, outages=[Outage(training.devices[3], whole - 5_000 * MS, whole - 1_000 * MS)])
    assert stopped.elapsed_ns == whole + 4_000 * MS
