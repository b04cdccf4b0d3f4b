"""What puts and gets of ranks do, here and between hosts. Items enter a queue and are handed over."""

from __future__ import annotations

import threading
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.engine import NOW, Event
from rlinf_lab.runtime.host.channels.credit import Credits
from rlinf_lab.runtime.host.channels.remote_readers import FarReaders
from rlinf_lab.runtime.host.channels.stream_end import Unwanted
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.liveness.failures import misunderstood
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Put
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.runtime.transport.item_batches import CheckedParcel, Parcel, opened
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId, StreamId
from rlinf_lab.runtime.transport.traffic import Transit
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.specs import Tags

# Looking a member of an enumeration up costs as much as half of what is done about it.
_PUT, _GET = int(Event.PUT), int(Event.GET)
_PUT_SPAN, _GET_SPAN = int(SpanKind.PUT), int(SpanKind.GET)


class ChannelEnds:
    """Of one host. What `state.parts.Items` names and the handlers run under its mutex; the rest in a rank's thread."""

    def __init__(
        self,
        state: HostState,
        control: parts.RankControl,
        post: Post,
        credits: Credits,
        far: FarReaders,
        unwanted: Unwanted,
    ) -> None:
        self._state, self._control, self._post = state, control, post
        self._credits, self._far, self._unwanted = credits, far, unwanted
        self._engine, self._spans, self._step = state.engine, control.spans, control.post
        self.is_wanted = unwanted.is_wanted
        self.ask, self.answer, self.put_waits = far.ask, far.answer, credits.say_stalled
        post.on(messages.Put, self._has_come)
        post.on(messages.Puts, self._have_come)
        post.on(messages.Close, self._closed)
        post.on(messages.SealStreams, self._seal)

    # --- called by the ports ---------------------------------------------------------------------------------
    def reading_queue(self, process: Process, channel: str, iteration: int, key: int) -> Queue:
        """The one that this rank reads."""
        return self._queue(self._state.router.read(process.worker, process.rank, channel, iteration, key))

    def writing_queue(self, process: Process, channel: str, iteration: int, key: int) -> Queue:
        """The one that this rank's items go to."""
        return self._queue(self._state.router.write(process.rank, channel, iteration, key))

    def _queue(self, name: QueueId) -> Queue:
        state = self._state
        with state.mutex:
            queue = state.queues.queue(name)
            queue.number, queue.within = state.recorder.channel(name.channel), state.traffic.within(name.channel)
            return queue

    def put(
        self, process: Process, queue: Queue, items: list[Any], tags: Tags | None = None, groups: int | None = None
    ) -> None:
        """Blocks until there is room. ``groups``: as how many items it is written down."""
        call = process.call
        if process.thread != threading.get_ident() or call is None or call.iteration != queue.iteration:
            _refuse_out_of_turn(process, queue)
        if self._unwanted.discarded:
            self._unwanted.end_call(process)
        if process.own_stream:
            finish_work(process.device, True)  # who takes the items has another stream, which would not wait for it
        elif process.on_gpu and process.shares_gpu and not self._engine.has_room(queue.index, len(items)):
            finish_work(process.device)  # it gives its device away
        process.goods, process.count, large = items, len(items), False
        if queue.stub:  # now, for the caller is free to change the items when put() has returned
            process.goods, large = Packed.of_items(items, queue.name.channel)
        elif self._state.check_items:
            who = f"{process.label}: channel {queue.name.channel!r}"
            process.goods = CheckedParcel(self._state.name, items, who)
        process.queue, process.getting, process.tags = queue, False, tags
        process.machine.weights, process.machine.ranks = (None, None) if tags is None else tags
        self._step(process, _PUT, queue.index, len(items), queue.room)
        process.goods = []
        if large:  # another thread may be sending it right now
            self._post.send_all()
        if groups is None or groups:
            self._spans.resumed(process, _PUT_SPAN, len(items) if groups is None else groups)
        else:
            self._spans.found_nothing(process, _PUT_SPAN)

    def get(self, process: Process, queue: Queue, wanted: int) -> list[Any]:
        """Blocks until there are so many, or the stream has ended. ``wanted``: as the engine has it."""
        call = process.call
        if process.thread != threading.get_ident() or call is None or call.iteration != queue.iteration:
            _refuse_out_of_turn(process, queue)
        if process.on_gpu and (process.own_stream or process.shares_gpu):
            finish_work(process.device, process.own_stream)
        process.pieces, process.queue, process.getting = [], queue, True
        if self._post.unsent:
            # what it has put goes before its device does: who gets the device could keep this thread from its core
            self._post.send_all()
        self._step(process, _GET, queue.index, wanted, queue.supply)
        pieces, process.pieces = process.pieces, []
        count = pieces[0][2] - pieces[0][1] if len(pieces) == 1 else sum(hi - lo for _, lo, hi in pieces)
        if wanted > NOW or count:
            self._spans.resumed(process, _GET_SPAN, count)
        else:
            self._spans.found_nothing(process, _GET_SPAN)
        try:
            items = opened(pieces)
            if process.own_stream:
                # torch gives memory that nobody has any more to the stream that it is from, which may be ahead of this
                process.held = items.copy()
            return items
        except WorkflowError:  # an item was changed
            raise
        except BaseException as error:
            here = self._state.name
            origin = next((p.parcel.origin for p in pieces if p.parcel.origin != here), here)
            raise misunderstood(self._state, origin, error) from error

    # --- what the engine's instructions do to items ------------------------------------------------------------
    def store(self, process: Process, first: int) -> None:
        queue = process.queue
        assert queue is not None
        process.first = first if queue.numbered else -1
        queue.put += process.count
        if queue.stub:
            assert isinstance(process.goods, Packed)
            name = queue.name
            self._post.say(name.home, Put(name, process.count, process.goods, self._state.name, process.tags))
        elif queue.abandoned:
            self._unwanted.came(queue)
        else:
            goods = process.goods
            parcel = goods if isinstance(goods, Parcel) else Parcel(process.count, self._state.name, goods)
            queue.store(parcel, process.tags)
            queue.within[0] += 1
            queue.within[1] += process.count

    def hand_over(self, process: Process, lo: int, hi: int) -> None:
        queue = process.queue
        assert queue is not None
        process.first = lo if hi > lo and queue.numbered else -1
        if queue.stub:  # the items came with the answer
            return
        queue.taken += (hi - lo) * queue.members
        process.pieces = queue.take(hi - lo, process.machine.part.position)
        if queue.share is None:
            return
        credit: dict[str, int] = {}
        for parcel, first, last in process.pieces:
            if parcel.origin != self._state.name:
                credit[parcel.origin] = credit.get(parcel.origin, 0) + last - first
        if credit:
            self._credits.give(queue, credit)

    def extend(self, channel: int, n: int) -> None:
        self._credits.extend(self._state.queues.of(channel), n)

    def divide(self, channel: int, count: int) -> None:
        self._state.queues.of(channel).divide(count)

    # --- items of other hosts ----------------------------------------------------------------------------------
    def _has_come(self, message: Put) -> None:
        queue, count = self._open_queue(message.name, message.count), message.count
        if queue is not None:
            whole = queue.store(Parcel(count, message.origin, message.items), message.tags)
            if queue.members > 1:  # what waits for the rest of its group takes no room
                self._credits.give(queue, {message.origin: count - whole})
            self._stored(queue, message.origin, count, 1, message.tags or (None, None), message.transit)

    def _have_come(self, message: messages.Puts) -> None:
        """Several puts, one after another."""
        counts, count = message.counts, sum(message.counts)
        self._post.heard += len(counts) - 1
        queue = self._open_queue(message.name, count)
        if queue is not None:
            for n, data in zip(counts, message.packets, strict=True):
                queue.store(Parcel(n, message.origin, Packed(data)), None)
            self._stored(queue, message.origin, count, len(counts), (None, None), message.transit)

    def _open_queue(self, name: QueueId, count: int) -> Queue | None:
        """The queue that so many items have come for. None when nobody wants them any more."""
        if self._state.is_over(name.iteration):
            return None
        queue = self._state.queues.queue(name)
        if not queue.abandoned:
            return queue
        queue.put += count
        self._unwanted.came(queue)
        return None

    def _stored(
        self, queue: Queue, origin: str, count: int, puts: int, tags: Tags | tuple[None, None], transit: Transit | None
    ) -> None:
        state = self._state
        if transit is not None:
            state.traffic.arrived(queue.name, origin, count, transit, puts)
        queue.put += count
        if tags[0] is None and (waiting := self._engine.arrival_at_once(queue.index, count)) >= 0:
            self._control.bind(state.processes[waiting])
            return
        _, instructions = self._engine.remote_put(queue.index, count, *tags)
        self._control.apply(instructions)

    # --- the ends of streams -----------------------------------------------------------------------------------
    def close(self, channel: str, iteration: int, rank: int) -> None:
        """Under the mutex: this rank of its worker puts no more."""
        state = self._state
        if state.queues.is_retired(iteration):
            return
        shard = state.layout.shard(channel, rank)
        sharded = state.layout.sharded(channel)
        for home in [state.router.home(channel, shard)] if sharded else state.router.homes(channel):
            self._post.tell(home, messages.Close(StreamId(channel, iteration, shard, home)))

    def _closed(self, message: messages.Close) -> None:
        if not self._state.queues.is_retired(message.stream.iteration):
            self._control.apply(self._engine.close(self._state.queues.stream(message.stream)))

    def _seal(self, message: messages.SealStreams) -> None:
        state = self._state
        for channel, count in message.expected.items():
            if state.name not in state.router.homes(channel):
                continue
            for shard in range(state.layout.shards(channel)):
                stream = state.queues.stream(StreamId(channel, message.iteration, shard, state.name))
                self._control.apply(self._engine.seal(stream, count))


def _refuse_out_of_turn(process: Process, queue: Queue) -> None:
    """A rank has one thread and is in one call. A second one at its channels would mix their items up."""
    channel = queue.name.channel
    if process.thread != threading.get_ident():
        raise WorkflowError(
            f"{process.label}: channel {channel!r} is used by a thread that the worker started itself. Next: hand the "
            f"items to the method's own thread (queue.Queue) and put or get there."
        )
    raise WorkflowError(
        f"{process.label}: this end of channel {channel!r} was given to a call of iteration {queue.name.iteration}, "
        f"which is over. Next: use the one that the present call was given."
    )
