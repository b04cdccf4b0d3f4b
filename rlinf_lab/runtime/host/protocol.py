"""What hosts say to each other, and what each message does at the one that hears it. Every handler runs under its mutex.

    put, credit, stall, close   items and room of one queue; a credit follows what a consumer took, nothing is asked; ``puts``: several that came together
    get, got, read              a rank of another host reads a queue: its order, the answer, the end of its call
    want, value                 the result of a call, once for each host that needs it
    published, pull, weights    there is a new version (through the driver to everyone); a host wants one; the answer
    fix, fixed, pin, pinned     which version a call of several ranks has: to the host of rank 0, and back; and to where the weights lie; see `versions`
    call, seal, readers, cancel, retire   the driver to everyone; ``readers``: which ranks' calls will read each channel
    unwanted, unread            the driver to everyone: nobody reads a stream any more; its home to the driver: so many items of it are left
    wanted                      the driver to everyone: the loop has returned, and somebody takes the values of these calls
    ended, failed, broken       everyone to the driver: one rank has done one call; the iteration cannot go on; nor can the session (see `unsent`)
    cut_off                     to the driver: one host does not hear another one any more
    under_way                   the driver to everyone, where there are fillers: an iteration begins, or is over
    join, joined, leave, left   the driver to the host of a rank that comes or goes, and back; see `members`
    admit, admitted, give_up_place, take_part, dismiss   a rank takes part in a call that is under way, or takes nothing more
    remarked                    to the driver: the user is told, once for each filler
    delayed, count              a filler's step is in the way of the flow: to the driver, which has the other hosts count it
    came, met                   to the driver: a rank has come to a meeting of its worker; from it: all have; see `meetings`
    pulse?, pulse, relieve, relieved      the driver's watch and the others; see `deadlock_watch`
"""

from __future__ import annotations

import errno
import pickle
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import Cancelled, DeadlockError, ExecutorError, WorkerError
from rlinf_lab.planning.engine.engine import Part
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.wait_graph import standstill
from rlinf_lab.runtime.host.channels.queues import Queue
from rlinf_lab.runtime.host.channels.unread import Moved
from rlinf_lab.runtime.host.elastic import turnover
from rlinf_lab.runtime.host.liveness import cut_off
from rlinf_lab.runtime.host.liveness.deadlock_watch import Pulse
from rlinf_lab.runtime.host.liveness.wait_graph import Wait
from rlinf_lab.runtime.host.rank import Process
from rlinf_lab.runtime.host.weights.versions import Question
from rlinf_lab.runtime.transport.item_batches import Parcel
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId, StreamId
from rlinf_lab.runtime.transport.traffic import Transit
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import CallSpec, Tags

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host

Failure = WorkerError | DeadlockError | ExecutorError
UNCOUNTED = ("pulse?", "pulse")
PLENTY = 1 << 50  # credit of a producer whose items are dropped


def _on_put(host: Host, name: QueueId, count: int, items: Packed, origin: str, tags: Tags | None, transit: Transit | None = None) -> None:
    queue = _open_queue(host, name, count)
    if queue is not None:
        queue.store(Parcel(count, origin, items), tags)
        _stored(host, queue, origin, count, 1, tags or (None, None), transit)


def _on_puts(host: Host, name: QueueId, counts: Sequence[int], packets: Sequence[bytes], origin: str, transit: Transit) -> None:
    """Several puts, one after another."""
    host._heard += len(counts) - 1
    queue = _open_queue(host, name, sum(counts))
    if queue is not None:
        for count, data in zip(counts, packets, strict=True):
            queue.store(Parcel(count, origin, Packed(data)), None)
        _stored(host, queue, origin, sum(counts), len(counts), (None, None), transit)


def _open_queue(host: Host, name: QueueId, count: int) -> Queue | None:
    """The queue that so many items have come for; None when nobody wants them any more."""
    if name.iteration in host._given_up or host._queues.is_retired(name.iteration):
        return None
    queue = host._queues.queue(name)
    if not queue.abandoned:
        return queue
    queue.put += count
    host.unwanted.came(queue)
    return None


def _stored(host: Host, queue: Queue, origin: str, count: int, puts: int, tags: Tags | tuple[None, None], transit: Transit | None) -> None:
    if transit is not None:
        host.traffic.arrived(queue.name, origin, count, transit, puts)
    queue.put += count
    if tags[0] is None and (waiting := host._engine.arrival_at_once(queue.index, count)) >= 0:
        host._bind(host._processes[waiting])
        return
    _, instructions = host._engine.remote_put(queue.index, count, *tags)
    host._apply(instructions)


def _on_credit(host: Host, name: QueueId, n: int) -> None:
    if host._queues.is_retired(name.iteration):
        return
    queue = host._queues.queue(name)
    queue.received += n
    host._apply(host._engine.credit(queue.index, n))
    if host._engine.is_full(queue.index):
        say_stalled(host, queue)


def say_stalled(host: Host, queue: Queue) -> None:
    """A producer here is blocked at a stub."""
    host.say(queue.name.home, ("stall", queue.name, host.name, queue.received))


def _on_stall(host: Host, name: QueueId, origin: str, received: int) -> None:
    if host._queues.is_retired(name.iteration):
        return
    queue = host._queues.queue(name)
    if received < queue.credited[origin]:  # more is on its way to it
        return
    if queue.saved[origin]:
        _grant(host, queue, origin, queue.saved.pop(origin))
        return
    if queue.abandoned:
        _grant(host, queue, origin, PLENTY)
        return
    queue.stalled[origin] = None
    host._apply(host._engine.remote_stall(queue.index))


def _grant(host: Host, queue: Queue, origin: str, n: int) -> None:
    queue.credited[origin] += n
    queue.stalled.pop(origin, None)
    host.say(origin, ("credit", queue.name, n))


def give_credit(host: Host, queue: Queue, taken: dict[str, int]) -> None:
    """A consumer has taken so many items of each origin: that much room again, less what was given ahead.

    Small credits are saved up to half of an origin's share, or until it says that it is stalled.
    """
    if queue.share is None:
        return
    for origin, n in taken.items():
        if owes := queue.debt.get(origin):
            owed = min(n, owes)
            queue.debt[origin] -= owed
            n -= owed
        saved = queue.saved[origin] = queue.saved.get(origin, 0) + n
        if saved and (2 * saved >= queue.share or origin in queue.stalled):
            _grant(host, queue, origin, queue.saved.pop(origin))
    if queue.stalled:
        host._apply(host._engine.remote_stall(queue.index))


def extend_credit(host: Host, queue: Queue, n: int) -> None:
    """A get wants more than the channel may hold: let its blocked producers send that much more, once."""
    for origin in list(queue.stalled):
        queue.debt[origin] += n
        _grant(host, queue, origin, n)


def abandon(host: Host, channel: str, iteration: int) -> None:
    """All calls that read this channel here have ended: let its producers finish; what they put is dropped."""
    for queue in host._queues.abandon(channel, iteration):
        for origin in list(queue.stalled):
            _grant(host, queue, origin, PLENTY)
        host._apply(host._engine.abandon(queue.index))


def _on_get(host: Host, name: QueueId, origin: str, index: int, asked: int, wanted: int, part: tuple[int, int, int]) -> None:
    if not host._queues.is_retired(name.iteration):
        host.far.serve(host._queues.queue(name), origin, index, asked, wanted, Part(*part))


def _on_got(host: Host, name: QueueId, index: int, asked: int, first: int, parts: list[tuple[int, Any]]) -> None:
    if not host._queues.is_retired(name.iteration):
        host.far.take(host._queues.queue(name), index, asked, first, parts)


def _on_read(host: Host, channel: str, iteration: int, origin: str, index: int) -> None:
    host.far.left(origin, index)
    host.reader_ended(channel, iteration)


def remark(host: Host, about: str, text: str, at_once: bool = False) -> None:
    """Under the mutex: for the user; see `Loop.remark`."""
    if host.loop is not None:
        host.loop.remark(about, text, at_once)
    else:
        host.say(host.place[DRIVER, 0], ("remarked", about, text, at_once))


_CURVES, _NEXT = "curves of GPUs of ", ". Next:"


def gpu_curves_missing(host: Host, devices: Iterable[str], problem: str) -> None:
    """From a sampler: tells the user why GPUs among these devices have no curves; nothing where there are none."""
    if any(Device.parse(name).kind == "cuda" for name in devices):
        with host._mutex:
            text = f"Curves of GPUs are missing on host {host.name!r}: {problem}{_NEXT} nothing, the run needs none; `rlinf-lab doctor` looks at the driver."
            remark(host, _CURVES + host.name, text)


def missing_curves(remarked: Mapping[str, str]) -> dict[str, str]:
    """The problems among what was remarked, by host."""
    told = {about.removeprefix(_CURVES): text for about, text in dict(remarked).items() if about.startswith(_CURVES)}
    return {name: text.split(f"{name!r}: ", 1)[1].split(_NEXT)[0] for name, text in told.items()}


def _on_remarked(host: Host, about: str, text: str, at_once: bool) -> None:
    assert host.loop is not None
    host.loop.remark(about, text, at_once)


def _on_close(host: Host, stream: StreamId) -> None:
    if host._queues.is_retired(stream.iteration):
        return
    host._apply(host._engine.close(host._queues.stream(stream)))


def _on_want(host: Host, call_id: int, rank: int, iteration: int, asker: str) -> None:
    host._values.ask(call_id, rank, iteration, asker, host.say)


def _on_value(host: Host, call_id: int, rank: int, iteration: int, value: Any, error: BaseException | None) -> None:
    for waiter in host._values.set(call_id, rank, iteration, value, error, host.say):
        host._wake(waiter)


def _on_collected(host: Host, place: int, rank: int) -> None:
    host._values.forget(place, rank)


def _on_published(host: Host, name: str, version: int, owner: str, home: str, iteration: int) -> None:
    host.weights.announced(name, version, owner, home, iteration)


def _on_fix(host: Host, question: Question, iteration: int, known: int, asker: str) -> None:
    host.weights.versions.decide(question, iteration, known, asker)


def _on_pin(host: Host, question: Question, iteration: int, version: int, asker: str) -> None:
    host.weights.versions.pin(question, iteration, version, asker)


def _on_pull(host: Host, name: str, version: int, asker: str, have: int, number: int) -> None:
    host.weights.answer(name, version, asker, have, number)


def _on_weights(host: Host, name: str, version: int, state: Any) -> None:
    host.weights.arrived(name, version, state)


def _on_ended(host: Host, call_id: int, rank: int, iteration: int, error: Failure | None, moved: Sequence[Moved]) -> None:
    assert host.loop is not None
    host.loop.ended(call_id, rank, iteration, error, moved)


def _on_failed(host: Host, error: Failure) -> None:
    host._fail(error)


def _on_broken(host: Host, error: ExecutorError) -> None:
    assert host.loop is not None
    host.loop.break_off(error)


def _on_call(host: Host, call: CallSpec) -> None:
    host.submit(call)


def _on_seal(host: Host, iteration: int, expected: dict[str, int]) -> None:
    host.seal(iteration, expected)


def _on_readers(host: Host, iteration: int, readers: dict[str, list[tuple[str, int]]]) -> None:
    """``readers``: for each channel the ranks whose calls read it, each once for every call. What nobody here reads to its end is abandoned.

    With one host there is nothing to do: all ends are its own (`stream_end`), and until then producers are let go on when nothing else moves.
    """
    for channel, ranks in readers.items():
        if host.name in host._router.homes(channel) and not host._alone:
            far = host._router.has_far_readers(channel)
            count = len(ranks) if far else sum(host.place[member] == host.name for member in ranks)
            if host._readers.expect(iteration, channel, count):
                abandon(host, channel, iteration)


def _on_unwanted(host: Host, iteration: int, channel: str, discards: bool) -> None:
    host.unwanted.told(channel, iteration, discards)


def _on_wanted(host: Host, iteration: int, calls: frozenset[int]) -> None:
    host.unwanted.wanted(iteration, calls)


def _on_unread(host: Host, channel: str, iteration: int, left: int) -> None:
    assert host.loop is not None
    host.loop.unread(channel, iteration, left)


def _on_cancel(host: Host, iteration: int, cause: BaseException) -> None:
    host.cancel(iteration, cause)


def _on_under_way(host: Host, iteration: int, begins: bool) -> None:
    host.under_way(iteration, begins)


def _on_delayed(host: Host, origin: str) -> None:
    assert host.loop is not None
    for other in host.loop.others:
        if other != origin:
            host.say(other, ("count",))


def _on_count(host: Host) -> None:
    host._engine.count_delay()


def _on_joined(host: Host, worker: str, rank: int, failure: WorkerError | None) -> None:
    assert host.loop is not None
    host.loop.members.joined(worker, rank, failure)


def _on_left(host: Host, worker: str, rank: int) -> None:
    assert host.loop is not None
    host.loop.members.left(worker, rank)


def _on_admitted(host: Host, number: int, home: str, channel: str, reads: bool, ok: bool) -> None:
    assert host.loop is not None
    host.loop.members.admitted(number, home, channel, reads, ok)


def _on_retire(host: Host, iteration: int) -> None:
    host.retire(iteration)
    host.unwanted.retire(iteration)
    host.weights.over(iteration + 1)  # values are kept for one iteration longer


def _on_probe(host: Host, wave: int) -> None:
    host.say(host.place[DRIVER, 0], ("pulse", host.name, wave, host.pulse()))


def _on_pulse(host: Host, name: str, wave: int, pulse: Pulse) -> None:
    assert host.loop is not None
    host.loop.watch.answered(name, wave, pulse)


def _on_relieve(host: Host, stranded: Sequence[tuple[str, int]]) -> None:
    did = host.relieve(stranded)
    host.say(host.place[DRIVER, 0], ("relieved", host.name, did, host.waits()))


def _on_relieved(host: Host, name: str, did: bool, waits: list[Wait]) -> None:
    assert host.loop is not None
    host.loop.watch.relieved(name, did, waits)


HANDLERS: dict[str, Callable[..., None]] = {
    "put": _on_put, "puts": _on_puts, "credit": _on_credit, "stall": _on_stall, "close": _on_close, "get": _on_get, "got": _on_got, "read": _on_read,
    "want": _on_want, "value": _on_value, "collected": _on_collected, "published": _on_published, "pull": _on_pull, "weights": _on_weights,
    "fix": _on_fix, "fixed": lambda host, question, version: host.weights.versions.fixed(question, version),
    "pin": _on_pin, "pinned": lambda host, question, version: host.weights.versions.pinned(question, version),
    "ended": _on_ended, "failed": _on_failed, "broken": _on_broken, "cut_off": cut_off.heard, "call": _on_call, "seal": _on_seal,
    "cancel": _on_cancel, "retire": _on_retire,
    "readers": _on_readers, "unwanted": _on_unwanted, "wanted": _on_wanted, "unread": _on_unread, "under_way": _on_under_way, "delayed": _on_delayed,
    "count": _on_count,
    "join": turnover.join, "joined": _on_joined, "leave": turnover.leave, "left": _on_left, "dismiss": turnover.dismiss_reader,
    "admit": turnover.admit, "admitted": _on_admitted, "give_up_place": turnover.give_up_place, "take_part": turnover.take_part,
     "pulse?": _on_probe, "pulse": _on_pulse, "remarked": _on_remarked, "relieve": _on_relieve, "relieved": _on_relieved,
    "came": lambda host, place, rank: host.meetings.arrived(place, rank), "met": lambda host, key: host.meetings.met(key),
}  # fmt: skip


def lost_rank(process: Process, call: CallSpec, error: BaseException) -> ExecutorError:
    """Its thread ends by an error outside of what the user wrote."""
    return ExecutorError(
        f"{process.label} was lost in {call.method}() of iteration {call.iteration} by an error of the runtime: {type(error).__name__}: {error}. "
        f"Next: run again; if it comes again, report it with this:\n{''.join(traceback.format_exception(error))}"
    )


def misunderstood(here: str, peer: str, error: BaseException) -> ExecutorError:
    """A message that does not unpickle, or that a handler failed on. What did not arrive at all says so itself."""
    if isinstance(error, ExecutorError):
        return error
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return ExecutorError(
            f"Host {here} has no memory for a message of {peer}: {error}. Next: smaller items, channels of less capacity, publish(bucket_mib=...) for weights, "
            f"a higher limit for its process (ulimit -v), or fewer ranks on its node."
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return ExecutorError(
            f"Host {here} may open no more files, and a message of {peer} lies in shared memory: {error}. Next: close what its workers opened, or a higher "
            f"limit (ulimit -n)."
        )
    start = f"Host {here} could not understand a message of {peer}: {type(error).__name__}: {error}."
    if isinstance(error, (ImportError, AttributeError, pickle.UnpicklingError)):
        advice = "Next: install the module that defines it on every node, or define the class in a notebook cell (it then travels by value)."
        return ExecutorError(f"{start} {advice}")
    advice = "Next: if the last lines below are of a class of yours, mend how it is unpickled (__reduce__, __setstate__); otherwise report them."
    return ExecutorError(f"{start} {advice}\n{''.join(traceback.format_exception(error))}")


def death(host: Host, name: str) -> ExecutorError:
    members = ", ".join(f"{w}[{r}]" for (w, r), h in host.place.items() if h == name)
    return ExecutorError(
        f"Host {name!r} died (killed, out of memory, or its node is cut off); {members} lived there. Next: look at the node's memory and log, then run again."
    )


def lost(host: Host, name: str) -> None:
    """A host has died, or is cut off from this one: let nobody wait for it. Anywhere else than with the driver that is the driver's to say."""
    error = death(host, name)
    with host._mutex:
        host.dead.add(name)
        if host.loop is None:
            host.failure = host.failure or error
            host.say(host.place[DRIVER, 0], ("cut_off", host.name, name))
            return
        host.loop.forget(name, error)
        host._fail(error)
        for process in host.ranks:
            if process.call is not None:
                host._interrupt(process, Cancelled(str(error)))


def deadlock(host: Host, waits: Sequence[Wait]) -> None:
    error = standstill(waits)
    host._fail(error)
    for process in host.ranks:
        if process.call is not None:
            host._interrupt(process, DeadlockError(*error.args))


def described(process: Process, call: CallSpec, raised: BaseException) -> BaseException:
    if raised is process.heard or isinstance(raised, (Cancelled, DeadlockError)):  # of a call that has failed it wanted the value: this is what went wrong
        return raised.with_traceback(None)
    trace = "".join(traceback.format_exception(raised))
    return WorkerError.of(process.worker, process.rank, call.method, raised, trace)
