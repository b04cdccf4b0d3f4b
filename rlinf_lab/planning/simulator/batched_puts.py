"""Puts of a host in virtual time from which nothing follows for anybody else. They are done without the engine's
instructions: most of an iteration's events, where workers hand over a batch item by item. What is written is what
settling them one instant's round after another would have written.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rlinf_lab.planning.simulator.state import Rank, State
from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SPAN_STRUCT
from rlinf_lab.timeline.record.span import SpanKind

_KIND_PUT, _pack = int(SpanKind.PUT), SPAN_STRUCT.pack


class PutsInARow:
    """Of one host. It writes what is pending, who goes on, and the spans of its `State`."""

    def __init__(self, state: State) -> None:
        self._engine, self._ranks, self._pending, self._ready = state.engine, state.ranks, state.pending, state.ready
        self._write = state.rows.data.extend

    def done(self, now: int) -> bool:
        """Puts of one item each are pending, and nothing else. Whether they are done now, and with them as many that
        follow of the same ranks as nobody waits for. The last one of each rank is not written yet."""
        if len(self._pending) == 1:
            p = self._ranks[self._pending[0][0]]
            rounds = self._engine.puts_at_once((p.index,), {p.queue: 1}, p.left + 1)
            if not rounds:
                return False
            p.first = last = self._engine.channels[p.queue].tail - 1
            spans = bytearray(
                _pack(now, now, 0, last - 1, p.track, p.method, p.channel, p.iteration, 1, _KIND_PUT) * (rounds - 1)
            )
            if rounds > 2:
                np.frombuffer(spans, SPAN_DTYPE)["flow"] = np.arange(last - rounds + 1, last)
            self._write(spans)
            self._go_on(p, rounds)
        else:
            putters = [self._ranks[event[0]] for event in sorted(self._pending)]
            each = Counter(p.queue for p in putters)
            rounds = self._engine.puts_at_once([p.index for p in putters], each, 1 + min(p.left for p in putters))
            if not rounds:
                return False
            number = {queue: self._engine.channels[queue].tail - rounds * n for queue, n in each.items()}
            for left in range(rounds - 1, -1, -1):
                for p in putters:
                    p.first = number[p.queue]
                    number[p.queue] += 1
                    if left:
                        self._write(
                            _pack(now, now, 0, p.first, p.track, p.method, p.channel, p.iteration, 1, _KIND_PUT)
                        )
            for p in putters:
                self._go_on(p, rounds)
        self._pending.clear()
        return True

    def _go_on(self, p: Rank, rounds: int) -> None:
        p.left, p.value = p.left - rounds + 1, 0
        p.on_device = p.machine.holding and p.index > 0
        self._ready.append(p)
