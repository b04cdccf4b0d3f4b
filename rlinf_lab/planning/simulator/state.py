"""The state that the parts of a host in virtual time share. It has ranks, iterations, queues, and what is to be done at
this instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.engine.engine import Process as EngineProcess
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.plan.wait_graph import Wait
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn
from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SPAN_STRUCT, SpanBatch
from rlinf_lab.timeline.record.span import SpanKind, Track

# A timer is one integer: its time, then what it is for. An even slot is the timer of a rank, an odd one a switch of it;
# behind those of all ranks comes one for all messages (odd).
BITS = 32
SLOT = (1 << BITS) - 1

SIMULATED = "simulated"  # the host of its tracks
Instructions = list[tuple[int, int, int, int]]  # of the engine; also events for it
Apply = Callable[[Instructions], None]

# What a rank is doing, that is, what its next wake-up means. Ordered: up to _PUTTING it is at a channel, from _IDLE on
# between calls.
GETTING, PUTTING, RUNNING, STARTING, LOOKING, VALUE, DRIVING, AWAITING, ASKING, IDLE, ENDING = range(11)


class Iteration:
    """One that has begun and not ended. ``unended``: by position of a call, how many ranks have not done it.
    ``left_off``: channels of which calls that ended because nobody reads what they write may have left something."""

    __slots__ = ("all_known", "in_body", "left_off", "start", "unended")

    def __init__(self, start: int) -> None:
        self.start = start
        self.in_body = True  # the loop has not come to its end
        self.all_known = False  # the same, as its end was heard
        self.unended: dict[int, int] = {}
        self.left_off: set[str] = set()


class Rank:
    """One rank of a worker, following scripts."""

    __slots__ = (
        "bound_ns", "bound_round", "call", "calls", "channel", "coming", "deferred", "doing", "first",
        "index", "iteration", "left",
        "lock_from", "lock_waited", "machine", "method", "moves", "number", "on_device", "ports", "queue", "rank",
        "send", "since", "slot", "start",
        "switch_from", "switching", "track", "value", "waits_for", "worker",
    )  # fmt: skip

    def __init__(self, worker: str, rank: int, index: int, track: int, machine: EngineProcess) -> None:
        self.worker, self.rank, self.index, self.track, self.machine = worker, rank, index, track, machine
        self.slot = 2 * index
        self.calls: deque[tuple[int, SimCall, Turn]] = deque()
        self.call: SimCall | None = None
        self.number = self.iteration = -1
        self.method = 0  # number of the name on its spans
        self.send: Callable[[Any], tuple[int, Any, int, int]] = _no_script
        self.doing = IDLE
        self.waits_for: list[int] = []  # positions of the calls whose values it still needs
        # channel or (channel, key): queue, number of the name, micro-batch
        self.ports: dict[Any, tuple[int, int, int]] = {}
        self.queue = self.left = self.value = 0
        self.channel = self.first = self.bound_round = -1
        self.start = self.since = self.bound_ns = self.lock_from = 0
        self.lock_waited = self.on_device = False
        self.switching = self.coming = self.deferred = False  # deferred: woken while it switches, goes on after that
        self.switch_from = 0
        self.moves = True  # whether its switch moves anything

    @property
    def label(self) -> str:
        return f"{self.worker}[{self.rank}]"


def _no_script(_sent: Any) -> NoReturn:
    """Between calls nothing goes on."""
    raise StopIteration


def next_of(script: Script, got: int | None) -> tuple[int, Any, int, int] | None:
    """The next operation of a script; None at its end."""
    try:
        return next(script) if got is None else script.send(got)
    except StopIteration:
        return None


class Rows:
    """The spans of a simulation, packed as `Recorder` packs them. Without its lock and its limit."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.names: dict[str, int] = {}
        self.tracks: dict[Track, int] = {}

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def track(self, worker: str, rank: int, devices: tuple[str, ...]) -> int:
        return self.tracks.setdefault(Track(worker, rank, devices, SIMULATED), len(self.tracks))

    def add(
        self,
        track: int,
        kind: int,
        name: int,
        start: int,
        end: int,
        iteration: int,
        items: int = 0,
        channel: int = -1,
        flow: int = -1,
    ) -> None:
        self.data += SPAN_STRUCT.pack(start, end, 0, flow, track, name, channel, iteration, items, kind)

    def batch(self, unnumbered: Iterable[str] = ()) -> SpanBatch:
        """The rows as a batch of spans. ``unnumbered``: channels whose items are not taken in the order of their
        coming, so that no number joins a get to a put.
        """
        spans = np.frombuffer(self.data, SPAN_DTYPE)
        names = [self.names[c] for c in unnumbered if c in self.names]
        if names:
            spans["flow"][np.isin(spans["channel"], names)] = -1
        return SpanBatch("simulated", "simulated", 0, spans, tuple(self.tracks), tuple(self.names))


class State:
    """``calls``: of one iteration, by position. Only the parts of the host know it, and each says what it writes."""

    def __init__(self, layout: Layout, calls: Sequence[SimCall]) -> None:
        self.layout, self.calls, self.engine = layout, list(calls), layout.new_engine()
        self.rows = Rows()
        self.now = 0  # moved by the host's loop
        self.timers: list[int] = []  # a heap
        self.pending: Instructions = []  # events of this instant
        self.ready: list[Rank] = []  # who goes on in it
        self.open: dict[int, Iteration] = {}  # begun and ended by the user's loop
        # (iteration, position): who waits; None: it is there
        self.values: dict[tuple[int, int], list[Rank] | None] = {}
        self.queues: dict[tuple[str, int, int, int], int] = {}  # by (channel, iteration, shard, key)
        self.discarded: set[tuple[str, int]] = set()  # (channel, iteration) that nobody reads on: `Unwanted` says which
        self._streams: dict[tuple[str, int, int], int] = {}
        self.ranks: list[Rank] = []
        self.of: dict[str, list[Rank]] = {}
        for worker, rank in layout.members:
            index, names = layout.add_process(self.engine, worker, rank), layout.device_names(worker, rank)
            p = Rank(worker, rank, index, self.rows.track(worker, rank, names), self.engine.processes[index])
            self.ranks.append(p)
            self.of.setdefault(worker, []).append(p)

    def clock(self) -> int:
        return self.now

    def wake(self, p: Rank) -> None:
        if p.switching:
            p.deferred = True
        else:
            self.ready.append(p)

    def add(self, p: Rank, kind: SpanKind, start: int, end: int, name: str = "") -> None:
        """Write down a span of a rank, under its call's name."""
        text = name or (p.call.method if p.call is not None else p.worker)
        self.rows.add(p.track, kind, self.rows.name(text), start, end, p.iteration if p.call is not None else -1)

    # --- channels --------------------------------------------------------------------------------------------
    def stream(self, channel: str, iteration: int, shard: int = 0) -> int:
        name = (channel, iteration, shard)
        if name not in self._streams:
            self._streams[name] = self.engine.open_stream(
                self.layout.capacity(channel), name, self.layout.graph.channel(channel).whole
            )
        return self._streams[name]

    def port(self, p: Rank, channel: str, key: int) -> tuple[int, int, int]:
        """Queue, number of the channel's name and micro-batch, remembered for the rest of the call."""
        spec = self.layout.graph.channel(channel)
        if spec.keyed != (key >= 0):
            need = (
                "is keyed. Next: give key="
                if spec.keyed
                else "has no keys. Next: leave key= out, or declare it keyed=True"
            )
            raise WorkflowError(f"The script of {p.label}: channel {channel!r} {need}.")
        name = (channel, p.iteration, self.layout.shard(channel, p.rank), key)
        if name not in self.queues:
            self.queues[name] = self.engine.open_channel(
                self.stream(*name[:3]), own=not self.layout.is_shared(channel), order=spec.taken_by, group=spec.gathered
            )
            if name[:2] in self.discarded:
                self.engine.abandon(self.queues[name])
        micro_batch = self.layout.plan.micro_batch(channel)
        port = p.ports[channel if key < 0 else (channel, key)] = (
            self.queues[name],
            self.rows.name(channel),
            ALL if micro_batch == ALL else -micro_batch,
        )
        return port

    def retire(self, iteration: int) -> None:
        """Forget what belonged to an iteration that is over."""
        for queue in [name for name in self.queues if name[1] == iteration]:
            self.engine.forget_channel(self.queues.pop(queue))
        for stream in [name for name in self._streams if name[1] == iteration]:
            self.engine.forget_stream(self._streams.pop(stream))
        self.values = {key: waiters for key, waiters in self.values.items() if key[0] != iteration}
        self.discarded.difference_update([s for s in self.discarded if s[1] == iteration])

    def waits(self) -> list[Wait]:
        """Who waits for what, and whom."""
        names, graph = {queue: name[0] for name, queue in self.queues.items()}, self.layout.graph
        found = []
        for index, why, where in self.engine.waiting():
            p = self.ranks[index]
            if why == "lock":
                holder = self.engine.holder(where)
                on, what = [] if holder is None else [self.ranks[holder].label], self.layout.plan.devices[where]
            else:
                others = graph.producers(names[where]) if why == "get" else graph.consumers(names[where])
                on, what = [w for w in others if w != p.worker] or list(others), f"channel {names[where]!r}"
            found.append(Wait(p.label, f"{what} ({why})", tuple(on)))
        for p in self.ranks:
            if p.doing == VALUE:
                callers = tuple(dict.fromkeys(self.calls[i].worker for i in p.waits_for))
                found.append(Wait(p.label, "the value of a call", callers))
        return found
