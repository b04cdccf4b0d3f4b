"""With fixed durations and a mock clock the simulated and the executed timeline are equal, span by span.

Parity alone would miss a mistake that both drivers make, so the contract of the channels is asserted beside it.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from driving import executed, hold_up_threads, recorded
from random_flows import Scenario, scenario

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout, refuse_fixed_place
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.workflow import Workflow

ITERATIONS = 3


def simulate(made: Scenario) -> Timeline:
    return Simulator(made.flow.graph, made.plan, made.switch).simulate(made.sim_calls(), ITERATIONS)


def assert_equal(seed: int) -> tuple[Scenario, int]:
    log: list = []
    made = scenario(seed, log)
    ran, simulated = executed(made.flow, made.plan, ITERATIONS), simulate(made)
    difference = ran.diff(simulated)
    assert not difference, f"seed {seed}, {made.plan}\n{difference}"
    assert_contract(made, log)
    assert_overlap(made, ran)
    assert ran.bubble_sum_error_ns() == 0
    return made, len(ran.spans)


def assert_contract(made: Scenario, log: list) -> None:
    """Every item exactly once; one producer's items in its order at every consumer rank; explicit gets are not shortened."""
    produced = {s.name: s for s in made.stages}.get("source")
    if produced is None:
        return
    per_rank = produced.count
    ranks = made.plan.ranks("source")
    expected = Counter({(r, i): ITERATIONS for r in range(ranks) for i in range(per_rank)})
    channels = {c for s in made.stages for c in s.inputs}
    for channel in channels:
        received = [entry for entry in log if entry[0] == channel]
        assert Counter(item for entry in received for item in entry[3]) == expected, channel
    first = produced.outputs[0]
    for consumer, rank in {(e[1], e[2]) for e in log if e[0] == first}:
        for source in range(ranks):
            order = [i for e in log if e[:3] == (first, consumer, rank) for r, i in e[3] if r == source]
            restarts = sum(a > b for a, b in itertools.pairwise(order))
            assert restarts <= ITERATIONS - 1, (channel, order)  # ascending within each iteration
    for stage in made.stages:
        if stage.kind == "whole":
            assert_shares(made, stage.name, log, len(expected))
        if stage.explicit:
            sizes = [len(e[3]) for e in log if e[1] == stage.name]
            short = sum(size < stage.explicit for size in sizes)
            assert short <= ITERATIONS * made.plan.ranks(stage.name), (stage.name, sizes)


def assert_shares(made: Scenario, name: str, log: list, items: int) -> None:
    """Who wants everything gets as much as every other rank, in every iteration."""
    ranks = made.plan.ranks(name)
    for rank in range(ranks):
        sizes = [len(e[3]) for e in log if e[1:3] == (name, rank)]
        assert sizes == ITERATIONS * [items * (rank + 1) // ranks - items * rank // ranks], (name, rank, sizes)


def assert_overlap(made: Scenario, timeline: Timeline) -> None:
    """An iteration begins when all before its ``staleness`` predecessors have ended, and not before."""
    rows, staleness = timeline.iterations(), made.plan.staleness
    assert len(rows) == ITERATIONS
    for i in range(staleness + 1, ITERATIONS):
        assert rows["start_ns"][i] >= rows["end_ns"][: i - staleness].max(), (made.seed, i)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are held up at random places: the order in which they happen to run must have no influence."""
    hold_up_threads(monkeypatch, 7, 0.05, 0.0001)


def assert_all_equal(seeds: range) -> None:
    spans, kinds = 0, Counter[str]()
    for seed in seeds:
        made, found = assert_equal(seed)
        spans += found
        plan = made.plan
        kinds.update(
            {
                "staleness": plan.staleness > 0, "fused": bool(plan.fused), "sub-batches": plan.tokens(made.stages[0].name) > 1,
                "memory": plan.device_memory is not None, "worker_groups": any(len(r) > 1 for ranks in plan.placements.values() for r in ranks),
                "shares": any(s.kind == "whole" and plan.ranks(s.name) > 1 for s in made.stages),
                "bounds": any(c.capacity is not None for c in made.flow.graph.channels),
            }
        )  # fmt: skip
    assert spans > 60 * len(seeds), "the comparison was about something"
    assert all(kinds[kind] > len(seeds) // 50 for kind in kinds), kinds


LATER = {**dict.fromkeys(range(1, 4), pytest.mark.long), **dict.fromkeys(range(4, 16), pytest.mark.slow)}


@pytest.mark.usefixtures("held_up")
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=mark) for block, mark in LATER.items())])
def test_simulated_and_executed_timelines_are_equal(block: int) -> None:
    """500 random workflows and plans, and 2,000 in all."""
    assert_all_equal(range(block * 125, block * 125 + 125))


# --- ranks that come and go at random moments -----------------------------------------------------------------------
def in_made_up_time(flow: Workflow, plan: ExecutionPlan, **options: Any) -> LocalExecutor:
    return LocalExecutor(flow, plan, MockClock(), **options)


def movable(made: Scenario) -> list[tuple[str, int]]:
    """The ranks that may come and go."""
    layout, found = checked_layout(made.flow, made.plan), []
    for worker in layout.graph.workers:
        for rank in range(layout.ranks(worker)):
            try:
                refuse_fixed_place(layout, "test", worker, rank)
            except PlanError:
                continue
            found.append((worker, rank))
    return found


def turn_over(made: Scenario, ranks: list[tuple[str, int]], rng: random.Random, executor_of: Callable[..., Any]) -> int:
    """Run it; how many came or went."""
    absent: dict[str, list[int]] = {}
    for worker, rank in ranks:
        if rng.random() < 0.4:
            absent.setdefault(worker, []).append(rank)
    executor = executor_of(made.flow, made.plan, absent=absent)
    executor.start()
    session, over = Session(executor), threading.Event()
    changes: list[Any] = []
    failures: list[BaseException] = []

    def change() -> None:
        try:
            while not over.is_set():
                worker, rank = rng.choice(ranks)
                getattr(session, "leave" if rank in session.members[worker] else "join")(worker, rank)
                changes.append(worker)
                over.wait(rng.random() * 0.002)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(ITERATIONS):
            session.submit()
        session.finish()
    finally:
        over.set()
        thread.join(30)
        assert executor.stop() == Ended() and not failures, failures
    timeline = recorded(made.plan, executor)
    assert timeline.bubble_sum_error_ns() == 0
    return len(changes)


def assert_once(made: Scenario, log: list) -> None:
    """What the ranks of the source produced, all channels carried, once; those of a rank are all there or none, iteration by iteration."""
    received = {c: Counter(item for entry in log if entry[0] == c for item in entry[3]) for s in made.stages for c in s.inputs}
    first = received[made.stages[0].outputs[0]]
    assert all(items == first for items in received.values()), (made.seed, received)
    for rank in range(made.plan.ranks("source")):
        times = {first[rank, i] for i in range(made.stages[0].count)}
        assert len(times) == 1 and times <= set(range(ITERATIONS + 1)), (made.seed, rank, first)
        assert rank or times == {ITERATIONS}, (made.seed, first)
