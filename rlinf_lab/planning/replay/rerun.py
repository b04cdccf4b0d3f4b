"""A finished run once more, in virtual time and with some of its work faster: the same scheduler, the same plan, the
recorded durations.

What a rank did is cut at its gets. Items keep their identity: whoever takes an item does what was done for it
(`recorded_calls`), wherever it is in its queue now and whichever rank takes it; an answer goes to the key that asked.
So who takes what, how large batches are, who waits for a device and which channel is full is decided anew, by the
scheduler of a run. What a call does before it reads and after the end of its input is that of the rank.

A run about which its record does not tell enough is refused with a `PlanError`; so is one that comes out otherwise than
it was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_lab.errors import PlanError, RlinfLabError
from rlinf_lab.planning.fit.run_record import read_all
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.replay.loop_script import loop_script
from rlinf_lab.planning.replay.recorded_calls import CallAgain, Items, Keys
from rlinf_lab.planning.simulator.scripts import SimCall
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.timeline.critical.gains import Again, Times
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore
from rlinf_lab.workflow.graph import DRIVER


@dataclass(frozen=True)
class Rerun:
    """How a timeline of a run under ``layout`` answers what a faster worker brings: see
    `rlinf_lab.timeline.critical.gains.Rerun`.
    """

    layout: Layout

    def __call__(self, timeline: SpanStore, iterations: Sequence[int]) -> Again:
        _refuse(self.layout)
        return _Record(self.layout, timeline, iterations)


def _refuse(layout: Layout) -> None:
    """Raise `PlanError` for what spans do not tell."""
    graph = layout.graph
    if layout.absent:
        raise PlanError(f"workflow {graph.name!r} has ranks that come and go")
    for spec in graph.channels:
        producers, consumers = graph.producers(spec.name), graph.consumers(spec.name)
        if not spec.is_fifo or spec.weight is not None or spec.group > 1:
            raise PlanError(
                f"channel {spec.name!r} has an order, weights or groups of its own, which spans do not tell"
            )
        if DRIVER in producers and len(producers) > 1:
            raise PlanError(
                f"channel {spec.name!r} is filled by the loop and by workers, and spans do not tell which items are "
                "whose"
            )
        if spec.keyed and DRIVER in (*producers, *consumers):
            raise PlanError(f"the loop uses the keyed channel {spec.name!r}, and spans do not tell with which keys")


class _Record:
    """What every call did, as scripts. Iterations are numbered from 0 here, items as in the record."""

    def __init__(self, layout: Layout, timeline: SpanStore, iterations: Sequence[int]) -> None:
        self._layout, self._iterations = layout, len(iterations)
        records = read_all(layout.graph, timeline, iterations)
        place = {iteration: i for i, iteration in enumerate(iterations)}
        self._calls = [
            CallAgain(layout, records, place, number, step) for number, step in enumerate(layout.graph.program)
        ]
        keys: Keys = {}
        # once for each step on the way back to who asked
        for _ in self._calls if any(c.keyed for c in layout.graph.channels) else ():
            before = dict(keys)
            for made in self._calls:
                made.learn_keys(keys)
            if keys == before:
                break
        for made in self._calls:
            made.close(keys)
        self._loop = loop_script(layout.graph, records.loop)
        self._switches = {w: (on or 0, (on or 0) if off is None else off) for w, (on, off) in records.switches.items()}
        self._stayed = [
            w
            for w, (_, off) in records.switches.items()
            if off is None and layout.plan.memory.get(w) and any(layout.plan.placements[w])
        ]
        self._simulator = Simulator(layout.graph, layout.plan, self._switches)
        self._ask_as_recorded(timeline, iterations)

    def _ask_as_recorded(self, timeline: SpanStore, iterations: Sequence[int]) -> None:
        """Spans say what a get brought, not what it asked for. Where several questions bring that, the one with which
        the run comes out most as it was.
        """
        open_ = [(made, i, ask) for made in self._calls for i, asks in enumerate(made.questions()) for ask in asks]
        if open_:
            wanted = _outcome(timeline, {iteration: i for i, iteration in enumerate(iterations)})
            missed = self._missed(wanted)
            for made, i, ask in open_:
                before = made.asks[i]
                if missed == (0, 0):
                    break
                made.asks[i] = ask
                now = self._missed(wanted)
                if now < missed:
                    missed = now
                else:
                    made.asks[i] = before

    def _missed(self, wanted: tuple[Counter[_Get], int]) -> tuple[int, int]:
        """Gets that came out otherwise, and nanoseconds that the whole is longer or shorter."""
        gets, took = wanted
        try:
            now, takes = _outcome(
                self._simulate(lambda worker, rank, name: 1.0), {i: i for i in range(self._iterations)}
            )
        except RlinfLabError:  # what so asks comes to no end
            return gets.total() + 1, 0
        return (gets - now).total(), abs(takes - took)

    def __call__(self, times: Times) -> int:
        """Nanoseconds of the whole, when RUN spans are so many times as fast."""
        return self._simulate(times).elapsed_ns

    @property
    def notes(self) -> tuple[str, ...]:
        found = [
            f"batches of {made.name} are made up otherwise than recorded, what their items take is estimated"
            for made in self._calls
            if made.is_guessed
        ]
        if self._stayed and self._layout.plan.device_memory is not None:
            found.append(
                f"how long {', '.join(self._stayed)} takes to be offloaded was not recorded; as long as to come is "
                "assumed"
            )
        return tuple(dict.fromkeys(found))

    def _simulate(self, times: Times) -> SpanStore:
        items = Items()
        calls = [
            SimCall(
                step.worker,
                step.call.method,
                made.script(items, times),
                step.call.reads,
                step.call.writes,
                step.after,
                step.call.starts_on_device,
            )
            for made, step in zip(self._calls, self._layout.graph.program, strict=True)
        ]
        return self._simulator.simulate(calls, self._iterations, self._loop, items.stored)


_Get = tuple[str, int, int, str, int, int]
"""worker, rank, iteration, channel, first item, items"""


def _outcome(timeline: SpanStore, place: dict[int, int]) -> tuple[Counter[_Get], int]:
    """What each rank got, iterations numbered by ``place``, and the nanoseconds that these took."""
    tracks, names, spans = timeline.tracks, timeline.names, timeline.spans
    chosen = spans[np.isin(spans["iteration"], list(place))]
    fields = chosen[chosen["kind"] == SpanKind.GET][["track", "iteration", "channel", "flow", "items"]].tolist()
    gets = Counter((tracks[t].worker, tracks[t].rank, place[i], names[c], flow, n) for t, i, c, flow, n in fields)
    return gets, int(chosen["end"].max() - chosen["start"].min()) if len(chosen) else 0
