"""Profiles read off simulated timelines, whose durations are known exactly."""

from __future__ import annotations

import dataclasses

import pytest

from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.fit.fit import fitted, profile_from_run
from rlinf_lab.planning.fit.from_trace import profile_from_trace
from rlinf_lab.planning.fit.samples import Observed
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import plan as search
from rlinf_lab.planning.profile.profile import RankRule
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, get, put, run
from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000
DEVICES = ["cpu:0", "cpu:1"]


class Stage(Worker):
    def produce(self, out: Outbox) -> None: ...
    def convert(self, inbox: Inbox, out: Outbox) -> None: ...
    def collect(self, actions: Inbox, out: Outbox, results: Outbox) -> None: ...
    def act(self, inbox: Inbox, out: Outbox) -> None: ...
    def train(self, inbox: Inbox) -> None: ...
    def load(self) -> None: ...


def stages() -> Workflow:
    flow = Workflow("stages")
    first, second = flow.channel("first", capacity=None), flow.channel("second", capacity=None)
    a, b, c = (flow.worker(Stage, name=n) for n in "abc")

    @flow.iteration
    def iteration() -> None:
        a.produce(first)
        b.convert(first, second)
        c.train(second)
        c.load()

    return flow


def timeline(flow: Workflow, plan: ExecutionPlan, iterations: int = 3) -> Timeline:
    return switching(flow, plan, {}, iterations)


def switching(flow: Workflow, plan: ExecutionPlan, switch_ns: dict[str, tuple[int, int]], iterations: int = 3) -> Timeline:
    """24 items: 2 ms each in a, the last two 10 ms; 5 + 1 n ms in b; 3 n ms in c and 30 ms after the last batch, 6 ms in another call."""

    def produce(turn):
        for i in range(24):
            yield run((10 if i >= 22 else 2) * MS)
            yield put("first")

    def convert(turn):
        while n := (yield get("first")):
            yield run((5 + n) * MS)
            yield put("second", 2 * n)

    def train(turn):
        while n := (yield get("second")):
            yield run(3 * n * MS)
        yield run(30 * MS)

    def load(turn):
        yield run(6 * MS)

    calls = [
        SimCall("a", "produce", produce, writes=("first",)),
        SimCall("b", "convert", convert, reads=("first",), writes=("second",), starts_on_device=False),
        SimCall("c", "train", train, reads=("second",), starts_on_device=False),
        SimCall("c", "load", load),
    ]
    return Simulator(flow.graph, plan, switch_ns).simulate(calls, iterations)


def observed(flow: Workflow, **fields) -> Observed:
    plan = ExecutionPlan.temporal(flow, DEVICES[:1], **fields)
    return Observed.of(flow.graph, plan, timeline(flow, plan))


def test_samples_are_what_was_simulated() -> None:
    flow = stages()
    profile = fitted([observed(flow), observed(flow, micro_batches={"first": 6, "second": 12})], name="s")
    assert profile.items == 48  # the most that pass a channel: b makes two of one
    a, b, c = (profile.workers[w].samples for w in "abc")
    assert [(s.devices, s.items, s.seconds) for s in a] == [(1, 48, pytest.approx(0.064))]
    assert [(s.items, s.seconds) for s in b] == [(12, pytest.approx(0.011)), (48, pytest.approx(0.029))]
    # What follows the last batch, and the other call, are shared out over the batches.
    assert [(s.items, s.seconds) for s in c] == [(12, pytest.approx(0.036 + 0.009)), (48, pytest.approx(0.144 + 0.036))]
    assert [(e.producer, e.consumer, e.items) for e in profile.edges] == [("a", "b", 24), ("b", "c", None)]
    assert profile.workers["a"].ranks == RankRule(counts=(1,))


def test_output_curves_show_the_tail() -> None:
    (sample,) = fitted([observed(stages())]).workers["a"].samples
    assert sample.outputs[0] == (pytest.approx(0.002), pytest.approx(1 / 24)) and sample.outputs[-1] == (pytest.approx(0.064), 1.0)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in zip(sample.outputs, sample.outputs[1:], strict=False))
    (sample,) = fitted([observed(stages())], generators={"a": 900.0}).workers["a"].samples
    profile = fitted([observed(stages())], generators={"a": 900.0})
    assert profile.workers["a"].kind == "generation" and profile.weights == "tokens"
    assert profile.workers["a"].lengths is not None and profile.workers["a"].lengths.completion == sample.outputs
    with pytest.raises(PlanError, match="put its outputs all at once"):
        fitted([observed(stages())], generators={"b": 900.0})
    with pytest.raises(UnknownNameError, match="generators"):
        fitted([observed(stages())], generators={"x": 1.0})


def test_two_ranks_share_a_batch() -> None:
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES, {"b": 2}, micro_batches={"first": 12, "second": 48})
    two = Observed.of(flow.graph, plan, timeline(flow, plan))
    assert [(s.devices, s.items, s.seconds) for s in two.samples("b", 48)] == [(2, 48, pytest.approx(0.017))]
    shared = ExecutionPlan.temporal(flow, DEVICES, {"b": 2})  # each has its share of everything
    assert [(s.devices, s.seconds) for s in Observed.of(flow.graph, shared, timeline(flow, shared)).samples("b", 48)] == [(2, pytest.approx(0.017))]


def test_cells_are_measured_by_the_step() -> None:
    flow = Workflow("cell")
    obs, act, results = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("results", whole=True)
    env, policy, learner = (flow.worker(Stage, name=n) for n in ("env", "policy", "learner"))

    @flow.iteration
    def iteration() -> None:
        env.collect(act, obs, results)
        policy.act(obs, act)
        learner.train(results)

    def observe(k: int) -> Observed:
        plan = ExecutionPlan.temporal(flow, DEVICES[:1], sub_batches={"env": k}, micro_batches={"obs": 1})

        def collect(turn):
            for step in range(20):
                for slot in range(k):
                    if step:
                        yield get("act", 1, slot)
                    yield run((4 + 8 // k) * MS)
                    yield put("obs")
            for slot in range(k):
                yield get("act", 1, slot)
                yield put("results")

        def answer(turn):
            step = 0
            while n := (yield get("obs")):
                yield run((2 + 6 * n // k) * MS)
                for _ in range(n):
                    yield put("act", 1, step % k)
                    step += 1

        def train(turn):
            yield get("results", ALL)
            yield run(100 * MS)

        calls = [
            SimCall("env", "collect", collect, reads=("act",), writes=("obs", "results")),
            SimCall("policy", "act", answer, reads=("obs",), writes=("act",), starts_on_device=False),
            SimCall("learner", "train", train, reads=("results",), starts_on_device=False),
        ]
        return Observed.of(flow.graph, plan, Simulator(flow.graph, plan).simulate(calls, 3))

    profile = fitted([observe(1), observe(2)], items=32)
    env_, policy_ = profile.workers["env"], profile.workers["policy"]
    assert (env_.kind, policy_.kind, env_.calls, policy_.calls) == ("simulator", "batch", 20, 20)
    assert [(s.items, s.seconds) for s in env_.samples] == [(16, pytest.approx(0.008)), (32, pytest.approx(0.012))]
    assert [(s.items, s.seconds) for s in policy_.samples] == [(16, pytest.approx(0.005)), (32, pytest.approx(0.008))]
    assert [(e.producer, e.consumer, e.whole) for e in profile.edges] == [("env", "policy", False), ("policy", "env", False), ("env", "learner", True)]
    # One device, time-shared: 20 (12 + 8) ms and 100 ms of training.
    assert search(profile, 1).best.candidate.searched == pytest.approx(0.5)


def test_a_finished_run_becomes_a_profile() -> None:
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1])
    profile = profile_from_run(flow, plan, timeline(flow, plan))
    assert "run under temporal" in profile.name and search(profile, 1).best.seconds == pytest.approx(0.064 + 0.029 + 0.18)
    with pytest.raises(PlanError, match="Next: run two iterations"):
        profile_from_run(flow, plan, timeline(flow, plan, 1))
    other = Workflow("other")
    a, x, channel = other.worker(Stage, name="a"), other.worker(Stage, name="x"), other.channel("first")

    @other.iteration
    def iteration() -> None:
        a.produce(channel)
        x.train(channel)

    with pytest.raises(PlanError, match="no span of 'x'"):
        profile_from_run(other, plan, timeline(flow, plan))


def test_switching_and_memory_of_the_run_are_in_its_profile() -> None:
    """One device that holds one of them: the plan that was run is predicted as it was, coming and leaving included."""
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1], memory={"a": 3, "b": 2, "c": 4}, device_memory=4)
    done = switching(flow, plan, {"a": (200 * MS, 100 * MS), "b": (60 * MS, 50 * MS), "c": (30 * MS, 20 * MS)})
    profile = profile_from_run(flow, plan, done)
    assert {w: (p.memory.resident_gib, p.onload_s, p.offload_s) for w, p in profile.workers.items()} == {
        "a": (3, pytest.approx(0.2), pytest.approx(0.1)), "b": (2, pytest.approx(0.06), pytest.approx(0.05)),
        "c": (4, pytest.approx(0.03), pytest.approx(0.02)),
    }  # fmt: skip
    assert profile.device_memory_gib == 4 and search(profile, 1).best.seconds == pytest.approx(done.iterations()["seconds"].iloc[-1], rel=0.02)
    assert "Memory is in units of the plan that was run, taken as GiB: a device has 4; a 3, b 2, c 4." in " ".join(profile.notes)
    assert not any("Memory" in n for n in profile_from_run(flow, ExecutionPlan.temporal(flow, DEVICES[:1]), done).notes)
    large = dataclasses.replace(plan, device_memory=9)
    stays = profile_from_run(flow, large, timeline(flow, large))
    assert "'a' never left its devices in this run: it is taken to leave as fast as it came (0 s)" in " ".join(stays.notes)


def test_items_of_an_iteration_that_did_not_pass_are_said() -> None:
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1])
    done = timeline(flow, plan)
    said = " ".join(profile_from_run(flow, plan, done, items=480).notes)
    assert "An iteration counts 480 items, as asked; what passed was 48: one of these counts as 10." in said
    assert "as asked" not in " ".join(profile_from_run(flow, plan, done, items=48).notes)


def test_time_in_which_nobody_computes_is_said() -> None:
    """As much of each iteration as the loop or messages take: no plan of the profile has it."""
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1])
    done = timeline(flow, plan)
    calm = profile_from_run(flow, plan, done)
    assert not any("nobody computes" in note for note in calm.notes)
    rows, pause = done.spans.copy(), 60 * MS
    for field in ("start", "end"):
        rows[field] += pause * rows["iteration"]
    rows["end"][rows["kind"] == SpanKind.MARK] += pause  # what an iteration takes longer, at its end
    slower = Timeline(done.devices)
    slower.extend(SpanBatch("simulated", "slower", 0, rows, tuple(done.tracks), tuple(done.names)))
    found = profile_from_run(flow, plan, slower)
    assert any("In 0.06 s of each iteration" in note and "lab.estimate" in note for note in found.notes) and found.workers == calm.workers


def test_a_plan_that_was_not_run_is_refused() -> None:
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1])
    done = timeline(flow, plan)
    with pytest.raises(PlanError, match=r"a\[0\] worked on cpu:0; plan 'wide' has it on cpu:0, cpu:1\. Next: the plan that was run\."):
        profile_from_run(flow, ExecutionPlan("wide", DEVICES[:2], {"a": [[0, 1]], "b": [[0]], "c": [[0]]}), done)
    with pytest.raises(PlanError, match=r"a\[0\] worked on cpu:0; plan 'elsewhere' has it on cpu:1"):
        profile_from_run(flow, ExecutionPlan("elsewhere", DEVICES[:2], {"a": [[1]], "b": [[0]], "c": [[0]]}), done)


def test_a_simulated_timeline_names_its_devices() -> None:
    flow = stages()
    profile = profile_from_trace(timeline(flow, ExecutionPlan.temporal(flow, DEVICES, {"b": 2})), {"b": "convert", "c": "c"}, 24, [("b", "c")], iterations=3)
    assert [profile.workers[w].samples[0].devices for w in "bc"] == [2, 1] and not any("lanes" in n for n in profile.notes)
