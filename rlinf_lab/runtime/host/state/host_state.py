"""What one host knows, in one place. Its parts are given this, and of each other what they may ask (`parts`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.engine.engine import Engine
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host.state.messages import Failure
from rlinf_lab.runtime.host.state.queues import QueueTable
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.state.values import ValueTable
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.runtime.transport.routing import Router
from rlinf_lab.runtime.transport.traffic import Traffic
from rlinf_lab.timeline.record.clock import Clock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.workflow.declaration import Declaration
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec


@dataclass(eq=False)
class HostState:
    """Of one host. Read and written under ``mutex``, except where a field says otherwise."""

    name: str
    "Of the host. Never written again, as the next eight."
    layout: Layout
    "Of the plan: which ranks, queues and devices there are."
    place: dict[tuple[str, int], str]
    "The host of every (worker, rank)."
    clock: Clock
    "What time it is; by any thread."
    recorder: Recorder
    "Spans and names; by any thread."
    engine: Engine
    "Who may go on. Its state is changed by the scheduler's `apply`, and by parts that open or close streams."
    check_items: bool = False
    "Whether items that stay in this process are compared with what they were at their put."
    mutex: threading.RLock = field(default_factory=threading.RLock)
    "Guards all this. User code never runs under it, and nothing is sent under it."
    ready: threading.Condition = field(default_factory=threading.Condition)
    "Guards ``built`` and ``stays_until``; notified when they change, and when the host stops or hears of a death."

    address: str = "127.0.0.1"
    "Of this node, for other nodes: the executor, before the start."
    declarations: dict[str, Declaration] = field(default_factory=dict)
    "Of all workers: `Host.start`, once."
    processes: list[Process] = field(default_factory=list)
    "By the engine's numbers, readers of other hosts too: `add_rank` and `FarReaders` append."
    members: dict[tuple[str, int], Process] = field(default_factory=dict)
    "The ranks that live here, also the driver's loop: `add_rank`."
    running: int = 0
    "How many threads could still cause an event: the scheduler."
    given_up: dict[int, BaseException] = field(default_factory=dict)
    "Iterations that are, and why: `Calls.cancel` adds, `Host.retire` forgets."
    dead: set[str] = field(default_factory=set)
    "Hosts: who hears of a death (`liveness.failures`, the loop)."
    stopping: bool = False
    "The host ends: `Ranks.stop`, once. Also read without the mutex."
    built: int = 0
    "How many ranks were set up, under ``ready``: `Ranks`."
    threads: list[threading.Thread] = field(default_factory=list)
    "Of ranks and of `CutOff`, which `Ranks.stop` waits for."
    failure: Failure | None = None
    "The first one here: whoever meets it (`Post.fail`)."
    ended_with: Callable[[str], str] = lambda _host: ""
    "How the process of a host ended, in words: an executor of processes, at the driver's host."
    errors: list[WorkerError] = field(default_factory=list)
    "What the workers' own ``close`` raised: their own threads."

    def __post_init__(self) -> None:
        self.mock = self.clock if isinstance(self.clock, MockClock) else None
        self.alone = set(self.place.values()) == {self.name}
        self.driver = self.place[DRIVER, 0]
        self.is_driver = self.driver == self.name
        self.router = Router(self.layout, self.place, self.name)
        self.queues = QueueTable(self.layout, self.engine, self.router, self.name)
        self.values = ValueTable()
        self.traffic = Traffic(self.name, self.recorder, self.clock)

    @property
    def ranks(self) -> list[Process]:
        """Those that live here, also the driver's loop."""
        return list(self.members.values())

    def add_rank(self, worker: str, rank: int) -> None:
        """Before the start."""
        names = self.layout.device_names(worker, rank)
        index = self.layout.add_process(self.engine, worker, rank)
        track = self.recorder.track(worker, rank, names)
        process = Process(worker, rank, index, track, self.engine.processes[index], drives=worker == DRIVER)
        self.processes.append(process)
        self.members[worker, rank] = process

    def is_over(self, iteration: int) -> bool:
        """Whether a message about it comes too late to matter."""
        return iteration in self.given_up or self.queues.is_retired(iteration)

    def is_streamed(self, call: CallSpec) -> bool:
        """Whether its ranks take items one by one from one channel that they share. Any of them may do the rest."""
        reads, layout = call.channels(READ), self.layout
        if len(reads) != 1 or call.refs():
            return False
        spec = layout.graph.channel(reads[0])
        shared = not any(layout.sharded(c) for c in (*reads, *call.channels(WRITE)))
        return not spec.keyed and not spec.whole and shared

    def who_lives_at(self, host: str) -> str:
        """For people: the host and its ranks."""
        return f"{host!r} ({', '.join(f'{w}[{r}]' for (w, r), h in self.place.items() if h == host)})"
