"""Files that come back equal, also of overlapping spans; and what is said of files, folders and arguments that cannot be."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from built import recorder_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html


def timeline_of(rows: list[tuple[int, int, int, int]]) -> Timeline:
    """Spans (track, kind, start, duration), items in channels, and a counter."""
    recorder, made, names = Recorder("node"), Timeline(("cpu:0", "cpu:9")), ("step", "get", 'a "b" (2)')
    for i, (track, kind, start, duration) in enumerate(rows):
        moved = ("obs", i, 3) if kind in (SpanKind.GET, SpanKind.PUT) else ("", -1, 0)
        span = (SpanKind(kind), start, start + duration, i % 4 - 1, *moved, names[i % 3])
        recorder_of([("w [1]", track, (f"cpu:{track}",) if track else (), *span)], recorder)
    recorder.counter("load %", 5, 12.5)
    made.extend(recorder.drain())
    return made


overlapping = st.lists(st.tuples(st.integers(0, 2), st.integers(0, len(SpanKind) - 1), st.integers(1, 60), st.integers(0, 30)), min_size=1, max_size=40)


times = st.one_of(st.integers(1, 60), st.integers(-(10**14), 10**15))
lengths = st.one_of(st.integers(0, 30), st.integers(0, 10**15))
odd = st.sampled_from(
    ["cpu:0", "a, b", "a", "b", "no device", "", ", ", "x: y", ": ", "fe80: :1", "w[1] (2)", "w[1]", "counters", "0123456789abcdef01", "rlinf_lab ", "a\nb"]
) | st.text(max_size=6)
tracks = st.lists(st.tuples(odd, st.integers(0, 9), st.lists(odd, max_size=3), odd), min_size=1, max_size=5)
rows_of_tracks = st.lists(st.tuples(st.integers(0, 4), st.integers(0, len(SpanKind) - 1), times, lengths), max_size=12)
values = st.sampled_from([1.5, math.inf, -math.inf, math.nan, -0.0, 1e308])
ONE = [("w", 0, ["cpu:0"], "local")]


def no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@example(ONE, [(0, 0, -(1 << 62), 10**17), (0, 0, (1 << 62) - 10**15, 10**17)], [(1 << 61, math.nan)], ["cpu:9"], 0, False)
@given(tracks, rows_of_tracks, st.lists(st.tuples(times, values), max_size=4), st.lists(odd, max_size=2), st.sampled_from([0, 1_700_000_000 * 10**9]), st.just(True))
@settings(max_examples=80, deadline=None)
def test_whatever_names_and_times_there_are_files_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, tracks: list, rows: list, samples: list[tuple[int, float]], devices: list[str], zero: int, days: bool
) -> None:
    """Spans that overlap, or lie before zero, and samples of counters that JSON has no number for. Parquet also what lies more than ``days`` apart."""
    made, folder = Timeline(devices), tmp_path_factory.mktemp("any")
    for number, (worker, rank, on, host) in enumerate(tracks):
        recorder = Recorder(host)
        track, names, channel = recorder.track(worker, rank, tuple(on)), [recorder.name(n) for n in ("step", 'a "b" (2)')], recorder.channel("obs")
        for i, (which, kind, start, length) in enumerate(rows):
            if which % len(tracks) == number:
                moved = (3, 100, channel, i) if kind in (SpanKind.GET, SpanKind.PUT) else (0, 0, -1, -1)
                recorder.add(track, kind, names[i % 2], zero + start, zero + start + length, i % 4 - 1, *moved)
        for time, value in samples if rows and not number else ():
            recorder.counter("load %", zero + time, value)
        made.extend(recorder.drain())
    missing = made.dropped, made.dropped_samples, made.clock_errors, made.clock_jumps = 3, 4, {"far": 500}, {"far": 2}
    for path in (made.to_perfetto(folder / "t.json"), made.to_perfetto(folder / "t.json.gz"), made.to_parquet(folder / "t.parquet"))[2 - 2 * days :]:
        with warnings.catch_warnings(action="error"):
            back = Timeline.open(path)
        assert made.diff(back) == "" and (back.tracks, back.devices) == (made.tracks, made.devices), path.name
        assert (back.start_ns, back.end_ns) == (made.start_ns, made.end_ns), path.name
        assert (back.dropped, back.dropped_samples, back.clock_errors, back.clock_jumps) == missing, path.name
        told, kept = made.counters(), back.counters()
        assert kept.astype({"name": str}).equals(told.astype({"name": str}).reset_index(drop=True)), path.name
    json.loads((folder / "t.json").read_text(), parse_constant=no_json)


@given(overlapping)
@settings(max_examples=80, deadline=None)
def test_in_viewers_every_span_ends_within_the_one_around_it(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int, int]]) -> None:
    made, folder = timeline_of(rows), tmp_path_factory.mktemp("nested")
    lanes: dict[int, list[tuple[int, int]]] = {}
    events = json.loads(made.to_perfetto(folder / "t.json").read_text())["traceEvents"]
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            lanes.setdefault(event["tid"], []).append((start, start + round(event["dur"] * 1000)))
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(set(named.values())) == len(named) >= len(lanes) and all(re.fullmatch(r"w \[1\]\[\d\]( \(\d+\))?", name) for name in named.values())
    for lane in lanes.values():
        open_ends: list[int] = []
        for start, end in sorted(lane, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_half_a_character_is_written_as_an_escape(tmp_path: Path) -> None:
    half, escaped = "a\udcff", "a\\udcff"
    recorder, made = Recorder(half), Timeline([half])
    track, name = recorder.track(half, 0, (half,)), recorder.name(half)
    recorder.add(track, SpanKind.RUN, name, 1, 2)
    recorder.counter(half, 1, 2.0)
    made.extend(recorder.drain())
    (lane,) = made.tracks
    assert (lane.worker, lane.devices, lane.host, made.names, made.devices) == (escaped, (escaped,), escaped, [escaped], [escaped])
    counter = {"ph": "C", "name": half, "pid": half, "ts": 1, "args": {half: 1, "b": 2}}
    events = [counter, {"ph": "X", "name": half, "cat": half, "pid": half, "tid": half, "ts": 1, "dur": 5}]
    (tmp_path / "foreign.json").write_text(json.dumps(events))
    for timeline in (made, Timeline.open(tmp_path / "foreign.json")):
        timeline.to_svg(tmp_path / "t.svg")
        timeline_html(timeline, tmp_path / "t.html")
        for path in (timeline.to_perfetto(tmp_path / "t.json"), timeline.to_parquet(tmp_path / "t.parquet")):
            assert Timeline.open(path).diff(timeline) == "", path.name


def test_what_is_missing_and_how_far_clocks_can_be_trusted_is_told() -> None:
    made = timeline_of(WHOLE)
    made.dropped, made.dropped_samples, made.clock_errors, made.clock_jumps = 3, 4, {"far": 500}, {"far": 2}
    assert "clocks that JUMPED: far, 3 spans DROPPED, 4 counter samples DROPPED" in repr(made)
    told = str(made.summary())
    assert "3 spans were DROPPED" in told and "4 samples of counters were DROPPED" in told and "clock of far: was set or stood still 2 times" in told


# --- what cannot be read ------------------------------------------------------------------------------------------------
WHOLE = [(i % 3, i % 11, 10 * i, 7) for i in range(300)]


@pytest.mark.parametrize("ending", ["parquet", "json", "gz"])
@pytest.mark.parametrize("damage", ["cut", "zeros", "empty"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, ending: str, damage: str) -> None:
    made, path = timeline_of(WHOLE), tmp_path / f"t.{ending}"
    {"parquet": made.to_parquet, "json": made.to_perfetto, "gz": made.to_perfetto}[ending](path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes({"cut": whole[:middle], "zeros": whole[: middle // 2] + bytes(middle) + whole[middle + middle // 2 :], "empty": b""}[damage])
    if ending == "json" and damage != "empty":
        with pytest.warns(UserWarning, match="cut off, or damaged|are no JSON"):
            assert 100 < len(Timeline.open(path)) < len(made)
        return
    with pytest.raises(TimelineError, match=rf"t\.{ending}.*Next: "):
        Timeline.open(path)


@pytest.mark.parametrize(
    "text",
    ['[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1e300, "dur": 1}]', '[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 9.3e15, "dur": 1}]',
     pytest.param('[{"ph": "C", "name": "a", "pid": 1, "ts": 1, "args": {"n": ' + "9" * 400 + "}}]", id="counter"), pytest.param("[" * 200_000, id="deep"), "[1, 2]", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": [{"ph": "X", "ts": "abc", "name": 3}]}', "\x1f", "{}",
     '[{"ph": "X", "ts": 1, "cat": "run", "args": {"call": [], "iteration": 0, "items": 0, "bytes": 0, "channel": "", "flow": "a"}}]'],
)  # fmt: skip
def test_a_foreign_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "foreign.json").write_text(text)
    with pytest.raises(TimelineError, match=r"foreign\.json.*Next: "):
        Timeline.open(tmp_path / "foreign.json")
    (tmp_path / "t.pftrace").write_bytes(b"\n\x85\x01" + text[:200].encode())
    with pytest.raises(TimelineError, match=r"t\.pftrace.*protobuf.*Next: .*traceconv json"):
        Timeline.open(tmp_path / "t.pftrace")


@pytest.mark.parametrize("who", ["to_parquet", "to_perfetto", "to_png", "to_svg", "html"])
def test_what_cannot_be_written(tmp_path: Path, who: str) -> None:
    made = timeline_of(WHOLE)
    write: Any = (lambda path: timeline_html(made, path)) if who == "html" else getattr(made, who)
    with pytest.raises(TimelineError, match="there is no folder .*missing.*Next: mkdir -p"):
        write(tmp_path / "missing" / "file")
    with pytest.raises(TimelineError, match="that is a folder. Next"):
        write(tmp_path)
    with pytest.raises(TimelineError, match=r"\(3\): the path"):
        write(3)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda made: Timeline.open("/dev/zero"), "'/dev/zero' is a device and no file"),
        (lambda made: Timeline.open("a" * 5000), "There is no 'aaa"), (lambda made: Timeline.open("a\0b"), r"open\('a\\x00b'\): no file of this system"),
        (lambda made: Timeline.from_chrome("a" * 5000), r"from_chrome\('aaa"), (lambda made: made.to_perfetto("a" * 5000), r"to_perfetto\('aaa.*too long"),
        (lambda made: made.bubbles([]), r"bubbles\(by=\[\]\): no name"), (lambda made: made.bubbles(["cause", "cause"]), "comes twice"),
        (lambda made: made.bubbles(5), r"bubbles\(by=5\)"), (lambda made: made.bubbles(b"cause"), "b'cause'"),
        (lambda made: made.critical_path([]), r"critical_path\(by=\[\]\)"), (lambda made: made.critical_path(["worker", "worker"]), "comes twice"),
        (lambda made: made.critical_path(5), r"critical_path\(by=5\)"),
        (lambda made: made.gains(by=5), r"gains\(by=5\)"), (lambda made: made.gains(by=[]), r"gains\(by=\[\]\)"),
        (lambda made: made.gains(by=None), r"gains\(by=None\)"), (lambda made: made.gains(by=("rank", "rank")), "comes twice"),
        *((lambda made, who=who: getattr(made, who)("a\ud800.svg"), r"ud800.*: no file of this system can be called so") for who in
          ("to_perfetto", "to_parquet", "to_svg", "to_png", "open", "from_chrome")),
        *((lambda made, who=who: who("nowhere"), "nowhere") for who in (Timeline.open, Timeline.from_parquet, Timeline.from_chrome)),
        *((lambda made, who=who: who(3), r"\(3\): the path of a file") for who in (Timeline.open, Timeline.from_parquet, Timeline.from_chrome)),
        *((lambda made, o=o: made.to_png("t.png", **o), f"{next(iter(o))}=") for o in
          ({"scale": 0}, {"scale": -1}, {"scale": "a"}, {"scale": 1000}, {"width": 0}, {"width": "a"}, {"width": 10**9})),
        (lambda made: made.extend(5), r"extend\(5"), (lambda made: made.extend(None), r"extend\(None"),
        (lambda made: made.extend(Recorder().drain(), 0.5), r"offset_ns=0\.5"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said(ask: Any, says: str) -> None:
    made = timeline_of(WHOLE)
    with pytest.raises(TimelineError, match=rf"(?s){says}.*Next: "):
        ask(made)
    assert len(made) == len(WHOLE)
