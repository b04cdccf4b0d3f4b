"""Nothing central is asked once per item: what the driver hears of an iteration does not depend on how many items pass between the hosts."""

from __future__ import annotations

from collections import Counter

import pytest
from flows import Numbers

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.driver import Driver
from rlinf_lab.runtime.run.run import session
from rlinf_lab.workflow.workflow import Workflow

TIMED = {"news", "clock", "pulse", "relieved"}  # what hosts say so many times a second (answers to the watch, too), however many items there are


def flow_of() -> tuple[Workflow, ExecutionPlan]:
    """Each worker has a process of its own."""
    flow = Workflow("many")
    a, b = flow.channels("a", "b")
    maker, passer, taker = (flow.worker(Numbers, name=name) for name in ("maker", "passer", "taker"))

    flow.iteration(lambda count: (maker.make(count, a), passer.pass_on(a, b), taker.total(b))[::2])
    return flow, ExecutionPlan("many", ("cpu:0", "cpu:1", "cpu:2"), {"maker": ((0,),), "passer": ((1,),), "taker": ((2,),)}, micro_batches={"a": 1, "b": 1})


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the driver hears, by kind."""
    heard, receive = Counter[str](), Driver.receive

    def counted(self: Driver, message: tuple) -> None:
        heard[message[0]] += message[0] not in TIMED
        receive(self, message)

    monkeypatch.setattr(Driver, "receive", counted)
    return heard


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_the_driver_hears_and_says_as_much_of_two_thousand_items_as_of_two_hundred(executor: str, heard: Counter[str]) -> None:
    flow, plan = flow_of()
    found = []
    with session(flow, plan, executor=executor, emulate=True) as s:
        for count in (20, 200, 2000):
            heard.clear()
            said = s._host.post.said
            assert s.step(count) == (count, count * (count - 1) // 2)
            found.append((heard.total(), s._host.post.said - said, set(heard)))
    _, (few, said_few, _), (many, said_many, kinds) = found
    assert 3 <= many <= 20 and abs(many - few) <= 4, found  # at least the end of each call
    assert 3 <= said_many <= 40 and abs(said_many - said_few) <= 4, found
    assert not kinds & {"put", "got", "get", "credit"}, found


def test_the_count_counts(heard: Counter[str]) -> None:
    """Where the loop itself reads, items do come to the driver."""
    flow = Workflow("to the loop")
    items, maker = flow.channel("items"), flow.worker(Numbers, name="maker")

    flow.iteration(lambda count: (maker.make(count, items), sum(sum(batch) for batch in items))[1])
    with session(flow, ExecutionPlan("loop", ("cpu:0",), {"maker": ((0,),)}, micro_batches={"items": 1}), executor="processes") as s:
        assert s.step(200) == 200 * 199 // 2
    assert heard["put"] >= 2
