"""Messages in virtual time: what is put arrives later, who asks another host waits for the way there and back, and nobody holds a device meanwhile."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections import Counter
from typing import Any

import pytest
import random_flows
from random_flows import scenario
from sweeps import sweep
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab import ExecutionPlan
from rlinf_lab.errors import DeadlockError, PlanError
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, Turn, get, put, run
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

MS = 1_000_000


class Far:
    """Milliseconds of each flight: of puts by channel, of asking by (worker, rank)."""

    def __init__(self, puts: dict[str, int], asks: dict[tuple[str, int], int] | None = None) -> None:
        self.puts, self.asks = puts, asks or {}

    def put_ns(self, worker: str, rank: int, channel: str, key: int = -1) -> int:
        return self.puts.get(channel, 0) * MS

    def ask_ns(self, worker: str, rank: int, channel: str) -> int:
        return self.asks.get((worker, rank), 0) * MS


class AtRandom:
    """The same for the same rank and channel."""

    def __init__(self, seed: int, most: int) -> None:
        self.seed, self.most = seed, most

    def put_ns(self, *of: object) -> int:
        return zlib.crc32(repr((self.seed, "put", of[:3])).encode()) % (self.most + 1) * MS

    def ask_ns(self, *of: object) -> int:
        return zlib.crc32(repr((self.seed, "ask", of)).encode()) % (self.most + 1) * MS


def flow_of(workers: str = "sr") -> lab.Workflow:
    """A source, who reads its items, and perhaps another one."""
    return timed("sr", 1, dict.fromkeys(workers, (0, 0)))[0]


def produce(turn: Turn):
    for _ in range(2):
        yield run(10 * MS)
        yield put("sr")


def read(turn: Turn):
    while (yield get("sr", 1)):
        yield run(MS)


CALLS = [SimCall("s", "make", produce, writes=("sr",)), SimCall("r", "work", read, reads=("sr",), starts_on_device=False)]


BESIDE = SimCall("o", "make", lambda turn: (run(12 * MS) for _ in range(1)))
APART, TURNS, READERS = (
    (spots, ExecutionPlan("by hand", ("cpu:0", "cpu:1"), spots, {"sr": 1}))
    for spots in ({"s": ((0,),), "r": ((1,),)}, {"s": ((0,),), "r": ((1,),), "o": ((1,),)}, {"s": ((0,),), "r": ((0,), (1,))})
)
GET, RUN, PUT = SpanKind.GET, SpanKind.RUN, SpanKind.PUT
FLIGHTS: dict[str, tuple[Any, Far, dict[tuple[str, int, SpanKind], list[float]]]] = {  # plan, flights, when who has done what
    "who puts goes on, and the end of the stream comes behind": (APART, Far({"sr": 5}), {("s", 0, PUT): [10, 20], ("r", 0, GET): [15, 25, 26]}),
    "nobody holds a device while an item flies": (TURNS, Far({"sr": 12}), {("o", 0, RUN): [12], ("r", 0, RUN): [23, 33]}),
    "asked long before, only the answer's way counts": (READERS, Far({}, {("r", 1): 3}), {("r", 1, GET): [23, 30], ("r", 1, RUN): [24]}),
    "nothing is left when its question is there": (READERS, Far({}, {("r", 1): 25}), {("r", 0, RUN): [21, 22], ("r", 1, GET): [50]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FLIGHTS)
def test_an_item_is_there_when_it_has_flown_and_who_asks_stands_in_line_when_the_question_is_there(name: str) -> None:
    (spots, plan), flights, expected = FLIGHTS[name]
    calls = [CALLS[0], *([BESIDE] if "o" in spots else []), CALLS[1]]
    rows = Simulator(flow_of("".join(spots)), plan, flights=flights).simulate(calls).rows()
    for who, ends in expected.items():
        assert [s.end_ns / MS for s in rows if (s.track.worker, s.track.rank, s.kind) == who] == ends, who
    numbers = [(s.kind, s.flow) for s in rows if s.kind in (GET, PUT) and s.items]
    assert sorted(numbers) == sorted((kind, n) for kind in (GET, PUT) for n in (0, 1)), "arrows join what belongs together"


def passed(timeline: Timeline) -> Counter[tuple[int, str, SpanKind]]:
    found: Counter[tuple[int, str, SpanKind]] = Counter()
    for span in timeline.rows():
        if span.kind in (SpanKind.GET, SpanKind.PUT):
            found[span.iteration, span.channel, span.kind] += span.items
    return found


@sweep(40, 160)
def test_whatever_flies_everything_arrives_once_and_nobody_is_left_waiting(seeds: range) -> None:
    for seed in seeds:
        made = scenario(seed, [])
        near, nothing, far = (
            Simulator(made.flow.graph, made.plan, made.switch, flights=flights).simulate(made.sim_calls(), 2)
            for flights in (None, AtRandom(seed, 0), AtRandom(seed, 7))
        )
        assert not (difference := nothing.diff(near)), f"seed {seed}\n{difference}"
        assert passed(far) == passed(near), f"seed {seed}, {made.plan}"
        assert far.bubble_sum_error_ns() == 0


# --- micro-batches larger than what circulates, and what stands still -----------------------------------------------
def test_random_plans_are_refused_with_their_ring_or_go_on() -> None:
    """Micro-batches and capacities at random, also in cells: what passes ends in the simulator."""
    refused = 0
    for seed in range(60):
        rng, made = random.Random(seed + 10**6), random_flows.scenario(seed, [])
        graph = made.flow.graph
        micro_batches = {c: rng.choice((0, 1, 2, 3, 5)) for c in graph.channels_by_name()}
        capacities = {c.name: rng.choice((1, 2, 3, None)) for c in graph.channels if rng.random() < 0.5 and not c.whole}
        plan = dataclasses.replace(made.plan, micro_batches=micro_batches, capacities=capacities)
        made = dataclasses.replace(made, plan=plan)
        try:
            plan.validate(graph)
        except PlanError as error:
            refused += 1
            assert "simulator --obs--> policy --act--> simulator" in str(error)
        else:
            Simulator(made.flow, plan, made.switch).simulate(made.sim_calls(), 2)
    assert refused > 5


def test_the_simulator_names_the_ring_that_only_counts_can_tell() -> None:
    """An exact get of more than circulates: how many a worker asks for is not in the graph. (In runs: `runtime/test_standstills`.)"""
    flow, _ = timed("lr rl", 1, {"r": (0, 0), "l": (0, 0), "v": (0, 0)})
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"l": [0], "r": [1], "v": [1]})

    def ask(turn: Turn) -> Any:
        yield put("lr")
        yield get("rl", 1)

    def answer(turn: Turn) -> Any:
        yield get("lr", 2)
        yield put("rl")

    calls = [SimCall("r", "work", answer, ("lr",), ("rl",)), SimCall("l", "work", ask, ("rl",), ("lr",)), SimCall("v", "work", ask, after=(1,))]
    with pytest.raises(DeadlockError, match=r"any more: (l\[0\] → r\[0\] → l\[0\]|r\[0\] → l\[0\] → r\[0\])\n") as stands:
        Simulator(flow, plan).simulate(calls)
    assert {wait.who: wait.on for wait in stands.value.waits} == {"l[0]": ("r",), "r[0]": ("l",), "v[0]": ("l",)}
