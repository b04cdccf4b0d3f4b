"""A source's ranks make their shares of an iteration by themselves: whole items, whole groups, divided once and not for each micro-batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from mock_runs import run, seconds
from test_whole_calls import Stage

import rlinf_lab as lab
from rlinf_lab.planning.costs import BatchModel
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, RankRule, Sample, WorkerProfile


class Shares(Stage):
    def make(self, out: lab.Outbox) -> None:
        groups = self.items // self.group
        for i in range(self.group * (groups * self.rank // self.ranks), self.group * (groups * (self.rank + 1) // self.ranks)):
            self.compute(self.each)
            self.hand_on(out, i)


def case(groups: int, group: int, ranks: int, fixed: float, devices: int | None = None) -> tuple[lab.Workflow, Profile]:
    """``devices``: of a, which has as many ranks (None: any number)."""
    flow, items = lab.Workflow("two"), groups * group
    x = flow.channel("x", capacity=None, group=group)
    a, b = flow.worker(Shares, 0.0, 0.04, items, group, name="a"), flow.worker(Shares, fixed, 0.002, items, group, name="b")

    @flow.iteration
    def iteration() -> int:
        a.make(x)
        return b.end(x)

    costs = {"a": (0.0, 0.04, ranks), "b": (fixed, 0.002, 1)}
    workers = {n: WorkerProfile(tuple(Sample(1, float(k), f + e * k) for k in (group, items)), ranks=RankRule(most=r)) for n, (f, e, r) in costs.items()}
    workers["a"] = dataclasses.replace(workers["a"], devices=devices)
    return flow, Profile(items, workers, (EdgeProfile("a", "b", group),))


@pytest.mark.parametrize("groups, group, ranks", [(16, 4, 5), (32, 4, 5), (21, 4, 4), (14, 1, 4), (22, 1, 3), (9, 2, 2)])
@pytest.mark.parametrize("micro_batches", [1, 16])
def test_runs_take_what_plans_say_where_shares_are_not_equal(groups: int, group: int, ranks: int, micro_batches: int) -> None:
    """So many ranks are asked for: 16 groups take five ranks as long as four, and then four are chosen."""
    flow, profile = case(groups, group, ranks, 0.1, devices=ranks)
    names = [f"cpu:{i}" for i in range(ranks + 1)]
    plans = {p.name: p for p in lab.plan(flow, names, profile, micro_batches=micro_batches)}
    chosen = lab.plan(flow, names, case(groups, group, ranks, 0.1)[1], micro_batches=micro_batches).best
    assert chosen.seconds <= min(p.seconds for p in plans.values()) * (1 + 1e-6)
    assert seconds(run(flow, chosen, 2)) == pytest.approx(chosen.seconds, rel=0.04)
    for planned in (plans["spatial"], plans["temporal"]) if micro_batches == 1 else [plans["spatial"]]:
        assert planned.placement["a"]["ranks"] == ranks
        assert seconds(run(flow, planned, 2)) == pytest.approx(planned.seconds, rel=0.04), planned


def test_the_parts_of_a_share_are_the_share() -> None:
    model = BatchModel((Sample(1, 32.0, 32.0),), 1.0, 1, 4)
    assert model.seconds(np.array([5]), 32) == pytest.approx(8.0)  # eight groups: two of four for one of five ranks
    assert model.of_a_part(np.array([5]), 32, 64)[0] * 64 == pytest.approx(8.0)
    assert Profile(32, {"a": WorkerProfile((Sample(1, 32.0, 32.0),)), "b": WorkerProfile((Sample(1, 32.0, 1.0),))}, (EdgeProfile("a", "b", 4),)).group_size("a") == 4
