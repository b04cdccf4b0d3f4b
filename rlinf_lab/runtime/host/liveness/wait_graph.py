"""Who waits for whom in a run, and the graph of it for a widget. See `planning.plan.wait_graph`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.plan.wait_graph import Wait as Wait
from rlinf_lab.planning.plan.wait_graph import ranks_of, worker_of
from rlinf_lab.planning.plan.wait_graph import rings as rings
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, WRITE


class Waits:
    """Who of one host waits for what and whom. ``missing``: who has not come to a meeting; ``under_way``: the labels of
    calls, at the driver's host.
    """

    def __init__(
        self, state: HostState, missing: Callable[[Process], list[str]], under_way: Callable[[], list[str]] | None
    ) -> None:
        self._state, self._missing, self._under_way = state, missing, under_way

    def all(self) -> list[Wait]:
        """For a lock, also who holds the device."""
        with self._state.mutex:  # who meets whom changes meanwhile
            return [wait for p in self._state.ranks if (wait := self._of(p)) is not None]

    def _of(self, process: Process) -> Wait | None:
        """What a process waits for. None when it does not, or only for its next call."""
        if not process.blocked_at or process.waits_for == "call":
            return None
        state, on, held = self._state, self._others(process), []
        needs = set(on) if process.waits_for == "calls" else set()
        for device in state.layout.devices(process.worker, process.rank):
            number = state.engine.holder(device)
            if number is None or number == process.index:
                continue
            holder = state.processes[number]
            name = state.layout.plan.devices[device]
            on.setdefault(holder.label, name)
            needs.add(holder.label)
            held.append(f"{name} is held by {holder.label}")
        note = f" ({', '.join(held)})" if held else ""
        advice = process.advice if process.waits_for == "value" or process.event == Event.ASIDE else ""
        return Wait(process.label, process.blocked_at + note, tuple(on), tuple(on.values()), frozenset(needs), advice)

    def _others(self, process: Process) -> dict[str, str]:
        """Who puts what it wants, takes what it puts, or computes what it needs. And the channel in between."""
        if process.waits_for == "value":
            return {process.awaited: ""} if process.awaited else {}
        if process.waits_for == "calls" and self._under_way is not None:
            return dict.fromkeys(sorted({label.split(".")[0] for label in self._under_way()}), "")
        if process.event == Event.ASIDE:
            return dict.fromkeys(self._missing(process), "")
        if process.event not in (Event.GET, Event.PUT) or process.queue is None:
            return {}
        channel, graph = process.queue.name.channel, self._state.layout.graph
        gets = process.event == Event.GET
        names = graph.producers(channel) if gets else graph.consumers(channel)
        left = [name for name in names if not self._has_done(name, process.queue, WRITE if gets else READ)]
        # itself, where nobody else is left
        return dict.fromkeys([name for name in left if name != process.worker] or left, channel)

    def _has_done(self, worker: str, queue: Queue, what: str) -> bool:
        """Whether all its calls that write (or read) this channel have ended, as known here."""
        if worker == DRIVER:
            return self._state.engine.is_sealed(queue.index)  # the loop has returned
        here = [process for process in self._state.ranks if process.worker == worker]
        if len(here) < self._state.layout.ranks(worker):  # others live elsewhere
            return False
        calls = [call for process in here for call in (process.call, *process.calls) if call is not None]
        name = queue.name
        return not any(name.channel in call.channels(what) and call.iteration == name.iteration for call in calls)


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Who waits for whom. ``computing``: ``worker[rank].method`` of the calls that wait for nobody."""

    waits: tuple[Wait, ...]
    computing: tuple[str, ...] = ()

    def rings(self) -> list[list[str]]:
        """See the function of that name."""
        return rings(self.waits, [call.split(".", 1)[0] for call in self.computing])

    def lines(self) -> list[str]:
        """In words: each wait, each call that computes, and each cycle."""
        cycles = [f"a cycle: {' → '.join(ring)}" for ring in self.rings()]
        return [*map(str, self.waits), *(f"{call} computes" for call in self.computing), *cycles]

    def drawn(self) -> dict[str, Any]:
        """The graph as JSON. ``nodes`` (name, text, computes), ``edges`` (from, to, label) and ``cycles``, both by
        numbers of nodes.

        Ranks of a worker that wait for the same are one node, except on a cycle, whose ranks are named one by one. That
        the loop waits for every call goes without saying, unless somebody waits for the loop.
        """
        calls, cycles = dict(call.split(".", 1) for call in self.computing), [ring[:-1] for ring in self.rings()]
        on_cycle, awaited = (
            {label for ring in cycles for label in ring},
            {worker_of(on) for wait in self.waits for on in wait.on},
        )
        waits = [wait for wait in self.waits if worker_of(wait.who) != DRIVER or DRIVER in awaited]
        texts = {label: f"computes {method}" for label, method in calls.items()} | {
            wait.who: wait.what for wait in waits
        }
        # Ranks before workers: whoever waits for a worker waits for its ranks, where some are known.
        for on in sorted({on for wait in waits for on in wait.on}, key=lambda on: "[" not in on):
            if on not in ranks_of(texts):
                texts[on] = "in no call"
        called = ranks_of(texts)
        groups: dict[Any, list[str]] = {}
        for label, text in texts.items():
            groups.setdefault(label if label in on_cycle else (worker_of(label), text), []).append(label)
        number = {label: n for n, labels in enumerate(groups.values()) for label in labels}
        edges = {
            (number[wait.who], number[label], via or "")
            for wait in waits for on, via in zip_longest(wait.on, wait.via[: len(wait.on)]) for label in called[on]
        }  # fmt: skip
        nodes = [
            {"name": _named(labels), "text": texts[labels[0]], "computes": labels[0] in calls}
            for labels in groups.values()
        ]
        return {
            "nodes": nodes,
            "edges": sorted(edges),
            "cycles": [[number[label] for label in ring] for ring in cycles],
        }


@dataclass(frozen=True, slots=True)
class Standstill:
    """Nothing moves: ``title`` says since when, ``graph`` why."""

    title: str
    graph: WaitGraph

    def lines(self) -> list[str]:
        """The title, and the graph in words."""
        return [self.title, *self.graph.lines()]


def _named(labels: Sequence[str]) -> str:
    """worker[3] of one; worker[0–3] or worker (7 ranks) of several."""
    if len(labels) == 1:
        return labels[0]
    ranks = sorted(int(label[label.index("[") + 1 : -1]) for label in labels)
    one_by_one = ranks[-1] - ranks[0] == len(ranks) - 1
    return (
        f"{worker_of(labels[0])}[{ranks[0]}–{ranks[-1]}]"
        if one_by_one
        else f"{worker_of(labels[0])} ({len(ranks)} ranks)"
    )
