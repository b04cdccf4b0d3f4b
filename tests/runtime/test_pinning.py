"""Which cores devices stand for; threads of a fused cell share that of their device while they time-share, and only then."""

from __future__ import annotations

import os
import pickle
import sys
from types import ModuleType, SimpleNamespace

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ExecutorError
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.machine.pinning import cores_of, has_own_cores, on_core
from rlinf_lab.runtime.transport.pickling import Packed, pickled

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

    flow.iteration(lambda turns: (two.answer(forth, back), one.play(turns, back, forth)))
    return flow


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_a_fused_cell_stays_on_the_core_of_its_device_and_another_goes_anywhere(device: str) -> None:
    flow = game()
    core = {CORES[int(device[-1]) % len(CORES)]}
    for fused in (True, False):
        plan = (lab.ExecutionPlan.fused_cells if fused else lab.ExecutionPlan.temporal)(flow, [device])
        with lab.session(flow, plan, emulate=True) as session:
            for _ in range(2):
                twos, (before, ones) = session.step(3)
                assert before == set(CORES)  # what it starts while it is set up may go anywhere
                assert {frozenset(cores) for cores in [*ones, *twos]} == {frozenset(core if fused else CORES)} and len(ones) == 3 and twos
    assert os.sched_getaffinity(0) == set(CORES)


def test_the_cores_of_devices() -> None:
    assert cores_of(["cpu:1"], [4, 6]) == cores_of(["cpu:1.1", "cpu:1.2"], [4, 6]) == {6}
    assert cores_of(["cpu:0", "node1/cpu:3", "cuda:1"], [4, 6]) == {4, 6}  # emulated: two devices share a core
    assert cores_of(["cuda:0"], [4, 6]) == set()


@pytest.mark.parametrize(
    ("devices", "places", "available", "own"),
    [
        (["cpu:0", "cpu:1"], {"one": [0], "two": [1]}, [4, 6], (True, True)),
        (["cpu:0", "cpu:2"], {"one": [0], "two": [1]}, [4, 6], (False, False)),  # emulated
        (["cpu:0", "cpu:1"], {"one": [0, 1], "two": [1]}, [4, 6], (True, True)),  # two ranks on the second: they time-share
        (["cuda:0", "cpu:1"], {"one": [0], "two": [1]}, [4, 6], (False, True)),  # its thread may be anywhere
    ],
)
def test_who_has_a_core_of_its_own(devices: list[str], places: dict[str, list[int]], available: list[int], own: tuple[bool, bool]) -> None:
    flow = game()
    layout = Layout(flow.graph, lab.ExecutionPlan.spatial(flow, devices, places))
    place = {(w, r): "driver" if w == "driver" else f"host{layout.devices(w, r)[0]}" for w, r in layout.members}
    assert tuple(has_own_cores(layout, place, f"host{i}", available) for i in range(2)) == own


@pytest.mark.parametrize("threads", [1, None, 2])
def test_a_thread_is_kept_on_its_core_also_while_torch_is_being_imported(threads: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """None: the module is there, and has nothing in it yet. Torch with several threads is left alone."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: threads) if threads else ModuleType("torch"))
    with pytest.raises(KeyError), on_core(CORES[0]):
        assert os.sched_getaffinity(0) == (set(CORES) if threads == 2 else {CORES[0]})
        raise KeyError
    assert os.sched_getaffinity(0) == set(CORES)


def test_messages_are_sent_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    data, buffers = pickled(("failed", ExecutorError("why"), [1, 2]))
    assert pickle.loads(data, buffers=buffers)[2] == [1, 2]
    assert Packed.of({"a": (1, lambda x: x + 1)}).open()["a"][1](2) == 3
