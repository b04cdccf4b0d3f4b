"""With fixed durations and a mock clock the simulated and the executed timeline are equal, span by span.

Parity alone would miss a mistake that both drivers make, so the contract of the channels is asserted beside it.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from driving import executed, hold_up_threads
from random_flows import Scenario, scenario

from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.timeline.timeline import Timeline

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


@pytest.mark.slow
@pytest.mark.usefixtures("held_up")
@pytest.mark.timeout(3600)
def test_parity_over_many_flows() -> None:
    assert_all_equal(range(10_000, 30_000))
