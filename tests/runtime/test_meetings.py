"""Ranks that meet: on devices that two workers share, whoever comes first on one may come second on the other, and nobody waits for ever; they give each
other values by rank, in order, through failures."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flows import Numbers
from sessions import both, opened, recorded, until
from torch import nn

import rlinf_lab as lab
from rlinf_lab.errors import DeadlockError, WorkflowError
from rlinf_lab.planning.engine.engine import Do, Engine, Event
from rlinf_lab.runtime.host.elastic.exchange import key_of, place_of
from rlinf_lab.runtime.host.elastic.meetings import Meetings, may_meet
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workers import LearnerWorker, PolicyWorker, RankGroup, SimulatorWorker

BOTH = [[0], [1]]


class Source(lab.Worker):
    def go(self, n: int, a: lab.Outbox, b: lab.Outbox) -> None:
        for i in range(n):
            a.put(i)
            b.put(i)
            self.compute(0.001)


class Meets(lab.Worker):
    """A step is an item of each rank, and a meeting."""

    def train(self, steps: int, inbox: lab.Inbox) -> list[int]:
        seen = []
        for _ in range(steps):
            item = inbox.take()
            self.compute(0.001 * (1 + (item + self.rank) % 3))
            seen.append(sum(self.exchange(item)))
        return seen


def flow_of(ranks: int, actor_class: type[lab.Worker] | None = None) -> lab.Workflow:
    flow = lab.Workflow("actor_critic")
    a, b = flow.channels("a", "b")
    source, actor, critic = flow.worker(Source, name="source"), flow.worker(actor_class or Meets, name="actor"), flow.worker(Meets, name="critic")

    flow.iteration(lambda: (source.go(5 * ranks, a, b), actor.train(5, a), critic.train(5, b))[1:])
    return flow


def plan_of(flow: lab.Workflow, ranks: int, **fields) -> lab.ExecutionPlan:
    devices = [f"cpu:{i}" for i in range(ranks + 1)]
    each = [[i] for i in range(ranks)]
    return lab.ExecutionPlan("shared", devices, {"source": [[ranks]], "actor": each, "critic": each}, micro_batches={"a": 1, "b": 1}, **fields)


@pytest.mark.parametrize(("ranks", "tight"), [(3, False), (2, True), (3, True)])
def test_ranks_of_two_workers_meet_on_shared_devices(ranks: int, tight: bool) -> None:
    """``tight``: only one of both fits on a device, so each change of turn is a switch."""
    flow = flow_of(ranks)
    memory = {"memory": {"actor": 1, "critic": 1}, "device_memory": 1} if tight else {}
    run = lab.run(flow, plan_of(flow, ranks, **memory), 4, dashboard=False, emulate=True)
    for pair in run.wait(60):
        for of_rank in pair:
            assert len(of_rank) == ranks and all(sum(sums) == sum(range(5 * ranks)) for sums in of_rank), pair
    assert run.timeline.bubble_sum_error_ns() == 0
    assert ("onload" in {s.name for s in run.timeline.rows()}) == tight


class Waits(Meets):
    def train(self, steps: int, inbox: lab.Inbox) -> list[int]:
        if self.rank == 0:
            return [sum(self.exchange(0))]
        while not self.cancelled:
            time.sleep(0.01)
        return []


def test_who_stands_aside_when_the_run_is_stopped_goes_on_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for whom is looked at while nobody comes or goes: any thread asks, and the places of a meeting change meanwhile."""
    looked, missing = [], Meetings.missing

    def watched(self: Meetings, process: Process) -> list[str]:
        looked.append(self._state.mutex._is_owned())
        return missing(self, process)

    monkeypatch.setattr(Meetings, "missing", watched)
    flow = flow_of(2, Waits)
    run = lab.run(flow, plan_of(flow, 2), 1, dashboard=False, emulate=True)
    until(lambda: any("exchange" in str(wait) for wait in run.waits()))
    assert "actor[0] waits for the other ranks of 'actor' in exchange() 1 of train()" in run.status()
    time.sleep(0.3)
    run.stop()
    long = [s.kind for s in run.timeline.rows() if s.track.worker == "actor" and s.track.rank == 0 and s.end_ns - s.start_ns > 200_000_000]
    assert long == [SpanKind.WAIT] and looked and all(looked)


class MeetsAtOnce(lab.Worker):
    def go(self) -> None:
        self.exchange(1)
        if self.rank == 0:
            self.exchange(2)
        else:
            self.compute(1.0)

    def read(self, inbox: lab.Inbox) -> None:
        inbox.take()


def test_a_loop_that_fails_takes_away_who_came_to_a_meeting_in_this_very_instant() -> None:
    """Under a mock clock its coming has not been settled yet."""
    flow = lab.Workflow("failing")
    m, o, quick = flow.worker(MeetsAtOnce, name="m"), flow.worker(MeetsAtOnce, name="o"), flow.worker(MeetsAtOnce, name="quick")
    items, fails = flow.channel("items"), []

    @flow.iteration
    def iteration() -> None:
        m.go()
        items.put(1)
        quick.read(items).wait()
        if fails:
            time.sleep(0.3)  # others block meanwhile, and time cannot go on
            raise ValueError("as it was asked to")
        o.go()

    plan = lab.ExecutionPlan("shared", ["cpu:0", "cpu:1", "cpu:2"], {"m": BOTH, "o": BOTH, "quick": [[2]]})
    with lab.session(flow, plan, emulate=True, clock=MockClock()) as session:
        fails.append(True)
        with pytest.raises(ValueError, match="as it was asked to"):
            session.step()
    assert not isinstance(session._host.state.failure, DeadlockError)


class Learns(lab.Worker):
    """Data-parallel by torch: its collectives hold the device. It takes its items, or puts what it has, before the block or in the middle of it."""

    def __init__(self, factor: float, what: str) -> None:
        self.factor, self.what = factor, what

    def setup(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.group = RankGroup(self, timeout=30)

    def offload(self) -> None:
        self.group.offload()

    def onload(self) -> None: ...

    def train(self, steps: int, inbox: lab.Inbox, out: lab.Outbox | None = None) -> float:
        if self.what == "before":
            for _ in range(steps):
                x = torch.full((2, 4), self.factor * (1.0 + inbox.take()))
                with self.group:
                    self.group.parallel(self.net)(x).mean().backward()
                if out is not None:
                    out.put(1)
        else:
            with self.group:
                net = self.group.parallel(self.net)
                for _ in range(steps):
                    x = 1.0 * inbox.take() if self.what == "get" else 1.0
                    if self.what == "put":
                        out.put(1)
                    net(torch.full((2, 4), x)).mean().backward()
            if self.what == "put":
                inbox.get(steps)
        return float(self.net.weight.grad.sum())


def test_who_may_meet_is_read_from_the_code() -> None:
    assert may_meet(LearnerWorker) and may_meet(Learns)
    assert not may_meet(Source) and not may_meet(SimulatorWorker) and not may_meet(PolicyWorker)


def test_back_in_the_order_of_complete_meetings_before_those_with_items() -> None:
    engine = Engine(1)
    a, b, c = (engine.add_process([0], priority) for priority in (2, 1, 0))
    for process in (a, b):
        engine.settle([(process, Event.START, 1, 0)])
        engine.settle([(process, Event.ASIDE, -1, 0)])
    engine.settle([(c, Event.START, 0, 1)])  # of the oldest iteration, and first in the graph
    assert [d for d, p, *_ in engine.come_back(a) if d == Do.RESUME] == []
    engine.come_back(b)
    order = []
    for holder in (c, a):
        order += [p for d, p, *_ in engine.settle([(holder, Event.DONE, -1, 0)]) if d == Do.RESUME]
    assert order == [a, b]
    assert engine.come_back(b) == []  # it is back already


def learners_that_share(what: str, capacity: int | None = 2, steps: int = 3) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    """Actor and critic on the same two devices, on which only one of them fits."""
    flow = lab.Workflow("within")
    a, b = flow.channels("a", "b")
    made = flow.channel("made", capacity=capacity, may_be_empty=True)
    source, counts = flow.worker(Source, name="source"), flow.worker(Numbers, name="counts")
    actor, critic = flow.worker(Learns, 1.0, what, name="actor"), flow.worker(Learns, 2.0, "before", name="critic")

    flow.iteration(lambda: (source.go(2 * steps, a, b), actor.train(steps, a, made), critic.train(steps, b), counts.count(made))[1:])
    places = {"source": [[2]], "counts": [[2]], "actor": BOTH, "critic": BOTH}
    memory = {"memory": {"actor": 1, "critic": 1}, "device_memory": 1}
    return flow, lab.ExecutionPlan("shared", ["cpu:0", "cpu:1", "cpu:2"], places, micro_batches={"a": 1, "b": 1}, **memory)


@pytest.mark.parametrize("executor", ["local", pytest.param("processes", marks=pytest.mark.long)])
@pytest.mark.parametrize("what", ["get", "put"])
def test_who_would_wait_at_a_channel_between_a_meeting_and_a_collective_is_told_at_once(what: str, executor: str) -> None:
    """Else the ranks of both wait for each other inside torch, where nobody sees it, until its time-out."""
    flow, plan = learners_that_share(what)
    with lab.session(flow, plan, executor, emulate=True) as session:
        for _ in range(5):
            message = rf"actor\[.\]: train\(\) {what}s .* within `with group:`.*'critic', whose ranks meet too.*Next: take and put"
            with pytest.raises(lab.errors.WorkerError, match=message):
                session.step()


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_block_for_each_step_never_hangs(executor: str) -> None:
    """And a put that never waits is no harm within it. In processes each device has an engine of its own."""
    flow, plan = learners_that_share("before")
    with lab.session(flow, plan, executor, emulate=True) as session:
        for i in range(1, 13):
            x, y, made = session.step()
            assert x == pytest.approx([i * 4 * sum(range(1, 7)) / 2] * 2) and y == pytest.approx([2 * x[0]] * 2) and made == 6
    flow, plan = learners_that_share("put", capacity=None)
    if executor == "local":
        with lab.session(flow, plan, emulate=True) as session:
            assert session.step()[2] == 6


# --- values that ranks give each other -------------------------------------------------------------------------------------
class Meeting(lab.Worker):
    def __init__(self, fails: tuple[int, int] = (-1, -1)) -> None:
        self.fails = fails  # (rank, iteration)

    def meet(self, rounds: int):
        found = []
        for n in range(rounds):
            if (self.rank, self.iteration) == self.fails and n == 1:
                raise ValueError("no")
            time.sleep(0.001 * ((self.rank * 7 + n * 3) % 4))
            found.append(self.exchange((self.rank, n, self.iteration)))
        return found


def exchanging(fails: tuple[int, int]) -> lab.Workflow:
    flow = lab.Workflow("meeting")
    meeting, other = flow.worker(Meeting, fails, name="meeting"), flow.worker(Meeting, name="other")

    flow.iteration(lambda rounds=4: (meeting.meet(rounds), other.meet(rounds), meeting.meet(1)))  # two workers at once, twice the first
    return flow


@both
def test_every_rank_gets_all_values_by_rank_and_one_that_fails_frees_the_others(kind: str) -> None:
    flow = exchanging((1, 2))
    plan = lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(6)], {"meeting": [0, 1, 2], "other": [3, 4, 5]})
    with opened(kind, flow, plan) as session:
        for i in range(4):
            if i == 2:
                with pytest.raises(lab.errors.WorkerError, match=r"'meeting' rank 1 failed in meet\(\): ValueError: no"):
                    session.step()
                continue
            first, second, third = session.step()
            assert first == second == [[[(r, n, i) for r in range(3)] for n in range(4)]] * 3
            assert third == [[[(r, 0, i) for r in range(3)]]] * 3
    assert any(span.kind is SpanKind.WAIT for span in recorded(session).rows())


def test_no_two_exchanges_nor_what_is_left_behind_have_one_number() -> None:
    """Of calls one after another, with as many exchanges as a call may have: below those of calls."""
    few, found = (1, 2, (1 << 20) - 1), list[int]()
    for call, before in itertools.product(range(4), few):
        process: Any = SimpleNamespace(call=SimpleNamespace(call_id=call), exchanges=before - 1, label="w[0]")
        found += [key_of(process), place_of(process)]
    assert len({*found}) == 2 * 4 * len(few) and max(found) < 0
    with pytest.raises(WorkflowError, match="1048576 exchanges in one call. Next"):
        key_of(process)


def test_before_the_first_call_the_others_are_not_there() -> None:
    assert Meeting().exchange(3) == [3], "by hand a worker meets itself"

    class Hasty(lab.Worker):
        def setup(self) -> None:
            self.exchange(1)

        def go(self) -> None: ...

    flow = lab.Workflow("hasty")
    hasty = flow.worker(Hasty)
    flow.iteration(lambda: hasty.go())
    with pytest.raises(lab.errors.RlinfLabError, match="outside a call"), lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])):
        pass
