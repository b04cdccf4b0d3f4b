"""Consumers that stop early: the producer hears of it at once, however long it would go on, by an error or by the end of its call."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flows import Numbers, apart
from sessions import in_time, kinds, opened, recorded, step_within

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator import scripts as sim
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.runtime.host.channels import stream_end
from rlinf_lab.runtime.run.run import session
from rlinf_lab.workflow.declaration import returns_nothing
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

BEGUN: list[str] = []
ENDED: list[str] = []


class Maker(Worker):
    def forever(self, out: Outbox) -> None:
        BEGUN.append(self.name)
        try:
            while True:
                out.put(1)
        finally:
            ENDED.append(self.name)

    def endless(self, out: Outbox) -> str:
        return self.unannotated(out) or ""

    def unannotated(self, out: Outbox):
        while True:
            out.put(1)

    def stubborn(self, out: Outbox) -> None:
        while True:
            try:
                out.put(1)
            except ValueError:
                raise
            except Exception as error:
                if not self.cancelled:
                    raise ValueError("it is no error") from error
                raise

    def slowly(self, out: Outbox) -> None:
        for _ in range(1000):
            self.compute(0.05)
            out.put(1)

    def paced(self, out: Outbox) -> None:
        for i in range(40):
            self.compute(0.003)
            out.put(i)

    def keyed(self, out: Outbox) -> None:
        for number in itertools.count():
            out.put(1, key=number % 2)

    def two(self, out: Outbox, other: Outbox) -> str:
        for i in range(300):
            out.put(i)
            other.put(i)
        return "all"

    def some(self, out: Outbox) -> str:
        out.put_all(range(300))
        return "all"


class Meeting(Worker):
    def one_puts(self, out: Outbox) -> None:
        for i in range(30):
            if self.rank == 0:
                out.put(i)
            self.exchange(i)
        ENDED.append(f"{self.name}[{self.rank}] has done all")


class Taker(Worker):
    def take(self, inbox: Inbox, n: int = 1) -> int:
        return len(inbox.get(n)) if n else 0

    def slow_take(self, inbox: Inbox, n: int) -> None:
        inbox.get(n)
        self.compute(0.02)

    def by_key(self, inbox: Inbox) -> int:
        return inbox.take(key=self.rank)

    def keep(self, value: Any) -> Any:
        return value

    def both(self, inbox: Inbox, other: Inbox) -> int:
        inbox.get(1)
        return sum(len(batch) for batch in other)


def plan_of(flow: Workflow, makers: int = 1, takers: int = 1) -> ExecutionPlan:
    return apart(flow, {"maker": makers, "taker": takers}, micro_batches=dict.fromkeys(flow.channel_specs, 1))


def flow_of(makes: str, takes: str = "take", *arguments: Any, waits: bool = False, relay: bool = False, **channel: Any) -> Workflow:
    flow = Workflow("early")
    last = flow.channel("items", **{"capacity": 3, **channel})
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")
    first = flow.channel("raw", capacity=3) if relay else last
    between = flow.worker(Numbers, name="relay") if relay else None

    @flow.iteration
    def iteration() -> Any:
        made = getattr(maker, makes)(first)
        if between is not None:
            between.pass_on(first, last)
        taken = getattr(taker, takes)(last, *arguments)
        if waits:
            assert last.get(1) == [1], "the loop has read, too, and does no more"
            taken.wait()
            made.wait()
        return made, taken

    return flow


CASES: list[tuple[dict[str, Any], int, int]] = [
    ({"makes": "forever"}, 1, 1),
    ({"makes": "forever", "waits": True}, 1, 2),
    ({"makes": "forever", "relay": True}, 2, 2),
    ({"makes": "slowly"}, 1, 1),
    ({"makes": "stubborn"}, 2, 1),
    ({"makes": "keyed", "takes": "by_key", "keyed": True}, 1, 2),
    ({"makes": "keyed", "group": 3}, 1, 1),
]


@kinds
@pytest.mark.parametrize("discards", [False, True])
@pytest.mark.parametrize(("case", "makers", "takers"), CASES)
def test_the_producers_of_what_nobody_will_read_hear_of_it_at_once(kind: str, discards: bool, case: dict[str, Any], makers: int, takers: int) -> None:
    """Their calls end where the rest is not wanted; else the iteration fails."""
    flow = flow_of(**case, discard_unread=discards)
    left = r"Channel 'items': [1-9]\d* of \d+ .*items.* are left; taker\[0\].* read \d.*Next: .*discard_unread"
    BEGUN.clear(), ENDED.clear()
    with opened(kind, flow, plan_of(flow, makers, takers)) as s:
        for _ in range(2):
            if discards:
                made, taken = step_within(s)
                assert made in (None, [None] * makers) and taken in (1, [1, 1])
            else:
                with pytest.raises(WorkflowError, match=left):
                    step_within(s)
    assert len(ENDED) == len(BEGUN)
    if discards or makers == 1:  # else an iteration may have failed before the second one had begun
        assert len(ENDED) == (2 * makers if case["makes"] == "forever" else 0)


@kinds
@pytest.mark.parametrize("late", [False, True])
def test_the_value_of_a_call_that_ended_at_a_put(kind: str, late: bool) -> None:
    """Kept by the loop; asked for by a call of the next iteration, or ``late``, by its handle."""
    flow, kept = Workflow("kept"), list[Any]()
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration() -> Any:
        before = kept[-1:] if not late else []
        kept.append(maker.unannotated(items))
        return taker.take(items), [taker.keep(handle) for handle in before]

    with opened(kind, flow, plan_of(flow)) as s:
        assert step_within(s) == (1, [])
        assert in_time(kept[-1].wait if late else s.step, s) == (None if late else (1, [None]))


def test_what_returns_nothing_is_read_from_its_code() -> None:
    def leaves_early(out):
        with out:
            for i in range(3):
                if i:
                    return
                out.put(i)

    def perhaps(x):
        return x or None

    of_makers = [returns_nothing(method) for method in (Maker.forever, Maker.unannotated, Maker.endless)]
    assert returns_nothing(leaves_early) and not returns_nothing(perhaps) and of_makers == [True, True, False]


@kinds
@pytest.mark.parametrize("how", ["returns a value", "read by others", "meets by its own code"])
def test_a_call_that_returns_or_whose_items_are_wanted_goes_on_to_its_end(kind: str, how: str) -> None:
    flow = Workflow("wanted")
    items, other = flow.channel("items", capacity=3, discard_unread=True), flow.channel("other", capacity=3)
    maker, taker = flow.worker(Meeting if "meets" in how else Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration() -> Any:
        if how == "meets by its own code":
            maker.one_puts(items)
            return taker.take(items), None
        if how == "read by others":
            made = maker.two(items, other)
            return taker.both(items, other), made
        kept.append(maker.some(items))
        return taker.take(items), None

    ENDED.clear()
    kept = list[Any]()
    with opened(kind, flow, plan_of(flow, makers=1 + ("meets" in how))) as s:
        assert step_within(s) == ((300, "all") if how == "read by others" else (1, None))
        assert [in_time(made.wait, s) for made in kept] == ["all"] * (how == "returns a value")
    assert sorted(ENDED) == (["maker[0] has done all", "maker[1] has done all"] if "meets" in how else [])


def test_who_goes_on_in_vain_is_told_of_once_and_by_the_length_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, process, nothing = [0.0], list[str](), cast(Any, "its rank"), cast(Any, None)
    monkeypatch.setattr(stream_end, "time", SimpleNamespace(monotonic=lambda: now[0]))
    post: Any = SimpleNamespace(on=lambda *_: None, remark=lambda key, text, at_once: told.append(key))
    unwanted = stream_end.Unwanted(cast(Any, SimpleNamespace(mutex=threading.Lock())), post, nothing, bool)
    for number, now[0] in ((1, 0.0), (1, 9.9), (2, 15.0), (2, 24.9), (2, 25.0), (2, 99.0), (3, 200.0)):
        call: Any = SimpleNamespace(worker="w", method="m", call_id=number, channels=lambda _: ["c"])
        unwanted._remark(process, call, "it returns something")
        assert told == ["w.m() goes on"] * (now[0] >= 25)


def test_a_reader_that_comes_after_the_rest_was_discarded_is_refused() -> None:
    flow = Workflow("late")
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(again: bool) -> Any:
        made, first = maker.forever(items), taker.take(items)
        made.wait()
        return first, taker.take(items) if again else 0

    with session(flow, plan_of(flow), emulate=True) as s:
        for again in (False, True, False):
            if not again:
                assert step_within(s, again) == (1, 0)
                continue
            with pytest.raises(WorkflowError, match=r"taker.take\(\) reads channel 'items', of which the rest was discarded.*Next: call every reader before"):
                step_within(s, again)


def calls_of(relay: bool, n: int) -> list[SimCall]:
    """What `paced` does, as scripts."""

    def make(turn: Any) -> Any:
        for _ in range(40):
            yield sim.run(3_000_000)
            yield sim.put("raw" if relay else "items")

    def work(turn: Any) -> Any:
        while got := (yield sim.get("raw")):
            yield sim.put("items", got)

    def take(turn: Any) -> Any:
        yield sim.get("items", n)
        yield sim.run(20_000_000)

    first = "raw" if relay else "items"
    between = [SimCall("relay", "pass_on", work, (first,), ("items",), starts_on_device=False)] if relay else []
    return [SimCall("maker", "paced", make, (), (first,)), *between, SimCall("taker", "slow_take", take, ("items",), starts_on_device=False)]


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize(("n", "makers", "takers", "staleness"), [(1, 1, 1, 0), (4, 2, 2, 1), (9, 1, 2, 0)])
def test_the_simulator_ends_calls_where_an_executor_does(relay: bool, n: int, makers: int, takers: int, staleness: int) -> None:
    flow = flow_of("paced", "slow_take", n, relay=relay, discard_unread=True)
    plan = dataclasses.replace(plan_of(flow, makers, takers), staleness=staleness)
    with opened("mock", flow, plan) as s:
        for _ in range(3):
            s.submit()
        s.finish()
    timeline = recorded(s)
    simulated = Simulator(flow.graph, plan).simulate(calls_of(relay, n), 3)
    assert not timeline.diff(simulated)
    assert simulated.elapsed_ns < 3 * 40 * 3_000_000  # nobody has made all
