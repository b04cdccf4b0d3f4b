"""The threads of a host's ranks, from their start to their end."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from rlinf_lab.errors import Cancelled, WorkerError
from rlinf_lab.planning.plan.device import whole
from rlinf_lab.runtime.host.calls.work import Calls
from rlinf_lab.runtime.host.context import HostContext, Told
from rlinf_lab.runtime.host.control.instants import Instants
from rlinf_lab.runtime.host.control.residency import Residency
from rlinf_lab.runtime.host.elastic.exchange import Exchange
from rlinf_lab.runtime.host.elastic.setups import Setups, wait_for
from rlinf_lab.runtime.host.elastic.turnover import Turnover
from rlinf_lab.runtime.host.liveness.failures import lost_rank
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.machine.pinning import core_of, on_core
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.declaration import Declaration


class Ranks:
    """Of one host. ``told``: where what its workers log and draw goes."""

    def __init__(
        self,
        state: HostState,
        control: parts.RankControl,
        post: parts.Post,
        residency: Residency,
        calls: Calls,
        turnover: Turnover,
        told: Told,
        time: Instants,
        exchange: Exchange,
    ) -> None:
        self._state, self._control, self._post = state, control, post
        self._calls, self._turnover = calls, turnover
        self._setups = Setups(state, residency, post)
        self._context = partial(HostContext, told=told, time=time, exchange=exchange)
        self._torch_device: Callable[[tuple[str, ...]], str] = ", ".join
        turnover.begin_thread = self._begin_thread

    # --- starting and stopping ---------------------------------------------------------------------------------
    def start(self, declarations: dict[str, Declaration], torch_device: Callable[[tuple[str, ...]], str]) -> None:
        """Build every worker of this host, one after another, each in its own thread. Returns when all are set up.

        Not at the same time: what a setup does to its process (``torch.manual_seed`` above all) would change what the
        others draw, differently each time. Raises their `WorkerError`, or `Cancelled` when the host is stopped
        meanwhile.
        """
        state, setups = self._state, self._setups
        state.declarations, self._torch_device = declarations, torch_device
        mine = setups.at_start()
        for number, process in enumerate(mine, 1):
            with state.mutex:
                if state.stopping:  # by another thread, which joins those that have been started
                    break
                self._control.begins()
            self._begin_thread(process)
            wait_for(state.ready, partial(setups.have_come, number), process, mine[number:], self._tell)
            if state.failure is not None:
                raise state.failure
        if state.built < len(mine):
            raise Cancelled(f"Host {state.name!r} was stopped while its workers were being set up.")

    def _tell(self, about: str, text: str) -> None:
        """The user, at once."""
        with self._state.mutex:
            self._post.remark(about, text, at_once=True)
        self._post.flush()

    def _begin_thread(self, process: Process) -> None:
        names = self._state.layout.device_names(process.worker, process.rank)
        device = process.device = self._torch_device(names)
        process.on_gpu = device.startswith("cuda")
        process.own_stream = process.on_gpu and any(whole(name) != name for name in names)
        context = self._context(self._state, process)
        thread = threading.Thread(target=self._main, args=(process, context), name=process.label, daemon=True)
        thread.start()
        self._state.threads.append(thread)

    def stop(self, grace_seconds: float = 5.0) -> list[str]:
        """Cancel what waits, let every thread end, close the workers. Returns the labels of ranks that did not in time.

        What the workers' own ``close`` raised is in ``HostState.errors``.
        """
        state, control = self._state, self._control
        deadline = time.monotonic() + grace_seconds
        with state.mutex:
            state.stopping = True
            for process in state.ranks:
                process.calls.clear()
                if process.call is not None or process.waits_for == "calls":
                    control.interrupt(process, Cancelled(f"{process.label}: the run was stopped."))
                elif process.waits_for == "call":
                    control.wake(process)
        self._post.flush()
        with state.ready:
            state.ready.notify_all()
        for thread in list(state.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        return [t.name for t in list(state.threads) if t.is_alive()]

    # --- a rank's own thread -----------------------------------------------------------------------------------
    def _main(self, process: Process, context: HostContext) -> None:
        state = self._state
        if not self._is_set_up(process, context):
            return
        if not self._do_calls(process, context):
            return
        try:
            self._turnover.close(process)
        except (
            BaseException
        ) as error:  # also one that leaves: it ends this thread only, and what follows has to be said
            trace = traceback.format_exc()
            state.errors.append(WorkerError.of(process.worker, process.rank, "close", error, trace))
        if process.leaving:
            self._turnover.left(process)

    def _is_set_up(self, process: Process, context: HostContext) -> bool:
        """Build its worker. False where the thread ends by that; at the start of a run it waits to be stopped."""
        state = self._state
        start, process.thread = state.clock.now_ns(), threading.get_ident()
        failure = self._setups.set_up(process, context)
        if failure is not None and not process.joining:
            self._post.fail(failure)
        end = state.clock.now_ns()
        if end > start:
            state.recorder.add(process.track, SpanKind.SETUP, state.recorder.name("setup"), start, end)
        with state.ready:
            state.built += 1
            state.ready.notify_all()
        if process.stays_until:
            self._setups.leave_after_others(process)
        if process.joining:
            self._turnover.set_up(process, failure)
            return failure is None
        return True

    def _do_calls(self, process: Process, context: HostContext) -> bool:
        """One after another; False when the rank is lost by an error of ours."""
        core = core_of(self._state.layout, process.worker, process.rank)
        while (call := self._calls.next(process)) is not None:
            with context.during(call), on_core(core):
                try:
                    self._calls.perform(process, call)
                except BaseException as error:  # what waits for it must hear so
                    self._post.report(lost_rank(process, call, error))
                    self._post.flush()
                    return False
        return True
