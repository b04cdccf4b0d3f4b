"""What a run needs of each node of somebody else's Ray. It is reserved there as one placement group: all of it, or an
error in seconds.

A bundle for each node, pinned to it, so that the hosts of a node are together and no two nodes of the plan become one.
The group has no name and belongs to this job, in the namespace of its own (`ray_start`): nobody else meets it, and it
ends with the run, or with this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlinf_lab.errors import Cancelled, ExecutorError
from rlinf_lab.planning.plan.device import Device, whole
from rlinf_lab.runtime.executors.ray_nodes import free_resources, nodes
from rlinf_lab.runtime.machine.ray_library import load_ray

SECONDS = 5.0  # a run that has just ended may not have given everything back yet
NODE = "ray.io/node-id"
SOMETHING = {"memory": 1.0}  # bytes: a bundle must ask for something


class Reservation:
    """``wanted``: resources by number of the node, as Ray calls them. ``ids``: of the nodes."""

    def __init__(self, wanted: Mapping[int, Mapping[str, float]], ids: Mapping[int, str]) -> None:
        self.wanted, self._ids = {n: dict(r) for n, r in wanted.items()}, dict(ids)
        self._order = sorted(self.wanted)
        self._group: Any = None

    @classmethod
    def of(cls, devices: Sequence[str], ids: Mapping[int, str], *, emulate: bool = False) -> Reservation:
        """For the hosts of these devices. ``emulate``: several CPU slots share a core, so cores are not reserved.

        No more CPUs than Ray counts on a node: one that was started with ``--num-cpus=0`` has its cores all the same.
        """
        there = nodes()
        wanted: dict[int, dict[str, float]] = {}
        for device in map(Device.parse, dict.fromkeys(map(whole, devices))):
            kind = {"cpu": "CPU", "cuda": "GPU"}[device.kind]
            of_node = wanted.setdefault(device.node, {})
            of_node[kind] = of_node.get(kind, 0.0) + 1.0
        for number, of_node in wanted.items():
            of_node["CPU"] = 0.0 if emulate else min(of_node.get("CPU", 0.0), there[number].resources.get("CPU", 0.0))
        return cls({n: {k: v for k, v in of_node.items() if v} or SOMETHING for n, of_node in wanted.items()}, ids)

    def wait(self, stopped: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Reserve. `ExecutorError` names the nodes that do not give it within so many seconds; `Cancelled` when
        ``stopped()``.
        """
        ray = load_ray()

        strategy = "STRICT_SPREAD" if len(self._order) > 1 else "STRICT_PACK"
        pinned = [{NODE: self._ids[number]} for number in self._order]
        self._group = ray.util.placement_group(
            [self.wanted[n] for n in self._order], strategy, bundle_label_selector=pinned
        )
        ready, deadline = self._group.ready(), time.monotonic() + seconds
        while not ray.wait([ready], timeout=0.1)[0]:
            if stopped():
                raise Cancelled("The run was stopped while it waited for nodes.")
            if time.monotonic() > deadline:
                raise ExecutorError(
                    f"Ray could not reserve what the plan needs within {seconds:g} s: {'; '.join(self._lacking())}. "
                    "Next: end what else runs there "
                    "(`ray status` shows it), a plan on other nodes, or emulate=True (cores are then shared, and not "
                    "reserved)."
                )

    def on(self, number: int) -> Any:
        """How Ray is told to put a host on a node."""
        strategies = load_ray().util.scheduling_strategies
        return strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=self._order.index(number)
        )

    def remove(self) -> None:
        """Give everything back; harmless when nothing is reserved."""
        if self._group is not None:
            load_ray().util.remove_placement_group(self._group)
            self._group = None

    def _lacking(self) -> list[str]:
        """Of each node that has too little free: what is wanted and what there is. Of all nodes when they have had too
        little for a moment only.
        """
        free, there = free_resources(), nodes()
        rows, short = [], []
        for number in self._order:
            now = free.get(self._ids[number], {})
            name = f"node {number} ({there[number].address})" if number in there else f"node {number} (gone)"
            parts = [f"{v:g} {k} wanted, {now.get(k, 0):g} free" for k, v in self.wanted[number].items()]
            rows.append(f"{name}: {', '.join(parts)}")
            short.append(any(now.get(k, 0) < v for k, v in self.wanted[number].items()))
        return [row for row, lacks in zip(rows, short, strict=True) if lacks] or rows

    def __repr__(self) -> str:
        return f"Reservation({', '.join(f'node {n}: {r}' for n, r in self.wanted.items())})"
