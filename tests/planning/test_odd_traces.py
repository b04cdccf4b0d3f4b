"""Traces of other tools that are not as one would wish: names with brackets, spans without a length, work before and after the steps that are marked."""

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
