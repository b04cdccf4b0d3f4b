"""The driver's side of a run: the thread of the user's loop at its host, the calls it has submitted, the end of an iteration."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import Cancelled, ExecutorError, WorkflowError, said
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.channels.stream_end import Ends, is_read_by_the_loop, wait_for_room
from rlinf_lab.runtime.host.channels.unread import Moved, Unread
from rlinf_lab.runtime.host.elastic.members import Members
from rlinf_lab.runtime.host.liveness.deadlock_watch import Watch
from rlinf_lab.runtime.host.liveness.wait_graph import Wait
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, CallSpec, ChannelArg, Nested, RefArg, WeightsArg

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host
    from rlinf_lab.runtime.host.protocol import Failure


@dataclass(eq=False)
class OpenIteration:
    """One that has begun and is not over. ``calls``: how many ranks' calls have not ended."""

    began_ns: int
    calls: int = 0
    in_body: bool = True  # the iteration function has not returned
    ended_ns: int = 0
    failure: BaseException | None = None  # why it was given up
    specs: list[CallSpec] = field(default_factory=list)  # of workers with several ranks
    unread: Unread = field(default_factory=Unread)
    ends: Ends = field(default_factory=Ends)

    def is_over(self) -> bool:
        return not self.in_body and not self.calls


class Loop:
    """Lives at the driver's host (`Host.loop`). What it says to all hosts it also does at its own.

    One thread at a time executes the loop (the driver's): it is inside one iteration function at most, while earlier iterations
    go on at the workers. From the first beginning to the last end it counts as running, so that mock time stands still meanwhile.
    """

    SETTLE_SECONDS = 3.0

    def __init__(self, host: Host) -> None:
        self.host = host
        self.others = sorted(set(host.place.values()) - {host.name})
        self.watch = Watch(host, self.others)
        self.members = Members(host, self)
        self.ending = False  # the run is being stopped: nothing begins any more, and nobody needs idle workers
        self.lost: ExecutorError | None = None
        self.remarks: deque[str] = deque()  # to be told to the user
        self.remarked: dict[str, str] = {}  # all of them, by what they are about
        self._open: dict[int, OpenIteration] = {}
        self._calls: dict[tuple[int, int], tuple[str, str, int]] = {}  # (call, rank) that has not ended: its host, label, iteration
        self._has_come: Callable[[], bool] = bool  # what the driver's thread waits for while its ``waits_for`` is "calls"

    def remark(self, about: str, text: str, at_once: bool = False) -> None:
        """Under the mutex: something that is no error and hardly meant; told once. ``at_once``: to the log, for no iteration may end before it is mended."""
        if about in self.remarked:
            return
        self.remarked[about] = text
        if at_once:
            logging.getLogger("rlinf_lab").warning(text)
        else:
            self.remarks.append(text)

    # --- iterations --------------------------------------------------------------------------------------
    def begin(self, iteration: int) -> None:
        """The calling thread begins an iteration. `ExecutorError` when the run is over or a host died, `Cancelled` when an earlier one has failed."""
        host, driver = self.host, self.host.driver
        with host._mutex:
            if host.stopping:
                raise ExecutorError("The session has ended: its workers are gone. Next: open a new one with lab.session(flow, plan).")
            if self.lost is not None:
                raise ExecutorError(*self.lost.args)
            if self.ending:
                raise Cancelled("the run was stopped")
            if (failed := self.first_failed()) is not None:
                raise Cancelled(f"iteration {failed} has failed")
            self.watch.reset()
            host._running += not self._open
            self._open[iteration] = OpenIteration(host.clock.now_ns())
            self._tell_fillers(iteration, True)
            driver.thread = threading.get_ident()
            driver.call = CallSpec(-1, DRIVER, "iteration", iteration=iteration)
            driver.method = host.recorder.name("iteration")
            driver.error = None

    def enter(self, iteration: int) -> None:
        """Tell the engine that it has begun; `leave` follows, whatever happens."""
        host, driver = self.host, self.host.driver
        host._post(driver, Event.START, iteration, 0, "the start of the iteration")
        host._spans.resumed(driver)

    def leave(self, iteration: int) -> None:
        """The iteration function has returned (or raised). From now on the iteration ends by itself, when its calls have."""
        host, driver = self.host, self.host.driver
        with host._mutex:
            assert driver.call is not None
            host._finishing[driver] = (driver.call, None, None)
            driver.call = driver.error = None
            one = self._open[iteration]
            one.in_body = False
            self._look(iteration)
            host._block(driver, "engine", "the end of the iteration", (driver.index, Event.DONE, -1, 0))
        host.flush()
        host._park(driver)

    def close(self, iteration: int) -> OpenIteration:
        """It is over, or was given up: forget it."""
        with self.host._mutex:
            one = self._open.pop(iteration)
            self.members.forget(one.specs)
            if not one.ended_ns:  # it was given up
                self._tell_fillers(iteration, False)
            self.host._running -= not self._open
            return one

    def is_open(self) -> bool:
        """Whether any iteration has begun and was not closed: it goes on, or has ended and nobody has taken it in."""
        return bool(self._open)

    def goes_on(self) -> bool:
        """Whether any iteration has begun and has not ended; for a look without the mutex."""
        return any(not one.is_over() for one in list(self._open.values()))

    def is_over(self, iteration: int) -> bool:
        """Whether this iteration and all before it have ended, or this one was given up."""
        with self.host._mutex:
            own = self._open.get(iteration)
            return (own is not None and own.failure is not None) or all(one.is_over() for number, one in self._open.items() if number <= iteration)

    def first_failed(self) -> int | None:
        """The first iteration that was given up and is not closed yet; so were all after it."""
        return min((number for number, one in list(self._open.items()) if one.failure is not None), default=None)

    def failure_of(self, iteration: int) -> BaseException | None:
        one = self._open.get(iteration)
        return None if one is None else one.failure

    def broadcast(self, message: tuple) -> None:
        """Tell every host, this one too."""
        with self.host._mutex:
            self._tell_all(message)
        self.host.flush()

    def _tell_all(self, message: tuple) -> None:
        for other in self.others:
            self.host.say(other, message)
        self.host.handle(message)

    def give_up(self, iteration: int, cause: BaseException) -> None:
        """The calls of this iteration and of all later ones that wait shall end, everywhere."""
        with self.host._mutex:
            self._give_up(iteration, cause)
        self.host.flush()

    def failed(self, error: Failure | WorkflowError, iteration: int | None = None) -> None:
        """Under the mutex: this iteration, or the oldest one, cannot go on; whoever made it known flushes."""
        driver = self.host.driver
        if iteration is None and driver.waits_for == "value" and driver.call is None:  # a result of an iteration that is over will not come
            self.host._interrupt(driver, error)
        if self._open:
            going_on = [number for number, one in self._open.items() if not one.is_over()]
            self._give_up(min(going_on, default=max(self._open) + 1) if iteration is None else iteration, error)

    def _give_up(self, iteration: int, cause: BaseException) -> None:
        for number, one in list(self._open.items()):
            if number >= iteration and one.failure is None:
                one.failure = cause
                self._tell_all(("cancel", number, Cancelled(short(cause))))
        self._wake_if_it_has_come()

    # --- calls ---------------------------------------------------------------------------------------------
    def submit(self, call: CallSpec) -> CallSpec:
        """Hand a call to the ranks of its worker that are there; the call, with those. Raises `WorkflowError` for an argument that cannot travel."""
        host, ranks = self.host, self.host.layout.ranks(call.worker)
        travelling = packed(call) if any(host.place[call.worker, r] != host.name for r in range(ranks)) else call
        with host._mutex:
            for channel in call.channels(READ):
                self._refuse_told(channel, call.iteration, f"{call.worker}.{call.method}()")
            call, travelling = self.members.fixed(call), self.members.fixed(travelling)
            places = {(call.call_id, r): host.place[call.worker, r] for r in call.taken_by(ranks)}
            where = sorted(set(places.values()))
            if self.lost is not None:
                raise ExecutorError(*self.lost.args)
            self._calls.update({key: (home, f"{call.worker}[{key[1]}].{call.method}", call.iteration) for key, home in places.items()})
            self._open[call.iteration].calls += len(places)
            self._open[call.iteration].ends.begin(call, len(places))
            if ranks > 1:
                self._open[call.iteration].specs.append(travelling)
            for name in where:
                if name == host.name:
                    host.submit(call)
                else:
                    host.say(name, ("call", travelling))
        host.flush()
        return call

    def calls_under_way(self, worker: str) -> list[CallSpec]:
        """Under the mutex: calls of a worker with several ranks that some of them have not ended."""
        found = [c for _, one in sorted(self._open.items()) if one.failure is None for c in one.specs if c.worker == worker]
        return [c for c in found if any((c.call_id, r) in self._calls for r in self.members.of(c))]

    def expects(self, call: CallSpec, rank: int) -> bool:
        return (call.call_id, rank) in self._calls

    def expect(self, call: CallSpec, rank: int) -> None:
        """Under the mutex: one rank more may take part in a call; its iteration waits until that has ended, or is known not to be."""
        self._calls[call.call_id, rank] = self.host.place[call.worker, rank], f"{call.worker}[{rank}].{call.method}", call.iteration
        self._open[call.iteration].calls += 1
        self._open[call.iteration].ends.begin(call, 1)

    def ended(self, call_id: int, rank: int, iteration: int, error: Failure | None, moved: Sequence[Moved] = ()) -> None:
        """Under the mutex: one rank has done its part of a call, in which it has put and taken so much."""
        if error is not None and iteration in self._open:
            self.failed(error, iteration)
        if (ended := self._calls.pop((call_id, rank), None)) is not None:
            if iteration in self._open:
                self._open[iteration].unread.count(f"{ended[1]}()", moved)
                self._open[iteration].ends.end(call_id)
            self._count(iteration)
        if iteration in self._open:
            self._open[iteration].ends.all_known |= call_id < 0  # the loop itself
            self._judge(iteration)

    def counted(self, iteration: int, moved: Sequence[Moved]) -> None:
        """So much the iteration function has put and taken, which has returned."""
        with self.host._mutex:
            self._open[iteration].unread.count("the loop", moved)

    def _judge(self, iteration: int) -> None:
        """Under the mutex: give the iteration up for a stream that has ended with items that nobody has read, or that was empty; tell all hosts of those
        that nobody reads any more."""
        one, graph = self._open[iteration], self.host.layout.graph
        if one.failure is not None:
            return
        names = [spec.name for spec in graph.channels]
        if (fault := one.unread.fault(graph, iteration, one.ends.complete(names))) is not None:
            self.failed(fault, iteration)
            return
        for channel in one.ends.unread(names):
            self._nobody_reads(channel, iteration)

    def _nobody_reads(self, channel: str, iteration: int) -> None:
        one = self._open[iteration]
        one.ends.told.add(channel)
        self._tell_all(("unwanted", iteration, channel, one.unread.discards(self.host.layout.graph.channel(channel))))

    def unread(self, channel: str, iteration: int, left: int) -> None:
        """Under the mutex: so many items of a channel that nobody reads any more lie at its home."""
        one, graph = self._open.get(iteration), self.host.layout.graph
        if one is not None and one.failure is None:
            self.failed(one.unread.early(graph, iteration, channel, left), iteration)

    def reads(self, iteration: int, channel: str) -> None:
        """The loop itself reads it. `WorkflowError` when its readers had ended and it was taken for read to the end."""
        with self.host._mutex:
            self._refuse_told(channel, iteration, "the loop")
            self._open[iteration].ends.read.add(channel)

    def _refuse_told(self, channel: str, iteration: int, who: str) -> None:
        if channel in self._open[iteration].ends.told:
            raise WorkflowError(
                f"{who} reads channel {channel!r}, of which the rest was discarded: all that read it had ended, and its producers could not go on while the "
                f"loop waited. Next: call every reader before the wait()."
            )

    def stranded(self) -> list[tuple[str, int]]:
        """Under the mutex: streams whose readers have all ended while the loop waits for something else; see `stream_end`."""
        driver = self.host.driver
        if driver.call is None or (one := self._open.get(driver.call.iteration)) is None or one.failure is not None:
            return []
        return [(c, driver.call.iteration) for c in one.ends.stranded() if not is_read_by_the_loop(driver, c)]

    def end_stranded(self, waits: Sequence[Wait]) -> bool:
        """Under the mutex: nothing can move, for these reasons; whether producers of such streams are among them. Those go on, or the iteration fails."""
        blocked = [(c, i) for c, i in self.stranded() if wait_for_room(c, waits)]
        for channel, iteration in blocked:
            self._nobody_reads(channel, iteration)
        self.host.flush_soon()
        return bool(blocked)

    def _count(self, iteration: int) -> None:
        """One call less."""
        one = self._open.get(iteration)
        if one is not None:
            one.calls -= 1
            self._look(iteration)
        self._wake_if_it_has_come()

    def _look(self, iteration: int) -> None:
        """Whether it has ended now."""
        one = self._open[iteration]
        if one.is_over():
            one.ended_ns = self.host.clock.now_ns()
            self._tell_fillers(iteration, False)

    def _tell_fillers(self, iteration: int, begins: bool) -> None:
        """Under the mutex: they take steps while an iteration is under way."""
        if self.host.layout.fillers:
            self._tell_all(("under_way", iteration, begins))

    def is_done(self, call_id: int, ranks: int) -> bool:
        with self.host._mutex:
            return not any((call_id, rank) in self._calls for rank in range(ranks))

    def forget(self, name: str, error: ExecutorError) -> None:
        """Under the mutex: a host has died; its calls will not report their end."""
        self.lost = self.lost or error
        for key, (home, _, iteration) in list(self._calls.items()):
            if home == name:
                del self._calls[key]
                self._count(iteration)

    def break_off(self, error: ExecutorError) -> None:
        """Under the mutex: the hosts do not know any more what the others know. Nothing begins after this."""
        self.lost = self.lost or error
        self.host._fail(error)
        self.members.give_up()

    # --- waiting -------------------------------------------------------------------------------------------
    def wait_until_over(self, iteration: int, timeout: float | None = None) -> None:
        """Block until `is_over`. `TimeoutError` after ``timeout`` seconds."""
        self._block_until(lambda: self.is_over(iteration), f"the calls of iteration {iteration}", timeout)

    def wait_for_the_late(self) -> None:
        """Block until what computes on since its iteration was given up has ended: the next one wants idle workers."""
        self._block_until(lambda: all(i in self._open for _, _, i in self._calls.values()), "calls of an iteration that was given up")

    def settle(self) -> list[str]:
        """Wait until every call of the iterations that were given up has ended. Returns those that compute on after `SETTLE_SECONDS`."""
        seconds = 0.0 if self.ending else self.SETTLE_SECONDS
        deadline = self.host.clock.now_ns() + round(seconds * 1e9)
        while self._given_up_calls():
            self.host.driver.error = None
            try:
                left = max(0.0, (deadline - self.host.clock.now_ns()) / 1e9)
                self._block_until(lambda: not self._given_up_calls(), "calls of an iteration that was given up", left)
            except Cancelled:
                if self.host.stopping:
                    break
            except TimeoutError:
                break
        self.host.driver.error = None
        with self.host._mutex:
            return sorted(self._given_up_calls())

    def _given_up_calls(self) -> list[str]:
        return [label for _, label, i in list(self._calls.values()) if i in self._open and self._open[i].failure is not None]

    def _block_until(self, has_come: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        host, driver = self.host, self.host.driver
        with host._mutex:
            waits = not has_come()
            if waits:
                self._has_come = has_come
                host._block(driver, "calls", what)
        host.flush()
        if waits:
            host._park(driver, timeout)
        host._raise_if_interrupted(driver)

    def stop_waiting(self) -> None:
        """The driver's thread, if it waits for iterations to end, gives that up and raises `Cancelled`."""
        driver = self.host.driver
        with self.host._mutex:
            if driver.waits_for == "calls":
                self.host._interrupt(driver, Cancelled("it was interrupted"))

    def _wake_if_it_has_come(self) -> None:
        driver = self.host.driver
        if driver.waits_for == "calls" and self._has_come():
            self.host._wake(driver)

    def busy(self) -> list[str]:
        """Calls that have not ended, as worker[rank].method."""
        with self.host._mutex:
            return sorted(self.open_calls())

    def open_calls(self) -> list[str]:
        """As `busy`, in the order in which they were submitted (each rank begins them in that order), of any moment; for a look without the mutex."""
        return [label for _, label, _ in list(self._calls.values())]

    def ranks_in_calls(self, host: str) -> list[str]:
        """Who of a host has a call that has not ended, as far as is known here: worker[rank], each once."""
        return list(dict.fromkeys(label.split(".")[0] for home, label, _ in list(self._calls.values()) if home == host))

    # --- channels that the driver writes --------------------------------------------------------------------
    def close_channel(self, channel: str, iteration: int) -> None:
        """The driver will put nothing more into this channel in this iteration."""
        with self.host._mutex:
            self.host._close(channel, iteration, 0)
        self.host.flush()


def packed(call: CallSpec) -> CallSpec:
    """The call with its plain arguments pickled one by one. `WorkflowError` names the argument that cannot travel."""

    def pack_one(name: str, value: Any) -> Any:
        if value is None or isinstance(value, (ChannelArg, RefArg, WeightsArg, bool, int, float, str)):
            return value
        if isinstance(value, Nested):
            return dataclasses.replace(value, template=pack_one(name, value.template))
        try:
            return Packed.of(value)
        except WorkflowError as error:
            raise WorkflowError(f"Call of {call.worker}.{call.method}(), argument {name}: {error}") from error.__cause__

    args = tuple(pack_one(str(i + 1), a) for i, a in enumerate(call.args))
    return dataclasses.replace(call, args=args, kwargs={k: pack_one(k, v) for k, v in call.kwargs.items()})


def short(error: BaseException) -> str:
    """The first line of what an error says."""
    return said(error).split("\n", 1)[0] or type(error).__name__
