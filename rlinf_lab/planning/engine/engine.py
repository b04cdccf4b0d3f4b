"""The scheduler as a state machine: events go in, instructions come out. No clock, no thread, no socket, no payload.

Three drivers feed it: the simulator (virtual time), the host of the local executor (threads) and the device hosts of
the Ray executor (one engine each). It deals in counts: an item is a sequence number of its channel.

Invariants
- A process holds all its devices or none; two holders never share a device.
- A process is in at most one queue (getters, putters, a lock's), and an event of a queued process is an error of the
  driver.
- Items leave a channel in the order in which the engine accepted them; each is granted to exactly one get.
- Who asks for everything gets the share of its rank (`state.Channel.divide`), by its position in the call and not by
  the order of asking: ranks that wait for each other elsewhere need not ask in any order, and held-up threads change
  nothing.
- Events of one instant are settled together, sorted by (process, kind, channel): the order in which threads
  happened to run has no influence (needed for simulated and local timelines to be equal).
- Of those who wait for a device the one in the oldest iteration gets it (they overlap when the plan allows staleness);
  within an iteration upstream goes before downstream, so a consumer runs when its producer has put data and has nothing
  left to do; among equals the one that has waited longest.
- A rank that comes to a meeting steps aside, and when all are there they come back (`Engine.come_back`): on every
  device in the order in which their meetings were complete. Else two workers whose ranks meet, on the same devices,
  would wait for each other for ever where one has the first device and the other the second. Of two meetings that want
  the same devices each device then sees the same one first (the ordered acquisition of resources of Dijkstra, 1968),
  also where each device has an engine of its own. Who keeps the order is the driver's affair.

Source: M2Flow (RLinf, arXiv 2509.15965, sections 3.2-3.4); relief of artificial deadlock: Parks 1995, bounded
scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from rlinf_lab.planning.engine.devices import Devices
from rlinf_lab.planning.engine.fast_path import AtOnce
from rlinf_lab.planning.engine.instructions import (
    ASIDE,
    BOUND,
    DONE,
    FINISHED,
    GET,
    MEET,
    ONLOADED,
    PUT,
    RESUME,
    START,
    Instructions,
)  # fmt: skip
from rlinf_lab.planning.engine.instructions import Do as Do
from rlinf_lab.planning.engine.instructions import Event as Event
from rlinf_lab.planning.engine.looks import Looks
from rlinf_lab.planning.engine.matching import Matching
from rlinf_lab.planning.engine.state import ALL as ALL
from rlinf_lab.planning.engine.state import IN_TURN, UNBOUNDED, Channel, Stream, expect
from rlinf_lab.planning.engine.state import NOW as NOW
from rlinf_lab.planning.engine.state import Part as Part
from rlinf_lab.planning.engine.state import Process as Process


class Engine:
    """See the module's docstring. ``memory``: units per device; ``None`` means that everything fits."""

    def __init__(self, devices: int, memory: int | None = None) -> None:
        self.processes: list[Process] = []
        self.streams: dict[int, Stream] = {}
        self.channels: dict[int, Channel] = {}
        self._opened = 0
        self._out: Instructions = []
        held = self._devices = Devices(devices, memory, self._out)
        queues = self._queues = Matching(self.channels, held, self._out)
        at_once = AtOnce(self.processes, self.channels, held)
        looks = Looks(self.processes, self.channels, held)
        # what a part answers by itself goes there without a call between
        self.share, self._touched = held.overlaps.set, held.touched
        self._want, self._release = held.want, held.release
        self._put, self._get, self._serve = queues.put, queues.get, queues.serve
        self.is_sealed, self.has_room = at_once.is_sealed, at_once.has_room
        self.put_at_once, self.puts_at_once = at_once.put_at_once, at_once.puts_at_once
        self.put_to_waiting, self.arrival_at_once = at_once.put_to_waiting, at_once.arrival_at_once
        self.get_at_once, self.wait_at_once = at_once.get_at_once, at_once.wait_at_once
        self.depth, self.waiting_at, self.is_putting = looks.depth, looks.waiting_at, looks.is_putting
        self.is_getting, self.is_full = looks.is_getting, looks.is_full
        self.waiting, self.is_waiting, self.is_present = looks.waiting, looks.is_waiting, looks.is_present
        self.is_room_for_all, self.holder = looks.is_room_for_all, looks.holder

    # --- building --------------------------------------------------------------------------------------
    def add_process(
        self, devices: Iterable[int] = (), priority: int = 0, size: int = 0, offloadable: bool = True,
        resident: bool = False, working: int = 0, cell: int | None = None,
    ) -> int:  # fmt: skip
        """A new process; ``priority``: depth in the graph, smaller goes first.

        ``size``: units of memory while it is resident; ``working``: further ones while it has its devices. ``cell``:
        whoever of one comes to a device makes room for all of it there, so that two cells are not there by halves.
        """
        process = Process(len(self.processes), tuple(sorted(devices)), priority, size, offloadable, resident)
        process.working = working
        self.processes.append(process)
        self._devices.add(process, cell)
        return process.index

    def open_stream(self, capacity: int | None, name: object = "", whole: bool = False) -> int:
        """``whole``: every get waits for the end of the stream."""
        self._opened += 1
        self.streams[self._opened] = Stream(capacity, name, whole)
        return self._opened

    def open_channel(
        self, stream: int, stub: bool = False, share: int | None = None, own: bool = False, order: int = IN_TURN,
        group: int = 1,
    ) -> int:  # fmt: skip
        """Another queue of a stream (one for each key, or one for each shard). ``share``: a stub's part of the
        capacity. ``own``: only one rank reads it.
        """
        self._opened += 1
        queue = self.channels[self._opened] = Channel(self.streams[stream], stub, own, order, group)
        queue.capacity = queue.capacity if share is None else share
        self.streams[stream].channels.append(self._opened)
        return self._opened

    def forget_channel(self, channel: int) -> None:
        """Drop a queue at which nobody waits any more."""
        del self.channels[channel]

    def forget_stream(self, stream: int) -> None:
        del self.streams[stream]

    # --- events ------------------------------------------------------------------------------------------
    def settle(self, events: Instructions) -> Instructions:
        """Process the events of one instant; the instructions that follow from them."""
        if len(events) > 1:
            events.sort()
        processes, out = self.processes, self._out
        for process, kind, channel, n in events:
            p = processes[process]
            if kind == PUT:
                self._put(p, channel, n)
            elif kind == GET:
                self._get(p, channel, n)
            elif kind == START:
                self._start(p, channel, n)
            elif kind == DONE:
                self._done(p)
            elif kind == ONLOADED:
                self._devices.onloaded(p)
            elif kind == ASIDE:
                p.state = "aside"  # see `come_back`
                self._release(p)
                out.append((MEET, p.index, 0, 0))
            else:
                self._devices.offloaded(p)
        if self._touched:
            return self._flush()
        made = out[:]  # as `_flush`, without its call: a twentieth of a decision
        out.clear()
        return made

    # --- streams -----------------------------------------------------------------------------------------
    def close(self, stream: int, n: int = 1) -> Instructions:
        """``n`` producers of a stream have finished."""
        self.streams[stream].closed += n
        return self._closing(stream)

    def seal(self, stream: int, expected: int) -> Instructions:
        """From now on it is known how many producers there are. The stream ends when so many have closed."""
        self.streams[stream].expected = expected
        return self._closing(stream)

    def remote_put(
        self, channel: int, n: int, weights: Sequence[int] | None = None, ranks: Sequence[float] | None = None
    ) -> tuple[int, Instructions]:
        """Items arrived from another host, which had the credit for them. Returns the first sequence number, and what
        follows.
        """
        queue = self.channels[channel]
        first = queue.tail
        entering = n
        if weights is not None or queue.weights is not None:
            entering = queue.entering(n, ranks)
            queue.weigh(n, weights, ranks)
        queue.tail += entering
        self._serve(channel)
        return first, self._flush()

    def credit(self, channel: int, n: int) -> Instructions:
        """The other host has room for ``n`` more items of this stub."""
        self.channels[channel].head += n
        self._serve(channel)
        return self._flush()

    def granted(self, process: int, channel: int, first: int, n: int) -> Instructions:
        """The host of this stub has answered a get. The answer is ``n`` items from number ``first`` on; none means that
        the stream has ended.
        """
        p = self.processes[process]
        queue = self.channels[channel]
        if not any(p is waiting for waiting, _ in queue.getters):  # it was withdrawn meanwhile
            return []
        queue.getters = deque(g for g in queue.getters if g[0] is not p)
        p.lo, p.hi = first, first + n
        self._out.append((BOUND, p.index, p.lo, p.hi))
        self._devices.go_on(p)
        return self._flush()

    def remote_stall(self, channel: int) -> Instructions:
        """A producer on another host is blocked at this channel."""
        self.channels[channel].remote_stalled = True
        self._queues.extend(channel)
        self._serve(channel)
        return self._flush()

    def abandon(self, channel: int) -> Instructions:
        """Nobody will read this channel any more: whatever is put is accepted."""
        self.channels[channel].capacity = UNBOUNDED
        self._serve(channel)
        return self._flush()

    def cancel(self, process: int) -> Instructions:
        """Take a waiting process out of every queue: it goes on without items and devices."""
        p = self.processes[process]
        left = [c for c, q in self.channels.items() if q.leave(p)]
        if p.state == "lock":
            self._devices.withdraw(p)
        elif p.state not in ("get", "put", "aside"):
            return []
        if p.granted:
            self._release(p)
        p.state, p.lo, p.hi = "run", 0, 0
        self._out.append((RESUME, p.index, 0, 0))
        for channel in left:
            self._serve(channel)
        return self._flush()

    def vacate(self, process: int) -> None:
        """A process that is idle has left its devices, for good or until rebuilt."""
        p = self.processes[process]
        expect(p, "idle")
        self._devices.vacate(p)

    def relieve(self, widen: bool = False, spared: Collection[int] = ()) -> Instructions:
        """Free one process when nothing can move. One putter may exceed the capacity (the shallowest full channel),
        else a short get is served.

        Blocked producers on other hosts get as much room again as is filled. ``widen``: so do those here, where finding
        out that nothing moves is expensive. ``spared``: channels in which there shall be no more room.
        Returns no instruction when there is neither: then the workflow really waits for something that never comes.
        """
        return self._flush() if self._queues.relieve(widen, spared) else []

    # --- the machine -----------------------------------------------------------------------------------
    def _start(self, p: Process, iteration: int, needs_devices: int) -> None:
        expect(p, "idle")
        p.iteration = iteration
        p.lo = p.hi = 0
        if needs_devices:
            self._want(p)
        else:
            p.state = "run"
            self._out.append((RESUME, p.index, 0, 0))

    def _done(self, p: Process) -> None:
        if p.state not in ("run", "idle"):  # idle: a call that was given up before it started
            expect(p, "run")
        p.state = "idle"
        self._release(p)
        self._out.append((FINISHED, p.index, 0, 0))

    def _closing(self, stream: int) -> Instructions:
        closing = self.streams[stream]
        closing.ended = closing.closed == closing.expected
        if closing.ended:
            # In the order of who waits, not of creation: queues are opened by whichever thread comes first.
            waiting = [(self.channels[c].getters[0][0].index, c) for c in closing.channels if self.channels[c].getters]
            for _, channel in sorted(waiting):
                self._serve(channel)
        return self._flush()

    def _flush(self) -> Instructions:
        if self._touched:
            self._devices.grant()
        out = self._out[:]
        self._out.clear()
        return out

    # --- meetings ----------------------------------------------------------------------------------------
    def come_back(self, process: int) -> Instructions:
        """All ranks of its meeting are there. It wants its devices, before those who wait for them with items.

        Nothing for one that does not wait any more.
        """
        p = self.processes[process]
        if p.state != "aside":
            return []
        p.lo = p.hi = 0
        self._out.append((BOUND, p.index, 0, 0))
        iteration, p.iteration, priority, p.priority = p.iteration, -1, p.priority, 0
        self._want(p)
        p.iteration, p.priority = iteration, priority
        return self._flush()
