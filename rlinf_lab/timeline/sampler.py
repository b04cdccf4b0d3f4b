"""Sampling of processors and memory in the background, written as counters next to the spans.

The one file of this room that imports psutil and pynvml, and only when a sampler starts: a timeline without utilisation
curves says half of what happened, and a recorder is all that a sampler needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from rlinf_lab.timeline.recorder import Recorder

_MIB = 1 << 20


class UtilisationSampler:
    """Every ``seconds``, from `start` to `stop`, writes into ``recorder``:

    ``core 0 %`` … (each core this process may use), ``process MiB`` (resident memory of this process), ``host MiB`` (memory
    in use on the machine) and, where NVML answers, ``cuda:0 %`` and ``cuda:0 MiB`` (used) … ``gpu_problem`` says why there
    are no GPU curves, in NVML's words; "" when there are. ``cores``: those to sample, where the process has left some of its own.
    ``prefix`` is put before every name: of another node, for example ``"node1/"``. A context manager too.
    """

    def __init__(self, recorder: Recorder, seconds: float = 0.25, prefix: str = "", cores: Sequence[int] | None = None) -> None:
        self.recorder = recorder
        self.seconds = seconds
        self.prefix = prefix
        self._cores = cores
        self.gpu_problem = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to sample; nothing if it is sampling already."""
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._main, name="utilisation sampler", daemon=True)
            self._thread.start()
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
        return f"UtilisationSampler every {self.seconds:g} s: {state}{f', no GPU: {self.gpu_problem}' * bool(self.gpu_problem)}"

    def _main(self) -> None:
        processors, gpus = _processors(self._cores), self._gpus()  # made here: psutil measures since this thread's last call
        while not self._ended.wait(self.seconds):
            now = self.recorder.clock.now_ns()
            for name, value in [*processors(), *gpus()]:
                self.recorder.counter(self.prefix + name, now, value)

    def _gpus(self) -> Callable[[], list[tuple[str, float]]]:
        import pynvml

        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self.gpu_problem = str(error)
            return list

        def sample() -> list[tuple[str, float]]:
            return [entry for i, handle in enumerate(handles) for entry in self._gpu(pynvml, i, handle)]

        return sample

    def _gpu(self, nvml: Any, index: int, handle: Any) -> Iterator[tuple[str, float]]:
        """What this GPU tells. A slice of a GPU (MIG) has memory but no utilisation; NVML says so."""
        try:
            yield f"cuda:{index} MiB", nvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB
            yield f"cuda:{index} %", nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        except nvml.NVMLError as error:
            self.gpu_problem = f"cuda:{index}: {error}"


def _processors(chosen: Sequence[int] | None) -> Callable[[], list[tuple[str, float]]]:
    import psutil

    process = psutil.Process()
    mine = process.cpu_affinity() if hasattr(process, "cpu_affinity") else list(range(psutil.cpu_count() or 1))
    cores = mine if chosen is None else chosen
    psutil.cpu_percent(percpu=True)  # the first call has nothing to compare with and returns zeros

    def sample() -> list[tuple[str, float]]:
        percents = psutil.cpu_percent(percpu=True)
        entries = [(f"core {core} %", percents[core]) for core in cores if core < len(percents)]
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        return [*entries, ("process MiB", process.memory_info().rss / _MIB), ("host MiB", used / _MIB)]

    return sample
