"""`get_nowait` and `qsize`: a tool cell whose generator refills as it decodes, on the local executor, between hosts and simulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from sessions import both, opened, recorded, step_within

sys.path.insert(0, str(Path(__file__).parent.parent / "planning"))
from driving import hold_up_threads

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator.scripts import ALL, Script, Turn, call, get, get_nowait, put, run
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Scripted, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000
SEQUENCES, DECODE_MS, TOOL_MS, CALLS_AT, TOOLS = 8, 4, 30, 10, 4
FEWEST = 18 + 23  # the longest of 33 tokens calls after 10, which takes eight steps, and has 23 more to go


def decoded(running: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """One token of each (number, length, tokens so far): those that call a tool now, and those that are done; they run no more."""
    for one in running:
        one[2] += 1
    calls, ended = [r for r in running if r[2] == CALLS_AT and r[0] % 2], [r for r in running if r[2] >= r[1]]
    running[:] = [r for r in running if r not in calls and r not in ended]
    return calls, ended


class Decoder(Worker):
    """Sequences of 12, 15, 18... tokens; every other one calls a tool after ten, and goes on when its result is there."""

    def generate(self, results: Inbox, requests: Outbox, done: Outbox) -> int:
        running, out, steps = [[p, 12 + 3 * p, 0] for p in range(SEQUENCES)], 0, 0
        while running or out:
            came = results.get_nowait() if running else results.get(1)
            running, out = running + came, out - len(came)
            if running:
                self.compute(DECODE_MS / 1000)
                steps += 1
            calls, ended = decoded(running)
            out += len(calls)
            for one in calls:
                requests.put(one)
            for one in ended:
                done.put(one[0])
        return steps


class Tool(Worker):
    def answer(self, requests: Inbox, results: Outbox) -> None:
        for batch in requests:
            for one in batch:
                self.compute(TOOL_MS / 1000)
                results.put(one)


def tool_cell() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("tools")
    requests, results, done = flow.channels("requests", "results", "done")
    decoder, tool = flow.worker(Decoder, name="decoder"), flow.worker(Tool, name="tool")

    @flow.iteration
    def iteration() -> Any:
        steps = decoder.generate(results, requests, done)
        tool.answer(requests, results)
        return sorted(done.get_all()), steps

    devices, tools = tuple(f"cpu:{i}" for i in range(1 + TOOLS)), tuple((1 + i,) for i in range(TOOLS))
    plan = ExecutionPlan("cell", devices, {"decoder": ((0,),), "tool": tools}, micro_batches={"requests": 1, "results": 1})
    return flow, plan


def scripts() -> list[SimCall]:
    def decoder(turn: Turn) -> Script:
        running, away = [[p, 12 + 3 * p, 0] for p in range(SEQUENCES)], list[list[int]]()
        while running or away:
            n = yield get_nowait("results") if running else get("results", 1)
            running, away = running + away[:n], away[n:]
            if running:
                yield run(DECODE_MS * MS)
            calls, ended = decoded(running)
            away += calls
            for _ in calls:
                yield put("requests")
            for _ in ended:
                yield put("done")

    def tool(turn: Turn) -> Script:
        while n := (yield get("requests")):
            for _ in range(n):
                yield run(TOOL_MS * MS)
                yield put("results")

    return [
        SimCall("decoder", "generate", decoder, ("results",), ("requests", "done")),
        SimCall("tool", "answer", tool, ("requests",), ("results",), starts_on_device=False),
    ]


def loop(turn: Turn) -> Script:
    yield call(0)
    yield call(1)
    yield get("done", ALL)


def mock_run(flow: Workflow, plan: ExecutionPlan) -> tuple[Any, Timeline]:
    with opened("mock", flow, plan) as s:
        found = s.step()
        s.finish()
    return found, recorded(s)


def test_a_generator_decodes_on_while_tools_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By-count takes of one result after another needed twice as many steps."""
    hold_up_threads(monkeypatch, 3, 0.05, 0.0001)
    flow, plan = tool_cell()
    (done, steps), timeline = mock_run(flow, plan)
    assert done == list(range(SEQUENCES)) and steps == FEWEST
    simulated = Simulator(flow.graph, plan).simulate(scripts(), 1, loop)
    assert not (difference := timeline.diff(simulated)), difference
    with opened("mesh", *tool_cell(), delay=0.002) as s:
        assert step_within(s)[0] == list(range(SEQUENCES))


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
            self.compute(0.0005)


def polled(ranks: int, capacity: int | None, most: int | None) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("polled")
    items = flow.channel("items", capacity=capacity)
    source, poller = flow.worker(Source, name="source"), flow.worker(Poller, name="poller")
    flow.iteration(lambda n: (source.make(list(range(n)), items), poller.take(items, most))[1])
    places = {"source": ((0,),), "poller": tuple((1 + r,) for r in range(ranks))}
    return flow, ExecutionPlan("polled", tuple(f"cpu:{i}" for i in range(1 + ranks)), places)


@both
@pytest.mark.parametrize(("ranks", "capacity", "most"), [(1, 3, None), (1, None, 2), (2, 4, 1), (3, 64, None)])
def test_every_item_comes_once_however_it_is_asked_for(kind: str, ranks: int, capacity: int | None, most: int | None) -> None:
    with opened(kind, *polled(ranks, capacity, most)) as s:
        for n in (1, 40):
            found = step_within(s, n)
            assert sorted(i for mine in (found if ranks > 1 else [found]) for i in mine) == list(range(n))


class Early(Worker):
    def take(self, inbox: Inbox, go: Inbox) -> list[Any]:
        before = [inbox.qsize(), inbox.get_nowait()]
        go.get_all()
        meanwhile = [inbox.qsize(), inbox.get_nowait(1)]
        waited = inbox.get(1)
        return [*before, *meanwhile, waited, inbox.qsize(), inbox.get_nowait(1), inbox.get_nowait(), inbox.get_nowait(), inbox.get(1)]


def test_a_whole_batch_is_not_given_in_parts_and_the_end_is_told_by_get() -> None:
    flow = Workflow("whole")
    items, go = flow.channel("items", whole=True), flow.channel("go")
    makes, starts, early = flow.worker(Source, name="makes"), flow.worker(Source, name="starts"), flow.worker(Early, name="early")

    flow.iteration(lambda: (makes.make([1, 2, 3], items), starts.make([0, 0], go), early.take(items, go))[2])
    plan = ExecutionPlan("whole", ("cpu:0", "cpu:1", "cpu:2"), {"makes": ((0,),), "starts": ((1,),), "early": ((2,),)})
    found, _ = mock_run(flow, plan)
    assert found == [0, [], 0, [], [1], 2, [2], [3], [], []]


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
        new = () if self.kept else tuple(5 * (i + 1) for i in range(len(prompts.get(4))))
        left, steps = list(self.kept or new), 0
        while left and answers.is_wanted():
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
    return flow, ExecutionPlan("over", ("cpu:0", "cpu:1"), {"sampler": ((0,),), "takes": ((1,),)})


def test_a_call_that_is_told_returns_keeps_what_it_has_and_leaves_its_input() -> None:
    flow, plan = over_sampled()
    for kind in ("local", "mesh"):  # in real time and between hosts, too
        with opened(kind, flow, plan) as s:
            for i in range(3):
                (_, left), taken = step_within(s)
                assert taken == [i] and left <= 3 - i
    with opened("mock", flow, plan) as s:
        assert [s.step() for _ in range(3)] == [((6, 3), [0]), ((5, 2), [1]), ((5, 1), [2])]  # one step more each time: the news comes within it
        s.finish()
    executed = recorded(s)
    kept: list[int] = []

    def sampler(turn: Turn) -> Script:
        left = list(kept)
        if not left:
            n = yield get("prompts", 4)
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

    calls = [
        SimCall("sampler", "sample", sampler, ("prompts",), ("answers",)),
        SimCall("takes", "take", takes, ("answers",), (), starts_on_device=False),
    ]
    assert not (difference := executed.diff(Simulator(flow.graph, plan).simulate(calls, 3, loop_of_both))), difference


# --- aborting one request ------------------------------------------------------------------------------------------
class Serving(Worker):
    """Requests of many steps; what is asked to be aborted is given back as it is, and the others go on."""

    def serve(self, requests: Inbox, aborts: Inbox, answers: Outbox) -> None:
        running = {name: [0, steps] for name, steps in requests.get_all()}
        while running:
            self.compute(0.001)
            for name in aborts.get_nowait():
                if name in running:
                    answers.put((name, running.pop(name)[0], "aborted"))
            for name, one in list(running.items()):
                one[0] += 1
                if one[0] == one[1]:
                    answers.put((name, running.pop(name)[0], "done"))


class Judge(Worker):
    """Has seen enough of request 2 after its first answer."""

    def judge(self, answers: Inbox, aborts: Outbox) -> list[Any]:
        seen = [answers.take()]
        aborts.put(2)
        return sorted(seen + [a for batch in answers for a in batch])


def test_one_request_is_aborted_while_the_others_go_on() -> None:
    flow = Workflow("aborts")
    requests, aborts, answers = flow.channels("requests", "aborts", "answers")
    serving, judge = flow.worker(Serving, name="serving"), flow.worker(Judge, name="judge")

    asked = [(1, 3), (2, 1000), (3, 8)]
    flow.iteration(lambda: (requests.put_all(asked), serving.serve(requests, aborts, answers), judge.judge(answers, aborts))[2])
    plan = ExecutionPlan("aborts", ("cpu:0", "cpu:1"), {"serving": ((0,),), "judge": ((1,),)}, micro_batches={"answers": 1, "aborts": 1})
    found, _ = mock_run(flow, plan)
    assert found == [(1, 3, "done"), (2, 3, "aborted"), (3, 8, "done")]
