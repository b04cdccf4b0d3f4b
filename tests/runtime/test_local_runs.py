"""The local executor and runs: results, failures, interruption, pausing; nothing left behind."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flows import DEVICES, cell_flow, cell_plans, failing_flow
from own_threads import own_threads
from sessions import executor_of, session_of, until

from rlinf_lab.errors import Cancelled, RenamedError, WorkerError, WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


def test_a_run_collects_metrics_timeline_and_accounts_for_every_nanosecond() -> None:
    flow = cell_flow()
    started = run(flow, cell_plans(flow)[0], iterations=3)
    assert started.wait(30) == [{"total": 12.0}, {"total": 24.0}, {"total": 36.0}]
    assert started.state == "finished" and started.iteration == 3
    assert list(started.metrics["total"]) == [12.0, 24.0, 36.0]
    assert list(started.metrics["slots"]) == [2.0, 2.0, 2.0]
    assert len(started.timeline.iterations()) == 3
    assert started.timeline.bubble_sum_error_ns() == 0
    assert set(started.timeline.devices) == set(DEVICES)


def test_a_failed_run_raises_at_wait() -> None:
    flow = failing_flow()
    started = run(flow, ExecutionPlan.temporal(flow, DEVICES), inputs=[1, 13, 2])
    with pytest.raises(WorkerError, match="unlucky"):
        started.wait(30)
    assert started.state == "failed" and started.iteration == 1


class Endless(Worker):
    def spin(self, out: Outbox) -> None:
        while not self.cancelled:
            self.compute(0.01)
            out.put(1)

    def drain(self, inbox: Inbox) -> None:
        for _ in inbox:
            pass


def endless_flow() -> Workflow:
    flow = Workflow("endless")
    items = flow.channel("items")
    source, sink = flow.worker(Endless, name="source"), flow.worker(Endless, name="sink")

    @flow.iteration
    def iteration() -> None:
        source.spin(items)
        sink.drain(items)

    return flow


def test_stop_ends_a_run_that_would_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = own_threads(monkeypatch)
    flow = endless_flow()
    started = run(flow, ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "sink": [1]}), iterations=1)
    until(lambda: "waits" in started.status())
    started.stop()
    assert started.state == "stopped" and started.error is None
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
    with pytest.raises(RenamedError, match=r"run\.unpause\(\)"):
        started.resume()
    started.unpause()
    started.wait(20)
    assert started.results == [2, 3, 4]


def test_interrupting_wait_stops_the_run_and_leaves_the_kernel_usable(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, signal, sys, threading
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_local_runs import endless_flow, run, ExecutionPlan, DEVICES
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it, a kernel does not
        handlers = {{s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}}
        hook = sys.excepthook
        flow = endless_flow()
        started = run(flow, ExecutionPlan.spatial(flow, DEVICES, {{"source": [0], "sink": [1]}}), iterations=1)
        threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            started.wait()
        except KeyboardInterrupt:
            print("interrupted", started.state)
        assert handlers == {{s: signal.getsignal(s) for s in handlers}} and sys.excepthook is hook
        print("usable")
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["interrupted stopped", "usable"]


class Early(Worker):
    def produce(self, out: Outbox) -> None:
        for i in range(5):
            out.put(i)

    def first(self, inbox: Inbox) -> int:
        for batch in inbox:
            return batch[0]
        return -1

def test_writing_after_waiting_downstream_is_refused() -> None:
    flow = Workflow("late")
    items = flow.channel("items")
    source, sink = flow.worker(Early, name="source"), flow.worker(Early, name="sink")

    @flow.iteration
    def iteration() -> None:
        source.produce(items)
        sink.first(items).wait()
        source.produce(items)

    with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s, pytest.raises(WorkflowError, match="after the loop waited"):
        s.step()


def test_a_foreign_key_is_refused() -> None:
    class Wrong(Worker):
        def collect(self, actions: Inbox, obs: Outbox) -> None:
            obs.put(0)
            actions.take(key=7)

        def answer(self, obs: Inbox, actions: Outbox) -> None:
            for _ in obs:
                actions.put(1, key=0)

    flow = Workflow("keys")
    obs, act = flow.channel("obs"), flow.channel("act", keyed=True)
    sim, policy = flow.worker(Wrong, name="sim"), flow.worker(Wrong, name="policy")

    @flow.iteration
    def iteration() -> None:
        sim.collect(act, obs)
        policy.answer(obs, act)

    with session(flow, ExecutionPlan.temporal(flow, DEVICES, {"sim": 2})) as s, pytest.raises(WorkerError, match="key 7 of channel 'act' belongs to"):
        s.step()


def test_an_end_that_is_not_settled_yet_counts_when_its_iteration_is_given_up() -> None:
    """With a made-up clock the events of an instant wait for each other; a loop that raises meanwhile must not take them back."""

    class Quick(Worker):
        def work(self) -> int:
            return 3

        def put(self, out: Outbox) -> None:  # ends a moment later than `work`, within the same instant
            out.put(3)

    flow = Workflow("quick")
    items = flow.channel("items")
    quick, other = flow.worker(Quick, name="quick"), flow.worker(Quick, name="other")

    def fail() -> None:
        until(lambda: any(e[1] == Event.DONE for e in executor.driver_host.scheduler.instants._pending))
        raise ValueError("as it was asked to")

    then = []

    @flow.iteration
    def iteration() -> list[int]:
        value = quick.work()
        other.put(items)
        value.wait()
        for each in then:
            each()
        return items.get_all()

    executor = executor_of("mock", flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"quick": [0], "other": [1]}))
    with session_of(executor) as s:
        then.append(fail)
        with pytest.raises(ValueError, match="as it was asked to") as caught:
            s.step()
        assert not hasattr(caught.value, "__notes__"), "nobody is still busy"
        then.clear()
        assert s.step() == [3]


def test_a_worker_that_catches_the_giving_up_does_not_wait_again() -> None:
    class Stubborn(Worker):
        def work(self, inbox: Inbox) -> list[int]:
            begun.set()
            try:
                return inbox.get_all()
            except Cancelled:
                told.append(self.cancelled)
                return inbox.get_all()

    def fail() -> None:
        assert begun.wait(30)
        raise ValueError("as it was asked to")

    flow, then, told, begun = Workflow("stubborn"), [], [], threading.Event()
    items = flow.channel("items")
    stubborn = flow.worker(Stubborn, name="stubborn")

    @flow.iteration
    def iteration() -> list[int]:
        taken = stubborn.work(items)
        for each in then:
            each()
        items.put(3)
        return taken

    with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
        then.append(fail)
        with pytest.raises(ValueError, match="as it was asked to") as caught:
            s.step()
        assert told == [True] and not hasattr(caught.value, "__notes__"), "nobody is still busy"
        then.clear()
        assert s.step() == [3]


class Seeded(Worker):
    """Draws from a generator that everybody in the process has."""

    def setup(self) -> None:
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


def test_nobody_is_set_up_after_one_whose_setup_has_failed() -> None:
    flow = Workflow("seeded")
    fails, late = flow.worker(Seeded, name="fails"), flow.worker(Never, name="late")
    flow.iteration(lambda: (fails.look(), late.look()))
    with pytest.raises(WorkerError, match="'fails' rank 0 failed in setup.*no weights there"):
        run(flow, ExecutionPlan.temporal(flow, DEVICES), 1).wait(30)
    assert not Never.begun


class Never(Seeded):
    begun = False

    def setup(self) -> None:
        Never.begun = True


class Keys(Worker):
    def put(self, key: Any, out: Outbox) -> None:
        out.put(0, key=key)

    def get(self, key: Any, inbox: Inbox) -> Any:
        return inbox.get(1, key=key)


@pytest.mark.parametrize("key", [0, np.array(0), [1]])
@pytest.mark.parametrize("side", ["put", "get"])
def test_any_key_on_a_channel_without_keys_is_refused_in_words(side: str, key: object) -> None:
    """Also one that cannot be looked up."""
    flow = Workflow("keys")
    numbers = flow.channel("numbers")
    source, sink = flow.worker(Keys, name="source"), flow.worker(Keys, name="sink")

    @flow.iteration
    def iteration() -> object:
        source.put(key if side == "put" else None, numbers)
        return sink.get(key if side == "get" else None, numbers)

    with session(flow, ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "sink": [1]})) as s, pytest.raises(WorkerError, match="'numbers' has no keys"):
        s.step()
