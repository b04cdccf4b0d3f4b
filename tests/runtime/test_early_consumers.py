"""Consumers that stop early: the producer hears of it at once, however long it would go on, by an error or by the end of its call."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor

from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator import scripts as sim
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.elastic import exchange
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.declaration import returns_nothing
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

ENDED: list[str] = []
SECONDS = 20.0  # far less than the tests would last without what they look at


class Maker(Worker):
    def forever(self, out: Outbox) -> None:
        try:
            while True:
                out.put(1)
        finally:
            ENDED.append(self.name)

    def endless(self, out: Outbox) -> str:
        while True:
            out.put(1)

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
        while True:
            for key in range(self.ranks * 2):
                out.put(1, key=key)

    def in_groups(self, out: Outbox) -> None:
        while True:
            for _ in range(3):
                out.put(1, key=0)

    def two(self, out: Outbox, other: Outbox) -> str:
        for i in range(300):
            out.put(i)
            other.put(i)
        return "all"

    def some(self, out: Outbox) -> str:
        out.put_all(range(300))
        return "all"

    def meets_hidden(self, out: Outbox) -> None:
        while True:
            out.put(1)
            swap(self)

    def meets_late(self, out: Outbox) -> None:
        out.put(1)
        if self.rank == 0:
            swap(self)
        while True:
            time.sleep(0.001)
            out.put(1)


def swap(worker: Worker) -> None:
    """A meeting that the code of the worker does not speak of."""
    worker.exchange(worker.rank)


class Meeting(Worker):
    def one_puts(self, out: Outbox) -> None:
        for i in range(30):
            if self.rank == 0:
                out.put(i)
            self.exchange(i)
        ENDED.append(f"{self.name}[{self.rank}] has done all")

    def meet(self) -> None:
        self.exchange(0)


class Relay(Worker):
    def work(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            out.put_all(batch)


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


def executor_of(kind: str, flow: Workflow, plan: ExecutionPlan) -> Any:
    if kind == "mesh":
        return MeshExecutor(flow, plan, delay=0.001)
    return LocalExecutor(flow, plan, MockClock()) if kind == "mock" else LocalExecutor(flow, plan, emulate=True)


def in_time(act: Any) -> Any:
    """What it returns or raises, within some seconds."""
    found: list[Any] = []

    def attempt() -> None:
        try:
            found.append(act())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it goes on"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def plan_of(flow: Workflow, makers: int = 1, takers: int = 1) -> ExecutionPlan:
    ranks = {"maker": tuple((r,) for r in range(makers)), "relay": ((2,),), "taker": tuple((3 + r,) for r in range(takers))}
    return ExecutionPlan("early", tuple(f"cpu:{i}" for i in range(5)), {w: ranks[w] for w in flow.workers}, micro_batches=dict.fromkeys(flow.channel_specs, 1))


def flow_of(makes: str, takes: str = "take", waits: bool = False, relay: bool = False, **channel: Any) -> Workflow:
    flow = Workflow("early")
    last = flow.channel("items", **{"capacity": 3, **channel})
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")
    first = flow.channel("raw", capacity=3) if relay else last
    between = flow.worker(Relay, name="relay") if relay else None

    @flow.iteration
    def iteration() -> Any:
        made = getattr(maker, makes)(first)
        if between is not None:
            between.work(first, last)
        taken = getattr(taker, takes)(last)
        if waits:
            taken.wait()
            made.wait()
        return made, taken

    return flow


kinds = pytest.mark.parametrize("kind", ["local", "mock", "mesh"])
CASES: list[tuple[dict[str, Any], int, int]] = [
    ({"makes": "forever"}, 1, 1),
    ({"makes": "forever", "waits": True}, 1, 2),
    ({"makes": "forever", "relay": True}, 2, 2),
    ({"makes": "slowly"}, 1, 1),
    ({"makes": "stubborn"}, 2, 1),
    ({"makes": "keyed", "takes": "by_key", "keyed": True}, 1, 2),
    ({"makes": "in_groups", "group": 3}, 1, 1),
]


@kinds
@pytest.mark.parametrize(("case", "makers", "takers"), CASES)
def test_what_nobody_will_read_fails_the_iteration_at_once(kind: str, case: dict[str, Any], makers: int, takers: int) -> None:
    flow = flow_of(**case)
    executor = executor_of(kind, flow, plan_of(flow, makers, takers))
    executor.start()
    one = Session(executor)
    for _ in range(2):
        with pytest.raises(WorkflowError, match=r"Channel 'items': \d+ of \d+ .*items.* are left; taker\[0\].* read \d.*Next: .*discard_unread"):
            in_time(one.step)
    assert executor.stop() == Ended()


@kinds
@pytest.mark.parametrize(("case", "makers", "takers"), CASES)
def test_where_the_rest_is_not_wanted_the_calls_of_the_producers_end(kind: str, case: dict[str, Any], makers: int, takers: int) -> None:
    flow = flow_of(**case, discard_unread=True)
    executor = executor_of(kind, flow, plan_of(flow, makers, takers))
    executor.start()
    one = Session(executor)
    ENDED.clear()
    for _ in range(2):
        made, taken = in_time(one.step)
        assert made in (None, [None] * makers) and taken in (1, [1, 1])
    assert len(ENDED) == (2 * makers if case["makes"] == "forever" else 0)
    assert executor.stop() == Ended()


@kinds
def test_a_call_that_somebody_reads_goes_on_to_its_end(kind: str) -> None:
    flow = Workflow("two")
    items, other = flow.channel("items", capacity=3, discard_unread=True), flow.channel("other", capacity=3)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration() -> Any:
        made = maker.two(items, other)
        return made, taker.both(items, other)

    executor = executor_of(kind, flow, plan_of(flow))
    executor.start()
    assert in_time(Session(executor).step) == ("all", 300)
    assert executor.stop() == Ended()


def whose_value_is_asked_for_later(kind: str, method: str, late: bool) -> tuple[Any, Callable[[], Any]]:
    """A call that ended because nobody read it, kept by the loop; asked for by a call of the next iteration, or ``late``, by its handle."""
    flow, kept = Workflow("kept"), list[Any]()
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration() -> Any:
        before = kept[-1:] if not late else []
        kept.append(getattr(maker, method)(items))
        taken = taker.take(items)
        return taken, [taker.keep(handle) for handle in before]

    executor = executor_of(kind, flow, plan_of(flow))
    executor.start()
    one = Session(executor)
    assert in_time(one.step) == (1, [])
    return executor, kept[-1].wait if late else one.step


@kinds
@pytest.mark.parametrize("late", [False, True])
def test_a_call_that_ended_at_a_put_has_no_value(kind: str, late: bool) -> None:
    """It was None to a call of the next iteration, and to whoever asked the handle later."""
    executor, ask = whose_value_is_asked_for_later(kind, "endless", late)
    told = r"maker\[0\].endless\(\) of iteration 0 has no value: nobody read what it put into 'items'.* Next: take the value in the same iteration"
    with pytest.raises((WorkflowError, WorkerError), match=told):
        in_time(ask)
    executor.stop()


@kinds
@pytest.mark.parametrize("late", [False, True])
def test_who_only_waits_for_the_end_of_a_call_that_returns_nothing_hears_of_it(kind: str, late: bool) -> None:
    """Without an annotation, as in a notebook. It was an error: the call had no value, as if it ever had one."""
    executor, ask = whose_value_is_asked_for_later(kind, "unannotated", late)
    assert in_time(ask) == (None if late else (1, [None]))
    assert executor.stop() == Ended()


def test_what_returns_nothing_is_read_from_its_code() -> None:
    def leaves_early(out):
        with out:
            for i in range(3):
                if i:
                    return
                out.put(i)

    def perhaps(x):
        return x or None

    def one_of_two(x):
        return None if x else 3

    assert returns_nothing(leaves_early) and not returns_nothing(perhaps) and not returns_nothing(one_of_two)
    assert returns_nothing(Maker.forever) and returns_nothing(Maker.unannotated) and not returns_nothing(Maker.endless)


@kinds
def test_ranks_that_meet_end_together(kind: str) -> None:
    flow = flow_of("meets_hidden", discard_unread=True)
    executor = executor_of(kind, flow, plan_of(flow, makers=2))
    executor.start()
    one = Session(executor)
    for _ in range(3):
        assert in_time(one.step) == ([None, None], 1)
    assert executor.stop() == Ended()


@pytest.mark.parametrize("aside", [False, True])
def test_a_rank_that_is_about_to_meet_others_that_have_ended_ends_too(aside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun to when the news comes that nobody reads."""
    flow = Workflow("late")
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker, other = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker"), flow.worker(Meeting, name="relay")

    @flow.iteration
    def iteration() -> None:
        maker.meets_late(items)
        taker.take(items)
        other.meet()

    shared = ((0,), (1,)) if aside else ((2,), (4,))
    plan = ExecutionPlan("late", plan_of(flow).devices, {"maker": ((0,), (1,)), "taker": ((3,),), "relay": shared}, micro_batches={"items": 1})
    executor = executor_of("local", flow, plan)
    executor.start()
    key_of = exchange.key_of

    def late(process: Any) -> int:
        while process.worker == "maker" and not executor.driver_host._unwanted.discarded:
            time.sleep(0.001)
        time.sleep(0.05)
        return key_of(process)

    monkeypatch.setattr(exchange, "key_of", late)
    assert in_time(Session(executor).step) is None
    assert executor.stop() == Ended()


@kinds
def test_ranks_that_meet_by_their_own_code_go_on_to_their_end(kind: str) -> None:
    flow = Workflow("meeting")
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Meeting, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration() -> Any:
        maker.one_puts(items)
        return taker.take(items)

    executor = executor_of(kind, flow, plan_of(flow, makers=2))
    executor.start()
    ENDED.clear()
    assert in_time(Session(executor).step) == 1
    assert sorted(ENDED) == ["maker[0] has done all", "maker[1] has done all"]
    assert executor.stop() == Ended()


@kinds
@pytest.mark.parametrize("how", ["returned", "part", "taken", "waited"])
def test_a_call_whose_value_is_wanted_goes_on_to_its_end(kind: str, how: str) -> None:
    flow = Workflow("wanted")
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration() -> Any:
        made = maker.some(items)
        taken = taker.take(items)
        taken.wait()
        value = {"returned": lambda: [made], "part": lambda: {"a": made[:]}, "taken": lambda: taker.keep(made), "waited": made.wait}[how]()
        return value, taken

    executor = executor_of(kind, flow, plan_of(flow))
    executor.start()
    expected = {"returned": ["all"], "part": {"a": "all"}}.get(how, "all")
    assert in_time(Session(executor).step) == (expected, 1)
    assert executor.stop() == Ended()


def test_a_reader_that_comes_after_the_rest_was_discarded_is_refused() -> None:
    flow = Workflow("late")
    items = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(again: bool) -> Any:
        made = maker.forever(items)
        first = taker.take(items)
        made.wait()
        return first, taker.take(items) if again else 0

    with session(flow, plan_of(flow), emulate=True) as s:
        assert in_time(lambda: s.step(False)) == (1, 0)
        with pytest.raises(WorkflowError, match=r"taker.take\(\) reads channel 'items', of which the rest was discarded.*Next: call every reader before"):
            in_time(lambda: s.step(True))
        assert in_time(lambda: s.step(False)) == (1, 0)


@pytest.mark.parametrize("discards", [False, True])
def test_between_processes(discards: bool) -> None:
    flow = flow_of("forever", relay=True, discard_unread=discards)
    plan = plan_of(flow, makers=2, takers=2)
    with session(flow, plan, executor="processes", emulate=True) as s:
        for _ in range(2):
            if discards:
                assert s.step() == ([None, None], [1, 1])
            else:
                with pytest.raises(WorkflowError, match=r"Channel 'items': .* are left; taker\[0\].take\(\) read 1, taker\[1\].take\(\) read 1"):
                    s.step()


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
    between = [SimCall("relay", "work", work, (first,), ("items",), starts_on_device=False)] if relay else []
    return [SimCall("maker", "paced", make, (), (first,)), *between, SimCall("taker", "slow_take", take, ("items",), starts_on_device=False)]


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize(("n", "makers", "takers", "staleness"), [(1, 1, 1, 0), (4, 2, 2, 1), (9, 1, 2, 0)])
def test_the_simulator_ends_calls_where_an_executor_does(relay: bool, n: int, makers: int, takers: int, staleness: int) -> None:
    flow = Workflow("early")
    last = flow.channel("items", capacity=3, discard_unread=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")
    first = flow.channel("raw", capacity=3) if relay else last
    between = flow.worker(Relay, name="relay") if relay else None

    @flow.iteration
    def iteration() -> None:
        maker.paced(first)
        if between is not None:
            between.work(first, last)
        taker.slow_take(last, n)

    plan = dataclasses.replace(plan_of(flow, makers, takers), staleness=staleness)
    executor = LocalExecutor(flow, plan, MockClock())
    executor.start()
    one = Session(executor)
    for _ in range(3):
        one.submit()
    one.finish()
    timeline = Timeline(plan.devices)
    for batch in executor.news.drain():
        timeline.extend(batch)
    assert executor.stop() == Ended()
    simulated = Simulator(flow.graph, plan).simulate(calls_of(relay, n), 3)
    assert not timeline.diff(simulated)
    assert simulated.elapsed_ns < 3 * 40 * 3_000_000  # nobody has made all
