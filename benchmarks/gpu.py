"""What needs a GPU: switching a model out of its memory and in, tensors between processes, a policy on it, the cost of its curves, predicted plans."""

from __future__ import annotations

import atexit
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from harness import Case
from prediction_error import in_turn
from torch import nn

import rlinf_lab as lab
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.executors.ray_start import ensure_ray
from rlinf_lab.timeline import Recorder
from rlinf_lab.timeline.record.sampler import UtilisationSampler
from rlinf_lab.workers import Residence

MIB, GPU = 2**20, "cuda:0"


# --- switching ------------------------------------------------------------------------------------------------------------
class Pair:
    """A model that switches, and its bytes, which are copied into page-locked memory that is there, and back into memory that is there."""

    def __init__(self, mib: int) -> None:
        layers = max(1, mib // 4)
        self.residence = Residence([nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(layers))).to(GPU)], GPU)
        self.there = [torch.rand(MIB, device=GPU) for _ in range(layers)]
        self.here = [torch.rand(MIB, pin_memory=True) for _ in range(layers)]
        self.switch()

    def switch(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.residence.leave()
        self.residence.come_back()
        return (time.perf_counter() - start) * 1e3

    def first(self) -> float:
        """The first leaving, for which host memory is page-locked. It is given back to the system after the one before."""
        self.residence._held.clear()
        next(getattr(torch._C, name) for name in ("_host_emptyCache", "_accelerator_emptyHostCache") if hasattr(torch._C, name))()
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.residence.leave()
        spent = time.perf_counter() - start
        self.residence.come_back()
        return spent * 1e3

    def away(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = [a.cpu() for a in self.there]
        assert kept
        return (time.perf_counter() - start) * 1e3

    def copies(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for source, target in ((self.there, self.here), (self.here, self.there)):
            for a, b in zip(source, target, strict=True):
                b.copy_(a, non_blocking=True)
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    def pageable(self) -> float:
        """What ``model.cpu()`` and ``model.cuda()`` do."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        away = [a.cpu() for a in self.there]
        for a in away:
            a.cuda()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3


# --- tensors between processes --------------------------------------------------------------------------------------------
class Sender(lab.Worker):
    def send(self, count: int, mib: int, out: lab.Outbox) -> None:
        tensor = torch.ones(mib << 18, device=self.device)
        for _ in range(count):
            out.put(tensor)


class Receiver(lab.Worker):
    """On a core, in a process that sees the GPU: two hosts on one GPU are one process."""

    def look(self, inbox: lab.Inbox) -> float:
        """Tensors a second, each summed up on the GPU."""
        inbox.take()
        start, count = time.perf_counter(), 0
        while batch := inbox.get(1):
            assert batch[0].is_cuda and float(batch[0][::1024].sum()) > 0
            count += 1
        return count / (time.perf_counter() - start)


class Ours:
    """A session of two processes for each way and size."""

    def __init__(self) -> None:
        self._steps: dict[Any, Callable[[int], float]] = {}

    def rate(self, count: int, mib: int = 16, way: str = "ipc") -> float:
        if (mib, way) not in self._steps:
            flow = lab.Workflow("tensors")
            channel = flow.channel("tensors", capacity=4)
            sender, receiver = flow.worker(Sender, name="sender"), flow.worker(Receiver, name="receiver")

            @flow.iteration
            def iteration(count: int) -> Any:
                sender.send(count, mib, channel)
                return receiver.look(channel)

            plan = lab.ExecutionPlan.spatial(flow, [GPU, "cpu:0"], {"sender": [0], "receiver": [1]})
            context = lab.session(flow, plan, executor="processes", between_gpus=way)
            self._steps[mib, way] = context.__enter__().step
            atexit.register(context.__exit__, None, None, None)
            self._steps[mib, way](5)
        return self._steps[mib, way](count)


class Policy:
    """A perceptron on the GPU that answers arrays of a simulator."""

    def setup(self) -> None:
        self.net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)).to(GPU)

    def answer(self, state: Any) -> Any:
        with torch.no_grad():
            return self.net(torch.from_numpy(np.array(state)).to(GPU)).cpu().numpy()


class PolicyWorker(Policy, lab.Worker):
    def act(self, observations: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in observations:
            for state in batch:
                actions.put(self.answer(state), key=self.rank)


class Asking(lab.Worker):
    def collect(self, count: int, actions: lab.Inbox, observations: lab.Outbox) -> float:
        state = np.ones((256, 64), np.float32)
        observations.put(state)
        actions.take(key=self.rank)
        start = time.perf_counter()
        for _ in range(count):
            observations.put(state)
            actions.take(key=self.rank)
        return count / (time.perf_counter() - start)


@cache
def asking() -> Callable[[int], float]:
    flow = lab.Workflow("asking")
    observations, actions = flow.channel("observations"), flow.channel("actions", keyed=True)
    simulator, policy = flow.worker(Asking, name="simulator"), flow.worker(PolicyWorker, name="policy")

    @flow.iteration
    def iteration(count: int) -> Any:
        rate = simulator.collect(count, actions, observations)
        policy.act(observations, actions)
        return rate

    context = lab.session(flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", GPU], {"simulator": [0], "policy": [1]}), executor="processes")
    step = context.__enter__().step
    atexit.register(context.__exit__, None, None, None)
    step(20)
    return step


class Peers:
    """Ray actors: tensors on the GPU as arguments of calls, and a policy that is called."""

    @cache  # noqa: B019
    def actors(self) -> Any:
        import ray

        ensure_ray(None)

        class Actor:
            def hear(self, tensor: Any) -> None:
                assert float(tensor[::1024].sum()) > 0

            def send(self, other: Any, count: int, mib: int) -> float:
                tensor = torch.ones(mib << 18, device=GPU)
                ray.get(other.hear.remote(tensor))
                start, waiting = time.perf_counter(), []
                for _ in range(count):
                    waiting.append(other.hear.remote(tensor))
                    if len(waiting) == 4:
                        ray.get(waiting.pop(0))
                ray.get(waiting)
                return count / (time.perf_counter() - start)

            def ask(self, policy: Any, count: int) -> float:
                state = np.ones((256, 64), np.float32)
                ray.get(policy.answer.remote(state))
                start = time.perf_counter()
                for _ in range(count):
                    ray.get(policy.answer.remote(state))
                return count / (time.perf_counter() - start)

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        part = ray.remote(num_cpus=0, num_gpus=0.3)
        policy = part(Policy).remote()
        ray.get(policy.setup.remote())
        return ray, part(Actor).remote(), part(Actor).remote(), policy

    def arguments(self, count: int, mib: int = 16) -> float:
        ray, a, b, _ = self.actors()
        return float(ray.get(a.send.remote(b, count, mib)))

    def in_one_process(self, count: int) -> float:
        policy, state = Policy(), np.ones((256, 64), np.float32)
        policy.setup()
        policy.answer(state)
        start = time.perf_counter()
        for _ in range(count):
            policy.answer(state)
        return count / (time.perf_counter() - start)

    def calls(self, count: int) -> float:
        ray, a, _, policy = self.actors()
        return float(ray.get(a.ask.remote(policy, count)))


# --- curves, predictions --------------------------------------------------------------------------------------------------
@cache
def sampler() -> Callable[[], list[tuple[str, float]]]:
    made = UtilisationSampler(Recorder())
    found = made._gpus()
    assert found(), made.gpu_problem
    return found


def sample() -> float:
    """Milliseconds of this thread's processor time for a look at load and memory of every GPU."""
    look, start = sampler(), time.thread_time()
    for _ in range(50):
        look()
    return (time.thread_time() - start) * 1e3 / 50


def plans_with_a_gpu(flow: lab.Workflow, cores: int) -> list[lab.ExecutionPlan]:
    """The simulator on the cores, two tokens a core; policy and learner on the GPU. Last: the policy beside the simulators instead."""
    names, on_cores = [*(f"cpu:{i}" for i in range(cores)), GPU], list(range(cores))
    on, tokens = {"simulator": on_cores, "policy": [cores], "learner": [cores]}, {"simulator": 2}
    return [
        lab.ExecutionPlan.spatial(flow, names, on, name="temporal", sub_batches=tokens, micro_batches={"obs": 2 * cores}),
        lab.ExecutionPlan.spatial(flow, names, on, sub_batches=tokens),
        lab.ExecutionPlan.spatial(flow, names, {**on, "policy": on_cores}, name="fused", sub_batches=tokens, fused=(("simulator", "policy"),)),
    ]


class Plans:
    """PPO on Meta-World, simulators on two cores, policy and learner on the GPU: the plans of the demo, foretold from a run under the first."""

    def __init__(self, smoke: bool) -> None:
        self._smoke = smoke

    @cache  # noqa: B019
    def get(self) -> list[tuple[str, float, float]]:
        """(plan, predicted, measured seconds of an iteration)."""
        flow = build(PPOConfig.preset("numpy/ReachArm-v0" if self._smoke else "metaworld/button-press-v3"))
        first, *others = plans_with_a_gpu(flow, 2)
        ((timeline, seconds), *ran), found = in_turn(flow, [first, *others], 1 if self._smoke else 8, "processes")
        estimate = lab.estimate(flow, first, timeline, **found)
        own = (first.name, estimate.iteration_seconds(first), seconds)
        return [own, *((p.name, estimate.iteration_seconds(p), measured) for p, (_, measured) in zip(others, ran, strict=True))]

    def error(self) -> float:
        return statistics.mean(abs(predicted / measured - 1) for _, predicted, measured in self.get())

    def table(self) -> list[list[float]]:
        return [[predicted, measured] for _, predicted, measured in self.get()]


def cases(smoke: bool) -> list[Case]:
    torch.set_num_threads(1)
    pair, ours, peers, plans = Pair(8 if smoke else 1024), Ours(), Peers(), Plans(smoke)
    count, trips = (5, 20) if smoke else (100, 1000)

    def switches() -> list[list[float]]:
        pairs = [(mib, Pair(mib)) for mib in ((4, 8) if smoke else (16, 64, 256, 1024, 4096))]
        return [[mib, min(p.switch() for _ in range(5)), min(p.copies() for _ in range(5))] for mib, p in pairs]

    def sizes() -> list[list[float]]:
        every = (1, 4) if smoke else (1, 4, 16, 64)
        return [[mib, ours.rate(count // 4 + 2, mib), ours.rate(count // 4 + 2, mib, "host"), peers.arguments(max(3, count // 4 // mib), mib)] for mib in every]

    return [
        Case("gpu_switch_1gib", "ms", pair.switch, {"two copies, page-locked": pair.copies, "cpu() and cuda()": pair.pageable}, "<= 1.5", runs=10,
             curve=switches, note="1 GiB out of a GPU and in; curve: MiB, ms of a switch, ms of two copies (best of five)"),
        Case("gpu_first_leave_1gib", "ms", pair.first, {"cpu()": pair.away}, note="the first leaving of 1 GiB, which page-locks as much host memory", runs=3),
        Case("gpu_transport_16mib", "tensors/s", lambda: ours.rate(count), {"Ray actor arguments": lambda: peers.arguments(count // 8 or 2),
             "through host memory": lambda: ours.rate(count // 4 or 2, way="host")}, ">= 1.5", curve=sizes,
             note="float32 on the GPU from process to process by CUDA IPC, each read there; curve: MiB, CUDA IPC, through host memory, arguments"),
        Case("gpu_ping_pong", "round trips/s", lambda: asking()(trips), {"actor calls": lambda: peers.calls(trips // 4),
             "calls in one process": lambda: peers.in_one_process(trips)},
             note="256 observations of 64 numbers to a policy on the GPU and its actions back, in two processes; what the GPU takes is part of both"),
        Case("gpu_sample", "ms", sample, target="<= 10", target_of="value", note="processor time of a look at the GPU by NVML, one a second"),
        Case("gpu_prediction", "mean |predicted / measured - 1|", plans.error, target="<= 0.05", target_of="value", runs=1, curve=plans.table,
             note="PPO on Meta-World, simulators on two cores, the rest on the GPU: temporal, spatial, fused; curve: predicted, measured seconds"),
    ]  # fmt: skip
