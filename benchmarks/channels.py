"""Channels between processes of a node, on Ray: small items one by one, round trips, 16 MiB arrays; against Ray's own ways."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Case

import rlinf_lab as lab

DEVICES = ["cpu:0", "cpu:1"]
BATCH = 512


def block(mib: int, tensors: bool) -> Any:
    """So much of float32, as a numpy array or a torch tensor."""
    if not tensors:
        return np.ones(mib << 18, np.float32)
    import torch

    return torch.ones(mib << 18)


class Sender(lab.Worker):
    def numbers(self, count: int, out: lab.Outbox) -> None:
        for i in range(count):
            out.put(i)

    def batched(self, count: int, out: lab.Outbox) -> None:
        out.put_all(range(count))

    def arrays(self, count: int, mib: int, tensors: bool, out: lab.Outbox) -> None:
        array = block(mib, tensors)
        for _ in range(count):
            out.put(array)

    def serve(self, count: int, replies: lab.Inbox, out: lab.Outbox) -> float:
        out.put(0)
        replies.take()  # warm
        start = time.perf_counter()
        for i in range(count):
            out.put(i)
            replies.take()
        return count / (time.perf_counter() - start)


class Receiver(lab.Worker):
    def count(self, inbox: lab.Inbox) -> float:
        """Items a second, from the first to the last, taken one by one."""
        inbox.take()
        start, count = time.perf_counter(), 0
        while inbox.get(1):
            count += 1
        return count / (time.perf_counter() - start)

    def count_batches(self, inbox: lab.Inbox) -> float:
        """Items a second, taken in the batches of the plan."""
        count, start = -len(inbox.get()), time.perf_counter()
        for batch in inbox:
            count += len(batch)
        return (count + BATCH) / (time.perf_counter() - start)

    def look(self, inbox: lab.Inbox) -> float:
        """Arrays a second; an element of each page is read."""
        inbox.take()
        start, count = time.perf_counter(), 0
        while batch := inbox.get(1):
            assert batch[0][::1024].sum() > 0
            count += 1
        return count / (time.perf_counter() - start)

    def echo(self, inbox: lab.Inbox, replies: lab.Outbox) -> None:
        for batch in inbox:
            for item in batch:
                replies.put(item)


def flow(kind: str) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    made = lab.Workflow(kind)
    forth = made.channel("forth", capacity={"arrays": 4, "tensors": 4, "batched": 8 * BATCH}.get(kind, 1024))
    sender, receiver = made.worker(Sender, name="sender"), made.worker(Receiver, name="receiver")
    if kind == "round trips":
        back = made.channel("back")

        @made.iteration
        def iteration(count: int) -> Any:
            receiver.echo(forth, back)
            return sender.serve(count, back, forth)

    else:

        @made.iteration
        def iteration(count: int) -> Any:
            if kind == "numbers":
                sender.numbers(count, forth)
                return receiver.count(forth)
            if kind == "batched":
                sender.batched(count, forth)
                return receiver.count_batches(forth)
            sender.arrays(count, 16, kind == "tensors", forth)
            return receiver.look(forth)

    micro_batches = dict.fromkeys(made.graph.channels_by_name(), BATCH if kind == "batched" else 1)
    return made, lab.ExecutionPlan.spatial(made, DEVICES, {"sender": [0], "receiver": [1]}, micro_batches=micro_batches)


class Simulator(lab.Worker):
    """Environments in numpy: 256 of them, a step takes about half a millisecond."""

    def __init__(self) -> None:
        self.state = np.ones((256, 64), np.float32)
        self.matrix = np.eye(64, dtype=np.float32) * 0.99

    def step(self, action: Any) -> Any:
        for _ in range(4):
            self.state = np.tanh(self.state @ self.matrix + action)
        return self.state

    def collect(self, steps: int, actions: lab.Inbox, observations: lab.Outbox) -> float:
        observations.put(self.state)
        actions.take(key=self.rank)
        start = time.perf_counter()
        for _ in range(steps):
            observations.put(self.state)
            self.step(actions.take(key=self.rank))
        return steps / (time.perf_counter() - start)


class Policy(lab.Worker):
    """A perceptron with two layers of 256."""

    def __init__(self) -> None:
        self.layers = [np.ones((n, m), np.float32) / n for n, m in ((64, 256), (256, 256), (256, 64))]

    def answer(self, state: Any) -> Any:
        for layer in self.layers:
            state = np.tanh(state @ layer)
        return state

    def act(self, observations: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in observations:
            for state in batch:
                actions.put(self.answer(state), key=self.rank)


class Fused:
    """Simulator and policy on one device, in one process, against calling one after the other."""

    def __init__(self) -> None:
        made = lab.Workflow("fused")
        obs, act = made.channel("obs"), made.channel("act", keyed=True)
        simulator, policy = made.worker(Simulator, name="simulator"), made.worker(Policy, name="policy")

        @made.iteration
        def iteration(steps: int) -> Any:
            rate = simulator.collect(steps, act, obs)
            policy.act(obs, act)
            return rate

        self._flow = made

    def rate(self, steps: int) -> float:
        with lab.session(self._flow, lab.ExecutionPlan.fused_cells(self._flow, DEVICES[:1], {"simulator": 1})) as session:
            session.step(10)
            return float(session.step(steps))

    def plain(self, steps: int) -> float:
        simulator, policy = Simulator(), Policy()
        start = time.perf_counter()
        for _ in range(steps):
            simulator.step(policy.answer(simulator.state))
        return steps / (time.perf_counter() - start)


class Ours:
    """A session on Ray for each kind of traffic, opened at the first measurement."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}
        self._steps: dict[str, Any] = {}

    def rate(self, kind: str, count: int) -> float:
        if kind not in self._open:
            self._open[kind] = lab.session(*flow(kind), executor="ray")
            self._steps[kind] = self._open[kind].__enter__().step
            if len(self._open) == 1:
                atexit.register(self.close)  # before Ray's own end, which was registered when it was imported
            self._steps[kind](10)
        return self._steps[kind](count)

    def close(self) -> None:
        for context in self._open.values():
            context.__exit__(None, None, None)


class Peers:
    """Two Ray actors that use Ray's queue, or call each other."""

    def __init__(self) -> None:
        self._ready = False

    def _start(self) -> None:
        import ray
        from ray.util.queue import Queue

        from rlinf_lab.runtime.executors.ray_start import ensure_ray

        ensure_ray(None)
        ray.cloudpickle.register_pickle_by_value(sys.modules[block.__module__])  # actors know nothing of this folder

        class Actor:
            def put(self, queue: Any, count: int, mib: int, tensors: bool) -> None:
                item = block(mib, tensors) if mib else 1
                for _ in range(count):
                    queue.put(item)

            def get(self, queue: Any, count: int) -> float:
                queue.get()
                start = time.perf_counter()
                for _ in range(count - 1):
                    item = queue.get()
                    if not isinstance(item, int):
                        item[::1024].sum()
                return (count - 1) / (time.perf_counter() - start)

            def echo(self, x: Any) -> Any:
                if not isinstance(x, int):
                    x[::1024].sum()
                    return None
                return x

            def round_trips(self, simulator: Any, policy: Any, count: int) -> float:
                start = time.perf_counter()
                x = 0
                for _ in range(count):
                    x = ray.get(policy.echo.remote(ray.get(simulator.echo.remote(x))))
                return count / (time.perf_counter() - start)

            def send(self, other: Any, count: int, mib: int, tensors: bool) -> float:
                array = block(mib, tensors)
                ray.get(other.echo.remote(array))
                start = time.perf_counter()
                waiting: list[Any] = []
                for _ in range(count):
                    waiting.append(other.echo.remote(array))
                    if len(waiting) == 4:
                        ray.get(waiting.pop(0))
                ray.get(waiting)
                return count / (time.perf_counter() - start)

        cls = ray.remote(num_cpus=0)(Actor)
        self._ray, self._queue = ray, Queue
        self._a, self._b, self._c = cls.remote(), cls.remote(), cls.remote()
        self._ready = True

    def queue(self, count: int, mib: int = 0, tensors: bool = False) -> float:
        if not self._ready:
            self._start()
        queue = self._queue(maxsize=4 if mib else 1024)
        putting = self._a.put.remote(queue, count, mib, tensors)
        rate = self._ray.get(self._b.get.remote(queue, count))
        self._ray.get(putting)
        queue.shutdown()
        return rate

    def actor_calls(self, count: int) -> float:
        if not self._ready:
            self._start()
        return self._ray.get(self._c.round_trips.remote(self._a, self._b, count))

    def arguments(self, count: int, tensors: bool = False) -> float:
        if not self._ready:
            self._start()
        return self._ray.get(self._a.send.remote(self._b, count, 16, tensors))


def cases(smoke: bool) -> list[Case]:
    ours, peers, fused = Ours(), Peers(), Fused()
    small, slow, trips, large = (200, 20, 20, 4) if smoke else (100_000, 500, 300, 60)
    rate: Callable[[str, int], Callable[[], float]] = lambda kind, n: lambda: ours.rate(kind, n)  # noqa: E731
    return [
        Case("fused_cell", "steps/s", lambda: fused.rate(20 * trips), {"plain calls": lambda: fused.plain(20 * trips)}, ">= 0.83",
             note="simulator and policy in numpy, in one process; measured before Ray is started"),
        Case("channel_small_items", "items/s", rate("numbers", small), {"ray.util.queue": lambda: peers.queue(slow)}, ">= 100",
             note="integers put and taken one by one between two processes"),
        Case("channel_batched", "items/s", rate("batched", 20 * small), {"ray.util.queue": lambda: peers.queue(slow)}, ">= 1000",
             note="integers put together and taken in batches of 512 between two processes"),
        Case("ping_pong", "round trips/s", rate("round trips", trips * (1 if smoke else 30)), {"two actor calls": lambda: peers.actor_calls(trips)}, ">= 15",
             note="simulator and policy in two processes"),
        Case("transport_16mib", "arrays/s", rate("arrays", large), {"actor arguments": lambda: peers.arguments(large // 2 or 2)}, ">= 1.5",
             note="float32 arrays, an element of each page read"),
        Case("transport_16mib_queue", "arrays/s", rate("arrays", large), {"ray.util.queue": lambda: peers.queue(large // 4 + 2, 16)}, ">= 5"),
        Case("transport_16mib_tensors", "tensors/s", rate("tensors", large), {"actor arguments": lambda: peers.arguments(large // 2 or 2, True)},
             ">= 1.5", note="the same as torch tensors"),
        Case("transport_16mib_tensors_queue", "tensors/s", rate("tensors", large), {"ray.util.queue": lambda: peers.queue(large // 4 + 2, 16, True)}, ">= 5"),
    ]  # fmt: skip
