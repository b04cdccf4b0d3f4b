"""Threads of a fused cell share the core of their device while they take turns, and only then."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

import rlinf_lab as lab
from rlinf_lab.runtime.turns import _core, on_core

CORES = sorted(os.sched_getaffinity(0))


class Player(lab.Worker):
    """Notes on which cores it may be: in a call, and after each turn."""

    def setup(self) -> None:
        self.before = os.sched_getaffinity(0)

    def play(self, turns: int, theirs: lab.Inbox, mine: lab.Outbox) -> tuple[set[int], list[set[int]]]:
        seen = []
        for i in range(turns):
            mine.put(i)
            theirs.take()
            seen.append(os.sched_getaffinity(0))
        return self.before, seen

    def answer(self, theirs: lab.Inbox, mine: lab.Outbox) -> list[set[int]]:
        seen = []
        for batch in theirs:
            mine.put_all(batch)
            seen.append(os.sched_getaffinity(0))
        return seen


def game() -> lab.Workflow:
    flow = lab.Workflow("game")
    forth, back = flow.channel("forth"), flow.channel("back")
    one, two = flow.worker(Player, name="one"), flow.worker(Player, name="two")

    @flow.iteration
    def iteration(turns: int) -> tuple:
        seen = two.answer(forth, back)
        return one.play(turns, back, forth), seen

    return flow


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_a_fused_cell_stays_on_the_core_of_its_device(device: str) -> None:
    flow = game()
    core = {CORES[int(device[-1]) % len(CORES)]}
    with lab.session(flow, lab.ExecutionPlan.fused_cells(flow, [device]), emulate=True) as session:
        for _ in range(2):
            (before, ones), twos = session.step(3)
            assert before == set(CORES)  # what it starts while it is set up may go anywhere
            assert ones == [core] * 3 and twos == [core] * len(twos) and twos
    assert os.sched_getaffinity(0) == set(CORES)


def test_a_cell_that_is_not_fused_goes_anywhere() -> None:
    flow = game()
    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as session:
        (_, ones), twos = session.step(3)
    assert {frozenset(cores) for cores in [*ones, *twos]} == {frozenset(CORES)}


def test_torch_with_several_threads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 2))
    with on_core(CORES[0]):
        assert os.sched_getaffinity(0) == set(CORES)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 1))
    with pytest.raises(KeyError), on_core(CORES[0]):
        assert os.sched_getaffinity(0) == {CORES[0]}
        raise KeyError
    assert os.sched_getaffinity(0) == set(CORES)


def test_the_core_of_a_device() -> None:
    assert _core(["cpu:1"], [4, 6]) == 6
    assert _core(["cpu:3"], [4, 6]) == 6  # emulated: two devices share a core
    assert _core(["cpu:0", "cpu:1"], [4, 6]) is None
    assert _core(["cuda:0"], [4, 6]) is None
