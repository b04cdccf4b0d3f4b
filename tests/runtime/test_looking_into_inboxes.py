"""`get_nowait`, `qsize` and `is_wanted`: on the local executor, between hosts and simulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from flows import apart
from sessions import both, opened, recorded, step_within

sys.path.insert(0, str(Path(__file__).parent.parent / "planning"))
from driving import hold_up_threads

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator.scripts import Script, Turn, call, get, get_nowait, put, run
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Scripted, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000
DECODE_MS = 4
POLL_NS = 2_500_000


def mock_run(flow: Workflow, plan: ExecutionPlan, *arguments: Any) -> tuple[list[Any], Timeline]:
    """What two iterations return, in made-up time."""
    with opened("mock", flow, plan) as s:
        found = [s.step(*arguments) for _ in range(2)]
        s.finish()
    return found, recorded(s)


class Source(Worker):
    def make(self, items: list[int], out: Outbox) -> None:
        for item in items:
            self.compute(0.001)
            out.put(item)


class Poller(Worker):
    """Takes what is there, as often as it finds something; else it waits for one."""

    def take(self, inbox: Inbox, most: int | None) -> list[int]:
        found: list[int] = []
        while True:
            there, got = inbox.qsize(), inbox.get_nowait(most)
            assert len(got) <= (most or len(got)), "never more than was asked for"
            assert self.ranks > 1 or len(got) >= min(there, most or there), "what is there for the only one stays there"
            got = got or inbox.get(1)
            if not got:
                return found
            found += got
            self.compute(POLL_NS / 1e9)


def polled(ranks: int, capacity: int | None, most: int | None) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("polled")
    items = flow.channel("items", capacity=capacity)
    source, poller = flow.worker(Source, name="source"), flow.worker(Poller, name="poller")
    flow.iteration(lambda n: (source.make(list(range(n)), items), poller.take(items, most))[1])
    return flow, apart(flow, {"poller": ranks})


@both
@pytest.mark.parametrize(("ranks", "capacity", "most"), [(1, 3, None), (1, None, 2), (2, 4, 1), (3, 64, None)])
def test_every_item_comes_once_however_it_is_asked_for(kind: str, ranks: int, capacity: int | None, most: int | None) -> None:
    with opened(kind, *polled(ranks, capacity, most)) as s:
        for n in (1, 40):
            found = step_within(s, n)
            assert sorted(i for mine in (found if ranks > 1 else [found]) for i in mine) == list(range(n))


@pytest.mark.parametrize(("capacity", "most"), [(3, None), (None, 2), (4, 1)])
def test_the_simulator_finds_what_is_there(capacity: int | None, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_up_threads(monkeypatch, 3, 0.05, 0.0001)

    def make(turn: Turn) -> Script:
        for _ in range(40):
            yield run(MS)
            yield put("items")

    def take(turn: Turn) -> Script:
        while (yield get_nowait("items", most)) or (yield get("items", 1)):
            yield run(POLL_NS)

    flow, plan = polled(1, capacity, most)
    calls = [SimCall("source", "make", make, (), ("items",)), SimCall("poller", "take", take, ("items",), starts_on_device=False)]
    assert not (difference := mock_run(flow, plan, 40)[1].diff(Simulator(flow.graph, plan).simulate(calls, 2))), difference


def test_bad_counts_are_refused_and_a_scripted_inbox_says_the_same() -> None:
    inbox = Scripted([1, 2, 3])
    assert (inbox.qsize(), inbox.get_nowait(2), inbox.qsize(), inbox.get_nowait(), inbox.get_nowait()) == (3, [1, 2], 1, [3], [])
    with opened("mock", *polled(1, None, 0)) as s, pytest.raises(WorkerError, match=r"get_nowait\(0\) asks for less than one item"):
        s.step(1)


# --- told before the next put that nobody wants more ---------------------------------------------------------------
class Sampler(Worker):
    """Makes answers of 5, 10, 15... steps side by side until nobody wants more; what is in the making goes on later."""

    kept: tuple[int, ...] = ()

    def sample(self, prompts: Inbox, answers: Outbox) -> tuple[int, int]:
        left, steps = list(self.kept or [5 * (i + 1) for i in range(len(prompts.get(8)))]), 0
        while answers.is_wanted():  # it ends by being told alone, for the news may take any time
            left = left or [5 * (i + 1) for i in range(8)]
            self.compute(DECODE_MS / 1000)
            steps += 1
            left = [n - 1 for n in left]
            for _ in range(left.count(0)):
                answers.put(self.iteration)
            left = [n for n in left if n]
        self.kept = tuple(left)
        return steps, len(left)


class Takes(Worker):
    def take(self, answers: Inbox, n: int) -> list[int]:
        return answers.get(n)


def over_sampled() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("over")
    prompts, answers = flow.channel("prompts"), flow.channel("answers", discard_unread=True)
    sampler, takes = flow.worker(Sampler, name="sampler"), flow.worker(Takes, name="takes")

    flow.iteration(lambda: (prompts.put_all(range(8)), sampler.sample(prompts, answers), takes.take(answers, 1))[1:])
    return flow, apart(flow)


def test_a_call_that_is_told_returns_keeps_what_it_has_and_leaves_its_input() -> None:
    flow, plan = over_sampled()
    for kind in ("local", "mesh"):  # in real time and between hosts, too
        with opened(kind, flow, plan) as s:
            assert [step_within(s)[1] for _ in range(3)] == [[0], [1], [2]]
    with opened("mock", flow, plan) as s:
        assert [s.step() for _ in range(3)] == [((6, 7), [0]), ((5, 6), [1]), ((5, 5), [2])]  # one step more each time: the news comes within it
        s.finish()
    executed = recorded(s)
    kept: list[int] = []

    def sampler(turn: Turn) -> Script:
        left = list(kept)
        if not left:
            n = yield get("prompts", 8)
            left = [5 * (i + 1) for i in range(n)]
        while left and turn.wanted("answers"):
            yield run(DECODE_MS * MS)
            left = [n - 1 for n in left]
            yield put("answers", left.count(0))
            left = [n for n in left if n]
        kept[:] = left

    def takes(turn: Turn) -> Script:
        yield get("answers", 1)

    def loop_of_both(turn: Turn) -> Script:
        yield put("prompts", 8)
        yield call(0)
        yield call(1)

    calls = [SimCall("sampler", "sample", sampler, ("prompts",), ("answers",)), SimCall("takes", "take", takes, ("answers",), (), starts_on_device=False)]
    assert not (difference := executed.diff(Simulator(flow.graph, plan).simulate(calls, 3, loop_of_both))), difference
