"""What a worker is, and the two ends of a channel as it sees them.

A worker is a plain class. Its methods take inboxes (streams in), outboxes (streams out) and ordinary
values, and run without any runtime: a list is a good inbox and `Collected` a good outbox in a unit test.
Under an executor the same code runs in a thread or in a process of a cluster, on the device that the plan names.

Source: RLinf (arXiv 2509.15965), section 3, "worker" and "channel".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from rlinf_lab.errors import ChannelClosed, WorkflowError, renamed, shown
from rlinf_lab.workflow.quantities import FailedSample, SampleFields, SampleLog, logged

STAY = (  # what to do next about a worker that cannot leave its device
    "give it a device of its own, or memory for all (device_memory=), or leave it out of memory= if it holds none "
    "there; a worker of your own can "
    "implement offload() and onload()."
)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class Inbox(Protocol[T]):
    """The reading end of a channel, as a worker's method receives it.

    Iterating yields *batches* (lists); how many items a batch holds is the plan's decision. A batch is
    never empty, and the iteration ends when every producer of this iteration has finished.

    What nobody will read fails the iteration of the loop, as soon as that is certain, unless the channel was declared
    with ``discard_unread=True``. So does a stream into which the producers that were called have put nothing, unless it
    was declared with ``may_be_empty=True``.
    """

    def __iter__(self) -> Iterator[list[T]]: ...

    def get(self, n: int | None = None, *, key: int | None = None) -> list[T]:
        """Take exactly ``n`` items (``None``: the plan's micro-batch). They are fewer only when the stream ends, and
        ``[]`` after its end.
        """

    def get_nowait(self, n: int | None = None, *, key: int | None = None) -> list[T]:
        """Take what is there now, at most ``n`` items, without waiting for more. It is ``[]`` where nothing is.

        Also after the end of the stream, which `get` tells: ask that as soon as there is nothing else to do. The rank
        keeps its device. Who waits in a get goes first. Where a rank reads a channel whose queue is in another process
        it waits for the answer of that, and for no producer.
        """

    def qsize(self, *, key: int | None = None) -> int:
        """How many items `get_nowait` would give now."""

    def get_weight(self, weight: int, *, key: int | None = None) -> list[T]:
        """Items in the channel's order until they weigh ``weight`` together (tokens, say). The last one may go beyond
        it, none is split.

        Less only when the stream ends, ``[]`` after its end. What an item weighs, its put says, or the channel's
        ``weight``; else 1.
        """

    def get_all(self) -> list[T]:
        """Everything of this iteration: waits until all producers have finished. Each of R ranks of the call gets an
        equal share.

        Rank r gets items N·r // R to N·(r+1) // R of the N that nobody has taken by then, in the order in which one
        rank would get them; whoever asks first changes nothing. What a rank then gets in other ways is of its share,
        too; the share of one that does not ask is left unread. On a queue of its own (fused with its producer) a rank
        gets all of that. The same holds for every get where the plan's micro-batch is everything. `Worker.exchange`
        gives all ranks all shares.
        """

    def take(self, *, key: int | None = None) -> T:
        """One item. Raises `ChannelClosed` at the end of the stream."""


@runtime_checkable
class Outbox(Protocol[T_contra]):
    """The writing end of a channel. Closed by the executor when the worker's call returns."""

    def put(
        self, item: T_contra, *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        """Hand over one item; blocks while the channel is full. ``key`` is required on a keyed channel and on one of
        groups, ``priority`` on one of that order.

        ``weight`` counts in `Inbox.get_weight`. A reader in the same process gets the very object, so give a copy of
        what you go on changing: a buffer that is filled again shows its new contents under executor="local" and its
        old ones under "processes". ``lab.check(flow, iterations=1)`` finds it, and ``check_items=True`` of a run. In
        another process a tensor arrives as its ``clone()`` would be: with its strides
        (channels last, transposed), and without gaps where it is a part of another.

        When all calls that read the channel have ended, and no other can come, the iteration fails, and the next put
        raises `Cancelled`. On a channel with ``discard_unread=True`` the put ends the call instead, as a broken pipe
        does: ``finally`` blocks run, ``except Exception`` does not catch it, and what it has not read is not wanted
        either. The put drops the item and the call goes on where somebody reads something else that it writes; where
        the method returns something (it may ask `is_wanted`); and where the worker has several ranks and its code
        speaks of `exchange`, `RankGroup` or `ShardGroup`.
        """

    def put_all(
        self,
        items: Iterable[T_contra],
        *,
        key: int | None = None,
        weight: int | None = None,
        priority: float | None = None,
    ) -> None:
        """Hand over many items, in order; ``weight`` and ``priority`` are those of each. A collection travels in large
        parts, an iterator as it comes.
        """

    def is_wanted(self) -> bool:
        """Whether anybody may still read what is put. It is False once all calls that read the channel have ended.

        Ask before the next decode step: a call that returns then keeps what it has in the making, and what it has not
        read is not wanted, either, where nobody reads any of what it writes.
        """


class Context:
    """What the runtime tells a worker, and what a worker can tell the runtime. Without a runtime: nothing happens.

    Attributes: ``name`` (the worker's), ``rank``, ``ranks`` (how many run in parallel), ``members`` (which ones take
    part in the call; empty: all), ``device`` (torch's name for it, ``"cpu"`` or ``"cuda:0"``), ``sub_batches`` (into
    how many tokens a cell's batch is split), ``iteration``, ``apart`` (whether no two ranks live in one process; told
    to `Worker.preflight`), ``address`` (at which other nodes of the cluster reach this one; the loopback's where all
    ranks are on one node), ``together`` (within how many ``with group`` blocks the ranks are: an exchange there keeps
    the device, and where another worker whose ranks meet shares it, nothing is taken or put that may wait).
    """

    name: str = ""
    rank: int = 0
    ranks: int = 1
    members: tuple[int, ...] = ()
    device: str = "cpu"
    sub_batches: int = 1
    iteration: int = 0
    apart: bool = True
    address: str = "127.0.0.1"
    together: int = 0

    def span(self, label: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def log(self, metrics: dict[str, float]) -> None:
        pass

    def log_failure(self, failure: FailedSample) -> None:
        pass

    def begin_sample(self, id: str) -> None:
        pass

    def end_sample(self, sample: SampleFields, label: str) -> None:
        pass

    def log_sample(self, sample: SampleFields) -> None:
        pass

    def frame(self, image: Any) -> None:
        pass

    def wants_frame(self) -> bool:
        return False

    def compute(self, seconds: float) -> None:
        """Occupy the device for ``seconds`` of the executor's clock. That is a real sleep, or mock time in a test."""
        import time

        time.sleep(seconds)

    def exchange(self, value: Any) -> list[Any]:
        return [value]

    def on_leaving(self, farewell: Callable[[], None]) -> int:
        """Have something done when this rank leaves, before its `Worker.close`. Returns a place for what it leaves
        behind, the same on all ranks that ask after the same exchange. Where it fails, who collects from that place
        hears why."""
        return 0

    def take_back(self, farewell: Callable[[], None]) -> None:
        """Nothing of it is to be done any more when this rank leaves."""

    def leave_behind(self, place: int, value: Any) -> None:
        """For a rank that asks for it in `collect`, perhaps in a later iteration. Instead of what this rank has left
        there before. Values must pickle.
        """

    def discard(self, place: int, rank: int) -> None:
        """Nobody will collect what that rank has left behind."""

    def collect(self, place: int, rank: int) -> Any:
        """What another rank has left behind, or will; nobody else can get it afterwards. Blocks."""
        raise WorkflowError(f"rank {rank} has left nothing behind: there is no runtime. Next: run the workflow.")

    def cancelled(self) -> bool:
        return False


class _Given(property):
    """A property that the runtime provides; assigning to it says so."""

    def __set__(self, instance: Any, value: Any) -> None:
        name = self.fget.__name__ if self.fget is not None else "?"
        raise WorkflowError(
            f"{type(instance).__name__}.{name} = {value!r}: every worker has {name!r} from the runtime, and it cannot "
            "be assigned. Next: choose "
            f"another name, such as self.my_{name}."
        )


class Worker:
    """Base class of every worker. Override `setup`, `onload`, `offload` and `close` where they mean something.

    ``__init__`` receives the arguments given to ``flow.worker(...)`` and should be cheap: what needs the
    device belongs into `setup`, which runs once, on the device, in the process where the worker lives.
    """

    _context: Context = Context()

    # --- what a subclass may override -------------------------------------------------------------
    def setup(self) -> None:
        """Build what needs the device (models, simulators). Runs once, before the first call.

        Where not all workers of its device fit there, `offload` follows at once, and the first call brings it back.

        Workers of one process are set up one after another, so a seed that is set here (``torch.manual_seed``) holds
        until this returns. Later its generators are everybody's: a method that draws numbers again and again has a
        ``torch.Generator`` of its own.
        """

    def onload(self) -> None:
        """Come back to the device after `offload`. Runs on the worker's own thread."""

    def offload(self) -> None:
        """Leave the device (move to host memory) because another worker needs it."""

    def _switch(self, order: str, present: Sequence[Worker], absent: Sequence[Worker]) -> bool:
        """Carry out "onload" or "offload"; whether anything had to move. ``present``: other workers of this process
        that are on their devices or about to come; ``absent``: the rest of them."""
        if order == "offload" and (why := self._why_it_stays()):
            raise WorkflowError(
                f"{self._who()} has to leave {self.device} for another worker and cannot: {why}. Next: {STAY}"
            )
        getattr(self, order)()
        return True

    def _why_it_stays(self) -> str:
        """Why it cannot leave its device; "" when it can. Asked after `setup`, and before a launch as far as that can
        be known then.
        """
        if type(self).can_leave is Worker.can_leave:
            why = f"{type(self).__name__} has a setup(), and neither offload() nor onload() that would undo and do it"
            return "" if self.can_leave() else why
        return "" if self.can_leave() else f"{type(self).__name__}.can_leave() says no"

    def _shared(self, other: Worker) -> float:
        """The share of its memory on the device, 0 to 1, that another worker shares."""
        return 0.0

    def _leaves_at_once(self) -> bool:
        """Whether it leaves its device once built, where others will need the place."""
        return True

    def _shares_with_given(self, values: Iterable[Any]) -> bool:
        """Whether these arguments of another worker, not yet built, share memory with this one's."""
        return False

    def _nbytes(self) -> int:
        """What of it lies on the device, as far as it knows."""
        return 0

    def preflight(self) -> None:
        """Refuse a plan under which this worker cannot work: raise, saying what would. Asked before a launch, in the
        driver's process, of a copy that knows its ranks and device and that has not been set up. Cheap: no models, no
        simulators."""

    def can_leave(self) -> bool:
        """Whether `offload` frees the device. Asked after `setup`; by default, whether the class overrides `offload` or
        `onload`, or no `setup`: what needs the device is built there, so without one there is nothing to leave."""
        return self._switches() or type(self).setup is Worker.setup

    @classmethod
    def _switches(cls) -> bool:
        """Whether it does anything about leaving and returning."""
        return cls.offload is not Worker.offload or cls.onload is not Worker.onload

    def close(self) -> None:
        """Release files, processes, windows. Runs once at the end, also after a failure."""

    # --- what a subclass may use --------------------------------------------------------------------
    @_Given
    def name(self) -> str:
        return self._context.name or type(self).__name__

    @_Given
    def rank(self) -> int:
        """This copy's index, 0 ≤ rank < ranks. While ranks come and go those of a call may have gaps: see
        `RankGroup.position`.
        """
        return self._context.rank

    @_Given
    def ranks(self) -> int:
        """How many copies run in parallel; within a call, how many take part in it."""
        return self._context.ranks

    @_Given
    def device(self) -> str:
        """torch's name of the device of this rank: ``"cpu"`` or ``"cuda:0"``."""
        return self._context.device

    @_Given
    def sub_batches(self) -> int:
        """Into how many tokens the plan splits this worker's batch (double buffering inside a cell)."""
        return self._context.sub_batches

    @_Given
    def iteration(self) -> int:
        return self._context.iteration

    def span(self, label: str) -> AbstractContextManager[Any]:
        """``with self.span("physics"):`` names a part of this call on the timeline."""
        if not isinstance(label, str):
            raise WorkflowError(f"{self._who()}: span({shown(label)}) is no text. Next: with self.span('physics'): ...")
        return self._context.span(label)

    def log(self, *unnamed: object, **metrics: float) -> None:
        """Add numbers to the run's metrics of this iteration: floats, ints, tensors of one value. The last value of a
        name wins.

        Several ranks of a worker that log one name are averaged. A name that several workers log gets a column for
        each, ``worker.name``. What `setup` logs belongs to iteration 0. Raises `WorkflowError` for what is no number,
        and for the run's own columns, ``iteration`` and ``seconds``.
        """
        if unnamed:
            raise WorkflowError(
                f"{self._who()}: log({', '.join(map(shown, unnamed))}) gives no name. Next: self.log(loss=0.1), or "
                "self.log(**metrics)."
            )
        self._context.log(logged(self._who(), metrics))

    def log_failure(self, error: BaseException | str, sample: Any = None) -> None:
        """A sample that failed is data. It is told in the run's ``failures``, with worker, rank and iteration, and the
        run goes on. ``sample``: which, a text or the thing itself. What is put in its place is the worker's to say.
        """
        self._context.log_failure(FailedSample.of(error, sample))

    @_Given
    def sample_log(self) -> SampleLog:
        """Tells the run of single samples: ``self.sample_log.log(id, reward=1.0)`` is a row of ``run.samples``."""
        return SampleLog(self._who(), self._context)

    def _who(self) -> str:
        context = self._context
        return f"{context.name}[{context.rank}]" if context.name else type(self).__name__

    def frame(self, image: Any) -> None:
        """Show a picture (uint8, H×W×3) of the environments in the dashboard."""
        self._context.frame(image)

    def wants_frame(self) -> bool:
        """Whether somebody would look at a picture now. Ask before rendering, which is slow."""
        return self._context.wants_frame()

    def exchange(self, value: Any) -> list[Any]:
        """The values that the ranks of this call give, in their order. In the middle of it: all of them must ask in the
        same order.

        Values must pickle; a rank in the same process gets the very object, one in another what it is when that rank
        comes for it: give a copy of what you go on changing. Where another worker whose ranks meet shares the devices,
        it may have them until all have come; a put or get after that gives them away again, so take what a step needs
        before its meeting. For tensors in bulk, a collective is faster: see `workers.RankGroup`.
        """
        return self._context.exchange(value)

    def compute(self, seconds: float) -> None:
        """Occupy the device for ``seconds``: the stand-in for work in schedules, examples and tests."""
        if not 0 <= seconds < float("inf"):
            raise WorkflowError(f"{self._who()}: compute({shown(seconds)}). Next: a number of seconds, not negative.")
        self._context.compute(seconds)

    @_Given
    def cancelled(self) -> bool:
        """True once the run was asked to stop. Long loops without a channel should look at it."""
        return self._context.cancelled()

    def __repr__(self) -> str:
        context = self._context
        where = f" {context.name}[{context.rank}] on {context.device}" if context.name else ", by hand"
        return f"<{type(self).__name__}{where}>"


class FunctionWorker(Worker):
    """A pure function on batches as a worker. One list of items goes in, one list of results comes out."""

    def __init__(self, function: Callable[[list[Any]], Iterable[Any]]) -> None:
        self.function = function

    def __call__(self, inbox: Inbox[Any], outbox: Outbox[Any]) -> None:
        for batch in inbox:
            results = self.function(batch)
            if isinstance(results, (str, bytes, dict)) or not isinstance(results, Iterable):
                name = getattr(self.function, "__name__", repr(self.function))
                raise WorkflowError(
                    f"The function {name!r} returned {results!r} for a batch of {len(batch)} items. Next: return a "
                    "list of results (it is given "
                    f"a list of items): `return [f(item) for item in batch]`."
                )
            outbox.put_all(results)


class Collected(list[T], Generic[T]):
    """An outbox that is a list: for calling a worker's method by hand. ``keys``, ``weights``, ``priorities``: what was
    said of each item.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[int | None] = []
        self.weights: list[int | None] = []
        self.priorities: list[float | None] = []

    def put(self, item: T, *, key: int | None = None, weight: int | None = None, priority: float | None = None) -> None:
        self.append(item)
        self.keys.append(key)
        self.weights.append(weight)
        self.priorities.append(priority)

    def put_all(
        self, items: Iterable[T], *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        for item in items:
            self.put(item, key=key, weight=weight, priority=priority)

    def is_wanted(self) -> bool:
        return True


class Scripted(Generic[T]):
    """An inbox over a list of items: for calling a worker's method by hand. It refuses what a channel refuses.

    ``micro_batch`` is the batch size of iteration. ``keys``: the key of each item (as `Collected.keys` has them); the
    inbox is then keyed.
    ``weight``: of an item, as the channel has it.
    """

    @renamed(chunk="micro_batch")
    def __init__(
        self,
        items: Iterable[T],
        micro_batch: int | None = None,
        *,
        keys: Iterable[int] | None = None,
        weight: Callable[[T], int] | None = None,
    ) -> None:
        found = list(items)
        self._weight = weight
        self._keyed, self._micro_batch = keys is not None, micro_batch
        self._items: dict[int | None, list[T]] = {}
        of = [None] * len(found) if keys is None else list(keys)
        if len(of) != len(found):
            raise WorkflowError(
                f"Scripted({len(found)} items, keys={shown(of)}): {len(of)} keys. Next: one key for each item."
            )
        for key, item in zip(of, found, strict=True):
            self._items.setdefault(key, []).append(item)

    def __iter__(self) -> Iterator[list[T]]:
        while batch := self.get():
            yield batch

    def get(self, n: int | None = None, *, key: int | None = None) -> list[T]:
        if n is not None and n < 1:
            raise WorkflowError(f"{self!r}: get({n}) asks for less than one item. Next: get(1), or get() for a batch.")
        left = self._of(key)
        size = n or self._micro_batch or len(left)
        batch, left[:] = left[:size], left[size:]
        return batch

    def get_nowait(self, n: int | None = None, *, key: int | None = None) -> list[T]:
        return self.get(n or max(1, len(self._of(key))), key=key)

    def qsize(self, *, key: int | None = None) -> int:
        return len(self._of(key))

    def get_weight(self, weight: int, *, key: int | None = None) -> list[T]:
        if weight < 1:
            raise WorkflowError(f"{self!r}: get_weight({weight}) asks for less than 1. Next: get_weight(4096), say.")
        left, batch = self._of(key), []
        while left and weight > 0:
            batch.append(left.pop(0))
            weight -= 1 if self._weight is None else self._weight(batch[-1])
        return batch

    def get_all(self) -> list[T]:
        left = self._of(None)
        batch, left[:] = left[:], []
        return batch

    def take(self, *, key: int | None = None) -> T:
        left = self._of(key)
        if not left:
            raise ChannelClosed(
                f"this scripted inbox has no item left{f' of key {key}' if self._keyed else ''}. Next: give it more, "
                "or take fewer."
            )
        return left.pop(0)

    def _of(self, key: int | None) -> list[T]:
        if self._keyed != (key is not None):
            need = (
                "is keyed. Next: say which key to read, for example take(key=0)"
                if self._keyed
                else "has no keys. Next: Scripted(items, keys=[...])"
            )
            raise WorkflowError(f"{self!r} {need}.")
        return self._items.setdefault(key, [])

    def __repr__(self) -> str:
        left = sum(map(len, self._items.values()))
        batches = f", in batches of {self._micro_batch}" if self._micro_batch else ""
        return f"Scripted({left} items left{', keyed' if self._keyed else ''}{batches})"


class Residence:
    """What the runtime asks of a worker about its device. The worker's own names are left to who writes it."""

    def __init__(self, worker: Worker) -> None:
        self.switch, self.does_switch = worker._switch, worker._switches
        self.why_it_stays, self.leaves_at_once = worker._why_it_stays, worker._leaves_at_once
        self.shared, self.shares_with_given, self.nbytes = worker._shared, worker._shares_with_given, worker._nbytes


def may_share(cls: type[Worker]) -> bool:
    """Whether workers of this class know of memory that they have in common with others."""
    return cls._shared is not Worker._shared
