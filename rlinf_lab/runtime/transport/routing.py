"""Which queue an item goes to, and on which host that queue lives.

Every queue has one home: the host of its consumer; with consumers on several hosts, the one with most of their ranks.
The others ask it for items (`Get`, `Got`), so that whoever is free takes what comes next, in order, wherever it
lives.
"""

from __future__ import annotations

from typing import NamedTuple

from rlinf_lab.errors import ChannelClosed
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.plan.process_groups import homes_of


class QueueId(NamedTuple):
    """A queue, the same on every host. ``shard``: unit of a fused group; ``key``: -1 on a channel without keys."""

    channel: str
    iteration: int
    shard: int
    home: str
    key: int


class StreamId(NamedTuple):
    """All queues that end together."""

    channel: str
    iteration: int
    shard: int
    home: str


class Router:
    """Routing of one host, from the plan alone. Hosts need not agree on anything at run time."""

    def __init__(self, layout: Layout, place: dict[tuple[str, int], str], here: str) -> None:
        self._layout, self._place, self._here = layout, place, here
        self._homes: dict[str, list[str]] = {}
        self._producing: dict[str, set[str]] = {}

    def read(self, worker: str, rank: int, channel: str, iteration: int, key: int) -> QueueId:
        """The queue that a consumer reads. `ChannelClosed` for a key of another rank."""
        owner = self._layout.key_owner(channel, key)
        if key >= 0 and owner != (worker, rank):
            raise ChannelClosed(
                f"{worker}[{rank}]: key {key} of channel {channel!r} belongs to {owner[0]}[{owner[1]}]. Keys are "
                "numbered rank by "
                f"rank: with s sub-batches, rank r owns r*s to r*s + s - 1. "
                f"Next: read keys of its own."
            )
        shard = self._layout.shard(channel, rank)
        return QueueId(channel, iteration, shard, self._here if key >= 0 else self.home(channel, shard), key)

    def write(self, rank: int, channel: str, iteration: int, key: int) -> QueueId:
        """The queue that a producer's next item goes to."""
        shard = self._layout.shard(channel, rank)
        home = self._place[self._layout.key_owner(channel, key)] if key >= 0 else self.home(channel, shard)
        return QueueId(channel, iteration, shard, home, key)

    def homes(self, channel: str) -> list[str]:
        """The hosts where queues of this channel live. Several when it has keys or shards, each the host of its only
        reader.
        """
        if channel not in self._homes:
            self._homes[channel] = homes_of(self._layout, self._place, channel)
        return self._homes[channel]

    def share(self, channel: str) -> int | None:
        """How much of the capacity one producing host may fill. It is evenly divided, at least one item; None without a
        bound.

        The home itself looks at the true depth, so a channel between hosts holds less than twice its capacity.
        """
        capacity = self._layout.capacity(channel)
        return None if capacity is None else max(1, capacity // max(1, len(self.producing(channel))))

    def producing(self, channel: str) -> set[str]:
        """The hosts where this channel has producers."""
        if channel not in self._producing:
            producers = self._layout.graph.producers(channel)
            self._producing[channel] = {self._place[w, r] for w in producers for r in range(self._layout.ranks(w))}
        return self._producing[channel]

    def is_numbered(self, channel: str) -> bool:
        """Whether producer and consumer count the same items. They do not where producers are on several hosts: each
        counts its own.
        """
        return self._layout.sharded(channel) or (len(self.producing(channel)) == 1 and len(self.homes(channel)) == 1)

    def home(self, channel: str, shard: int) -> str:
        """Where this queue of a channel without keys lives."""
        if self._layout.sharded(channel):
            return self._place[self._layout.graph.consumers(channel)[0], shard]
        return self.homes(channel)[0]
