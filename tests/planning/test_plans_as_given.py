"""A plan that was saved, edited or made by hand, simulated under a profile."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import plan, planned
from rlinf_lab.planning.profile.profile import DeviceKind, EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile

PROFILES = sorted((Path(__file__).parents[2] / "docs" / "profiles").glob("*.json"))
WORK = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 2.0)))


def saved(made: object) -> ExecutionPlan:
    return ExecutionPlan.from_json(made.execution.to_json())  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [p for p in PROFILES if p.stem in ("grpo_1.5b_case1", "maniskill_openvla")], ids=lambda p: p.stem)
def test_a_saved_plan_takes_what_it_took(path: Path) -> None:
    """Of random profiles: `test_stated_seconds`."""
    plans = plan(Profile.load(path), 8)
    some = [p for p in plans if p.simulated is not None]
    assert some and [planned(plans.profile, saved(p)).seconds for p in some] == pytest.approx([p.seconds for p in some], rel=1e-9)


def two(**fields: object) -> Profile:
    return dataclasses.replace(Profile(64, {"a": WORK, "b": WORK}, (EdgeProfile("a", "b"),), "two"), **fields)  # type: ignore[arg-type]


def by_hand(name: str = "mine", **fields: object) -> ExecutionPlan:
    """a on four devices, b on four others."""
    given = {"placements": {"a": [[0], [1], [2], [3]], "b": [[4], [5], [6], [7]]}, "micro_batches": {"a_to_b": 4}, **fields}
    return ExecutionPlan(name, tuple(f"cuda:{i}" for i in range(8)), **given)  # type: ignore[arg-type]


def test_a_plan_made_by_hand() -> None:
    streamed = planned(two(), by_hand())
    assert (streamed.name, streamed.shape, streamed.placement["b"]["micro_batches"]) == ("mine", "a | b", 4)
    assert streamed.execution == by_hand() and streamed.timeline.utilisation().mean() > 0 and "as it was given" in repr(streamed)
    everything = planned(two(), by_hand(micro_batches={}))
    assert everything.placement["b"]["micro_batches"] == 1 and everything.seconds > streamed.seconds
    fewer = planned(two(), by_hand(placements={"a": [[0], [1], [2], [3], [4], [5]], "b": [[6], [7]]}))
    assert fewer.placement["a"]["devices"] == 6 and fewer.seconds != streamed.seconds
    same = planned(two(), by_hand(placements={"a": [[i] for i in range(8)], "b": [[i] for i in range(8)]}, micro_batches={}))
    assert same.shape == "a > b"
    mixed = planned(two(), by_hand(placements={"a": [[0], [2], [4], [6]], "b": [[1], [3], [5], [7]]}))
    assert mixed.seconds == streamed.seconds and mixed.devices[:4] == ("cuda:0", "cuda:2", "cuda:4", "cuda:6")
    assert planned(two(), by_hand(staleness=1)).seconds < streamed.seconds
    assert lab.planning.planned is planned


def test_who_leaves_pays_for_it() -> None:
    workers = {n: dataclasses.replace(WORK, memory=Memory(30.0), onload_s=1.0, offload_s=1.0) for n in "ab"}
    profile, everywhere = two(workers=workers, device_memory_gib=80.0), {"a": [[i] for i in range(8)], "b": [[i] for i in range(8)]}
    staying = planned(profile, by_hand(placements=everywhere, micro_batches={}))
    leaving = planned(profile, by_hand(placements=everywhere, micro_batches={}, memory={"a": 1, "b": 1}, device_memory=1))
    assert leaving.seconds == pytest.approx(staying.seconds + 4.0) and not leaving.placement["a"]["stays"]
    with pytest.raises(PlanError, match=r"does not fit profile 'two': a needs 60 GiB on device 0 beside b, 50 are there\. Next"):
        planned(profile, by_hand(placements=everywhere, micro_batches={}), memory_gib=50.0)
    assert planned(profile, leaving.execution, memory_gib=50.0).seconds == leaving.seconds


def test_sub_batches_are_those_of_the_cell() -> None:
    """Told of one member they are those of all; of who answers nobody they say nothing; two numbers of one cell would wait for each other."""
    path = next(p for p in PROFILES if p.stem == "maniskill_openvla")
    apart = plan(Profile.load(path), 16)["hybrid"]
    made, (one, other) = saved(apart), ("simulator", "generator")
    halves = dataclasses.replace(made, sub_batches={one: 2})
    assert planned(apart.candidate.placement.setting.profile, halves).placement[other]["sub_batches"] == 2
    with pytest.raises(PlanError, match=r"sub_batches of simulator, generator are 2, 3; .*\. Next: one number"):
        planned(Profile.load(path), dataclasses.replace(made, sub_batches={one: 2, other: 3}))
    assert planned(two(), by_hand(sub_batches={"a": 2})).seconds == planned(two(), by_hand()).seconds


KINDS = (DeviceKind("H"), DeviceKind("L", 0.5))


@pytest.mark.parametrize(
    ("profile", "fields", "says"),
    [
        (two(), {"micro_batches": {"a_to_c": 4}}, "Did you mean 'a_to_b'"),
        (two(), {"placements": {"a": [[0]]}}, r"places no rank of worker 'b'\. Next"),
        (two(), {"micro_batches": {"a_to_b": 3}}, r"micro_batches\['a_to_b'\] is 3; .* in 1, 2, 4, \.\.\. micro-batches\. Next: 2 or 4"),
        (two(workers={"a": WORK, "b": dataclasses.replace(WORK, ranks=RankRule(2))}), {}, r"placements\['b'\] has ranks of 1 device; the profile says 2"),
        (two(workers={"a": WORK, "b": dataclasses.replace(WORK, ranks=RankRule(counts=(2, 8)))}), {}, r"has 4 ranks, which .* Next: 2 devices"),
        (two(workers={"a": WORK, "b": dataclasses.replace(WORK, devices=2)}), {}, "pins it to 2"),
        (two(workers={"a": WORK, "b": WorkerProfile((Sample(0, 64.0, 8.0),), resource="host")}), {}, r"on 4 devices, but the profile has it on the host"),
        (two(workers={n: dataclasses.replace(WORK, offloadable=n == "a") for n in "ab"}), {"memory": {"b": 1}, "device_memory": 1}, "offloadable is false"),
        (two(kinds=KINDS), {}, r"does not say which of its 8 devices are of which\. Next: devices=\{'H': 8\}"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_profile_is_refused_in_words(profile: Profile, fields: dict[str, object], says: str) -> None:
    with pytest.raises(PlanError, match=says) as refused:
        planned(profile, by_hand(**fields))
    assert "Next:" in str(refused.value)


def test_kinds_of_devices() -> None:
    made = planned(two(kinds=KINDS), by_hand(), devices={"H": 4, "L": 4})
    assert made.seconds > planned(two(), by_hand()).seconds, "b is on the slower kind"
    with pytest.raises(PlanError, match="'b' is on devices of several kinds"):
        planned(two(kinds=KINDS), by_hand(), devices={"H": 6, "L": 2})
    with pytest.raises(PlanError, match=r"but plan 'mine' has 8\. Next: 8"):
        planned(two(), by_hand(), devices=4)
    with pytest.raises(PlanError, match="an ExecutionPlan is needed"):
        planned(two(), "plan.json")  # type: ignore[arg-type]


def test_a_plan_of_a_workflow_with_names_of_its_own() -> None:
    flow = timed("ab", 64, dict.fromkeys("ab", (0.0, 1.0)))[0]
    for p in plan(flow, 8, two()):
        if p.simulated is not None:
            assert planned(flow, saved(p), two()).seconds == pytest.approx(p.seconds, rel=1e-9)
    with pytest.raises(PlanError, match="needs profile="):
        planned(flow, by_hand())


def test_plans_say_which_devices_one_rank_a_worker_leaves_idle_and_what_measures_more() -> None:
    """As `lab.profile` without ``ranks=`` has it."""
    one = dataclasses.replace(WORK, ranks=RankRule(most=1))
    idle = [n for n in plan(two(workers={"a": one, "b": one}), 4).notes if "idle" in n]
    assert idle == ["2 of 4 devices are idle: by the profile a, b have one rank at most. Next: lab.profile(flow, ranks={'a': [1, 4]}) measures more"]
    assert not any("idle" in n for n in (*plan(two(workers={"a": one, "b": one}), 2).notes, *plan(two(workers={"a": one, "b": WORK}), 4).notes))
