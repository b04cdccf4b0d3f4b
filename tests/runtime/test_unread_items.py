"""Items that nobody reads fail their iteration by name, under every executor, unless the channel says that the rest is not wanted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor

from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Maker(Worker):
    def make(self, count: int, out: Outbox) -> int:
        for i in range(count):
            out.put(i)
        return count

    def by_key(self, count: int, out: Outbox) -> None:
        out.put_all(range(count), key=0)

    def breaks(self, count: int, out: Outbox) -> None:
        out.put_all(range(count))
        raise ValueError("broken")


class Taker(Worker):
    def take(self, inbox: Inbox, n: int) -> int:
        return len(inbox.get(n)) if n else 0

    def all_slowly(self, inbox: Inbox, n: int) -> int:
        self.compute(0.05)
        return sum(len(batch) for batch in inbox)

    def by_key(self, inbox: Inbox, n: int) -> int:
        return sum(inbox.take(key=0) for _ in range(n))


def flow_of(makes: str = "make", takes: str = "take", **channel: Any) -> Workflow:
    flow = Workflow("unread")
    items = flow.channel("items", **{"capacity": 2, **channel})
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(count: int = 8, n: int = 3, calls: int = 1) -> Any:
        made = getattr(maker, makes)(count, items)
        taken = [getattr(taker, takes)(items, n) for _ in range(calls)]
        return made, taken

    return flow


def plan_of(flow: Workflow, takers: int = 1, **fields: Any) -> ExecutionPlan:
    return ExecutionPlan("unread", tuple(DEVICES), {"maker": ((0,),), "taker": tuple((1 + r,) for r in range(takers))}, **fields)


def executor_of(flow: Workflow, plan: ExecutionPlan, far: bool) -> Any:
    return MeshExecutor(flow, plan, delay=0.001) if far else LocalExecutor(flow, plan, emulate=True)


both = pytest.mark.parametrize("far", [False, True])


@both
def test_items_that_are_left_fail_the_iteration_and_the_next_one_goes_on(far: bool) -> None:
    flow = flow_of()
    executor = executor_of(flow, plan_of(flow), far)
    executor.start()
    one = Session(executor)
    assert one.step(3, 3) == (3, [3])
    left = r"Iteration 1 of workflow 'unread' .* Channel 'items': \d of \d items.* are left; taker\[0\].take\(\) read 3. Next: read .*discard_unread=True"
    with pytest.raises(WorkflowError, match=left):
        one.step()
    with pytest.raises(WorkflowError, match=r"(1 of 7|2 of 8) items.* are left; taker\[0\].take\(\) read 6"):
        one.step(8, 3, 2)
    with pytest.raises(WorkflowError, match=r"1 of 1 items.* are left; taker\[0\].take\(\) read 0"):
        one.step(1, 0)
    with pytest.raises(WorkflowError, match=r"(\d) of \1 items.* are left; no call of this iteration reads it. Next: call a worker that reads"):
        one.step(8, 3, 0)
    assert one.step(9, 3, 3) == (9, [3, 3, 3])
    assert executor.stop() == Ended()


@both
@pytest.mark.parametrize("count", [8, 2_000])
def test_what_is_not_wanted_is_discarded_where_the_channel_says_so(far: bool, count: int) -> None:
    flow = flow_of(discard_unread=True)
    executor = executor_of(flow, plan_of(flow), far)
    executor.start()
    one = Session(executor)
    for n, calls, taken in ((3, 1, [3]), (0, 1, [0]), (3, 0, [])):
        made, found = one.step(count, n, calls)
        assert found == taken and made in (None, count)  # its call may have ended at a put
    assert executor.stop() == Ended()


@both
def test_ranks_keys_and_groups_are_counted_too(far: bool) -> None:
    for flow, takers, left in (
        (flow_of(), 2, r"Channel 'items': \d of \d items.* are left; taker\[0\].take\(\) read 3, taker\[1\].take\(\) read 3"),
        (flow_of("by_key", "by_key", keyed=True), 1, r"Channel 'items': \d of \d items.* are left; taker\[0\].by_key\(\) read 3"),
        (flow_of("by_key", group=2), 1, r"Channel 'items': 1 of 4 groups of 2 items.* are left; taker\[0\].take\(\) read 3"),
    ):
        executor = executor_of(flow, plan_of(flow, takers), far)
        executor.start()
        with pytest.raises(WorkflowError, match=left):
            Session(executor).step()
        assert executor.stop() == Ended()


@both
def test_the_loop_may_not_stop_early_either(far: bool) -> None:
    flow = Workflow("loop")
    items = flow.channel("items")
    maker = flow.worker(Maker, name="maker")

    @flow.iteration
    def iteration(stops: bool) -> list[int]:
        maker.make(8, items)
        found = []
        for batch in items:
            found += batch
            if stops and len(found) >= 3:
                break
        return found

    plan = ExecutionPlan("loop", ("cpu:0",), {"maker": ((0,),)}, micro_batches={"items": 1})
    executor = executor_of(flow, plan, far)
    executor.start()
    one = Session(executor)
    with pytest.raises(WorkflowError, match=r"\d of \d items.* are left; the loop read 3. Next: read"):
        one.step(True)
    assert one.step(False) == list(range(8))
    assert executor.stop() == Ended()


def test_the_first_error_is_told_not_what_it_left() -> None:
    flow = flow_of("breaks", "all_slowly")
    with session(flow, plan_of(flow), emulate=True) as s, pytest.raises(WorkerError, match="'maker' rank 0 failed in breaks"):
        s.step()


def test_where_iterations_overlap_the_one_that_left_something_is_named() -> None:
    flow = flow_of()
    run_ = run(flow, plan_of(flow, staleness=1), executor="local", emulate=True, inputs=[3, 3, 8, 3, 3])
    with pytest.raises(WorkflowError, match="Iteration 2 .* items.* are left") as caught:
        run_.wait(30)
    assert "That was in iteration 2" in caught.value.__notes__[0]
    assert run_.state == "failed" and run_.results == [(3, [3])] * 2


def test_a_run_that_is_stopped_in_the_middle_has_left_nothing() -> None:
    flow = flow_of(takes="all_slowly")
    going = run(flow, plan_of(flow), executor="local", emulate=True)
    while not going.iteration:
        going._ended.wait(0.001)
    going.stop()
    assert going.state == "stopped" and going.error is None


def test_what_is_no_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="discard_unread is 'yes'; it must be True or False"):
        Workflow("w").channel("items", discard_unread="yes")  # type: ignore[arg-type]
    assert "unread items are discarded" in repr(Workflow("w").channel("items", discard_unread=True))
