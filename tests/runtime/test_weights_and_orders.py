"""Weights of items, gets by weight, and the order in which items are taken: against what was put, locally and between hosts, and in the simulator."""

from __future__ import annotations

from typing import Any

import pytest
from flows import apart
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import both, executor_of, opened, recorded, session_of, until

from rlinf_lab import ExecutionPlan, Workflow
from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.planning.simulator.scripts import get_weight, put, run, weigh
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.workflow.worker import Collected, Inbox, Outbox, Scripted, Worker


def negative(item: tuple[float, int]) -> float:
    return -item[0]


class Weigher(Worker):
    """An item is (place, weight, number)."""

    def tell(self, items: list[Any], how: str, pause: float, keyed: bool, out: Outbox, go: Outbox) -> None:
        for place, weight, number in items:
            if pause:
                self.compute(pause * (1 + number % 3))
            key = {"key": number % 2} if keyed else {}
            priority = {"priority": place} if how == "priority" else {}
            out.put((place, weight, (self.rank, number)), weight=weight if weight != 1 else None, **key, **priority)

    def by_weight(self, weight: int, keyed: bool, late: bool, inbox: Inbox, go: Inbox) -> list[list[Any]]:
        if late:
            go.get_all()
        found = []
        for key in [{"key": self.rank * self.sub_batches + k} for k in range(self.sub_batches)] if keyed else [{}]:
            while batch := inbox.get_weight(weight, **key):
                found.append(batch)
                self.compute(0.002)
        return found


def heavy(
    order: Any, capacity: int | None, makers: int, takers: int, keyed: bool = False, late: bool = False, **channel: Any
) -> tuple[Workflow, ExecutionPlan]:  # fmt: skip
    flow = Workflow("heavy")
    items = flow.channel("items", capacity=capacity, order=order, keyed=keyed, may_be_empty=True, **channel)
    go = flow.channel("go", may_be_empty=True)
    maker, taker = flow.worker(Weigher, name="maker"), flow.worker(Weigher, name="taker")

    @flow.iteration
    def iteration(values: list[Any], weight: int, pause: float) -> Any:
        maker.tell(values, order if isinstance(order, str) else "", pause, keyed, items, go)
        return taker.by_weight(weight, keyed, late, items, go)

    return flow, apart(flow, {"maker": makers, "taker": takers})


ITEMS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 6)), max_size=12).map(lambda some: [(p, w, n) for n, (p, w) in enumerate(some)])
SORTS: dict[Any, Any] = {
    "fifo": lambda v: v, "lifo": lambda v: v[::-1], "priority": lambda v: sorted(v, key=lambda i: i[0]), negative: lambda v: sorted(v, key=negative),
}  # fmt: skip
every_order = st.sampled_from(["fifo", "lifo", "priority", negative])


def executed(kind: str, flow: Workflow, plan: ExecutionPlan, *args: Any) -> Any:
    with opened(kind, flow, plan) as s:
        return s.step(*args)


def cut(items: list[Any], weight: int) -> list[list[Any]]:
    batches: list[list[Any]] = []
    for item in items:
        if not batches or sum(i[1] for i in batches[-1]) >= weight:
            batches.append([])
        batches[-1].append(item)
    return batches


def numbers(batches: list[list[Any]]) -> list[list[int]]:
    return [[item[2][1] for item in batch] for batch in batches]


@settings(max_examples=65, deadline=None)
@given(
    ITEMS, st.integers(1, 15), every_order, st.sampled_from([1, 3, None, None]), st.integers(1, 2), st.integers(1, 2), st.booleans(),
    st.sampled_from(["mock", "local", "mesh"]),
)  # fmt: skip
def test_every_item_comes_once_and_whole_in_the_order_of_the_channel(
    values: Any, weight: int, order: Any, capacity: Any, makers: int, takers: int, keyed: bool, kind: str
) -> None:
    """The order is known where all are there before the first is taken."""
    takers = 2 if keyed else takers
    late = capacity is None and makers == 1 and (keyed or takers == 1)
    found = executed(kind, *heavy(order, capacity, makers, takers, keyed, late), values, weight, 0)
    for key, mine in enumerate(found if takers > 1 else [found]):
        there = [v for v in values if not keyed or v[2] % 2 == key]
        assert not late or numbers(mine) == [[item[2] for item in batch] for batch in cut(SORTS[order](there), weight)]
        assert all(sum(item[1] for item in batch[:-1]) < weight for batch in mine)
    batches = [batch for mine in (found if takers > 1 else [found]) for batch in mine]
    assert sorted(item[2] for batch in batches for item in batch) == sorted((r, n) for r in range(makers) for _, _, n in values)
    assert sum(sum(item[1] for item in batch) < weight for batch in batches) <= 1 + keyed, "only the last one may weigh less"


@settings(max_examples=40, deadline=None)
@given(ITEMS, st.integers(1, 15), every_order, st.sampled_from([1, 3, None]), st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_the_simulator_takes_the_same_by_weight(values: Any, weight: int, order: Any, capacity: Any, makers: int, takers: int, keyed: bool) -> None:
    takers = 2 if keyed else takers
    flow, plan = heavy(order, capacity, makers, takers, keyed)
    with opened("mock", flow, plan) as s:
        s.step(values, weight, 0.001)
    timeline = recorded(s)

    def make(turn: Any) -> Any:
        for place, w, number in values:
            yield run(1_000_000 * (1 + number % 3))
            yield weigh(w if w != 1 else None, {"priority": place, negative: -place}.get(order))
            yield put("items", key=number % 2 if keyed else -1)

    def take(turn: Any) -> Any:
        while (yield get_weight("items", weight, turn.rank if keyed else -1)):
            yield run(2_000_000)

    calls = [SimCall("maker", "tell", make, (), ("items", "go")), SimCall("taker", "by_weight", take, ("items", "go"), (), starts_on_device=False)]
    assert not timeline.diff(Simulator(flow.graph, plan).simulate(calls, 1))


def test_what_is_no_weight_no_order_and_no_priority_is_named() -> None:
    flow = Workflow("bad")
    with pytest.raises(ConfigError, match=r"Channel 'a': order is 'random'; it must be 'fifo', 'lifo', 'priority', 'oldest_group', or a function"):
        flow.channel("a", order="random")
    with pytest.raises(ConfigError, match=r"Channel 'b': weight is 3; it must be a function"):
        flow.channel("b", weight=3)  # type: ignore[arg-type]
    for options, weight, said in (
        ({"weight": lambda item: -1}, 3, r"channel 'items': the weight of an item is -1; it must be a whole number"),
        *(({}, bad, rf"get_weight\({bad}\): a whole number, at least 1") for bad in (0, True, 1.5)),
        ({"order": lambda item: "x"}, 3, r"the place of an item is 'x'; it must be a number"),
    ):
        with pytest.raises(WorkerError, match=said):
            executed("mock", *heavy(**{"order": "fifo", "capacity": None, "makers": 1, "takers": 1, **options}), [(0, 1, 0)], weight, 0)


def test_doubles_for_unit_tests_know_weights() -> None:
    out: Collected[str] = Collected()
    out.put("a", weight=2)
    out.put_all(["b", "c"])
    assert out == ["a", "b", "c"] and out.weights == [2, None, None] and out.priorities == [None] * 3
    inbox = Scripted(["aa", "b", "ccc", "d"], weight=len)
    assert [inbox.get_weight(3), inbox.get_weight(3), inbox.get_weight(3), inbox.get_weight(3)] == [["aa", "b"], ["ccc"], ["d"], []]
    with pytest.raises(WorkflowError, match="asks for less than 1"):
        inbox.get_weight(0)


class Full(Worker):
    def fill(self, out: Outbox) -> None:
        out.put_all(range(9))

    def look(self, inbox: Inbox, other: Inbox) -> int:
        inbox.get(1)
        return len(other.get(1))


def rows_of(executor: Any) -> dict[str, Any]:
    return {row["channel"]: row for row in executor.news.channels()}


@both
def test_who_waits_at_a_channel_is_told(kind: str) -> None:
    flow = Workflow("full")
    items, other = flow.channel("items", capacity=2, discard_unread=True), flow.channel("other", capacity=None)
    a, b = flow.worker(Full, name="maker"), flow.worker(Full, name="taker")
    seen: list[dict[str, Any]] = []

    @flow.iteration
    def iteration() -> Any:
        a.fill(items)
        looked = b.look(items, other)
        if executor:  # not in the dry run
            until(lambda: len(rows := rows_of(executor[0])) == 2 and rows["items"]["waiting_putters"])
            seen.append(rows_of(executor[0]))
        other.put(1)
        return looked.wait()

    executor: list[Any] = []
    plan = ExecutionPlan("full", ("cpu:0", "cpu:1"), {"maker": ((0,),), "taker": ((1,),)}, micro_batches={"items": 1})
    executor.append(executor_of(kind, flow, plan))
    with session_of(executor[0]) as s:
        assert s.step() == 1
    row = seen[0]["items"]
    assert row["capacity"] == 2 and row["waiting_putters"] == 1 and row["waiting_getters"] == 0
    assert row["put"] - row["taken"] == row["depth"] and row["taken"] == 1
    assert seen[0]["other"]["capacity"] is None and seen[0]["other"]["waiting_getters"] == 1
