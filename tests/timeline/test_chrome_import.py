"""Traces of other tools become timelines: files that the tools themselves write, and pieces in the format of those that need a GPU."""

from __future__ import annotations

import gc
import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from built import timeline_of

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.formats import chrome_import

K = SpanKind


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def x(name: str, ts: float, dur: float, pid: Any = 1, tid: Any = 1, cat: str = "", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_a_profile_of_torch_on_the_cpu(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    path = tmp_path / "torch.json"
    plan = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as prof:
        for _ in range(4):
            with record_function("mine"):
                torch.ones(64, 64) @ torch.ones(64, 64)
            prof.step()
    timeline = Timeline.from_chrome(path)
    frame = timeline.to_pandas()
    assert len(timeline.iterations()) == 3
    assert (frame[frame["name"] == "mine"]["kind"] == "label").sum() >= 3
    assert len(timeline.devices) == 1 and not frame["name"].str.contains("PyTorch Profiler").any()
    assert {"aten::matmul", "aten::mm"} <= set(frame["name"])
    assert timeline.bubble_sum_error_ns() == 0 and 0 < timeline.utilisation().max() <= 1


def test_kernels_are_on_their_gpu_and_copies_and_waits_are_no_work(tmp_path: Path) -> None:
    """As Kineto writes them with CUDA's events on: waits on a stream's lane, those for an event or the whole device too, whose stream is -1."""
    at, gpu = 1_700_000_000_000_000, {"device": 0, "stream": 7}
    events = [
        {"ph": "M", "name": "process_name", "pid": 77, "args": {"name": "python"}},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
        x("aten::mm", at + 0.5, 20, 77, 77, "cpu_op"),
        x("Memcpy HtoD", at + 5, 10, 0, 7, "gpu_memcpy", **gpu),
        x("gemm", at + 15, 30, 0, 7, "kernel", **gpu),
        x("Stream Wait Event", at + 45, 1, 0, 7, "cuda_sync", **gpu),
        x("Event Sync", at + 46, 2, 0, 7, "cuda_sync", device=0, stream=-1),
        x("ProfilerStep#4", at, 50, 77, 77, "user_annotation"),
        x("ProfilerStep#4", at + 5, 40, 0, 7, "gpu_user_annotation", **gpu),
        x("cudaDeviceSynchronize", at + 21, 20, 77, 77, "cuda_runtime"),
        x("cudaLaunchKernel", at + 41, 2, 77, 77, "cuda_runtime"),
        {"ph": "i", "name": "instant", "pid": 77, "tid": 77, "ts": 3},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": at + 49},
    ]
    path = tmp_path / "torch.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    timeline = Timeline.from_chrome(path)
    assert timeline.devices == ["cuda:0", "python"] and timeline.bubble_sum_error_ns() == 0
    assert timeline.busy().set_index("device").loc["cuda:0", "ns"] == 30_000
    assert timeline.iterations()["iteration"].tolist() == [4] and timeline.elapsed_ns == 50_000
    assert {(s.name, s.kind, s.start_ns - 1000 * at, s.end_ns - s.start_ns) for s in timeline.rows() if s.kind != K.MARK} == {
        ("aten::mm", K.RUN, 500, 20_000), ("Memcpy HtoD", K.TRANSFER, 5_000, 10_000), ("gemm", K.RUN, 15_000, 30_000),
        ("Stream Wait Event", K.WAIT, 45_000, 1_000), ("Event Sync", K.WAIT, 46_000, 2_000),
        ("cudaDeviceSynchronize", K.WAIT, 21_000, 20_000), ("cudaLaunchKernel", K.RUN, 41_000, 2_000),
    }  # fmt: skip


def test_the_timeline_of_ray(tmp_path: Path) -> None:
    from ray._private.profiling import chrome_tracing_dump  # what `ray timeline` calls

    def task(worker: str, begin: float) -> dict[str, Any]:
        parts = [("task::step", 0, 10), ("task:deserialize_arguments", 0, 1), ("task:execute", 1, 9), ("task:store_outputs", 9, 10)]
        events = [{"event_name": n, "start_time": begin + a, "end_time": begin + b, "extra_data": {}} for n, a, b in parts]
        data = {"node_ip_address": "10.0.0.1", "component_type": "worker", "component_id": worker, "events": events}
        return {"task_id": "t", "job_id": "j", "attempt_number": 0, "func_or_class_name": "step", "actor_id": None, "profiling_data": data}

    trace = chrome_tracing_dump([task("0123456789abcdef" * 3, 1.7e12), task("fedcba9876543210" * 3, 1.7e12 + 5)])
    timeline = Timeline.from_chrome(write(tmp_path / "ray.json", trace))
    assert [t.worker for t in timeline.tracks] == ["worker:01234567", "worker:fedcba98"] and timeline.devices == ["Node 10.0.0.1"]
    kinds = timeline.to_pandas()["kind"].value_counts()
    assert (kinds["run"], kinds["transfer"], kinds["label"]) == (2, 4, 2)
    assert timeline.busy()["ns"].tolist() == [13_000_000]  # two executions of 8 ms that overlap by 3
    assert [s.name for s in timeline.rows() if s.kind == SpanKind.RUN] == ["step", "step"]


def test_the_timeline_of_ray_as_its_function_gives_it(tmp_path: Path) -> None:
    """`ray.timeline()` names no threads, and calls every execution the same."""

    def task(name: str, begin: float, end: float) -> list[dict[str, Any]]:
        common = {"pid": "10.0.0.1", "tid": f"worker:{'0123456789abcdef' * 3}", "ph": "X", "args": {}}
        parts = [("task:deserialize_arguments", begin, begin + 1), ("task:execute", begin + 2, end - 2), ("task:store_outputs", end - 1, end)]
        whole = {"cat": f"task::{name}", "name": name.split(".")[-1], "ts": begin, "dur": end - begin}
        return [{**common, **event} for event in ({"cat": c, "name": c, "ts": a, "dur": b - a} for c, a, b in parts)] + [{**common, **whole}]

    stray = {"pid": "10.0.0.1", "tid": "worker:alone", "ph": "X", "cat": "task:execute", "name": "task:execute", "ts": 400, "dur": 9}
    threads = [*task("W.step", 0, 100), *task("W.learn", 100, 250), *task("f", 120, 200), *task("W.step", 300, 390), stray]
    timeline = Timeline.from_chrome(write(tmp_path / "ray.json", threads))
    assert [t.worker for t in timeline.tracks] == ["worker:01234567", "worker:alone"]
    runs = [(s.name, s.start_ns) for s in timeline.rows() if s.kind == SpanKind.RUN]
    assert runs == [("W.step", 2000), ("W.learn", 102_000), ("f", 122_000), ("W.step", 302_000), ("task:execute", 400_000)]
    assert timeline.to_pandas()["kind"].value_counts()["label"] == 4


def test_one_event_a_line_with_overlapping_begins(tmp_path: Path) -> None:
    """As RLinf's tracer writes it: asynchronous calls end in any order."""
    lines = [
        {"ph": "M", "name": "process_name", "pid": "rollout", "args": {"name": "rollout:0"}},
        {"ph": "B", "name": "generate", "pid": "rollout", "tid": "main", "ts": 10, "args": {"n": 1}},
        {"ph": "B", "name": "sync", "pid": "rollout", "tid": "main", "ts": 20},
        {"ph": "E", "name": "generate", "pid": "rollout", "tid": "main", "ts": 50},
        {"ph": "E", "name": "sync", "pid": "rollout", "tid": "main", "ts": 60},
        {"ph": "C", "name": "depth", "pid": "rollout", "ts": 30, "args": {"depth": 3}},
        {"ph": "E", "name": "never begun", "pid": "rollout", "tid": "main", "ts": 70},
        *({"ph": p, "cat": "send", "name": "Send", "id": i, "pid": 1, "tid": i, "ts": t} for p, i, t in [("b", 1, 70), ("b", 2, 75), ("e", 1, 80), ("e", 2, 85)]),
        x("backwards", 90, -3, "rollout", "main"),
    ]
    path = write(tmp_path / "trace.jsonl", "\n".join(map(json.dumps, lines)) + '\n{"ph": "B", "na')
    with pytest.warns(UserWarning, match="1 events of this trace begin"), pytest.warns(UserWarning, match="1 events .* end before they begin"):
        timeline = Timeline.from_chrome(path)
    assert [(s.track.worker, s.name, s.start_ns, s.end_ns) for s in timeline.rows()] == [
        ("thread main", "generate", 10_000, 50_000), ("thread main", "sync", 20_000, 60_000),
        ("send (async)", "Send", 70_000, 80_000), ("send (async)", "Send", 75_000, 85_000), ("thread main", "backwards", 90_000, 90_000),
    ]  # fmt: skip
    assert timeline.counters()["value"].tolist() == [3.0] and timeline.devices == ["process 1", "rollout:0"]


def test_instants_are_labels_of_no_length_within_the_time_of_the_others(tmp_path: Path) -> None:
    def instant(name: str, ts: float, tid: int = 1, **scope: str) -> dict[str, Any]:
        return {"ph": "i", "name": name, "pid": 1, "tid": tid, "ts": ts, **scope}

    events = [
        instant("saved", 3), x("step", 1, 10), instant("of its own thread", 5, 2, s="t"), instant("of all, here", 6, 1, s="g"),
        instant("of all, nowhere", 6, 9, s="g"), instant("before", 0.5), instant("after", 11.5),
    ]  # fmt: skip
    timeline = Timeline.from_chrome(write(tmp_path / "i.json", events))
    found = {(s.name, s.start_ns, s.end_ns) for s in timeline.rows() if s.kind == K.LABEL}
    assert found == {("saved", 3000, 3000), ("of its own thread", 5000, 5000), ("of all, here", 6000, 6000)}
    assert len(timeline) == 4 and timeline.elapsed_ns == 10_000 and timeline.busy()["ns"].tolist() == [10_000]


@pytest.mark.parametrize("form", ["array", "object", "lines"])
def test_a_trace_whose_writer_was_stopped(tmp_path: Path, form: str) -> None:
    """What was whole is read, whatever the form; where an event was cut, or the end of an object is missing, a warning says so."""
    events = [x("a", 0, 5), x("b", 10, 5), x("c", 20, 5)]
    text = {"array": json.dumps(events), "object": json.dumps({"schemaVersion": 1, "traceEvents": events}), "lines": "\n".join(map(json.dumps, events))}[form]
    for cut in (0, 1, 2, 30, len(text) // 2):
        left = text[: len(text) - cut]
        whole = [e for e in events if json.dumps(e) in left]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = Timeline.from_chrome(write(tmp_path / "cut.json", left))
        assert len(found.spans) == len(whole), cut
        in_order = cut == 0 or (form == "array" and cut == 1)
        assert [f"was cut off, or damaged: the {len(whole)} events before that are read" in str(w.message) for w in said] == [True] * (not in_order), cut


def test_a_file_that_was_changed_or_is_something_else(tmp_path: Path) -> None:
    """Our own export comes back whole, or not at all."""
    text = json.dumps([x("a", 0, 5), x("b", 10, 5)])
    with pytest.raises(TimelineError, match=r"cut off, or changed by hand: its \d+ characters end with .*Next:"):
        Timeline.from_chrome(write(tmp_path / "more.json", text[:-1] + " and so on"))
    with pytest.raises(TimelineError, match="cut off, or changed by hand"):
        Timeline.from_chrome(write(tmp_path / "none.json", '{"traceEvents": [{"ph": "X", "na'))
    for other in ("[1, 2", "[", "{}"):
        with pytest.raises(TimelineError, match="holds no Chrome trace"):
            Timeline.from_chrome(write(tmp_path / "other.json", other))


@pytest.mark.parametrize(("fields", "said"), [
    ({"ph": None}, "its phase 'ph' is no text"), ({"pid": [1]}, "its 'pid' is neither"), ({"tid": {"a": 1}}, "its 'tid' is neither"),
    ({"cat": ["x"]}, "its category 'cat' is no text"), ({"cat": "kernel", "args": {"stream": [7]}}, "its 'stream' is neither"),
    ({"ts": "late"}, "'late'"), ({"ts": 1e300}, "no 64 bits"), ({"dur": "long"}, "'long'"), ({"ts": ...}, "it has no time 'ts'"),
    ({"ph": "C", "args": {"n": 10**400}}, "too large"),
])  # fmt: skip
def test_odd_events_are_left_out_and_the_first_is_named(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    odd = {key: value for key, value in (x("the odd one", 5, 3) | fields).items() if value is not ...}
    unended = {"ph": "B", "name": "u", "pid": 1, "tid": 1, "ts": 3}
    events = [x("a", 1, 1), odd, x("b", 2, 1), odd | {"name": "another"}, unended]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        timeline = Timeline.from_chrome(write(tmp_path / "odd.json", events))
    assert [s.name for s in timeline.rows()] == ["a", "b"]
    assert sum("1 events of this trace begin without an end" in str(w.message) for w in told) == 1
    (left_out,) = [str(w.message) for w in told if "left out, for the format" in str(w.message)]
    assert left_out.startswith("2 of 5 events") and "the odd one" in left_out and said in left_out and "another" not in left_out
    with pytest.raises(TimelineError, match="the odd one.*Next: "):
        Timeline.from_chrome(write(tmp_path / "only.json", [odd]))


def test_arrows_of_another_tool_are_counted_and_told(tmp_path: Path) -> None:
    """From any span to any other one: here they lead from puts to gets. Our own export has its arrows back."""
    flow = [{"ph": ph, "cat": "fwdbwd", "name": "fwdbwd", "id": i, "pid": 1, "tid": 1 + (ph == "f"), "ts": 10 * i + 1} for i in range(3) for ph in "sf"]
    spans = [x("op", 10 * i, 5, tid=tid) for i in range(3) for tid in (1, 2)]
    timeline = Timeline.open(write(tmp_path / "torch.json", {"traceEvents": [*spans, *flow, flow[0] | {"ph": "t"}]}))
    assert timeline.foreign_arrows == timeline.snapshot().foreign_arrows == 4 and "4 arrows of that tool left out" in repr(timeline)
    assert "4 arrows of the tool that wrote this left out" in repr(timeline.summary()) and timeline.summary().to_dict()["foreign_arrows"] == 4
    assert repr(Timeline.open(write(tmp_path / "one.json", {"traceEvents": [*spans, *flow[:2]]}))).endswith(", 1 arrow of that tool left out")
    moves = (("a", 0, ("cpu:0",), K.PUT, 1000, 2000), ("b", 0, ("cpu:0",), K.GET, 1500, 3000))
    ours = timeline_of(*((*move, 0, "c", 0, 1) for move in moves), devices=["cpu:0"])
    back = Timeline.open(ours.to_perfetto(tmp_path / "ours.json"))
    assert back.foreign_arrows == 0 and "arrows" not in repr(back) and "arrow" not in repr(back.summary())


def test_cycles_are_not_looked_for_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million events that took three quarters of the time. Afterwards it is as it was, also where the file holds no trace."""
    seen, load = [], chrome_import._load
    monkeypatch.setattr(chrome_import, "_load", lambda path: (seen.append(gc.isenabled()), load(path))[1])
    good, bad = write(tmp_path / "good.json", [x("a", 1, 2)]), write(tmp_path / "bad.json", "no trace")
    for was in (True, False):
        try:
            (gc.enable if was else gc.disable)()
            assert len(Timeline.open(good)) == 1 and gc.isenabled() == was
            with pytest.raises(TimelineError):
                Timeline.open(bad)
            assert gc.isenabled() == was and not any(seen)
        finally:
            gc.enable()


def exported() -> Timeline:
    recorder, ours = Recorder("box"), Timeline(["cuda:0", "cuda:1"])
    gen, name, load = recorder.track("gen", 1, ("cuda:0", "cuda:1")), recorder.name("c"), "load"
    recorder.add(gen, K.RUN, name, 10**15, 10**15 + 2001, 3, 4)
    recorder.counter(load, 10**15 + 7, 0.5)
    recorder.counter(load, 10**15 + 9, float("nan"))
    ours.extend(recorder.drain())
    return ours


def test_exports_of_earlier_versions_open_as_they_were(tmp_path: Path) -> None:
    """They have the tracks beside the events, and each lane the number of its own; dropped spans and gaps of counters are told by both."""
    ours = exported()
    content = json.loads(ours.to_perfetto(tmp_path / "now.json").read_text())
    content["otherData"] |= {"tracks": [track.as_json() for track in ours.snapshot().tracks], "dropped_spans": 4}
    for event in content["traceEvents"]:
        if event["name"] == "thread_name":
            event["args"]["track"] = 0
    back = Timeline.open(write(tmp_path / "then.json", content))
    assert back.devices == ours.devices and (back.spans == ours.spans).all() and back.snapshot().tracks == ours.snapshot().tracks
    assert back.snapshot().dropped == 4 and str(back.snapshot().counter_samples["value"].tolist()) == "[0.5, nan]"
    with pytest.raises(TimelineError, match="export of a whole run"):
        Timeline.open([tmp_path / "now.json", tmp_path / "then.json"])
