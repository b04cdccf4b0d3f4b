"""What hosts say to each other: one frozen dataclass for each kind. Who registers a handler says what follows.

On the wire a message is a tuple, its kind and its fields, which pickles in a third of the time; `encoded`, `decoded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, dataclass_transform

from rlinf_lab.errors import DeadlockError, ExecutorError, WorkerError
from rlinf_lab.planning.plan.wait_graph import Wait
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId, StreamId
from rlinf_lab.runtime.transport.traffic import Transit
from rlinf_lab.workflow.specs import CallSpec, Tags

Failure = WorkerError | DeadlockError | ExecutorError


class Message:
    """Base of all. ``counted``: the deadlock watch counts it as said and heard, which its own are not."""

    __slots__ = ()
    kind: ClassVar[str]
    counted: ClassVar[bool] = True


_KINDS: dict[str, type[Message]] = {}
_FIELDS: dict[type[Message], Callable[[Message], tuple]] = {}
M = TypeVar("M", bound="type[Message]")


@dataclass_transform(frozen_default=True)
def message(kind: str, counted: bool = True) -> Callable[[M], M]:
    """Make a class a frozen dataclass, known by ``kind`` on the wire."""

    def made(cls: M) -> M:
        return _known(cast(M, dataclass(frozen=True, slots=True)(cls)), kind, counted)

    return made


def _known(cls: M, kind: str, counted: bool = True) -> M:
    cls.kind, cls.counted, _KINDS[kind] = kind, counted, cls
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    found: Any = attrgetter(*names) if names else lambda _: ()
    _FIELDS[cls] = found if len(names) != 1 else lambda message: (found(message),)
    return cls


def encoded(message: Message) -> tuple:
    """As it travels."""
    return (message.kind, *_FIELDS[type(message)](message))


def decoded(parts: tuple) -> Message:
    """What `encoded` has made."""
    return _KINDS[parts[0]](*parts[1:])


# --- parts of messages -----------------------------------------------------------------------------------------
class Question(NamedTuple):
    """Which version of weights a call has: one answer for all its ranks."""

    call_id: int
    name: str
    at_least: int


class Pulse(NamedTuple):
    """One host at one moment. ``said``, ``heard``: counted messages."""

    quiet: bool
    said: int
    heard: int


class Meeting(NamedTuple):
    """A meeting, and who is to come. ``key``: the exchange, as `elastic.exchange` numbers it."""

    worker: str
    ranks: tuple[int, ...]
    key: int
    iteration: int


@dataclass(slots=True)
class Moved:
    """How many items have passed one end of a channel in a call.

    ``asked``: whether a reading end was asked for any. ``left_off``: the call ended for nobody reads what it writes:
    what it would have read is not wanted.
    """

    channel: str
    reads: bool
    items: int = 0
    asked: bool = False
    left_off: bool = False


def moved(ports: Iterable[Any]) -> tuple[Moved, ...]:
    """What has passed these ends, which nobody uses any more."""
    return tuple(port.moved for port in ports)


# --- items: between the host of a producer or reader and the home of the queue -------------------------------------
@dataclass(frozen=True, init=False, eq=False, repr=False)
class Put(Message):
    """Items of one put. By hand, for there is one for each item: made in half the time."""

    name: QueueId
    count: int
    items: Packed
    origin: str
    tags: Tags | None
    transit: Transit | None = None

    def __init__(
        self, name: QueueId, count: int, items: Packed, origin: str, tags: Tags | None, transit: Transit | None = None
    ) -> None:
        own = self.__dict__
        own["name"], own["count"], own["items"], own["origin"] = name, count, items, origin
        own["tags"], own["transit"] = tags, transit

    def sent(self) -> tuple:
        """As it travels: how it has come is known to who hears it."""
        return "put", self.name, self.count, self.items, self.origin, self.tags


_known(Put, "put")
_FIELDS[Put] = lambda message: cast(Put, message).sent()[1:]


@message("puts")
class Puts(Message):
    """Several puts, one after another."""

    name: QueueId
    counts: Sequence[int]
    packets: Sequence[bytes]
    origin: str
    transit: Transit


@message("credit")
class Credit(Message):
    """Room for so many items more, from the home to a producer's host. It follows what a consumer took."""

    name: QueueId
    n: int


@message("stall")
class Stall(Message):
    """A producer waits for room. ``received``: the credit that has come so far."""

    name: QueueId
    origin: str
    received: int


@message("close")
class Close(Message):
    """One producer puts no more."""

    stream: StreamId


@message("get")
class Get(Message):
    """A rank of ``origin`` (its ``index`` there) wants items; ``asked``: how often it has."""

    name: QueueId
    origin: str
    index: int
    asked: int
    wanted: int
    part: tuple[int, ...]


@message("got")
class Got(Message):
    """The answer; no parts at the end of the stream."""

    name: QueueId
    index: int
    asked: int
    first: int
    parts: list[tuple[int, Any]]


# --- values and weights ------------------------------------------------------------------------------------------
@message("want")
class Want(Message):
    """The result of a call, once for each host that needs it."""

    call_id: int
    rank: int
    iteration: int
    asker: str


@message("value")
class ValueOf(Message):
    """The answer."""

    call_id: int
    rank: int
    iteration: int
    value: Any
    error: BaseException | None


@message("collected")
class Collected(Message):
    """What a rank has left behind was taken."""

    place: int
    rank: int


@message("published")
class Announced(Message):
    """There is a new version of weights; through the driver to everyone."""

    name: str
    version: int
    owner: str
    home: str
    iteration: int


@message("pull")
class Pull(Message):
    """A host wants a version. Or asks whether the one that it got is whole."""

    name: str
    version: int
    asker: str
    is_seal: bool = False


@message("lacks")
class Lacks(Message):
    """A rank waits for a version that nobody has published; see `weights.unpublished`. ``who``: call, worker, rank."""

    who: tuple[int, str, int]
    name: str
    version: int
    iteration: int
    host: str


@message("never_comes")
class NeverComes(Message):
    """The answer, where nobody will."""

    who: tuple[int, str, int]
    name: str
    version: int


@message("weights")
class WeightsState(Message):
    """The answer."""

    name: str
    version: int
    state: Any


@message("fix")
class Fix(Message):
    """Which version has a call? To the host of rank 0; see `weights.versions`."""

    question: Question
    iteration: int
    known: int
    asker: str


@message("fixed")
class Fixed(Message):
    """The answer."""

    question: Question
    version: int


@message("pin")
class Pin(Message):
    """To where the weights lie: keep this version for a call."""

    question: Question
    iteration: int
    version: int
    asker: str


@message("pinned")
class Pinned(Message):
    """The answer."""

    question: Question
    version: int


# --- the driver to everyone ----------------------------------------------------------------------------------------
@message("call")
class Perform(Message):
    """Ranks that live there shall do this."""

    call: CallSpec


@message("seal")
class SealStreams(Message):
    """No producer is added to these channels; how many a queue of each has."""

    iteration: int
    expected: dict[str, int]


@message("cancel")
class Cancel(Message):
    """An iteration is given up."""

    iteration: int
    cause: BaseException


@message("retire")
class Retire(Message):
    """Nobody asks for this iteration any more, nor for those before it."""

    iteration: int


@message("unwanted")
class NoReaders(Message):
    """Nobody reads a stream any more. ``discards``: that is meant."""

    iteration: int
    channel: str
    discards: bool


# --- everyone to the driver ------------------------------------------------------------------------------------------
@message("ended")
class Ended(Message):
    """One rank has done its part of a call, in which so much has moved."""

    call_id: int
    rank: int
    iteration: int
    error: Failure | None
    moved: Sequence[Moved]


@message("failed")
class Failed(Message):
    """The iteration cannot go on."""

    error: Failure


@message("broken")
class Broken(Message):
    """Nor can the session: hosts do not know any more what the others know."""

    error: ExecutorError


@message("cut_off")
class CutOff(Message):
    """One host does not hear another one any more."""

    here: str
    peer: str


@message("unread")
class LeftOver(Message):
    """So many items lie there that nobody will read."""

    channel: str
    iteration: int
    left: int


@message("remarked")
class Remarked(Message):
    """The user is told, once for each ``about``. ``at_once``: in the log."""

    about: str
    text: str
    at_once: bool


# --- ranks that come, go and meet ------------------------------------------------------------------------------------
@message("join")
class Join(Message):
    """Build a rank; see `elastic.turnover`."""

    worker: str
    rank: int


@message("joined")
class Joined(Message):
    """It is set up, or cannot be."""

    worker: str
    rank: int
    failure: BaseException | None


@message("leave")
class Leave(Message):
    """A rank takes nothing more."""

    worker: str
    rank: int


@message("left")
class Left(Message):
    """It has gone."""

    worker: str
    rank: int


@message("came")
class Came(Message):
    """A rank has come to a meeting of its worker."""

    meeting: Meeting
    rank: int


@message("met")
class Met(Message):
    """All have."""

    key: int


# --- does anything still move? ---------------------------------------------------------------------------------------
@message("pulse?", counted=False)
class AskPulse(Message):
    """The driver's watch asks; see `driver.deadlock_watch`."""

    wave: int


@message("pulse", counted=False)
class PulseOf(Message):
    """The answer."""

    name: str
    wave: int
    pulse: Pulse


@message("relieve")
class Relieve(Message):
    """Let somebody exceed a capacity, but not at these streams."""

    stranded: Sequence[tuple[str, int]]


@message("relieved")
class Relieved(Message):
    """Whether there was anybody, and who waits there for what."""

    name: str
    did: bool
    waits: list[Wait]
