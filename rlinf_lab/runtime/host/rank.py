"""One rank of a worker inside a host: its thread, its state, the calls it has still to do, and what it may tell the run."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.planning.engine.engine import Process as EngineProcess
from rlinf_lab.runtime.host.elastic.exchange import collect, discard, exchange, leave_behind, place_of
from rlinf_lab.runtime.threads.gate import Gate
from rlinf_lab.runtime.threads.lookout import Lookout
from rlinf_lab.runtime.transport.item_batches import Piece
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.specs import CallSpec, Tags
from rlinf_lab.workflow.worker import Context, Worker

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.channels.queues import Queue
    from rlinf_lab.runtime.host.host import Host


@dataclass
class Filled:
    """What one rank of a filler has done so far. ``result``: what its latest step returned; ``error``: why it has ended, if it failed."""

    name: str
    rank: int
    device: str
    steps: int = 0
    seconds: float = 0.0
    result: Any = None
    is_done: bool = False  # it has no more to do, or has failed
    error: WorkerError | None = None

    def __str__(self) -> str:
        state = "goes on" if not self.is_done else "done" if self.error is None else f"failed: {str(self.error).splitlines()[0]}"
        return f"{self.name}[{self.rank}] on {self.device}: {self.steps} steps, {self.seconds:.3g} s, {state}"


@dataclass(eq=False)
class Process:
    """State of one rank. Everything but ``gate`` is written under the host's mutex or by the rank's own thread."""

    worker: str
    rank: int
    index: int  # in the engine
    track: int  # in the recorder
    machine: EngineProcess  # itself, in the engine
    calls: deque[CallSpec] = field(default_factory=deque)
    gate: Gate = field(default_factory=Gate)
    parked: bool = False  # the thread waits at its gate
    left_at_once: bool = False  # it has left its device when it was built
    stays_until: int = 0  # so many ranks are set up: then it leaves; it shares memory with one of them
    lookout: Lookout | None = None  # or here: it listens to the links meanwhile
    waits_for: str = ""  # "engine", "call", "value", "timer", "gap" or "" while it runs
    counts: int = 1  # in the scheduler's count of running threads: not those of fillers, while time is real
    order: str = ""  # "onload" or "offload", to be carried out by this very thread while it waits
    ordering: bool = False  # carrying it out right now
    waits_outside: str = ""  # what it waits for meanwhile
    woken_outside: bool = False
    woken: bool = False
    error: BaseException | None = None  # raised in the thread when it wakes
    heard: BaseException | None = None  # in this call: the failure of one whose value it wanted
    goods: list[Any] | Packed = field(default_factory=list)  # the items of its put
    count: int = 0  # of them
    tags: Tags | None = None  # of them
    pieces: list[Piece] = field(default_factory=list)  # what its get has been given
    streak: int = 0  # so many puts in a row had not to wait
    queue: Queue | None = None
    getting: bool = False
    first: int = -1  # sequence number of the first item of the last get or put
    bound_ns: int = 0  # when input or room was there
    bound_batch: int = -1
    asked_ns: int = 0  # when it handed in what it waits for: under the mutex, so in the order in which the engine heard it
    waited: bool = False  # and whether its thread then had to wait
    lock_from: int = 0
    lock_waited: bool = False
    since: int = 0  # start of the running stretch
    on_device: bool = False
    drives: bool = False  # it is the user's loop
    far: bool = False  # it lives on another host
    method: int = -1  # number of the name of its call, in the recorder
    device: str = ""  # what torch calls its first device
    on_gpu: bool = False  # whether that is one
    thread: int = 0  # identity of the thread that runs the rank
    call: CallSpec | None = None
    blocked_at: str = ""  # what it waits for, in words, for status()
    event: int = -1  # what it has told the engine before it waited
    awaited: str = ""  # the rank whose value it waits for; "": nobody known
    advice: str = ""  # what would end that; see `planning.plan.wait_graph.Wait`
    asked: int = 0  # gets of queues on other hosts so far: an answer to an earlier one is not taken for that of the last
    instance: Worker | None = None
    exchanges: int = 0  # of the present call so far
    together: int = 0  # see `Context.together`
    ports: list[Any] = field(default_factory=list)  # the ends of channels that its present call was given
    filled: Filled | None = None  # it is a filler's
    joining: bool = False  # it is being built while the run goes on
    leaving: bool = False
    farewells: dict[Callable[[], None], int] = field(default_factory=dict)  # what its worker wants to do before it leaves, and for which place

    def let_go(self, held: list[Gate] | None) -> None:
        """Under the host's mutex: the thread need not wait at its gate any more. ``held``: whose gates are opened later; None: it is opened now.

        It may not have come to the gate yet: then it does not pass it, and the gate is still open at its next wait (which looks
        at ``parked`` again after passing).
        """
        self.parked = False
        if self.lookout is not None:
            self.lookout.ring()
        elif held is not None:
            held.append(self.gate)
        else:
            self.gate.open()

    @property
    def shares_gpu(self) -> bool:
        """Whether others may get its device when it waits at a channel: what it has given to a GPU is done before that."""
        return self.on_gpu and not self.machine.alone

    @property
    def label(self) -> str:
        return f"{self.worker}[{self.rank}]"


@dataclass(eq=False)
class FarReader(Process):
    """A rank of another host that reads queues of this one: it has no thread here, what it gets is sent to it."""

    host: str = ""
    there: int = -1  # its index at its own host


@dataclass(slots=True)
class Frame:
    """A picture of the environments: uint8, H×W×3."""

    source: str
    image: Any


def picture(image: Any, source: str) -> Any:
    """``image`` as uint8, H×W×3: grey is repeated, alpha is dropped. `WorkflowError` for anything else."""
    array = np.asarray(image.cpu() if hasattr(image, "cpu") else image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype != np.uint8 or array.size == 0:
        raise WorkflowError(
            f"{source}: frame() got an array of shape {array.shape} and type {array.dtype}. Next: give one picture, H×W×3, uint8 from 0 to 255."
        )
    return np.ascontiguousarray(np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[:, :, :3])


class PictureBudget:
    """When a rank may draw the next picture: at most twice a second, and in at most one hundredth of its time.

    In software a picture takes 10 to 100 ms. The first is not counted: it includes creating the renderer.
    """

    PERIOD_NS, SHARE = 500_000_000, 100

    def __init__(self) -> None:
        self._asked = self._due = 0
        self._first = True

    def wanted(self, now_ns: int) -> bool:
        if now_ns < self._due:
            return False
        self._asked, self._due = now_ns, now_ns + self.PERIOD_NS
        return True

    def drawn(self, now_ns: int) -> None:
        if not self._first:
            self._due = max(self._due, now_ns + self.SHARE * (now_ns - self._asked))
        self._first = False


class HostContext(Context):
    """What a worker sees of the runtime (`Worker` forwards to it)."""

    def __init__(self, host: Host, process: Process, ranks: int, device: str, sub_batches: int) -> None:
        self._host = host
        self._process = process
        self.name = process.worker
        self.rank = process.rank
        self.ranks = self._all_ranks = ranks
        self.iteration = -1  # in no call
        self.device, self.address = device, host.address
        self.sub_batches = sub_batches
        self.logs_to = 0  # the iteration of the latest call; what setup logs belongs to the first one
        self._pictures = PictureBudget()

    @property
    def together(self) -> int:
        return self._process.together

    @together.setter
    def together(self, blocks: int) -> None:
        self._process.together = blocks

    @contextlib.contextmanager
    def during(self, call: CallSpec) -> Iterator[None]:
        """What the worker sees while it is in a call."""
        self.iteration = self.logs_to = call.iteration
        self.ranks, self.members = len(call.ranks) or self._all_ranks, call.ranks
        yield
        self.iteration, self.ranks, self.members = -1, self._all_ranks, ()

    @contextlib.contextmanager
    def span(self, label: str) -> Iterator[None]:
        host = self._host
        name, start = host.recorder.name(label), host.clock.now_ns()
        try:
            yield
        finally:
            host.recorder.add(self._process.track, SpanKind.LABEL, name, start, host.clock.now_ns(), self.iteration)

    def log(self, metrics: dict[str, float]) -> None:
        self._host.report_metrics(self._process, self.logs_to, metrics)

    def frame(self, image: Any) -> None:
        self._pictures.drawn(self._host.clock.now_ns())
        self._host.report_frame(Frame(self._process.label, picture(image, self._process.label)))

    def wants_frame(self) -> bool:
        return self._pictures.wanted(self._host.clock.now_ns())

    def compute(self, seconds: float) -> None:
        self._host.sleep(self._process, round(seconds * 1e9))

    def exchange(self, value: Any) -> list[Any]:
        return exchange(self._host, self._process, value, keeps_device=self._process.together > 0)

    def on_leaving(self, farewell: Callable[[], None]) -> int:
        place = self._process.farewells[farewell] = place_of(self._process)
        return place

    def take_back(self, farewell: Callable[[], None]) -> None:
        self._process.farewells.pop(farewell, None)

    def leave_behind(self, place: int, value: Any) -> None:
        leave_behind(self._host, self._process, place, value)

    def discard(self, place: int, rank: int) -> None:
        discard(self._host, self._process, place, rank)

    def collect(self, place: int, rank: int) -> Any:
        return collect(self._host, self._process, place, rank)

    def cancelled(self) -> bool:
        return self._process.error is not None or self._host.stopping
