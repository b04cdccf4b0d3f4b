"""When within a call its inputs were taken and its outputs were put: whether a worker takes everything before it works, or gives everything at its end.

Read off the order of gets, puts and computing of one rank in one iteration. Where a single batch held everything, it cannot be told whether the worker would
have begun with a part, unless it saw the end of the stream before it worked: several runs are asked, and one that tells is enough (`agreed`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

SLIGHT = 0.02  # of what a rank computes: so much before the last get is reading, not work
AT_END = 0.9  # of it: who has computed so much before the first put gives everything at its end


@dataclass
class Moments:
    """Of one rank in one iteration, in order. ``at`` counts gets and puts; ``busy``: seconds computed so far."""

    at: int = 0
    busy: float = 0.0
    read: dict[str, tuple[int, float]] = field(default_factory=dict)  # channel: (at, busy) of the last get that brought items
    over: dict[str, tuple[int, float]] = field(default_factory=dict)  # channel: of the get that met its end
    put: dict[str, tuple[int, float]] = field(default_factory=dict)  # channel: of the first put
    taken: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # channel: (items, busy) of each get that brought items

    def computed(self, seconds: float) -> None:
        self.busy += seconds

    def got(self, channel: str, items: int) -> None:
        self.at += 1
        if items:
            self.read[channel] = self.at, self.busy
            self.taken.setdefault(channel, []).append((items, self.busy))
        else:
            self.over[channel] = self.at, self.busy

    def gave(self, channel: str) -> None:
        self.at += 1
        self.put.setdefault(channel, (self.at, self.busy))

    def takes_all(self, channel: str, chunk: int) -> bool | None:
        """Whether all of a channel was taken before anything was done; None where nobody can tell. ``chunk``: items of a batch, as the plan says; 0: all."""
        if channel not in self.taken or not self.busy:
            return None
        last, before = self.read[channel]
        slight = SLIGHT * self.busy
        if before > slight or any(at < last for at, _ in self.put.values()):
            return False
        asked_for_all = len(self.taken[channel]) > 1 or 0 < chunk < self.taken[channel][0][0]
        met_end = channel in self.over and self.over[channel][1] <= slight
        return True if asked_for_all or met_end else None

    def gives_at_end(self, channel: str, inputs: Collection[str]) -> bool | None:
        """Whether everything was put after all work; None where nobody can tell: it had one batch only. ``inputs``: channels that feed it."""
        if channel not in self.put or not self.busy:
            return None
        at, before = self.put[channel]
        fed = [c for c in inputs if c in self.read]
        if before < AT_END * self.busy or any(self.read[c][0] > at for c in fed):
            return False
        several = any(len(self.taken[c]) > 1 or (c in self.over and self.over[c][0] < at) for c in fed)
        return True if several or not fed else None

    def before_work(self, channel: str) -> list[int]:
        """How many batches were taken before each stretch of work, but the last one; empty where there was only one stretch."""
        counts = [len(list(same)) for _, same in itertools.groupby(busy for _, busy in self.taken.get(channel, ()))]
        return counts[:-1]


def agreed(told: Iterable[bool | None]) -> bool:
    """Whether somebody can tell, and all who can say yes."""
    known = [t for t in told if t is not None]
    return bool(known) and all(known)
