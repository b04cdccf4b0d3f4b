"""Profiles read off simulated timelines, whose durations are known exactly."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import executed
from timed_flows import Timed, cell, timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.fit.fit import fitted, profile_from_run
from rlinf_lab.planning.fit.from_trace import profile_from_trace
from rlinf_lab.planning.fit.habits import Circulation, begins
from rlinf_lab.planning.fit.samples import Observed
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import plan as search
from rlinf_lab.planning.planner.planner import planned
from rlinf_lab.planning.profile.profile import Profile, RankRule
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, get, put, run
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000
DEVICES = ["cpu:0", "cpu:1"]


class Stage(Worker):
    def produce(self, out: Outbox) -> None: ...
    def convert(self, inbox: Inbox, out: Outbox) -> None: ...
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


def timeline(flow: Workflow, plan: ExecutionPlan, iterations: int = 3, switch_ns: dict[str, tuple[int, int]] | None = None, paces: str = "1") -> Timeline:
    """24 items: 2 ms each in a, the last two 10 ms, times the pace of the iteration; 5 + 1 n ms in b; 3 n ms in c and 30 ms after the last batch, 6 ms in another call."""

    def produce(turn):
        for i in range(24):
            yield run(int(paces[turn.iteration % len(paces)]) * (10 if i >= 22 else 2) * MS)
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
    return Simulator(flow.graph, plan, switch_ns or {}).simulate(calls, iterations)


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
    flow, seen = stages(), observed(stages())
    plan = ExecutionPlan.temporal(flow, DEVICES[:1])
    uneven = Observed.of(flow.graph, plan, timeline(flow, plan, 6, paces="153124")).outputs("a")
    assert uneven[-1] == (pytest.approx(3 * 0.064), 1.0), "of a typical iteration"
    (sample,) = fitted([seen]).workers["a"].samples
    assert sample.outputs[0] == (pytest.approx(0.002), pytest.approx(1 / 24)) and sample.outputs[-1] == (pytest.approx(0.064), 1.0)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in itertools.pairwise(sample.outputs))
    profile = fitted([seen], generators={"a": 900.0})
    assert profile.workers["a"].kind == "generation" and profile.weights == "tokens"
    assert profile.workers["a"].lengths is not None and profile.workers["a"].lengths.completion == profile.workers["a"].samples[0].outputs
    with pytest.raises(PlanError, match="put its outputs all at once"):
        fitted([seen], generators={"b": 900.0})
    with pytest.raises(UnknownNameError, match="generators"):
        fitted([seen], generators={"x": 1.0})


def test_two_ranks_share_a_batch() -> None:
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES, {"b": 2}, micro_batches={"first": 12, "second": 48})
    two = Observed.of(flow.graph, plan, timeline(flow, plan))
    assert [(s.devices, s.items, s.seconds) for s in two.samples("b", 48)] == [(2, 48, pytest.approx(0.017))]
    shared = ExecutionPlan.temporal(flow, DEVICES, {"b": 2})  # each has its share of everything
    assert [(s.devices, s.seconds) for s in Observed.of(flow.graph, shared, timeline(flow, shared)).samples("b", 48)] == [(2, pytest.approx(0.017))]


def test_cells_are_measured_by_the_step() -> None:
    """20 steps of 3 ms, and 21 of 4 ms: the last one counts with the others. On one device an iteration takes their sum."""
    flow, seen = cell(0.004, 0.003, 20), []
    for tokens in (1, 2):
        plan = ExecutionPlan.temporal(flow, DEVICES[:1], sub_batches={"sim": tokens}, micro_batches={"obs": 1})
        seen.append(Observed.of(flow.graph, plan, executed(flow, plan)))
    profile = fitted(seen, items=32)
    assert {n: (w.kind, w.calls) for n, w in profile.workers.items()} == {"sim": ("simulator", 20), "policy": ("batch", 20)}
    for name, seconds in (("sim", 21 * 0.004 / 20), ("policy", 0.003)):
        assert [(s.items, s.seconds) for s in profile.workers[name].samples] == [(16, pytest.approx(seconds)), (32, pytest.approx(seconds))]
    assert [(e.producer, e.consumer, e.whole) for e in profile.edges] == [("sim", "policy", False), ("policy", "sim", False)]
    assert search(profile, 1).best.candidate.searched == pytest.approx(21 * 0.004 + 20 * 0.003)


def test_a_finished_run_becomes_a_profile_with_the_plan_that_was_run_only() -> None:
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1])
    done = timeline(flow, plan)
    profile = profile_from_run(flow, plan, done)
    assert "run under temporal" in profile.name and search(profile, 1).best.seconds == pytest.approx(0.064 + 0.029 + 0.18)
    with pytest.raises(PlanError, match="Next: run two iterations"):
        profile_from_run(flow, plan, timeline(flow, plan, 1))
    other, _ = timed("ax", 24, {"a": (0, 1), "x": (0, 1)})
    with pytest.raises(PlanError, match="no span of 'x'"):
        profile_from_run(other, plan, done)
    with pytest.raises(PlanError, match=r"a\[0\] worked on cpu:0; plan 'wide' has it on cpu:0, cpu:1\. Next: the plan that was run\."):
        profile_from_run(flow, ExecutionPlan("wide", DEVICES[:2], {"a": [[0, 1]], "b": [[0]], "c": [[0]]}), done)
    said = " ".join(profile_from_run(flow, plan, done, items=480).notes)
    assert "An iteration counts 480 items, as asked; what passed was 48: one of these counts as 10." in said


def test_switching_and_memory_of_the_run_are_in_its_profile() -> None:
    """One device that holds one of them: the plan that was run is predicted as it was, coming and leaving included."""
    flow = stages()
    plan = ExecutionPlan.temporal(flow, DEVICES[:1], memory={"a": 3, "b": 2, "c": 4}, device_memory=4)
    done = timeline(flow, plan, switch_ns={"a": (200 * MS, 100 * MS), "b": (60 * MS, 50 * MS), "c": (30 * MS, 20 * MS)})
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


def test_a_simulated_timeline_names_its_devices() -> None:
    flow = stages()
    profile = profile_from_trace(timeline(flow, ExecutionPlan.temporal(flow, DEVICES, {"b": 2})), {"b": "convert", "c": "c"}, 24, [("b", "c")], iterations=3)
    assert [profile.workers[w].samples[0].devices for w in "bc"] == [2, 1] and not any("lanes" in n for n in profile.notes)


# --- traces of other tools ------------------------------------------------------------------------------------------
Event = dict[str, Any]


def event(name: str, start_s: float, seconds: float, thread: int = 1, **more: Any) -> Event:
    return {"ph": "X", "name": name, "ts": 1e6 * start_s, "dur": 1e6 * seconds, "pid": 1, "tid": thread, **more}


def steps(count: int, first_s: float) -> list[Event]:
    """Steps of two seconds, as torch's profiler marks them: half of each generates, half trains."""
    found = []
    for i in range(count):
        at = first_s + 2 * i
        found += [event(f"ProfilerStep#{i}", at, 2, 2, cat="user_annotation"), event("generate", at, 1), event("train", at + 1, 1)]
    return found


def opened_trace(folder: Path, *events: Event) -> Timeline:
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return Timeline.open(folder / "trace.json")


def seconds(profile: lab.Profile) -> dict[str, float]:
    return {name: worker.samples[0].seconds for name, worker in profile.workers.items()}


def test_the_name_of_a_span_is_a_pattern_of_itself(tmp_path: Path) -> None:
    trace = opened_trace(tmp_path, event("generate[0]", 0, 1), event("kernel<float[4], *>", 1, 2))
    profile = lab.planning.profile_from_trace(trace, {"a": "generate[0]", "b": "kernel<float[4], *>"}, 8, [("a", "b")])
    assert seconds(profile) == {"a": 1, "b": 2}


def test_what_lies_around_the_marked_steps_is_left_out_and_told(tmp_path: Path) -> None:
    trace = opened_trace(tmp_path, event("generate", 0, 9), *steps(3, 10), event("train", 20, 4))
    for iterations in (None, 3):
        profile = lab.planning.profile_from_trace(trace, {"a": "generate", "b": "train"}, 8, [("a", "b")], iterations=iterations)
        assert seconds(profile) == {"a": 1, "b": 1}
        assert {f"{w}: 1 span outside of the iterations that came to their end left out, {s} s." for w, s in (("a", 9), ("b", 4))} <= {*profile.notes}
    whole = lab.planning.profile_from_trace(trace, {"a": "generate", "b": "train"}, 8, [("a", "b")], iterations=1)  # as asked, all of it
    assert seconds(whole) == {"a": 12, "b": 7} and not any("left out" in note for note in whole.notes)


def test_a_gpu_may_be_behind_the_host_that_marks_the_steps(tmp_path: Path) -> None:
    on_gpu = {"cat": "kernel", "args": {"device": 0, "stream": 7}}
    kernels = [event("gemm", 9, 0.5, **on_gpu), *(event("gemm", 11 + 2 * i + 1.5, 1, **on_gpu) for i in range(3))]  # the last one begins after its step
    profile = lab.planning.profile_from_trace(opened_trace(tmp_path, *steps(3, 10), *kernels), {"a": "gemm"}, 8, [])
    assert seconds(profile) == {"a": 1}
    assert "a: 1 span outside of the iterations that came to their end left out, 0.5 s." in profile.notes


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([event("a", 0, 0), event("a", 1, 0), event("b", 0, 1)], r"All 2 spans that match 'a' \(worker 'w'\) last 0 s. Next: "),
        ([event("b", 0, 0)], "no span that lasts any time, so nothing for worker 'w'. Next: "),
        ([event("a", 0, 1), *steps(2, 10)], r"All 1 span that match 'a' .* lie outside of the iterations that came to their end. Next: "),
        ([event("[ab]", 0, 1)], r"Nothing in the timeline matches 'a' .* Spans there: \[ab\]. Next: one of these"),
    ],
    ids=["no time", "no spans", "outside", "other names"],
)
def test_why_nothing_can_be_fitted(tmp_path: Path, events: list[Event], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        lab.planning.profile_from_trace(opened_trace(tmp_path, *events), {"w": "a"}, 8, [])


def test_lanes_are_devices_and_the_slowest_counts(tmp_path: Path) -> None:
    """Two iterations: two rollout lanes of which one has the tail, a trainer."""
    lanes = [event("generate_sequences", i, s, lane) for i in range(2) for lane, s in ((1, 0.3), (2, 0.42))]
    trainer = [event(name, i + at, s, pid=2) for i in range(2) for name, at, s in (("update_actor", 0.42, 0.25), ("inner", 0.43, 0.001))]
    trace = opened_trace(tmp_path, *lanes, *trainer)
    profile = lab.planning.profile_from_trace(trace, {"rollout": "generate*", "actor": "update*"}, 512, [("rollout", "actor")], iterations=2)
    assert [(s.devices, s.items) for s in profile.workers["rollout"].samples] == [(2, 512)]
    assert seconds(profile) == pytest.approx({"rollout": 0.42, "actor": 0.25}) and lab.plan(profile, 2).best.seconds > 0
    with pytest.raises(PlanError, match="iterations=0"):
        lab.planning.profile_from_trace(trace, {}, 512, [], iterations=0)


def torch_trace(folder: Path, gpus: int = 1) -> Timeline:
    """Three steps as torch's profiler writes them: each annotation is on the Python thread, short, and on a stream of each GPU, for as long as it takes."""
    events = []
    for at in (0, 10, 20):
        events.append(event(f"ProfilerStep#{at // 10}", at, 10, 7, cat="user_annotation"))
        for name, start, took in (("rollout", at, 6), ("train", at + 7, 2.5)):
            events.append(event(name, start, 1e-4, 7, cat="user_annotation"))
            events += [event(name, start + 1e-5, took, 7, cat="gpu_user_annotation", pid=-gpu, args={"device": gpu, "stream": 7}) for gpu in range(gpus)]
    return opened_trace(folder, *events)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_torch_trace_has_as_many_devices_as_gpus_and_the_iterations_that_it_marks(gpus: int, tmp_path: Path) -> None:
    trace, workers = torch_trace(tmp_path, gpus), {"rollout": "rollout", "train": "train"}
    profile = lab.planning.profile_from_trace(trace, workers, 64, [("rollout", "train")])
    assert seconds(profile) == pytest.approx({"rollout": 6.0, "train": 2.5}) and {w.samples[0].devices for w in profile.workers.values()} == {gpus}
    assert [n for n in profile.notes if "Give devices" in n or "marks" in n] == []
    other = lab.planning.profile_from_trace(trace, workers, 64, [], iterations=1)
    assert seconds(other)["train"] == pytest.approx(7.5) and any("marks 3 iterations, 1 were asked for" in n for n in other.notes)


@pytest.mark.parametrize(
    ("spans", "devices", "took"),
    [
        ([(0, 0, 6), (1, 10, 16)], 1, 12.0),  # one device, whose spans hop between two lanes
        ([(0, 0, 6), (1, 10, 16)], 0, 12.0),  # a service on the host
        ([(0, 0, 6), (1, 10, 16)], 2, 6.0),
        ([(0, 0, 6), (1, 0, 6), (2, 10, 16), (3, 10, 16)], 2, 12.0),  # two devices, four lanes
        ([(0, 0, 6), (0, 1, 2), (1, 4, 10)], 1, 10.0),  # both work on it from 4 to 6; a span within another is no second one
        ([(0, 0, 9), (1, 10, 12), (2, 10, 11)], 2, 9.0),  # no shorter than the busiest lane
    ],
)
def test_spans_of_a_device_may_hop_between_lanes(spans: list[tuple[int, int, int]], devices: int, took: float, tmp_path: Path) -> None:
    trace = opened_trace(tmp_path, event("once", 20, 1, 9), *(event("gen", start, end - start, lane) for lane, start, end in spans))
    profile = lab.planning.profile_from_trace(trace, {"a": "gen", "b": "once"}, 64, [], devices={"a": devices})
    assert (profile.workers["a"].samples[0].devices, seconds(profile)["a"]) == (devices, pytest.approx(took))
    most = max(Counter(lane for lane, *_ in spans).values())
    assert any(f"(on a lane: a {most} spans, b 1 span)" in note for note in profile.notes) == (most > 1)


def test_time_does_not_count_for_two_workers(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"Span 'rollout' matches '\*' \(worker 'b'\), and also 'r\*' \(worker 'a'\)"):
        lab.planning.profile_from_trace(torch_trace(tmp_path), {"a": "r*", "b": "*"}, 64, [])
    nested = opened_trace(tmp_path, event("step", 0, 9), event("inner", 2, 3), event("after", 9, 5))
    with pytest.raises(PlanError, match=r"'inner' .*\(worker 'b'\), and lies within 'step', which matches 'step' \(worker 'a'\).*Next: patterns"):
        lab.planning.profile_from_trace(nested, {"a": "step", "b": "inner"}, 64, [])
    assert set(lab.planning.profile_from_trace(nested, {"a": "step", "b": "after"}, 64, []).workers) == {"a", "b"}


# --- workers that take more while what they took before is in the making --------------------------------------------
ITEMS, SLOTS, STEP_S = 24, 4, 0.004


class Refills(Timed):
    """Answers of 5 or 12 steps; a slot that becomes free is filled again at once."""

    def work(self, inbox: Inbox, *outs: Outbox) -> list[int]:
        wanted, running = inbox.get(SLOTS), []
        while wanted or running:
            running += [5 if i % 5 else 12 for i in wanted]
            self.compute(STEP_S)
            running = [n - 1 for n in running]
            self.hand_on([1] * running.count(0), outs)
            running = [n for n in running if n]
            free = SLOTS - len(running)
            wanted = (inbox.get_nowait(free) if running else inbox.get(free)) if free else []
        return []


def ran(ranks: int) -> tuple[Workflow, ExecutionPlan, Timeline]:
    flow, _ = timed("ab bc", ITEMS, {"a": (0, 0), "b": (0, 0), "c": (0, 0.002)}, kinds={"b": Refills})
    places = {"a": ((0,),), "b": tuple((1 + r,) for r in range(ranks)), "c": ((0,),)}
    plan = ExecutionPlan(f"{ranks} ranks", tuple(f"cpu:{i}" for i in range(ranks + 1)), places, micro_batches={"bc": 1})
    return flow, plan, executed(flow, plan)


@pytest.fixture(scope="module")
def one() -> tuple[Workflow, ExecutionPlan, Timeline]:
    return ran(1)


def busy_s(timeline: Timeline, worker: str) -> float:
    """Of an iteration."""
    table = timeline.to_pandas().query("kind == 'run' and worker == @worker")
    return float((table["end_ns"] - table["start_ns"]).sum()) / 3e9


def test_all_that_it_takes_is_one_batch_of_the_profile(one: tuple[Workflow, ExecutionPlan, Timeline]) -> None:
    profile = profile_from_run(*one)
    (sample,) = profile.workers["b"].samples
    assert (sample.items, sample.seconds) == (ITEMS, pytest.approx(busy_s(one[2], "b")))
    assert sample.outputs[-1] == (pytest.approx(sample.seconds), 1.0)  # and when its answers came
    assert [(s.items, s.seconds) for s in profile.workers["c"].samples] == [(1, pytest.approx(0.002))]
    assert any("'b' takes more while" in note for note in profile.notes)


def test_an_estimate_of_two_ranks_is_what_two_ranks_take(one: tuple[Workflow, ExecutionPlan, Timeline]) -> None:
    estimate = lab.estimate(*one)
    _, plan, timeline = ran(2)
    assert estimate.iteration_seconds(one[1]) == pytest.approx(one[2].elapsed_ns / 3e9)
    assert estimate.iteration_seconds(plan) == pytest.approx(timeline.elapsed_ns / 3e9, rel=0.15)  # their tails differ


# --- cells in which no channel is keyed -----------------------------------------------------------------------------
THREE = ["cpu:0", "cpu:1", "cpu:2"]
STEPS = 6


def ring() -> Workflow:
    """A simulator, a critic and a policy go round; a learner takes what is done."""
    return timed("sc cp ps sl", 8, dict.fromkeys("scpl", (0, 0)))[0]


def rounds(puts: int, items: int, gets: int) -> Callable:
    """So many puts of so many items, then a get of so many, and again."""

    def roll(turn):
        for _ in range(STEPS):
            for _ in range(puts):
                yield run(4 * MS)
                yield put("sc", items)
            yield get("ps", gets)
        yield put("sl", 8)

    return roll


one_at_a_time, all_at_once, three_for_one = rounds(1, 1, 1), rounds(1, 4, 4), rounds(3, 1, 1)


def tokens(count: int, answered: bool = True) -> Callable:
    """So many, each of which goes round by itself; the last answers may be left."""

    def roll(turn):
        for step in range(STEPS):
            for _ in range(count):
                if step:
                    yield get("ps", 1)
                yield run(4 * MS)
                yield put("sc")
        for _ in range(count * answered):
            yield get("ps", 1)
        yield put("sl", 8)

    return roll


two_under_way, last_unanswered = tokens(2), tokens(1, answered=False)


def answers(source: str, target: str, ms: int, of: int = 1):
    def script(turn):
        count = 0
        while n := (yield get(source)):
            yield run(ms * MS)
            for _ in range(n):
                count += 1
                if count % of == 0:
                    yield put(target)

    return script


def fit(turn):
    while n := (yield get("sl")):
        yield run(2 * n * MS)


def ring_ran(flow: Workflow, plan: ExecutionPlan, roll: Callable, of: int = 1) -> Timeline:
    calls = [
        SimCall("s", "work", roll, reads=("ps",), writes=("sc", "sl")),
        SimCall("c", "work", answers("sc", "cp", 2), reads=("sc",), writes=("cp",), starts_on_device=False),
        SimCall("p", "work", answers("cp", "ps", 3, of), reads=("cp",), writes=("ps",), starts_on_device=False),
        SimCall("l", "work", fit, reads=("sl",), starts_on_device=False),
    ]
    return Simulator(flow.graph, plan).simulate(calls, 4)


def together(flow: Workflow, sims: int = 1) -> ExecutionPlan:
    return ExecutionPlan.temporal(flow, THREE[:sims], {"s": sims})


def apart(flow: Workflow) -> ExecutionPlan:
    places = {"s": [[0]], "c": [[1]], "p": [[2]], "l": [[0]]}
    return ExecutionPlan("apart", THREE, places, micro_batches={"sc": 1, "cp": 1, "ps": 1})


def took(done: Timeline) -> float:
    return float(done.iterations()["seconds"].iloc[-1])


def busy(profile: Profile, worker: str) -> float:
    """Of an iteration in which all tokens are one batch, or come in such batches as were measured."""
    own = profile.workers[worker]
    largest = max(own.samples, key=lambda s: s.items)
    return own.calls * largest.seconds * profile.items / largest.items


@pytest.mark.parametrize(
    ("roll", "of", "sub_batches", "says"),
    [
        (one_at_a_time, 1, (1,), ""), (last_unanswered, 1, (1,), ""), (all_at_once, 1, (1,), "puts 4 items into the cell"),
        (two_under_way, 1, (2,), ""), (three_for_one, 3, (1,), "puts 18 items an iteration into it and gets 6 back"),
    ],
)  # fmt: skip
def test_the_steps_of_a_ring_are_counted_and_plans_take_as_long_as_the_run(roll: Callable, of: int, sub_batches: tuple[int, ...], says: str) -> None:
    """And what cannot be told is said."""
    flow = ring()
    plan = together(flow)
    done = ring_ran(flow, plan, roll, of)
    profile = profile_from_run(flow, plan, done)
    assert {w: profile.workers[w].calls for w in flow.graph.workers} == {"s": STEPS, "c": STEPS, "p": STEPS, "l": 1}
    notes = " ".join(profile.notes)
    assert says in notes and bool(says) == ("cell" in notes)
    assert [w for w, p in profile.workers.items() if p.kind == "simulator"] == ["s"]
    assert profile.cells[0].sub_batches == sub_batches
    for worker in ("s", "c", "p"):
        worked = [s.end_ns - s.start_ns for s in done.rows() if s.track.worker == worker and s.kind == SpanKind.RUN and s.iteration == 2]
        assert busy(profile, worker) == pytest.approx(sum(worked) / 1e9), worker
    best = planned(flow, plan, profile)
    assert best.seconds == pytest.approx(took(done), rel=0.02)
    found = replan(done, best)
    assert [d.percent for d in found.drifts] == ["0 %"] * 4 and found.elapsed.measured == pytest.approx(found.elapsed.expected, rel=0.02)


@pytest.mark.parametrize("roll", [one_at_a_time, two_under_way])
def test_members_on_devices_of_their_own_take_as_long_as_the_run(roll: Callable) -> None:
    """Two tokens of which each goes round by itself keep two members busy at a time, whatever the plan says of sub-batches."""
    flow = ring()
    done = ring_ran(flow, apart(flow), roll)
    seen = profile_from_run(flow, together(flow), ring_ran(flow, together(flow), roll))
    for profile in (seen, profile_from_run(flow, apart(flow), done)):
        assert planned(flow, apart(flow), profile).seconds == pytest.approx(took(done), rel=0.05)


def test_ranks_of_the_head_each_have_their_tokens() -> None:
    flow = ring()
    plan = ExecutionPlan("two", THREE, {"s": [[0], [1]], "c": [[2]], "p": [[2]], "l": [[2]]}, micro_batches={"sc": 2, "cp": 1, "ps": 1})
    run_ = Observed.of(flow.graph, plan, ring_ran(flow, plan, one_at_a_time))
    cell = run_.cell(flow.graph.cells[0])
    assert (cell.head, cell.tokens, cell.steps) == ("s", 2, STEPS)
    profile = fitted([run_])
    assert busy(profile, "c") == pytest.approx(0.002 * STEPS)
    assert [(s.items, s.seconds) for s in profile.workers["p"].samples] == [(profile.items / 2, pytest.approx(0.003))]  # it was asked one by one
    single = ExecutionPlan("one by one", THREE, plan.placements, micro_batches={"sc": 1, "cp": 1, "ps": 1})
    notes = profile_from_run(flow, single, ring_ran(flow, single, one_at_a_time)).notes
    assert any("'s' has 2 ranks, and 'c' took what they put" in n for n in notes) and not any("batches of" in n for n in profile.notes)


def test_what_is_in_flight_is_counted_from_what_was_moved() -> None:
    def of(*moves: int) -> Circulation:
        return Circulation.of([{0: moves}, {0: moves}])

    assert (of(1, -1, 1, -1).tokens, of(1, -1, 1, -1).steps) == (1, 2)
    assert of(*[1, 1, 1, -3] * 5) == Circulation(3, 5.0)
    assert of(1, 1, *[-1, 1] * 8, -1, -1) == Circulation(2, 5.0, waits=False)
    assert (of(-1, *[1, -1] * 4, 1).tokens, of(-1, *[1, -1] * 4, 1).steps) == (1, 5)  # fed from outside: it answers first
    assert of(*[1, 1, 1, -1] * 4).steps == 4 and "gets 4 back" in of(*[1, 1, 1, -1] * 4).doubt
    assert "nothing comes back" in of(1, 1, 1).doubt and "puts nothing" in of(-1, -1).doubt and "puts nothing" in Circulation.of([]).doubt
    assert begins((1, -1)) and not begins((-1, 1)) and not begins(())
    varies = Circulation.of([{0: [1, -1] * 4}, {0: [1, 1, -1, -1] * 2}, {0: [1, -1] * 4}])
    assert (varies.tokens, varies.steps) == (1, 4.0) and "between 1 and 2" in varies.doubt
