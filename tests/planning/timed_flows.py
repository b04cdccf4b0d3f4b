"""Workflows whose workers take so many seconds a batch and so many an item, and the profile that is true of them; cells of a simulator and a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile

Costs = Mapping[str, tuple[float, float]]
"""Seconds of a batch and of each item, by worker; who is fed by nobody makes items one by one."""


class Timed(lab.Worker):
    """``group``: of what it puts. Groups that it gets are worked on item by item; what it returns is how many items each batch had."""

    def __init__(self, items: int, fixed: float, each: float, group: int) -> None:
        self.items, self.fixed, self.each, self.group = items, fixed, each, group

    def make(self, *outs: lab.Outbox) -> None:
        groups = self.items // self.group
        first, end = (self.group * (groups * r // self.ranks) for r in (self.rank, self.rank + 1))
        for item in range(first, end):
            self.compute(self.each)
            self.hand_on([item], outs)

    def work(self, inbox: lab.Inbox, *outs: lab.Outbox) -> list[int]:
        return [self.worked(batch, outs) for batch in inbox]

    def join(self, x: lab.Inbox, y: lab.Inbox) -> list[int]:
        sizes = []
        for batch in x:
            y.get(len(batch))
            sizes.append(self.worked(batch, ()))
        y.get_all()
        return sizes

    def in_turn(self, x: lab.Inbox, y: lab.Inbox) -> list[int]:
        sizes = []
        for inbox in (x, y):
            for batch in inbox:
                self.compute((self.fixed + self.each * len(batch)) / 2)
                sizes.append(len(batch))
        return sizes

    def worked(self, batch: list[Any], outs: Sequence[lab.Outbox]) -> int:
        items = [i for part in batch for i in (part if isinstance(part, list) else [part])]
        self.compute(self.fixed + self.each * len(items))
        self.hand_on(items, outs)
        return len(items)

    def hand_on(self, items: list[int], outs: Sequence[lab.Outbox]) -> None:
        for item in items:
            for out in outs:
                out.put(item, **({"key": item // self.group} if self.group > 1 else {}))


def timed(
    links: str, items: int, costs: Costs, most: Mapping[str, int] | None = None, groups: Mapping[str, int] | None = None, capacity: int | None = None,
    in_turn: str = "", host: str = "", kinds: Mapping[str, type[Timed]] | None = None,
) -> tuple[lab.Workflow, Profile]:
    """``links``: "ab bc" is a > b > c. ``most``: ranks. ``groups``: of what a worker puts. ``in_turn``: who takes all of one input before the next."""
    flow, most, groups = lab.Workflow("timed"), most or {}, groups or {}
    channels = {k: flow.channel(k, capacity=capacity, group=groups.get(k[0], 1)) for k in links.split()}
    workers = {n: flow.worker((kinds or {}).get(n, Timed), items, *cost, groups.get(n, 1), name=n) for n, cost in costs.items()}
    ends = {n: [[k for k in channels if k[side] == n] for side in (1, 0)] for n in costs}

    @flow.iteration
    def iteration() -> dict[str, Any]:
        sizes = {}
        for n, (reads, writes) in ends.items():
            method = ("make", "work", "in_turn" if n == in_turn else "join")[len(reads)]
            sizes[n] = getattr(workers[n], method)(*(channels[k] for k in (*reads, *writes)))
        return {n: sizes[n] for n, (reads, _) in ends.items() if reads}

    def worker(name: str) -> dict[str, Any]:
        fixed, each = costs[name]
        sizes = sorted({groups.get(name, 1), items})
        samples = [{"devices": int(name not in host), "items": n, "seconds": fixed + each * n} for n in sizes]
        turns = {"in_turn": [[k[0], 0.5] for k in ends[name][0]]} if name == in_turn else {}
        ranks = {"ranks": {"most": most[name]}} if most.get(name) else {}
        return {"samples": samples, **turns, **ranks, **({"resource": "host"} if name in host else {"exponent": 1.0})}

    edges = [{"producer": k[0], "consumer": k[1], "group": groups.get(k[0], 1)} for k in channels]
    return flow, Profile.from_dict({"items": items, "workers": {n: worker(n) for n in costs}, "edges": edges})


class Sim(lab.Worker):
    """Steps of its tokens in turn, each of which the policy answers, and a last one. ``uneven``: how much longer each token takes than the one before."""

    def __init__(self, seconds: float, steps: int, uneven: float) -> None:
        self.seconds, self.steps, self.uneven = seconds, steps, uneven

    def collect(self, actions: lab.Inbox, obs: lab.Outbox) -> None:
        keys = range(self.rank * self.sub_batches, (self.rank + 1) * self.sub_batches)
        for step in range(self.steps + 1):
            for key in keys:
                if step:
                    actions.take(key=key)
                self.compute(self.seconds * (1 + self.uneven * key))
                if step < self.steps:
                    obs.put(key)


class Policy(lab.Worker):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def act(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in obs:
            self.compute(self.seconds * len(batch))
            for key in batch:
                actions.put(key, key=key)


def cell(sim: float, policy: float, steps: int, uneven: float = 0.0) -> lab.Workflow:
    """``sim`` and ``policy``: seconds of a step of a token."""
    flow = lab.Workflow("cell")
    obs, act = flow.channel("obs"), flow.channel("act", keyed=True)
    one, other = flow.worker(Sim, sim, steps, uneven, name="sim"), flow.worker(Policy, policy, name="policy")

    @flow.iteration
    def iteration() -> None:
        one.collect(act, obs)
        other.act(obs, act)

    return flow
