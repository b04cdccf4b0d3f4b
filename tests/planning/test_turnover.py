"""Ranks that come and go at random moments in random workflows, with threads held up: each item exactly once, in every channel."""

from __future__ import annotations

import heapq
import random
import threading
from collections import Counter
from typing import Any, ClassVar

import pytest
from driving import hold_up_threads, recorded
from random_flows import MS, Scenario, scenario
from sweeps import sweep

from rlinf_lab.errors import ExecutorError, PlanError
from rlinf_lab.planning.plan.layout import checked_layout, refuse_fixed_place
from rlinf_lab.planning.simulator.simulator import Simulator, Turnover
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.control.instants import Instants
from rlinf_lab.runtime.host.control.scheduler import Scheduler
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.timeline import Timeline

ITERATIONS = 3


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_up_threads(monkeypatch, 11, 0.1, 0.0002)


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


@pytest.mark.usefixtures("held_up")
@sweep(40, 120, first=80_000)
def test_each_item_is_done_once_whoever_comes_and_goes(seeds: range) -> None:
    changes, tried = 0, 0
    for seed in seeds:
        log: list = []
        made = scenario(seed, log)
        if not (ranks := movable(made)) or made.stages[0].kind != "source":
            continue
        tried += 1
        changes += turn_over(made, ranks, random.Random(seed))
        assert_once(made, log)
    assert tried > 8 and changes > 20, "some came and went"


def turn_over(made: Scenario, ranks: list[tuple[str, int]], rng: random.Random) -> int:
    """Run it; how many came or went."""
    absent: dict[str, list[int]] = {}
    for worker, rank in ranks:
        if rng.random() < 0.4:
            absent.setdefault(worker, []).append(rank)
    executor = LocalExecutor(made.flow, made.plan, MockClock(), absent=absent)
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


# --- the simulator takes the same events ---------------------------------------------------------------------
class Conductor:
    """Has a place among the timers of a host: when time has come, a rank comes or goes, in a thread that counts as running meanwhile."""

    filled = None
    failures: ClassVar[list[BaseException]] = []
    loop: ClassVar[Any] = None  # of the session under way

    def __init__(self, host: Host, session: Session, change: Turnover) -> None:
        self._host, self._session, self._change = host, session, change

    def act(self) -> None:
        self._host.scheduler.begins()
        threading.Thread(target=self._act).start()

    def _act(self) -> None:
        try:
            (self._session.join if self._change.comes else self._session.leave)(self._change.worker, self._change.rank)
        except ExecutorError:  # the run has ended meanwhile
            pass
        except BaseException as error:
            self.failures.append(error)
        with self._host.state.mutex:
            self._host.scheduler.ends()
            self._host.scheduler.settle()


@pytest.fixture
def conducted(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scheduler.wake

    def wake(self: Scheduler, process: Any, timer: bool = False) -> None:
        if isinstance(process, Conductor):
            process.act()
        else:
            original(self, process, timer)

    moves = Instants._moves

    def moves_in_iterations(self: Instants) -> bool:
        """Between iterations the user's loop is not counted as running: time must not pass for those who come and go before it begins the next one."""
        return bool(Conductor.loop.is_open()) and moves(self)

    monkeypatch.setattr(Scheduler, "wake", wake)
    monkeypatch.setattr(Instants, "_moves", moves_in_iterations)


@pytest.mark.usefixtures("held_up", "conducted")
@sweep(60, 150, 90000)
def test_simulated_and_executed_turnover_are_equal(seeds: range) -> None:
    came, went = 0, 0
    for seed in seeds:
        log: list = []
        made = scenario(seed, log)
        if not (ranks := movable(made)) or made.stages[0].kind != "source":
            continue
        changes, absent = drawn(made, ranks, random.Random(seed))
        simulated = Simulator(made.flow.graph, made.plan, made.switch, turnover=changes, absent=absent).simulate(made.sim_calls(), ITERATIONS)
        executed = execute(made, changes, absent)
        assert not (difference := executed.diff(simulated)), f"seed {seed}, {made.plan}\n{changes} {absent}\n{difference}"
        assert_once(made, log)
        came += sum(c.comes for c in changes)
        went += sum(not c.comes for c in changes)
    assert came > 8 and went > 8 and not Conductor.failures, Conductor.failures


def drawn(made: Scenario, ranks: list[tuple[str, int]], rng: random.Random) -> tuple[list[Turnover], dict[str, list[int]]]:
    """Each rank comes or goes once, or does neither."""
    length = Simulator(made.flow.graph, made.plan, made.switch).simulate(made.sim_calls(), ITERATIONS).elapsed_ns // MS
    changes: list[Any] = []
    absent: dict[str, Any] = {}
    for worker, rank in ranks:
        what = rng.choice(("comes", "goes", "stays"))
        if what == "comes":
            absent.setdefault(worker, []).append(rank)
        if what != "stays":
            changes.append(Turnover(worker, rank, rng.randint(1, max(1, length * 2 // 3)) * MS, what == "comes"))
    return changes, absent


def execute(made: Scenario, changes: list[Turnover], absent: dict[str, list[int]]) -> Timeline:
    executor = LocalExecutor(made.flow, made.plan, MockClock(), absent=absent)
    executor.start()
    session, host = Session(executor), executor.driver_host
    Conductor.loop = session._loop
    begin = session._loop.begin

    def first(iteration: int) -> None:
        begin(iteration)
        if not iteration:
            with host.state.mutex:
                for i, change in enumerate(changes):
                    heapq.heappush(host.scheduler.instants._timers, (change.at_ns, 10_000 + i, Conductor(host, session, change)))  # type: ignore[misc]

    session._loop.begin = first  # type: ignore[method-assign]
    try:
        for _ in range(ITERATIONS):
            session.submit()
        session.finish()
    finally:
        assert executor.stop() == Ended()
    return recorded(made.plan, executor)


def test_what_cannot_turn_over_is_refused_when_its_time_has_come() -> None:
    made = next(m for m in (scenario(seed, []) for seed in range(90_000, 90_150)) if m.stages[0].kind == "source" and movable(m))
    worker, rank = movable(made)[0]
    for changes, message in (([Turnover.of(worker, rank, 0.001, comes=True)], "is there already"), ([Turnover(worker, rank, MS)] * 2, "not there|not left")):
        with pytest.raises(PlanError, match=message):
            Simulator(made.flow.graph, made.plan, made.switch, turnover=changes).simulate(made.sim_calls(), ITERATIONS)
    with pytest.raises(PlanError, match="rank 0 of 'source' stays"):
        Simulator(made.flow.graph, made.plan, turnover=[Turnover("source", 0, MS)])
