"""What the first iterations of a run are run under, so that they say what other plans would take.

    one core, all environments at once        what a rank of the simulator takes that has them all
    one core, the environments in parts       what a rank takes that has its share: the costs of a smaller step are measured, not guessed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.workflow.workflow import Workflow

ITERATIONS = 4  # of a probe; the first one warms caches up and does not count


class Probe(NamedTuple):
    """A plan and how many iterations it is measured for."""

    plan: ExecutionPlan
    iterations: int
    measures: bool = True
    """what other plans would take is read from it"""


def probes(flow: Workflow, shares: Mapping[str, int], devices: Sequence[str], staleness: int = 0) -> list[Probe]:
    """The plans to begin with; none where there is nothing to choose: one device, or no worker that could have several ranks.

    ``shares``: for each worker that may have several ranks, in how many equal parts its work divides at most (`Recipe.shares`).
    ``staleness``: with some, workers with one rank each may also go side by side: then the first plan says enough.
    """
    if len(devices) < 2 or not shares:
        return []
    heads = {w: most_ranks(parts, len(devices)) for w, parts in shares.items() if any(w in cell for cell in flow.graph.cells)}
    parts = {w: n for w, n in heads.items() if n > 1}
    if not parts and not staleness:
        return []
    inside = {e.channel: 1 for e in flow.graph.edges if not e.keyed and any(e.producer in c and e.consumer in c for c in flow.graph.cells)}
    whole = ExecutionPlan.temporal(flow, devices[:1], name="temporal")
    if not parts:
        return [Probe(whole, ITERATIONS)]
    split = ExecutionPlan.temporal(flow, devices[:1], name="temporal in parts", sub_batches=parts, micro_batches=inside)
    return [Probe(whole, ITERATIONS), Probe(split, ITERATIONS - 1)]


def rank_counts(parts: int, devices: int) -> tuple[int, ...]:
    """The numbers of ranks that share ``parts`` evenly, on so many devices."""
    return tuple(n for n in range(1, min(parts, devices) + 1) if parts % n == 0)


def most_ranks(parts: int, devices: int) -> int:
    """The largest of `rank_counts`."""
    return rank_counts(parts, devices)[-1]
