"""Workers that cost exactly what their profile says do not drift, however a run cuts their batches and whichever rank takes them."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest
from mock_runs import run
from sweeps import sweep
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile

DEVICES = [f"cpu:{i}" for i in range(8)]


class Asking(Timed):
    """``asks``: for so many items at a time, by name; the others leave that to the plan."""

    asks: ClassVar[dict[str, int | None]] = {}

    def work(self, inbox: lab.Inbox, *outs: lab.Outbox) -> list[int]:
        sizes = []
        while batch := inbox.get(self.asks[self.name]):
            sizes.append(self.worked(batch, outs))
        return sizes


def case(seed: int, asking: bool = True) -> tuple[lab.Workflow, Profile]:
    """A chain of two to four workers or two arms and a join; ranks, groups and bounds by chance."""
    rng = random.Random(seed)
    links = rng.choice(["ab", "ab bc", "ab bc cd", "ab ac bd cd"])
    names, fork = sorted(set(links) - {" "}), "cd" in links and "ac" in links
    group = 1 if fork else rng.choice([1, 1, 1, 2, 5, 16])
    costs = {n: (0.0 if n == "a" else rng.choice([0.0, 0.01, 0.1, 1.0]), rng.choice([0.01, 0.05, 0.2])) for n in names}
    most = {n: 1 if n == "a" or (fork and n == "d") else rng.choice([1, 2, 3, 8]) for n in names}
    Asking.asks = {n: rng.choice([None, None, None, 1, 3, 10**6]) if asking else None for n in names}
    groups, kinds = dict.fromkeys(names, group), dict.fromkeys(names, Asking)
    return timed(links, group * rng.randint(2, 30), costs, most, groups, rng.choice([None, None, 32]), kinds=kinds)


@sweep(16, 120)
def test_nobody_drifts_who_costs_what_was_said(seeds: range) -> None:
    for seed in seeds:
        flow, profile = case(seed)
        for planned in lab.plan(flow, DEVICES[: 1 + seed % 8], profile, micro_batches=(4, 16)[seed % 2], simulate=False, quick=True):
            found = lab.replan(run(flow, planned, 4).timeline, planned)
            assert not any(d.sustained for d in found.drifts) and found.proposal is None, (seed, found, planned)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_who_is_really_slower_or_faster_drifts(factor: float) -> None:
    """The run costs what is true; the plan was made for workers of which the first after the source takes a part of that."""
    for seed in range(6):
        flow, profile = case(seed, asking=False)
        planned = lab.plan(flow, DEVICES[: 1 + seed % 8], profile.scaled("b", 1 / factor), simulate=False, quick=True).best
        drifts = {d.worker: d for d in lab.replan(run(flow, planned, 4).timeline, planned).drifts}
        assert drifts["b"].factor == pytest.approx(factor, rel=1e-3) and [w for w, d in drifts.items() if d.sustained] == ["b"], seed
