"""The plans that the first iterations of a run are measured under.

They say what other plans would take.

one core, all environments at once        what a rank of the simulator takes that has them all
one core, the environments in parts       what a rank takes that has its share: the costs of a smaller step are
                                          measured, not guessed
networks on a GPU, the rest on one core   what they take there; only where a GPU is, and where less of their time on a
                                          core would pay
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.workflow.workflow import Workflow

ITERATIONS = 4  # of a probe; the first one warms caches up and does not count


class Probe(NamedTuple):
    """A plan and how many iterations it is measured for."""

    plan: ExecutionPlan
    iterations: int
    measures: bool = True
    """what other plans would take is read from it"""


def probes(
    flow: Workflow,
    shares: Mapping[str, int],
    devices: Sequence[str],
    staleness: int = 0,
    networks: Collection[str] = (),
) -> list[Probe]:
    """The plans to begin with, on cores.

    None where there is nothing to choose: one device, or no worker that could have several ranks.

    ``shares``: for each worker that may have several ranks, in how many equal parts its work divides at most
    (`Recipe.shares`). ``staleness``: with some, workers with one rank each may also go side by side: then the first
    plan says enough. ``networks``: workers that could be on a GPU; where there is one, the first plan is measured in
    any case.
    """
    cores, gpus = by_kind(devices)
    could_leave = bool(gpus and cores and networks)
    if not (could_leave or (len(devices) > 1 and shares)):
        return []
    cores = cores or list(devices)
    heads = {
        w: most_ranks(parts, len(cores)) for w, parts in shares.items() if any(w in cell for cell in flow.graph.cells)
    }
    parts = {w: n for w, n in heads.items() if n > 1}
    if not parts and not staleness and not could_leave:
        return []
    inside = {
        e.channel: 1
        for e in flow.graph.edges
        if not e.keyed and any(e.producer in c and e.consumer in c for c in flow.graph.cells)
    }
    whole = ExecutionPlan.temporal(flow, cores[:1], name="temporal")
    if not parts:
        return [Probe(whole, ITERATIONS)]
    split = ExecutionPlan.temporal(flow, cores[:1], name="temporal in parts", sub_batches=parts, micro_batches=inside)
    return [Probe(whole, ITERATIONS), Probe(split, ITERATIONS - 1)]


def gpu_probe(flow: Workflow, devices: Sequence[str], networks: Collection[str]) -> Probe:
    """The ``networks`` on the first GPU, all else on the first core."""
    cores, gpus = by_kind(devices)
    places = {w: [int(w in networks)] for w in flow.graph.workers}
    return Probe(ExecutionPlan.spatial(flow, [cores[0], gpus[0]], places, name="networks on the GPU"), ITERATIONS)


def by_kind(devices: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cores and GPUs."""
    gpus = [name for name in devices if Device.is_name(name) and Device.parse(name).kind == "cuda"]
    return [name for name in devices if name not in gpus], gpus


def rank_counts(parts: int, devices: int) -> tuple[int, ...]:
    """The numbers of ranks that share ``parts`` evenly, on so many devices."""
    return tuple(n for n in range(1, min(parts, devices) + 1) if parts % n == 0)


def most_ranks(parts: int, devices: int) -> int:
    """The largest of `rank_counts`."""
    return rank_counts(parts, devices)[-1]
