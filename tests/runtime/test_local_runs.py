"""The local executor and runs: results, failures, interruption, pausing; nothing left behind; an error of the runtime's own ends a run."""

from __future__ import annotations

import operator
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flows import DEVICES, Numbers, cell_flow, cell_plans, failing_flow
from own_threads import own_threads
from sessions import executor_of, session_of, until

import rlinf_lab as lab
from rlinf_lab.errors import Cancelled, ConfigError, ExecutorError, RenamedError, WorkerError, WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


def test_a_run_collects_metrics_timeline_and_accounts_for_every_nanosecond() -> None:
    flow = cell_flow()
    started = run(flow, cell_plans(flow)[0], iterations=3)
    assert started.wait(30) == [{"total": 12.0}, {"total": 24.0}, {"total": 36.0}]
    assert started.state == "finished" and started.iteration == 3
    assert list(started.metrics["total"]) == [12.0, 24.0, 36.0] and list(started.metrics["slots"]) == [2.0, 2.0, 2.0]
    assert len(started.timeline.iterations()) == 3 and started.timeline.bubble_sum_error_ns() == 0 and set(started.timeline.devices) == set(DEVICES)
    flow = failing_flow()
    failed = run(flow, ExecutionPlan.temporal(flow, DEVICES), inputs=[1, 13, 2])
    with pytest.raises(WorkerError, match="unlucky"):
        failed.wait(30)
    assert failed.state == "failed" and failed.iteration == 1


def test_fewer_inputs_than_iterations_are_said() -> None:
    """Before the run where they can be counted, else when they have ended."""
    flow = failing_flow()
    plan = ExecutionPlan.temporal(flow, DEVICES)
    with pytest.raises(ConfigError, match=r"run\(iterations=3, inputs=\[5, 6\]\): each iteration takes one input, and there are 2\. Next: iterations=2"):
        run(flow, plan, 3, inputs=[5, 6])
    ended = run(flow, plan, 3, inputs=iter([5, 6]))
    with pytest.warns(RuntimeWarning, match="had no more inputs after 2 of 3 iterations"):
        assert ended.wait(30) == [6, 7]
    assert run(flow, plan, 2, inputs=[5, 6, 7]).wait(30) == [6, 7], "the first ones of many"


def test_a_run_is_kept_and_compared(tmp_path: Path) -> None:
    flow = cell_flow()
    kept, other = (run(flow, plan, iterations=n) for plan, n in zip(cell_plans(flow)[:2], (3, 2), strict=True))
    kept.wait(30), other.wait(30)
    folder = kept.save(tmp_path / "runs" / "kept")
    assert ExecutionPlan.load(folder / "plan.json") == kept.plan
    assert len(lab.Timeline.from_parquet(folder / "timeline.parquet")) == len(kept.timeline)
    with pytest.raises(FileExistsError):
        other.save(folder)
    found = lab.compare({"kept": folder, "living": kept, "other": other}, metric="total")
    assert found.axis == "iteration" and found.curves().query("label == 'kept'")["mean"].tolist() == [12.0, 24.0, 36.0]
    assert found.table["final total"].tolist() == [36.0, 36.0, 24.0] and found.table["state"].tolist() == ["saved", "finished", "finished"]
    assert found.differences.loc["plan"].tolist() == [kept.plan.name, kept.plan.name, other.plan.name]
    assert found.figure().layout.xaxis.title.text == "iterations" and found.picture()


class Endless(Worker):
    def spin(self, out: Outbox) -> None:
        while not self.cancelled:
            self.compute(0.01)
            out.put(1)


def endless_flow() -> Workflow:
    flow = Workflow("endless")
    items = flow.channel("items")
    source, sink = flow.worker(Endless, name="source"), flow.worker(Numbers, name="sink")

    flow.iteration(lambda: (source.spin(items), sink.count(items))[:0])
    return flow


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_stop_or_an_interrupt_of_wait_ends_a_run_that_would_never_end(interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the kernel as it was."""

    def interrupt(_: float) -> bool:
        monkeypatch.setattr(started._ended, "wait", wait)
        raise KeyboardInterrupt

    threads, signals = own_threads(monkeypatch), (signal.SIGINT, signal.SIGTERM)
    before = [*map(signal.getsignal, signals), sys.excepthook]
    flow = endless_flow()
    started = run(flow, ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "sink": [1]}), iterations=1)
    wait = started._ended.wait
    until(lambda: "waits" in started.status())
    if interrupted:
        monkeypatch.setattr(started._ended, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            started.wait()
    else:
        started.stop()
    assert started.state == "stopped" and started.error is None
    assert [*map(signal.getsignal, signals), sys.excepthook] == before
    until(lambda: not any(t.is_alive() for t in threads))
    assert len(threads) > 3


def test_pause_holds_between_iterations() -> None:
    flow = failing_flow()
    gate = threading.Event()

    def inputs():
        for n in (1, 2, 3):
            yield n
            gate.wait(10)

    started = run(flow, ExecutionPlan.temporal(flow, DEVICES), inputs=inputs())
    until(lambda: started.iteration)
    started.pause()
    gate.set()
    assert started.state == "paused"
    with pytest.raises(RenamedError, match=r"'resume' is gone\. Next: run\.unpause\(\)"):
        operator.methodcaller("resume")(started)
    started.unpause()
    started.wait(20)
    assert started.results == [2, 3, 4]


class Uses(Worker):
    """Channels, with a key that may be wrong, the wrong end, or out of turn."""

    def put(self, key: Any, out: Outbox) -> None:
        out.put(0, key=key)

    def get(self, key: Any, inbox: Inbox) -> Any:
        return inbox.get(1, key=key)

    def collect(self, actions: Inbox, obs: Outbox) -> None:
        obs.put(0)
        actions.take(key=7)

    def answer(self, obs: Inbox, actions: Outbox) -> None:
        for _ in obs:
            actions.put(1, key=0)

    def writes(self, inbox: Inbox) -> None:
        inbox.put(1)  # type: ignore[attr-defined]

    def reads(self, out: Outbox) -> None:
        out.get()  # type: ignore[attr-defined]

    def by_thread(self, out: Outbox) -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(out.put, 2).result()

    def keep(self, out: Outbox) -> None:
        getattr(self, "kept", out).put(3)
        self.kept = out


BAD_USES: list[tuple[str, Any, type[Exception], str]] = [  # what the loop does with two workers, a channel, and one with keys
    (f"key {key!r} by {side}", lambda a, b, x, _, key=key, side=side: (a.put(key if side == "put" else None, x), b.get(key if side == "get" else None, x)),
     WorkerError, "'numbers' has no keys") for key in (0, np.array(0), [1]) for side in ("put", "get")  # also one that cannot be looked up
] + [
    ("a put after waiting downstream", lambda a, b, x, _: (a.put(None, x), b.get(None, x).wait(), a.put(None, x)), WorkflowError, "after the loop waited"),
    ("a put into an inbox", lambda a, b, x, _: (a.put(None, x), b.writes(x)), WorkerError, r"b\[0\]: channel 'numbers' is an Inbox here.*not 'put'"),
    ("a get of an outbox", lambda a, b, x, _: (a.reads(x), b.get(None, x)), WorkerError, "an Outbox here.*not 'get'"),
    ("a thread", lambda a, b, x, _: (a.by_thread(x), b.get(None, x)), WorkerError, r"a\[0\]: channel 'numbers' is used by a thread that the worker started"),
    ("the call before", lambda a, b, x, _: (a.keep(x), b.get(None, x)), WorkerError, "given to a call of iteration 0, which is over"),
    ("a key of nobody", lambda a, b, x, keyed: (a.collect(keyed, x), b.answer(x, keyed)), WorkerError, "key 7 of channel 'keyed' belongs to"),
]  # fmt: skip


@pytest.mark.parametrize(("uses", "error", "told"), [case[1:] for case in BAD_USES], ids=[case[0] for case in BAD_USES])
def test_bad_uses_of_channels_are_refused_in_words(uses: Any, error: type[Exception], told: str) -> None:
    flow = Workflow("refused")
    numbers, keyed = flow.channel("numbers"), flow.channel("keyed", keyed=True)
    a, b = flow.worker(Uses, name="a"), flow.worker(Uses, name="b")
    flow.iteration(lambda: uses(a, b, numbers, keyed)[:0])
    with session(flow, ExecutionPlan.temporal(flow, DEVICES, {"a": 2 if "collect" in uses.__code__.co_names else 1})) as s, pytest.raises(error, match=told):
        s.step()
        s.step()  # of a call before it


class Given(Worker):
    """Up: its loop raises while it waits, or right after it has ended."""

    begun: ClassVar[threading.Event] = threading.Event()

    def quick(self) -> int:
        return 3

    def put(self, out: Outbox) -> None:  # ends a moment later than `quick`, within the same instant
        out.put(3)

    def stubborn(self, inbox: Inbox, told: list[bool]) -> list[int]:
        self.begun.set()
        try:
            return inbox.get_all()
        except Cancelled:
            told.append(self.cancelled)
            return inbox.get_all()


@pytest.mark.parametrize("kind", ["mock", "local"])
def test_of_an_iteration_that_is_given_up_an_end_counts_and_who_catches_it_does_not_wait_again(kind: str) -> None:
    """With a made-up clock the events of an instant wait for each other: a loop that raises meanwhile must not take an end back."""
    flow, then, told = Workflow("given up"), list[Any](), list[bool]()
    items, one, other = flow.channel("items"), flow.worker(Given, name="one"), flow.worker(Given, name="other")
    Given.begun.clear()

    def fail() -> None:
        until(Given.begun.is_set if kind == "local" else lambda: any(e[1] == Event.DONE for e in executor.driver_host.scheduler.instants._pending))
        raise ValueError("as it was asked to")

    @flow.iteration
    def iteration() -> list[int]:
        if kind == "local":
            taken = one.stubborn(items, told)
        else:
            value = one.quick()
            other.put(items)
            value.wait()
        for each in then:
            each()
        if kind == "mock":
            return items.get_all()
        items.put(3)
        return taken

    executor = executor_of(kind, flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"one": [0], "other": [1]}))
    with session_of(executor) as s:
        then.append(fail)
        with pytest.raises(ValueError, match="as it was asked to") as caught:
            s.step()
        assert told == [True] * (kind == "local") and not hasattr(caught.value, "__notes__"), "nobody is still busy"
        then.clear()
        assert s.step() == [3]


class Seeded(Worker):
    """Draws from a generator that everybody in the process has."""

    begun: ClassVar[set[str]] = set()

    def setup(self) -> None:
        self.begun.add(self.name)
        random.seed(1)
        time.sleep(0.005)  # as long as others need to begin
        self.drawn = [random.random() for _ in range(3)]
        if self.name == "fails":
            raise ValueError("no weights there")

    def look(self) -> list[float]:
        return self.drawn


def test_a_seed_that_a_worker_sets_in_its_setup_holds_until_that_ends() -> None:
    flow = Workflow("seeded")
    first, second = flow.worker(Seeded, name="first"), flow.worker(Seeded, name="second")
    flow.iteration(lambda: (first.look(), second.look()))
    with session(flow, ExecutionPlan.temporal(flow, DEVICES, {"second": 2})) as s:
        one, others = s.step()
    assert others == [one, one]
    fails, never = flow.worker(Seeded, name="fails"), flow.worker(Seeded, name="never")
    flow.iteration(lambda: (fails.look(), never.look()))
    Seeded.begun.clear()
    with pytest.raises(WorkerError, match="'fails' rank 0 failed in setup.*no weights there"):
        run(flow, ExecutionPlan.temporal(flow, DEVICES), 1).wait(30)
    assert "never" not in Seeded.begun, "nobody is set up after one that has failed"


class Sleeps(Worker):
    def work(self) -> None:
        time.sleep(0.05)  # the loop waits when it ends


def test_an_error_of_the_runtime_in_the_thread_of_a_rank_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, published, flow = list[str](), WeightTable.ended, Workflow("lost")
    worker = flow.worker(Sleeps, name="w")
    flow.iteration(lambda: worker.work())

    def fails(self: WeightTable, process: Any, *rest: Any) -> None:
        ended.append(process.worker)
        if ended.count("w") == 2:  # in the second iteration
            raise IndexError("pop from an empty deque")
        published(self, process, *rest)

    monkeypatch.setattr(WeightTable, "ended", fails)
    with pytest.raises(ExecutorError, match=r"(?s)w\[0\] was lost in .*\(\) of iteration 1 by an error of the runtime: IndexError: pop .* Next: run again; "):
        lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), 3, dashboard=False).wait(30)
