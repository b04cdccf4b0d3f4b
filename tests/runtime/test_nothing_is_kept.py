"""Iterations that are over leave nothing behind on any host."""

from __future__ import annotations

import gc
from collections import deque
from types import CellType, FunctionType, MethodType
from typing import Any

import pytest
from flows import apart
from sessions import both, opened, step_within, until

from rlinf_lab import Inbox, Outbox, Weights, Worker, Workflow
from rlinf_lab.errors import WorkerError
from rlinf_lab.runtime.host.host import Host

OURS = "rlinf_lab.runtime", "rlinf_lab.planning.engine"


class Does(Worker):
    def make(self, items: Outbox, keyed: Outbox, lost: Outbox, weights: Weights) -> list[int]:
        for i in range(6):
            items.put((self.rank, i))
            keyed.put(i, key=self.rank)
        lost.put_all(range(2))
        return self.exchange(weights.pull().version + self.rank)

    def learn(self, items: Inbox, fails: bool, weights: Weights) -> int:
        return weights.publish({"got": sum(map(len, items)) // (not fails)})

    def take(self, keyed: Inbox, made: list[int], lost: Inbox) -> list[int]:
        return lost.get(1) + made + [keyed.take(key=key) for key in (0, 1) for _ in range(6)]


def held(host: Host) -> int:
    """How many things there are in it and in the runtime's objects that it knows, however deep."""
    seen, ahead = set[int](), [host]
    while ahead:
        part: Any = ahead.pop()
        if isinstance(part, (dict, list, tuple, set, deque, MethodType, CellType)) or type(part).__module__.startswith(OURS):
            ahead += (one for one in gc.get_referents(part) if id(one) not in seen)
        ahead += (isinstance(part, FunctionType) and part.__closure__) or ()
        seen.add(id(part))
    return len(seen)


@both
def test_of_iterations_that_are_over_nothing_is_kept(kind: str) -> None:
    """Of bounded and keyed channels, one that nobody reads to its end, values, weights, ranks that meet, and failures."""
    flow = Workflow("everything")
    items, keyed, lost = flow.channel("items", capacity=3), flow.channel("keyed", keyed=True), flow.channel("lost", discard_unread=True)
    (makes, learns, takes), weights = (flow.worker(Does, name=name) for name in ("makes", "learns", "takes")), flow.weights("weights")

    @flow.iteration
    def iteration(fails: bool = False) -> Any:
        made = makes.make(items, keyed, lost, weights)
        return takes.take(keyed, made, lost), learns.learn(items, fails, weights)

    with opened(kind, flow, apart(flow, {"makes": 2}), 0.0) as session:
        executor: Any = session._executor
        hosts = executor.hosts.values() if kind == "mesh" else [session._host]

        def after(rounds: int) -> list[int]:
            for i in range(rounds):
                if i % 3 == 1:
                    with pytest.raises(WorkerError, match="ZeroDivision"):
                        step_within(session, True)
                assert step_within(session)[1] > i
            executor.news.drain()
            for host in hosts:
                host.told.metrics.clear()
            return [held(host) for host in hosts]

        few, _ = after(6), after(30)  # an entry that stays of each of these 40 is 80 things and more
        until(lambda: all(held(host) <= before + 60 for host, before in zip(hosts, few, strict=True)), 20)  # when its threads have done
        until(lambda: sum(h.post.said for h in hosts) == sum(h.post.heard for h in hosts))
