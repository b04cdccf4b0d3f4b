"""Meetings of ranks (`Worker.exchange`) of workers that share devices: who comes steps aside, and all come back in one order on every device.

    rank: exchange() ── ASIDE ──> its host's engine gives the device to others; "came" ──> driver: all there? ── "met" ──> hosts: back, before those with items

The driver says in which order meetings were complete, and links keep it, so no two devices disagree; see `planning.engine.barrier` for why that is enough. Only
where two workers that may meet share a device: others keep theirs and need nobody's word. Whoever waits at a channel between a meeting and a collective of
torch gives its device away once more, and comes back like anybody else: the ranks of two workers could then wait for each other inside torch. So there, what
may wait at a channel is refused within ``with group:``. (A collective outside of such a block nobody here knows of.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.engine import Do, Event
from rlinf_lab.runtime.host.rank import Process
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Worker

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host

_SIGNS = frozenset({"exchange", "RankGroup", "ShardGroup"})  # names in the code of a worker whose ranks meet


class _Place(NamedTuple):
    """A meeting, and who is to come. ``key``: the exchange, as `exchange` numbers it."""

    worker: str
    ranks: tuple[int, ...]
    key: int
    iteration: int


class Meetings:
    """Of one host; every method but `meet` and `steps_aside` runs under its mutex."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._beside: dict[str, str] = {}
        self._waiting: dict[int, dict[Process, _Place]] = defaultdict(dict)  # ranks of this host, by meeting
        self._there: dict[_Place, set[int]] = defaultdict(set)  # the driver's: which ranks have come

    def steps_aside(self, worker: str) -> bool:
        """Whether another worker whose ranks may meet sits on a device of this one."""
        return bool(self._other(worker))

    def _other(self, worker: str) -> str:
        """The first such worker; "": none."""
        if worker not in self._beside:
            host = self._host
            others = [w for w in host.layout.graph.workers if w != worker and host.layout.ranks(w) > 1 and host.layout.share_a_device(w, worker)]
            self._beside[worker] = next((w for w in others if may_meet(host._declarations[w].cls)), "")
        return self._beside[worker]

    def refuse_within(self, process: Process, channel: str, gets: bool) -> None:
        """In the thread of a rank within ``with group:``: `WorkflowError` where it may have to wait and others that meet share the devices."""
        other, call = self._other(process.worker), process.call
        if call is None or not other or (not gets and self._host.layout.capacity(channel) is None):
            return
        does = f"gets from channel {channel!r}" if gets else f"puts into channel {channel!r}, which has a capacity,"
        raise WorkflowError(
            f"{process.label}: {call.method}() {does} within `with group:`. This plan lets {other!r}, whose ranks meet too, share its devices: while one rank "
            f"waited there, {other!r} would get its device, and the ranks of both would wait for each other inside torch. Next: take and put items before or "
            f"after the block (one block for each step), or choose a plan in which {process.worker!r} and {other!r} share no device."
        )

    def meet(self, process: Process, key: int, ranks: tuple[int, ...], what: str, advice: str) -> None:
        """Wait, without devices, until all of these ranks have come. Their values are asked for meanwhile."""
        assert process.call is not None
        host, place = self._host, _Place(process.worker, ranks, key, process.call.iteration)
        with host._mutex:
            host.unwanted.end_call(process)  # from here on `stream_end` finds it
            self._waiting[key][process] = place
            for rank in ranks:
                _, new = host._values.entry(key, rank, place.iteration)
                if new and (home := host.place[process.worker, rank]) != host.name:
                    host.say(home, ("want", key, rank, place.iteration, host.name))
        process.queue, process.getting, process.advice = None, False, advice
        if process.shares_gpu:
            finish_work(process.device)
        try:
            host._post(process, int(Event.ASIDE), -1, 0, what)
        finally:
            with host._mutex:
                self._waiting[key].pop(process, None)
                if not self._waiting[key]:
                    del self._waiting[key]
        end = process.bound_ns or host.clock.now_ns()
        if end > process.since:
            host._spans.add(process, SpanKind.WAIT, process.since, end)
        host._spans.resumed(process)

    def waiting(self) -> list[Process]:
        """Who is in a meeting, or about to wait in one."""
        return [process for places in self._waiting.values() for process in places]

    def came(self, process: Process) -> None:
        """The engine has let it step aside."""
        host, place = self._host, next(places[process] for places in self._waiting.values() if process in places)
        driver = host.place[DRIVER, 0]
        if driver == host.name:
            self.arrived(place, process.rank)
        else:
            host.say(driver, ("came", tuple(place), process.rank))

    def arrived(self, place: Any, rank: int) -> None:
        """At the driver."""
        host, place = self._host, _Place(*place)
        there = self._there[place]
        there.add(rank)
        if len(there) < len(place.ranks):
            return
        del self._there[place]
        for name in dict.fromkeys(host.place[place.worker, r] for r in place.ranks):
            if name == host.name:
                self.met(place.key)
            else:
                host.say(name, ("met", place.key))

    def met(self, key: int) -> None:
        """All have come."""
        host = self._host
        for process in sorted(self._waiting.get(key, ()), key=lambda p: p.rank):
            host._apply(host._engine.come_back(process.index, int(Do.BOUND)))

    def missing(self, process: Process) -> list[str]:
        """Whom one that has stepped aside waits for: those of whom nothing was heard."""
        place = next((places[process] for places in self._waiting.values() if process in places), None)
        if place is None:
            return []
        return [f"{place.worker}[{r}]" for r in place.ranks if not self._host._values.entry(place.key, r, place.iteration)[0].ready]

    def retire(self, iteration: int) -> None:
        for place in [p for p in self._there if p.iteration <= iteration]:
            del self._there[place]


def may_meet(cls: type) -> bool:
    """Whether the code of a worker speaks of meeting its other ranks. What functions elsewhere do for it is not seen."""
    classes = cls.__mro__[: cls.__mro__.index(Worker)] if Worker in cls.__mro__ else ()
    return any(not _SIGNS.isdisjoint(_names(code)) for c in classes for member in vars(c).values() if (code := _code(member)) is not None)


def _code(member: Any) -> CodeType | None:
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return getattr(getattr(function, "__wrapped__", function), "__code__", None)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
