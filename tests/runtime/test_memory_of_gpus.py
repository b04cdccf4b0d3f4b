"""Memory of GPUs in `lab.profile`, with a stand-in for torch's: it knows of nothing until somebody uses CUDA, and raises errors as torch does."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
from test_profiler import flow

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.runtime.profiling import profiler, request
from rlinf_lab.timeline.record.span import Span, SpanKind, Track

GIB = 1 << 30


class Cuda:
    """Of one GPU, as torch.cuda has it. ``broken``: what looking at it raises."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self.initialized = False
        self.broken: Exception | None = None
        self.asked: list[str] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def allocate(self, gib: float) -> None:
        self.initialized = True
        self.used += int(gib * GIB)
        self.peak = max(self.peak, self.used)

    def memory_allocated(self, device: str) -> int:
        if self.broken:
            raise self.broken
        return self.used if self.initialized else 0

    def max_memory_allocated(self, device: str) -> int:
        return self.peak if self.initialized else 0

    def reset_peak_memory_stats(self, device: str) -> None:
        if not self.initialized:
            raise RuntimeError("Invalid device argument 0: did you call init?")
        self.peak = self.used

    def synchronize(self, device: str) -> None: ...

    def get_device_properties(self, device: str) -> SimpleNamespace:
        self.asked.append(device)
        return SimpleNamespace(total_memory={"cuda:0": 80, "cuda:1": 40}[device] * GIB)

    def get_device_name(self, device: str) -> str:
        self.asked.append(device)
        return f"stand-in {device}"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    return made


def looked(watch: profiler._MemoryWatch, times: int = 3) -> None:
    """Until it has looked so often, from now on."""
    before = len(watch._seen)
    for _ in range(500):
        if len(watch._seen) >= before + times or not watch._thread.is_alive():
            return
        time.sleep(0.01)


def work(start: int, end: int) -> SimpleNamespace:
    return SimpleNamespace(rows=lambda: [Span(Track("trainer", 0, ("cuda:0",)), SpanKind.RUN, "train", start, end)])


def test_the_watch_begins_before_cuda_does_and_sees_the_peak_until_it_cannot_look_any_more(cuda: Cuda) -> None:
    watch = profiler._MemoryWatch("cuda:0")
    with watch:
        looked(watch)
        assert watch._thread.is_alive() and len(watch._seen) >= 3
        cuda.allocate(2)
        looked(watch)
        start = time.monotonic_ns()
        for _ in range(3):  # between torch's two answers one may be lost
            cuda.allocate(0.5)
            cuda.allocate(-0.5)  # gone before anybody looks
            looked(watch)
        end = time.monotonic_ns()
        assert watch.failed == "" and watch.peaks(work(start, end)) == {"trainer": pytest.approx(0.5)}
        cuda.broken = RuntimeError("CUDA error: unspecified launch failure\nand more")
        watch._thread.join(60)
    assert watch.failed == "peaks of memory not measured, RuntimeError: CUDA error: unspecified launch failure"
    assert watch.peaks(work(start, end)) == {}


def test_gpus_of_other_nodes_are_not_taken_for_those_here(cuda: Cuda) -> None:
    assert profiler._device_memory(["cuda:0", "node1/cuda:1"]) == 80 and profiler._device_names(["cuda:0", "node1/cuda:1"]) == ["stand-in cuda:0"]
    assert profiler._device_memory(["cpu:0", "node1/cuda:1"]) is None and profiler._device_memory(["cuda:0", "cuda:1"]) == 40
    cuda.asked.clear()
    assert profiler._device_names(["node1/cuda:0"]) == [] == cuda.asked
    (note,) = profiler._not_seen_from_here(["cuda:0", "node1/cuda:1", "node1/cpu:0"], "local")
    assert "Memory of node1/cuda:1: not known, for it is on other nodes, and taken to be no smaller than cuda:0." in note and "Next:" in note


def test_devices_that_cannot_be_profiled_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that was timed on a core was foretold to take 110 s an iteration on a GPU, where it takes 0.36: all is measured on the first device."""
    monkeypatch.setattr(profiler._Measuring, "_observe", lambda *_: pytest.fail("something was run"))
    monkeypatch.setattr(request, "refuse_missing", lambda *_, **__: None)
    far = r"'node1/cuda:0', the first one, is a GPU of another node\..* Next: "
    for here, devices, told in (
        ([], ["cpu:0", "cuda:0", "cuda:1"], r"cores and GPUs\..* Next: devices=\['cuda:0', 'cuda:1'\], then profile\.with_worker\(NAME, resource='host'\)"),
        ([], ["node1/cuda:0", "node1/cuda:1"], far + r"lab\.profile on that node, where it is 'cuda:0'\."),
        (["cuda:0"], ["node1/cuda:0"], far + r"a GPU of this node first, devices=\['cuda:0', 'node1/cuda:0'\], or lab\.profile on that node"),
    ):
        monkeypatch.setattr(request, "devices_here", lambda here=here: here)
        with pytest.raises(PlanError, match=told):
            lab.profile(flow(), devices, executor="ray" if "/" in devices[0] else "local", progress=False)


def test_that_peaks_are_not_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes, and where a watch has failed."""
    found = lab.profile(flow(), ["cpu:0"], iterations=1, executor="processes", progress=False)
    assert all(s.peak_gib is None for w in found.workers.values() for s in w.samples)
    assert any("Peaks of memory: not measured, for with executor='processes'" in n and "Next:" in n for n in found.notes)
    (note,) = profiler._not_seen_from_here(["node1/cpu:0"], "local")
    assert note.startswith("node1/cpu:0 is on another node") and profiler._not_seen_from_here(["cpu:0", "cuda:0"], "local") == []

    def broken(device: str, synchronised: bool = True) -> float:
        if synchronised:
            return 0.0
        raise RuntimeError("no such counter")

    monkeypatch.setattr(profiler, "_gib_used", broken)
    notes = lab.profile(flow(), ["cpu:0"], iterations=1, progress=False).notes
    assert "one rank: peaks of memory not measured, RuntimeError: no such counter" in notes and not any("Peaks of memory" in n for n in notes)


HERE: set[str] = set()
MOST: list[int] = []


class Guest(lab.Worker):
    """60 MiB that come and go."""

    def setup(self) -> None:
        self.onload()

    def onload(self) -> None:
        HERE.add(self.name)
        MOST.append(len(HERE))

    def offload(self) -> None:
        HERE.discard(self.name)

    close = offload

    def sample(self, out: lab.Outbox) -> None:
        for i in range(8):
            self.compute(0.002)
            out.put(i)

    def train(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            self.compute(0.004)


@pytest.mark.parametrize(("gib", "most"), [(0.1, 1), (None, 2)])
def test_workers_that_a_gpu_does_not_hold_together_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch, gib: float | None, most: int) -> None:
    """Two models of three quarters of a GPU: a profile says so, and may not need room for both."""
    made = lab.Workflow("time-shared")
    samples = made.channel("samples", capacity=None)
    gives, takes = made.worker(Guest, name="gives"), made.worker(Guest, name="takes")

    made.iteration(lambda: (gives.sample(samples), takes.train(samples))[:0])
    HERE.clear(), MOST.clear()
    monkeypatch.setattr(profiler, "_device_memory", lambda _: gib)
    monkeypatch.setattr(profiler, "_gib_used", lambda *_, **__: len(HERE) * 60 / 1024)  # as torch counts; a process's own memory comes and goes by itself
    profile = lab.profile(made, ["cpu:0"], iterations=2, progress=False)
    assert max(MOST) == most and not HERE
    assert profile.device_memory_gib == gib
    assert all(w.memory.resident_gib == pytest.approx(60 / 1024) for w in profile.workers.values())


def test_what_came_before_a_stretch_of_work_is_no_peak_of_it() -> None:
    watch = profiler._MemoryWatch("cpu:0")
    watch._seen = [(10, 1.0, 1.0), (20, 3.0, 3.0), (30, 3.5, 3.5), (40, 3.0, 3.5)]
    rows = [Span(Track("trainer", 0, ("cuda:0",)), SpanKind.ONLOAD, "onload", 12, 18), Span(Track("trainer", 0, ("cuda:0",)), SpanKind.RUN, "train", 19, 45)]
    assert watch.peaks(SimpleNamespace(rows=lambda: rows)) == {"trainer": pytest.approx(0.5)}
