"""A session: the user's loop, iteration after iteration, on an executor that has been started."""

from __future__ import annotations

import gc
import sys
import threading
import types
import warnings
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rlinf_lab.errors import Cancelled, DeadlockError, ExecutorError, WorkerError, WorkflowError, counted
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host.driver.loop import short
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.host.state.messages import Retire, moved
from rlinf_lab.runtime.session.body import IterationBody
from rlinf_lab.runtime.session.news import News
from rlinf_lab.runtime.threads.main_thread_guard import Servant, aside
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import FAILED, ITERATION
from rlinf_lab.workflow.calls import bind
from rlinf_lab.workflow.declaration import check_iteration_call
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.handles import Handle, awaited
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec, ChannelSpec
from rlinf_lab.workflow.structure import follow, rebuilt
from rlinf_lab.workflow.workflow import Workflow


@dataclass
class Ended:
    """How the workers of a run ended. ``late``: ranks that computed on and were left behind or killed; ``errors``: what
    ``close`` raised.
    """

    late: list[str] = field(default_factory=list)
    errors: list[WorkerError] = field(default_factory=list)


class Executor(Protocol):
    """What a session needs of an executor. ``driver_host`` is the host on which the user's loop runs.

    ``stop`` may be called from any thread, also while ``start`` is under way (which then raises `Cancelled`), and more
    than once.
    """

    flow: Workflow
    layout: Layout
    driver_host: Host
    news: News

    def start(self) -> None: ...
    def stop(self) -> Ended: ...


class Iteration:
    """An iteration that has been started: what `Session.submit` gives. ``number``: counted from 0."""

    def __init__(self, session: Session, number: int) -> None:
        self.number = number
        self._session = session
        self._seconds = 0.0  # that it took; where iterations overlap, from the end of those before
        self._returned: Any = None  # by the iteration function: handles are not resolved yet
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_over = False

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the iteration, and with it all before, has ended. What the iteration function returned, resolved.

        Raises the `WorkerError` of a worker that failed in it; `Cancelled` when it was given up because an earlier one
        failed. `TimeoutError` after ``timeout`` seconds; the iteration goes on.
        """
        return self._session._outcome(self, timeout)

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once; never blocks."""
        session, number = self._session, self.number
        return self._is_over or (session._body() != number and session._loop.iterations.is_over(number))

    def __repr__(self) -> str:
        state = "going on" if not self._is_over else "done" if self._error is None else f"failed: {short(self._error)}"
        return f"Iteration({self.number} of {self._session._flow.name!r}: {state})"


class Session:
    """Runs iterations: ``session.step(batch)`` returns what the iteration function returns, resolved.

    With a plan that allows ``staleness``, ``session.submit(batch)`` starts an iteration while earlier ones go on.

    After a failure the workers that are alive stay alive, and both may be called again; the next iteration first waits
    for calls of the failed one that still compute. Attributes: ``iteration`` (how many are over).
    """

    is_dry = False

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._host = executor.driver_host
        assert self._host.loop is not None
        self._loop = self._host.loop
        self._flow = executor.flow
        # a cell that is executed meanwhile may define another one; the plan fits this one
        self._function = executor.flow.body
        if old := self._flow.outdated():
            warnings.warn(
                f"Workflow {self._flow.name!r}: the class of {', '.join(map(repr, old))} was defined anew after "
                "flow.worker(...); this run uses the "
                f"old one. Next: run the cells that make the Workflow and declare its workers again.",
                RuntimeWarning, stacklevel=3,
            )  # fmt: skip
        self._servant = Servant(f"loop of {self._flow.name}")
        self._frame: types.FrameType | None = None  # of submit() or wait(), on the stack of the thread that is inside
        self._thread = 0
        self._layout = executor.layout
        self._now = -1  # the iteration whose function is being executed, or was last; all of these are its own:
        self._body_of = partial(IterationBody, self._host, self._loop, self._layout, set())
        self._made = self._body_of(-1)
        self._next_call = 0
        self._open: deque[Iteration] = deque()  # in order: those that go on, then those that were given up
        self._untold: BaseException | None = None  # a failure that nobody has been told of
        self._ended_ns = 0  # the latest end of an iteration so far
        self.iteration = 0
        self._track = self._host.recorder.track(DRIVER, 0, ())

    # --- iterations --------------------------------------------------------------------------------------
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One iteration, to its end. Raises the `WorkerError` of a worker that failed, or what the loop itself raised.

        `ExecutorError` when the session has ended or one of its hosts has died.
        """
        one = self.submit(*args, **kwargs)
        try:
            return one.wait()
        except BaseException as error:
            if not one._is_over:  # interrupted
                self._abandon(one.number, error)
            raise

    def submit(self, *args: Any, **kwargs: Any) -> Iteration:
        """Start an iteration. It executes the iteration function, and returns while its calls may still be going on.

        When more than ``plan.staleness`` earlier iterations are unfinished it waits for the oldest first. Raises what
        the iteration function raises, or the failure of an earlier iteration; that one and all later ones are given up
        then.
        """
        self._refuse_inside("submit" if self._layout.plan.staleness else "step")
        check_iteration_call(
            self._flow.name,
            self._function,
            args,
            kwargs,
            "session.step(...) takes the arguments of the iteration function",
        )
        self._frame, self._thread = sys._getframe(), threading.get_ident()
        number = self._next_number()
        try:
            one = self._servant.do(self._begin)
            number = one.number
            with self._flow.dispatching(self):
                one._returned = self._function(*args, **kwargs)
            self._servant.do(self._leave)
            return one
        except BaseException as error:
            cause = self._abandon(number, error)
            if cause is not None:
                raise cause from cause.__cause__  # the original, with its frames, for a debugger
            raise
        finally:
            self._frame = None

    def finish(self) -> list[Any]:
        """Wait until every iteration that has been started is over. The results of those that were not.

        Raises the first failure among them, one that somebody was told of not again.
        """
        untold = [
            one for one in self._open if not one._is_over or (one._error is not None and one._error is self._untold)
        ]
        return [one.wait() for one in untold]

    # --- ranks that come and go --------------------------------------------------------------------------
    @property
    def members(self) -> dict[str, tuple[int, ...]]:
        """For each worker the ranks that take part in what is called from now on."""
        return {worker: self._loop.members.present(worker) for worker in self._layout.graph.workers}

    def join(self, worker: str, rank: int, timeout: float | None = None) -> None:
        """A rank that has a place in the plan and is absent comes. Its worker is built there. Returns when it is set
        up. From any thread.

        It takes part in all calls that the loop makes from then on. Raises the `WorkerError` of its setup (nobody else
        suffers), `PlanError` for a rank that cannot come, `TimeoutError` after ``timeout`` seconds (default: two
        minutes).
        """
        aside(lambda: self._loop.members.join(worker, rank, timeout))

    def leave(self, worker: str, rank: int) -> None:
        """A rank goes: returns at once. From any thread; rank 0 stays.

        In a call whose ranks take items from one channel that they share it finds the end of the stream at its next
        get, and the others take what it has not taken (of a get of everything it takes its share); other calls under
        way it does as ever. Then its worker is closed. `join` brings the rank back, with a new worker.
        """
        aside(lambda: self._loop.members.leave(worker, rank))

    def _outcome(self, one: Iteration, timeout: float | None) -> Any:
        """See `Iteration.wait`."""
        if not one._is_over:
            self._refuse_inside("wait")
            self._frame, self._thread = sys._getframe(), threading.get_ident()
            try:
                self._servant.do(lambda: self._wait_until_over(one.number, timeout))
            except KeyboardInterrupt:
                aside(self._loop.waiting.stop)
                raise
            finally:
                self._frame = None
        self.tell_remarks()
        if one._error is None:
            return one._result
        if one._error is self._untold:
            self._untold = None
        raise one._error from one._error.__cause__

    def tell_remarks(self, stacklevel: int = 5) -> None:
        """Warn of what was remarked since: no errors, and hardly meant."""
        while self._loop.remarks.untold:
            warnings.warn(self._loop.remarks.untold.popleft(), RuntimeWarning, stacklevel=stacklevel)

    def _refuse_inside(self, what: str) -> None:
        if self._is_inside():
            raise WorkflowError(
                f"{what}() of workflow {self._flow.name!r} was called while iteration {self._now} is going on. Next: "
                "call it after that has "
                f"returned; a second lab.session(flow, plan) can go on at the same time."
            )

    def _is_inside(self) -> bool:
        """Whether submit() or wait() is on the stack of a thread. An interrupt may have thrown it out at any line."""
        here = (
            None
            if self._frame is None
            else sys._getframe()
            if self._thread == threading.get_ident()
            else _frame_of(self._thread)
        )
        while here is not None:
            if here is self._frame:
                return True
            here = here.f_back
        return False

    def _body(self) -> int | None:
        """The iteration whose function is being executed."""
        call = self._host.driver.call
        return None if call is None else call.iteration

    def _next_number(self) -> int:
        return self.iteration + len(self._open)

    def _begin(self) -> Iteration:
        if (body := self._body()) is not None:  # it was interrupted while it ended
            self._end_failed(body, Cancelled("it was interrupted"))
        self._wait_until_over(self._next_number() - 1 - self._layout.plan.staleness)
        if (failure := self._untold) is not None:
            self._untold = None
            raise failure from failure.__cause__
        self._now = self._next_number()
        self._made = self._body_of(self._now)
        self._loop.begin(self._now)
        self._open.append(Iteration(self, self._now))
        self._loop.enter(self._now)
        self._loop.waiting.for_the_late()
        return self._open[-1]

    def _leave(self) -> None:
        """The iteration function has returned."""
        self._made.seal(set(self._layout.graph_channels()))
        self._loop.streams.counted(self._now, moved(self._made.ports.values()))
        self._loop.leave(self._now)

    def _wait_until_over(self, number: int, timeout: float | None = None) -> None:
        """Wait for this iteration and all before it. What has ended is taken in, in order."""
        self._loop.waiting.until_over(number, timeout)
        while True:
            if (failed := self._loop.iterations.first_failed()) is not None:
                self._tell_later(self._end_failed(failed, Cancelled("it has failed"))[1])
            if not self._open or not self._open[0].done():
                return
            if not (one := self._open[0])._is_over:
                self._collect(one)
            self._open.popleft()
            self.iteration += 1
            self._loop.broadcast(Retire(one.number - 1))  # values of this one may still be asked for

    def _collect(self, one: Iteration) -> None:
        """Resolve what an iteration that has ended returned."""
        try:
            one._result = self._resolved(one._returned)
        except BaseException as error:
            self._end_failed(one.number, error)
        else:
            self._end(one)
            try:
                self._ended(one.number, one._seconds, one._result)
            except WorkflowError as error:
                one._error = error
        self._tell_later(one._error)

    def _end(self, one: Iteration) -> None:
        host, recorder = self._host, self._host.recorder
        closed = self._loop.close(one.number)
        end = host.clock.now_ns() if closed.failure is not None else closed.ended_ns
        channel = recorder.name(FAILED) if one._error is not None else -1
        recorder.add(
            self._track, SpanKind.MARK, recorder.name(ITERATION), closed.began_ns, end, one.number, channel=channel
        )
        one._seconds = max(0, end - max(closed.began_ns, self._ended_ns)) / 1e9
        self._ended_ns = max(self._ended_ns, end)
        one._returned, one._is_over = None, True

    def _ended(self, number: int, seconds: float, result: Any) -> None:
        """An iteration has ended well; for those who watch."""

    def _tell_later(self, failure: BaseException | None) -> None:
        """Nobody may be waiting for it: then the next submit() raises it."""
        if isinstance(failure, (WorkerError, DeadlockError, ExecutorError, WorkflowError)):
            self._untold = self._untold or failure

    def _abandon(self, number: int, error: BaseException) -> BaseException | None:
        """End this iteration and all later ones because of ``error``. Returns the failure that it follows from, if it
        does.
        """

        def let_go() -> None:  # the servant may be waiting for something
            self._loop.give_up(number, error)
            self._loop.waiting.stop()

        def end() -> BaseException | None:
            first, failure = self._end_failed(number, error)
            if isinstance(error, Cancelled):
                return None if failure is error else failure
            if first < number:
                self._tell_later(failure)
            return None

        if self._loop.is_open():
            aside(let_go)
        return self._servant.do(end)

    def _end_failed(self, number: int, error: BaseException) -> tuple[int, BaseException | None]:
        """End this iteration, all later ones and all that were given up. So the next one finds idle workers.

        Returns the first of them, and why it was given up.
        """
        self._loop.give_up(number, error)
        first = self._loop.iterations.first_failed()
        if first is None:
            return number, None
        if (body := self._body()) is not None:
            self._loop.leave(body)
        failure, late = self._loop.iterations.failure_of(first), self._loop.waiting.settle()
        assert failure is not None
        if late:
            failure.add_note(
                f"Still busy, and not interruptible: {', '.join(late)}. The next iteration waits until "
                "they have returned."
            )
        given_up = [one for one in self._open if not one._is_over and one.number >= first]
        for one in given_up:
            one._error = (
                failure
                if one.number == first
                else Cancelled(f"Iteration {one.number} was given up, because iteration {first} failed.")
            )
            self._end(one)
        if self._layout.plan.staleness:
            later = ", ".join(str(one.number) for one in given_up[1:])
            failure.add_note(f"That was in iteration {first}{later and f'; given up with it: {later}'}.")
        return first, failure

    def _resolved(self, result: Any) -> Any:
        """Handles and lazy parts inside the returned structure become their values."""

        def value(leaf: Any) -> Any:
            found = awaited(leaf)
            return leaf if found is None else self._wait(*found)

        return rebuilt(result, value)

    def __repr__(self) -> str:
        body = self._body()
        now = f"in iteration {body}" if body is not None else f"{counted(self.iteration, 'iteration')} done"
        return f"Session({self._flow.name!r}, plan {self._layout.plan.name!r}: {now})"

    # --- dispatcher (see workflow.handles.Dispatcher) ----------------------------------------------------
    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        self._refuse_outside(f"{worker}.{method}()")
        return self._servant.do(lambda: self._call(worker, method, args, kwargs))

    def _call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        self._next_call += 1
        spec = bind(self, self._flow, self._next_call, worker, method, args, kwargs, self._now)
        for direction in (READ, WRITE):
            for channel in spec.channels(direction):
                self._made.refuse_untraced(channel, direction, worker, f"{worker}.{method}")
        for channel in spec.channels(WRITE):
            self._made.refuse_sealed(channel, f"{worker}.{method}")
        for ref in spec.refs():
            self._refuse_forgotten(f"The value of a call of {ref.producer} of iteration {ref.iteration}", ref.iteration)
        spec = self._loop.submit(spec)
        self._made.calls.append(spec)  # not before: one that could not be sent closes no channel
        return Handle(self, spec)

    def wait(self, call: CallSpec, path: tuple[tuple[str, Any], ...], timeout: float | None) -> Any:
        self._refuse_forgotten(_value_of(call), call.iteration)
        self._refuse_unreachable(call)
        return self._servant.do(lambda: self._wait(call, path, timeout))

    def _wait(self, call: CallSpec, path: tuple[tuple[str, Any], ...], timeout: float | None = None) -> Any:
        self._refuse_forgotten(_value_of(call), call.iteration)
        if call.iteration == self._now and self._body() is not None:
            self._made.seal(self._made.behind([call]))  # the loop waits for it, so it cannot add producers to those
        ranks = self._layout.ranks(call.worker)
        one = bool(path) or ranks == 1
        found = [
            self._host.values.fetch(self._host.driver, call.call_id, call.worker, r, call.iteration, timeout)
            for r in ((0,) if one else call.taken_by(ranks))
        ]
        return follow(found[0], path) if one else found

    def done(self, call: CallSpec) -> bool:
        return self._loop.is_done(call.call_id, self._layout.ranks(call.worker))

    def driver_put(
        self,
        channel: ChannelSpec,
        items: list[Any],
        key: int | None,
        weight: int | None = None,
        priority: float | None = None,
    ) -> None:
        self._refuse_outside(f"put into channel {channel.name!r}")
        self._servant.do(lambda: self._put(channel, items, key, weight, priority))

    def _put(
        self, channel: ChannelSpec, items: list[Any], key: int | None, weight: int | None, priority: float | None
    ) -> None:
        self._made.refuse_untraced(channel.name, WRITE, DRIVER, "The iteration function")
        self._made.refuse_sealed(channel.name, "The iteration function")
        self._made.port(channel.name, WRITE).put_all(items, key=key, weight=weight, priority=priority)

    def driver_get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]:
        self._refuse_outside(f"get from channel {channel.name!r}")
        return self._servant.do(lambda: self._get(channel, n, key))

    def _get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]:
        self._made.refuse_untraced(channel.name, READ, DRIVER, "The iteration function")
        self._loop.streams.reads(self._now, channel.name)
        self._made.seal(self._made.feeding(channel.name))
        items: list[Any] = self._made.port(channel.name, READ).get(ALL if n == "all" else n, key=key)
        return items

    def _refuse_unreachable(self, call: CallSpec) -> None:
        """Waiting for what will never come must not be possible."""
        what = _value_of(call)
        if self._is_inside():
            if self._thread != threading.get_ident():
                raise WorkflowError(
                    f"{what} can be waited for by the thread that executes the iteration only. Next: wait() in the "
                    "iteration function."
                )
        elif not self.done(call):
            raise WorkflowError(
                f"{what} is not here yet, and waiting for it outside the iteration function cannot end its iteration. "
                "Next: return it from the "
                "iteration function, or wait() in it; of an iteration that submit() began, wait() of what submit() "
                "gave."
            )

    def _refuse_forgotten(self, what: str, iteration: int) -> None:
        """Values live until the next iteration has ended. What begins after that one cannot count on them."""
        if iteration < (self.iteration if (body := self._body()) is None else body) - 1:
            raise WorkflowError(
                f"{what} was forgotten when iteration {iteration + 1} ended. Next: return it from the iteration "
                "function."
            )

    def _refuse_outside(self, what: str) -> None:
        if self._body() is None or not self._is_inside():
            raise WorkflowError(
                f"{what}: no iteration of workflow {self._flow.name!r} is going on. Next: do it in the iteration "
                "function."
            )



def _value_of(call: CallSpec) -> str:
    return f"The value of {call.worker}.{call.method}() of iteration {call.iteration}"


def _frame_of(thread: int) -> types.FrameType | None:
    """What another thread executes; None when it is gone.

    Without the garbage collector: a finaliser that lets other threads run there stops the interpreter for good
    (python/cpython#106883, seen in 3.11.7).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()
