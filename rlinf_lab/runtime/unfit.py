"""Workers that refuse a plan, before anything is started."""

from __future__ import annotations

from rlinf_lab.planning.layout import Layout
from rlinf_lab.runtime.devices import torch_device
from rlinf_lab.workflow.worker import Context
from rlinf_lab.workflow.workflow import Workflow


def refuse_unfit_workers(flow: Workflow, layout: Layout) -> None:
    """Ask every worker whether it can work under the plan. Raises what it raises."""
    for name, declaration in flow.workers.items():
        if name not in layout.graph.workers or not declaration.has_preflight():
            continue
        context = Context()
        context.name, context.ranks, context.sub_batches = name, layout.ranks(name), layout.plan.tokens(name)
        context.device = torch_device(layout.device_names(name, 0))
        declaration.build(context).preflight()
