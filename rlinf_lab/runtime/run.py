"""A run: iterations in the background, observed while they happen, stopped cleanly, never in the way of the kernel."""

from __future__ import annotations

import contextlib
import inspect
import logging
import numbers
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from rlinf_lab.errors import Cancelled, ConfigError, UnknownNameError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.planner import Planned
from rlinf_lab.runtime.devices import devices
from rlinf_lab.runtime.local import LocalExecutor
from rlinf_lab.runtime.session import Ended, Executor, Session
from rlinf_lab.runtime.waits import Wait, explained
from rlinf_lab.timeline.sampler import UtilisationSampler
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.declaration import check_iteration_call
from rlinf_lab.workflow.workflow import Workflow

PUMP_SECONDS = 0.1
STOP_SECONDS = 30
STILL_SECONDS = 3
ENDED = ("finished", "failed", "stopped")


class Run:
    """Handle of a run that goes on in a background thread. Made by `run`.

    Attributes: ``state`` (starting, running, paused, stopping, finished, failed, stopped), ``iteration`` (finished ones),
    ``iterations`` (asked for; None: until stopped), ``results`` (what the loop returned), ``timeline`` (grows live),
    ``left_behind`` (ranks that computed on when the run had ended).
    """

    def __init__(self, executor: Executor, iterations: int | None, inputs: Iterable[Any] | None = None) -> None:
        self.flow, self.plan = executor.flow, executor.layout.plan
        self.iterations = iterations
        self.iteration = 0
        self.state = "starting"
        self.results: list[Any] = []
        self.timeline = Timeline(self.plan.devices)
        self.error: BaseException | None = None
        self.left_behind: list[str] = []
        self._executor = executor
        self._session = Session(executor)
        self._inputs = None if inputs is None else iter(inputs)
        self._rows: dict[int, dict[str, float]] = {}
        self._logged: dict[tuple[int, str], dict[tuple[str, int], float]] = {}
        self._lock = threading.RLock()
        self._go = threading.Event()
        self._go.set()
        self._stop = threading.Event()
        self._broken: BaseException | None = None  # what the pump could not collect
        self._ended = threading.Event()
        self._listeners: list[Callable[[Run], None]] = []
        self._sampler = UtilisationSampler(executor.driver_host.recorder)
        self._started_at = self._running_since = time.monotonic()
        self._moved_at = self._running_since
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._main, name=f"run {self.flow.name}", daemon=True)
        self._pump = threading.Thread(target=self._pumping, name=f"pump {self.flow.name}", daemon=True)

    # --- controlling ---------------------------------------------------------------------------------------
    def start(self) -> Run:
        self._thread.start()
        self._pump.start()
        return self

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Block until the run has ended; what each iteration returned. Raises the worker's own exception.

        An interrupt (Ctrl-C, the kernel's stop button) stops the run cleanly and is raised again.
        ``timeout`` in seconds; `TimeoutError` when it passes first, the run goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._ended.wait(0.1 if deadline is None else max(0.0, min(0.1, deadline - time.monotonic()))):
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"{self!r} has not ended after {timeout} s; it goes on. Next: run.stop() or run.wait().")
        except KeyboardInterrupt:
            self.stop()
            raise
        self._warn()
        if self.error is not None:
            raise self.error
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
        loop.ending = True
        if starting:
            threading.Thread(target=self._executor.stop, name=f"stop {self.flow.name}", daemon=True).start()
        else:
            loop.give_up(self.iteration, Cancelled("the run was stopped"))
        if wait and threading.current_thread() is not self._thread:
            if not self._ended.wait(STOP_SECONDS):
                raise TimeoutError(f"{self!r} has not ended after {STOP_SECONDS} s: {', '.join(loop.busy()) or 'its start'} goes on.")
            self._warn()

    def _warn(self) -> None:
        if self.left_behind:
            warnings.warn(left_behind(self.left_behind), RuntimeWarning, stacklevel=3)

    def pause(self) -> None:
        """Hold before the next iteration; the current one is finished first."""
        if self.state == "running":
            self.state = "paused"
            self._go.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self.state == "paused":
            self.state = "running"
            self._go.set()

    def on_update(self, listener: Callable[[Run], None]) -> None:
        """Call ``listener(run)`` from the background about ten times a second, and once after the end.

        One that raises is logged (logger ``rlinf_lab``) and not called again; the run goes on.
        """
        self._listeners.append(listener)

    # --- looking -----------------------------------------------------------------------------------------
    @property
    def metrics(self) -> pd.DataFrame:
        """One row for each finished iteration: ``iteration``, ``seconds``, what the loop returned, what workers logged."""
        with self._lock:
            return pd.DataFrame([{"iteration": i, **row} for i, row in sorted(self._rows.items()) if "seconds" in row])

    @property
    def frames(self) -> dict[str, Any]:
        """The latest picture of each source, uint8, H×W×3."""
        return self._executor.frames()

    @property
    def counters(self) -> dict[str, float]:
        """The latest load of each device, 0 to 1, and what else was sampled, by its name in the timeline."""
        samples = self.timeline.counters()
        last = samples.groupby("name")["value"].last()
        latest = {str(name): float(value) for name, value in last.items()}
        return {**latest, **device_loads(latest)}

    @property
    def elapsed_seconds(self) -> float:
        return self._seconds if self.state in ENDED else time.monotonic() - self._started_at

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the end at the pace of the last ten iterations; None while nothing is known."""
        with self._lock:
            recent = [row["seconds"] for _, row in sorted(self._rows.items())[-10:] if "seconds" in row]
        if self.iterations is None or not recent:
            return None
        return (self.iterations - self.iteration) * sum(recent) / len(recent)

    def waits(self) -> list[Wait]:
        """Which ranks wait now, for what and for whom."""
        return self._executor.waits() if self.state not in ENDED else []

    def status(self) -> str:
        """In words: the state, who waits for what, who computes, the cycle if they wait for each other, and how long nothing moved."""
        still = self.still_seconds
        note = [f"nothing has moved for {still:.0f} s:"] if still >= STILL_SECONDS else []
        return "\n".join([repr(self), *(f"  {line}" for line in [*note, *self._doing()])])

    @property
    def still_seconds(self) -> float:
        """For how long nothing was recorded: no call or wait has ended. 0 before the start, between iterations and after the end."""
        driver = self._executor.driver_host.driver
        return time.monotonic() - self._moved_at if self.state == "running" and driver.call is not None else 0.0

    def standstill(self) -> list[str]:
        """Why nothing moves, a line each; empty while something has moved within the last `STILL_SECONDS`."""
        still = self.still_seconds
        return [f"Nothing has moved for {still:.0f} s", *self._doing()] if still >= STILL_SECONDS else []

    def _doing(self) -> list[str]:
        """Who waits for whom, who computes, and the cycle."""
        waits, loop = self.waits(), self._executor.driver_host.loop
        waiting = {wait.who for wait in waits}
        calls = loop.open_calls() if loop is not None and self.state not in ENDED else []
        return [*explained(waits), *(f"{call} computes" for call in sorted(calls) if call.split(".")[0] not in waiting)]

    def channels(self) -> pd.DataFrame:
        """Depth, puts and gets of every live queue."""
        return pd.DataFrame(self._executor.channels())

    def __repr__(self) -> str:
        of = "" if self.iterations is None else f"/{self.iterations}"
        eta = self.eta_seconds
        rest = f", {eta:.0f} s to go" if eta and self.state == "running" else ""
        return f"Run({self.flow.name!r}, plan {self.plan.name!r}: {self.state}, iteration {self.iteration}{of}, {self.elapsed_seconds:.1f} s{rest})"

    # --- the background ----------------------------------------------------------------------------------
    def _main(self) -> None:
        try:
            self._executor.start()
            self._running_since = time.monotonic()
            if self.state == "starting":
                self.state = "running"
            self._sampler.start()
            self._loop(self._session)
            outcome = "stopped" if self._stop.is_set() else "finished"
        except Cancelled as error:
            outcome = "stopped" if self._stop.is_set() else "failed"
            self.error = None if outcome == "stopped" else error
        except BaseException as error:
            outcome, self.error = ("stopped" if self._stop.is_set() else "failed"), error
        self._finish(outcome)

    def _loop(self, session: Session) -> None:
        while not self._stop.is_set() and (self.iterations is None or self.iteration < self.iterations):
            self._go.wait()
            if self._stop.is_set():
                return
            arguments = self._next_input()
            if arguments is None:
                return
            start = time.monotonic()
            result = session.step(*arguments)
            self._record(result, time.monotonic() - start)

    def _next_input(self) -> tuple[Any, ...] | None:
        if self._inputs is None:
            return ()
        try:
            return (next(self._inputs),)
        except StopIteration:
            return None

    def _record(self, result: Any, seconds: float) -> None:
        with self._lock:
            row = self._rows.setdefault(self.iteration, {})
            row["seconds"] = seconds
            row.update(_numbers(result))
            self.results.append(result)
            self.iteration += 1

    def _pumping(self) -> None:
        while not self._ended.wait(PUMP_SECONDS):
            try:
                self._collect()
            except Exception as error:  # a full disk, say; what was not collected is gone, so the run is not worth going on
                self._broken = error
                self.stop(wait=False)
                return
            self._tell()

    def _collect(self) -> None:
        """Take what was recorded and logged since the last time."""
        with self._lock:
            for batch, offset_ns in self._executor.drain():
                if len(batch):
                    self._moved_at = time.monotonic()
                self.timeline.extend(batch, offset_ns)
            for worker, rank, iteration, values in self._executor.metrics():
                self._log(worker, rank, iteration, values)

    def _log(self, worker: str, rank: int, iteration: int, values: dict[str, float]) -> None:
        """A rank's last value counts; of several ranks, the mean."""
        for name, value in values.items():
            ranks = self._logged.setdefault((iteration, name), {})
            ranks[worker, rank] = value
            self._rows.setdefault(iteration, {})[name] = sum(ranks.values()) / len(ranks)

    def _tell(self) -> None:
        for listener in list(self._listeners):
            try:
                listener(self)
            except Exception:
                self._listeners.remove(listener)
                logging.getLogger("rlinf_lab").exception("%r raised; it is not called any more.", listener)

    def _finish(self, outcome: str) -> None:
        self._sampler.stop()
        try:
            ended = self._executor.stop()
            self.left_behind = ended.late
            problem = self._broken or next(iter(ended.errors), None)
        except BaseException as error:
            problem = error
        if problem is not None:
            self.error = self.error or problem
            outcome = "failed"
        try:
            self._collect()
        except Exception as error:
            self.error, outcome = self.error or error, "failed"
        self._seconds = time.monotonic() - self._started_at
        self.state = outcome
        self._ended.set()
        with contextlib.suppress(RuntimeError):
            self._pump.join(1.0)
        self._tell()


def run(
    flow: Workflow,
    plan: ExecutionPlan | Planned | None = None,
    iterations: int | None = None,
    executor: str = "local",
    inputs: Iterable[Any] | None = None,
    **options: Any,
) -> Run:
    """Start a workflow under a plan; returns at once.

    ``iterations``: how many (None: until the inputs end, or until stopped). ``inputs``: one argument of the iteration function
    for each iteration. ``executor``: ``"local"`` (threads here) or ``"ray"``. ``options`` go to the executor
    (``address`` of a Ray cluster). Raises `PlanError`, `WorkflowError` or `ConfigError` before anything starts.
    """
    if iterations is not None and (not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1):
        raise ConfigError(f"run(iterations={iterations!r}): a whole number of at least 1, or None.")
    if inputs is not None and not isinstance(inputs, Iterable):
        raise ConfigError(f"run(inputs={inputs!r}): one argument of the iteration function for each iteration. Next: inputs=[first, second, ...].")
    if isinstance(flow, Workflow):
        one = () if inputs is None else (None,)
        check_iteration_call(flow.name, flow.body, one, {}, "run(flow, inputs=[...]) gives one argument to each iteration, run(flow) none")
    return Run(make_executor(executor, flow, plan or ExecutionPlan.temporal(flow, devices()), **options), iterations, inputs).start()


def make_executor(name: str, flow: Workflow, plan: ExecutionPlan | Planned, **options: Any) -> Executor:
    """The executor called ``name``. ``plan``: also one of those that `lab.plan` gave."""
    if name not in ("local", "ray"):
        raise ConfigError(f"executor={name!r} is not known; use 'local' (threads in this process) or 'ray'.")
    made: Any = LocalExecutor
    if name == "ray":
        from rlinf_lab.runtime.ray_executor import RayExecutor as made
    known = list(inspect.signature(made).parameters)[2:]
    for option in options:
        if option not in known:
            raise UnknownNameError.of(f"option of the {name} executor", option, known)
    return made(flow, plan.execution if isinstance(plan, Planned) else plan, **options)


@contextlib.contextmanager
def session(flow: Workflow, plan: ExecutionPlan | Planned | None = None, executor: str = "local", **options: Any) -> Iterator[Session]:
    """For an ordinary Python loop: ``with lab.session(flow, plan) as s: ... s.step(batch)``. Closed at the end of the block."""
    chosen = make_executor(executor, flow, plan or ExecutionPlan.temporal(flow, devices()), **options)
    made = Session(chosen)
    try:
        chosen.start()
        yield made
    except BaseException:
        _report(chosen.stop())
        raise
    ended = chosen.stop()
    _report(ended)
    if ended.errors:
        raise ended.errors[0]


def _report(ended: Ended) -> None:
    if ended.late:
        warnings.warn(left_behind(ended.late), RuntimeWarning, stacklevel=4)


def left_behind(late: list[str]) -> str:
    """What to tell the user about ranks that did not end."""
    return f"{', '.join(late)} did not end in time: a thread of this process computes on until its call returns; a process of Ray was killed."


def device_loads(sampled: dict[str, float]) -> dict[str, float]:
    """Load of each device, 0 to 1, from percentages as `UtilisationSampler` names them: ``cpu:i`` of a node is its i-th core there."""
    loads: dict[str, float] = {}
    cores: dict[str, list[tuple[int, float]]] = {}
    for name, value in sampled.items():
        if match := re.fullmatch(r"(node\d+/)?(?:core (\d+)|(cuda:\d+)) %", name):
            node, core, gpu = match[1] or "", match[2], match[3]
            if gpu:
                loads[node + gpu] = value / 100
            else:
                cores.setdefault(node, []).append((int(core), value))
    for node, found in cores.items():
        loads |= {f"{node}cpu:{i}": value / 100 for i, (_, value) in enumerate(sorted(found))}
    return loads


def _numbers(result: Any) -> dict[str, float]:
    if isinstance(result, numbers.Real):
        return {"result": float(result)}
    if isinstance(result, dict):
        return {str(k): float(v) for k, v in result.items() if isinstance(v, numbers.Real)}
    return {}
