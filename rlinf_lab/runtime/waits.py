"""Who waits for whom: a line each for people, an edge each for finding the cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf_lab.planning.engine import Event

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host
    from rlinf_lab.runtime.process import Process


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits. ``who``: worker[rank]; ``what``: in words; ``on``: the workers, or worker[rank]s, any of which could end it."""

    who: str
    what: str
    on: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what}"


def wait_of(host: Host, process: Process) -> Wait | None:
    """What a process waits for; None when it does not, or only for its next call."""
    if not process.blocked_at or process.waits_for == "call":
        return None
    held, holders = [], []
    for device in host.layout.devices(process.worker, process.rank):
        holder = host._engine.holder(device)
        if holder is not None and holder != process.index:
            holders.append(host._processes[holder].label)
            held.append(f"{host.layout.plan.devices[device]} is held by {holders[-1]}")
    note = f" ({', '.join(held)})" if held else ""
    return Wait(process.label, process.blocked_at + note, tuple(dict.fromkeys([*_others(host, process), *holders])))


def _others(host: Host, process: Process) -> Sequence[str]:
    """Who puts what it wants, takes what it puts, or computes what it needs."""
    if process.waits_for == "value":
        return [process.awaited]
    if process.waits_for == "calls" and host.loop is not None:
        return sorted({label.split(".")[0] for label in host.loop.open_calls()})
    if process.event not in (Event.GET, Event.PUT) or process.queue is None:
        return ()
    channel, graph = process.queue.name.channel, host.layout.graph
    return [name for name in (graph.producers(channel) if process.event == Event.GET else graph.consumers(channel)) if name != process.worker]


def cycle(waits: Iterable[Wait]) -> list[str]:
    """The shortest ring of ranks that wait for each other, its first repeated at the end; empty when there is none."""
    known = {wait.who: wait for wait in waits}
    by_worker: dict[str, list[str]] = {}
    for who in known:
        by_worker.setdefault(who.split("[")[0], []).append(who)
    edges = {who: [n for on in wait.on for n in ([on] if on in known else by_worker.get(on, []))] for who, wait in known.items()}
    rings = [ring for who in known if (ring := _ring(who, edges))]
    return min(rings, key=len, default=[])


def _ring(start: str, edges: dict[str, list[str]]) -> list[str]:
    """The shortest way from ``start`` back to it."""
    paths, seen = [[start]], {start}
    while paths:
        longer = []
        for path in paths:
            for after in edges[path[-1]]:
                if after == start:
                    return [*path, start]
                if after not in seen:
                    seen.add(after)
                    longer.append([*path, after])
        paths = longer
    return []


def explained(waits: Sequence[Wait]) -> list[str]:
    """A line for each wait, and one for the cycle."""
    ring = cycle(waits)
    return [*map(str, waits), *([f"a cycle: {' → '.join(ring)}"] if ring else [])]
