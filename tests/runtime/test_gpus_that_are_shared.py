"""What is done on GPUs around the work of ranks, and what `lab.profile` sees of their memory, with stand-ins for torch.cuda.

Each thread has its device, and its work is done when somebody else's begins."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flows import Numbers
from sessions import opened, until
from test_profiler import flow as sampling
from torch import nn

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, WorkerError
from rlinf_lab.runtime.executors.device_host import DeviceHost
from rlinf_lab.runtime.executors.driver import Driver
from rlinf_lab.runtime.profiling import profiler, request
from rlinf_lab.runtime.transport import cuda_ipc
from rlinf_lab.timeline.record.span import Span, SpanKind, Track
from rlinf_lab.workers.residence import Residence, _by_block

SEEN: list[tuple[str, str]] = []  # (thread, what), in order


def note(what: str) -> None:
    SEEN.append((threading.current_thread().name, what))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    SEEN.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: note(f"finish {device}"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: note(f"use {device}"))
    monkeypatch.setattr("rlinf_lab.runtime.executors.local.refuse_missing", lambda plan, emulate: None)
    return SEEN


class Makes(lab.Worker):
    def setup(self) -> None:
        note("setup")

    def make(self, out: lab.Outbox) -> None:
        for i in range(4):
            note("launch")
            out.put(i)


def flow(makes: type[lab.Worker] = Makes, takes: type[lab.Worker] = Numbers) -> lab.Workflow:
    made = lab.Workflow("gpus")
    items = made.channel("items", capacity=None)
    a, b = made.worker(makes, name="a"), made.worker(takes, name="b")
    made.iteration(lambda: (a.make(items), b.count(items))[1])
    return made


def run(places: dict[str, Any], devices: tuple[str, ...], **plan: Any) -> list[tuple[str, str]]:
    made = flow()
    with opened("local", made, lab.ExecutionPlan("p", devices, places, micro_batches={"items": 1}, **plan)) as s:
        assert s.step() == 4
    return list(SEEN)


def test_every_thread_has_the_device_of_its_rank(cuda: list[tuple[str, str]]) -> None:
    seen = run({"a": [[1]], "b": [[2]]}, ("cuda:0", "cuda:1", "cuda:3"))
    assert [what for who, what in seen if who == "a[0]"][:2] == ["use cuda:1", "setup"], "before anything is built"
    assert ("b[0]", "use cuda:3") in seen
    SEEN.clear()
    assert not any("use" in what for _, what in run({"a": [[0]], "b": [[1]]}, ("cuda:0", "cpu:0")))


def test_a_device_that_cannot_be_used_is_told_with_the_worker_and_in_made_up_time_nobody_looks_for_one(
    cuda: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(device: str) -> None:
        raise RuntimeError("invalid device ordinal")

    monkeypatch.setattr(torch.cuda, "set_device", missing)
    with pytest.raises(WorkerError, match="Worker 'a' rank 0 failed in .*invalid device ordinal"):
        run({"a": [[0]], "b": [[0]]}, ("cuda:1",))
    made = flow()
    with opened("mock", made, lab.ExecutionPlan("p", ("cuda:5",), {"a": [[0]], "b": [[0]]})) as s:
        assert s.step() == 4


def test_before_a_shared_gpu_is_given_away_its_work_is_done(cuda: list[tuple[str, str]]) -> None:
    """A get gives the device away; a put only where it waits for room."""
    shared, alone = {"a": [[0]], "b": [[0]]}, {"a": [[0]], "b": [[1]]}
    unbounded = [what for who, what in run(shared, ("cuda:0",)) if who == "a[0]"]
    assert unbounded == ["setup", *["launch"] * 4, "finish cuda:0"], "at the end of its call only"
    SEEN.clear()
    bounded = run(shared, ("cuda:0",), capacities={"items": 1})
    assert [what for who, what in bounded if who == "a[0]"].count("finish cuda:0") >= 3, "where the channel is full"
    gets = [what for who, what in bounded if who == "b[0]"]
    assert gets.count("finish cuda:0") >= 5
    SEEN.clear()
    seen = run(alone, ("cuda:0", "cuda:1"), capacities={"items": 1})
    assert sorted(what for _, what in seen if "finish" in what) == ["finish cuda:0", "finish cuda:1"], "at the ends of the calls"
    SEEN.clear()
    assert not any("finish" in what for _, what in run(shared, ("cpu:0",), capacities={"items": 1}))


class Stream:
    """One of a GPU; each thread has its own current one."""

    current = threading.local()

    def __init__(self, device: str) -> None:
        self.device = device

    def synchronize(self) -> None:
        note(f"finish its stream of {self.device}")


@pytest.fixture
def streams(cuda: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    def set_stream(stream: Stream) -> None:
        Stream.current.stream = stream
        note(f"use a stream of {stream.device}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream.current.stream)
    return cuda


def test_shares_of_a_gpu_are_streams_that_do_not_wait_for_each_other(streams: list[tuple[str, str]]) -> None:
    """What is put has been computed, for who takes it has another stream; nobody waits for all of the GPU."""
    seen = run({"a": [[0]], "b": [[1]]}, ("cuda:1.1", "cuda:1.2"))
    mine = {who: [what for other, what in seen if other == who] for who in ("a[0]", "b[0]")}
    done = "finish its stream of cuda:1"
    assert mine["a[0]"] == ["use a stream of cuda:1", "setup", done, *["launch", done] * 4, done]
    assert mine["b[0]"][0] == "use a stream of cuda:1" and set(mine["b[0]"][1:]) == {done}
    SEEN.clear()
    assert not any("stream" in what for _, what in run({"a": [[0]], "b": [[1]]}, ("cpu:0.1", "cpu:0.2")))


def test_what_was_taken_stays_until_the_stream_has_read_it(streams: list[tuple[str, str]]) -> None:
    """Memory that nobody has any more goes to the stream that it is from, at once, while the other one may still read it."""
    alive: list[list[bool]] = []

    class Item:
        pass

    class MakesItems(lab.Worker):
        def make(self, out: lab.Outbox) -> None:
            for _ in range(3):
                out.put(Item())

    class Drops(lab.Worker):
        def count(self, inbox: lab.Inbox) -> int:
            dropped = []
            for _ in range(3):
                dropped.append(weakref.ref(inbox.take()))
                until(lambda: kept or not dropped[-1]())  # the maker may still be within its put, and hold it
                alive.append([there() is not None for there in dropped])
            return len(dropped)

    made = flow(MakesItems, Drops)
    places = {"a": [[0]], "b": [[1]]}
    for devices, kept in ((("cuda:0.1", "cuda:0.2"), True), (("cpu:0", "cpu:1"), False)):
        alive.clear()
        with opened("local", made, lab.ExecutionPlan("p", devices, places, micro_batches={"items": 1})) as s:
            assert s.step() == 3
        assert alive == [[kept], [False, kept], [False, False, kept]]


class OnPaper(Residence):
    """Of tensors in host memory that count as a GPU's."""

    def _blocks(self) -> dict[int, list[torch.Tensor]]:
        return _by_block(self._tensors_on_blocks())


def test_who_leaves_a_gpu_gives_its_memory_back_to_everybody(cuda: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to torch's allocator alone, when what was there is in host memory."""
    module, empty = nn.Linear(8, 8), torch.empty
    residence = OnPaper([module], "cuda:0")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: note(f"empty {residence.away}"))
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **rest: empty(*size, **rest))  # pinning needs a GPU
    assert residence.leave() == 72 * 4
    assert [what for _, what in SEEN] == ["finish cuda:0", "empty True"]
    residence.leave()
    assert len(SEEN) == 2, "it is away"
    here = Residence([nn.Linear(8, 8)], "cpu")
    here.leave()
    assert len(SEEN) == 2


# --- deaths -------------------------------------------------------------------------------------------------------------
def test_what_cannot_be_released_keeps_nothing_else(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    released, given_back = list[Any](), []

    def release(shared: Any) -> None:
        if isinstance(shared, Exception):
            raise shared
        released.append(shared)

    monkeypatch.setattr(cuda_ipc, "SHARING", SimpleNamespace(release=release))
    lender = cuda_ipc.Lender("other", [])
    lender._lent = {0: (None, "one"), 1: (None, TypeError("a handle is needed, not None")), 2: (None, RuntimeError("gone")), 3: (None, "two")}
    lender.lost()
    assert sorted(released) == ["one", "two"] and not lender.has_lent
    cuda_ipc._drop(TypeError("a handle is needed, not None"), lambda: given_back.append(1))
    assert given_back == [1]
    assert caplog.text.count("could not be released") == 2 and "a handle is needed" in caplog.text
    released.clear()
    storage = SimpleNamespace(_release_ipc_counter=lambda handle, offset, device: released.append(handle))
    for handle in (None, b"h"):  # a tensor without a byte has nothing to release
        cuda_ipc.CudaSharing().release({"storage_cls": storage, "ref_counter_handle": handle, "ref_counter_offset": 0, "storage_device": 0})
    assert released == [b"h"]


def test_a_death_is_told_whatever_cannot_be_released() -> None:
    told: list[str] = []

    def fails() -> None:
        raise TypeError("a handle is needed, not None")

    ends: list[Any] = [object.__new__(DeviceHost), object.__new__(Driver)]
    for end in ends:
        end.links, end.host = {"other": SimpleNamespace(peer_died=fails)}, SimpleNamespace(stopping=False, lost=told.append)
        with pytest.raises(TypeError):
            end._broken("other")
    assert told == ["other", "other"]


# --- memory of GPUs in `lab.profile`: it knows of nothing until somebody uses CUDA, and raises errors as torch does ---
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
def memory(monkeypatch: pytest.MonkeyPatch) -> Cuda:
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


def test_the_watch_begins_before_cuda_does_and_sees_the_peak_until_it_cannot_look_any_more(memory: Cuda) -> None:
    watch = profiler._MemoryWatch("cuda:0")
    with watch:
        looked(watch)
        assert watch._thread.is_alive() and len(watch._seen) >= 3
        memory.allocate(2)
        looked(watch)
        start = time.monotonic_ns()
        for _ in range(3):  # between torch's two answers one may be lost
            memory.allocate(0.5)
            memory.allocate(-0.5)  # gone before anybody looks
            looked(watch)
        end = time.monotonic_ns()
        assert watch.failed == "" and watch.peaks(work(start, end)) == {"trainer": pytest.approx(0.5)}
        memory.broken = RuntimeError("CUDA error: unspecified launch failure\nand more")
        watch._thread.join(60)
    assert watch.failed == "peaks of memory not measured, RuntimeError: CUDA error: unspecified launch failure"
    assert watch.peaks(work(start, end)) == {}


def test_gpus_of_other_nodes_are_not_taken_for_those_here(memory: Cuda) -> None:
    assert profiler._device_memory(["cuda:0", "node1/cuda:1"]) == 80 and profiler._device_names(["cuda:0", "node1/cuda:1"]) == ["stand-in cuda:0"]
    assert profiler._device_memory(["cpu:0", "node1/cuda:1"]) is None and profiler._device_memory(["cuda:0", "cuda:1"]) == 40
    memory.asked.clear()
    assert profiler._device_names(["node1/cuda:0"]) == [] == memory.asked
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
            lab.profile(sampling(), devices, executor="ray" if "/" in devices[0] else "local", progress=False)


def test_that_peaks_are_not_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes, and where a watch has failed."""
    found = lab.profile(sampling(), ["cpu:0"], iterations=1, executor="processes", progress=False)
    assert all(s.peak_gib is None for w in found.workers.values() for s in w.samples)
    assert any("Peaks of memory: not measured, for with executor='processes'" in n and "Next:" in n for n in found.notes)
    (note,) = profiler._not_seen_from_here(["node1/cpu:0"], "local")
    assert note.startswith("node1/cpu:0 is on another node") and profiler._not_seen_from_here(["cpu:0", "cuda:0"], "local") == []

    def broken(device: str, synchronised: bool = True) -> float:
        if synchronised:
            return 0.0
        raise RuntimeError("no such counter")

    monkeypatch.setattr(profiler, "_gib_used", broken)
    notes = lab.profile(sampling(), ["cpu:0"], iterations=1, progress=False).notes
    assert "one rank: peaks of memory not measured, RuntimeError: no such counter" in notes and not any("Peaks of memory" in n for n in notes)


HERE: set[str] = set()
MOST: list[int] = []


class ComesAndGoes(lab.Worker):
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
    gives, takes = made.worker(ComesAndGoes, name="gives"), made.worker(ComesAndGoes, name="takes")

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
