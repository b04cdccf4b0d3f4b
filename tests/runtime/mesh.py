"""Several hosts in one process: the messages of a Ray run without Ray, with delays, so that races are met often and cheaply."""

from __future__ import annotations

import pickle
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.host.liveness.wait_graph import Wait
from rlinf_lab.runtime.machine.devices import torch_device
from rlinf_lab.runtime.session.session import Ended
from rlinf_lab.timeline.record.clock import MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.workflow.workflow import Workflow

NEWS_SECONDS = 0.002


class MeshExecutor:
    """See `session.Executor`. Messages are pickled and delivered in order by one thread for each receiving host.

    ``delay``: longest pause before a delivery, in seconds (drawn with ``seed``); ``slow_sending``: before a message is pickled.
    """

    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, delay: float = 0.0, seed: int = 0, slow_sending: float = 0.0,
        absent: Mapping[str, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        self.flow, self.layout = flow, checked_layout(flow.graph, plan, absent)
        self.before_sending: dict[str, Callable[[str, tuple], None]] = {}  # by host; what it raises is met by who sends
        self._rng, self._delay, self._slow_sending = random.Random(seed), delay, slow_sending
        clock = MonotonicClock()
        place = place_hosts(self.layout)
        self.recorders = {name: Recorder(name, clock) for name in sorted(set(place.values()))}
        self.hosts = {name: Host(name, self.layout, place, clock, r, self._sender(name)) for name, r in self.recorders.items()}
        self.driver_host = self.hosts["driver"]
        self._boxes: dict[str, queue.SimpleQueue[bytes | None]] = {name: queue.SimpleQueue() for name in self.hosts}
        self._threads = [threading.Thread(target=self._deliver, args=(name,), daemon=True) for name in self.hosts]
        self._over = threading.Event()
        self._threads.append(threading.Thread(target=self._news, daemon=True))

    def _sender(self, sender: str) -> Any:
        def send(to: str, message: tuple) -> None:
            if before := self.before_sending.get(sender):
                before(to, message)
            if self._slow_sending:
                time.sleep(self._rng.random() * self._slow_sending)
            self._boxes[to].put(pickle.dumps(message, protocol=5))

        return send

    def _deliver(self, name: str) -> None:
        while (data := self._boxes[name].get()) is not None:
            if self._delay:
                time.sleep(self._rng.random() * self._delay)
            self.hosts[name].receive(pickle.loads(data))
            self.hosts[name].flush()

    def _news(self) -> None:
        while not self._over.wait(NEWS_SECONDS):
            for name, host in self.hosts.items():
                if name != "driver":
                    self.driver_host.hear_news(name, host.is_quiet())

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        for host in self.hosts.values():
            host.start(self.flow.workers, torch_device)  # each knows them all, as under the executors

    def stop(self) -> Ended:
        ended = Ended()
        for host in self.hosts.values():
            ended.late += host.stop()
        self._over.set()
        for box in self._boxes.values():
            box.put(None)
        return ended

    @property
    def news(self) -> MeshExecutor:
        return self

    def drain(self) -> list[Any]:
        return [r.drain() for r in self.recorders.values()]

    def waits(self) -> list[Wait]:
        return [wait for host in self.hosts.values() for wait in host.waits()]

    def transports(self) -> list[dict[str, Any]]:
        return [row for host in self.hosts.values() for row in host.transports()]

    def channels(self) -> list[dict[str, Any]]:
        return [row for host in self.hosts.values() for row in host.statistics()]
