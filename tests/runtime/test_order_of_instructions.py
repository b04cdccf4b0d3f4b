"""What the engine says is carried out in the order in which it said it, and an error of the runtime's own ends a run."""

from __future__ import annotations

from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.threads.clocks import MockClock

CPUS = [f"cpu:{i}" for i in range(8)]


class Makes(lab.Worker):
    def make(self, n: int, out: lab.Outbox) -> None:
        for i in range(n * self.rank // self.ranks, n * (self.rank + 1) // self.ranks):
            self.compute(0.01)
            out.put(i)


class Reads(lab.Worker):
    def both(self, x: lab.Inbox, y: lab.Inbox) -> list[int]:
        """As many of one as of the other, and at last the rest of that: a get by number and a share of everything wait in one channel."""
        got: list[int] = []
        for batch in x:
            got += y.get(len(batch))
            self.compute(0.1)
        return got + y.get_all()


def reading(x_whole: bool) -> lab.Workflow:
    flow = lab.Workflow("two")
    x, y = flow.channel("x", capacity=None, whole=x_whole), flow.channel("y", capacity=None)
    a, b, c = flow.worker(Makes, name="a"), flow.worker(Makes, name="b"), flow.worker(Reads, name="c")

    flow.iteration(lambda: (a.make(5, x), b.make(5, y), c.both(x, y))[2])
    return flow


@pytest.mark.parametrize("makers", [1, 3, 8])
@pytest.mark.parametrize("readers", [1, 2, 8])
def test_the_end_of_a_stream_divides_what_no_get_has_taken_yet(makers: int, readers: int) -> None:
    flow = reading(x_whole=True)
    places = {"a": ((0,),), "b": tuple((i,) for i in range(makers)), "c": tuple((i,) for i in range(readers))}
    plan = lab.ExecutionPlan("hand", tuple(CPUS), places, {"y": 1})
    for result in lab.run(flow, plan, 3, dashboard=False, clock=MockClock()).wait(30):
        assert sorted(result if readers == 1 else (i for items in result for i in items)) == [0, 1, 2, 3, 4]


def test_an_error_of_the_runtime_in_the_thread_of_a_rank_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, published = [], WeightTable.ended

    def fails(self: WeightTable, process: Any, *rest: Any) -> None:
        ended.append(process.worker)
        if ended.count("c") == 2:  # in the second iteration
            raise IndexError("pop from an empty deque")
        published(self, process, *rest)

    monkeypatch.setattr(WeightTable, "ended", fails)
    flow = reading(x_whole=False)
    with pytest.raises(ExecutorError, match=r"(?s)\[0\] was lost in .*\(\) of iteration 1 by an error of the runtime: IndexError: pop .* Next: run again; "):
        lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), 3, dashboard=False).wait(30)
