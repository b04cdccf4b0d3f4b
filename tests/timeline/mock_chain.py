"""A chain of workers with bounded channels between, each on a device of its own."""

from __future__ import annotations

from collections.abc import Sequence

import rlinf_lab as lab


def chain(link: type[lab.Worker], seconds: Sequence[Sequence[float]], capacities: Sequence[int | None]) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    """Workers w0 → w1 → …, made with their seconds: `link` has ``first``, ``between`` and ``last``. The channels are c0, c1, …, with micro-batches of one."""
    flow = lab.Workflow("chain")
    channels = [flow.channel(f"c{i}", capacity=capacity) for i, capacity in enumerate(capacities)]
    links = [flow.worker(link, list(row), name=f"w{i}") for i, row in enumerate(seconds)]

    @flow.iteration
    def iteration():
        links[0].first(channels[0])
        for i, one in enumerate(links[1:-1]):
            one.between(channels[i], channels[i + 1])
        links[-1].last(channels[-1])

    devices = [f"cpu:{i}" for i in range(len(links))]
    return flow, lab.ExecutionPlan.spatial(flow, devices, {f"w{i}": [i] for i in range(len(links))}, micro_batch=1)
