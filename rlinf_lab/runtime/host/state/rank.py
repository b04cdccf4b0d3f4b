"""One rank of a worker inside a host. It has its thread, its state, the calls that it has still to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.planning.engine.engine import Process as EngineProcess
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.threads.gate import Gate
from rlinf_lab.runtime.threads.lookout import Lookout
from rlinf_lab.runtime.transport.item_batches import Parcel, Piece
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.workflow.specs import CallSpec, Tags
from rlinf_lab.workflow.worker import Worker


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
    waits_for: str = ""  # "engine", "call", "value", "timer" or "" while it runs
    order: str = ""  # "onload" or "offload", to be carried out by this very thread while it waits
    ordering: bool = False  # carrying it out right now
    waits_outside: str = ""  # what it waits for meanwhile
    woken_outside: bool = False
    woken: bool = False
    error: BaseException | None = None  # raised in the thread when it wakes
    heard: BaseException | None = None  # in this call: the failure of one whose value it wanted
    goods: list[Any] | Packed | Parcel = field(default_factory=list)  # the items of its put
    count: int = 0  # of them
    tags: Tags | None = None  # of them
    pieces: list[Piece] = field(default_factory=list)  # what its get has been given
    streak: int = 0  # so many puts in a row had not to wait
    queue: Queue | None = None
    getting: bool = False
    first: int = -1  # sequence number of the first item of the last get or put
    bound_ns: int = 0  # when input or room was there
    bound_batch: int = -1
    # when it handed in what it waits for: under the mutex, so in the order in which the engine heard it
    asked_ns: int = 0
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
    own_stream: bool = False  # it has a share of that only, see `planning.plan.device`
    held: list[Any] = field(default_factory=list)  # items that its stream may still read
    thread: int = 0  # identity of the thread that runs the rank
    call: CallSpec | None = None
    blocked_at: str = ""  # what it waits for, in words, for status()
    event: int = -1  # what it has told the engine before it waited
    awaited: str = ""  # the rank whose value it waits for; "": nobody known
    advice: str = ""  # what would end that; see `planning.plan.wait_graph.Wait`
    # gets of queues on other hosts so far: an answer to an earlier one is not taken for that of the last
    asked: int = 0
    instance: Worker | None = None
    exchanges: int = 0  # of the present call so far
    together: int = 0  # see `Context.together`
    ports: list[Any] = field(default_factory=list)  # the ends of channels that its present call was given
    joining: bool = False  # it is being built while the run goes on
    leaving: bool = False
    # what its worker wants to do before it leaves, and for which place
    farewells: dict[Callable[[], None], int] = field(default_factory=dict)

    def let_go(self, held: list[Gate] | None) -> None:
        """Under the host's mutex: the thread need not wait at its gate any more. ``held``: whose gates are opened
        later; None: it is opened now.

        It may not have come to the gate yet: then it does not pass it, and the gate is still open at its next wait
        (which looks at ``parked`` again after passing).
        """
        self.parked = False
        if self.lookout is not None:
            self.lookout.ring()
        elif held is not None:
            held.append(self.gate)
        else:
            self.gate.open()

    def raise_if_interrupted(self) -> None:
        """By its own thread. A worker that catches it meets it again at its next wait, until its call has ended:
        nothing that it waits for will come."""
        if (error := self.error) is not None:
            if self.drives:  # the user's own loop, which may go on with something else
                self.error = None
            raise error

    @property
    def shares_gpu(self) -> bool:
        """Whether others may get its device when it waits at a channel. What it has given to a GPU is done before that.
        """
        return self.on_gpu and not self.machine.alone

    @property
    def label(self) -> str:
        return f"{self.worker}[{self.rank}]"


@dataclass(eq=False)
class FarReader(Process):
    """A rank of another host that reads queues of this one. It has no thread here, what it gets is sent to it."""

    host: str = ""
    there: int = -1  # its index at its own host
