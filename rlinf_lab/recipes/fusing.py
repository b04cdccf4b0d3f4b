"""When a plan may have simulator and policy as one worker.

Then neither thread waits for the other twice a step.

    simulator ⇄ policy ──traj──▶ learner        becomes        rollout ──traj──▶ learner
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan, Ranks
from rlinf_lab.recipes.config import answering
from rlinf_lab.workflow.workflow import WorkerHandle, Workflow

Made = Callable[[Workflow], WorkerHandle]
"""adds a worker to a workflow"""


def as_rollout(name: str, plan: ExecutionPlan, rollout: Made, learner: Made) -> tuple[Workflow, ExecutionPlan] | None:
    """The same training with simulator and policy as one worker.

    None where `together` finds that ``plan`` does not allow it.

    ``plan``: of the workflow of all workers, or of this one.
    """
    if (places := together(plan)) is None:
        return None
    flow = Workflow(name)
    traj, published = flow.channel("traj", whole=True), flow.weights("policy_weights")
    rolling, learning = rollout(flow), learner(flow)

    @flow.iteration
    @answering(learning, simulator=rolling)
    def iteration() -> Any:
        rolling.roll_out(traj, published)
        return learning.train(traj, published).metrics

    return flow, as_one(plan, places)


def together(plan: ExecutionPlan) -> Ranks | None:
    """Where simulator and policy are, rank by rank, if together on cores.

    Of a plan of both, or of their rollout; else None.

    None for another plan, and for one that says more of them than where they are.
    """
    places = plan.placements.get("rollout") or plan.placements.get("simulator")
    if places is None or "learner" not in plan.placements:
        return None
    told_more = plan.device_memory is not None or plan.working or plan.priorities or plan.in_flight or plan.capacities
    if told_more or places != plan.placements.get("policy", places) or any(not plan.devices[i].startswith("cpu") for rank in places for i in rank):
        return None
    return places


def as_one(plan: ExecutionPlan, places: Ranks) -> ExecutionPlan:
    """The plan of the workflow in which they are one."""
    placements = {"rollout": places, "learner": plan.placements["learner"]}
    return ExecutionPlan(plan.name, plan.devices, placements, staleness=plan.staleness, origin=plan.origin)
