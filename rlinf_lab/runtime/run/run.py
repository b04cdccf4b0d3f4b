"""A run of iterations in the background. They are observed, stopped cleanly, and never in the way of the kernel."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import numbers
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import (
    Cancelled,
    ConfigError,
    ExecutorError,
    UnknownNameError,
    WorkflowError,
    refuse_old_names,
    shown,
    with_old_names,
)
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.elastic.unfit import refuse_unfit_workers
from rlinf_lab.runtime.machine.devices import devices_here
from rlinf_lab.runtime.run.at_exit import before_what_was_loaded, end_with_program
from rlinf_lab.runtime.run.observed_session import ObservedSession, left_behind
from rlinf_lab.runtime.run.observer import Observed, Observer
from rlinf_lab.runtime.session.session import Executor, Iteration, Session
from rlinf_lab.workflow.declaration import check_iteration_call
from rlinf_lab.workflow.workflow import Workflow

if TYPE_CHECKING:
    from rlinf_lab.planning.planner.planner import Planned

EXECUTORS = ("local", "processes", "ray")
STOP_SECONDS = 30
LAST_WORDS_SECONDS = 2
ENDED = ("finished", "failed", "stopped")


@with_old_names({"resume": "run.unpause() after run.pause(); lab.resume(folder) goes on from a folder"})
class Run(Observed):
    """Handle of a run that goes on in a background thread. Made by `run`.

    Attributes: ``state`` (starting, running, paused, stopping, finished, failed, stopped), ``iteration`` (finished
    ones), ``iterations`` (asked for; None: until stopped), ``left_behind`` (ranks, or a whole process, that computed on
    when the run had ended).
    """

    def __init__(
        self,
        executor: Executor,
        iterations: int | None,
        inputs: Iterable[Any] | None = None,
        keep_results: bool | int = True,
    ) -> None:
        observer = Observer(executor, self._tell, lambda: self.stop(wait=False), self._tell_afterwards)
        self._show(executor, observer)
        self.iterations = iterations
        self.iteration = 0
        self.state = "starting"
        self.left_behind: list[str] = []
        self._told_who_was_left = False
        self._results: deque[Any] = deque(maxlen=None if keep_results is True else int(keep_results))
        self._session = ObservedSession(executor, observer)
        self._inputs = itertools.repeat(()) if inputs is None else ((one,) for one in inputs)
        self._go = threading.Event()
        self._go.set()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._started_at = time.monotonic()
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._main, name=f"run {self.flow.name}", daemon=True)

    # --- controlling ---------------------------------------------------------------------------------------
    def start(self) -> Run:
        """Begin; `run` has done it already."""
        if self._thread.ident is not None:
            raise ConfigError(f"{self!r} has been started before. Next: lab.run(...) makes another run.")
        end_with_program(self)
        self._thread.start()
        self._observer.start()
        return self

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Block until the run has ended; its `results`. Raises the worker's own exception; warns of a run that was
        stopped, or had no more inputs, before its last iteration.

        An interrupt (Ctrl-C, the kernel's stop button) stops the run cleanly and is raised again.
        ``timeout`` in seconds; `TimeoutError` when it passes first, the run goes on.
        """
        if timeout is not None and not isinstance(timeout, numbers.Real):
            raise ConfigError(f"wait(timeout={shown(timeout)}): seconds, or None. Next: wait(60), or wait().")
        deadline = None if timeout is None else time.monotonic() + float(timeout)
        try:
            while not self._ended.wait(0.1 if deadline is None else max(0.0, min(0.1, deadline - time.monotonic()))):
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{self!r} has not ended after {timeout} s; it goes on. Next: run.stop() or run.wait()."
                    )
            if threading.current_thread() is not self._thread:
                # listeners have seen the end when this returns, unless one of them lasts
                self._thread.join(LAST_WORDS_SECONDS)
        except KeyboardInterrupt:
            self.stop()
            raise
        self._warn()
        if self.error is not None:
            raise self.error
        if self.iterations is not None and self.iteration < self.iterations:
            why = "was stopped" if self.state == "stopped" else "had no more inputs"
            warnings.warn(
                f"{self!r} {why} after {self.iteration} of {self.iterations} iterations: these are the results "
                f"of those. Next: nothing, if that is meant; else lab.run(...) again.",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.results

    def stop(self, wait: bool = True) -> None:
        """End the run: the iteration that is under way is given up. Waits until nothing is left of it.

        `TimeoutError` when that takes longer than half a minute: a worker computes on.
        """
        starting = self.state == "starting"
        if self.state not in ENDED:
            self.state = "stopping"
        self._stop.set()
        self._go.set()
        loop = self._executor.driver_host.loop
        assert loop is not None
        loop.waiting.ending = True
        if starting:
            threading.Thread(target=self._executor.stop, name=f"stop {self.flow.name}", daemon=True).start()
        else:
            loop.give_up(0, Cancelled("the run was stopped"))
        if wait and threading.current_thread() is not self._thread:
            if not self._ended.wait(STOP_SECONDS):
                busy = ", ".join(sorted(loop.under_way.labels())) or "its start"
                raise TimeoutError(
                    f"{self!r} has not ended after {STOP_SECONDS} s: {busy} goes on. Next: wait, or restart the "
                    f"kernel; a method that computes for long looks at self.cancelled now and then."
                )
            self._warn()

    def _warn(self) -> None:
        # those of another process that came after the last iteration had ended
        self._session.tell_remarks(stacklevel=4)
        if self.left_behind and not self._told_who_was_left:
            self._told_who_was_left = True
            warnings.warn(left_behind(self.left_behind, self._executor.driver_host), RuntimeWarning, stacklevel=3)

    def pause(self) -> None:
        """Hold before the next iteration; the current one is finished first."""
        if self.state == "running":
            self.state = "paused"
            self._go.clear()

    def unpause(self) -> None:
        """Go on after `pause`."""
        if self.state == "paused":
            self.state = "running"
            self._go.set()

    def join(self, worker: str, rank: int, timeout: float | None = None) -> None:
        """An absent rank comes, also in the middle of an iteration; see `Session.join`."""
        self._refuse_while_starting(f"join({worker!r}, {rank!r})")
        self._session.join(worker, rank, timeout)

    def leave(self, worker: str, rank: int) -> None:
        """A rank goes, also in the middle of an iteration; see `Session.leave`."""
        self._refuse_while_starting(f"leave({worker!r}, {rank!r})")
        self._session.leave(worker, rank)

    def _refuse_while_starting(self, what: str) -> None:
        if self.state == "starting":
            raise ExecutorError(
                f"{what}: the workers of {self!r} are still being set up. Next: call it when run.state is 'running', "
                "or give absent= to run()."
            )

    @property
    def members(self) -> dict[str, tuple[int, ...]]:
        """For each worker the ranks that are there."""
        return self._session.members

    # --- looking -----------------------------------------------------------------------------------------
    @property
    def results(self) -> list[Any]:
        """What the iterations returned, as far as ``keep_results`` keeps it: all, the latest, or none."""
        return list(self._results)

    @property
    def elapsed_seconds(self) -> float:
        return self._seconds if self.state in ENDED else time.monotonic() - self._started_at

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the end at the pace of the last ten iterations. None while nothing is known."""
        pace = self._observer.table.pace()
        return None if self.iterations is None or pace is None else (self.iterations - self.iteration) * pace

    def _is_over(self) -> bool:
        return self.state in ENDED

    def __repr__(self) -> str:
        of = "" if self.iterations is None else f"/{self.iterations}"
        eta = self.eta_seconds
        rest = f", {eta:.0f} s to go" if eta and self.state == "running" else ""
        return (
            f"Run({self.flow.name!r}, plan {self.plan.name!r}: {self.state}, iteration {self.iteration}{of}, "
            f"{self.elapsed_seconds:.1f} s{rest})"
        )

    # --- the background ----------------------------------------------------------------------------------
    def _main(self) -> None:
        try:
            self._executor.start()
            before_what_was_loaded()
            if self.state == "starting":
                self.state = "running"
            self._observer.running()
            self._loop(self._session)
            outcome = "stopped" if self._stop.is_set() else "finished"
        except BaseException as error:
            outcome = "stopped" if self._stop.is_set() else "failed"
            self.error = None if outcome == "stopped" and isinstance(error, Cancelled) else error
        self._finish(outcome)

    def _loop(self, session: Session) -> None:
        open_: deque[Iteration] = deque()
        try:
            while not self._stop.is_set() and (
                self.iterations is None or self.iteration + len(open_) < self.iterations
            ):
                if not self._go.is_set():
                    self._take(open_, 0)
                    self._go.wait()
                if self._stop.is_set():
                    return
                arguments = next(self._inputs, None)
                if arguments is None:
                    break
                open_.append(session.submit(*arguments))
                self._take(open_, self.plan.staleness)
        finally:
            if not self._stop.is_set():  # after a failure, too: those before the failed one end well
                self._take(open_, 0)

    def _take(self, open_: deque[Iteration], most: int) -> None:
        """Take in what has ended, and wait until at most so many go on."""
        while open_ and (len(open_) > most or open_[0].done()):
            self._results.append(open_[0].wait())
            open_.popleft()
            self.iteration += 1

    def _finish(self, outcome: str) -> None:
        self.left_behind, problem = self._observer.stop()
        if problem is not None:
            self.error, outcome = self.error or problem, "failed"
        self._seconds = time.monotonic() - self._started_at
        self.state = outcome
        self._ended.set()
        self._observer.end()


def run(
    flow: Workflow,
    plan: ExecutionPlan | Planned | None = None,
    iterations: int | None = None,
    executor: str = "local",
    inputs: Iterable[Any] | None = None,
    keep_results: bool | int = True,
    **options: Any,
) -> Run:
    """Start a workflow under a plan; returns at once. See `rlinf_lab.run`, which also shows a dashboard."""
    check_workflow("run", flow)
    if iterations is not None and (
        not isinstance(iterations, numbers.Integral) or isinstance(iterations, bool) or iterations < 1
    ):
        raise ConfigError(
            f"run(iterations={shown(iterations)}): a whole number of at least 1, or None. Next: iterations=100, or "
            "None until run.stop()."
        )
    if inputs is not None and not isinstance(inputs, Iterable):
        raise ConfigError(
            f"run(inputs={shown(inputs)}): one argument of the iteration function for each iteration. Next: "
            "inputs=[first, second, ...]."
        )
    if not isinstance(keep_results, int) or keep_results < 0:
        raise ConfigError(
            f"run(keep_results={shown(keep_results)}): True (all), False (none), or how many of the latest. Next: "
            "keep_results=10, say."
        )
    if iterations is not None and isinstance(inputs, Sized) and len(inputs) < iterations:
        raise ConfigError(
            f"run(iterations={iterations}, inputs={shown(inputs)}): each iteration takes one input, and there are "
            f"{len(inputs)}. Next: iterations={len(inputs)}, or leave it out: a run ends with its inputs."
        )
    check_iteration_call(
        flow.name,
        flow.body,
        () if inputs is None else (None,),
        {},
        "run(flow, inputs=[...]) gives one argument to each iteration, run(flow) none",
    )
    return Run(
        make_executor(executor, flow, plan, **options),
        None if iterations is None else int(iterations),
        inputs,
        keep_results,
    ).start()


def check_workflow(who: str, flow: object) -> None:
    if not isinstance(flow, Workflow):
        raise WorkflowError(
            f"{who}() takes a Workflow, not {shown(flow)}. Next: flow = lab.Workflow('name'), its workers and its "
            "iteration."
        )


def check_executor(name: object) -> None:
    if name not in EXECUTORS:
        raise ConfigError(
            f"executor={shown(name)} is not known. Next: 'local' (threads of this process), 'processes' (of this "
            "machine) or 'ray'."
        )


def make_executor(name: str, flow: Workflow, plan: ExecutionPlan | Planned | None, **options: Any) -> Executor:
    """The executor called ``name``. ``plan``: also one of those that `lab.plan` gave; None: everything on all devices,
    one after another.
    """
    check_executor(name)
    made: Any = LocalExecutor
    if name == "ray":
        from rlinf_lab.runtime.executors.ray_executor import RayExecutor as made
    elif name == "processes":
        from rlinf_lab.runtime.executors.processes import ProcessExecutor as made
    known = list(inspect.signature(made).parameters)[2:]
    refuse_old_names("run", options, {"fillers": "a second workflow for that work, run on devices of its own"})
    for option in options:
        if option not in known:
            raise UnknownNameError.of("option", option, known, whose=f"The {name} executor")
    if plan is None:
        plan = ExecutionPlan.temporal(flow, devices_here())
    # What the planner gave has its plan inside; the planner is not imported to ask.
    given = plan if plan is None or isinstance(plan, ExecutionPlan) else getattr(plan, "execution", plan)
    executor: Executor = made(flow, given, **options)
    refuse_unfit_workers(flow, executor.layout, executor.driver_host.place)
    return executor


@contextlib.contextmanager
def session(
    flow: Workflow, plan: ExecutionPlan | Planned | None = None, executor: str = "local", **options: Any
) -> Iterator[ObservedSession]:
    """For an ordinary Python loop: ``with lab.session(flow, plan) as s: ... s.step(batch)``. Closed at the end of the
    block.

    It shows what a run shows, during the block and after it: ``s.timeline``, ``s.metrics``, ``s.frames``,
    ``s.counters``, ``s.channels()``, ``s.status()``, ``s.on_update(...)``, and `rlinf_lab.show` a dashboard of it.
    Results are yours to keep.
    """
    check_workflow("session", flow)
    made = ObservedSession(make_executor(executor, flow, plan, **options))
    problem = None
    try:
        try:
            made.open()
            yield made
        except BaseException as error:
            made.error = error
            raise
        finally:
            problem = made.close()
    except BaseException:
        made.close()  # an interrupt may have come before the other one had begun; it is done once
        raise
    if problem is not None:
        raise problem
