"""Who asks for everything gets the equal share of its rank: by position, once, whoever asks first, on one host and on several."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from flows import apart
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import exact, opened

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import WorkflowError
from rlinf_lab.runtime.run.run import run


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
        self.compute(0.2)
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


def step(kind: str, flow: Workflow, plan: ExecutionPlan, *args: int) -> Any:
    with opened(kind, flow, plan) as s:
        found = [s.step(*args) for _ in range(2)]
    assert found[0] == found[1], "the second iteration as the first"
    return found[0]


def shares(items: list[Any], ranks: int) -> list[list[Any]]:
    return [items[len(items) * r // ranks : len(items) * (r + 1) // ranks] for r in range(ranks)]


CHANNELS = st.sampled_from([{"whole": True}, {"capacity": 2}, {"capacity": None}, {"capacity": None, "order": "lifo"}, {"capacity": None, "order": "priority"}])
SORTS: dict[str, Any] = {"fifo": list, "lifo": lambda v: v[::-1], "priority": lambda v: sorted(v, key=lambda it: it[1] * 7 % 5)}


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 40), st.integers(1, 2), st.integers(1, 4), st.integers(0, 3), CHANNELS, st.sampled_from(["all", "batches"]),
    st.sampled_from(["mock", "mesh"]),
)  # fmt: skip
def test_each_rank_gets_its_share_whoever_asks_last(count: int, makers: int, ranks: int, late: int, channel: dict, method: str, kind: str) -> None:
    """By position, of several producers everything once."""
    if method == "batches":
        channel = {"whole": True}
    order = channel.get("order", "fifo")
    flow = flow_of(method, maker := "chooser" if order == "priority" else "maker", may_be_empty=True, **channel)
    with opened(kind, flow, apart(flow, {maker: makers, "reader": ranks})) as s:
        for _ in range(2):
            found = s.step(count, late) if ranks > 1 else [s.step(count, late)]
            found = [[item for part in mine for item in part] for mine in found] if method == "batches" else found
            everything = [(r, i) for r in range(makers) for i in range(count)]
            assert [len(mine) for mine in found] == [len(mine) for mine in shares(everything, ranks)]
            assert Counter(item for mine in found for item in mine) == Counter(everything)
            assert makers > 1 or found == shares(SORTS[order](everything), ranks)


def weight(item: tuple[int, int]) -> int:
    return item[1] % 2


def mine(*numbers: int) -> list[tuple[int, int]]:
    return [(0, i) for i in numbers]


CASES: dict[str, tuple[Workflow, int, tuple[int, ...], Any]] = {  # flow, ranks, step, what each of them gets
    "groups stay whole": (flow_of("all", "grouper", group=3), 2, (15,), shares([mine(*range(3 * g, 3 * g + 3)) for g in range(5)], 2)),
    "then the end": (flow_of("in_parts", whole=True), 2, (7,), [[share, [], []] for share in shares(mine(*range(7)), 2)]),
    "by number or weight, of its own share": (
        flow_of("weighed", capacity=None, weight=weight), 2, (14,), [[mine(*range(7))], [mine(7, 8, 9), mine(10), mine(11, 12, 13), []]],
    ),
    "ranks that meet before and after": (flow_of("crosswise", whole=True), 3, (9, 1), shares(mine(*range(9)), 3)),
    "one item, which is the second's": (flow_of("one_asks", whole=True), 2, (1, 1), [[], mine(0)]),
    "who does not ask leaves its share": (flow_of("one_asks", whole=True, discard_unread=True), 2, (6, 1), [[], mine(3, 4, 5)]),
}  # fmt: skip


@exact
@pytest.mark.parametrize(("flow", "ranks", "arguments", "expected"), CASES.values(), ids=CASES)
def test_what_the_ranks_get(kind: str, flow: Workflow, ranks: int, arguments: tuple[int, ...], expected: Any) -> None:
    assert step(kind, flow, apart(flow, {"reader": ranks}), *arguments) == expected


@exact
@pytest.mark.parametrize(
    ("method", "count", "left"),
    [
        ("one_asks", 6, r"Iteration 0 .* 3 of 6 items are left; reader\[0\].one_asks\(\) read 0, reader\[1\].* read 3. Next: have every rank of 'reader' ask"),
        ("late_ends", 4, r"2 of 4 items are left; reader\[0\].late_ends\(\) read 2, reader\[1\].late_ends\(\) read 0"),  # after another has asked
    ],
)  # fmt: skip
def test_the_share_of_a_rank_that_does_not_ask_is_given_to_nobody(method: str, count: int, left: str, kind: str) -> None:
    """The user hears so, unless the channel says that it is meant."""
    flow = flow_of(method, whole=True)
    with pytest.raises(WorkflowError, match=left):
        step(kind, flow, apart(flow, {"reader": 2}), count, 1)


def test_ranks_that_are_fused_with_their_producers_read_what_their_own_has_put() -> None:
    flow = flow_of("all", capacity=None)
    fused = ExecutionPlan("fused", ("cpu:0", "cpu:1"), {"maker": ((0,), (1,)), "reader": ((0,), (1,))}, fused=(("maker", "reader"),))
    assert step("mock", flow, fused, 3) == [[(r, i) for i in range(3)] for r in range(2)]


def test_who_leaves_takes_its_share_and_who_comes_meanwhile_has_none() -> None:
    flow = flow_of("all", whole=False, capacity=None)
    with opened("local", flow, apart(flow, {"reader": 4}), absent={"reader": [3]}) as s:
        going = s.submit(60)
        s.leave("reader", 1)
        s.join("reader", 3)
        found = going.wait()
        assert [len(items) for items in found[:3]] == [20, 20, 20] and not any(found[3:])
        assert sorted(i for items in found for _, i in items) == list(range(60))
        assert [len(items) for items in s.step(60)] == [20, 20, 20] and s.members["reader"] == (0, 2, 3)


def test_what_comes_after_the_last_iteration_of_a_run_is_told_too() -> None:
    """The remark of another process may be on its way then."""
    flow = flow_of("all")
    over = run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1, inputs=[3])
    over.wait(20)
    over._session._host.post.remark("sink", "the sink has come to nothing")
    with pytest.warns(RuntimeWarning, match="the sink has come to nothing"):
        over.wait(20)
