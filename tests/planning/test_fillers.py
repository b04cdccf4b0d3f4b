"""Fillers in the schedule: only where a device would be idle, never in the way for longer than one step."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

import pytest
from driving import finished
from random_flows import MS, Scenario, scenario
from sweeps import sweep

from rlinf_lab.errors import DeadlockError, PlanError, WorkflowError
from rlinf_lab.planning.engine.fillers import Fillers
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.filler import Filler
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

ITERATIONS = 3


def durations(seed: int, rank: int) -> Iterator[int]:
    """Milliseconds of the steps of one rank; some ranks run out of work."""
    rng = random.Random(f"{seed}.{rank}")
    last = rng.choice((None, None, None, 0, 4))
    return (rng.randint(1, 3) for _ in (itertools.count() if last is None else range(last + 1)))


class Idler(Worker):
    """Takes the steps of `durations`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def setup(self) -> None:
        steps = list(itertools.islice(durations(self.seed, self.rank), 4000))
        self.left = list(reversed(steps))

    def step(self) -> bool:
        self.compute(self.left.pop() / 1e3)
        return bool(self.left)


def execute(made: Scenario, delays: int) -> Timeline:
    executor = LocalExecutor(made.flow, made.plan, MockClock(), fillers=[Filler(Idler, made.seed, on=made.plan.devices, delays=delays)])
    timeline = finished(executor, made.plan, ITERATIONS)
    told = {f.rank: f.steps for f in executor.news.fillers()}
    assert told == {r: sum(s.track.rank == r for s in steps(timeline)) for r in told}
    return timeline


def steps(timeline: Timeline) -> list[Span]:
    return [s for s in timeline.rows() if s.track.worker == "idler"]


def in_the_way(timeline: Timeline) -> dict[int, list[tuple[int, int]]]:
    """For each iteration the times in which somebody waited for a device while a filler's step was on it."""
    by_device: dict[str, list[Span]] = defaultdict(list)
    for step in steps(timeline):
        by_device[step.track.devices[0]].append(step)
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in timeline.rows():
        if span.kind == SpanKind.LOCK:
            for step in (s for d in span.track.devices for s in by_device[d]):
                low, high = max(span.start_ns, step.start_ns), min(span.end_ns, step.end_ns)
                if low < high:
                    found[span.iteration].append((low, high))
    return found


@sweep(40, 160, first=70_000)
def test_fillers_are_in_the_way_for_one_step_at_most(seeds: range) -> None:
    taken, waited = 0, 0
    for seed in seeds:
        made = scenario(seed, [])
        delays = 1 + seed % 2
        executed = execute(made, delays)
        assert executed.bubble_sum_error_ns() == 0
        for iteration, times in in_the_way(executed).items():
            waited += 1
            assert _joined(times) <= delays * 3 * MS, (seed, iteration)
        taken += len(steps(executed))
    assert taken > 10 * len(seeds) and waited > len(seeds) // 5, "they were about something"


def _joined(times: list[tuple[int, int]]) -> int:
    """How long the union of intervals is."""
    total, reach = 0, 0
    for low, high in sorted(times):
        total += max(0, high - max(low, reach))
        reach = max(reach, high)
    return total


class Thrice(Worker):
    def setup(self) -> None:
        self.left = 3

    def step(self) -> bool:
        self.compute(0.003)
        self.left -= 1
        return bool(self.left)


# --- one worker, by hand -----------------------------------------------------------------------------------
class Loner(Worker):
    def work(self) -> None:
        self.compute(0.010)


def lone_flow() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("lone")
    loner = flow.worker(Loner, name="loner")

    @flow.iteration
    def iteration() -> None:
        loner.work()

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"loner": [0]})


def test_an_idle_device_is_filled_until_the_work_is_done_and_a_busy_one_never() -> None:
    flow, plan = lone_flow()
    executor = LocalExecutor(flow, plan, MockClock(), fillers=[Filler(Thrice, on=plan.devices, name="idler")])
    timeline = finished(executor, plan, 1)
    assert [(s.track.devices, s.start_ns, s.end_ns) for s in steps(timeline)] == [(("cpu:1",), t * MS, t * MS + 3 * MS) for t in (0, 3, 6)]
    assert timeline.busy()["ns"].tolist() == [10 * MS, 9 * MS]
    assert timeline.iterations()["end_ns"].tolist() == [10 * MS]


def test_fillers_hide_no_deadlock() -> None:
    """Two calls that wait for each other's items: endless steps beside them do not count as movement."""
    flow = Workflow("stuck")
    there, back = flow.channels("there", "back")
    a, b = flow.worker(Waits, name="a"), flow.worker(Waits, name="b")

    @flow.iteration
    def iteration() -> None:
        a.pass_on(back, there)
        b.pass_on(there, back)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"a": [0], "b": [1]})
    executor = LocalExecutor(flow, plan, MockClock(), fillers=[Filler(Idler, 1, on="cpu:1")])
    executor.start()
    try:
        with pytest.raises(DeadlockError, match=r"a\[0\] → b\[0\] → a\[0\]") as caught:
            Session(executor).step()
        assert "idler" not in str(caught.value)
    finally:
        executor.stop()


class Waits(Worker):
    def pass_on(self, inbox: Inbox, out: Outbox) -> None:
        self.prepare(out)  # it might put something first: a plan cannot tell
        for batch in inbox:
            out.put_all(batch)

    def prepare(self, out: Outbox) -> None:
        pass


# --- what cannot be -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fields", "message"), [
    ({"on": "cpu:7"}, "cpu:7"), ({"on": []}, r"on=\(\)"), ({"on": ["cpu:0", "cpu:0"]}, "different ones"), ({"on": 3}, "on=3"),
    ({"name": "loner"}, "another worker of that name"), ({"name": "two words"}, "letters, digits"), ({"memory": -1}, "memory=-1"),
    ({"delays": 0}, "delays=0"), ({"delays": True}, "delays=True"), ({"memory": 2}, "2 units of memory on cpu:0 beside.*loner 1; fillers 2"),
])  # fmt: skip
def test_a_filler_that_does_not_fit_is_refused_by_name(fields: dict, message: str) -> None:
    flow, _ = lone_flow()
    plan = ExecutionPlan("small", ("cpu:0", "cpu:1"), {"loner": [[0]]}, memory={"loner": 1}, device_memory=2)
    with pytest.raises(PlanError, match=message):
        LocalExecutor(flow, plan, MockClock(), fillers=[Filler(Loner, method="work", **{"on": "cpu:0", "name": "idler", **fields})])


def test_what_cannot_take_steps_is_refused() -> None:
    for what, message in ((3, "subclass of lab.Worker"), (lambda a: a, "without arguments"), (Waits, "step")):
        with pytest.raises((WorkflowError, LookupError), match=message):
            Filler(what, on="cpu:0")
    with pytest.raises(WorkflowError, match="called without arguments"):
        Filler(Waits, on="cpu:0", method="pass_on")
    flow, plan = lone_flow()
    with pytest.raises(WorkflowError, match="a list of fillers"):
        LocalExecutor(flow, plan, MockClock(), fillers=Filler(Loner, on="cpu:0", method="work"))  # type: ignore[arg-type]


def test_steps_may_begin_and_end_while_it_is_asked_whether_they_are_in_the_way() -> None:
    """By a host's thread that tells the driver whether anything moves."""

    class Step:
        devices = (0,)

    class Queues(list[list[Any]]):
        def __getitem__(self, device: Any) -> Any:
            del fillers.running[next(iter(fillers.running))]
            fillers.running[cast(Any, Step())] = False
            return super().__getitem__(device)

    fillers = Fillers([None], Queues([[]]))
    fillers.running.update({cast(Any, Step()): False for _ in range(2)})
    assert not fillers.are_in_the_way()
