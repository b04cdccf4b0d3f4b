"""Who asks for everything gets the equal share of its rank: by position, once, whoever asks first, on one host and on several."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.state import Channel, Part, Stream
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Maker(Worker):
    def make(self, count: int, out: Outbox) -> None:
        for i in range(count):
            self.compute(0.001)
            out.put((self.rank, i), key=i // 3 if self.name == "grouper" else None, priority=i * 7 % 5 if self.name == "chooser" else None)


class Reader(Worker):
    def all(self, inbox: Inbox, late: int) -> list[Any]:
        """``late``: the rank that asks last."""
        if self.rank == late:
            self.compute(0.1)
        return inbox.get_all()

    def batches(self, inbox: Inbox, late: int) -> list[list[Any]]:
        return list(inbox)

    def in_parts(self, inbox: Inbox, late: int) -> list[Any]:
        return [inbox.get_all(), inbox.get(2), inbox.get_all()]

    def weighed(self, inbox: Inbox, late: int) -> list[list[Any]]:
        """Rank 0 divides; the others take their shares by weight."""
        if self.rank == 0:
            return [inbox.get_all()]
        self.compute(1.0)
        return [inbox.get_weight(2), inbox.get(1), inbox.get_all(), inbox.get_all()]

    def crosswise(self, inbox: Inbox, late: int) -> list[Any]:
        """The late rank meets the others before it asks, they do so afterwards: a barrier between the ranks would never open."""
        if self.rank == late:
            self.exchange(0)
            return inbox.get_all()
        found = inbox.get_all()
        self.exchange(0)
        return found

    def late_ends(self, inbox: Inbox, late: int) -> None:
        """The late rank ends when the others have what they asked for."""
        if self.rank != late:
            inbox.get_all()
        self.exchange(0)

    def one_asks(self, inbox: Inbox, late: int) -> list[Any]:
        return inbox.get_all() if self.rank == late else []


def flow_of(method: str, maker: str = "maker", **channel: Any) -> Workflow:
    flow = Workflow("shares")
    items = flow.channel("items", **channel)
    makes, reads = flow.worker(Maker, name=maker), flow.worker(Reader, name="reader")

    @flow.iteration
    def iteration(count: int, late: int = 0) -> Any:
        makes.make(count, items)
        return getattr(reads, method)(items, late)

    return flow


def plan_of(flow: Workflow, ranks: int, makers: int = 1) -> ExecutionPlan:
    devices = [f"cpu:{i}" for i in range(makers + ranks)]
    maker = next(iter(flow.workers))
    return ExecutionPlan("shares", tuple(devices), {maker: tuple((d,) for d in range(makers)), "reader": tuple((makers + r,) for r in range(ranks))})


def step(executor: Any, *args: int) -> Any:
    executor.start()
    try:
        session = Session(executor)
        found = [session.step(*args) for _ in range(2)]
        assert found[0] == found[1], "the second iteration as the first"
        return found[0]
    finally:
        assert executor.stop() == Ended()


def executor_of(flow: Workflow, plan: ExecutionPlan, far: bool) -> Any:
    return MeshExecutor(flow, plan, delay=0.001) if far else LocalExecutor(flow, plan, MockClock())


def shares(items: list[Any], ranks: int) -> list[list[Any]]:
    return [items[len(items) * r // ranks : len(items) * (r + 1) // ranks] for r in range(ranks)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.integers(2, 4), st.integers(0, 3), st.sampled_from([{"whole": True}, {"capacity": 2}, {"capacity": None}]), st.booleans())
def test_each_rank_gets_its_share_whoever_asks_last(count: int, ranks: int, late: int, channel: dict, far: bool) -> None:
    flow = flow_of("all", may_be_empty=True, **channel)
    assert step(executor_of(flow, plan_of(flow, ranks), far), count, late) == shares([(0, i) for i in range(count)], ranks)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("method", ["all", "batches"])
def test_of_several_producers_everything_comes_once_in_equal_parts(method: str, far: bool) -> None:
    flow = flow_of(method, whole=True)
    found = step_sizes(executor_of(flow, plan_of(flow, 4, makers=3), far), 7)
    assert [n for n, _ in found] == [5, 5, 5, 6]
    assert sum((items for _, items in found), Counter()) == Counter((r, i) for r in range(3) for i in range(7))


def step_sizes(executor: Any, count: int) -> list[tuple[int, Counter]]:
    executor.start()
    try:
        ranks = Session(executor).step(count)
    finally:
        assert executor.stop() == Ended()
    flat = [[i for part in found for i in part] if found and isinstance(found[0], list) else found for found in ranks]
    return [(len(items), Counter(items)) for items in flat]


@pytest.mark.parametrize("far", [False, True])
def test_shares_are_in_the_order_in_which_one_would_have_been_given_everything(far: bool) -> None:
    flow = flow_of("all", order="lifo", capacity=None)
    assert step(executor_of(flow, plan_of(flow, 3), far), 8) == shares([(0, i) for i in reversed(range(8))], 3)
    flow = flow_of("all", "chooser", order="priority", capacity=None)
    assert step(executor_of(flow, plan_of(flow, 3), far), 8) == shares([(0, i) for i in sorted(range(8), key=lambda i: i * 7 % 5)], 3)


def test_groups_stay_whole() -> None:
    flow = flow_of("all", "grouper", group=3)
    groups = [[(0, 3 * g + i) for i in range(3)] for g in range(5)]
    assert step(LocalExecutor(flow, plan_of(flow, 2), MockClock()), 15) == shares(groups, 2)


@pytest.mark.parametrize("far", [False, True])
def test_after_its_share_a_rank_meets_the_end(far: bool) -> None:
    flow = flow_of("in_parts", whole=True)
    found = step(executor_of(flow, plan_of(flow, 2), far), 7)
    assert found == [[share, [], []] for share in shares([(0, i) for i in range(7)], 2)]


def weight(item: tuple[int, int]) -> int:
    return item[1] % 2


@pytest.mark.parametrize("far", [False, True])
def test_what_was_divided_may_be_taken_in_other_ways(far: bool) -> None:
    """A rank that asks for a number of items, or by weight, gets them of its own share."""
    flow = flow_of("weighed", capacity=None, weight=weight)
    executor = executor_of(flow, plan_of(flow, 2), far)
    first, second = step(executor, 14)
    assert first == [[(0, i) for i in range(7)]]
    assert second == [[(0, i) for i in (7, 8, 9)], [(0, 10)], [(0, i) for i in (11, 12, 13)], []]


@pytest.mark.parametrize("far", [False, True])
def test_ranks_that_meet_before_and_after_do_not_wait_for_each_other_for_ever(far: bool) -> None:
    flow = flow_of("crosswise", whole=True)
    assert step(executor_of(flow, plan_of(flow, 3), far), 9, 1) == shares([(0, i) for i in range(9)], 3)


@pytest.mark.parametrize("far", [False, True])
def test_the_share_of_a_rank_that_does_not_ask_is_given_to_nobody(far: bool) -> None:
    """The user hears so, unless the channel says that it is meant."""
    flow = flow_of("one_asks", whole=True)
    left = r"Iteration 0 .* 3 of 6 items are left; reader\[0\].one_asks\(\) read 0, reader\[1\].one_asks\(\) read 3. Next: have every rank of 'reader' ask"
    with pytest.raises(WorkflowError, match=left):
        step(executor_of(flow, plan_of(flow, 2), far), 6, 1)
    flow = flow_of("one_asks", whole=True, discard_unread=True)
    assert step(executor_of(flow, plan_of(flow, 2), far), 6, 1) == [[], [(0, 3), (0, 4), (0, 5)]]


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(("method", "count"), [("one_asks", 1), ("all", 7), ("in_parts", 9), ("weighed", 9)])
def test_who_asks_or_has_no_share_is_not_complained_of(method: str, count: int, far: bool) -> None:
    """Of one item rank 1 has everything."""
    flow = flow_of(method, whole=True)
    step(executor_of(flow, plan_of(flow, 2), far), count, 1)


@pytest.mark.parametrize("far", [False, True])
def test_a_rank_that_ends_after_another_has_asked_is_told_of_too(far: bool) -> None:
    flow = flow_of("late_ends", whole=True)
    with pytest.raises(WorkflowError, match=r"2 of 4 items are left; reader\[0\].late_ends\(\) read 2, reader\[1\].late_ends\(\) read 0"):
        step(executor_of(flow, plan_of(flow, 2), far), 4, 1)


def test_a_rank_alone_gets_everything_also_of_its_own_queue() -> None:
    """One rank; and ranks that are fused with their producers, each of which reads what its own has put."""
    flow = flow_of("all", whole=True)
    assert step(LocalExecutor(flow, plan_of(flow, 1), MockClock()), 3) == [(0, 0), (0, 1), (0, 2)]
    flow = flow_of("all", capacity=None)
    fused = ExecutionPlan("fused", ("cpu:0", "cpu:1"), {"maker": ((0,), (1,)), "reader": ((0,), (1,))}, fused=(("maker", "reader"),))
    assert step(LocalExecutor(flow, fused, MockClock()), 3) == [[(r, i) for i in range(3)] for r in range(2)]


def test_who_leaves_takes_its_share_and_who_comes_meanwhile_has_none() -> None:
    flow = flow_of("all", whole=False, capacity=None)
    executor = LocalExecutor(flow, plan_of(flow, 4), emulate=True, absent={"reader": [3]})
    executor.start()
    try:
        session = Session(executor)
        going = session.submit(60)
        session.leave("reader", 1)
        session.join("reader", 3)
        found = going.wait()
        assert [len(items) for items in found[:3]] == [20, 20, 20] and not any(found[3:])
        assert sorted(i for items in found for _, i in items) == list(range(60))
        assert [len(items) for items in session.step(60)] == [20, 20, 20] and session.members["reader"] == (0, 2, 3)
    finally:
        assert executor.stop() == Ended()


def test_a_rank_of_another_call_finds_nothing_where_all_was_divided() -> None:
    """Of the books: a process that has no share meets the end of the stream."""
    queue = Channel(Stream(None, "items"), stub=False)
    queue.weigh(3, (5, 6, 7))
    queue.tail = 3
    queue.divide(Part(1, 0, 2))
    assert [(s.head, s.tail, s.weights.total) for s in queue.shares] == [(0, 1, 5), (1, 3, 13)] and queue.depth == 3 and queue.weights.total == 0
    assert queue.share(Part(1, 1, 2)) is queue.shares[1] and queue.share(Part(2, 0, 2)) is None and queue.share(Part(1, 2, 2)) is None


def test_what_comes_after_the_last_iteration_of_a_run_is_told_too() -> None:
    """The remark of another process may be on its way then."""
    flow = flow_of("all")
    over = run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1, inputs=[3])
    over.wait(20)
    over._session._host.post.remark("filler", "a filler has come to nothing")
    with pytest.warns(RuntimeWarning, match="a filler has come to nothing"):
        over.wait(20)
