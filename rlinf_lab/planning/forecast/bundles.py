"""Items of an iteration in bundles, so that it has a few thousand steps. That holds for any number of items; batches
count in bundles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.costs import Stream
from rlinf_lab.planning.costs.base import ROUNDING
from rlinf_lab.planning.forecast.per_rank import bundles_of_a_rank, by_rank
from rlinf_lab.planning.forecast.stream_estimate import stream_of
from rlinf_lab.planning.placement.placement import Placement, Seat
from rlinf_lab.planning.profile.profile import EdgeProfile
from rlinf_lab.planning.search.plan_tree import TEMPORAL, leaf_of, meeting

MAX_BUNDLES = 2048  # where bundles shall be whole items
ATOMS = 512  # points of a generator's stream


class Bundles:
    """``count``: how many an iteration has. ``by_rank``: workers whose ranks go on by themselves."""

    def __init__(self, placement: Placement, edges: Sequence[EdgeProfile], detail: int) -> None:
        self.placement, self.setting, self.profile = placement, placement.setting, placement.setting.profile
        self.edges = edges
        self.by_rank = frozenset(
            name for name in by_rank(placement) if not self.streams(name)
        )
        self.count = self._counted(detail)

    def streams(self, name: str) -> bool:
        """Whether a worker's ranks stream: a generator whose lengths are known."""
        return self.stream(name, 1) is not None

    def independent(self, name: str) -> bool:
        """Whether a worker's ranks go on by themselves."""
        return name in self.by_rank or self.streams(name)

    @cached_method
    def stream(self, name: str, group: int) -> Stream | None:
        """When bundles of complete groups leave a generator."""
        if self.profile.workers[name].kind != "generation" or len(self.mates(name)) > 1:
            return None
        return stream_of(self.placement, leaf_of(self.placement.tree, self.setting.home[name]), ATOMS, group)

    def mates(self, name: str) -> tuple[str, ...]:
        return self.setting.stages[self.setting.home[name]].members

    def _counted(self, detail: int) -> int:
        """Of an iteration, as many as divide by the plan's micro-batches. A bundle is no part of two items, or at least
        of two calls, if that is possible without many more."""
        seats, whole = self.placement.seats.values(), self.setting.in_whole_calls
        step = max([1, *(s.micro_batches for s in seats if s.worker not in whole)])
        for parts in self._whole_parts(detail):
            if (both := math.lcm(step, parts)) <= MAX_BUNDLES:
                step = both
                break
        else:
            step = max(s.micro_batches for s in seats)
        if step == self.profile.items and self._unequal_shares():
            return int(step)
        ranks = max(
            [
                1,
                *(
                    s.ranks * (s.micro_batches if s.worker in self.by_rank else 1)
                    for s in seats
                    if self.independent(s.worker)
                ),
            ]
        )
        return step * math.ceil(max(detail, ranks) / step)

    def _unequal_shares(self) -> bool:
        """Whether any worker's ranks are handed unequal shares of everything. Then a bundle is an item, so that the
        shares are those of a run.
        """
        ranks = [
            self.placement.seats[e.consumer].ranks
            for e in self.edges
            if e.consumer in self.by_rank and e.group == 1 and self.setting.whole(e)
        ]
        return any(n <= self.profile.items and self.profile.items % n for n in ranks)

    def _whole_parts(self, detail: int) -> Iterator[int]:
        """Into how many equal parts items come that are no part of two items. Then they are none of two calls either.
        """
        items = self.profile.items
        if items == math.ceil(items):
            if self.by_rank or items <= detail:
                yield int(items)
            seats = [s for s in self.placement.seats.values() if s.worker in self.setting.in_whole_calls]
            yield int(items) // math.gcd(
                int(items),
                *(int(self.placement.calls(s).full) // (s.ranks if s.worker in self.by_rank else 1) for s in seats),
            )

    def micro_batch(self, edge: EdgeProfile) -> int:
        """Bundles of one batch of the consumer, or of a rank of it; 0: everything."""
        stages = self.setting.home[edge.producer], self.setting.home[edge.consumer]
        if stages[0] == stages[1]:
            return 1
        node = meeting(self.placement.tree, *stages)
        if self.setting.whole(edge) or edge.group == self.profile.items:
            return 0
        if edge.consumer in self.by_rank:
            return bundles_of_a_rank(self.placement, edge, self.count)
        if node.kind == TEMPORAL and node.grain == 0:
            return 0
        seat = self.placement.seats[edge.consumer]
        if edge.consumer not in self.setting.in_whole_calls:
            return self.count // seat.micro_batches
        return self.of_a_call(seat)

    def of_a_call(self, seat: Seat) -> int:
        """Over all ranks."""
        return min(
            self.count, math.ceil(float(self.placement.calls(seat).full) * self.count / self.profile.items - ROUNDING)
        )

    def share(self, name: str, position: int, count: int) -> int:
        """Bundles that a rank of a source makes. They are whole items, in whole groups, where no bundle is a part of
        two of them.
        """
        groups = self.profile.items / self.profile.group_size(name)
        whole = int(groups) if groups == int(groups) and self.count % int(groups) == 0 else self.count
        return (whole // count + (position < whole % count)) * (self.count // whole)

    def as_taken(self, name: str, seat: Seat) -> list[int]:
        """Bundles of the parts in which a source with one rank hands over items. Where its micro-batches are no whole
        calls of who takes them: then the first of these has what it needs with the first part, as in a run. Its seconds
        are in proportion."""
        takers = [e for e in self.edges if e.producer == name and e.consumer in self.setting.in_whole_calls]
        takers = [e for e in takers if self.placement.seats[e.consumer].micro_batches == seat.micro_batches]
        if seat.ranks > 1 or not any(
            self.of_a_call(self.placement.seats[e.consumer]) * seat.micro_batches > self.count for e in takers
        ):
            return []
        asked = (
            self.micro_batch(e) if e.consumer in self.by_rank else self.of_a_call(self.placement.seats[e.consumer])
            for e in takers
        )
        size = max(asked) or self.count
        return [min(size, self.count - first) for first in range(0, self.count, size)]

    def times(self, name: str, group: int) -> np.ndarray:
        """Seconds at which each bundle leaves a generator that streams, in complete groups."""
        stream = self.stream(name, group)
        assert stream is not None
        part = np.arange(1, self.count + 1) / self.count
        return np.interp(part, np.arange(1, ATOMS + 1) / ATOMS, stream.times)

    def weight(self, name: str, source: str | None, first: int, n: int) -> float:
        """Mean weight of ``n`` bundles from number ``first`` of a channel on. They entered it in the order in which
        they were completed, and whoever has them, whenever it begins with them, has these.
        """
        if source is None or self.profile.weights != "tokens":
            return 1.0
        group = max([1, *(e.group for e in self.edges if e.consumer == name)])
        stream = self.stream(source, group)
        assert stream is not None
        ends = np.interp(
            [first / self.count, (first + n) / self.count],
            np.arange(ATOMS + 1) / ATOMS,
            np.concatenate([[0.0], np.cumsum(stream.weights)]),
        )
        return float((ends[1] - ends[0]) * self.count / n / ATOMS)
