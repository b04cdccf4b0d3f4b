"""The processes executor: the same results, failures by name in seconds, nothing left behind by anybody's death."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from flows import DEVICES
from sessions import until

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError
from rlinf_lab.runtime.executors import child, multi_process
from rlinf_lab.runtime.executors.child import Child, _answer, _settle
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.timeline.record.span import SpanKind


def started_since(before: set[psutil.Process]) -> list[psutil.Process]:
    """By this process and its new children, but for the one that forks them (`warm_processes`). What was there before starts some of its own at any time."""
    new = []
    for process in set(psutil.Process().children()) - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            new += [] if "warm_processes.py" in " ".join(process.cmdline()) else [process, *process.children(recursive=True)]
    return new


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of no test, however it ends: no child, and no thread of a link."""
    before = set(psutil.Process().children())
    threads = set(threading.enumerate())
    yield
    _, alive = psutil.wait_procs(started_since(before), timeout=10)
    assert not alive
    ours = [t for t in threading.enumerate() if t not in threads and t.name.startswith(("link", "listen", "write to", "answers", "postman"))]
    for thread in ours:
        thread.join(10)
    assert not [t for t in ours if t.is_alive()]


class OnlyThere:
    """What no other process than its own can unpickle."""

    def __init__(self, home: int = 0) -> None:
        if home not in (0, os.getpid()):
            raise ImportError("no such module here")
        self.home = os.getpid()

    def __reduce__(self) -> Any:
        return OnlyThere, (self.home,)


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return missing, ()


def missing() -> None:
    raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")


class OddError(Exception):
    """Cannot be pickled, nor rebuilt from its arguments."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")
        self.lock = threading.Lock()


class Maker(Worker):
    def make(self, how: str, out: Outbox) -> Any:
        match how:
            case "only there":
                return OnlyThere()
            case "error":
                raise OddError(1, 2)
            case "exit":
                raise SystemExit(3)
        out.put_all(range(100))
        if how == "item":
            out.put(threading.Lock())
        return {"model": [1, threading.Lock()]} if how == "value" else 5


class Taker(Worker):
    def setup(self) -> None:
        if self.name == "dies":
            os._exit(3)

    def take(self, inbox: Inbox, early: bool = False) -> int:
        return len(inbox.get(3)) if early else sum(len(batch) for batch in inbox)


def fragile(taker_name: str = "taker") -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("fragile")
    items = flow.channel("items", capacity=8, may_be_empty=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name=taker_name)

    @flow.iteration
    def iteration(how: str = "", early: bool = False, waits: bool = True) -> Any:
        made = maker.make(how, items)
        taken = taker.take(items, early)
        return (made.wait(), taken.wait()) if waits else (made, taken)

    return flow, ExecutionPlan.spatial(flow, DEVICES, {"maker": [0], taker_name: [1]})


def assert_what_cannot_travel_fails_its_iteration_alone(s: Session) -> None:
    """By name."""
    for step, error, told in (
        (("item",), WorkerError, "'maker' rank 0 failed in make.*cannot pickle '_thread.lock'"),
        (("value",), WorkerError, r"'maker' rank 0 failed in make\(\): .*What make\(\) returned, \{'model': .*\}, "
         r"cannot be sent to another process: TypeError: cannot pickle '_thread.lock' object "
         r"\(at \['model'\]\[1\]\)\. Next: "),
        (("error",), WorkerError, "'maker' rank 0 .*OddError: odd 1 2"),
        (("exit",), WorkerError, "'maker' rank 0 .*SystemExit: 3"),
        (("", threading.Lock()), WorkflowError, r"Call of taker.take\(\), argument 2: <unlocked .*Next:"),  # where the call is made
        (("", Unreadable()), WorkerError, "'taker' rank 0 failed in take.*No module named 'elsewhere'"),  # of the rank that needs it
        (("only there", False, False), ExecutorError,
         r"What maker\[0\] returned from make\(\) \(\S*OnlyThere\) cannot be rebuilt in another process: .*no such module here.*Next: install the module"),
        (("", True), WorkflowError, r"Channel 'items': \d+ of \d+ items put so far are left; taker\[0\].take\(\) read 3. Next: read to the end"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"(?s){told}"):
            s.step(*step)
        assert s.step() == (5, 100)


def test_what_cannot_travel_fails_the_iteration_by_name_and_the_next_one_goes_on() -> None:
    with session(*fragile(), executor="processes") as s:
        assert_what_cannot_travel_fails_its_iteration_alone(s)


@pytest.mark.fresh
def test_a_child_that_dies_in_setup_is_told_by_worker() -> None:
    with pytest.raises(ExecutorError, match=r"Host 'host1' died while its workers were being set up with status 3 .*; dies\[0\] lived there"):
        run(*fragile("dies"), 1, "processes").wait(60)


class SetUp(Worker):
    """Fails in its setup, or waits there until it is told not to."""

    def setup(self) -> None:
        if self.name == "bad":
            raise ValueError("told at once")
        until(lambda: self.cancelled)

    def work(self) -> None:
        pass


def test_a_failure_in_setup_is_told_while_others_are_still_being_set_up() -> None:
    flow = Workflow("loading")
    slow, bad = flow.worker(SetUp, name="slow"), flow.worker(SetUp, name="bad")
    flow.iteration(lambda: (slow.work(), bad.work()))
    with pytest.raises(WorkerError, match="'bad' rank 0 failed in setup.*told at once"):
        run(flow, ExecutionPlan.spatial(flow, DEVICES, {"slow": [0], "bad": [1]}), 1, "processes").wait(60)


def test_a_module_that_cannot_be_imported_there_is_told_by_host_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit, which no `except Exception` hears of, would otherwise end the driver, the kernel of a notebook say."""
    (tmp_path / "imported_leaves.py").write_text(
        f"import os, sys\nfrom rlinf_lab.workflow.worker import Worker\nif os.getpid() != {os.getpid()}:\n    sys.exit(2)\n"
        f"class Made(Worker):\n    def work(self):\n        return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    flow = Workflow("imported")
    made = flow.worker(importlib.import_module("imported_leaves").Made, name="made")
    flow.iteration(lambda: made.work())
    with pytest.raises(ExecutorError, match=r"(?s)Host 'host0' \(made\[0\]\) could not read its workers: SystemExit: 2\. Next: .*imported_leaves"):
        run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1, "processes").wait(60)


class Slippery:
    def __reduce__(self) -> Any:
        raise SystemExit(1)  # no Exception: it would end the thread that answers


def test_an_answer_that_cannot_travel_is_the_error_of_its_call() -> None:
    executor = ProcessExecutor(*fragile())
    executor.start()
    host = executor._children["host0"]
    with pytest.raises(ExecutorError, match="Host 'host0' could not answer __getattribute__.*cannot be sent to another process"):
        host.ask("__getattribute__", "host").result(60)
    assert host.ask("address").result(60)[1] == host.pid
    executor.stop()
    value, error = pickle.loads(_answer("host0", "m", Slippery(), None))
    assert value is None and isinstance(error, ExecutorError) and "(SystemExit: 1)" in str(error)
    for data in (b"no pickle", b"cnowhere\nThing\n."):  # the second one: a class of a module that is not here
        future: Future[Any] = Future()
        _settle(future, data, "host0")
        with pytest.raises(ExecutorError, match="An answer of host 'host0' cannot be read here"):
            future.result(0)


@pytest.mark.fresh
def test_stopping_ends_a_worker_that_computes_and_leaves_no_process() -> None:
    executor = ProcessExecutor(*fragile())
    executor.start()
    children = [psutil.Process(pid) for pid in executor.driver.pids.values()]
    assert len(children) == 2 and [p.cpu_affinity() for p in children] == [[c] for c in sorted(os.sched_getaffinity(0))[:2]]
    assert Session(executor).step() == (5, 100)
    assert executor.stop() == Ended() and executor.stop() == Ended()
    assert not any(p.is_running() for p in children)
    executor = ProcessExecutor(*fragile())
    executor.stop()  # as an interrupt does while it starts
    with pytest.raises(Exception, match="was stopped while its processes were being set up"):
        executor.start()
    assert not executor._children


class Big(Worker):
    def make(self, out: Outbox) -> None:
        out.put_all([1] * 10)
        out.put({"x": np.zeros(1 << 16), "y": (1, "a")})

    def look(self, inbox: Inbox, local: Outbox) -> bool:
        items = inbox.get_all()
        local.put(items[0])
        return bool(items[-1]["x"].flags.owndata)

    def end(self, local: Inbox) -> int:
        return len(local.get_all())


def test_transports_are_told_by_edge_and_transfers_are_on_the_timeline() -> None:
    flow = Workflow("big")
    items, local = flow.channel("items", capacity=None), flow.channel("local")
    a, b, c = (flow.worker(Big, name=name) for name in "abc")
    flow.iteration(lambda: (a.make(items), b.look(items, local), c.end(local)))
    started = run(flow, ExecutionPlan.spatial(flow, DEVICES, {"a": [0], "b": [1], "c": [1]}), 2, "processes")
    assert started.wait(60) == [(None, False, 1)] * 2  # the array was built upon shared memory
    rows = {(r["channel"], r["transport"]): r for r in started.transports().to_dict("records")}
    assert set(rows) == {("items", "unix"), ("items", "shared memory"), ("local", "reference")}
    assert {key[0]: (row["messages"], row["items"]) for key, row in rows.items() if key[1] != "shared memory"} == {"items": (2, 20), "local": (2, 2)}
    assert rows["items", "shared memory"]["bytes"] > 2 * (1 << 19) and rows["items", "shared memory"]["from"] == "host0"
    spans = [s for s in started.timeline.rows() if s.kind == SpanKind.TRANSFER]
    assert {(s.track.worker, s.channel) for s in spans} == {("host0 → host1", "items")}
    assert sum(s.items for s in spans) == 22 and all(s.end_ns >= s.start_ns for s in spans)
    assert sum(s.nbytes for s in spans) == sum(r["bytes"] for r in rows.values())
    assert started.timeline.bubble_sum_error_ns() == 0


TRIPS = 40


class Talks(Worker):
    def talk(self, out: Outbox, inbox: Inbox, seen: Path) -> None:
        """Computes on when everything is said and heard, until it was seen that this is on the timeline."""
        for i in range(TRIPS):
            out.put(inbox.take() if self.name == "answers" else i)
            if self.name == "asks":
                inbox.take()
        while not seen.exists() and not self.cancelled:
            time.sleep(0.01)


def test_what_ranks_have_heard_by_themselves_is_told_also_while_they_compute_on(tmp_path: Path) -> None:
    """All of it, and not only when they wait again."""
    flow = Workflow("trips")
    there, back = flow.channel("there"), flow.channel("back")
    asks, answers = flow.worker(Talks, name="asks"), flow.worker(Talks, name="answers")

    seen = tmp_path / "seen"
    flow.iteration(lambda: (asks.talk(there, back, seen), answers.talk(back, there, seen)))
    plan = ExecutionPlan.spatial(flow, DEVICES, {"asks": [0], "answers": [1]}, micro_batches={"there": 1, "back": 1})
    started = run(flow, plan, 1, "processes")

    def items(to: str) -> list[int]:
        return [s.items for s in started.timeline.rows() if s.kind == SpanKind.TRANSFER and s.track.worker.endswith(to)]

    try:
        until(lambda: sum(items("host1")) >= TRIPS or started.error)
        assert sum(items("host1")) == TRIPS  # the last of them, too, though who took it computes on
    finally:
        seen.touch()
    started.wait(60)
    rows = {r["channel"]: r for r in started.transports().to_dict("records")}
    for channel, to in (("there", "host1"), ("back", "host0")):
        assert sum(items(to)) == rows[channel]["items"] == TRIPS
        assert len(items(to)) > 1  # how many messages are heard in one go depends on how busy the machine is


class Hogs(Worker):
    def hog(self, entered: Path) -> None:
        entered.touch()
        sum(itertools.repeat(0))  # never lets go of the interpreter


def hogs_of(entered: Path) -> tuple[Workflow, ExecutionPlan]:
    """All of it in one process, for one rank is on both devices; that one is not called."""
    flow = Workflow("hogs")
    hogs = flow.worker(Hogs, name="hogs")
    flow.worker(Hogs, name="idle")
    flow.iteration(lambda: hogs.hog(entered))
    return flow, ExecutionPlan("hogs", ("cpu:0", "cpu:1"), {"hogs": ((0,), (1,)), "idle": ((0, 1),)})


@pytest.mark.parametrize("computes", [True, False])
def test_ranks_of_a_process_that_does_not_answer_are_left_behind_and_between_iterations_it_is_named_itself(
    computes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are in a call; neither who is idle nor who is not there."""
    monkeypatch.setattr(multi_process, "STOP_SECONDS", 0.3)
    monkeypatch.setattr(child, "DEATH_SECONDS", 0.3)
    flow, plan = hogs_of(tmp_path / "entered")
    if computes:
        going = run(flow, plan, executor="processes", absent={"hogs": [1]})
        until((tmp_path / "entered").exists)
        with pytest.warns(RuntimeWarning, match=r"hogs\[0\] did not end in time, and was ended together with its process"):
            going.stop()
        assert going.left_behind == ["hogs[0]"]
        return
    executor = ProcessExecutor(flow, plan, absent={"hogs": [1]})
    executor.start()
    os.kill(executor.driver.pids["host0"], signal.SIGSTOP)
    assert executor.stop() == Ended(["host0 (hogs[0], idle[0])"])


def test_who_has_ended_did_so_in_time_though_the_answer_cannot_be_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ask = Child.ask

    def garbled(self: Child, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = ask(self, method, *args)
        if method == "stop":
            answer.result(60)
            answer = Future()
            _settle(answer, b"no pickle", self.name)
        return answer

    monkeypatch.setattr(Child, "ask", garbled)
    executor = ProcessExecutor(*fragile())
    executor.start()
    with caplog.at_level(logging.WARNING, logger="rlinf_lab"):
        assert executor.stop() == Ended()
    assert ["cannot be read here" in r.getMessage() for r in caplog.records if r.name == "rlinf_lab"] == [True, True]
