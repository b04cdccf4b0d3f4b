"""Meetings of ranks (`Worker.exchange`) of workers that share devices. Who comes steps aside; all come back in one
order.

    rank: exchange() ── ASIDE ──> its host's engine gives the device to others; Came ──> driver: all there?
                                                  ── Met ──> hosts: back, before those with items

The driver says in which order meetings were complete, and links keep it, so no two devices disagree; see
`planning.engine.engine` for why that is enough. Only where two workers that may meet share a device:
others keep theirs and need nobody's word. Whoever waits at a channel between a meeting and a collective of torch gives
its device away once more, and comes back like anybody else: the ranks of two workers could then wait for each other
inside torch. So there, what may wait at a channel is refused within ``with group:``. (A collective outside of such a
block nobody here knows of.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import CodeType
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Meeting
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.worker import Worker

_SIGNS = frozenset({"exchange", "RankGroup", "ShardGroup"})  # names in the code of a worker whose ranks meet


class Meetings:
    """Of one host; every method but `meet`, `steps_aside` and `refuse_within` runs under its mutex."""

    def __init__(self, state: HostState, control: parts.RankControl, post: parts.Post) -> None:
        self._state, self._control, self._post = state, control, post
        self._beside: dict[str, str] = {}
        self._may_meet: dict[str, bool] = {}
        self._waiting: dict[int, dict[Process, Meeting]] = defaultdict(dict)  # ranks of this host, by meeting
        self._there: dict[Meeting, set[int]] = defaultdict(set)  # the driver's: which ranks have come
        post.on(messages.Came, lambda m: self._arrived(Meeting(*m.meeting), m.rank))
        post.on(messages.Met, lambda m: self._met(m.key))

    def may_meet(self, worker: str) -> bool:
        """Whether its ranks may; one rank meets nobody."""
        if worker not in self._may_meet:
            several = self._state.layout.ranks(worker) > 1
            self._may_meet[worker] = several and may_meet(self._state.declarations[worker].cls)
        return self._may_meet[worker]

    def steps_aside(self, worker: str) -> bool:
        """Whether another worker whose ranks may meet sits on a device of this one."""
        return bool(self._other(worker))

    def _other(self, worker: str) -> str:
        """The first such worker; "": none."""
        if worker not in self._beside:
            layout = self._state.layout
            others = [w for w in layout.graph.workers if w != worker and layout.ranks(w) > 1]
            beside = (w for w in others if layout.share_a_device(w, worker) and self.may_meet(w))
            self._beside[worker] = next(beside, "")
        return self._beside[worker]

    def refuse_within(self, process: Process, channel: str, gets: bool) -> None:
        """Within ``with group:``, refuse what may wait where others that meet share the devices. Called in the thread
        of a rank; raises `WorkflowError`.
        """
        other, call = self._other(process.worker), process.call
        if call is None or not other or (not gets and self._state.layout.capacity(channel) is None):
            return
        does = f"gets from channel {channel!r}" if gets else f"puts into channel {channel!r}, which has a capacity,"
        raise WorkflowError(
            f"{process.label}: {call.method}() {does} within `with group:`. This plan lets {other!r}, whose ranks meet "
            f"too, share its devices: while one rank waited there, {other!r} would get its device, and the ranks of "
            "both "
            "would wait for each other inside torch. Next: take and put items before or after the block (one block "
            "for "
            f"each step), or choose a plan in which {process.worker!r} and {other!r} share no device."
        )

    def meet(
        self,
        process: Process,
        key: int,
        ranks: tuple[int, ...],
        what: str,
        advice: str,
    ) -> None:
        """Wait, without devices, until all of these ranks have come. Their values are asked for meanwhile.
        """
        assert process.call is not None
        state, meeting = self._state, Meeting(process.worker, ranks, key, process.call.iteration)
        with state.mutex:
            self._waiting[key][process] = meeting
            for rank in ranks:
                _, new = state.values.entry(key, rank, meeting.iteration)
                if new and (home := state.place[process.worker, rank]) != state.name:
                    self._post.say(home, messages.Want(key, rank, meeting.iteration, state.name))
        process.queue, process.getting, process.advice = None, False, advice
        if process.shares_gpu or process.own_stream:
            finish_work(process.device, process.own_stream)
        try:
            self._control.post(process, int(Event.ASIDE), -1, 0, what)
        finally:
            with state.mutex:
                self._waiting[key].pop(process, None)
                if not self._waiting[key]:
                    del self._waiting[key]
        end = process.bound_ns or state.clock.now_ns()
        if end > process.since:
            self._control.spans.add(process, SpanKind.WAIT, process.since, end)
        self._control.spans.resumed(process)

    def came(self, process: Process) -> None:
        """The engine has let it step aside."""
        meeting = next(ranks[process] for ranks in self._waiting.values() if process in ranks)
        self._post.tell_driver(messages.Came(meeting, process.rank))

    def _arrived(self, meeting: Meeting, rank: int) -> None:
        """At the driver."""
        there = self._there[meeting]
        there.add(rank)
        if len(there) < len(meeting.ranks):
            return
        del self._there[meeting]
        for name in dict.fromkeys(self._state.place[meeting.worker, r] for r in meeting.ranks):
            self._post.tell(name, messages.Met(meeting.key))

    def _met(self, key: int) -> None:
        """All have come."""
        for process in sorted(self._waiting.get(key, ()), key=lambda p: p.rank):
            self._control.apply(self._state.engine.come_back(process.index))

    def missing(self, process: Process) -> list[str]:
        """Whom one that has stepped aside waits for: those of whom nothing was heard."""
        meeting = next((ranks[process] for ranks in self._waiting.values() if process in ranks), None)
        if meeting is None:
            return []
        entry, iteration = self._state.values.entry, meeting.iteration
        return [f"{meeting.worker}[{r}]" for r in meeting.ranks if not entry(meeting.key, r, iteration)[0].ready]

    def retire(self, iteration: int) -> None:
        for place in [p for p in self._there if p.iteration <= iteration]:
            del self._there[place]


def may_meet(cls: type) -> bool:
    """Whether the code of a worker speaks of meeting its other ranks. What functions elsewhere do for it is
    not seen.
    """
    classes = cls.__mro__[: cls.__mro__.index(Worker)] if Worker in cls.__mro__ else ()
    return any(
        not _SIGNS.isdisjoint(_names(code))
        for c in classes
        for member in vars(c).values()
        if (code := _code(member)) is not None
    )


def _code(member: Any) -> CodeType | None:
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return getattr(getattr(function, "__wrapped__", function), "__code__", None)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
