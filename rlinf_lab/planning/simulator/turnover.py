"""Ranks that come and go in virtual time, and who takes part in which calls (the rules of
`runtime.host.elastic.turnover`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import ALL, Event
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.simulator.early_stop import Unwanted
from rlinf_lab.planning.simulator.scripts import SimCall, Turn, Turnover
from rlinf_lab.planning.simulator.state import BITS, GETTING, IDLE, Apply, Rank, State


class Members:
    """``turnover``: who comes and goes; a timer stands for each. ``apply``: carries out what the engine says."""

    def __init__(self, state: State, turnover: Sequence[Turnover], unwanted: Unwanted, apply: Apply) -> None:
        self._state, self._engine, self._unwanted, self._apply = state, state.engine, unwanted, apply
        self._absent = set(state.layout.absent)
        self._changes = sorted(turnover, key=lambda t: t.at_ns)
        self._elastic = bool(turnover or state.layout.absent)
        # (iteration, position): the ranks that take part, first those that began
        self._takers: dict[tuple[int, int], list[int]] = {}
        self._began: dict[tuple[int, int], int] = {}  # how many those are

    def timers(self) -> list[int]:
        """Of all changes, behind those of the ranks."""
        first = len(self._state.ranks)
        return [(t.at_ns << BITS) + 2 * (first + i) for i, t in enumerate(self._changes)]

    # --- calls -------------------------------------------------------------------------------------------------
    def submit(self, iteration: int, number: int) -> None:
        """The loop makes a call: all who are there take part."""
        members = self._state.of[self._state.calls[number].worker]
        if self._absent:
            members = [p for p in members if (p.worker, p.rank) not in self._absent]
        if self._elastic:
            self._takers[iteration, number], self._began[iteration, number] = [p.rank for p in members], len(members)
        self._state.open[iteration].unended[number] = len(members)
        for position, p in enumerate(members):
            self._give(p, iteration, number, position, len(members))

    def _give(self, p: Rank, iteration: int, number: int, position: int, count: int) -> None:
        asked = self._unwanted.asked_by(p)
        turn = Turn(p.rank, iteration, position, count, self._state.clock, *asked)
        p.calls.append((number, self._state.calls[number], turn))
        if p.doing == IDLE and len(p.calls) == 1:  # woken once, however many calls it gets
            self._state.wake(p)

    def began(self, turn: Turn, number: int) -> int:
        """How many ranks began a call."""
        return self._began.get((turn.iteration, number), turn.count)

    def closes(self, channel: str, iteration: int, number: int) -> int:
        """How many producers of one queue a call stands for."""
        layout = self._state.layout
        if not self._elastic or layout.sharded(channel):
            return layout.closes(channel, self._state.calls[number].worker)
        return self._began[iteration, number]

    def retire(self, iteration: int) -> None:
        self._takers = {key: ranks for key, ranks in self._takers.items() if key[0] != iteration}

    # --- coming and going --------------------------------------------------------------------------------------
    def change(self, number: int) -> None:
        """The timer of a change has fired."""
        change = self._changes[number]
        member, p = (change.worker, change.rank), self._state.of[change.worker][change.rank]
        if change.comes != (member in self._absent) or (change.comes and p.ends):
            there = "has not left yet" if p.ends else "is not there" if member in self._absent else "is there already"
            now = self._state.now
            raise PlanError(f"{change}: {p.label} {there} at {now} ns. Next: absent=..., or another time.")
        if change.comes:
            self._absent.discard(member)
            for iteration, position in list(self._takers):
                self._take_in(p, iteration, position)
            return
        self._absent.add(member)
        p.ends = True
        pending = self._state.pending
        if p.doing == GETTING and is_streamed(self._state.layout, p.call):
            mine = [e for e in pending if e[0] == p.index and e[1] == Event.GET]
            if any(e[3] == ALL for e in mine) or self._engine.waits_for_all(p.index):
                return  # nobody else gets its share
            if mine:  # of this very instant
                pending[pending.index(mine[0])] = (*mine[0][:3], 0)
            elif self._engine.is_getting(p.index):
                self._apply(self._engine.dismiss(p.index))
        elif p.doing == IDLE:
            self._state.wake(p)

    def _take_in(self, p: Rank, iteration: int, number: int) -> None:
        """A rank that has come takes part in a call under way, if that can take it in."""
        call, takers = self._state.calls[number], self._takers[iteration, number]
        unended = self._state.open[iteration].unended
        layout = self._state.layout
        if call.worker != p.worker or p.rank in takers or number not in unended or not is_streamed(layout, call):
            return
        streams = [self._state.stream(channel, iteration) for channel in dict.fromkeys(call.writes)]
        admitted = [stream for stream in streams if self._engine.admit(stream)]
        if len(admitted) < len(streams):
            for stream in admitted:
                self._apply(self._engine.close(stream))
            return
        takers.append(p.rank)
        unended[number] += 1
        self._give(p, iteration, number, len(takers) - 1, len(takers))


def is_streamed(layout: Layout, call: SimCall | None) -> bool:
    """Whether ranks of a call take items one by one from a channel they share."""
    if call is None or len(call.reads) != 1 or call.after:
        return False
    spec = layout.graph.channel(call.reads[0])
    return not spec.keyed and not spec.whole and not any(map(layout.sharded, (*call.reads, *call.writes)))
