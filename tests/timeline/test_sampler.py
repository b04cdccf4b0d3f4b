"""The sampler writes counters until it is stopped, and leaves no thread."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_lab.checkup import doctor
from rlinf_lab.timeline import Recorder, Timeline
from rlinf_lab.timeline.record import sampler as of_sampler
from rlinf_lab.timeline.record.sampler import UtilisationSampler, gpus_of_cuda, missing_gpu_curves


class Signalling(Recorder):
    """Says when a third sample of one counter has come."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.awaited = awaited
        self.seen: list[str] = []
        self.enough = threading.Event()

    def counter(self, name: str, time_ns: int, value: float) -> None:
        super().counter(name, time_ns, value)
        self.seen.append(name)
        if self.seen.count(self.awaited) == 3:
            self.enough.set()


def sampled(awaited: str = "process MiB", **options: Any) -> tuple[UtilisationSampler, Timeline]:
    recorder, timeline = Signalling(awaited), Timeline()
    with UtilisationSampler(recorder, seconds=0.01, **options) as sampler:
        assert recorder.enough.wait(20)
        assert sampler.start() is sampler  # a second start changes nothing
    timeline.extend(recorder.drain())
    return sampler, timeline


def test_cores_and_memory_become_counters_and_no_thread_is_left():
    before = set(threading.enumerate())  # a run of another test may still be watched
    sampler, timeline = sampled()
    assert not [t for t in threading.enumerate() if t not in before and t.name == "utilisation sampler"]
    table = timeline.counters()
    means = table.groupby(table.name.astype(str)).value.mean()
    assert means["process MiB"] > 5 and means["host MiB"] > means["process MiB"] / 2
    assert any(name.startswith("core ") for name in means.index)
    assert table.time_ns.is_monotonic_increasing
    assert "stopped" in repr(sampler)
    sampler.stop()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """So many GPUs of one kind, each with a GiB more than the one before; where they tell no ``load`` or no ``memory``, a function refuses."""
    import pynvml

    def put(count: int, **other: Any) -> None:
        usual = {
            "Init": lambda: None, "DeviceGetCount": lambda: count, "DeviceGetHandleByIndex": lambda i: i, "DeviceGetName": lambda h: "one kind",
            "DeviceGetMemoryInfo": lambda h: types.SimpleNamespace(used=(h + 1) << 30), "DeviceGetUtilizationRates": load,
        }  # fmt: skip
        for name, value in (usual | other).items():
            monkeypatch.setattr(pynvml, f"nvml{name}", value)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return put


def load(_: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(gpu=40)


def refuse(_: int) -> None:
    import pynvml

    raise pynvml.NVMLError_NotSupported()


@pytest.mark.parametrize(("count", "tells", "says"), [(2, load, ""), (0, refuse, "NVML shows no GPU"), (1, refuse, "cuda:0 %: Not Supported")])
def test_why_there_would_be_no_curves_is_known_before_a_run(nvml: Callable[..., None], count: int, tells: Any, says: str) -> None:
    nvml(count, DeviceGetUtilizationRates=tells)
    assert missing_gpu_curves() == says
    row = next(c for c in doctor().checks if c.name == "GPU curves") if count != 2 else None
    assert row is None or (says in row.found and row.mend)


FOUR = types.SimpleNamespace(
    nvmlDeviceGetCount=lambda: 4,
    nvmlDeviceGetHandleByIndex=lambda i: i,
    nvmlDeviceGetUUID=lambda h: f"GPU-{'abcd'[h]}0123",
    nvmlDeviceGetHandleByUUID=lambda name: name,
)


@pytest.mark.parametrize(("least", "times"), [(0.0, 1), (float("inf"), 0)])
def test_what_is_over_before_the_first_sample_has_one_of_its_end(monkeypatch: pytest.MonkeyPatch, least: float, times: int) -> None:
    monkeypatch.setattr(of_sampler, "MIN_SECONDS", least)
    recorder = Signalling("process MiB")
    UtilisationSampler(recorder, seconds=1000.0).start().stop()
    assert recorder.seen.count("process MiB") == times


def no_library() -> None:
    import pynvml

    raise pynvml.NVMLError_LibraryNotFound()


@pytest.mark.parametrize(
    ("count", "told", "means", "problem"),
    [
        (0, {"Init": no_library}, {}, "Not Found"), (1, {"DeviceGetMemoryInfo": refuse}, {"cuda:0 %": 40}, "cuda:0 MiB: "),
        (2, {"DeviceGetUtilizationRates": lambda h: refuse(h) if h else load(h)}, {"cuda:0 %": 40, "cuda:0 MiB": 1024, "cuda:1 MiB": 2048}, "cuda:1 %: "),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_tell_is_said_once_and_the_rest_is_told(nvml: Callable[..., None], count: int, told: Any, means: dict, problem: str) -> None:
    nvml(count, **told)
    heard: list[str] = []
    sampler, timeline = sampled(tell=heard.append)
    table = timeline.counters().groupby("name", observed=True).value.mean()
    assert {name: value for name, value in table.items() if name.startswith("cuda")} == means
    assert heard == [sampler.gpu_problem] and problem in heard[0] and "no GPU" in repr(sampler)


def test_gpus_of_another_process_go_by_other_names(nvml: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    _, timeline = sampled("node1/cuda:5 %", prefix="node1/", cores=(), gpus=["cuda:5"])
    means = timeline.counters().groupby("name", observed=True).value.mean()
    assert dict(means) == {"node1/cuda:5 MiB": 4096, "node1/cuda:5 %": 40}
    _, timeline = sampled(gpus=())
    assert not [name for name in timeline.names if name.startswith("cuda")]


@pytest.mark.parametrize(
    ("listed", "order", "kinds", "seen"),
    [
        (None, None, "AAAA", [0, 1, 2, 3]), ("", None, "AAAA", []), ("2", None, "AAAA", [2]), ("3,1", None, "AAAA", [3, 1]), ("GPU-d0123, 0", None, "AAAA", [3, 0]),
        ("1,-1,2", None, "AAAA", [1]), ("1,7,2", None, "AAAA", [1]), ("GPU-", None, "AAAA", []), ("NoDevFiles", None, "AAAA", []), ("MIG-5", None, "AAAA", ["MIG-5"]),
        (None, "PCI_BUS_ID", "ABAA", [0, 1, 2, 3]), ("GPU-c", None, "ABAA", [2]), (None, None, "ABAA", None), ("0", "FASTEST_FIRST", "ABAA", None),
    ],
)  # fmt: skip
def test_gpus_are_numbered_as_cuda_shows_them_or_not_at_all(listed: str | None, order: str | None, kinds: str, seen: list[Any] | None) -> None:
    """CUDA begins with the fastest of unlike ones, NVML goes by the bus: another GPU's curve would be shown."""
    nvml = types.SimpleNamespace(**vars(FOUR), nvmlDeviceGetName=lambda h: kinds[h])
    assert gpus_of_cuda(nvml, listed, order) == seen
