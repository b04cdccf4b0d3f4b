"""A host: the threads of some worker ranks in one process, driven by one engine.

The local executor is one host with everything on it; every device host of a Ray run is one, and so is the driver of a Ray run. Hosts speak to each other in
one-way messages (`protocol.py`); nothing is asked once per item. Which thread may go on when is decided below (`scheduler.py`).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlinf_lab.errors import Cancelled, WorkerError, WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host import protocol
from rlinf_lab.runtime.host.arguments import arguments
from rlinf_lab.runtime.host.channels.queues import Queue, QueueTable
from rlinf_lab.runtime.host.channels.readers import Readers
from rlinf_lab.runtime.host.channels.remote_readers import FarReaders
from rlinf_lab.runtime.host.channels.stream_end import NobodyReads, Unwanted
from rlinf_lab.runtime.host.channels.unread import Moved, moved
from rlinf_lab.runtime.host.driver import Loop
from rlinf_lab.runtime.host.elastic import setups, turnover
from rlinf_lab.runtime.host.elastic.fillers import Patience, keep_filling
from rlinf_lab.runtime.host.elastic.meetings import Meetings
from rlinf_lab.runtime.host.liveness.deadlock_watch import Pulse
from rlinf_lab.runtime.host.liveness.unsent import undeliverable
from rlinf_lab.runtime.host.liveness.wait_graph import Wait, wait_of
from rlinf_lab.runtime.host.protocol import Failure
from rlinf_lab.runtime.host.rank import Filled, Frame, HostContext, Process
from rlinf_lab.runtime.host.scheduler import Scheduler
from rlinf_lab.runtime.host.values import ValueTable
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.runtime.machine.pinning import core_of, on_core
from rlinf_lab.runtime.threads.gate import Gate
from rlinf_lab.runtime.transport.item_batches import Parcel, opened
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId, Router, StreamId
from rlinf_lab.runtime.transport.traffic import Traffic
from rlinf_lab.timeline.record.clock import Clock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec, Tags
from rlinf_lab.workflow.workflow import Declaration

# Looking a member of an enumeration up costs as much as half of what is done about it.
_PUT, _GET = int(Event.PUT), int(Event.GET)
_PUT_SPAN, _GET_SPAN = int(SpanKind.PUT), int(SpanKind.GET)


class Host(Scheduler):
    """See the module's docstring.

    ``place``: host name of every (worker, rank). ``send(host, message)``: how to reach the others, ``sent()``: those are all for now;
    neither is called under the mutex.
    """

    def __init__(
        self,
        name: str,
        layout: Layout,
        place: dict[tuple[str, int], str],
        clock: Clock,
        recorder: Recorder,
        send: Callable[[str, tuple], None] | None = None,
        sent: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(layout.new_engine(), clock, recorder, alone=set(place.values()) == {name})
        self.name, self.layout, self.place = name, layout, place
        self.address = "127.0.0.1"  # of this node; an executor that has several knows better
        self.failure: Failure | None = None
        self.errors: list[WorkerError] = []  # of fillers, and what the workers' own ``close`` raised
        self.newest_iteration = 0  # that has begun; kept where there are fillers
        self.dead: set[str] = set()  # hosts
        self.metrics: deque[tuple[str, int, int, dict[str, float]]] = deque()
        self.frames: dict[str, Any] = {}
        self._router = Router(layout, place, name)
        self._queues = QueueTable(layout, self._engine, self._router, name)
        self._readers = Readers()
        self._values = ValueTable()
        self.traffic = Traffic(name, recorder, clock)
        self._by_member: dict[tuple[str, int], Process] = {}
        self.far, self.weights, self.meetings, self.unwanted = FarReaders(self), WeightTable(self), Meetings(self), Unwanted(self)
        self._threads: list[threading.Thread] = []
        self._declarations: dict[str, Declaration] = {}
        self._torch_device: Callable[[tuple[str, ...]], str] = ", ".join
        self._finishing: dict[Process, tuple[CallSpec, Any, BaseException | None]] = {}
        self._given_up: dict[int, BaseException] = {}
        self._set_up = 0
        self._ready = threading.Condition()
        self._send, self._sent_all = send, sent
        self._patience = Patience(self)
        self._postman: threading.Thread | None = None
        self._post_waits = threading.Event()
        self._sending = threading.RLock()  # what a failure makes us say is said from within
        self._sent = self._heard = 0  # messages
        self.loop = Loop(self) if place[DRIVER, 0] == name else None
        for worker, rank in layout.members:
            if place[worker, rank] == name:
                self._add_process(worker, rank)

    @property
    def ranks(self) -> list[Process]:
        """Those that live here, also the driver's loop."""
        return list(self._by_member.values())

    def _add_process(self, worker: str, rank: int) -> None:
        index = self.layout.add_process(self._engine, worker, rank)
        track = self.recorder.track(worker, rank, self.layout.device_names(worker, rank))
        process = Process(worker, rank, index, track, self._engine.processes[index], drives=worker == DRIVER)
        if worker in self.layout.filler:
            process.filled = Filled(worker, rank, ", ".join(self.layout.device_names(worker, rank)))
            process.counts = int(self._mock is not None)
            self._has_fillers = True
        self._processes.append(process)
        self._by_member[worker, rank] = process

    # --- starting and stopping ---------------------------------------------------------------------------
    def start(self, declarations: dict[str, Declaration], torch_device: Callable[[tuple[str, ...]], str]) -> None:
        """Build every worker of this host in its own thread, one after another, and wait until all are set up.

        Not at the same time: what a setup does to its process (``torch.manual_seed`` above all) would change what the others draw, differently each time.
        Raises their `WorkerError`, `ExecutorError` for one that waits for a later one, or `Cancelled` when the host is stopped meanwhile.
        """
        self._declarations, self._torch_device = declarations, torch_device
        mine = setups.built_at_start(self)
        for number, process in enumerate(mine, 1):
            with self._mutex:
                if self.stopping:  # by another thread, which joins those that have been started
                    break
                self._running += process.counts
            self._begin_thread(process)
            setups.wait_for(self._ready, partial(setups.have_come, self, number), process, mine[number:])
            if self.failure is not None:
                raise self.failure
        if self._set_up < len(mine):
            raise Cancelled(f"Host {self.name!r} was stopped while its workers were being set up.")

    def _begin_thread(self, process: Process) -> None:
        worker, rank = process.worker, process.rank
        device = process.device = self._torch_device(self.layout.device_names(worker, rank))
        process.on_gpu = device.startswith("cuda")
        context = HostContext(self, process, self.layout.ranks(worker), device, self.layout.plan.tokens(worker))
        thread = threading.Thread(target=self._main, args=(process, context), name=process.label, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self, grace_seconds: float = 5.0) -> list[str]:
        """Cancel what waits, let every thread end, close the workers. Returns the labels of ranks that did not end in time.

        What fillers and the workers' own ``close`` raised is in ``errors``.
        """
        deadline = time.monotonic() + grace_seconds
        with self._mutex:
            self.stopping = True
            for process in self.ranks:
                process.calls.clear()
                if process.call is not None or process.joining or process.waits_for == "calls":
                    self._interrupt(process, Cancelled(f"{process.label}: the run was stopped."))
                elif process.waits_for in ("call", "gap"):
                    self._wake(process)
                elif process.filled is not None and self._mock is not None:  # no time passes any more: its step cannot end
                    self._interrupt(process, Cancelled(f"{process.label}: the run was stopped."))
        self.flush()
        self._post_waits.set()
        self._patience.end()
        with self._ready:
            self._ready.notify_all()
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        return [t.name for t in list(self._threads) if t.is_alive()]

    def cancel(self, iteration: int, cause: BaseException) -> None:
        """Give up on an iteration: its waiting calls end with `Cancelled`, the workers stay alive. The caller flushes."""
        with self._mutex:
            if iteration in self._given_up:
                return
            self._given_up[iteration] = cause
            for process in self.ranks:
                dropped = [c for c in process.calls if c.iteration == iteration]
                process.calls = deque(c for c in process.calls if c.iteration != iteration)
                for call in dropped:
                    self._drop(call, process, cause)
                if process.call is not None and process.call.iteration == iteration:
                    self._interrupt(process, Cancelled(f"{process.label}.{process.call.method}: given up, because {cause}"))
            self._values.fail_missing(iteration, cause, self._wake)

    def _drop(self, call: CallSpec, process: Process, cause: BaseException) -> None:
        """Under the mutex: a call that has not begun is not done any more."""
        self._complete(call, process, None, Cancelled(f"{process.label}.{call.method}: given up, because {cause}"))

    def _interrupt(self, process: Process, error: BaseException) -> None:
        """Under the mutex: make a waiting thread raise ``error``; one that computes raises it at its next channel."""
        process.error = error
        self._withdraw(process)

    # --- calls -------------------------------------------------------------------------------------------
    def submit(self, call: CallSpec, only: int | None = None) -> None:
        """Queue a call for the ranks that live here and take part in it, or for one of them; returns at once. The caller flushes."""
        with self._mutex:
            ranks = call.taken_by(self.layout.ranks(call.worker)) if only is None else (only,)
            for process in self.ranks:
                if process.worker == call.worker and process.rank in ranks:
                    value, _ = self._values.entry(call.call_id, process.rank, call.iteration)
                    value.source = (process.worker, process.rank, call.method)
                    if (cause := self._given_up.get(call.iteration)) is not None:  # an older iteration may keep the rank busy for long
                        self._drop(call, process, cause)
                        continue
                    process.calls.append(call)
                    if process.waits_for == "call":
                        self._wake(process)

    def seal(self, iteration: int, expected: dict[str, int]) -> None:
        """No further producer will be added to these channels; ``expected``: how many producers a queue of each has. The caller flushes."""
        with self._mutex:
            for channel, count in expected.items():
                if self.name not in self._router.homes(channel):
                    continue
                for shard in range(self.layout.shards(channel)):
                    stream = self._queues.stream(StreamId(channel, iteration, shard, self.name))
                    self._apply(self._engine.seal(stream, count))

    def retire(self, iteration: int) -> None:
        """Forget the queues and values of this iteration and of those before it."""
        with self._mutex:
            self._given_up = {i: cause for i, cause in self._given_up.items() if i > iteration}
            for part in (self.far, self._queues, self._values, self._readers, self.meetings):
                part.retire(iteration)

    def _main(self, process: Process, context: HostContext) -> None:
        given_up = turnover.take_devices(self, process) if process.joining else None
        start, process.thread = self.clock.now_ns(), threading.get_ident()
        failure = None if given_up else setups.set_up(self, process, context, in_truth=self._mock is None)
        if failure is not None and not process.joining:
            self._fail(failure)
        end = self.clock.now_ns()
        if end > start:
            self.recorder.add(process.track, SpanKind.SETUP, self.recorder.name("setup"), start, end)
        with self._ready:
            self._set_up += 1
            self._ready.notify_all()
        if process.stays_until:
            setups.leave_after_others(self, process)
        if process.joining:
            turnover.set_up(self, process, failure or given_up)
            if failure or given_up:
                return
        if process.filled is not None:
            keep_filling(self, process, context)
        core = core_of(self.layout, process.worker, process.rank)
        while process.filled is None and (call := self._next_call(process)) is not None:
            with context.during(call), on_core(core):
                try:
                    self._perform(process, call)
                except BaseException as error:  # of ours, not of the call: the rank is lost, and what waits for it must hear so
                    self.report(protocol.lost_rank(process, call, error))
                    self.flush()
                    return
        try:
            turnover.close(self, process)
        except BaseException as error:  # also one that leaves: it ends this thread only, and what follows has to be said
            self.errors.append(WorkerError.of(process.worker, process.rank, "close", error, traceback.format_exc()))
        if process.leaving:
            turnover.left(self, process)

    def _next_call(self, process: Process) -> CallSpec | None:
        while True:
            with self._mutex:
                if process.order:  # it came together with the end of the last call: it goes first
                    pass
                elif process.calls:
                    process.call = process.calls.popleft()
                    process.error = self._given_up.get(process.call.iteration)
                    return process.call
                elif self.stopping:
                    process.leaving = False
                    self._running -= process.counts
                    return None
                elif process.leaving:
                    process.machine.offloadable = False  # nobody will be there to do it
                    return None
                else:
                    self._block(process, "call", "its next call")
            self._park(process)

    def _perform(self, process: Process, call: CallSpec) -> None:
        value, error = None, None
        process.exchanges, process.ports, process.heard = 0, [], None
        try:
            process.method = self.recorder.name(call.method)
            process.machine.part = self.layout.part(call.worker, *call.place(process.rank, self.layout.ranks(call.worker)))
            args, kwargs = arguments(self, process, call)
            self._post(process, Event.START, call.iteration, int(call.starts_on_device), "its devices")
            self._spans.resumed(process)
            value = getattr(process.instance, call.method)(*args, **kwargs)
            finish_work(process.device)
            for port in process.ports:
                port.refuse_incomplete()
        except NobodyReads:
            value = self.unwanted.leave_off(process, call)
        except BaseException as raised:
            error = protocol.described(process, call, raised)
        self._spans.end_run(process)
        self.flush()  # see `get`
        with self._mutex:
            self._finishing[process] = (call, value, error)
            process.bound_ns = 0
            process.error = None
            self._block(process, "engine", "the end of its call", (process.index, Event.DONE, -1, 0))
        self.flush()
        self._park(process)

    def _finished(self, process: Process) -> None:
        """Under the mutex: the call has ended; close what it wrote, tell who waits for its value."""
        call, value, error = self._finishing.pop(process)
        process.on_device = False
        process.call = None
        for channel in call.channels(WRITE):
            self._close(channel, call.iteration, process.rank)
        for channel in call.channels(READ):
            home = self._router.home(channel, self.layout.shard(channel, process.rank)) if self._router.has_far_readers(channel) else self.name
            if home != self.name:
                self.say(home, ("read", channel, call.iteration, self.name, process.index))
            else:
                self.reader_ended(channel, call.iteration)
        self.weights.ended(process, call, error is None)  # before the driver hears that the call has ended
        self._complete(call, process, value, error, moved(process.ports))
        self._wake(process)

    def reader_ended(self, channel: str, iteration: int) -> None:
        """Under the mutex: one rank's call that reads this channel, which lives here, has ended."""
        if not self._queues.is_retired(iteration) and self._readers.end(iteration, channel):
            protocol.abandon(self, channel, iteration)

    def _complete(self, call: CallSpec, process: Process, value: Any, error: BaseException | None, passed: Sequence[Moved] = ()) -> None:
        if not self._queues.is_retired(call.iteration):
            for waiter in self._values.set(call.call_id, process.rank, call.iteration, value, error, self.say):
                self._wake(waiter)
        failed = error if isinstance(error, Failure) else None
        ended = ("ended", call.call_id, process.rank, call.iteration, failed, passed)
        if self.loop is not None:
            self.loop.ended(*ended[1:])
        else:
            self.say(self.place[DRIVER, 0], ended)

    def _close(self, channel: str, iteration: int, rank: int) -> None:
        if self._queues.is_retired(iteration):
            return
        shard = self.layout.shard(channel, rank)
        homes = [self._router.home(channel, shard)] if self.layout.sharded(channel) else self._router.homes(channel)
        for home in homes:
            stream = StreamId(channel, iteration, shard, home)
            if home == self.name:
                self._apply(self._engine.close(self._queues.stream(stream)))
            else:
                self.say(home, ("close", stream))

    # --- the driver: the thread that runs the user's loop ----------------------------------------------
    @property
    def driver(self) -> Process:
        return self._by_member[DRIVER, 0]

    def _fail(self, error: Failure) -> None:
        """Remember the first failure; the driver's loop gives up what is going on, everywhere. The caller flushes."""
        with self._mutex:
            self.failure = self.failure or error
            if self.loop is not None:
                self.loop.failed(error)

    def report(self, error: Failure) -> None:
        """Something went wrong here that is no call's own error: the driver fails the iteration. It overtakes what is still unsent."""
        with self._mutex:
            if self.loop is not None:
                self._fail(error)
            else:
                self.say(self.place[DRIVER, 0], ("failed", error), urgent=True)

    def unreadable(self, peer: str, error: BaseException) -> None:
        """A message of ``peer`` could not be unpickled or handled here. It counts as heard: else the watch would take it for being on its way for ever."""
        with self._mutex:
            self._heard += 1
        self.misunderstood(peer, error)
        self.flush()

    def misunderstood(self, peer: str, error: BaseException) -> None:
        """What ``peer`` has sent is of no use here. The caller flushes."""
        self.report(protocol.misunderstood(self._who_lives_at(self.name), self._who_lives_at(peer), error))

    def _who_lives_at(self, host: str) -> str:
        return f"{host!r} ({', '.join(f'{w}[{r}]' for (w, r), h in self.place.items() if h == host)})"

    # --- fillers -----------------------------------------------------------------------------------------
    def filled(self) -> list[Filled]:
        """What the fillers of this host have done so far."""
        return [p.filled for p in self.ranks if p.filled is not None]

    def under_way(self, iteration: int, begins: bool) -> None:
        """Under the mutex: an iteration begins, or is over. Fillers take steps meanwhile."""
        if begins:
            self.newest_iteration = iteration
            self._engine.begin(iteration)
        else:
            self._engine.over(iteration)

    def _delayed(self) -> None:
        self._patience.begin()
        if not self._alone:
            self.say(self.place[DRIVER, 0], ("delayed", self.name))

    # --- values ------------------------------------------------------------------------------------------
    def fetch(
        self, process: Process, call_id: int, producer: str, rank: int, iteration: int, timeout: float | None = None, within: str = "", advice: str = ""
    ) -> Any:
        """The value that a rank returned, from wherever it is; blocks; raises what the call raised. ``within``: what else it may be, in words."""
        home = self.place[producer, rank]
        with self._mutex:
            self._raise_if_interrupted(process)
            value, new = self._values.entry(call_id, rank, iteration)
            blocked = not value.ready
            if blocked and process.exchanges:  # here, for `stream_end` interrupts only who waits already
                self.unwanted.end_call(process)
            if blocked and home in self.dead:
                raise protocol.death(self, home)
            if new and home != self.name:
                self.say(home, ("want", call_id, rank, iteration, self.name))
            if blocked:
                value.waiters.append(process)
                process.awaited, process.advice = f"{producer}[{rank}]", advice
                self._block(process, "value", f"the value of {producer}[{rank}]{within}")
        self.flush()
        if blocked:
            try:
                self._park(process, timeout)
                self._raise_if_interrupted(process)
            finally:
                with self._mutex:
                    value.leave(process)
        process.heard = value.error
        return value.get()

    # --- channels: called by the ports -------------------------------------------------------------------
    def reading_queue(self, process: Process, channel: str, iteration: int, key: int) -> Queue:
        name = self._router.read(process.worker, process.rank, channel, iteration, key)
        return self._queue(name)

    def writing_queue(self, process: Process, channel: str, iteration: int, key: int) -> Queue:
        return self._queue(self._router.write(process.rank, channel, iteration, key))

    def _queue(self, name: QueueId) -> Queue:
        with self._mutex:
            queue = self._queues.queue(name)
            queue.number, queue.within = self.recorder.channel(name.channel), self.traffic.within(name.channel)
            return queue

    def _refuse_out_of_turn(self, process: Process, queue: Queue) -> None:
        """A rank has one thread and is in one call; a second one at its channels would mix their items up."""
        channel = queue.name.channel
        if process.thread != threading.get_ident():
            raise WorkflowError(
                f"{process.label}: channel {channel!r} is used by a thread that the worker started itself. Next: hand the items to the method's own "
                f"thread (queue.Queue) and put or get there."
            )
        raise WorkflowError(
            f"{process.label}: this end of channel {channel!r} was given to a call of iteration {queue.name.iteration}, which is over. "
            f"Next: use the one that the present call was given."
        )

    def put(self, process: Process, queue: Queue, items: list[Any], tags: Tags | None = None) -> None:
        if process.thread != threading.get_ident() or (call := process.call) is None or call.iteration != queue.iteration:
            self._refuse_out_of_turn(process, queue)
        if self.unwanted.discarded:
            self.unwanted.end_call(process)
        if process.on_gpu and process.shares_gpu and not self._engine.has_room(queue.index, len(items)):  # it gives its device away
            finish_work(process.device)
        process.goods, process.count, large = items, len(items), False
        if queue.stub:  # now, for the caller is free to change the items when put() has returned
            process.goods, large = Packed.of_items(items, queue.name.channel)
        process.queue, process.getting, process.tags = queue, False, tags
        process.machine.weights, process.machine.ranks = (None, None) if tags is None else tags
        self._post(process, _PUT, queue.index, len(items), queue.room)
        process.goods = []
        if large:  # another thread may be sending it right now
            self._send_all()
        self._spans.resumed(process, _PUT_SPAN, len(items))

    def get(self, process: Process, queue: Queue, wanted: int) -> list[Any]:
        if process.thread != threading.get_ident() or (call := process.call) is None or call.iteration != queue.iteration:
            self._refuse_out_of_turn(process, queue)
        if process.on_gpu and process.shares_gpu:
            finish_work(process.device)
        process.pieces, process.queue, process.getting = [], queue, True
        if self._outgoing:
            self._send_all()  # what it has put goes before its device does: who gets the device could keep this thread from its core
        self._post(process, _GET, queue.index, wanted, queue.supply)
        pieces, process.pieces = process.pieces, []
        self._spans.resumed(process, _GET_SPAN, sum(hi - lo for _, lo, hi in pieces) if len(pieces) != 1 else pieces[0][2] - pieces[0][1])
        try:
            return opened(pieces)
        except BaseException as error:
            origin = next((p.parcel.origin for p in pieces if p.parcel.origin != self.name), self.name)
            raise protocol.misunderstood(self._who_lives_at(self.name), self._who_lives_at(origin), error) from error

    # --- what the engine's instructions do to items -------------------------------------------------------
    def _store(self, process: Process, first: int) -> None:
        queue = process.queue
        assert queue is not None
        process.first = first if queue.numbered else -1
        queue.put += process.count
        if queue.stub:
            self.say(queue.name.home, ("put", queue.name, process.count, process.goods, self.name, process.tags))
        elif queue.abandoned:
            self.unwanted.came(queue)
        else:
            queue.store(Parcel(process.count, self.name, process.goods), process.tags)
            queue.within[0] += 1
            queue.within[1] += process.count

    def _hand_over(self, process: Process, lo: int, hi: int) -> None:
        queue = process.queue
        assert queue is not None
        process.first = lo if hi > lo and queue.numbered else -1
        if queue.stub:  # the items came with the answer
            return
        queue.taken += hi - lo
        process.pieces = queue.take(hi - lo, process.machine.part.position)
        if queue.share is None:
            return
        credit: dict[str, int] = {}
        for parcel, first, last in process.pieces:
            if parcel.origin != self.name:
                credit[parcel.origin] = credit.get(parcel.origin, 0) + last - first
        if credit:
            protocol.give_credit(self, queue, credit)

    def _extend(self, channel: int, n: int) -> None:
        protocol.extend_credit(self, self._queues.of(channel), n)

    def _divide(self, channel: int, count: int) -> None:
        self._queues.of(channel).divide(count)

    def _takes_nothing_more(self, process: Process) -> bool:
        return process.queue is not None and turnover.takes_nothing_more(self, process, process.queue.name.channel)

    def _put_waits(self, queue: Queue) -> None:
        protocol.say_stalled(self, queue)

    def _ask(self, process: Process, queue: Queue, wanted: int) -> None:
        self.far.ask(process, queue, wanted)

    def _answer(self, reader: Process) -> None:
        self.far.answer(reader)

    # --- looking -----------------------------------------------------------------------------------------
    def waits(self) -> list[Wait]:
        """Who waits for what and whom; for a lock, who holds the device."""
        with self._mutex:  # who meets whom changes meanwhile
            return [wait for p in self.ranks if (wait := wait_of(self, p)) is not None]

    def lost(self, host: str) -> None:
        """Another host has died: the iteration cannot go on."""
        protocol.lost(self, host)
        self.flush()

    def statistics(self) -> list[dict[str, Any]]:
        """Depth, puts and gets of every queue of this host."""
        with self._mutex:
            return self._queues.rows()

    def transports(self) -> list[dict[str, Any]]:
        """What has come to this host, by edge, origin and transport."""
        with self._mutex:
            return self.traffic.rows()

    def heard_all(self) -> None:
        """Everything that had arrived on a link was handled."""
        if self._lookout is None or not self._lookout.is_mine():  # a rank that has heard it goes on first
            self.write_down()
        self.flush()

    def write_down(self) -> None:
        """What has come is recorded: also by a rank before it waits again, and before the recording is fetched."""
        if self.traffic.is_open():
            with self._mutex:
                self.traffic.write_down()

    def report_metrics(self, process: Process, iteration: int, metrics: dict[str, float]) -> None:
        self.metrics.append((process.worker, process.rank, iteration, metrics))

    def report_frame(self, frame: Frame) -> None:
        self.frames[frame.source] = frame.image

    # --- does anything still move? (see `deadlock_watch`) ------------------------------------------------------------
    def is_quiet(self) -> bool:
        with self._mutex:
            return self._running == 0 and not self._engine.is_kept_waiting()

    def hear_news(self, name: str, quiet: bool) -> None:
        """At the driver's host: another one has said in passing whether it is quiet."""
        assert self.loop is not None
        with self._mutex:
            self.loop.watch.news(name, quiet)
        self.flush()

    def pulse(self) -> Pulse:
        with self._mutex:
            return Pulse(self.is_quiet(), self._sent, self._heard)

    def waits_in_iteration(self) -> bool:
        """Under the mutex, at the driver's host: an iteration is going on, and the loop waits."""
        return self.loop is not None and self.loop.is_open() and self._running == 0 and not self.stopping and not self.dead

    def deadlock(self, waits: Sequence[Wait]) -> None:
        """Under the mutex, at the driver's host: nothing can move any more, for these reasons."""
        assert self.loop is not None
        if not self.loop.end_stranded(waits):
            protocol.deadlock(self, waits)

    def relieve(self, stranded: Sequence[tuple[str, int]] | None = None) -> bool:
        """Under the mutex: let somebody exceed a capacity; whether there was anybody. Not at ``stranded`` streams (see `stream_end`), which the loop knows."""
        known = self.loop.stranded() if stranded is None and self.loop is not None else stranded
        return self._relieve(self.unwanted.indices(known or ()))

    # --- messages ----------------------------------------------------------------------------------------
    def say(self, host: str, message: tuple, urgent: bool = False) -> None:
        """Under the mutex: decide to send a message; `flush` does it. ``urgent``: before what is still unsent."""
        if message[0] not in protocol.UNCOUNTED:
            self._sent += 1
        if urgent:
            self._outgoing.appendleft((host, message))
        else:
            self._outgoing.append((host, message))

    def flush(self) -> None:
        """Send what has been decided, in that order; outside the mutex, so that a full socket blocks only the sender."""
        if self._outgoing:
            self._send_all()

    def flush_soon(self) -> None:
        """Have it sent by a thread of the host, together with what comes until that thread gets to it: for those who go on putting."""
        if not self._outgoing or self._post_waits.is_set():
            return
        if self._postman is None:
            with self._sending:
                if self._postman is None:
                    self._postman = threading.Thread(target=self._deliver, name=f"postman of {self.name}", daemon=True)
                    self._postman.start()
        self._post_waits.set()

    def _deliver(self) -> None:
        while not self.stopping:
            self._post_waits.wait()
            self._post_waits.clear()
            self.flush()

    def _send_all(self) -> None:
        """When it returns, everything decided before has been pickled and handed to the links, by whichever thread."""
        with self._sending:
            while self._outgoing:
                host, message = self._outgoing.popleft()
                assert self._send is not None
                if host not in self.dead:
                    try:
                        self._send(host, message)
                    except Exception as error:  # it does not pickle, mostly
                        undeliverable(self, host, message, error)
            if self._sent_all is not None:
                self._sent_all()

    def handle(self, message: tuple) -> None:
        """Do what a message says; the caller flushes."""
        with self._mutex:
            protocol.HANDLERS[message[0]](self, *message[1:])

    def receive(self, message: tuple) -> None:
        """A message from another host; see `protocol`. The caller flushes."""
        held: list[Gate] = []
        with self._mutex:
            self._held = held
            try:
                kind, *rest = message
                protocol.HANDLERS[kind](self, *rest)
                if self._has_fillers:
                    self._fill()
                if kind not in protocol.UNCOUNTED:
                    self._heard += 1
            except BaseException:
                self._open(held)  # nobody else would
                raise
            finally:
                self._held = None
        self._open(held)
