"""Where a run meets the notebook: the live dashboard, fed from the background while the cell (or the next one) is busy."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.planner import Planned
from rlinf_lab.runtime.run import ENDED, Run
from rlinf_lab.runtime.run import run as run_in_background
from rlinf_lab.workflow.workflow import Workflow


def run(
    flow: Workflow,
    plan: ExecutionPlan | Planned | None = None,
    iterations: int | None = None,
    executor: str = "local",
    inputs: Iterable[Any] | None = None,
    dashboard: bool | None = None,
    **options: Any,
) -> Run:
    """Start a workflow under a plan; returns at once. In a notebook a live dashboard appears below the cell.

    ``iterations``: how many (None: until the inputs end, or until stopped). ``inputs``: one argument of the iteration function for
    each iteration. ``executor``: ``"local"`` (threads here, breakpoints work) or ``"ray"``. ``dashboard``: None shows it in a
    notebook only. ``options`` go to the executor (``address`` of a Ray cluster).

    Raises `PlanError`, `WorkflowError` or `ConfigError` before anything starts; a worker's own exception comes from `Run.wait`.
    """
    started = run_in_background(flow, plan, iterations, executor, inputs, **options)
    if in_notebook() if dashboard is None else dashboard:
        show(started)
    return started


def in_notebook() -> bool:
    """True in a kernel that can show widgets."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def show(run: Run, charts: Iterable[str] = ("success_rate", "return", "value_loss")) -> Any:
    """Display the live dashboard of a run, also of one that has ended. Returns the `Dashboard`."""
    if not isinstance(run, Run):
        raise ConfigError(f"show({str(run)[:60]!r}): a Run is needed. Next: lab.show(lab.run(flow)); a workflow or a timeline displays itself.")
    from IPython.display import display

    from rlinf_lab.widgets.dashboard import Dashboard

    board = Dashboard(run.flow.name, run.plan.name, run.plan.devices, run.iterations, tuple(charts))
    board.on_command(lambda command: getattr(run, command)(**({"wait": False} if command == "stop" else {})))
    handle = display(board, display_id=True)
    feeder = _Feeder(run, board, handle)
    run.on_update(feeder)
    return board


class _Feeder:
    """Sends what is new since the last time; called by the run's pump, ten times a second."""

    def __init__(self, run: Run, board: Any, handle: Any) -> None:
        self._board, self._handle = board, handle
        self._rows = 0
        self._closed = False
        self(run)

    def __call__(self, run: Run) -> None:
        if self._closed:
            return
        final = run.state in ENDED
        rows = run.metrics.to_dict("records")
        state = {
            "state": run.state, "iteration": run.iteration, "iterations": run.iterations, "elapsed_seconds": run.elapsed_seconds,
            "eta_seconds": run.eta_seconds, "standstill": run.standstill(), "message": str(run.error).split("\n", 1)[0] if run.error else "",
        }  # fmt: skip
        new = [_finite({str(k): v for k, v in row.items()}) for row in rows[self._rows :]]
        self._rows = len(rows)
        self._board.push(state, new, run.timeline, utilisation(run), _picture(run.frames), final)
        if final:
            self._closed = True
            if self._handle is not None:
                self._handle.update(self._board)  # the stored picture is then that of the end


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Without what was not measured in this iteration: JSON has no NaN."""
    return {k: v for k, v in row.items() if not (isinstance(v, float) and not np.isfinite(v))}


def utilisation(run: Run) -> dict[str, float]:
    """The latest load of each of the plan's devices, 0 to 1, as the sampler saw it."""
    latest = run.counters
    found = {}
    for device in run.plan.devices:
        value = latest.get(device)
        if value is not None:
            found[device] = value
    return found


def _picture(frames: dict[str, Any]) -> bytes | None:
    """All sources side by side, at most four, as one JPEG."""
    if not frames:
        return None
    from PIL import Image

    images = [np.asarray(frames[name]) for name in sorted(frames)][:4]
    height = min(i.shape[0] for i in images)
    strip = np.concatenate([i[:height] for i in images], axis=1)
    buffer = io.BytesIO()
    Image.fromarray(strip).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
