"""Where a run meets the notebook: the live dashboard.

It is fed from the background while the cell (or the next one) is busy.
"""

from __future__ import annotations

import io
import operator
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlinf_lab.errors import ConfigError, said, shown
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import Planned
from rlinf_lab.runtime.run import observer
from rlinf_lab.runtime.run.observed_session import ObservedSession
from rlinf_lab.runtime.run.run import ENDED, Run
from rlinf_lab.runtime.run.run import run as run_in_background
from rlinf_lab.workflow.workflow import Workflow

if TYPE_CHECKING:
    from rlinf_lab.widgets.dashboard import Dashboard
    from rlinf_lab.widgets.express import Beat

MESSAGE = 300  # characters of an error on the dashboard


def run(
    flow: Workflow,
    plan: ExecutionPlan | Planned | None = None,
    iterations: int | None = None,
    executor: str = "local",
    inputs: Iterable[Any] | None = None,
    dashboard: bool | None = None,
    keep_results: bool | int = True,
    **options: Any,
) -> Run:
    """Start a workflow under a plan; returns at once. In a notebook a live dashboard appears below the cell.

    ``iterations``: how many (None: until the inputs end, or until stopped). ``inputs``: one argument of the iteration function for
    each iteration. ``executor``: ``"local"`` (threads here, breakpoints work), ``"processes"`` or ``"ray"``. ``dashboard``: None shows it in a
    notebook only. ``keep_results``: all that the iterations return, which `Run.wait` gives back (True), nothing (False), or so many of the
    latest; for a run without end, or one that returns weights. Metrics and timeline are kept in any case: 8 bytes a number, 56 a
    span. ``options`` go to the executor: ``address`` of a Ray cluster; ``emulate=True`` for more CPU slots than cores; ``between_nodes`` of Ray: what large
    arrays take, ``"stream"`` (TCP), or ``"gloo"``; ``between_gpus`` of different processes: ``"ipc"`` (CUDA's
    memory handles), ``"nccl"`` or ``"host"``; ``check_items=True``: an item that is changed between its put and its get is an error.

    Raises `PlanError`, `WorkflowError` or `ConfigError` before anything starts; a worker's own exception comes from `Run.wait`.
    """
    started = run_in_background(flow, plan, iterations, executor, inputs, keep_results, **options)
    if in_notebook() if dashboard is None else dashboard:
        try:
            show(started)
        except BaseException:  # interrupted: nobody has a handle to stop it with
            started.stop(wait=False)
            raise
    return started


def in_notebook() -> bool:
    """True in a kernel that can show widgets."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def show(
    run: Run | ObservedSession | Any,
    charts: Iterable[str] = ("success_rate", "return|reward", "value_loss|loss"),
    controls: Mapping[str, Callable[[], object]] | None = None,
) -> Any:
    """Display the live dashboard of a run, a training or a session.

    Also of one that has ended. Returns the `Dashboard`.

    ``charts``: which metrics to plot; those that the run does not have are left out. "a|b" is b where the run has no a.
    ``controls``: what the buttons "pause", "resume" and "stop" do, where that is not the run's own.
    """
    if not isinstance(run, (Run, ObservedSession)) and callable(own := getattr(run, "show", None)):
        return own()
    if not isinstance(run, (Run, ObservedSession)):
        raise ConfigError(f"show() takes a Run or a session, not {shown(run)}. Next: lab.show(lab.run(flow)); a workflow or a timeline displays itself.")
    wished = () if isinstance(charts, str) or not isinstance(charts, Iterable) else tuple(charts)
    if not wished or not all(isinstance(name, str) for name in wished):
        raise ConfigError(f"show(charts={shown(charts)}): names of metrics. Next: charts=['loss', ...].")
    if isinstance(run, Run) and controls is None:
        controls = {"pause": run.pause, "resume": run.unpause, "stop": lambda: run.stop(wait=False)}
    return shown_live(run, run, wished, controls).board


class Shown(NamedTuple):
    """A dashboard on a page."""

    board: Dashboard
    place: Any
    """where it is displayed: a handle of IPython, or None"""
    tell: Callable[[], None]
    """tells it what has become of the run, beside what it hears by itself"""


def shown_live(
    run: Run | ObservedSession, told: Any, charts: Sequence[str], controls: Mapping[str, Callable[[], object]] | None = None, before: Shown | None = None
) -> Shown:
    """Display the dashboard of ``run``. ``told``: what it reads, the run or something that speaks for it. ``before``: a dashboard that it replaces."""
    from IPython.display import display

    from rlinf_lab.widgets.dashboard import Dashboard

    board = Dashboard(told.flow.name, told.plan.name, told.plan.devices, told.iterations, charts, controls is not None, CLOCK_SECONDS)
    if controls is not None:
        board.on_command(partial(_obey, controls))
    board.on_sample(run.sample_of_bar)
    if before is None or before.place is None:
        place = display(board, display_id=True)
    else:
        place = before.place
        board.replace(before.board, place)
    feeder = _Feeder(told, board, place)
    run.on_update(lambda _: feeder(told), afterwards=lambda _: feeder.account(told), glances=feeder.glances)
    return Shown(board, place, lambda: feeder(told))


def _obey(commands: Mapping[str, Callable[[], object]], command: str) -> None:
    commands[command]()


CLOCK_SECONDS = 0.5  # between messages that tell more than spans: progress, metrics, load, pictures

PAUSED = "paused"
GOING_ON = ("running", "stopping")
FIRST_SECONDS = 5.0  # between the stored pictures of the beginning, growing by as much each time
FIRST_PICTURES = 3
_REST = 5000  # later ones take a 5000th of a core


class _Feeder:
    """Called from the background of the run, eight times a second. Spans are sent each time, the rest twice a second, and at once where the state changes.

    As soon as it can, it has the kernel's thread that sends come for the spans instead: the least that a worker is disturbed. It is called twice a second then.
    """

    def __init__(self, run: Run | ObservedSession, board: Dashboard, handle: Any) -> None:
        from PIL import Image

        Image.preinit()  # now: loading it takes longer than all that is sent in ten seconds, and should not be the run's time
        self._board, self._handle = board, handle
        self._version = 0  # of the metrics that were sent
        self._pictured: list[Any] = []
        self._due = 0.0  # when what is not spans is told again
        self._state = ""  # of the run, as it was told
        self._closed = False
        self._keep_due, self._kept, self._kept_state = 0.0, 0, ""
        self._beat: Beat | None = None
        self(run)

    def __call__(self, run: Run | ObservedSession) -> None:
        if self._closed:
            return
        try:
            self._tell(run)
        except BaseException:  # it is not called any more: nor are glances to go on, as if all were well
            self._closed = True
            raise

    def _tell(self, run: Run | ObservedSession) -> None:
        now, glances = run.state, self.glances()
        final = now in ENDED
        if self._board.is_closed and not final:  # the end it shall know all the same: its picture can be asked for
            return
        if time.monotonic() < self._due and now == self._state and not final:
            if not glances:
                self._board.push_spans(run.timeline, iteration=run.iteration)
                self._have_glances(run)
            return
        # Where only this one listens it comes as often, and a little early now and then.
        self._due, self._state = time.monotonic() + CLOCK_SECONDS - observer.LOOK_SECONDS / 2, now
        rows, self._version = run.metrics_since(self._version)
        still = run.standstill()
        state = {
            "state": now, "iteration": run.iteration, "iterations": run.iterations, "elapsed_seconds": run.elapsed_seconds,
            "eta_seconds": run.eta_seconds, "message": said(run.error).split("\n", 1)[0][:MESSAGE] if run.error else "",
            "standstill": still.lines() if still else [], "waits": still.graph.drawn() if still else {}, "load_note": load_note(run.missing_curves),
            "plan_note": getattr(run, "plan_note", ""),
        }  # fmt: skip
        until = run.now_ns if now in GOING_ON else None
        picture = self._picture(run.frames, final)
        self._board.push(state, rows, run.timeline, utilisation(run), picture, final, bubbles=False, now_ns=until, later=glances)
        if final:
            self._closed = True
            if self._handle is not None and not self._board.is_closed:
                self._board.renew(self._handle)  # the stored picture is then that of the end

    def glances(self) -> bool:
        """Whether the thread that sends comes for the spans, or nobody wants them.

        The user may have closed the dashboard.
        """
        return self._board.is_closed or (self._beat is not None and self._beat.goes_on())

    def _have_glances(self, run: Run | ObservedSession) -> None:
        """From now on, where something is going on. Raises what went wrong in that thread."""
        if self._beat is not None:
            self._beat.stop()
            if self._beat.problem is not None:
                raise self._beat.problem
        if run.glance():
            self._beat = self._board.every(observer.LOOK_SECONDS, partial(self._glance, run))

    def _glance(self, run: Run | ObservedSession) -> bool:
        """In the thread that sends, which others want, too: it waits for nobody."""
        if self._closed or self._board.is_closed or not run.glance():
            return False
        now = run.state
        self._board.push_spans(run.timeline, wait=False, state=None if now in ENDED else now, iteration=run.iteration)  # of the end the run tells by itself
        return True

    def account(self, _run: Run | ObservedSession) -> None:
        """Device time and bubbles, and the stored picture.

        After the spans have left, for it takes longer and is looked at later.
        """
        if not self._closed and not self._board.is_closed:
            if self._handle is not None and (time.monotonic() >= self._keep_due or self._state == PAUSED != self._kept_state):
                self._keep()
            self._board.account()

    def _keep(self) -> None:
        """The stored picture as it is now.

        Soon after the start, and then as often as the time that it takes allows; at once when it is paused.
        """
        began = time.thread_time()
        if self._board.keep():
            self._kept, self._kept_state = self._kept + 1, self._state
            took = time.thread_time() - began
            # The first ones load what the later ones have.
            self._keep_due = time.monotonic() + (FIRST_SECONDS * self._kept if self._kept <= FIRST_PICTURES else max(FIRST_SECONDS, _REST * took))

    def _picture(self, frames: dict[str, Any], final: bool) -> bytes | None:
        """Encoded when there is a new one, and no oftener than the board shows it."""
        latest = [frames[name] for name in sorted(frames)][:4]
        same = len(latest) == len(self._pictured) and all(map(operator.is_, latest, self._pictured))
        if not latest or (not final and (same or not self._board.wants_frame())):
            return None
        self._pictured = latest
        return side_by_side(latest)


def utilisation(run: Run | ObservedSession) -> dict[str, float]:
    """The latest load of each of the plan's devices, 0 to 1. As the sampler saw it."""
    latest = run.counters
    found = {}
    for device in run.plan.devices:
        value = latest.get(device)
        if value is not None:
            found[device] = value
    return found


def load_note(missing: Mapping[str, str]) -> str:
    """Why there are no curves of GPUs, by host, in a line."""
    problems = set(missing.values())
    said = problems if len(problems) == 1 else [f"{host}: {problem}" for host, problem in sorted(missing.items())]
    return f"No GPU curves: {'; '.join(said)}" if missing else ""


def side_by_side(pictures: Sequence[Any]) -> bytes:
    """One JPEG, as high as the lowest of them."""
    from PIL import Image

    images = [np.asarray(picture) for picture in pictures]
    height = min(i.shape[0] for i in images)
    strip = np.concatenate([i[:height] for i in images], axis=1)
    buffer = io.BytesIO()
    Image.fromarray(strip).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
