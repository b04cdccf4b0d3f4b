"""Profiles read off traces of other tools, also of such as are not as one would wish: names with brackets, spans without a length, work around the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.timeline.timeline import Timeline

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


def opened(folder: Path, *events: Event) -> Timeline:
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return Timeline.open(folder / "trace.json")


def seconds(profile: lab.Profile) -> dict[str, float]:
    return {name: worker.samples[0].seconds for name, worker in profile.workers.items()}


def test_the_name_of_a_span_is_a_pattern_of_itself(tmp_path: Path) -> None:
    trace = opened(tmp_path, event("generate[0]", 0, 1), event("kernel<float[4], *>", 1, 2))
    profile = lab.planning.profile_from_trace(trace, {"a": "generate[0]", "b": "kernel<float[4], *>"}, 8, [("a", "b")])
    assert seconds(profile) == {"a": 1, "b": 2}


def test_what_lies_around_the_marked_steps_is_left_out_and_told(tmp_path: Path) -> None:
    trace = opened(tmp_path, event("generate", 0, 9), *steps(3, 10), event("train", 20, 4))
    for iterations in (None, 3):
        profile = lab.planning.profile_from_trace(trace, {"a": "generate", "b": "train"}, 8, [("a", "b")], iterations=iterations)
        assert seconds(profile) == {"a": 1, "b": 1}
        assert {f"{w}: 1 span outside of the iterations that came to their end left out, {s} s." for w, s in (("a", 9), ("b", 4))} <= {*profile.notes}
    whole = lab.planning.profile_from_trace(trace, {"a": "generate", "b": "train"}, 8, [("a", "b")], iterations=1)  # as asked, all of it
    assert seconds(whole) == {"a": 12, "b": 7} and not any("left out" in note for note in whole.notes)


def test_a_gpu_may_be_behind_the_host_that_marks_the_steps(tmp_path: Path) -> None:
    on_gpu = {"cat": "kernel", "args": {"device": 0, "stream": 7}}
    kernels = [event("gemm", 9, 0.5, **on_gpu), *(event("gemm", 11 + 2 * i + 1.5, 1, **on_gpu) for i in range(3))]  # the last one begins after its step
    profile = lab.planning.profile_from_trace(opened(tmp_path, *steps(3, 10), *kernels), {"a": "gemm"}, 8, [])
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
        lab.planning.profile_from_trace(opened(tmp_path, *events), {"w": "a"}, 8, [])


def test_lanes_are_devices_and_the_slowest_counts(tmp_path: Path) -> None:
    """Two iterations: two rollout lanes of which one has the tail, a trainer."""
    lanes = [event("generate_sequences", i, s, lane) for i in range(2) for lane, s in ((1, 0.3), (2, 0.42))]
    trainer = [event(name, i + at, s, pid=2) for i in range(2) for name, at, s in (("update_actor", 0.42, 0.25), ("inner", 0.43, 0.001))]
    trace, workers, edges = opened(tmp_path, *lanes, *trainer), {"rollout": "generate*", "actor": "update*"}, [("rollout", "actor")]
    profile = lab.planning.profile_from_trace(trace, workers, 512, edges, iterations=2)
    assert [(s.devices, s.items) for s in profile.workers["rollout"].samples] == [(2, 512)]
    assert seconds(profile) == pytest.approx({"rollout": 0.42, "actor": 0.25}) and lab.plan(profile, 2).best.seconds > 0
    eight = lab.planning.profile_from_trace(trace, workers, 512, edges, iterations=2, devices={"actor": 8})
    assert eight.workers["actor"].samples[0].devices == 8
    with pytest.raises(PlanError, match=r"matches 'gen_\*' \(worker 'rollout'\)\. Spans there: generate_sequences, inner, update_actor"):
        lab.planning.profile_from_trace(trace, {"rollout": "gen_*"}, 512, [])
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
    return opened(folder, *events)


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
    trace = opened(tmp_path, *(event("gen", start, end - start, lane) for lane, start, end in spans))
    profile = lab.planning.profile_from_trace(trace, {"a": "gen"}, 64, [], devices={"a": devices})
    assert (profile.workers["a"].samples[0].devices, seconds(profile)["a"]) == (devices, pytest.approx(took))


def test_time_does_not_count_for_two_workers(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"Span 'rollout' matches '\*' \(worker 'b'\), and also 'r\*' \(worker 'a'\)"):
        lab.planning.profile_from_trace(torch_trace(tmp_path), {"a": "r*", "b": "*"}, 64, [])
    nested = opened(tmp_path, event("step", 0, 9), event("inner", 2, 3), event("after", 9, 5))
    with pytest.raises(PlanError, match=r"'inner' .*\(worker 'b'\), and lies within 'step', which matches 'step' \(worker 'a'\).*Next: patterns"):
        lab.planning.profile_from_trace(nested, {"a": "step", "b": "inner"}, 64, [])
    assert set(lab.planning.profile_from_trace(nested, {"a": "step", "b": "after"}, 64, []).workers) == {"a", "b"}
