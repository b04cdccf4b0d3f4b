"""Iterations that are over leave nothing behind on any host."""

from __future__ import annotations

from collections import deque
from types import FunctionType, MethodType
from typing import Any

import pytest
from flows import apart
from sessions import both, opened, step_within, until

from rlinf_lab import Inbox, Outbox, Weights, Worker, Workflow
from rlinf_lab.errors import WorkerError


class Does(Worker):
    def make(self, items: Outbox, keyed: Outbox, lost: Outbox, weights: Weights) -> list[int]:
        for i in range(6):
            items.put((self.rank, i))
            keyed.put(i, key=self.rank)
        lost.put_all(range(20))
        return self.exchange(weights.pull().version + self.rank)

    def learn(self, items: Inbox, fails: bool, weights: Weights) -> int:
        state = {"got": sum(map(len, items))}
        return weights.publish(state if not fails else 1 // 0)

    def take(self, keyed: Inbox, made: list[int]) -> list[int]:
        return made + [keyed.take(key=key) for key in (0, 1) for _ in range(6)]

    def glance(self, lost: Inbox) -> None:
        lost.get(1)


def everything() -> Workflow:
    """Bounded and keyed channels, one that nobody reads to its end, values, weights, and ranks that meet."""
    flow = Workflow("everything")
    items, keyed, lost = flow.channel("items", capacity=3), flow.channel("keyed", keyed=True), flow.channel("lost", capacity=8, discard_unread=True)
    makes, learns, takes, glances = (flow.worker(Does, name=name) for name in ("makes", "learns", "takes", "glances"))
    weights = flow.weights("weights")

    @flow.iteration
    def iteration(fails: bool = False) -> Any:
        made = makes.make(items, keyed, lost, weights)
        glances.glance(lost)
        return takes.take(keyed, made), learns.learn(items, fails, weights)

    return flow


def held(part: Any, seen: set[int]) -> int:
    """How many things there are in the runtime's objects, and in what they hold, however deep."""
    if id(part) in seen:
        return 0
    seen.add(id(part))
    match part:
        case dict():
            return len(part) + sum(held(one, seen) for pair in list(part.items()) for one in pair)
        case list() | tuple() | set() | frozenset() | deque():
            return len(part) + sum(held(one, seen) for one in list(part))
        case MethodType():
            return held(part.__self__, seen)
        case FunctionType():
            return held([cell.cell_contents for cell in part.__closure__ or ()], seen)
    if not type(part).__module__.startswith(("rlinf_lab.runtime", "rlinf_lab.planning.engine")):
        return 0
    slots = [getattr(part, name, None) for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    return held([*slots, getattr(part, "__dict__", {})], seen)


@both
def test_of_iterations_that_are_over_nothing_is_kept(kind: str) -> None:
    """But of the latest two; an entry that stays of each of 26 counts 78 and more."""
    with opened(kind, flow := everything(), apart(flow, {"makes": 2}), 0.0) as session:
        executor: Any = session._executor
        hosts = executor.hosts if kind == "mesh" else {"": session._host}

        def after(rounds: int) -> list[int]:
            for i in range(rounds):
                if i % 3 == 1:
                    with pytest.raises(WorkerError, match="ZeroDivision"):
                        step_within(session, True)
                assert step_within(session)[1] > i
            until(lambda: sum(h.post.said for h in hosts.values()) == sum(h.post.heard for h in hosts.values()))
            executor.news.drain()
            for host in hosts.values():
                host.told.metrics.clear()
            return [held(host, set()) for host in hosts.values()]

        few = after(3)
        assert all(then <= before + 50 for before, then in zip(few, after(20), strict=True))
