"""On a real GPU: calls last as long as its work and curves show it, models time-share in its memory, weights leave it, profiles of torch are read.

What the runtime decides without a GPU is tested beside this, with stand-ins.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rlinf_lab as lab
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.workflow.weights import Weights

pytestmark = pytest.mark.gpu
EXECUTORS = ["local", "processes", "ray"]
CYCLES = 20_000_000  # about ten milliseconds of a GPU at 2 GHz


class Net(lab.TorchWorker):
    """``mib`` of weights, all of them ``value``."""

    def __init__(self, mib: int, value: float = 1.0) -> None:
        self.mib, self.value = mib, value

    def setup(self) -> None:
        self.module = nn.Linear(1024, 256 * self.mib, bias=False).to(self.device)
        nn.init.constant_(self.module.weight, self.value)

    def work(self, rounds: int) -> None:
        """Gives the GPU work and does not wait for it."""
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.events[0].record()
        for _ in range(rounds):
            torch.cuda._sleep(CYCLES)
        self.events[1].record()

    def lasted(self) -> float:
        return self.events[0].elapsed_time(self.events[1]) / 1e3

    def look(self) -> tuple[float, float, str]:
        """MiB that torch has given away on this GPU, an element of the weights' mean, where they are."""
        return torch.cuda.memory_allocated() / 2**20, float(self.module.weight.detach().mean()), self.module.weight.device.type


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_call_lasts_as_long_as_its_gpu_works_and_the_curves_show_it(executor: str, recwarn: pytest.WarningsRecorder) -> None:
    flow = lab.Workflow("busy")
    net = flow.worker(Net, 1024, name="net")

    @flow.iteration
    def iteration() -> Any:
        net.work(60).wait()
        return net.lasted()

    done = lab.run(flow, lab.ExecutionPlan.spatial(flow, ["cuda:0"], {"net": [0]}), 6, executor)
    lasted = done.wait(120)
    spans = done.timeline.to_pandas()
    spans = spans[(spans["kind"] == "run") & (spans["name"] == "work")]
    seconds = ((spans["end_ns"] - spans["start_ns"]) / 1e9).tolist()
    assert len(seconds) == 6 and min(lasted) > 0.05
    assert all(span >= gpu for span, gpu in zip(seconds, lasted, strict=True)), (seconds, lasted)
    assert statistics.median(a / b for a, b in zip(seconds, lasted, strict=True)) < 1.1
    curves = done.timeline.counters().groupby("name", observed=True)["value"].apply(list)
    assert max(curves["cuda:0 MiB"]) >= 1024 and statistics.median(curves["cuda:0 %"]) >= 50, curves
    assert not [w for w in recwarn if "GPU" in str(w.message)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_two_models_take_turns_in_the_memory_of_one(executor: str) -> None:
    flow = lab.Workflow("turns")
    a, b = flow.worker(Net, 2048, 1.0, name="a"), flow.worker(Net, 2048, 2.0, name="b")

    @flow.iteration
    def iteration() -> Any:
        return [a.look().wait(), b.look().wait()]

    both, units = {"a": [[0]], "b": [[0]]}, {"a": 2, "b": 2}
    before = torch.cuda.memory_allocated() / 2**20
    done = lab.run(flow, lab.ExecutionPlan("turns", ("cuda:0",), both, memory=units, device_memory=3), 3, executor)
    for of_a, of_b in done.wait(180):
        for (mib, mean, where), value in ((of_a, 1.0), (of_b, 2.0)):
            assert mib - (before if executor == "local" else 0) < 2048 * 1.1 and mean == value and where == "cuda"
    kinds = [s.kind for s in done.timeline.rows() if s.track.worker in "ab"]
    assert kinds.count(SpanKind.ONLOAD) >= 4 and kinds.count(SpanKind.OFFLOAD) >= 4
    together = lab.run(flow, lab.ExecutionPlan("together", ("cuda:0",), both, memory=units, device_memory=4), 2, executor)
    assert all(min(of_a[0], of_b[0]) >= 4096 for of_a, of_b in together.wait(180)), "both fit, and nobody leaves"


class Learner(lab.Worker):
    def setup(self) -> None:
        generator = torch.Generator(self.device).manual_seed(1)
        self.state = {f"layer{i}": torch.randn(256, 1024, device=self.device, generator=generator) for i in range(8)} | {"b": torch.ones(3, device=self.device)}

    def train(self, weights: Weights) -> dict[str, np.ndarray]:
        for i, tensor in enumerate(self.state.values()):
            tensor.view(-1)[i % tensor.numel()] += 1.0  # in place, as optimisers do
        weights.publish({k: v.clone() for k, v in self.state.items()})
        return {k: v.cpu().numpy() for k, v in self.state.items()}


class Actor(lab.Worker):
    def pull(self, version: int, weights: Weights) -> dict[str, np.ndarray]:
        _, state = weights.pull(at_least=version)
        return {k: v.cpu().numpy() for k, v in state.items()}


@pytest.mark.parametrize("place", ["cpu:0", "cuda:0"])
def test_weights_come_from_a_gpu_as_they_were(place: str) -> None:
    flow = lab.Workflow("weights")
    weights = flow.weights("policy")
    learner, actor = flow.worker(Learner, name="learner"), flow.worker(Actor, name="actor")

    @flow.iteration
    def iteration(version: int) -> Any:
        published = learner.train(weights).wait()  # on one GPU the actor would wait for weights in the learner's place
        return published, actor.pull(version, weights)

    devices = ["cuda:0", "cpu:0"]
    plan = lab.ExecutionPlan.spatial(flow, devices, {"learner": [0], "actor": [devices.index(place)]})
    with lab.session(flow, plan, executor="processes") as session:
        for version in (1, 2, 3):
            published, pulled = session.step(version)
            assert published.keys() == pulled.keys() and all(np.array_equal(published[k], pulled[k]) for k in published)


def test_a_profile_of_torch_on_the_gpu_becomes_a_timeline(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    path = tmp_path / "torch.json"
    x, other = torch.ones(2048, 2048, device="cuda"), torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    plan = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as prof:
        for i in range(4):
            with record_function("mine"):
                if i == 3:
                    begin.record()
                for _ in range(20):
                    x @ x
                if i == 3:
                    end.record()
                with torch.cuda.stream(other):
                    x + 1
                torch.cuda.synchronize()
            prof.step()
    timeline = Timeline.from_chrome(path)
    frame = timeline.to_pandas()
    assert len(timeline.iterations()) == 3 and "cuda:0" in timeline.devices
    on_gpu = frame[np.array(["cuda:0" in d for d in frame["devices"]]) & (frame["kind"] == "run").to_numpy()]
    assert len(on_gpu[["worker", "rank"]].drop_duplicates()) >= 2, "each stream is a lane"
    last = timeline.iterations().iloc[-1]
    products = on_gpu[(on_gpu["start_ns"] >= last["start_ns"]) & (on_gpu["end_ns"] - on_gpu["start_ns"] > 50_000)]
    assert float((products["end_ns"] - products["start_ns"]).sum()) / 1e6 == pytest.approx(begin.elapsed_time(end), rel=0.25)
    busy, bubbles = timeline.busy(), timeline.bubbles(by="device")
    lasting = timeline.end_ns - timeline.start_ns
    assert int(busy.set_index("device")["ns"]["cuda:0"]) + int(bubbles.set_index("device")["ns"]["cuda:0"]) == lasting
