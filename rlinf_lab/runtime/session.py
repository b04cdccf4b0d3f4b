"""A session: the user's loop, iteration after iteration, on an executor that has been started."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf_lab.errors import Cancelled, WorkerError, WorkflowError
from rlinf_lab.planning.engine import ALL
from rlinf_lab.planning.layout import Layout
from rlinf_lab.runtime.host import Host
from rlinf_lab.runtime.servant import Servant, aside
from rlinf_lab.runtime.waits import Wait
from rlinf_lab.timeline.batch import SpanBatch
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.workflow.calls import READ, WRITE, CallSpec, bind
from rlinf_lab.workflow.channel import ChannelSpec
from rlinf_lab.workflow.declaration import check_iteration_call
from rlinf_lab.workflow.graph import DRIVER, counted
from rlinf_lab.workflow.handles import Handle, Ref
from rlinf_lab.workflow.structure import follow, rebuilt
from rlinf_lab.workflow.workflow import Workflow


@dataclass
class Ended:
    """How the workers of a run ended. ``late``: ranks that computed on and were left behind or killed; ``errors``: what ``close`` raised."""

    late: list[str] = field(default_factory=list)
    errors: list[WorkerError] = field(default_factory=list)


class Executor(Protocol):
    """What a session needs of an executor. ``driver_host`` is the host on which the user's loop runs.

    ``stop`` may be called from any thread, also while ``start`` is under way (which then raises `Cancelled`), and more than once.
    """

    flow: Workflow
    layout: Layout
    driver_host: Host

    def start(self) -> None: ...
    def drain(self) -> list[tuple[SpanBatch, int]]: ...
    def metrics(self) -> list[tuple[str, int, int, dict[str, float]]]: ...
    def rounds(self) -> int:
        """How often every host has told what was logged there."""
        ...

    def frames(self) -> dict[str, Any]: ...
    def waits(self) -> list[Wait]: ...
    def channels(self) -> list[dict[str, Any]]: ...
    def stop(self) -> Ended: ...


class Session:
    """Runs iterations one by one: ``session.step(batch)`` returns what the iteration function returns, resolved.

    After a failure the workers that are alive stay alive, and `step` may be called again; it first waits for calls of the failed
    iteration that still compute.
    """

    is_dry = False

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._host = executor.driver_host
        assert self._host.loop is not None
        self._loop = self._host.loop
        self._flow = executor.flow
        self._body = executor.flow.body  # a cell that is executed meanwhile may define another one; the plan fits this one
        if old := self._flow.outdated():
            warnings.warn(
                f"Workflow {self._flow.name!r}: the class of {', '.join(map(repr, old))} was defined anew after flow.worker(...); this run uses the "
                f"old one. Next: run the cells that make the Workflow and declare its workers again.",
                RuntimeWarning, stacklevel=3,
            )  # fmt: skip
        self._servant = Servant(f"loop of {self._flow.name}")
        self._frame: types.FrameType | None = None  # of step(), on the stack of the thread that executes an iteration
        self._thread = 0
        self._open = False  # an iteration has begun and not ended
        self._layout = executor.layout
        self._calls: list[CallSpec] = []
        self._sealed: set[str] = set()
        self._ports: dict[tuple[str, str], Any] = {}
        self._traced: set[tuple[str, str, str]] = set()  # (channel, direction, worker) that the graph has
        self._next_call = 0
        self.iteration = 0
        self._track = self._host.recorder.track(DRIVER, 0, ())

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One iteration. Raises the `WorkerError` of a worker that failed, or what the loop itself raised.

        `ExecutorError` when the session has ended or one of its hosts has died.
        """
        if self._is_stepping():
            raise WorkflowError(
                f"step() of workflow {self._flow.name!r} was called while iteration {self.iteration} is going on. Next: call it after that has "
                f"returned; a second lab.session(flow, plan) can go on at the same time."
            )
        check_iteration_call(self._flow.name, self._body, args, kwargs, "session.step(...) takes the arguments of the iteration function")
        self._frame, self._thread = sys._getframe(), threading.get_ident()
        iteration = self.iteration
        try:
            self._servant.do(self._begin)
            with self._flow.dispatching(self):
                result = self._body(*args, **kwargs)
            return self._servant.do(lambda: self._end(result))
        except BaseException as error:
            given_up = error  # (Python forgets the name `error` with this block)
            if self._open:
                aside(lambda: self._loop.give_up(iteration, given_up))  # the servant may be waiting for something
            cause = self._servant.do(lambda: self._fail(given_up))
            if cause is not None:
                raise cause from cause.__cause__  # the original, with its frames, for a debugger
            raise
        finally:
            self._frame = None

    def _is_stepping(self) -> bool:
        """Whether step() is on the stack of a thread: an interrupt may have thrown it out at any line."""
        here = sys._current_frames().get(self._thread) if self._frame is not None else None
        while here is not None:
            if here is self._frame:
                return True
            here = here.f_back
        return False

    def _begin(self) -> None:
        if self._open:  # the iteration before was interrupted while it ended
            self._fail(Cancelled("it was interrupted"))
        self._calls, self._sealed, self._ports = [], set(), {}
        self._began = self._host.clock.now_ns()
        self._loop.enter(self.iteration)
        self._open = True
        self._loop.wait_for_calls()

    def _end(self, result: Any) -> Any:
        self._seal(set(self._layout.graph_channels()))
        self._loop.broadcast(("readers", self.iteration, self._readers()))
        value = self._resolved(result)
        self._loop.wait_for_calls()
        self._leave()
        return value

    def _fail(self, error: BaseException) -> BaseException | None:
        """End the failed iteration everywhere, so that the next one finds idle workers. Returns the failure that ``error`` follows from."""
        cause = self._host.failure if isinstance(error, Cancelled) else None
        if self._open:
            self._loop.give_up(self.iteration, error)
            late = self._loop.settle()
            if late:
                note = f"Still busy, and not interruptible: {', '.join(late)}. The next step() waits until they have returned."
                (cause or error).add_note(note)
            self._leave()
        return cause

    def _leave(self) -> None:
        host, iteration = self._host, self.iteration
        self._loop.leave()
        host.recorder.add(self._track, SpanKind.MARK, host.recorder.name("iteration"), self._began, host.clock.now_ns(), iteration)
        self._open = False
        self.iteration += 1
        self._loop.broadcast(("retire", iteration - 1))  # values of this one may still be asked for

    def _readers(self) -> dict[str, dict[str, int]]:
        """For each channel, how many calls of each worker read it in this iteration."""
        found: dict[str, dict[str, int]] = {channel: {} for channel in self._layout.graph_channels()}
        for call in self._calls:
            for channel in call.channels(READ):
                found[channel][call.worker] = found[channel].get(call.worker, 0) + 1
        return found

    def _resolved(self, result: Any) -> Any:
        """Handles and lazy parts inside the returned structure become their values."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Handle):
                return self._wait(leaf._call, ())
            return self._wait(leaf._handle._call, leaf._path) if isinstance(leaf, Ref) else leaf

        return rebuilt(result, value)

    def __repr__(self) -> str:
        now = f"in iteration {self.iteration}" if self._is_stepping() else f"{counted(self.iteration, 'iteration')} done"
        return f"Session({self._flow.name!r}, plan {self._layout.plan.name!r}: {now})"

    # --- dispatcher (see workflow.handles.Dispatcher) ----------------------------------------------------
    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        self._refuse_outside(f"{worker}.{method}()")
        return self._servant.do(lambda: self._call(worker, method, args, kwargs))

    def _call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        self._next_call += 1
        spec = bind(self, self._flow, self._next_call, worker, method, args, kwargs, self.iteration)
        for direction in (READ, WRITE):
            for channel in spec.channels(direction):
                self._refuse_untraced(channel, direction, worker, f"{worker}.{method}")
        for channel in spec.channels(WRITE):
            self._refuse_sealed(channel, f"{worker}.{method}")
        self._loop.submit(spec)
        self._calls.append(spec)  # not before: one that could not be sent closes no channel
        return Handle(self, spec)

    def wait(self, call: CallSpec, path: tuple[tuple[str, Any], ...], timeout: float | None) -> Any:
        self._refuse_forgotten(call)
        self._refuse_unreachable(call)
        return self._servant.do(lambda: self._wait(call, path, timeout))

    def _wait(self, call: CallSpec, path: tuple[tuple[str, Any], ...], timeout: float | None = None) -> Any:
        self._refuse_forgotten(call)
        self._seal(self._upstream(call))
        ranks = self._layout.ranks(call.worker)
        host, driver = self._host, self._host.driver
        if path or ranks == 1:
            return follow(host.fetch(driver, call.call_id, call.worker, 0, call.iteration, timeout), path)
        return [host.fetch(driver, call.call_id, call.worker, r, call.iteration, timeout) for r in range(ranks)]

    def done(self, call: CallSpec) -> bool:
        return self._loop.is_done(call.call_id, self._layout.ranks(call.worker))

    def driver_put(self, channel: ChannelSpec, items: list[Any], key: int | None) -> None:
        self._refuse_outside(f"put into channel {channel.name!r}")
        self._servant.do(lambda: self._put(channel, items, key))

    def _put(self, channel: ChannelSpec, items: list[Any], key: int | None) -> None:
        self._refuse_untraced(channel.name, WRITE, DRIVER, "The iteration function")
        self._refuse_sealed(channel.name, "The iteration function")
        self._port(channel.name, WRITE).put_all(items, key=key)

    def driver_get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]:
        self._refuse_outside(f"get from channel {channel.name!r}")
        return self._servant.do(lambda: self._get(channel, n, key))

    def _get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]:
        self._refuse_untraced(channel.name, READ, DRIVER, "The iteration function")
        self._seal(self._above([channel.name]))
        items: list[Any] = self._port(channel.name, READ).get(ALL if n == "all" else n, key=key)
        return items

    def _port(self, channel: str, direction: str) -> Any:
        from rlinf_lab.runtime.ports import InboxPort, OutboxPort

        if (channel, direction) not in self._ports:
            cls = OutboxPort if direction == WRITE else InboxPort
            self._ports[channel, direction] = cls(self._host, self._host.driver, channel, self.iteration)
        return self._ports[channel, direction]

    # --- the end of streams ------------------------------------------------------------------------------
    def _upstream(self, call: CallSpec) -> set[str]:
        """The channels whose end this call may depend on: the loop waits for it, so it cannot add producers to them."""
        return self._above(call.channels(READ))

    def _above(self, channels: list[str]) -> set[str]:
        found: set[str] = set()
        open_ = list(channels)
        while open_:
            channel = open_.pop()
            if channel not in found:
                found.add(channel)
                for spec in self._calls:
                    if channel in spec.channels(WRITE):
                        open_ += spec.channels(READ)
        return found

    def _seal(self, channels: set[str]) -> None:
        new = channels - self._sealed
        if not new:
            return
        self._sealed |= new
        graph, expected = self._layout.graph, {}
        for channel in sorted(new):
            calls = [c for c in self._calls for name in c.channels(WRITE) if name == channel]
            expected[channel] = sum(self._layout.closes(channel, c.worker) for c in calls)
            if DRIVER in graph.producers(channel):
                expected[channel] += 1
                self._loop.close_channel(channel)
        self._loop.broadcast(("seal", self.iteration, expected))

    def _refuse_untraced(self, channel: str, direction: str, worker: str, who: str) -> None:
        """The plan has no place for what the dry run has not seen."""
        if (channel, direction, worker) in self._traced:
            return
        graph = self._layout.graph
        names = graph.channels_by_name()
        seen = () if channel not in names else graph.consumers(channel) if direction == READ else graph.producers(channel)
        if worker not in seen:
            does = "reads from" if direction == READ else "writes to"
            others = f"; there, {', '.join(seen)} did" if seen else ""
            raise WorkflowError(
                f"{who} {does} channel {channel!r}, which it did not do in the dry run of workflow {graph.name!r} (repr(flow.graph)){others}. The "
                f"plan was made for that. Next: let branches depend on arguments and on values as they are (`value.wait() > 3`: both ways are "
                f"tried), not on variables outside, random numbers, len(value) or float(value)."
            )
        self._traced.add((channel, direction, worker))

    def _refuse_unreachable(self, call: CallSpec) -> None:
        """Waiting for what will never come must not be possible."""
        what = _value_of(call)
        if self._is_stepping():
            if self._thread != threading.get_ident():
                raise WorkflowError(f"{what} can be waited for by the thread that executes the iteration only. Next: wait() in the iteration function.")
        elif not self.done(call):
            raise WorkflowError(f"{what} is not here, and no iteration is going on. Next: return it from the iteration function, or wait() in it.")

    def _refuse_forgotten(self, call: CallSpec) -> None:
        if call.iteration < self.iteration - 1:
            raise WorkflowError(
                f"{_value_of(call)} was forgotten when iteration {call.iteration + 1} ended. Next: return it from the iteration function."
            )

    def _refuse_outside(self, what: str) -> None:
        if not self._is_stepping():
            raise WorkflowError(f"{what}: no iteration of workflow {self._flow.name!r} is going on. Next: do it in the iteration function.")

    def _refuse_sealed(self, channel: str, who: str) -> None:
        if channel in self._sealed:
            raise WorkflowError(
                f"{who} writes to channel {channel!r} after the loop waited for something downstream of it: its stream of this "
                f"iteration has ended. Next: make the call before the wait()."
            )


def _value_of(call: CallSpec) -> str:
    return f"The value of {call.worker}.{call.method}() of iteration {call.iteration}"
