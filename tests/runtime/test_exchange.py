"""Ranks of one worker give each other values within a call: by rank, in order, through failures, over several hosts."""

from __future__ import annotations

import time

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import WorkflowError
from rlinf_lab.timeline.record.span import SpanKind


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


def flow_of(**kwargs) -> lab.Workflow:
    flow = lab.Workflow("meeting")
    meeting, other = flow.worker(Meeting, name="meeting", **kwargs), flow.worker(Meeting, name="other")

    @flow.iteration
    def iteration(rounds=4):
        first, second = meeting.meet(rounds), other.meet(rounds)  # two workers at once, twice the first
        return first, second, meeting.meet(1)

    return flow


def plan_of(flow: lab.Workflow, ranks: int = 3) -> lab.ExecutionPlan:
    devices = [f"cpu:{i}" for i in range(2 * ranks)]
    return lab.ExecutionPlan.spatial(flow, devices, {"meeting": list(range(ranks)), "other": list(range(ranks, 2 * ranks))})


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_every_rank_gets_all_values_by_rank(executor: str) -> None:
    flow = flow_of()
    with lab.session(flow, plan_of(flow), executor=executor, emulate=True) as session:
        for i in range(3):
            first, second, third = session.step()
            assert first == second == [[[(r, n, i) for r in range(3)] for n in range(4)]] * 3
            assert third == [[[(r, 0, i) for r in range(3)]]] * 3
    assert (session.timeline.to_pandas()["kind"] == SpanKind.WAIT.name.lower()).any()


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_a_rank_that_fails_frees_the_others(executor: str) -> None:
    flow = flow_of(fails=(1, 1))
    with lab.session(flow, plan_of(flow), executor=executor, emulate=True) as session:
        session.step()
        with pytest.raises(lab.errors.WorkerError, match=r"'meeting' rank 1 failed in meet\(\): ValueError: no"):
            session.step()
        first, *_ = session.step()  # and all meet again
        assert first[0][0] == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]


def test_by_hand_a_worker_meets_itself() -> None:
    assert Meeting().exchange(3) == [3]


def test_before_the_first_call_the_others_are_not_there() -> None:
    class Hasty(lab.Worker):
        def setup(self) -> None:
            self.exchange(1)

        def go(self) -> None: ...

    flow = lab.Workflow("hasty")
    hasty = flow.worker(Hasty)
    flow.iteration(lambda: hasty.go())
    with pytest.raises((lab.errors.WorkerError, WorkflowError), match="outside a call"), lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])):
        pass
