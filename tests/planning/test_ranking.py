"""What is ranked: no plan twice under another name, reasons that add up, cycles with groups, cells of which some counts are impossible."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from random_profiles import random_profile

from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.planner.ranking import TIED
from rlinf_lab.planning.profile.profile import Profile


def samples(devices: int, items: int, seconds: float) -> dict[str, Any]:
    return {"samples": [{"devices": devices, "items": items, "seconds": seconds}]}


def with_a_host() -> Profile:
    """Two branches between a generator and a trainer: one on the host."""
    return Profile.from_dict({
        "items": 256,
        "workers": {
            "rollout": {"kind": "generation", "lengths": {"max_tokens": 4096, "mean_tokens": 900}, **samples(8, 256, 80)},
            "reward": {"resource": "host", **samples(0, 256, 12)},
            "ref": samples(8, 256, 40),
            "actor": samples(8, 256, 100),
        },
        "edges": [{"producer": p, "consumer": c} for p, c in (("rollout", "reward"), ("rollout", "ref"), ("reward", "actor"), ("ref", "actor"))],
    })  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> Plans:
    return plan(with_a_host(), 8)


def test_no_two_plans_seat_everybody_alike_and_take_as_long(plans: Plans) -> None:
    for a, b in itertools.combinations(plans, 2):
        alike = [{**p.placement[w], "micro_batches": 0} for p in (a, b) for w in p.placement]
        same = a.mode == b.mode and alike[: len(alike) // 2] == alike[len(alike) // 2 :]
        assert not same or b.seconds > 1.0005 * a.seconds, f"{a.name} {a.shape} and {b.name} {b.shape}"
    assert {"temporal", "hybrid"} <= {p.mode for p in plans}  # of each mode the fastest is there all the same


def test_turns_are_those_of_the_devices(plans: Plans) -> None:
    """Who works on the host does so beside them: its seconds are said, but no part of the sum."""
    said = plans["temporal"].reason
    turns = said.partition("turns: ")[2].partition(";")[0]
    assert "reward" not in turns and "on the host beside them: reward 12 s" in said
    total = sum(float(s) for s in re.findall(r"([\d.]+) s", turns))
    assert total <= plans["temporal"].seconds * 1.001


@pytest.mark.parametrize("group", [2, 8])
def test_groups_in_a_cycle_of_a_generator_and_its_tool(group: int) -> None:
    """They answer each other step by step: who waits for complete groups is downstream of the cycle."""
    cycle = {
        "items": 64,
        "workers": {
            "gen": {"kind": "generation", "lengths": {"max_tokens": 100, "mean_tokens": 20}, **samples(1, 64, 8)},
            "tool": samples(1, 64, 2), "judge": samples(1, 64, 1), "learner": samples(1, 64, 5),
        },
        "edges": [
            {"producer": "gen", "consumer": "tool"}, {"producer": "tool", "consumer": "judge", "group": group},
            {"producer": "judge", "consumer": "gen", "group": group}, {"producer": "judge", "consumer": "learner", "group": group},
        ],
    }  # fmt: skip
    found = plan(Profile.from_dict(cycle), 4)
    assert found.best.seconds == pytest.approx(16 / 4, rel=1e-3)
    assert any("(gen | tool | judge)" in p.shape for p in found)


@pytest.mark.parametrize(("devices", "shape"), [(1, "env+pol"), (2, "(env | pol)")])
def test_a_cell_says_what_its_seconds_rest_on(devices: int, shape: str) -> None:
    """The search, the notes and the cost model have one rule for a cell: its calibration, its sub-batches, its least sure member."""
    workers = {"env": {"kind": "simulator", "calls": 10, **samples(1, 64, 2)}, "pol": {"calls": 10, **samples(1, 32, 1)}}
    edges = [{"producer": "env", "consumer": "pol"}, {"producer": "pol", "consumer": "env"}]
    cells = [{"members": ["env", "pol"], "sub_batches": [2], "calibration": 1.5}]
    found = plan(Profile.from_dict({"items": 64, "workers": workers, "edges": edges, "cells": cells}), devices, micro_batches=1)
    made = next(p for p in found if p.shape == shape)
    estimate = made.candidate.placement.estimate(0)
    assert estimate.seconds == pytest.approx(made.candidate.searched) and estimate.low < estimate.seconds < estimate.high
    assert devices > 1 or any(n.startswith("env+pol: ") and "pol: " in n.partition("(")[2] for n in found.notes)


def pair(first: float, second: float, calls: int = 1, cycle: bool = False, **more: Any) -> Profile:
    """Two workers on a device each."""
    workers = {"a": {"devices": 1, "calls": calls, **samples(1, 64, first)}, "b": {"devices": 1, "calls": calls, **samples(1, 64, second)}}
    edges = [{"producer": p, "consumer": c, "item_mib": 64} for p, c in (("a", "b"), ("b", "a"))[: 1 + cycle]]
    return Profile.from_dict({"items": 64, "workers": workers, "edges": edges, **more})


LINK = {"link": {"gib_per_s": 0.1, "latency_s": 0}}
MESSAGES = {"messages": [{"transport": "unix", "latency_s": 0.1, "busy_s": 0.01}]}


@pytest.mark.parametrize(
    ("profile", "shape", "worked"),
    [
        (pair(8, 4), "a | b", 4.0),
        (pair(8, 4, **LINK), "a | b", 4.0),  # 40 s on the link
        (pair(0.01, 0.01, 100, True, **MESSAGES), "(a | b)", 1.0),
        (pair(1, 2, 1, True), "(a | b)", 1.5),  # of both, in the mean: one waits while the other works
    ],
)
def test_who_waits_waits_of_the_seconds_that_are_shown(profile: Profile, shape: str, worked: float) -> None:
    made = next(p for p in plan(profile, 2) if p.shape == shape)
    share = re.search(r"wait(?:s)? (\d+) % of the time", made.reason)
    assert share is not None and int(share[1]) == pytest.approx(100 * (1 - worked / made.seconds), abs=1)


@pytest.mark.parametrize("seed", [36, 42])
def test_plans_whose_iterations_overlap_are_all_ranked_by_simulation(seed: int) -> None:
    """More than are simulated otherwise: what is followed of them may be two thirds too long."""
    found = plan(random_profile(seed), 4 if seed == 36 else 2, staleness=1, micro_batches=8)
    assert len(found) > 6
    seconds = [p.simulated for p in found if p.simulated is not None]
    assert len(seconds) == len(found) and all(b >= a * (1 - TIED) for a, b in itertools.pairwise(seconds))


def said_of(mode: str, edges: str, workers: dict[str, Any], devices: int, **more: Any) -> str:
    """Why there is no such plan."""
    links = [{"producer": p, "consumer": c} for p, c in edges.split()]
    return plan(Profile.from_dict({"items": 64, "workers": workers, "edges": links, **more}), devices, simulate=False).refused[mode]


def pinned(devices: int) -> dict[str, Any]:
    return {"devices": devices, **samples(devices, 64, 40)}


FILLED = {
    "e": {"kind": "simulator", "calls": 4, "offloadable": False, "memory": {"resident_gib": 32}, **samples(1, 64, 4)},
    "p": {"calls": 4, "memory": {"resident_gib": 20}, "onload_s": 1, **samples(1, 64, 2)},
    "a": {"memory": {"resident_gib": 52}, **samples(1, 64, 8)},
}


@pytest.mark.parametrize(
    ("mode", "edges", "workers", "devices", "says"),
    [
        ("temporal", "bc cb ac", {"b": pinned(1), "c": pinned(2), "a": pinned(2)}, 3, "b and c cannot sit on the same devices, and apart they stream to"),
        ("temporal", "bc cb", {"b": pinned(1), "c": pinned(2)}, 3, "b and c answer each other step by step and are placed as one; there is nobody else"),
        ("spatial", "ae be ea eb", {"a": pinned(2), "b": pinned(1), "c": pinned(1), "d": pinned(4), "e": pinned(3)}, 8, r"6 (a\+b\+e|b\+a\+e).* 4 d"),
    ],
)  # fmt: skip
def test_why_there_is_no_plan_of_a_mode(mode: str, edges: str, workers: dict[str, Any], devices: int, says: str) -> None:
    assert re.search(says, said_of(mode, edges, workers, devices))


def test_a_refusal_names_all_that_fill_a_device() -> None:
    """The policy of a cell could leave by itself, and stays with the simulator: what is said adds up to more than there is."""
    said = said_of("temporal", "ep pe ea", FILLED, 2, cells=[{"members": ["e", "p"]}], device_memory_gib=96)
    assert "'p' stays with 'e', in one cell" in said and sum(float(gib) for gib in re.findall(r"(?:needs|keeps) ([\d.]+) GiB", said)) > 96


def test_turns_say_what_is_moved_to_a_worker_on_the_host() -> None:
    workers = {"a": {"resource": "host", **samples(0, 64, 8)}, "b": samples(1, 64, 4)}
    edges = [{"producer": "a", "consumer": "b", "item_mib": 64}]
    made = plan(Profile.from_dict({"items": 64, "workers": workers, "edges": edges, **LINK}), 1)["temporal"]
    moved = re.search(r"waiting for what is moved ([\d.]+) s", made.reason)
    assert moved is not None and float(moved[1]) == pytest.approx(made.seconds - 12, rel=0.01) and made.seconds > 30
