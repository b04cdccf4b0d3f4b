"""Who is fed by groups works through whole ones: no plan counts on finer micro-batches than a run has."""

from __future__ import annotations

import random
from typing import Any

import pytest
from mock_runs import run, seconds
from sweeps import sweep

import rlinf_lab as lab
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.profile.profile import Profile

ITEMS = 32


class Stage(lab.Worker):
    """``group``: of what it puts. Batches of groups, if it is fed by them, are put item by item."""

    def __init__(self, each: float, group: int) -> None:
        self.each, self.group = each, group

    def make(self, out: lab.Outbox) -> None:
        for i in range(ITEMS):
            self.compute(self.each)
            self.hand_on(out, i)

    def convert(self, inbox: lab.Inbox, out: lab.Outbox) -> list[int]:
        return [self.worked(batch, out) for batch in inbox]

    def take(self, inbox: lab.Inbox) -> list[int]:
        return [self.worked(batch) for batch in inbox]

    def worked(self, batch: list[Any], out: lab.Outbox | None = None) -> int:
        items = [i for part in batch for i in (part if isinstance(part, list) else [part])]
        self.compute(self.each * len(items))
        for i in items if out is not None else ():
            self.hand_on(out, i)
        return len(items)

    def hand_on(self, out: lab.Outbox, item: int) -> None:
        if self.group > 1:
            out.put(item, key=item // self.group)
        else:
            out.put(item)


def chain(seed: int) -> tuple[lab.Workflow, Profile]:
    """a > b > c, one rank each; groups into b, perhaps into c."""
    rng = random.Random(seed)
    groups = rng.choice([2, 8, 16, 32]), rng.choice([1, 1, 4, 16])
    each = {n: rng.choice([1, 2, 3, 5]) / 4 for n in "abc"}
    flow = lab.Workflow("groups")
    x, y = (flow.channel(n, capacity=None, group=g) for n, g in zip(("x", "y"), groups, strict=True))
    a, b, c = (flow.worker(Stage, each[n], g, name=n) for n, g in zip("abc", (*groups, 1), strict=True))

    @flow.iteration
    def iteration() -> Any:
        a.make(x)
        return {"b": b.convert(x, y), "c": c.take(y)}

    workers = {n: {"samples": [{"devices": 1, "items": ITEMS, "seconds": ITEMS * s}], "ranks": {"counts": [1]}} for n, s in each.items()}
    edges = [{"producer": p, "consumer": q, "group": g} for p, q, g in zip("ab", "bc", groups, strict=True)]
    return flow, Profile.from_dict({"items": ITEMS, "workers": workers, "edges": edges})


@sweep(6, 12)
def test_a_run_takes_what_plans_of_groups_say(seeds: range) -> None:
    for seed in seeds:
        flow, profile = chain(seed)
        for planned in lab.plan(flow, [f"cpu:{i}" for i in range(1 + seed % 3)], profile, micro_batches=(64, 4)[seed % 2]):
            done = run(flow, planned, 3)
            assert seconds(done) == pytest.approx(planned.seconds, rel=1e-6), (seed, planned)
            batches = {n: len(sizes) for n, sizes in done.wait()[-1].items()}
            assert batches == {n: planned.placement[n]["micro_batches"] for n in "bc"}, (seed, planned)


def test_the_least_that_comes_at_once_is_a_group() -> None:
    edges = [{"producer": "a", "consumer": "b", "group": 8}, {"producer": "b", "consumer": "c"}, {"producer": "a", "consumer": "d", "group": 4, "whole": True}]
    workers = {n: {"samples": [{"devices": 1, "items": ITEMS, "seconds": 1}]} for n in "abcd"}
    setting = Setting.of(Profile.from_dict({"items": ITEMS, "workers": workers, "edges": edges}), 2)
    assert {n: setting.fewest_items(n) for n in "abcd"} == {"a": 1, "b": 8, "c": 1, "d": ITEMS}
