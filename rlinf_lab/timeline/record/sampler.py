"""Sampling of processors and memory in the background, written as counters next to the spans.

The one file of this room that imports psutil and pynvml, and only when a sampler starts: a timeline without utilisation
curves says half of what happened, and a recorder is all that a sampler needs.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from rlinf_lab.timeline.record.recorder import Recorder

_MIB = 1 << 20
MIN_SECONDS = 0.1  # the kernel counts the time of its processors in hundredths: a load over less says nothing


class UtilisationSampler:
    """Samples the use of devices and memory into ``recorder``. Every ``seconds`` (memory: every second time), from
    `start` to `stop`, and at the end (but right after the last time), it writes:

    ``core 0 %`` … (each core this process may use), ``process MiB`` (resident memory of this process), ``host MiB``
    (memory in use on the machine) and, where NVML answers, ``cuda:0 %`` and ``cuda:0 MiB`` (used) … ``gpu_problem``
    says why there are no GPU curves, in NVML's words; "" when there are. ``cuda:i`` is the i-th GPU that
    CUDA_VISIBLE_DEVICES lets this process see.
    ``cores``: those to sample, where the process has left some of its own; with ``()`` no memory either. ``gpus``:
    other names for those GPUs, in order; with ``()`` none is sampled. ``prefix`` is put before every name: of another
    node, for example ``"node1/"``. ``tell`` is called with ``gpu_problem``, once for each, from the sampler's thread. A
    context manager too.
    """

    def __init__(
        self,
        recorder: Recorder,
        seconds: float = 1.0,
        prefix: str = "",
        cores: Sequence[int] | None = None,
        gpus: Sequence[str] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.recorder = recorder
        self.seconds = seconds
        self.prefix = prefix
        self._cores = cores
        self._names = gpus
        self._found: Callable[[], list[tuple[str, float]]] | None = None
        self.gpu_problem = ""
        self._tell = tell
        self._told: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to sample; nothing if it is sampling already."""
        if self._thread is None:
            self._ended.clear()
            thread = threading.Thread(target=self._main, name="utilisation sampler", daemon=True)
            thread.start()
            self._thread = thread
        return self

    def stop(self) -> None:
        """Stop and wait until the last sample is written. Harmless when it is not sampling."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "sampling" if self._thread is not None else "stopped"
        return (
            f"UtilisationSampler every {self.seconds:g} s: "
            f"{state}{f', no GPU: {self.gpu_problem}' * bool(self.gpu_problem)}"
        )

    def _main(self) -> None:
        # made here: psutil measures since this thread's last call
        # GPUs once: a machine without NVML is searched for it
        processors, gpus = _processors(self._cores), self._found or self._find_gpus()
        self._found = gpus
        is_over, since = False, time.monotonic()
        while not is_over:
            is_over = self._ended.wait(self.seconds)
            if is_over and time.monotonic() - since < MIN_SECONDS:
                return
            now, since = self.recorder.clock.now_ns(), time.monotonic()
            for name, value in [*processors(), *gpus()]:
                self.recorder.counter(self.prefix + name, now, value)

    def _find_gpus(self) -> Callable[[], list[tuple[str, float]]]:
        import pynvml

        if self._names is not None and not self._names:
            return list
        try:
            pynvml.nvmlInit()
            handles = gpus_of_cuda(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
        except pynvml.NVMLError as error:
            self._cannot(str(error))
            return list
        if handles is None:
            self._cannot(
                "the GPUs are unlike, and CUDA numbers them otherwise than NVML: CUDA_DEVICE_ORDER=PCI_BUS_ID makes "
                "both the same"
            )
            return list
        names = [f"cuda:{i}" for i in range(len(handles))] if self._names is None else self._names

        def sample() -> list[tuple[str, float]]:
            return [
                entry for name, handle in zip(names, handles, strict=False) for entry in self._gpu(pynvml, name, handle)
            ]

        return sample

    def _gpu(self, nvml: Any, name: str, handle: Any) -> Iterator[tuple[str, float]]:
        """What this GPU tells: one of both may be missing. A slice of a GPU (MIG) has memory but no utilisation; NVML
        says so.
        """
        asked: tuple[tuple[str, Callable[[], float]], ...] = (
            ("MiB", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB),
            ("%", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        )
        for unit, ask in asked:
            try:
                yield f"{name} {unit}", ask()
            except nvml.NVMLError as error:
                self._cannot(f"{name} {unit}: {error}")

    def _cannot(self, problem: str) -> None:
        self.gpu_problem = problem
        if problem not in self._told:
            self._told.add(problem)
            self._tell(problem)


def missing_gpu_curves() -> str:
    """Why this machine's GPUs would have no curves, in NVML's words, or "". Those of their load and memory. Looks
    once, and starts nothing.
    """
    looking = UtilisationSampler(Recorder())
    found = looking._find_gpus()()
    return looking.gpu_problem or ("" if found else "NVML shows no GPU")


def gpus_of_cuda(nvml: Any, listed: str | None, order: str | None) -> list[Any] | None:
    """As `visible_gpus`. None where GPUs are unlike and listed by numbers: CUDA then begins with the fastest, and does
    not say which that is. Raises ``NVMLError``.

    ``order``: CUDA_DEVICE_ORDER.
    """
    every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    by_id = listed is not None and not any(e.strip().isdecimal() for e in listed.split(","))
    alike = len({nvml.nvmlDeviceGetName(handle) for handle in every}) < 2
    return visible_gpus(nvml, listed) if order == "PCI_BUS_ID" or by_id or alike else None


def visible_gpus(nvml: Any, listed: str | None) -> list[Any]:
    """NVML's handles of the GPUs that CUDA shows to this process, in CUDA's order. NVML itself counts all that the
    machine has.

    ``listed``: CUDA_VISIBLE_DEVICES, numbers or the beginnings of UUIDs; as in CUDA, what follows an entry that is no
    GPU is not seen. Numbers are taken in the order of the bus, which is CUDA's where the GPUs are alike (else see
    `gpus_of_cuda`). Raises ``NVMLError``.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if listed is None:
        return handles
    seen: list[Any] = []
    for entry in (e.strip() for e in listed.split(",")):
        if entry.isdecimal():
            found = handles[int(entry) : int(entry) + 1]
        elif entry.startswith("MIG-"):
            found = [nvml.nvmlDeviceGetHandleByUUID(entry)]
        else:
            found = [h for h in handles if entry and nvml.nvmlDeviceGetUUID(h).startswith(entry)]
        if len(found) != 1:
            break
        seen += found
    return seen


def _processors(chosen: Sequence[int] | None) -> Callable[[], list[tuple[str, float]]]:
    import psutil

    process = psutil.Process()
    mine = process.cpu_affinity() if hasattr(process, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    cores = mine if chosen is None else chosen
    if chosen is not None and not chosen:
        return list
    psutil.cpu_percent(percpu=True)  # the first call has nothing to compare with and returns zeros

    turn = itertools.count()

    def sample() -> list[tuple[str, float]]:
        percents = psutil.cpu_percent(percpu=True)
        entries = [(f"core {core} %", percents[core]) for core in cores if core < len(percents)]
        if next(turn) % 2:  # memory changes slowly, and reading it costs more
            return entries
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        return [*entries, ("process MiB", process.memory_info().rss / _MIB), ("host MiB", used / _MIB)]

    return sample
