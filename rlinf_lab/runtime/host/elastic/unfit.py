"""Workers that refuse a plan, or could not do what it asks of them. This is found before anything is started, and again
when they are set up.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping

from rlinf_lab.errors import PlanError, RlinfLabError, WorkerError
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.machine.devices import torch_device
from rlinf_lab.workflow.declaration import Declaration
from rlinf_lab.workflow.worker import STAY, Context, Residence, Worker, may_share
from rlinf_lab.workflow.workflow import Workflow


def refuse_unfit_workers(flow: Workflow, layout: Layout, place: Mapping[tuple[str, int], str]) -> None:
    """Ask every worker whether it can work under the plan. ``place``: the process of every (worker, rank). Raises what
    a worker raises.
    """
    declarations = flow.workers
    for name, declaration in declarations.items():
        if name not in layout.graph.workers:
            continue
        turns = bool(tight_device(layout, declarations, name))
        if not turns and not declaration.has_preflight():
            continue
        context = Context()
        context.name, context.ranks, context.sub_batches = name, layout.ranks(name), layout.plan.tokens(name)
        context.device = torch_device(layout.device_names(name, 0))
        processes = [place[name, rank] for rank in range(context.ranks)]
        context.apart = len(set(processes)) == len(processes)
        with _named(name, "__init__"):
            worker = declaration.build(context)
        with _named(name, "preflight"):
            worker.preflight()
        if turns:
            refuse_to_stay(layout, declarations, name, worker)


@contextlib.contextmanager
def _named(worker: str, method: str) -> Iterator[None]:
    """What the worker's own code raises says whose it is. Refusals of this package say it themselves."""
    try:
        yield
    except RlinfLabError:
        raise
    except Exception as error:
        raise WorkerError.of(worker, 0, method, error, traceback.format_exc()) from error


def refuse_to_stay(layout: Layout, declarations: Mapping[str, Declaration], name: str, worker: Worker) -> None:
    """Raise `PlanError` for a worker that would have to leave a device and cannot."""
    device = tight_device(layout, declarations, name)
    if not device or not (why := Residence(worker).why_it_stays()):
        return
    plan = layout.plan
    there = ", ".join(f"{w} {n}" for w in _workers_on(layout, device) if (n := plan.memory.get(w, 0)))
    raise PlanError(
        f"Worker {name!r} would have to leave {device} for others under plan {plan.name!r}, for "
        f"device_memory={plan.device_memory} is not enough for all "
        f"(memory {there}), and it cannot: {why}. Next: {STAY}"
    )


def tight_device(layout: Layout, declarations: Mapping[str, Declaration], name: str) -> str:
    """A device that a worker would have to leave for others whoever shares weights there. "" when there is none."""
    plan = layout.plan
    if plan.device_memory is None or not plan.may_have_to_leave(name):
        return ""
    for device in dict.fromkeys(d for rank in range(layout.ranks(name)) for d in layout.device_names(name, rank)):
        there = _workers_on(layout, device)
        sharing = [w for w in there if may_share(declarations[w].cls)]  # perhaps all that they have is the same
        needed = sum(plan.memory.get(w, 0) for w in there if w not in sharing) + max(
            (plan.memory.get(w, 0) for w in sharing), default=0
        )
        working = max((plan.working.get(w, 0) for w in there if w != name), default=0)
        if len(there) > 1 and needed + working > plan.device_memory:
            return device
    return ""


def _workers_on(layout: Layout, device: str) -> list[str]:
    """Once for each rank there."""
    return [
        w for w in layout.graph.workers for rank in range(layout.ranks(w)) if device in layout.device_names(w, rank)
    ]
