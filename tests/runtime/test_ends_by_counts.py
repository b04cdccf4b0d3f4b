"""What would never end because of how many items, exchanges or versions the workers' own code asks for: told at once, with what would end it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor

import rlinf_lab as lab
from rlinf_lab.errors import DeadlockError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.wait_graph import Wait, standstill
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Ended, Session


class Counts(lab.Worker):
    def put_and_get(self, inbox: lab.Inbox, out: lab.Outbox, gives: int, wants: int) -> int:
        out.put_all(range(gives))
        got = inbox.get(wants)
        out.put(0)
        return len(got)

    def puts(self, out: lab.Outbox, count: int) -> None:
        for i in range(count):
            out.put(i, key=i)

    def takes(self, inbox: lab.Inbox, key: int) -> Any:
        return inbox.take(key=key)

    def publishes(self, weights: lab.Weights, times: int) -> None:
        for _ in range(times):
            weights.publish({"w": 1.0})

    def pulls(self, weights: lab.Weights, at_least: int) -> int:
        return weights.pull(at_least=at_least).version

    def exchanges(self) -> Any:
        return self.exchange(threading.Lock())


def fails_with(flow: lab.Workflow, places: dict[str, list[int]], far: bool) -> BaseException:
    plan = ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(1 + max(max(p) for p in places.values()))], places)
    executor = MeshExecutor(flow, plan, delay=0.001) if far else LocalExecutor(flow, plan, emulate=True)
    executor.start()
    try:
        with pytest.raises((DeadlockError, WorkerError)) as caught:
            Session(executor).step()
    finally:
        assert executor.stop() == Ended()
    return caught.value


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(("gives", "wants"), [(0, 1), (1, 2), (3, 5)])
def test_two_that_want_more_than_the_other_gives_first(gives: int, wants: int, far: bool) -> None:
    flow = lab.Workflow("ring")
    forth, back = flow.channels("forth", "back")
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda: (a.put_and_get(back, forth, gives, wants), b.put_and_get(forth, back, gives, wants)))
    told = str(fails_with(flow, {"a": [0], "b": [1]}, far))
    assert "a[0] waits for items of channel 'back'" in told and "b[0] waits for items of channel 'forth'" in told
    assert "put before it gets (channel 'back', 'forth')" in told


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(("published", "newest"), [(2, "2 is the newest"), (0, "nobody has yet")])
def test_a_version_that_nobody_publishes(published: int, newest: str, far: bool) -> None:
    flow = lab.Workflow("versions")
    weights = flow.weights("w")
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda: (a.publishes(weights, published), b.pulls(weights, 5)))
    error = fails_with(flow, {"a": [0], "b": [1]}, far)
    assert f"Next: publish version 5 of the weights 'w' ({newest}) in a call that ends before this one, or pull(at_least=) of less." in str(error)
    (wait,) = [w for w in error.waits if w.who == "b[0]"]
    assert wait.what == "version 5 of the weights 'w'" and wait.on == (("a[0]",) if published else ())


@pytest.mark.parametrize("far", [False, True])
def test_a_key_that_nobody_puts(far: bool) -> None:
    flow = lab.Workflow("keys")
    items = flow.channel("items", keyed=True)
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda: (a.puts(items, 3), b.takes(items, 7)))
    told = str(fails_with(flow, {"a": [0], "b": [1]}, far))
    assert "b[0]: channel 'items': take(key=7) after the end of the stream: a has finished, and no item of key 7 is left. Next: take as many as are put" in told


def test_what_cannot_be_exchanged_between_processes_is_named_by_who_gave_it() -> None:
    flow = lab.Workflow("locks")
    a = flow.worker(Counts, name="a")
    flow.iteration(lambda: a.exchanges())
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"a": [0, 1]})
    told = r"(?s)Worker 'a' rank . failed in exchanges\(\): WorkflowError: .*what exchanges\(\) gave to exchange\(\), on its way to 'host"
    with lab.session(flow, plan, executor="processes", emulate=True) as session, pytest.raises(WorkerError, match=told):
        session.step()


def test_an_exchange_in_a_ring_is_part_of_the_advice() -> None:
    advice = "have every rank of 'a' call exchange() equally often in go()"
    waits = [Wait("a[0]", "the value of a[1]", ("a[1]",), ("",), advice=advice), Wait("a[1]", "items of channel 'x'", ("b",), ("x",)),
             Wait("b[0]", "items of channel 'y'", ("a[0]",), ("y",)), Wait("c[0]", "version 2", (), (), advice="publish it")]  # fmt: skip
    told = str(standstill(waits))
    assert f"Next: {advice}; or have one of" in told and "publish it" not in told
