"""Workers of one process that share weights: what is shared is found by its memory, is there once, and stays where one of them goes for the other."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import rlinf_lab as lab
from rlinf_lab.planning.engine.engine import Do, Engine, Event
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.profiling.profiler import _groups
from rlinf_lab.runtime.run.run import session
from rlinf_lab.workers import TorchWorker
from rlinf_lab.workers.residence import Residence
from rlinf_lab.workflow.workflow import Workflow

SWITCHES = ("onload", "offload")


class Holder(TorchWorker):
    """Holds what it was given, and ``own`` numbers besides."""

    def __init__(self, module: nn.Module | None, own: int = 0) -> None:
        self.module = module
        self.own = nn.Linear(own, 1, bias=False) if own else None

    def _leaves_at_once(self) -> bool:
        return True  # as on a GPU

    def add(self, value: float) -> float:
        """To every weight; the first one before."""
        with torch.no_grad():
            parameters = [p for m in (self.module, self.own) if m is not None for p in m.parameters()]
            before = float(parameters[0].flatten()[0])
            for p in parameters:
                p.add_(value)
        return before


def run(flow: Workflow, plan: ExecutionPlan, steps: int = 3) -> tuple[list[Any], list[tuple[str, str]]]:
    """What the iterations returned, and who switched."""
    with session(flow, plan, emulate=True) as s:
        found = [s.step() for _ in range(steps)]
    return found, [(r.track.worker, r.name) for r in s.timeline.rows() if r.name in SWITCHES]


def two(first: dict[str, Any], second: dict[str, Any], third: dict[str, Any] | None = None) -> Workflow:
    """Called one after another."""
    flow = Workflow("sharing")
    workers = [flow.worker(Holder, name=name, **given) for name, given in zip("abc", filter(None, (first, second, third)), strict=False)]

    @flow.iteration
    def iteration() -> list[float]:
        return [worker.add(1.0).wait() for worker in workers]

    return flow


def plan_of(flow: Workflow, memory: dict[str, int], device: int) -> ExecutionPlan:
    return ExecutionPlan("turns", ("cpu:0",), dict.fromkeys(memory, ((0,),)), memory=memory, device_memory=device)


def filled(n: int = 8) -> nn.Linear:
    module = nn.Linear(n, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


def test_who_shares_all_weights_does_not_switch_and_sees_what_the_other_has_learned() -> None:
    module = filled()
    flow = two({"module": module}, {"module": module})
    found, switches = run(flow, plan_of(flow, {"a": 6, "b": 6}, 6))
    assert found == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] and switches == []
    flow = two({"module": filled()}, {"module": filled()})  # of the same names, but not the same
    found, switches = run(flow, plan_of(flow, {"a": 6, "b": 6}, 6))
    assert found == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]] and {("a", "offload"), ("b", "offload"), ("a", "onload")} <= set(switches)


def test_other_tensors_on_the_same_memory_are_shared_too() -> None:
    """By their storages: the second module's parameter is another object of another shape."""
    module, flat = filled(), nn.Linear(2, 4, bias=False)
    flat.weight.data = module.weight.data.view(4, 2)
    third = {"module": filled()}
    flow = two({"module": module}, {"module": flat}, third)
    found, switches = run(flow, plan_of(flow, {"a": 6, "b": 6, "c": 6}, 6))
    assert found == [[0.0, 1.0, 0.0], [2.0, 3.0, 1.0], [4.0, 5.0, 2.0]]
    assert switches.count(("c", "offload")) == 2 and switches.count(("a", "offload")) + switches.count(("b", "offload")) == 3, switches
    assert module.weight.untyped_storage().data_ptr() == flat.weight.untyped_storage().data_ptr()


class Upon(Holder):
    """Its module lies on the memory of another worker's, which it finds when it is set up."""

    def __init__(self, found: SimpleNamespace) -> None:
        self.found, self.own = found, None
        self.module = nn.Linear(2, 4, bias=False)

    def setup(self) -> None:
        self.module.weight.data = self.found.module.weight.data.view(4, 2)


class Shows(Holder):
    """``found``: where others find its module."""

    def __init__(self, found: SimpleNamespace) -> None:
        self.found, self.own = found, None

    def setup(self) -> None:
        self.module = self.found.module = filled()


@pytest.mark.parametrize("device", [6, 12, 18])
def test_what_is_laid_on_the_memory_of_one_that_has_left_comes_with_it(device: int) -> None:
    """That they would share nobody knew when the first one left, as soon as it was built."""
    found = SimpleNamespace()
    flow = Workflow("found")
    a, b, c = flow.worker(Shows, found, name="a"), flow.worker(Upon, found, name="b"), flow.worker(Holder, filled(), name="c")

    @flow.iteration
    def iteration() -> list[float]:
        return [worker.add(1.0).wait() for worker in (a, b, c)]

    learned, _ = run(flow, plan_of(flow, {"a": 6, "b": 6, "c": 6}, device))
    assert learned == [[0.0, 1.0, 0.0], [2.0, 3.0, 1.0], [4.0, 5.0, 2.0]]


class Told(Holder):
    """Says what it does, and how many bytes moved."""

    said: ClassVar[list[tuple[str, str, int | None]]] = []

    def setup(self) -> None:
        Told.said.append((self.name, "setup", 0))

    def offload(self) -> None:
        super().offload()
        Told.said.append((self.name, "offload", self._nbytes_moved))


@pytest.mark.parametrize(("sharing", "expected"), [
    ("ab", ["a setup 0", "b setup 0", "b offload 0", "a offload 32", "c setup 0", "c offload 32", "d setup 0", "d offload 32"]),
    ("abc", ["a setup 0", "b setup 0", "c setup 0", "c offload 0", "a offload 0", "b offload 32", "d setup 0", "d offload 32"]),
    ("bd", ["a setup 0", "a offload 32", "b setup 0", "c setup 0", "c offload 32", "d setup 0", "d offload 0", "b offload 32"]),
])  # fmt: skip
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_who_stays_for_others_leaves_when_the_last_of_them_is_built(sharing: str, expected: list[str], executor: str) -> None:
    """What all of them share would be in the way of whoever is built afterwards, and of the first call."""
    Told.said.clear()
    flow, module = Workflow("staying"), filled()
    workers = [flow.worker(Told, module if name in sharing else filled(), name=name) for name in "abcd"]

    @flow.iteration
    def iteration() -> list[float]:
        return [worker.add(1.0).wait() for worker in workers]

    with session(flow, plan_of(flow, dict.fromkeys("abcd", 6), 6), executor, emulate=True) as s:
        if executor == "local":
            assert [" ".join(map(str, said)) for said in Told.said] == expected
        found = [s.step() for _ in range(3)]
    place = [sharing.find(name) for name in "abcd"]
    assert found == [[float(i * (len(sharing) if n >= 0 else 1) + max(n, 0)) for n in place] for i in range(3)]
    setups = [r for r in s.timeline.rows() if r.name == "setup"]
    assert not any(a.start_ns < b.end_ns and b.start_ns < a.end_ns for a, b in itertools.combinations(setups, 2))


def test_of_a_part_only_the_rest_moves() -> None:
    module = filled(8)
    one, other = (Residence([module, nn.Linear(n, 1, bias=False)], "cpu") for n in (16, 4))
    assert one.nbytes == 24 * 4 and one.shared(other) == pytest.approx(8 / 24) and other.shared(one) == pytest.approx(8 / 12)
    at = module.weight.data_ptr()
    assert one.leave(present=[other]) == 16 * 4 and module.weight.data_ptr() == at, "the rest"
    assert other.leave(absent=[one]) == 12 * 4 and module.weight.data_ptr() != at, "nobody of both is there"
    assert one.leave(present=[other]) == 0
    module.weight.data.fill_(7.0)
    assert one.come_back([other]) == 24 * 4 and module.weight.tolist() == [[7.0] * 8]
    assert other.come_back([one]) == 4 * 4 and module.weight.tolist() == [[7.0] * 8]
    assert other.come_back([one]) == one.come_back([other]) == 0


def test_what_has_no_block_of_its_own_is_shared_as_it_is() -> None:
    constants = nn.Module()
    constants.register_buffer("rows", torch.eye(3).to_sparse_csr())
    one, other = Residence([constants], "cpu"), Residence([constants], "cpu")
    nbytes = one.nbytes
    assert one.shared(other) == 1.0 and one.leave(present=[other]) == 0 and other.leave(absent=[one]) == nbytes
    assert one.come_back([other]) == nbytes and other.come_back([one]) == 0 and constants.rows.to_dense().diagonal().tolist() == [1.0] * 3


def test_a_block_on_a_core_has_one_place_whoever_brings_and_takes_it() -> None:
    """New memory each time is several times as slow as the copy."""
    module, places, contents = filled(8), list[int](), list[float]()
    one, other = Residence([module], "cpu"), Residence([module, nn.Linear(4, 1, bias=False)], "cpu")
    for i in range(5):
        first, last = (one, other) if i % 3 else (other, one)
        first.leave(present=[last])
        last.leave(absent=[first])
        module.weight.data.add_(1.0)
        one.come_back([other])
        other.come_back([one])
        places.append(module.weight.data_ptr())
        contents.append(float(module.weight.detach().sum()))
    assert len(set(places)) == 1, places
    assert contents == [8.0, 16.0, 24.0, 32.0, 40.0]
    module.weight.data = torch.full((1, 8), 7.0)  # somebody gives it other memory: the old block is let go
    for _ in range(2):
        one.leave(present=[other])
        other.leave(absent=[one])
        other.come_back([one])
        one.come_back([other])
    assert places[0] not in one._made and places[0] not in other._made and module.weight.tolist() == [[7.0] * 8]


def test_shared_memory_is_counted_once_on_a_device() -> None:
    """Two of 6 units that have 4 in common need 8."""
    module = filled(8)
    shares = {"module": module, "own": 4}
    flow = two(shares, shares)
    _, switches = run(flow, plan_of(flow, {"a": 6, "b": 6}, 8))
    assert switches == []
    _, switches = run(flow, plan_of(flow, {"a": 6, "b": 6}, 7))
    assert switches.count(("a", "offload")) == 3 and switches.count(("b", "offload")) == 2


@pytest.mark.parametrize("names", ["abc", "ab"])
def test_a_profile_says_what_is_shared_and_plans_keep_both(names: str) -> None:
    """Measured by the memory under their tensors: 4 of 6 MiB of a, 4 of 5 of b, nothing of c."""
    mib = 2**18  # numbers
    module = filled(4 * mib)
    flow = two({"module": module, "own": 2 * mib}, {"module": module, "own": mib}, {"module": filled(3 * mib)} if "c" in names else None)
    profile = lab.profile(flow, ["cpu:0"], iterations=1, progress=False)
    memory = {name: worker.memory for name, worker in profile.workers.items()}
    assert {n: (round(1024 * m.shared_gib, 6), m.shared_as) for n, m in memory.items()} == {n: (0, "") if n == "c" else (4, "weights of a") for n in names}
    assert 1024 * memory["a"].resident_gib == pytest.approx(2, abs=4.5) and 1024 * memory["b"].resident_gib == pytest.approx(1, abs=4.5)


def test_groups_of_those_who_share_the_same() -> None:
    shared = dict.fromkeys(itertools.permutations("abcd", 2), 0.0)
    shared |= dict.fromkeys(itertools.permutations("abc", 2), 2.0)
    assert _groups(shared) == [(("a", "b", "c"), 2.0)]
    shared |= {("a", "d"): 3.0, ("d", "a"): 3.0}
    assert _groups(shared) == [(("a", "d"), 3.0), (("b", "c"), 2.0)], "each worker in one group"
    assert _groups(dict.fromkeys(shared, 0.0)) == []


def test_the_engine_takes_what_is_shared_for_once() -> None:
    engine = Engine(1, memory=10)
    for _ in range(3):
        engine.add_process([0], size=6)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        engine.share(other, one, 4)
    asked = []
    for p in (0, 1, 2):
        instructions = engine.settle([(p, Event.START, 0, 1)])
        asked.append([do for do, *_ in instructions])
        instructions = engine.settle([(p, Event.ONLOADED, -1, 0)])
        engine.settle([(p, Event.DONE, -1, 0)])
    assert asked == [[Do.ONLOAD]] * 3, "4 + 2 + 2 + 2 units"
    engine.share(0, 1, 0)
    engine.share(0, 2, 0)
    assert engine._devices.overlaps.saved(engine.processes) == 4
