"""The devices and the hand-made plans that the demo and the first notebook choose from.

    cores only                            cores and a GPU
    cpu:0  simulator policy learner       cpu:0  simulator
    cpu:1  simulator (policy)             cpu:1  simulator
                                          cuda:0 policy learner
"""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.machine.devices import devices_here
from rlinf_lab.workflow.workflow import Workflow

SIMULATORS = 2  # ranks of the simulator at most: the presets have environments for so many


def slots() -> list[str]:
    """The devices for a workflow of `ppo.build` on this machine: two cores; with a GPU, that and two cores; what there is of them."""
    best = devices_here()
    return [*devices_here("cpu")[:SIMULATORS], *(d for d in best[:1] if d.startswith("cuda"))]


def candidates(flow: Workflow, names: Sequence[str]) -> list[ExecutionPlan]:
    """The plans to choose from on the devices ``names`` (as `slots` gives them), temporal first.

    All of them have the same number of tokens in the cell, so that the costs measured under the first tell about the others. One
    device: there is the temporal plan only.
    """
    cores = [i for i, name in enumerate(names) if not name.startswith("cuda")]
    if len(cores) < len(names):
        return _with_a_gpu(flow, names, cores, len(cores))
    count = len(names)
    plans = [ExecutionPlan.temporal(flow, names, {"simulator": count})]
    if count > 1:
        plans.append(ExecutionPlan.fused_cells(flow, names, {"simulator": count}))
        on = {"simulator": [0], "policy": [1], "learner": [1]}
        plans.append(ExecutionPlan.spatial(flow, names, on, sub_batches={"simulator": count}))
    return plans


def _with_a_gpu(flow: Workflow, names: Sequence[str], cores: list[int], gpu: int) -> list[ExecutionPlan]:
    """The simulator on the cores, two tokens a core; policy and learner on the GPU. Last: the policy beside the simulators instead."""
    on, tokens = {"simulator": cores, "policy": [gpu], "learner": [gpu]}, {"simulator": 2}
    together = {**on, "policy": cores}
    return [
        ExecutionPlan.spatial(flow, names, on, name="temporal", sub_batches=tokens, micro_batches={"obs": 2 * len(cores)}),
        ExecutionPlan.spatial(flow, names, on, sub_batches=tokens),
        ExecutionPlan.spatial(flow, names, together, name="fused", sub_batches=tokens, fused=(("simulator", "policy"),)),
    ]
