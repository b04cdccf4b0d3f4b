"""Every field of a plan is checked by name; whatever passes the checks runs in the simulator."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, PlanError, PlanNameError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import plan as plan_of
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.replay.estimate import estimate
from rlinf_lab.planning.schema.json_schema import nearest
from rlinf_lab.planning.simulator.simulator import ALL, SimCall, Simulator, Turn, get, put, run
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DOCS = Path(__file__).parents[2] / "docs"


class Part(Worker):
    def make(self, left: Outbox, right: Outbox) -> None: ...
    def convert(self, inbox: Inbox, out: Outbox) -> None: ...
    def join(self, left: Inbox, right: Inbox) -> None: ...
    def take(self, inbox: Inbox) -> None: ...
    def step(self, actions: Inbox, out: Outbox, done: Outbox) -> None: ...


def branching() -> Workflow:
    """A source, two branches, one consumer that waits for everything of one of them, and a worker that nobody feeds."""
    flow = Workflow("branching")
    a, b, c = flow.channels("a", "b", "c")
    d = flow.channel("d", whole=True)
    source, left, right, sink, idle = (flow.worker(Part, name=n) for n in ("source", "left", "right", "sink", "idle"))

    @flow.iteration
    def iteration():
        source.make(a, b)
        left.convert(a, c)
        right.convert(b, d)
        sink.join(c, d)
        idle.setup()

    return flow


def branching_calls() -> list[SimCall]:
    def source(turn: Turn):
        for _ in range(6):
            yield run(3)
            yield put("a")
            yield put("b")

    def through(inbox: str, out: str = ""):
        def script(turn: Turn):
            while n := (yield get(inbox)):
                yield run(2 * n)
                if out:
                    yield put(out, n)
            if not out:
                yield get("d", ALL)

        return script

    return [
        SimCall("source", "make", source, writes=("a", "b")),
        SimCall("left", "convert", through("a", "c"), reads=("a",), writes=("c",), starts_on_device=False),
        SimCall("right", "convert", through("b", "d"), reads=("b",), writes=("d",), starts_on_device=False),
        SimCall("sink", "join", through("c"), reads=("c", "d"), starts_on_device=False),
        SimCall("idle", "setup", lambda turn: (run(5) for _ in range(1))),
    ]


def whole_plan() -> dict[str, Any]:
    return {
        "name": "hybrid", "devices": ["cpu:0", "cpu:1", "cuda:0"],
        "placements": {"source": [[0]], "left": [[1], [2]], "right": [[1], [2]], "sink": [[0, 1]], "idle": [[]]},
        "micro_batches": {"a": 2, "b": 0, "c": 3}, "capacities": {"a": 4, "c": None}, "sub_batches": {"left": 2},
        "fused": [["left", "right"]], "memory": {"source": 3, "left": 2, "right": 1}, "device_memory": 4, "staleness": 2,
        "working": {"sink": 2}, "priorities": {"left": 3, "right": 3},
    }  # fmt: skip


FLOW = branching()
CALLS = branching_calls()


def runs(plan: ExecutionPlan) -> None:
    """It validates, simulates two iterations, accounts for every nanosecond, prints, and survives JSON."""
    plan.validate(FLOW.graph)
    timeline = Simulator(FLOW.graph, plan, {"source": (2, 1), "left": (1, 3)}).simulate(CALLS, 2)
    assert timeline.bubble_sum_error_ns() == 0
    assert ExecutionPlan.from_json(plan.to_json()) == plan
    assert plan.name in repr(plan) and "<table" in plan._repr_html_()


def test_the_plan_that_the_others_are_made_from_runs() -> None:
    data = whole_plan()
    plan = ExecutionPlan(**{**data, "micro_batches": {**data["micro_batches"], "a": np.int64(2)}})
    runs(plan)
    assert plan.placements["sink"] == ((0, 1),) and plan.fused == (("left", "right"),) and type(plan.micro_batches["a"]) is int
    assert plan == ExecutionPlan.from_dict(data) == pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan)
    assert json.loads(plan.to_json()) == whole_plan()
    assert len({plan, ExecutionPlan(**whole_plan()), ExecutionPlan(**{**whole_plan(), "name": "other"})}) == 2
    data["micro_batches"]["a"] = -3
    assert plan.micro_batches["a"] == 2, "mappings are copied"


# Of each kind of check one; that whatever else is odd is refused, too, or runs, say the changes at random below.
BAD: list[tuple[str, Any, str]] = [
    ("name", "", "name is ''"),
    ("devices", "cpu:0", "devices is 'cpu:0'; it must be a list"),
    ("devices", ["cpu:0", "banana", "cuda:0"], r"devices\[1\] is 'banana'"),
    ("devices", [], "no devices"),
    ("devices", ["cpu:0", "cpu:0", "cpu:1"], "twice"),
    ("placements.source", [0], r"placements\['source'\]\[0\] is 0"),
    ("placements.source", [[True]], r"placements\['source'\]\[0\]\[0\] is True"),
    ("placements.source", [[-1]], r"\[0\]\[0\] is -1"),
    ("placements.source", [[3]], r"\[0\] puts a rank on device 3, but there are 3 devices"),
    ("placements.source", [[0], [0]], "more ranks than devices"),
    ("placements.sauce", [[0]], "worker 'sauce'. Did you mean 'source'.*placements of plan 'hybrid'"),
    ("micro_batches.a", -1, r"micro_batches\['a'\] is -1"),
    ("micro_batches.a", math.nan, r"micro_batches\['a'\] is nan"),
    ("micro_batches.a", 2**31, r"micro_batches\['a'\] is 2147483648"),
    ("micro_batches.aa", 1, "channel 'aa'. Did you mean 'a'"),
    ("capacities.a", 0, r"capacities\['a'\] is 0"),
    ("capacities.d", 4, "declared whole"),
    ("sub_batches.left", 0, r"sub_batches\['left'\] is 0"),
    ("sub_batches.lift", 1, "worker 'lift'. Did you mean 'left'"),
    ("fused", "left", "fused is 'left'"),
    ("fused", [["left"]], r"fused\[0\] is \['left'\]; it must be a list of at least two"),
    ("fused", [["left", "right"], ["right", "sink"]], "names 'right' 2 times"),
    ("fused", [["left", "rihgt"]], "worker 'rihgt'. Did you mean 'right'"),
    ("fused", [["left", "source"]], "fused workers must share ranks and devices"),
    ("memory.left", -1, r"memory\['left'\] is -1"),
    ("memory.left", 5, "needs 5 units"),
    ("working.left", 3, r"needs 2 \+ 3 units"),
    ("priorities.left", 0.5, r"priorities\['left'\] is 0.5"),
    ("device_memory", "big", "device_memory is 'big'"),
    ("device_memory", 0, "device_memory is 0"),
    ("staleness", 65, "staleness is 65; it must be a whole number from 0 to 64"),
    ("devicez", [], "plan field 'devicez'. Did you mean 'devices'"),
]


@pytest.mark.parametrize(("path", "value", "text"), BAD, ids=[f"{p}={v!r}"[:40] for p, v, _ in BAD])
@pytest.mark.parametrize("way", ["dict", "json"])
def test_every_field_is_checked_by_name(path: str, value: Any, text: str, way: str) -> None:
    data = whole_plan()
    where: Any = data
    *parents, last = path.split(".")
    for key in parents:
        where = where[key]
    where[last] = value
    with pytest.raises(PlanError, match=text) as caught:
        plan = ExecutionPlan.from_dict(data) if way == "dict" else ExecutionPlan.from_json(json.dumps(data))
        plan.validate(FLOW.graph)
    if "Known:" in str(caught.value):
        assert isinstance(caught.value, UnknownNameError) and isinstance(caught.value, PlanNameError)
    else:
        assert "Next:" in str(caught.value)


@pytest.mark.parametrize("change", [lambda p: p.micro_batches.update(a=1), lambda p: p.placements.__setitem__("left", 3), lambda p: p.micro_batches.clear()])
def test_what_was_checked_cannot_be_changed(change) -> None:
    plan = ExecutionPlan.from_dict(whole_plan())
    with pytest.raises(PlanError, match=r"Next: dataclasses\.replace"):
        change(plan)
    assert plan == ExecutionPlan.from_dict(whole_plan())
    plain = plan.to_dict()
    plain["micro_batches"]["a"] = 8
    assert type(plain["micro_batches"]) is dict and ExecutionPlan.from_dict(plain).micro_batches["a"] == 8


WORKFLOW, RUN = r"A Workflow \(or its graph\) is needed, not", r"estimate\(.*Next: run = lab\.run\(flow, plan, 4\)"


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda p: p.validate(None), WORKFLOW), (lambda p: Simulator(3, p), WORKFLOW), (lambda p: estimate("flow", p, Timeline()), WORKFLOW),
        (lambda p: estimate(FLOW), RUN), (lambda p: estimate(FLOW, p), RUN), (lambda p: estimate(FLOW, p, "run"), RUN),
        *((lambda p, key=key: ExecutionPlan.from_dict({k: v for k, v in p.to_dict().items() if k != key}), f"without the field '{key}'")
          for key in ("name", "devices", "placements")),
        (lambda p: p.diff("temporal"), "is compared with another ExecutionPlan, not with 'temporal'"),
    ],
)  # fmt: skip
def test_what_is_missing_beside_a_plan_or_in_it_is_named(use, text: str) -> None:
    plan = ExecutionPlan.from_dict(whole_plan())
    with pytest.raises(PlanError, match=text):
        use(plan)
    plan.validate(FLOW)
    assert repr(Simulator(FLOW, plan)) == repr(Simulator(FLOW.graph, plan))


@pytest.mark.parametrize(
    ("text", "match"),
    [("{", "not JSON: .* line 1, column 2"), ("[1]", r"A plan is \[1\]"), ("null", "A plan is None"), ("", "not JSON"),
     *((odd, "Next|must be an object") for odd in (5, None, b"{}", "[" * 100_000, '{"name": 1' + 5000 * "0" + "}", "5", '{"name": "x"}'))],
)  # fmt: skip
def test_what_is_no_plan_at_all(text: Any, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        ExecutionPlan.from_json(text)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda f: ExecutionPlan.temporal(f.graph, ["cpu:0"]), "made for a Workflow, not for"),
        (lambda f: ExecutionPlan.temporal(f, ["cpu:0", "cpu:1"], ranks={"left": 3}), r"ranks\['left'\] is 3.*at most 2 ranks, one for each device"),
        (lambda f: ExecutionPlan.temporal(f, ["cpu:0"], ranks={"lefft": 1}), "Did you mean 'left'"),
        (lambda f: ExecutionPlan.temporal(f, ["cpu:0"], micro_batchez={}), "Did you mean 'micro_batches'"),
        (lambda f: ExecutionPlan.temporal(f, ["cpu:0"], sub_batches=2), "sub_batches is 2"),
        (lambda f: ExecutionPlan.temporal(f, ["cpu:0"], placements={}), "plan field 'placements'"),
        (lambda f: ExecutionPlan.spatial(f, ["cpu:0"], [0]), r"on is \[0\]"),
        (lambda f: ExecutionPlan.spatial(f, ["cpu:0"], dict.fromkeys(f.workers, 0)), r"on\['source'\] is 0"),
        (lambda f: ExecutionPlan.spatial(f, ["cpu:0"], {key: [0] for key in f.workers}, micro_batch=2.5), r"micro_batches\['a'\] is 2.5"),
        (lambda f: ExecutionPlan.fused_cells(f, ["cpu:0"]), "no cell to fuse"),
        (lambda f: ExecutionPlan.hybrid(CHAIN, FOUR, {"a": [0], "b": [1], "c": [2]}), r"nobody shares a device\. Next: ExecutionPlan\.spatial"),
        (lambda f: ExecutionPlan.hybrid(CHAIN, FOUR, {"a": [0], "b": [0, 1], "c": [0]}), r"all do\. Next: ExecutionPlan\.temporal"),
        (lambda f: ExecutionPlan.hybrid(CHAIN, FOUR, {"a": [0], "b": [0]}), r"no devices for 'c'"),
    ],
)
def test_the_forms_refuse_wrong_arguments_by_name(make, text) -> None:
    with pytest.raises(PlanError, match=text):
        make(FLOW)


JUNK: list[Any] = [
    None, True, False, -3, -1, 0, 1, 2, 3, 7, 64, 10**6, 2**40, 1.0, 1.5, math.nan, math.inf, "", "x", "cpu:0", "cpu:1", "cuda:7", "banana", "a", "d",
    "left", "right", "sink", "source", [], [0], [[0]], [[1], [0]], [[0, 1, 2]], [["sink", "idle"]], {}, {"a": 1}, {"left": 2}, {"left": [[0]]}, (1, 2),
    b"x", object(),
]  # fmt: skip


def mutate(data: Any, rng: random.Random) -> None:
    """Change one place, anywhere."""
    where = data
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = rng.choice(keys) if keys else None
        inner = where[key] if key is not None else None
        if isinstance(inner, (dict, list)) and rng.random() < 0.8:
            where = inner
            continue
        match rng.choice(("replace", "delete", "add", "copy")):
            case "replace" if key is not None:
                where[key] = rng.choice(JUNK)
            case "delete" if key is not None:
                del where[key]
            case "copy" if key is not None and isinstance(where, list):
                where.append(copy.copy(inner))
            case _ if isinstance(where, dict):
                where[rng.choice(["a", "b", "c", "d", "source", "left", "right", "sink", "idle", "x", "micro_batches", 3])] = rng.choice(JUNK)
            case _:
                where.insert(rng.randint(0, len(where)), rng.choice(JUNK))
        return


@given(seed=st.integers(0, 2**32 - 1), changes=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_a_changed_plan_runs_or_is_refused(seed: int, changes: int) -> None:
    rng = random.Random(seed)
    data = copy.deepcopy(whole_plan())
    for _ in range(changes):
        mutate(data, rng)
    try:
        plan = ExecutionPlan.from_dict(data)
        plan.validate(FLOW.graph)
    except PlanError as error:
        assert "Next: " in str(error), error
        return
    runs(plan)


def test_plans_are_compared_entry_by_entry() -> None:
    plan = ExecutionPlan.from_dict(whole_plan())
    assert plan.diff(plan) == "" and plan.diff(ExecutionPlan.from_json(plan.to_json())) == ""
    moved = dataclasses.replace(
        plan, name="moved", placements={**plan.placements, "source": [[2]]}, micro_batches={**plan.micro_batches, "a": 77, "c": 0},
        capacities={**plan.capacities, "a": None},
    )  # fmt: skip
    lines = dict(line.split(": ", 1) for line in plan.diff(moved).splitlines())
    assert lines["name"] == "hybrid -> moved" and lines["micro_batches['a']"] == "2 -> 77" and "placements['source']" in lines and len(lines) == 5
    assert (lines["micro_batches['c']"], lines["capacities['a']"]) == ("3 -> whole", "4 -> unbounded") and "c whole" in repr(moved)
    back = dict(line.split(": ", 1) for line in moved.diff(plan).splitlines())
    assert {k: " -> ".join(reversed(v.split(" -> "))) for k, v in back.items()} == lines


def test_what_lab_plan_found_is_saved_and_compared_as_a_plan_is(tmp_path: Path) -> None:
    profile = Profile.load(DOCS / "profiles" / "grpo_1.5b_case1.json")
    plans = plan_of(profile, 64, simulate=False)
    best, other = plans.best, plans["spatial"]
    best.save(tmp_path / "best.json")
    assert best.load(tmp_path / "best.json") == best.execution == ExecutionPlan.load(tmp_path / "best.json")
    assert best.diff(best) == "" and best.diff(other) == best.execution.diff(other) == best.execution.diff(other.execution) != ""
    number: Any = 3
    with pytest.raises(PlanError, match="is compared with another ExecutionPlan, not with 3"):
        best.diff(number)


def test_names_of_before_are_read_from_files_and_refused_in_code_with_the_new_one() -> None:
    now = lab.plan(Profile.from_dict({"items": 4, "workers": {"a": {"samples": [{"devices": 1, "items": 4, "seconds": 2.0}]}}}), 1).best.execution
    now = dataclasses.replace(now, micro_batches={"x": 3})
    before = {{"micro_batches": "chunks"}.get(key, key): value for key, value in now.to_dict().items()}
    before["origin"] = {{"micro_batches": "chunks"}.get(key, key): value for key, value in now.origin.items()}
    assert before != now.to_dict()
    read = ExecutionPlan.from_json(json.dumps(before))
    assert read == now and read.origin == json.loads(json.dumps(dict(now.origin)))
    for old in (lambda: dataclasses.replace(now, chunks={}), lambda: lab.plan(1, 1, chunks=2), lambda: lab.testing.Scripted([1], chunk=1)):
        with pytest.raises(ConfigError, match=r"'chunks?' is called 'micro_batch(es)?' now\. Next: "):
            old()
    with pytest.raises(AttributeError, match=r"called micro_batches now\. Next: plan\.micro_batches"):
        _ = now.chunks


# --- the hybrid form, and devices on which nobody sits --------------------------------------------------------------
CHAIN = timed("ab bc", 8, dict.fromkeys("abc", (0.0, 1.0)))[0]
FOUR = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


def test_in_a_hybrid_plan_those_who_share_devices_take_turns_and_the_others_stream() -> None:
    plan = ExecutionPlan.hybrid(CHAIN, FOUR, {"a": [0, 1], "b": [2, 3], "c": [2]}, micro_batch=4)
    assert plan.micro_batches == {"ab": 4, "bc": 0} and plan.unused_devices == () and (plan.name, plan.placements["b"]) == ("hybrid", ((2,), (3,)))


def test_devices_on_which_nobody_sits_are_named_with_what_would_use_them() -> None:
    plan = ExecutionPlan.temporal(CHAIN, FOUR)
    assert plan.unused_devices == FOUR[1:]
    assert "3 of 4. Next: ranks={'a': 4}, or lab.plan" in repr(plan) and "unused: cpu:1" in plan._repr_html_()
    assert "unused" not in repr(ExecutionPlan.temporal(CHAIN, FOUR, dict.fromkeys("abc", 4)))


def test_names_are_text_in_html() -> None:
    plan = ExecutionPlan("p", ("cpu:0",), {"<a>": ((0,),)}, memory={"<a>": 1}, priorities={"<a>": 1})
    assert "<a>" not in plan._repr_html_()


@given(st.integers(-9, 9), st.none() | st.integers(-5, 3), st.booleans(), st.none() | st.integers(5, 9))
def test_the_number_that_is_offered_instead_is_within_the_bounds(value: int, least: int | None, above: bool, high: int | None) -> None:
    offered = float(nearest(value, {"above" if above else "low": least, "high": high}))
    assert (least is None or offered > least or (offered == least and not above)) and (high is None or offered <= high)
