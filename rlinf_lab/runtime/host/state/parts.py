"""What the parts of a host may ask of each other. They are the way out, the threads of ranks, the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rlinf_lab.runtime.host.state.messages import Failure, Message
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.state.spans import SpanWriter

Event = tuple[int, int, int, int]
M = TypeVar("M", bound=Message)


class Post(Protocol):
    """Messages out of this host, what is done about others, what the driver's hears. Under the mutex, not `flush`."""

    def on(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Register what is done about messages of this kind, under the mutex."""

    def say(self, host: str, message: Message, urgent: bool = False) -> None:
        """Decide to send a message to another host; `flush` does it. ``urgent``: before what is still unsent."""

    def tell(self, host: str, message: Message, urgent: bool = False) -> None:
        """The same, also to this host: then it is done at once."""

    def flush(self) -> None:
        """Send what has been decided, in that order. Called without the mutex: a full socket blocks only the sender."""

    def flush_soon(self) -> None:
        """Have a thread of the host send it, for those who go on putting. What comes until then goes with it."""

    def tell_driver(self, message: Message, urgent: bool = False) -> None:
        """Under the mutex; at the driver's own host it is done at once."""

    def report(self, error: Failure) -> None:
        """Something went wrong here that is no call's own error: the driver fails the iteration. The caller flushes."""

    def fail(self, error: Failure) -> None:
        """Remember the first failure of this host. At the driver's the loop gives up what is going on."""

    def remark(self, about: str, text: str, at_once: bool = False) -> None:
        """Under the mutex: for the user, once; see `driver.loop.Loop.remark`."""


class RankControl(Protocol):
    """The threads of ranks. Under the mutex, but for `post` and `park`, which a rank's own thread calls without it."""

    @property
    def spans(self) -> SpanWriter: ...

    def post(self, process: Process, kind: int, channel: int, n: int, what: str) -> None:
        """Report an event to the engine, and wait until that lets the thread go on. ``what``: in words."""

    def block(self, process: Process, why: str, what: str, event: Event | None = None) -> None:
        """From now on this thread causes nothing until it is woken. It may be woken within. `park` follows."""

    def park(self, process: Process, timeout: float | None = None) -> None:
        """Wait at its gate, carrying out orders meanwhile. `TimeoutError` after so many seconds."""

    def wake(self, process: Process, timer: bool = False) -> None:
        """Let it go on."""

    def let_go(self, process: Process) -> None:
        """Open its gate, for an order that it carries out while it waits."""

    def interrupt(self, process: Process, error: BaseException) -> None:
        """Have a waiting thread raise this; one that computes raises it at its next channel."""

    def report(self, event: Event | None) -> None:
        """Tell the engine, now or when this instant settles."""

    def apply(self, instructions: Sequence[Event]) -> None:
        """Carry out what the engine said."""

    def bind(self, process: Process) -> None:
        """What it waits for has come from elsewhere, by itself."""

    def begins(self, threads: int = 1) -> None:
        """So many threads more could cause an event."""

    def ends(self, threads: int = 1) -> None:
        """So many fewer; nobody looks whether that was the last one (`settle`)."""

    def settle(self) -> None:
        """Where no thread runs: settle this instant, move mock time, or find that nothing moves."""


class Items(Protocol):
    """What the engine's instructions do to the items of channels; all under the mutex. See `channels.ends`."""

    def store(self, process: Process, first: int) -> None:
        """The items of its put enter the channel, from this sequence number on."""

    def hand_over(self, process: Process, lo: int, hi: int) -> None:
        """It gets the items [lo, hi) of its channel."""

    def divide(self, channel: int, count: int) -> None:
        """What is there of a channel becomes the shares of so many ranks."""

    def extend(self, channel: int, n: int) -> None:
        """Blocked producers of other hosts may send n items more."""

    def put_waits(self, queue: Queue) -> None:
        """A put into a channel that lives on another host waits for room."""

    def ask(self, process: Process, queue: Queue, wanted: int) -> None:
        """A get of a channel that lives on another host."""

    def answer(self, reader: Process) -> None:
        """A rank of another host has got what it asked for."""
