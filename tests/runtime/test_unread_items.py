"""Items that nobody reads, and streams into which nothing was put, fail their iteration by name, unless the channel says that this is meant."""

from __future__ import annotations

from re import escape
from typing import Any

import pytest
from flows import Numbers, apart
from sessions import both, opened

from rlinf_lab import Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.runtime.run.run import run


class Maker(Numbers):
    def on_rank_1(self, count: int, out: Outbox) -> None:
        if self.rank == 1:
            out.put_all(range(count))

    def by_key(self, count: int, out: Outbox) -> None:
        out.put_all(range(count), key=0)

    def breaks(self, count: int, out: Outbox) -> None:
        out.put_all(range(count))
        raise ValueError("broken")


class Sieve(Worker):
    def above(self, least: int, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            out.put_all(x for x in batch if x > least)


class Taker(Worker):
    def take(self, inbox: Inbox, n: int) -> int:
        return len(inbox.get(n)) if n else 0

    def all(self, inbox: Inbox, n: int) -> int:
        return sum(len(batch) for batch in inbox)

    def all_slowly(self, inbox: Inbox, n: int) -> int:
        self.compute(0.05)
        return self.all(inbox, n)

    def all_much_later(self, inbox: Inbox, n: int) -> int:
        self.compute(1e6)
        return self.all(inbox, n)

    def by_key(self, inbox: Inbox, n: int) -> int:
        return sum(inbox.take(key=0) for _ in range(n))


def flow_of(makes: str = "make", takes: str = "take", **channel: Any) -> Workflow:
    flow = Workflow("unread")
    items = flow.channel("items", **{"capacity": 2, **channel})
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(count: int = 8, n: int = 3, calls: int = 1) -> Any:
        made = getattr(maker, makes)(count, items)
        return made, [getattr(taker, takes)(items, n) for _ in range(calls)]

    return flow


def sifting(makes: str = "make", takes: str = "all", empty: str = "") -> Workflow:
    """A sieve between both, which lets nothing pass that is not above ``least``."""
    flow = Workflow("sifts")
    a, b = (flow.channel(name, may_be_empty=name in empty) for name in "ab")
    maker, sieve, taker = flow.worker(Maker, name="maker"), flow.worker(Sieve, name="sieve"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(count: int = 0, least: int = 100, calls: bool = True) -> Any:
        if calls:
            getattr(maker, makes)(count, a)
            sieve.above(least, a, b)
        return None, [getattr(taker, takes)(b, 0)]

    return flow


def looping() -> Workflow:
    """The loop reads by itself."""
    flow = Workflow("loop")
    items, maker = flow.channel("items"), flow.worker(Maker, name="maker")

    @flow.iteration
    def iteration(count: int = 8, stops: bool = False) -> Any:
        maker.make(count, items)
        found = []
        for batch in items:
            found += batch
            if stops and len(found) >= 3:
                break
        return None, found

    return flow


BY_ONE = {"micro_batches": {"items": 1}}
PUT_IT = "Next: put what is to be read; or, where nothing may come, say so: flow.channel('{0}', may_be_empty=True)."
NOTHING = "Iteration {3} of workflow 'sifts': nothing was put into channel '{0}' ({1} ended without a put), so {2} read an empty stream. " + PUT_IT
EMPTY_A, EMPTY_B = ("a", "maker[0].make()", "sieve[0].above()"), ("b", "sieve[0].above()", "taker[0].all()")
CASES: dict[str, tuple[Workflow, dict[str, Any], list[tuple[tuple[Any, ...], list[int] | str]]]] = {  # flow, plan, (step, what was taken or is said)
    "items": (flow_of(), {}, [
        ((3, 3), [3]),
        ((), r"Iteration 1 of workflow 'unread' .* 'items': [1-9] of \d items.* are left; taker\[0\].take\(\) read 3. Next: read .*discard_unread=True"),
        ((8, 3, 2), r"(1 of 7|2 of 8) items.* are left; taker\[0\].take\(\) read 6"),
        ((1, 0), r"1 of 1 items.* are left; taker\[0\].take\(\) read 0"),
        ((8, 3, 0), r"([1-9]) of \1 items.* are left; no call of this iteration reads it. Next: call a worker that reads"),
        ((9, 3, 3), [3, 3, 3]),
    ]),
    "few are discarded": (flow_of(discard_unread=True), {}, [((8, 3, 1), [3]), ((8, 0, 1), [0]), ((8, 3, 0), [])]),
    "many are discarded": (flow_of(discard_unread=True), {}, [((300, 3, 1), [3]), ((300, 0, 1), [0]), ((300, 3, 0), [])]),
    "ranks": (flow_of(), {"ranks": {"taker": 2}}, [((), r"[1-9] of \d items.* are left; taker\[0\].take\(\) read 3, taker\[1\].take\(\) read 3")]),
    "keys": (flow_of("by_key", "by_key", keyed=True), {}, [((), r"Channel 'items': [1-9] of \d items.* are left; taker\[0\].by_key\(\) read 3")]),
    "groups": (flow_of("by_key", group=2), {}, [((), r"Channel 'items': 1 of 4 groups of 2 items.* are left; taker\[0\].take\(\) read 3")]),
    "a loop": (looping(), BY_ONE, [
        ((8, True), r"[1-9] of \d items.* are left; the loop read 3. Next: read"), ((8,), [*range(8)]), ((0,), "so the loop read an empty stream"),
    ]),
    "empty": (sifting(), {}, [
        ((200,), [99]), ((0,), escape(NOTHING.format(*EMPTY_A, 1))), ((200, 3), [196]), ((5,), escape(NOTHING.format(*EMPTY_B, 3))),
    ]),
    "meant": (sifting(empty="ab"), {}, [((0,), [0]), ((5,), [0])]),
    "who was given nothing": (sifting(empty="a"), {}, [((0,), [0]), ((5,), escape(NOTHING.format(*EMPTY_B, 1)))]),
    "nobody was called": (sifting(), {}, [((0, 0, False), [0])]),
    "nobody asks": (sifting(takes="take"), {}, [((5,), [0])]),
    "another rank puts": (sifting("on_rank_1"), {"ranks": {"maker": 2}}, [
        ((200,), [99]), ((0,), r"\(maker\[0\].on_rank_1\(\), maker\[1\].on_rank_1\(\) ended without a put\)"),
    ]),
}  # fmt: skip


@both
@pytest.mark.parametrize(("flow", "plan", "steps"), CASES.values(), ids=CASES)
def test_an_iteration_that_leaves_or_misses_something_fails_by_name_and_the_next_one_goes_on(kind: str, flow: Workflow, plan: Any, steps: Any) -> None:
    with opened(kind, flow, apart(flow, **plan)) as s:
        for arguments, expected in steps:
            if isinstance(expected, str):
                with pytest.raises(WorkflowError, match=expected):
                    s.step(*arguments)
            else:
                made, taken = s.step(*arguments)
                assert taken == expected and made in (None, arguments[0])  # a call whose items are not wanted may have ended at a put


@pytest.mark.parametrize(
    ("flow", "error", "told"),
    [
        (flow_of("breaks", "all_slowly"), WorkerError, "'maker' rank 0 failed in breaks"),
        (sifting("breaks"), WorkerError, "'maker' rank 0 failed in breaks"),
        (sifting(takes="all_much_later"), WorkflowError, "nothing was put into channel 'a'"),  # as soon as it is certain
    ],
    ids=["left", "empty", "soon"],
)
def test_the_first_error_is_told_not_what_it_left(flow: Workflow, error: type[Exception], told: str) -> None:
    with opened("local", flow, apart(flow)) as s, pytest.raises(error, match=told):
        s.step()


def test_a_run_fails_by_it_and_where_iterations_overlap_the_one_that_left_something_is_named() -> None:
    flow = flow_of()
    run_ = run(flow, apart(flow, staleness=1), executor="local", emulate=True, inputs=[3, 3, 8, 3, 3])
    with pytest.raises(WorkflowError, match="Iteration 2 .* items.* are left") as caught:
        run_.wait(30)
    assert "That was in iteration 2" in caught.value.__notes__[0]
    assert run_.state == "failed" and run_.results == [(3, [3])] * 2


def test_a_run_that_is_stopped_in_the_middle_has_left_nothing() -> None:
    flow = flow_of(takes="all_slowly")
    going = run(flow, apart(flow), executor="local", emulate=True)
    while not going.iteration:
        going._ended.wait(0.001)
    going.stop()
    assert going.state == "stopped" and going.error is None
