"""A plan that makes somebody leave who cannot is refused by name, by the check and the launch; one in which that never happens is not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import nn

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, WorkerError
from rlinf_lab.runtime.run.run import session
from rlinf_lab.timeline import SpanKind
from rlinf_lab.workers import TorchWorker


class Empty(lab.Worker):
    def work(self) -> int:
        return 1


class Plain(Empty):
    """Builds something in its setup, and does nothing about leaving."""

    def setup(self) -> None:
        self.big = bytearray(100)


class Leaves(Plain):
    def offload(self) -> None:
        self.big = bytearray()


class ComesBack(Plain):
    def onload(self) -> None:
        self.setup()


class SaysNo(Leaves):
    def can_leave(self) -> bool:
        return False


class KnowsOnDevice(Leaves):
    def setup(self) -> None:
        self.stuck = True

    def can_leave(self) -> bool:
        return not hasattr(self, "stuck")


class Torch(TorchWorker):
    def setup(self) -> None:
        self.module = nn.Linear(8, 1)

    def work(self) -> int:
        return 1


def flow_of(*workers: tuple[type[lab.Worker], tuple[Any, ...], dict[str, Any]] | type[lab.Worker]) -> lab.Workflow:
    made = lab.Workflow("turns")
    given = [w if isinstance(w, tuple) else (w, (), {}) for w in workers]
    handles = [made.worker(cls, *args, name="abcd"[i], **kwargs) for i, (cls, args, kwargs) in enumerate(given)]
    made.iteration(lambda: [handle.work().wait() for handle in handles])
    return made


def plan_of(flow: lab.Workflow, memory: dict[str, int], device: int | None, **changes: Any) -> lab.ExecutionPlan:
    names = flow.graph.workers
    return lab.ExecutionPlan(**{"name": "p", "devices": ("cpu:0", "cpu:1"), "placements": dict.fromkeys(names, ((0,),)), "memory": memory,
                                "device_memory": device, **changes})  # fmt: skip


def accepted(flow: lab.Workflow, plan: lab.ExecutionPlan) -> None:
    """By the check, and by a run to its end."""
    report = lab.check(flow, plan)
    assert report.ok, report
    with session(flow, plan, emulate=True) as s:
        for _ in range(3):
            s.step()


@pytest.mark.parametrize("cls", [Plain, SaysNo])
def test_who_cannot_leave_is_refused_by_name(cls: type[lab.Worker]) -> None:
    flow = flow_of(cls, Leaves)
    plan = plan_of(flow, {"a": 1, "b": 2}, 2)
    said = r"Worker 'a' would have to leave cpu:0 for others under plan 'p', for device_memory=2 is not enough for all \(memory a 1, b 2\), and it cannot: "
    said += cls.__name__
    assert re.search(said, lab.check(flow, plan, emulate=True)["workers"].found)
    said += r".*Next: give it a device of its own, or memory for all \(device_memory=\).*offload\(\) and onload\(\)"
    with pytest.raises(PlanError, match=said), session(flow, plan, emulate=True):
        pytest.fail("it was launched")


@pytest.mark.parametrize(
    ("workers", "memory", "device", "changes", "ok"),
    [
        ((Plain, Leaves), {"a": 1, "b": 1}, 2, {}, True),  # there is room for both
        ((Plain, Leaves), {"a": 1, "b": 1}, None, {}, True),  # nobody ever leaves
        ((Plain, Leaves), {"b": 1}, 1, {}, True),  # no promise that it would free anything
        ((Plain, Leaves), {"a": 1, "b": 1}, 1, {"placements": {"a": ((0,),), "b": ((1,),)}}, True),
        ((Plain, Leaves, Leaves), {"b": 1, "c": 1}, 1, {"working": {"a": 1}}, True),  # others leave for it
        ((Leaves, ComesBack, Empty), {"a": 1, "b": 1, "c": 1}, 1, {}, True),
        ((Plain, Torch), {"a": 1, "b": 1}, 2, {}, True),
        ((Plain, Leaves), {"a": 1, "b": 1}, 2, {"working": {"b": 1}}, False),  # for others at work
        ((Plain, Leaves, Leaves), {"a": 1, "b": 1, "c": 1}, 3, {"working": {"b": 1}}, False),  # for one of others at work
        ((Plain, Leaves), {"a": 1, "b": 2}, 2, {"placements": {"a": ((1,), (0,)), "b": ((0,),)}}, False),  # for a second rank
    ],
)
def test_who_has_to_leave_is_refused_and_who_never_has_to_is_not(workers: Any, memory: dict[str, int], device: int | None, changes: Any, ok: bool) -> None:
    flow = flow_of(*workers)
    plan = plan_of(flow, memory, device, **changes)
    if ok:
        accepted(flow, plan)
    else:
        assert not lab.check(flow, plan).ok


def test_what_only_the_worker_knows_is_asked_when_it_is_set_up() -> None:
    flow = flow_of(KnowsOnDevice, Leaves)
    plan = plan_of(flow, {"a": 1, "b": 1}, 1)
    assert lab.check(flow, plan).ok
    said = r"Worker 'a' rank 0 failed in can_leave\(\): PlanError: Worker 'a' would have to leave .*KnowsOnDevice.can_leave\(\) says no"
    with pytest.raises(WorkerError, match=said), session(flow, plan):
        pytest.fail("it was launched")


class Shares(Torch):
    """With another one; where that one does not share in truth, the memory of both does not fit."""

    module: nn.Module

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def setup(self) -> None:
        pass


def test_weights_that_are_held_once_may_make_room() -> None:
    """Two that may share all of their weights: told when it turns out that they do not, and refused where it would not help."""
    module = nn.Linear(8, 1)
    flow = flow_of(Plain, (Shares, (module,), {}), (Shares, (module,), {}))
    accepted(flow, plan_of(flow, {"b": 1, "c": 1}, 1))
    assert lab.check(flow, plan_of(flow, {"a": 1, "b": 1, "c": 1}, 2)).ok
    assert not lab.check(flow, plan_of(flow, {"a": 1, "b": 1, "c": 1}, 1)).ok
    flow = flow_of(Plain, (Shares, (nn.Linear(8, 1),), {}), (Shares, (nn.Linear(8, 1),), {}))
    told = r"failed in offload\(\): WorkflowError: a\[0\] has to leave cpu for another worker and cannot: Plain has a setup"
    with pytest.raises(WorkerError, match=told), session(flow, plan_of(flow, {"a": 1, "b": 1, "c": 1}, 2)) as s:
        s.step()
        s.step()


SAID: list[tuple[str, int]] = []  # who comes to the device (1) or leaves it (-1)


class Guest(lab.Worker):
    def setup(self) -> None:
        SAID.append((self.name, 1))

    onload = setup

    def offload(self) -> None:
        SAID.append((self.name, -1))

    def work(self) -> bool:
        """Whether it is there."""
        return dict(SAID)[self.name] == 1


@pytest.mark.parametrize(("device_memory", "working", "most"), [(3, {}, 1), (4, {}, 2), (5, {}, 2), (6, {}, 3), (6, {"c": 1}, 3)])
def test_what_does_not_fit_later_is_not_built_beside_it_either(device_memory: int, working: dict[str, int], most: int) -> None:
    """Three models that a GPU holds one at a time would not even be built there together."""
    SAID.clear()
    flow = flow_of(Guest, Guest, Guest)
    sizes = {"a": 3, "b": 2, "c": 1} if device_memory == 5 else dict.fromkeys("abc", 2)
    plan = lab.ExecutionPlan("turns", ("cpu:0",), dict.fromkeys("abc", ((0,),)), memory=sizes, device_memory=device_memory, working=working)
    with session(flow, plan) as s:
        assert [s.step() for _ in range(2)] == [[True] * 3] * 2
    assert max([*dict(SAID[:i]).values()].count(1) for i in range(1, len(SAID) + 1)) == most
    if device_memory == 6 and not working:
        assert all(n == 1 for _, n in SAID), "there is room for all"
    else:
        assert SAID[:4] == [("a", 1), ("a", -1), ("b", 1), ("b", -1)]


class OnAGpu(Torch):
    def _leaves_at_once(self) -> bool:
        return True


@pytest.mark.parametrize(("cls", "first"), [(OnAGpu, [("a", "onload")]), (Torch, [])])
def test_who_has_left_when_it_was_built_is_brought_by_its_first_call(cls: type[Torch], first: list[tuple[str, str]]) -> None:
    """On a core torch's modules stay: what they would leave for is host memory too."""
    flow = flow_of(cls, cls)
    with session(flow, plan_of(flow, {"a": 2, "b": 2}, 3)) as s:
        s.step()
    names = [(r.track.worker, r.name) for r in s.timeline.rows() if r.kind in (SpanKind.ONLOAD, SpanKind.OFFLOAD, SpanKind.RUN)]
    assert names == [*first, ("a", "work"), ("a", "offload"), *[("b", "onload")] * len(first), ("b", "work")]


class FailsToLeave(OnAGpu):
    def offload(self) -> None:
        raise MemoryError("no host memory")


class FailsToCome(Leaves):
    def onload(self) -> None:
        raise MemoryError("does not fit")


def test_who_cannot_leave_or_come_is_told_before_its_first_call() -> None:
    flow = flow_of(FailsToLeave, Torch)
    with pytest.raises(WorkerError, match=r"'a' rank 0 failed in offload\(\): MemoryError: no host memory"), session(flow, plan_of(flow, {"a": 2, "b": 2}, 3)):
        pass
    flow = flow_of(FailsToCome, Leaves)
    with session(flow, plan_of(flow, {"a": 2, "b": 2}, 3)) as s, pytest.raises(WorkerError, match=r"rank 0 failed in onload\(\): MemoryError: does not fit"):
        s.step()
