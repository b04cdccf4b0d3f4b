"""A full channel holds up its producer only: where others would wait with it, a plan's channel holds all items, and runs take what plans say."""

from __future__ import annotations

import dataclasses

import pytest
from mock_runs import run, seconds

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile


class Stage(lab.Worker):
    """``fixed`` seconds of a batch, ``each`` of an item."""

    def __init__(self, items: int, fixed: float, each: float) -> None:
        self.items, self.fixed, self.each = items, fixed, each

    def make(self, *outs: lab.Outbox) -> None:
        for i in range(self.items * self.rank // self.ranks, self.items * (self.rank + 1) // self.ranks):
            self.worked([i], outs)

    def work(self, x: lab.Inbox, *outs: lab.Outbox) -> None:
        for batch in x:
            self.worked(batch, outs)

    def join(self, x: lab.Inbox, y: lab.Inbox) -> None:
        for batch in x:
            y.get(len(batch))
            self.worked(batch, ())

    def one_then_the_other(self, x: lab.Inbox, y: lab.Inbox) -> None:
        for inbox in (x, y):
            for batch in inbox:
                self.compute((self.fixed + self.each * len(batch)) / 2)

    def worked(self, batch: list[int], outs: tuple[lab.Outbox, ...]) -> None:
        self.compute(self.fixed + self.each * len(batch))
        for out in outs:
            out.put_all(batch)


def made(links: str, items: int, costs: dict[str, tuple[float, float]], most: dict[str, int], in_turn: str = "") -> tuple[lab.Workflow, Profile]:
    """``links``: "ab bc" is a > b > c, through channels of the default capacity. ``in_turn``: who takes all of one input before the next."""
    flow, ends = lab.Workflow("held up"), {n: [[k for k in links.split() if k[i] == n] for i in (1, 0)] for n in costs}
    channels = {k: flow.channel(k) for k in links.split()}
    workers = {n: flow.worker(Stage, items, *cost, name=n) for n, cost in costs.items()}

    @flow.iteration
    def iteration() -> None:
        for n, (reads, writes) in ends.items():
            method = ("make", "work", "one_then_the_other" if n == in_turn else "join")[len(reads)]
            getattr(workers[n], method)(*(channels[k] for k in (*reads, *writes)))

    def worker(name: str) -> dict:
        fixed, each = costs[name]
        turns = {"in_turn": [[k[0], 0.5] for k in ends[name][0]]} if name == in_turn else {}
        samples = [{"devices": 1, "items": n, "seconds": fixed + each * n} for n in (1, items)]
        return {"samples": samples, "exponent": 1.0, "ranks": {"most": most.get(name, 1)}, **turns}

    edges = [{"producer": k[0], "consumer": k[1]} for k in links.split()]
    return flow, Profile.from_dict({"items": items, "workers": {n: worker(n) for n in costs}, "edges": edges})


CASES = {
    # The short arm fills up while the long one works: a would wait, and with it b, c and d.
    "two arms": ("ab bc cd de ae", {"a": (0, 0.01), "b": (0.5, 0.008), "c": (0.5, 0.008), "d": (0.5, 0.008), "e": (0, 0.01)}, 5, "a | b | c | d | e"),
    # c takes nothing of a while there is more of b.
    "in turn": ("ab bc ac", {"a": (0, 0.005), "b": (0, 0.002), "c": (0, 0.002)}, 4, "a | b | c"),
    # d is slow, and c waits for a batch of everything.
    "fork": ("ab ac ad", {"a": (0, 0.002), "b": (0, 0.002), "c": (1.0, 0.01), "d": (0, 0.02)}, 4, "a | b | c | d"),
    # While a waits for room, c takes its devices, and keeps them. (The other name of these seats, (a > c) | (b > d), is no plan of its own.)
    "taken devices": ("ab cd bd", {"a": (0, 0.002), "b": (0.01, 0.01), "c": (0, 0.04), "d": (0.01, 0.002)}, 3, "a > (c | (b > d))"),
    # c comes before b, and a could have all ready for it by then.
    "turns": ("ab cd bd", {"a": (0, 0.02), "b": (0.01, 0.01), "c": (0, 0.04), "d": (0.01, 0.002)}, 3, "a | (c > b > d)"),
}


@pytest.mark.parametrize("name", CASES)
def test_nobody_else_is_held_up_by_a_bound(name: str) -> None:
    links, costs, devices, shape = CASES[name]
    flow, profile = made(links, 256, costs, dict.fromkeys("abc", 2) if devices == 3 else {}, "c" if name == "in turn" else "")
    planned = next(p for p in lab.plan(flow, [f"cpu:{i}" for i in range(devices)], profile, micro_batches=16) if p.shape == shape)
    assert seconds(run(flow, planned, 2)) == pytest.approx(planned.seconds, rel=0.02)
    assert 256 in planned.execution.capacities.values()
    assert seconds(run(flow, dataclasses.replace(planned.execution, capacities={}), 2)) > 1.2 * planned.seconds, "others would wait with it"
    if name == "taken devices":
        where = planned.execution.placements
        assert where["a"] == where["c"] and where["b"] == where["d"] and where["a"] != where["b"]


def test_a_chain_on_devices_of_its_own_keeps_its_bounds() -> None:
    flow, profile = made("ab bc cd", 512, {"a": (0, 0.01), "b": (0, 0.02), "c": (0, 0.01), "d": (0, 0.03)}, {})
    planned = next(p for p in lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile) if p.shape == "a | b | c | d")
    assert planned.execution.capacities == {} and seconds(run(flow, planned, 2)) == pytest.approx(planned.seconds, rel=0.02)
