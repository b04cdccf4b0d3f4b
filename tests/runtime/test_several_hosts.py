"""The contract of channels when workers live on several hosts: exactly once, in order, exact gets, and never a hang."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import sweep

from rlinf_lab.errors import DeadlockError, ExecutorError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.driver import waiting
from rlinf_lab.runtime.host.liveness.wait_graph import WaitGraph
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "planning"))
from mesh import MeshExecutor
from random_flows import scenario
from test_parity import ITERATIONS, assert_contract

SECONDS = 20


def step_within(session: Session, *args: Any, seconds: float = SECONDS) -> Any:
    """`session.step` in a thread, so that a hang is a failure of this test and says who waits for what."""
    return within(session, lambda: session.step(*args), seconds)


def within(session: Session, do: Callable[[], Any], seconds: float = SECONDS) -> Any:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append((do(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs:\n" + "\n".join(WaitGraph(tuple(session._executor.news.waits())).lines())
    value, error = found[0]
    if error is not None:
        raise error
    return value


def run_random(seed: int, delay: float) -> None:
    log: list = []
    made = scenario(seed, log, unit=1e-5)
    executor = MeshExecutor(made.flow, made.plan, delay, seed)
    executor.start()
    session = Session(executor)
    try:
        for _ in range(ITERATIONS):  # they overlap when the plan says so
            within(session, session.submit)
        within(session, session.finish)
    finally:
        assert executor.stop() == Ended(), seed
    assert_contract(made, log)


@sweep(60, 180)
def test_random_flows_keep_the_contract(seeds: range) -> None:
    for seed in seeds:
        run_random(seed, delay=0.0)


@pytest.mark.slow
def test_many_random_flows_keep_the_contract() -> None:
    for seed in range(20_000, 22_000):
        run_random(seed, delay=random.Random(seed).choice((0.0, 0.0005)))


class Maker(Worker):
    def make(self, count: int, out: Outbox) -> int:
        for i in range(count):
            out.put(i)
        return count

    def make_in_turn(self, count: int, first: Outbox, second: Outbox) -> None:
        first.put_all(range(count))
        second.put_all(range(count))

    def answer(self, questions: Inbox, answers: Outbox) -> None:
        for batch in questions:
            answers.put_all(batch)

    def compute_on(self, seconds: float, out: Outbox) -> None:
        time.sleep(seconds)  # hears of nothing

    def compute_until(self, freed: str, out: Outbox) -> None:
        out.put(0)  # it has begun
        assert FREED[freed].wait(60)


FREED: dict[str, threading.Event] = {}  # by name, so that a worker's argument can travel


class Reader(Worker):
    def all(self, inbox: Inbox) -> list[int]:
        return [len(inbox.get_all())]

    def exact(self, inbox: Inbox, n: int) -> list[int]:
        time.sleep(0.02)  # by now the producers are blocked
        sizes = []
        while batch := inbox.get(n):
            sizes.append(len(batch))
        return sizes

    def early(self, inbox: Inbox, n: int) -> int:
        return len(inbox.get(n)) if n else 0

    def pairs(self, first: Inbox, second: Inbox) -> int:
        count = 0
        while left := first.get(1):
            assert left == second.get(1)
            count += 1
        return count

    def ask(self, answers: Inbox, questions: Outbox) -> None:
        self.begin()  # it might put something first: a plan cannot tell
        questions.put(answers.take())

    def begin(self) -> None:
        pass

    def fail(self, inbox: Inbox) -> None:
        inbox.get(1)
        raise ValueError("as it was asked to")


def opened(flow: Workflow, makers: int = 1, **plan: Any) -> tuple[MeshExecutor, Session]:
    """Every rank on a device, and so on a host, of its own."""
    placements = {"maker": tuple((i,) for i in range(makers)), "reader": ((makers,),)}
    spread = ExecutionPlan("spread", tuple(f"cpu:{i}" for i in range(makers + 1)), placements, **plan)
    executor = MeshExecutor(flow, spread)
    executor.start()
    return executor, Session(executor)


def workers(flow: Workflow) -> tuple[Any, Any]:
    return flow.worker(Maker, name="maker"), flow.worker(Reader, name="reader")


@pytest.mark.parametrize("capacity", [1, 4, None])
@pytest.mark.parametrize("makers", [1, 3])
@pytest.mark.parametrize("size", [7, 20, 1000])
def test_a_get_of_more_than_the_channel_holds(capacity: int | None, makers: int, size: int) -> None:
    flow = Workflow("large")
    items = flow.channel("items", capacity=capacity)
    maker, reader = workers(flow)

    @flow.iteration
    def iteration() -> Any:
        maker.make(50, items)
        return reader.exact(items, size)

    executor, session = opened(flow, makers)
    for _ in range(2):
        sizes = step_within(session)
        assert sum(sizes) == 50 * makers
        assert set(sizes[:-1]) <= {size}
    assert executor.stop() == Ended()


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("waits", [False, True])
def test_a_consumer_that_stops_early_lets_its_producers_end(count: int, waits: bool) -> None:
    flow = Workflow("early")
    items = flow.channel("items", capacity=2, discard_unread=True)
    maker, reader = workers(flow)

    @flow.iteration
    def iteration() -> Any:
        made = maker.make(2_000, items)
        taken = reader.early(items, count)
        if waits:  # before it is known that nobody else will read
            return taken.wait(), made.wait()
        return taken, made

    executor, session = opened(flow)
    for _ in range(2):
        assert step_within(session) == (count, 2_000)  # what it puts is dropped: its value is wanted
    assert executor.stop() == Ended()


def test_a_deadlock_between_hosts_names_who_waits_for_whom() -> None:
    flow = Workflow("circle")
    questions, answers = flow.channels("questions", "answers")
    maker, reader = workers(flow)

    @flow.iteration
    def iteration(stuck: bool) -> Any:
        if not stuck:
            return 7
        maker.answer(questions, answers)
        return reader.ask(answers, questions)

    executor, session = opened(flow, micro_batches={"questions": 1, "answers": 1})
    ring = r"(?s)more: (maker|reader)\[0\] → .* → \1\[0\]\n.*"
    with pytest.raises(DeadlockError, match=ring + r"maker\[0\] waits for items of channel 'questions'.*reader\[0\] waits for items of channel 'answers'"):
        step_within(session, True)
    assert step_within(session, False) == 7
    assert executor.stop() == Ended()


def test_a_host_that_dies_ends_the_iteration_and_every_later_one_by_name() -> None:
    flow = Workflow("dying")
    items = flow.channel("items")
    maker, reader = workers(flow)

    @flow.iteration
    def iteration() -> Any:
        maker.compute_on(0.3, items)
        return reader.all(items)

    executor, session = opened(flow)
    killer = threading.Timer(0.1, executor.driver_host.lost, ["host0"])
    killer.start()
    with pytest.raises(ExecutorError, match=r"Host 'host0' died .*maker\[0\]"):
        step_within(session, seconds=3)
    with pytest.raises(ExecutorError, match="Host 'host0' died"):
        step_within(session, seconds=1)
    executor.stop()


def test_results_on_a_host_that_died_after_its_iteration_are_not_waited_for() -> None:
    flow = Workflow("died")
    items = flow.channel("items")
    maker, reader = workers(flow)
    handles = []

    @flow.iteration
    def iteration() -> Any:
        maker.make(3, items)
        handles.append(reader.all(items))
        return handles[-1]

    executor, session = opened(flow, staleness=1)
    started = session.submit()
    while not started.done():
        time.sleep(0.001)
    executor.driver_host.lost("host1")
    for late in (started, *handles):
        with pytest.raises(ExecutorError, match=r"Host 'host1' died .*reader\[0\]"):
            late.wait(10)
    executor.stop()


def test_the_next_step_waits_for_those_that_compute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("busy")
    items = flow.channel("items")
    maker, reader = workers(flow)

    freed = FREED["busy"] = threading.Event()

    @flow.iteration
    def iteration(fails: bool) -> Any:
        if not fails:
            return 5
        maker.compute_until("busy", items)
        return reader.fail(items)

    executor, session = opened(flow)
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.2)
    with pytest.raises(WorkerError, match="as it was asked to") as caught:
        step_within(session, True)
    assert "Still busy, and not interruptible: maker[0].compute_until" in caught.value.__notes__[0]
    threading.Timer(0.2, freed.set).start()
    assert step_within(session, False) == 5
    assert freed.is_set()  # the step had to wait for that
    assert executor.stop() == Ended()
    with pytest.raises(ExecutorError, match="The session has ended"):
        step_within(session, False)


class Peer(Worker):
    """Two ranks on two hosts that read one channel."""

    def hold(self, inbox: Inbox) -> list[int]:
        """Rank 0 takes one item and goes on when rank 1 has come to the end."""
        if self.rank == 0:
            mine = [inbox.take()]
            FREED["taken"].set()
            assert FREED["held"].wait(60)
            return [*mine, *inbox.get_all()]
        assert FREED["taken"].wait(60)
        mine = [i for batch in inbox for i in batch]
        FREED["held"].set()
        return mine

    def some(self, inbox: Inbox) -> list[int]:
        """Rank 0 stops after two items."""
        return inbox.get(2) if self.rank == 0 else [i for batch in inbox for i in batch]

    def fives(self, inbox: Inbox) -> list[list[int]]:
        found = []
        while batch := inbox.get(5):
            found.append(batch)
        return found

    def fail_first(self, inbox: Inbox) -> None:
        if self.rank == 0:
            raise ValueError("as it was asked to")
        inbox.get_all()


def peers(method: str, count: int, capacity: int | None, **plan: Any) -> tuple[MeshExecutor, Session]:
    """A maker and two readers, each on a host of its own."""
    flow = Workflow("peers")
    items = flow.channel("items", capacity=capacity)
    maker, reader = flow.worker(Maker, name="maker"), flow.worker(Peer, name="reader")

    @flow.iteration
    def iteration() -> Any:
        maker.make(count, items)
        return getattr(reader, method)(items)

    spread = ExecutionPlan("peers", ("cpu:0", "cpu:1", "cpu:2"), {"maker": ((0,),), "reader": ((1,), (2,))}, **plan)
    executor = MeshExecutor(flow, spread)
    executor.start()
    return executor, Session(executor)


@pytest.mark.parametrize("capacity", [1, 4, None])
def test_a_reader_that_is_busy_keeps_nothing_from_one_on_another_host(capacity: int | None) -> None:
    FREED.update(taken=threading.Event(), held=threading.Event())
    executor, session = peers("hold", 30, capacity, micro_batches={"items": 1})
    slow, fast = step_within(session)
    assert len(slow) == 1
    assert sorted(slow + fast) == list(range(30))
    assert executor.stop() == Ended()


@pytest.mark.parametrize("capacity", [1, None])
def test_what_a_reader_leaves_goes_to_those_on_other_hosts(capacity: int | None) -> None:
    executor, session = peers("some", 30, capacity, micro_batches={"items": 1})
    for _ in range(3):
        first, second = step_within(session)
        assert len(first) == 2
        assert sorted(first + second) == list(range(30))
        assert first == sorted(first)
        assert second == sorted(second)
    assert executor.stop() == Ended()


def test_readers_on_several_hosts_go_on_after_a_failure() -> None:
    executor, session = peers("fail_first", 30, 1)
    for _ in range(3):
        with pytest.raises(WorkerError, match="as it was asked to"):
            step_within(session)
    assert executor.stop() == Ended()


class Reuser(Worker):
    """Writes into the same array again as soon as put() has returned."""

    def make(self, count: int, out: Outbox) -> None:
        array = np.zeros(100)
        for i in range(count):
            array[:] = i
            out.put((i, array))

    def torn(self, first: Inbox, second: Inbox) -> int:
        return sum(int((array != i).any()) for inbox in (first, second) for batch in inbox for i, array in batch)


@pytest.mark.parametrize("capacity", [1, None])
def test_what_is_written_after_put_has_returned_does_not_travel(capacity: int | None) -> None:
    flow = Workflow("reuse")
    one, two = flow.channel("one", capacity=capacity), flow.channel("two", capacity=capacity)
    a, b, c, _ = (flow.worker(Reuser, name=name) for name in ("a", "b", "c", "both"))

    @flow.iteration
    def iteration() -> Any:
        a.make(150, one)
        b.make(150, two)
        return c.torn(one, two)

    # "both" makes one host of the devices of a and b: two threads that send
    placements = {"a": ((0,),), "b": ((1,),), "c": ((2,),), "both": ((0, 1),)}
    executor = MeshExecutor(flow, ExecutionPlan("reuse", ("cpu:0", "cpu:1", "cpu:2"), placements), slow_sending=0.001)
    assert executor.driver_host.place["a", 0] == executor.driver_host.place["b", 0] != executor.driver_host.place["c", 0]
    executor.start()
    assert step_within(Session(executor)) == 0
    assert executor.stop() == Ended()


class Asks(Worker):
    def ask(self, answers: Inbox, questions: Outbox) -> None:
        for _ in range(100):
            questions.put_all(iter(range(3)))  # one by one: the first leaves at once, the others may wait for co-location
            answers.get(3)


class Answers(Worker):
    def answer(self, questions: Inbox, answers: Outbox) -> None:
        for batch in questions:
            answers.put_all(batch)


def test_what_a_rank_has_put_is_sent_before_it_lets_go_of_its_device() -> None:
    """Who gets the device may keep the sender from its core, for as long as a step of a simulator."""
    flow = Workflow("asking")
    forth, back = flow.channel("forth"), flow.channel("back")
    asks, answers = flow.worker(Asks, name="asks"), flow.worker(Answers, name="answers")

    @flow.iteration
    def iteration() -> None:
        asks.ask(back, forth)
        answers.answer(forth, back)

    executor = MeshExecutor(flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"asks": [0], "answers": [1]}, micro_batch=1), slow_sending=0.0005)
    held: dict[str, list[bool]] = {}
    for name, host in executor.hosts.items():

        def watched(to: str, message: tuple, host: Any = host, name: str = name) -> None:
            if message[0] == "put":
                held.setdefault(name, []).append(any(p.machine.holding for p in host.state.ranks))

        executor.before_sending[name] = watched
    executor.start()
    session = Session(executor)
    try:
        step_within(session)
    finally:
        executor.stop()
    assert sum(map(len, held.values())) == 600
    assert all(all(sent) for sent in held.values())
