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
- Fillers come after all of them, step by step; see `fillers` for what they may delay.

Source: M2Flow (RLinf, arXiv 2509.15965, sections 3.2-3.4); relief of artificial deadlock: Parks 1995, bounded
scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum

from rlinf_lab.errors import ExecutorError
from rlinf_lab.planning.engine.barrier import Meeting
from rlinf_lab.planning.engine.fast_path import AtOnce
from rlinf_lab.planning.engine.fillers import Fillers
from rlinf_lab.planning.engine.shared_memory import Overlaps
from rlinf_lab.planning.engine.state import ALL as ALL
from rlinf_lab.planning.engine.state import IN_TURN, LOCK_KEY, UNBOUNDED, Channel, Stream
from rlinf_lab.planning.engine.state import NOW as NOW
from rlinf_lab.planning.engine.state import Part as Part
from rlinf_lab.planning.engine.state import Process as Process


class Event(IntEnum):
    """What a driver reports. The numbers are the order within one instant and one process."""

    START = 0  # (process, START, iteration, 1 if it needs its devices now else 0); of a filler: it has a step to do
    PUT = 1  # (process, PUT, channel, n)
    # n < 0: at most -n, a plan's micro-batch; n == ALL: its share of everything, at the end; n == ALL + w: until they
    # weigh w; n <= NOW: what is there (`state.NOW`); 0: no more
    GET = 2  # (process, GET, channel, n)
    DONE = 3  # (process, DONE, -1, 0); of a filler: its step has ended, and 1 if it has another one to do
    OFFLOADED = 4
    ONLOADED = 5
    ASIDE = 6  # (process, ASIDE, -1, 0): it waits for the other ranks of its worker, and others may have its devices


class Do(IntEnum):
    """What the driver must carry out, in the order given."""

    STORE = 0  # (STORE, process, channel, first): the put's items enter the channel from sequence number ``first``
    BOUND = 1  # (BOUND, process, lo, hi): input or room is there, the process now waits for its devices
    RESUME = 2  # (RESUME, process, lo, hi): go on, with items [lo, hi) of the channel it asked
    OFFLOAD = 3  # (OFFLOAD, process, 0, 0): leave the devices, then report OFFLOADED
    ONLOAD = 4  # (ONLOAD, process, 0, 0): come to the devices, then report ONLOADED
    FINISHED = 5  # (FINISHED, process, 0, 0): the call has ended
    EXTEND = 6  # (EXTEND, -1, channel, n): let each blocked remote producer send n items more
    # (DELAYED, filler, 0, 0): somebody of the flow waits for its step to end; engines of other hosts count it
    # (`Engine.count_delay`)
    DELAYED = 7
    # (DIVIDE, -1, channel, n): what is there becomes n equal shares, one for each position in a call (`Process.part`)
    DIVIDE = 8
    MEET = 9  # (MEET, process, 0, 0): it has come to a meeting; `Engine.come_back` when all have


# Looking a member of an enumeration up costs as much as half a decision.
_START, _PUT, _GET, _DONE, _OFFLOADED, _ONLOADED, _ASIDE = map(int, Event)
_STORE, _BOUND, _RESUME, _OFFLOAD, _ONLOAD, _FINISHED, _EXTEND, _DELAYED, _DIVIDE, _MEET = map(int, Do)


class Engine(AtOnce, Meeting):
    """See the module's docstring. ``memory``: units per device; ``None`` means that everything fits."""

    def __init__(self, devices: int, memory: int | None = None) -> None:
        self.processes: list[Process] = []
        self.streams: dict[int, Stream] = {}
        self.channels: dict[int, Channel] = {}
        self._opened = 0
        self._memory = memory
        self._used = [0] * devices
        self._holder: list[Process | None] = [None] * devices
        self._residents: list[list[Process]] = [[] for _ in range(devices)]
        self._users: list[list[Process]] = [[] for _ in range(devices)]
        self._in_worker_groups = [False] * devices  # somebody needs this device together with others
        self._queue: list[list[Process]] = [[] for _ in range(devices)]
        self._touched: set[int] = set()
        self._arrivals = 0
        self._evicting: dict[Process, list[Process]] = {}
        self._cells: dict[int, list[Process]] = {}
        self._out: list[tuple[int, int, int, int]] = []
        self._fillers = Fillers(self._holder, self._queue)
        self._overlaps = Overlaps()
        self.share = self._overlaps.set

    # --- building --------------------------------------------------------------------------------------
    def add_process(
        self, devices: Iterable[int] = (), priority: int = 0, size: int = 0, offloadable: bool = True,
        resident: bool = False, delays: int = 0,
        working: int = 0, cell: int | None = None,
    ) -> int:  # fmt: skip
        """A new process; ``priority``: depth in the graph, smaller goes first; ``delays``: it is a filler, for so many
        steps of which an iteration may wait.

        ``size``: units of memory while it is resident; ``working``: further ones while it has its devices. ``cell``:
        whoever of one comes to a device makes room for all of it there, so that two cells are not there by halves.
        """
        process = Process(len(self.processes), tuple(sorted(devices)), priority, size, offloadable, resident, delays)
        process.working = working
        if cell is not None:
            process.mates = self._cells.setdefault(cell, process.mates)
            process.mates.append(process)
        # a filler takes part in no turns: its memory is there beside those of the flow
        if self._memory is None or not process.devices or delays:
            process.resident = True
        self.processes.append(process)
        for device in process.devices:
            users = self._users[device]
            users.append(process)
            self._in_worker_groups[device] |= len(process.devices) > 1
            if len(users) > 1:
                for user in users:
                    user.alone = False
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
    def settle(self, events: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        """Process the events of one instant; the instructions that follow from them."""
        if len(events) > 1:
            events.sort()
        processes = self.processes
        for process, kind, channel, n in events:
            p = processes[process]
            if kind == _PUT:
                self._put(p, channel, n)
            elif kind == _GET:
                self._get(p, channel, n)
            elif kind == _START:
                self._start(p, channel, n)
            elif kind == _DONE:
                self._done(p, n)
            elif kind == _ONLOADED:
                self._onloaded(p)
            elif kind == _ASIDE:
                self._step_aside(p, _MEET)
            else:
                self._offloaded(p)
        return self._flush()

    # --- fillers -----------------------------------------------------------------------------------------
    def begin(self, iteration: int) -> None:
        """An iteration begins: from now on fillers may take steps, until `over`."""
        self._fillers.begin(iteration)

    def over(self, iteration: int) -> None:
        self._fillers.over(iteration)

    def fill(self) -> list[tuple[int, int, int, int]]:
        """An instant has settled: let fillers begin a step where nobody of the flow is or waits."""
        for p in self._fillers.next():
            for device in p.devices:
                self._holder[device] = p
            p.granted = True
            self._resume(p)
        out, self._out = self._out, []
        return out

    def count_delay(self) -> None:
        """A filler of another host is in the way of the flow."""
        self._fillers.count()

    def is_kept_waiting(self) -> bool:
        """Whether somebody of the flow waits for a filler's step to end: that it will, and then something moves."""
        return self._fillers.are_in_the_way()

    # --- streams -----------------------------------------------------------------------------------------
    def close(self, stream: int, n: int = 1) -> list[tuple[int, int, int, int]]:
        """``n`` producers of a stream have finished."""
        self.streams[stream].closed += n
        return self._closing(stream)

    def seal(self, stream: int, expected: int) -> list[tuple[int, int, int, int]]:
        """From now on it is known how many producers there are: the stream ends when so many have closed."""
        self.streams[stream].expected = expected
        return self._closing(stream)

    def remote_put(
        self, channel: int, n: int, weights: Sequence[int] | None = None, ranks: Sequence[float] | None = None
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Items arrived from another host (which had the credit for them): the first sequence number, and
        what follows.
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

    def credit(self, channel: int, n: int) -> list[tuple[int, int, int, int]]:
        """The other host has room for ``n`` more items of this stub."""
        self.channels[channel].head += n
        self._serve(channel)
        return self._flush()

    def granted(self, process: int, channel: int, first: int, n: int) -> list[tuple[int, int, int, int]]:
        """The host of this stub has answered a get: ``n`` items from number ``first`` on; none means that the stream
        has ended.
        """
        p = self.processes[process]
        queue = self.channels[channel]
        if not any(p is waiting for waiting, _ in queue.getters):  # it was withdrawn meanwhile
            return []
        queue.getters = deque(g for g in queue.getters if g[0] is not p)
        p.lo, p.hi = first, first + n
        self._out.append((_BOUND, p.index, p.lo, p.hi))
        self._go_on(p)
        return self._flush()

    def remote_stall(self, channel: int) -> list[tuple[int, int, int, int]]:
        """A producer on another host is blocked at this channel."""
        self.channels[channel].remote_stalled = True
        self._extend(channel)
        self._serve(channel)
        return self._flush()

    def abandon(self, channel: int) -> list[tuple[int, int, int, int]]:
        """Nobody will read this channel any more: whatever is put is accepted."""
        self.channels[channel].capacity = UNBOUNDED
        self._serve(channel)
        return self._flush()

    def cancel(self, process: int) -> list[tuple[int, int, int, int]]:
        """Take a waiting process out of every queue: it goes on without items and devices."""
        p = self.processes[process]
        left = [c for c, q in self.channels.items() if q.leave(p)]
        if p.state == "lock":
            for device in p.devices:
                if p in self._queue[device]:
                    self._queue[device].remove(p)
                    self._touched.add(device)
        elif p.state not in ("get", "put", "aside"):
            return []
        if p.granted:
            self._release(p)
        p.state, p.lo, p.hi = "run", 0, 0
        self._out.append((_RESUME, p.index, 0, 0))
        for channel in left:
            self._serve(channel)
        return self._flush()

    def dismiss(self, process: int) -> list[tuple[int, int, int, int]]:
        """A process that waits at a queue here gets nothing, as at the end: others take its items."""
        p = self.processes[process]
        self._expect_running(p, "get")
        left = [c for c, q in self.channels.items() if q.leave(p)]
        self._give_nothing(p)
        for channel in left:
            self._serve(channel)
        return self._flush()

    def vacate(self, process: int) -> None:
        """A process that is idle has left its devices, for good or until rebuilt."""
        p = self.processes[process]
        self._expect_running(p, "idle")
        p.offloadable = True
        # else the report that it has left is on its way
        if self._memory is not None and p.devices and p.resident and p not in self._evicting:
            p.resident = False
            for device in p.devices:
                self._used[device] -= p.size
                self._residents[device].remove(p)

    def built(self, process: int, there: bool) -> list[tuple[int, int, int, int]]:
        """A process is idle from now on. Devices that it has been given to be built there (as for a call) others may
        have. ``there``: it has been.
        """
        self.processes[process].state = "idle"
        if not there:  # before others want its place: it would be asked to leave
            self.vacate(process)
        self._release(self.processes[process])
        return self._flush()

    def admit(self, stream: int) -> bool:
        """One producer more than were counted; not when the stream has ended."""
        if self.streams[stream].ended:
            return False
        self.streams[stream].closed -= 1
        return True

    def relieve(self, widen: bool = False, spared: Collection[int] = ()) -> list[tuple[int, int, int, int]]:
        """Nothing can move: let one putter exceed the capacity (the shallowest full channel), else serve a short get.

        Blocked producers on other hosts get as much room again as is filled. ``widen``: so do those here, where finding
        out that nothing moves is expensive. ``spared``: channels in which there shall be no more room.
        Returns no instruction when there is neither: then the workflow really waits for something that never comes.
        """
        full = [
            (q.tail - q.head, q.putters[0][0].index, i)
            for i, q in self.channels.items()
            if q.putters and not q.stub and i not in spared
        ]
        full += [(q.tail - q.head, -1, i) for i, q in self.channels.items() if q.remote_stalled and i not in spared]
        if full:
            depth, putter, i = min(full)
            if putter < 0:
                self._grant_more(i, max(1, depth))
            elif widen:
                self.channels[i].capacity = 2 * depth + self.channels[i].putters[0][1]
            else:
                self._accept(i, *self.channels[i].putters.popleft())
            self._serve(i)
            return self._flush()
        short = [
            (q.getters[0][0].index, i) for i, q in self.channels.items()
            if q.getters and not q.stub and q.getters[0][1] < 0 and q.tail > q.head and not q.is_early
        ]  # fmt: skip
        if short:
            _, i = min(short)
            self._bind(i, self.depth(i))
            self._serve(i)
            return self._flush()
        return []

    # --- looking -------------------------------------------------------------------------------------------
    def depth(self, channel: int) -> int:
        return self.channels[channel].depth

    def waiting_at(self, channel: int) -> tuple[int, int]:
        """How many wait for items, and how many for room."""
        queue = self.channels[channel]
        return len(queue.getters), len(queue.putters)

    def is_putting(self, process: int) -> bool:
        return self.processes[process].state == "put"

    def is_getting(self, process: int) -> bool:
        return self.processes[process].state == "get"

    def waits_for_all(self, process: int) -> bool:
        """Whether it waits for (its share of) everything."""
        return any(g == (self.processes[process], ALL) for q in self.channels.values() for g in q.getters)

    def is_full(self, channel: int) -> bool:
        """Putters wait at this channel."""
        return bool(self.channels[channel].putters)

    def waiting(self) -> list[tuple[int, str, int]]:
        """(process, "get" | "put" | "lock", channel or device) of everything that waits."""
        rows = [(g[0].index, "get", i) for i, q in self.channels.items() for g in q.getters]
        rows += [(g[0].index, "put", i) for i, q in self.channels.items() for g in q.putters]
        rows += [(p.index, "lock", d) for d, waiting in enumerate(self._queue) for p in waiting]
        return rows

    def is_waiting(self) -> bool:
        """Whether anything waits at a channel or for a device."""
        return any(q.getters or q.putters for q in self.channels.values()) or any(self._queue)

    def is_present(self, process: int) -> bool:
        """Whether it is on its devices and stays there, or has them and comes."""
        p = self.processes[process]
        return p.granted or (p.resident and p not in self._evicting)

    def is_room_for_all(self, process: int) -> bool:
        """Whether a process and all others of its devices fit there together. Whoever of them works; what they share
        counts once, as far as that is known."""
        p, fit = self.processes[process], self._overlaps.fit
        return all(fit([q for q in self._users[d] if not q.delays], p, self._memory) for d in p.devices)

    def holder(self, device: int) -> int | None:
        holder = self._holder[device]
        return None if holder is None else holder.index

    # --- the machine -----------------------------------------------------------------------------------
    def _start(self, p: Process, iteration: int, needs_devices: int) -> None:
        self._expect_running(p, "idle")
        if p.delays:
            self._fillers.ask(p)
            return
        p.iteration = iteration
        p.lo = p.hi = 0
        if needs_devices:
            self._want(p)
        else:
            p.state = "run"
            self._out.append((_RESUME, p.index, 0, 0))

    def _put(self, p: Process, channel: int, n: int) -> None:
        if p.state != "run":
            self._expect_running(p, "run")
        queue = self.channels[channel]
        depth, entering = queue.tail - queue.head, n if queue.groups is None else queue.entering(n, p.ranks)
        if not queue.putters and (depth + entering <= queue.capacity or self._room(queue, entering)):
            self._out.append((_STORE, p.index, channel, queue.tail))
            self._out.append((_RESUME, p.index, 0, 0))  # keeps its devices
            if (p.weights is not None or queue.weights is not None) and not queue.stub:
                queue.weigh(n, p.weights, p.ranks)
            queue.tail += entering
            if queue.getters:
                self._serve(channel)
            return
        p.state = "put"
        queue.putters.append((p, n))
        self._release(p)
        if queue.getters:
            self._serve(channel)

    def _get(self, p: Process, channel: int, n: int) -> None:
        if p.state != "run":
            self._expect_running(p, "run")
        queue = self.channels[channel]
        if not n:  # it takes nothing more: as at the end of the stream
            self._release(p)
            self._give_nothing(p)
            return
        if queue.stub:
            p.state = "get"
            if n > NOW:  # who asks for what is there keeps its devices until the answer comes
                self._release(p)
            queue.getters.append((p, n))
            return
        if n <= NOW:
            if self._look(p, queue, NOW - n) and queue.putters:
                self._serve(channel)
            return
        size = n if n > 0 else -n
        if p.granted and p.alone and not queue.getters and queue.tail - queue.head >= size and not queue.is_early:
            # The items are there and nobody else uses the devices: the same as below, without giving them away and
            # getting them back.
            p.lo = lo = queue.head
            queue.head = p.hi = lo + size
            if queue.weights is not None:
                queue.unweigh(size)
            queue.remote_stalled = False
            self._out.append((_BOUND, p.index, lo, lo + size))
            self._out.append((_RESUME, p.index, lo, lo + size))
            if queue.putters:
                self._serve(channel)
            return
        p.state = "get"
        self._release(p)
        if queue.shares:
            self._give_of_share(queue, p, n)
            return
        queue.getters.append((p, n))
        if queue.remote_stalled:
            self._extend(channel)
        self._serve(channel)

    def _done(self, p: Process, goes_on: int) -> None:
        if p.state not in ("run", "idle"):  # idle: a call that was given up before it started
            self._expect_running(p, "run")
        p.state = "idle"
        self._release(p)
        if p.delays:
            self._fillers.leave(p)
            if goes_on:
                self._fillers.ask(p)
            return
        self._out.append((_FINISHED, p.index, 0, 0))

    def _expect_running(self, p: Process, state: str) -> None:
        if p.state != state:
            raise ExecutorError(
                f"engine: process {p.index} is {p.state!r}, expected {state!r}: an event out of turn. Next: events as "
                "they are asked for."
            )

    def _room(self, queue: Channel, n: int) -> bool:
        """Room for n items: below the capacity, or nothing there (a put larger than the channel), or an exact get asks
        for more.
        """
        depth = queue.tail - queue.head
        if depth == 0 or depth + n <= queue.capacity:
            return True
        return bool(queue.getters) and not queue.stub and queue.getters[0][1] > depth

    def _extend(self, channel: int) -> None:
        """Remote producers are blocked. If the get in front wants more than is there, they may send it."""
        queue = self.channels[channel]
        wanted = queue.getters[0][1] if queue.getters else 0
        missing = wanted - (queue.tail - queue.head)
        if wanted == ALL:
            self._grant_more(channel, 1 << 20)
        elif wanted > ALL:
            self._grant_more(channel, max(1, queue.tail - queue.head))
        elif wanted > 0 and missing > 0:
            self._grant_more(channel, missing)

    def _grant_more(self, channel: int, n: int) -> None:
        self.channels[channel].remote_stalled = False
        self._out.append((_EXTEND, -1, channel, n))

    def _store(self, channel: int, p: Process, n: int) -> None:
        queue = self.channels[channel]
        self._out.append((_STORE, p.index, channel, queue.tail))
        entering = queue.entering(n, p.ranks)
        if (p.weights is not None or queue.weights is not None) and not queue.stub:
            queue.weigh(n, p.weights, p.ranks)
        queue.tail += entering

    def _give_nothing(self, p: Process) -> None:
        p.lo = p.hi = 0
        self._out.append((_BOUND, p.index, 0, 0))
        self._want(p)

    def _accept(self, channel: int, p: Process, n: int) -> None:
        self._store(channel, p, n)
        self._give_nothing(p)

    def _bind(self, channel: int, n: int) -> None:
        queue = self.channels[channel]
        p, _ = queue.getters.popleft()
        queue.remote_stalled = False
        self._give(queue, p, n)

    def _give(self, queue: Channel, p: Process, n: int) -> None:
        p.lo = lo = queue.head
        queue.head = p.hi = lo + n
        if queue.weights is not None:
            queue.unweigh(n)
        self._out.append((_BOUND, p.index, lo, lo + n))
        self._want(p)

    def _divide(self, channel: int) -> None:
        """The stream has ended, and in front somebody waits for everything who is not alone."""
        queue = self.channels[channel]
        waiting, queue.getters = queue.getters, deque()
        queue.divide(waiting[0][0].part)
        self._out.append((_DIVIDE, -1, channel, len(queue.shares)))
        for p, n in waiting:
            self._give_of_share(queue, p, n)

    def _give_of_share(self, queue: Channel, p: Process, wanted: int) -> None:
        """Whatever it asks for it gets of its share, and then meets the end of the stream."""
        share = queue.share(p.part)
        if share is None:
            self._give_nothing(p)
            return
        n = share.reach(wanted - ALL) if wanted > ALL else abs(wanted)
        self._give(share, p, min(n, share.depth))

    def _serve(self, channel: int) -> None:
        """Match waiting putters with room and waiting getters with items until neither can move."""
        queue = self.channels[channel]
        putters, getters = queue.putters, queue.getters
        while True:
            if putters and self._room(queue, queue.entering(putters[0][1], putters[0][0].ranks)):
                self._accept(channel, *putters.popleft())
                continue
            if not getters or queue.stub or queue.is_early:
                return
            depth = queue.tail - queue.head
            wanted = getters[0][1]
            if wanted < 0:
                short = depth > 0 and (putters or queue.remote_stalled)
                wanted = -wanted
                ready = depth >= wanted or short
            else:
                if wanted > ALL:
                    wanted = queue.reach(wanted - ALL)
                ready = depth >= wanted
            if not ready and (putters or not queue.stream.ended):
                return
            p, asked = getters[0]
            if asked == ALL and not queue.own and not p.part.is_alone:
                self._divide(channel)
                return
            self._bind(channel, wanted if wanted < depth else depth)

    def _closing(self, stream: int) -> list[tuple[int, int, int, int]]:
        closing = self.streams[stream]
        closing.ended = closing.closed == closing.expected
        if closing.ended:
            # In the order of who waits, not of creation: queues are opened by whichever thread comes first.
            waiting = [(self.channels[c].getters[0][0].index, c) for c in closing.channels if self.channels[c].getters]
            for _, channel in sorted(waiting):
                self._serve(channel)
        return self._flush()

    # --- devices ---------------------------------------------------------------------------------------
    def _want(self, p: Process) -> None:
        if self._line_up(p):
            self._out.append((_RESUME, p.index, p.lo, p.hi))
        else:
            self._touched.update(p.devices)

    def _release(self, p: Process) -> None:
        if p.granted:
            p.granted = p.holding = False
            for device in p.devices:
                self._holder[device] = None
            if not p.alone:
                self._touched.update(p.devices)

    def _flush(self) -> list[tuple[int, int, int, int]]:
        touched = self._touched
        while touched:
            devices = sorted(touched) if len(touched) > 1 else list(touched)
            touched.clear()
            worker_groups = []
            for device in devices:
                if self._queue[device] and self._holder[device] is None:
                    if self._in_worker_groups[device]:
                        worker_groups.append(device)
                    else:
                        self._grant_one(device)
            if worker_groups:
                candidates = {p.index: p for d in worker_groups for p in self._queue[d]}
                self._arbitrate(sorted(candidates.values(), key=LOCK_KEY))
        if self._fillers.running:
            self._out += [(_DELAYED, p.index, 0, 0) for p in self._fillers.newly_in_the_way()]
            self._fillers.reserve()
        out, self._out = self._out, []
        return out

    def _grant_one(self, device: int) -> None:
        """A device that nobody needs together with another one: its first in line gets it."""
        waiting = self._queue[device]
        p = waiting[0] if len(waiting) == 1 else min(waiting, key=LOCK_KEY)
        waiting.remove(p)
        self._holder[device] = p
        p.granted = True
        self._switch(p)

    def _arbitrate(self, candidates: list[Process]) -> None:
        """Whole sets or nothing. One that must wait keeps its devices from those behind it, so that nobody starves."""
        kept: set[int] = set()
        for p in candidates:
            if any(
                self._holder[d] is not None or d in kept or (len(self._queue[d]) > 1 and self._ahead(p, d))
                for d in p.devices
            ):
                kept.update(p.devices)
                continue
            for device in p.devices:
                self._holder[device] = p
                self._queue[device].remove(p)
            p.granted = True
            self._switch(p)

    def _ahead(self, p: Process, device: int) -> bool:
        return any(q.lock_key < p.lock_key for q in self._queue[device])

    def _switch(self, p: Process) -> None:
        """The devices are p's. Bring p onto them, moving out the longest-resident ones that are in the way."""
        if p.resident and not p.working:
            self._resume(p)
            return
        p.state = "switch"
        victims: list[Process] = []
        for device in p.devices:
            used = self._used[device] - sum(v.size for v in victims if device in v.devices)
            wanted = self._wanted(p, device)
            for other in self._residents[device]:
                if (
                    self._memory is None
                    or used
                    + wanted
                    - self._overlaps.saved([*(r for r in self._residents[device] if r not in victims), p])
                    <= self._memory
                ):
                    break
                # who takes nothing is not in the way
                if other.size and other not in victims and other is not p and other.offloadable and not other.granted:
                    victims.append(other)
                    used -= other.size
        for victim in victims:
            waiting = self._evicting.setdefault(victim, [])
            if not waiting:
                self._out.append((_OFFLOAD, victim.index, 0, 0))
            waiting.append(p)
        if victims or self._is_waiting(p):
            return
        if p.resident:
            self._resume(p)
        else:
            self._bring(p)

    def _wanted(self, p: Process, device: int) -> int:
        """Units that must be free on a device for p: its own, and those of its cell that are not there yet, where the
        cell fits at all.
        """
        there, own = self._residents[device], 0 if p.resident else p.size
        if not p.resident and p.mates and self._memory is not None:
            sizes = [(q.size, q in there) for q in p.mates if device in q.devices]
            if sum(size for size, _ in sizes) <= self._memory:
                own = sum(size for size, is_there in sizes if not is_there)
        return own + p.working

    def _is_waiting(self, p: Process) -> bool:
        return any(p in waiting for waiting in self._evicting.values())

    def _bring(self, p: Process) -> None:
        for device in p.devices:
            self._used[device] += p.size
            self._residents[device].append(p)
        self._out.append((_ONLOAD, p.index, 0, 0))

    def _onloaded(self, p: Process) -> None:
        p.resident = True
        self._resume(p)

    def _offloaded(self, p: Process) -> None:
        p.resident = False
        for device in p.devices:
            self._used[device] -= p.size
            self._residents[device].remove(p)
        for waiting in self._evicting.pop(p, ()):
            if not self._is_waiting(waiting):
                self._switch(waiting)

    def _resume(self, p: Process) -> None:
        p.holding = True
        p.state = "run"
        self._out.append((_RESUME, p.index, p.lo, p.hi))
