"""Workers that refuse a plan, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf_lab.planning.layout import Layout
from rlinf_lab.runtime.devices import torch_device
from rlinf_lab.runtime.fillers import declarations_of
from rlinf_lab.workflow.filler import Filler
from rlinf_lab.workflow.worker import Context
from rlinf_lab.workflow.workflow import Workflow


def refuse_unfit_workers(flow: Workflow, layout: Layout, place: Mapping[tuple[str, int], str], fillers: Sequence[Filler] = ()) -> None:
    """Ask every worker, fillers too, whether it can work under the plan. ``place``: the process of every (worker, rank). Raises what a worker raises."""
    for name, declaration in {**flow.workers, **declarations_of(fillers)}.items():
        if name not in (*layout.graph.workers, *layout.filler) or not declaration.has_preflight():
            continue
        context = Context()
        context.name, context.ranks, context.sub_batches = name, layout.ranks(name), layout.plan.tokens(name)
        context.device = torch_device(layout.device_names(name, 0))
        processes = [place[name, rank] for rank in range(context.ranks)]
        context.apart = len(set(processes)) == len(processes)
        declaration.build(context).preflight()
