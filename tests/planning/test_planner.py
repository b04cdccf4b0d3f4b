"""Ranked plans: order, names, reasons, bounds, JSON, what is refused, and plans that an executor takes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest
from random_profiles import chain
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import plan, planned
from rlinf_lab.planning.profile.profile import (
    Cell,
    DeviceKind,
    EdgeProfile,
    Lengths,
    Memory,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

FLAT = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 6.0)))
STEEP = WorkerProfile((Sample(8, 64.0, 8.0),), exponent=1.0)


def test_devices_of_several_kinds_have_names() -> None:
    profile = chain(a=FLAT, b=FLAT).replace(kinds=(DeviceKind("H"), DeviceKind("R")))
    names = {"R": ["node1/cuda:0"], "H": ["cuda:3", "cuda:5"]}
    for made in plan(profile, names, simulate=False):
        assert made.devices == made.execution.devices == ("node1/cuda:0", "cuda:3", "cuda:5")
        for name, seat in made.candidate.placement.seats.items():
            assert {made.devices[d] for d in seat.devices} <= set(names[made.candidate.placement.kind(seat)]), name
    with pytest.raises(PlanError, match=r"a number of each kind, or names of each kind\. Next: \{'H': \['cuda:0'\]"):
        plan(profile, {"H": ["cuda:0"], "R": 1})
    for wrong in ([], [1, 2], {"": [3]}):
        with pytest.raises(PlanError, match=r"devices is .*; give a number"):
            plan(chain(a=FLAT, b=FLAT), wrong)
    assert plan(chain(a=FLAT, b=FLAT), ["cpu:0", "cpu:1"]).best.execution.devices == ("cpu:0", "cpu:1")
    kinds = profile.replace(kinds=(DeviceKind("h100"), DeviceKind("cpu", 0.2)))
    assert plan(kinds, {"h100": 2, "cpu": 2}).best.execution.devices == ("cuda:0", "cuda:1", "cpu:0", "cpu:1")


def test_plans_are_copied_and_pickled() -> None:
    plans = plan(chain(a=FLAT, b=FLAT), 8)
    timeline = plans.best.timeline
    assert plans.best.simulated == pytest.approx(timeline.iterations()["seconds"].iloc[-1]) == plans.best.seconds
    assert len(plans.best.simulate(4).iterations()) == 4 and timeline.bubble_sum_error_ns() == 0
    html = plans.best._repr_html_()
    assert html.count("<svg") == html.count("<img") == 1, "an image where a page takes SVG out"
    for again in (pickle.loads(pickle.dumps(plans)), copy.deepcopy(plans)):
        assert again == plans and repr(again) == repr(plans)
        assert again.best.timeline.diff(timeline) == "", "simulated again"
    assert plan(chain(a=FLAT, b=FLAT), 7) != plans


def test_plans_are_ranked_and_explained() -> None:
    plans = plan(chain(a=FLAT, b=FLAT), 8)
    assert [p.mode for p in plans] == ["spatial", "temporal"] and plans.best is plans[0] and len(plans) == 2
    assert plans.best.seconds < plans["temporal"].seconds == pytest.approx(12)
    assert plans["temporal"].reason == f"{100 * (plans['temporal'].seconds / plans.best.seconds - 1):.1f} % slower; turns: a 6 s, b 6 s"
    assert plans.best.reason.startswith("fastest;") and plans.bound.seconds <= plans.best.seconds
    assert plans.refused == {"hybrid": "two that time-share or stream are no mixture; it takes three."}
    assert "spatial" in repr(plans) and "<table" in plans._repr_html_() and "a | b" in repr(plans.best)
    frame = plans.to_pandas()
    assert frame["seconds"].is_monotonic_increasing and frame["a"].tolist() == [at.placement["a"]["devices"] for at in plans]
    with pytest.raises(UnknownNameError, match="temporal"):
        plans["tempral"]
    with pytest.raises(PlanError, match="no hybrid plan"):
        plans["hybrid"]


def test_who_does_not_fit_side_by_side() -> None:
    wide, bound = dataclasses.replace(STEEP, ranks=RankRule(6)), dataclasses.replace(STEEP, offloadable=False, memory=Memory(50))
    assert plan(chain(a=wide, b=wide), 8).refused["spatial"] == "devices of their own for all need 6 a + 6 b = 12 devices, 8 are there."
    three = plan(chain(a=bound, b=bound, c=bound), 8, memory_gib=64)
    assert [p.mode for p in three] == ["spatial"] and all(three.refused[m].startswith("who stays on the devices leaves too little memory") for m in ("temporal", "hybrid"))
    single = dataclasses.replace(bound, ranks=RankRule(most=1))  # all on one device, where they time-share
    leaving = plan(chain(a=single, b=dataclasses.replace(single, memory=Memory(10)), c=single), 8, memory_gib=64)
    assert "who stays on the devices leaves too little memory" in leaving.refused["temporal"]
    assert "hybrid" not in plan(chain(a=bound, b=dataclasses.replace(bound, memory=Memory(10)), c=bound), 8, memory_gib=64).refused
    with pytest.raises(PlanError, match="No plan for 'chain' on 8 devices among temporal: .a. needs 50 GiB .* Next: modes=.*, or memory_gib=100"):
        plan(chain(a=bound, b=bound), 8, memory_gib=64, modes=("temporal",))


def test_unused_devices_go_to_who_is_no_slower_with_them() -> None:
    pairs = dataclasses.replace(STEEP, ranks=RankRule(4))
    flat = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 8.0)))
    host = WorkerProfile((Sample(0, 64.0, 1.0),), resource="host")
    plans = plan(chain(a=flat, b=host, c=pairs), 7, simulate=False)
    assert [at["devices"] for at in plans["spatial"].placement.values()] == [3, 0, 4]
    assert [at["devices"] for at in plans["temporal"].placement.values()] == [7, 0, 4]


def test_notes_say_what_the_figures_rest_on() -> None:
    plans = plan(chain(a=dataclasses.replace(STEEP, exponent=None), b=FLAT), 4, micro_batches=1)
    notes = plans.notes
    assert any(n.startswith("a: assumed") and "scaling with devices assumed perfect" in n for n in notes)
    assert not any(n.startswith("b:") for n in notes)
    streamed = plan(chain(a=STEEP, b=FLAT), 4, modes=("spatial",))
    assert streamed.best.placement["b"]["micro_batches"] > 1
    assert any(n.startswith("b: extrapolated") for n in streamed.notes), "a micro-batch is smaller than what was measured"
    uneven = WorkerProfile((Sample(1, 64.0, 1.0), Sample(1, 64.0, 9.0)))
    assert plan(chain(a=uneven), 1).notes == ("a: measured, may be off by a factor of 3",)


# --- what an executor takes -------------------------------------------------------------------------------
class Env(Worker):
    def collect(self, actions: Inbox, out: Outbox, results: Outbox) -> None: ...
    def act(self, inbox: Inbox, out: Outbox) -> None: ...
    def train(self, results: Inbox) -> None: ...


def flow(links: str) -> Workflow:
    return timed(links, 64, dict.fromkeys(links.replace(" ", ""), (0.0, 1.0)))[0]


def test_execution_plans_fit_the_workflow() -> None:
    sampler = WorkerProfile((Sample(4, 64.0, 8.0),), "generation", lengths=Lengths(500.0, mean_tokens=100.0), exponent=0.5, ranks=RankRule(2))
    heavy = dataclasses.replace(STEEP, memory=Memory(50), onload_s=1.0)
    profile = chain(a=sampler, b=heavy, c=heavy).replace(device_memory_gib=60)
    stages = flow("ab bc")
    graph = stages.graph
    for one in plan(stages, 8, profile):
        execution = one.execution
        execution.validate(graph)
        assert ExecutionPlan.from_json(execution.to_json()) == execution
        assert {w: len(r) for w, r in execution.placements.items()} == {w: at["ranks"] for w, at in one.placement.items()}
        assert all(len(r) == (2 if w == "a" else 1) for w, ranks in execution.placements.items() for r in ranks)
        switched = {w for w, at in one.placement.items() if not at["stays"] and w != "a"}  # coming and going costs a nothing
        assert switched <= set(execution.memory) and (execution.device_memory is None) == (not switched)
    temporal = plan(stages, 8, profile)["temporal"].execution
    assert temporal.micro_batches == {"ab": 8, "bc": 8}  # a share of everything for each of eight ranks
    with pytest.raises(PlanError, match=r"has the workers x, of which the profile knows nothing; it knows a, b, c"):
        plan(flow("ab bx"), 8, profile)
    with pytest.raises(PlanError, match=r"has the workers d, but workflow 'timed' has a, b, c"):
        plan(stages, 8, chain(a=sampler, b=heavy, c=heavy, d=heavy))
    with pytest.raises(PlanError, match=r"needs profile=\. Next: profile=lab\.profile\(flow\)"):
        plan(stages, 8)
    with pytest.raises(PlanError, match="takes a Profile, or a Workflow"):
        plan("stages", 8)  # type: ignore[arg-type]


def test_execution_plans_of_cells() -> None:
    made = Workflow("cell")
    obs, results, actions = made.channel("obs"), made.channel("results", whole=True), made.channel("actions", keyed=True)
    env, policy, learner = (made.worker(Env, name=n) for n in ("env", "policy", "learner"))

    @made.iteration
    def iteration() -> None:
        env.collect(actions, obs, results)
        policy.act(obs, actions)
        learner.train(results)

    step = WorkerProfile((Sample(1, 4.0, 1.0), Sample(1, 16.0, 1.2)), "simulator", 10, ranks=RankRule(divides=64))
    edges = (EdgeProfile("env", "policy"), EdgeProfile("policy", "env"), EdgeProfile("env", "learner", whole=True))
    profile = Profile(64, {"env": step, "policy": step, "learner": STEEP}, edges)
    plans = plan(made, 8, profile)
    together, apart = plans["env+policy > learner"].execution, plans["(env | policy) > learner"].execution
    assert together.fused == (("env", "policy"),) and together.micro_batches == {"obs": 1, "results": 0} and not together.sub_batches
    assert apart.fused == () and apart.sub_batches == {"env": 2, "policy": 2}
    ranks = {w: len(r) for w, r in apart.placements.items()}
    assert apart.micro_batches == {"obs": ranks["env"] * 2 // ranks["policy"] // 2, "results": 0}
    for execution in (together, apart):
        execution.validate(made.graph)


def test_a_lead_that_staleness_allows_is_no_speed() -> None:
    """The slow stage starts ahead and is caught up with only after many iterations: what settles is its own time."""
    slow, fast = WorkerProfile((Sample(1, 64.0, 30.0),), devices=1), WorkerProfile((Sample(1, 64.0, 13.0),), devices=1)
    profile = Profile(64, {"b": slow, "c": fast, "d": fast}, (EdgeProfile("b", "d", whole=True), EdgeProfile("c", "d")))
    for staleness in (1, 3):
        assert plan(profile, 2, staleness=staleness).best.seconds >= 30


@pytest.mark.parametrize(("reader", "bound"), [("policy", 10 + 5 / 2 + 1), ("simulator", 10 + 5 + 1)])
def test_the_bound_of_a_chain_through_a_cell(reader: str, bound: float) -> None:
    """Who begins the steps need not wait for what only another member reads: its first one may be done by then."""
    simulator = WorkerProfile((Sample(1, 64.0, 2.0),), "simulator", calls=2)
    policy, before, after = (WorkerProfile((Sample(1, 64.0, s),), exponent=0.0, calls=c) for s, c in ((0.5, 2), (10.0, 1), (1.0, 1)))
    edges = [("simulator", "policy"), ("policy", "simulator")]
    whole = [("before", reader), ("policy", "after")]
    profile = Profile(
        64, {"simulator": simulator, "policy": policy, "before": before, "after": after},
        (*(EdgeProfile(*e) for e in edges), *(EdgeProfile(*e, whole=True) for e in whole)),
    )  # fmt: skip
    plans = plan(profile, 4)
    assert plans.bound.seconds <= plans.best.seconds == pytest.approx(14.0 if reader == "policy" else 16.0)
    assert plans.bound.seconds == pytest.approx(bound)


@pytest.mark.parametrize(("writer", "ahead"), [("a", 0), ("b", 1), ("c", 0)])
def test_the_bound_of_a_chain_that_leaves_a_cell(writer: str, ahead: int) -> None:
    """What the middle one of a ring of three puts last may be ready before the others have done their part of the last of four steps."""
    ring = {name: WorkerProfile((Sample(1, 64.0, 1.0),), exponent=0.0, calls=4) for name in "abc"}
    workers = {**ring, "after": WorkerProfile((Sample(1, 64.0, 20.0),), exponent=0.0)}
    edges = (EdgeProfile("a", "b"), EdgeProfile("b", "c"), EdgeProfile("c", "a"), EdgeProfile(writer, "after", whole=True))
    steps, plans = plan(Profile(64, ring, edges[:3]), 4).bound.seconds, plan(Profile(64, workers, edges), 4)
    assert plans.bound.seconds == pytest.approx(steps - steps / 4 * ahead + 20) and plans.bound.seconds <= plans.best.seconds


# --- a plan that was saved, edited or made by hand ------------------------------------------------------------------
PROFILES = sorted((Path(__file__).parents[2] / "docs" / "profiles").glob("*.json"))
WORK = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 2.0)))


def saved(made: object) -> ExecutionPlan:
    return ExecutionPlan.from_json(made.execution.to_json())  # type: ignore[attr-defined]


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
    with pytest.raises(PlanError, match=r"memory_gib is -3\.0; give a number, above 0"):
        planned(profile, leaving.execution, memory_gib=-3.0)


def test_sub_batches_are_those_of_the_cell() -> None:
    """Told of one member they are those of all; of who answers nobody they say nothing; two numbers of one cell would wait for each other."""
    path = next(p for p in PROFILES if p.stem == "maniskill_openvla")
    apart = plan(Profile.load(path), 16)["hybrid"]
    made, (one, other) = saved(apart), ("simulator", "generator")
    halves = dataclasses.replace(made, sub_batches={one: 2})
    assert planned(apart.candidate.placement.setting.profile, halves).placement[other]["sub_batches"] == 2
    twos = Profile.load(path).replace(cells=(Cell((one, other), (2,)),))
    assert planned(twos, dataclasses.replace(made, sub_batches={})).placement[other]["sub_batches"] == 2, "the profile knows no other number"
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
    for given, plan_, devices, says in (
        (two(kinds=KINDS), by_hand(), {"H": 6, "L": 2}, "'b' is on devices of several kinds"), (two(), by_hand(), 4, r"but plan 'mine' has 8\. Next: 8"),
        (flow("ab"), by_hand(), None, "needs profile="), (two(), "plan.json", None, "an ExecutionPlan is needed"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=says):
            planned(given, plan_, devices=devices)  # type: ignore[arg-type]


def test_plans_say_which_devices_one_rank_a_worker_leaves_idle_and_what_measures_more() -> None:
    """As `lab.profile` without ``ranks=`` has it."""
    one = dataclasses.replace(WORK, ranks=RankRule(most=1))
    idle = [n for n in plan(two(workers={"a": one, "b": one}), 4).notes if "idle" in n]
    assert idle == ["2 of 4 devices are idle: by the profile a, b have one rank at most. Next: lab.profile(flow, ranks={'a': [1, 4]}) measures more"]
    assert not any("idle" in n for n in (*plan(two(workers={"a": one, "b": one}), 2).notes, *plan(two(workers={"a": one, "b": WORK}), 4).notes))
