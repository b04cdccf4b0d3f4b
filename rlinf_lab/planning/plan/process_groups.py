"""Which process a rank lives in, and which one keeps a queue. Both follow from the plan alone, the same on every host,
where an executor has several processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rlinf_lab.planning.plan.device import whole
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.workflow.graph import DRIVER

Place = Mapping[tuple[str, int], str]
"""host of every (worker, rank)"""


def place_hosts(layout: Layout) -> dict[tuple[str, int], str]:
    """A host for every rank. Ranks whose device sets overlap live in one process (a connected component), and so do
    those on shares of one device: streams of several processes would take turns.
    """
    first: dict[str, int] = {}
    one = [first.setdefault(whole(name), i) for i, name in enumerate(layout.plan.devices)]
    groups: list[tuple[set[int], list[tuple[str, int]]]] = []
    for member in layout.members[1:]:
        mine, members = {one[d] for d in layout.devices(*member)}, [member]
        for group in [g for g in groups if g[0] & mine]:
            groups.remove(group)
            mine |= group[0]
            members = group[1] + members
        groups.append((mine, members))
    groups.sort(key=lambda g: min(g[0], default=0))
    place = {member: f"host{i}" for i, (_, members) in enumerate(groups) for member in members}
    return {(DRIVER, 0): "driver", **place}


def homes_of(layout: Layout, place: Place, channel: str) -> list[str]:
    """The hosts where queues of a channel live. They are several when it has keys or shards, each the host of its only
    reader; else the one of most readers.
    """
    ranks = Counter(place[w, r] for w in layout.graph.consumers(channel) for r in range(layout.ranks(w)))
    several = layout.sharded(channel) or layout.graph.channel(channel).keyed
    return sorted(ranks) if several else [host for host, _ in ranks.most_common(1)]
