"""Exports: read back by independent means, equal to what went in."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from built import recorder_of, timeline_of
from PIL import Image

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.critical.flows import arrows
from rlinf_lab.timeline.draw import png, svg
from rlinf_lab.timeline.draw.palette import colour_numbers, worker_colour
from rlinf_lab.timeline.draw.picture import _NOTCH, scene
from rlinf_lab.timeline.formats.packed import pack_rows

K = SpanKind


@pytest.fixture
def timeline() -> Timeline:
    """Two workers: a puts 4 items one by one, b gets them as two micro-batches of two; a label, a mark, a counter."""
    a, b, zero, rows = ("a", 0, ("cpu:0",)), ('b"<', 0, ("cpu:1",)), 10**15, []
    for i in range(4):
        start = zero + 1000 * i
        rows += [(*a, K.RUN, start, start + 900, 0), (*a, K.LABEL, start + 100, start + 900, 0), (*a, K.PUT, start + 900, start + 900 + i, 0, "act", i, 1)]
    for start in (zero, zero + 2000):
        rows += [(*b, K.GET, start, start + 1903, 0, "act", (start - zero) // 1000, 2), (*b, K.RUN, start + 1903, start + 2000, 0)]
    recorder = recorder_of([*rows, ("driver", 0, (), K.MARK, zero, zero + 5001, 0)], Recorder("box"))
    timeline = Timeline(["cpu:0", "cpu:1", "cpu:2"])
    recorder.counter("cpu:0 %", 10**15 + 7, 12.5)
    timeline.extend(recorder.drain())
    return timeline


def test_chrome_json_is_valid_and_complete(timeline: Timeline, tmp_path: Path):
    trace = json.loads(timeline.to_perfetto(tmp_path / "t.json").read_text())
    events = trace["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(timeline)
    assert trace["otherData"]["start_ns"] == 10**15
    last = max(slices, key=lambda e: e["ts"] + e["dur"])
    assert (last["name"], last["ts"], last["dur"]) == ("iteration", 0, 5.001)
    threads = {e["args"]["name"]: (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) == {"a[0]", 'b"<[0]', "driver[0]"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "box: cpu:0", "box: cpu:1", "box: no device", "counters",
    }  # fmt: skip
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"value": 12.5}]
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert len(starts) == 4 and starts.keys() == ends.keys()
    for number, start in starts.items():  # arrows leave a put and arrive inside a get
        (put,) = [e for e in slices if e["cat"] == "put" and (e["tid"], e["ts"]) == (start["tid"], start["ts"])]
        (get,) = [e for e in slices if e["cat"] == "get" and e["ts"] <= ends[number]["ts"] < e["ts"] + e["dur"]]
        assert get["args"]["flow"] <= put["args"]["flow"] < get["args"]["flow"] + get["args"]["items"]
    assert json.loads(Timeline(["cpu:0"]).to_perfetto(tmp_path / "t.json").read_text())["traceEvents"] == []


def test_arrows_join_what_was_put_and_got_in_the_same_iteration():
    rows = [("w", 0, (), K.GET, 0, 99, 1, "c", 0, 1)]  # over before that put began
    for iteration, at in enumerate((0, 100, 200)):
        rows += [("w", 0, (), K.PUT, at + i, at + i, iteration, "c", i, 1) for i in range(6)]
        rows += [("w", 0, (), K.GET, at, at + 10, iteration, "c", 0, 4), ("w", 0, (), K.GET, at + 10, at + 20, iteration, "c", 4, 2)]
    timeline = timeline_of(*rows)
    spans = timeline.spans
    put, get = arrows(spans)
    assert len(put) == 18
    assert (spans["iteration"][put] == spans["iteration"][get]).all()
    assert (spans["flow"][get] <= spans["flow"][put]).all()
    assert (spans["flow"][put] < spans["flow"][get] + spans["items"][get]).all()


def unpack(header: dict, data: bytes) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(data, dtype, header["count"], at) for name, dtype, at in header["columns"]}


def test_packed_columns_are_aligned_and_hold_the_spans(timeline: Timeline):
    header, data = pack_rows(timeline.snapshot())
    json.dumps(header)
    columns = unpack(header, data)
    assert all(at % np.dtype(dtype).itemsize == 0 for _, dtype, at in header["columns"])
    spans = timeline.spans[np.lexsort((timeline.spans["start"], timeline.spans["track"]))]
    assert (columns["start"] == spans["start"] - 10**15).all()
    assert (columns["duration"] == spans["end"] - spans["start"]).all()
    assert (columns["channel"].astype(int) - 1 == spans["channel"]).all()
    assert header["count"] == len(timeline)
    header, data = pack_rows(timeline.snapshot(), since=len(timeline) - 1)
    assert header["count"] == 1 and unpack(header, data)["kind"].tolist() == [K.MARK]


def test_numbers_of_very_many_lanes_and_names_are_packed_as_wide_as_they_are():
    recorder, timeline, many = Recorder(), Timeline(), (1 << 16) + 1
    for i in range(many):
        track, name = recorder.track("w", i), recorder.name(f"n{i}")
    recorder.add(track, K.PUT, name, 0, 1, channel=name)
    timeline.extend(recorder.drain())
    columns = unpack(*pack_rows(timeline.snapshot()))
    assert [int(columns[c][0]) for c in ("track", "name", "channel")] == [many - 1, many - 1, many]


def test_the_picture_is_xml_and_shows_every_device_and_worker(timeline: Timeline):
    text = timeline.to_svg()
    root = ET.fromstring(text)
    words = {e.text for e in root.iter() if e.tag.endswith("text")}
    assert {"cpu:0", "cpu:1", "cpu:2", "a", 'b"<', "fill", "iteration", "0"} <= words
    assert "off" not in words
    words = {e.text for e in ET.fromstring(timeline.to_svg(lanes="worker")).iter() if e.tag.endswith("text")}
    assert {"a[0]", 'b"<[0]', "starved"} <= words and "driver[0]" not in words and "fill" not in words and "cpu:0" not in words
    with pytest.raises(UnknownNameError, match="'workers'.*worker"):
        timeline.to_svg(lanes="workers")
    ET.fromstring(Timeline(["cpu:0"]).to_svg())
    assert pack_rows(Timeline(["cpu:0"]).snapshot())[1] == b""
    bundle = timeline._repr_mimebundle_()
    assert bundle["text/plain"] == repr(timeline) and "<svg" in bundle["text/html"]


def ids(picture: str) -> set[str]:
    return {e.get("id") for e in ET.fromstring(picture).iter() if e.get("id")}


def test_a_picture_that_is_shown_twice_has_no_id_twice_and_a_notebook_run_again_is_stored_as_it_was(timeline: Timeline, monkeypatch: pytest.MonkeyPatch):
    """Of two equal ids a page takes the first; where that one is hidden, the second picture has no idle time."""
    monkeypatch.setattr(svg, "_times", Counter())
    pictures = [timeline._repr_mimebundle_()["image/svg+xml"] for _ in range(3)]
    assert ids(pictures[0]) and not ids(pictures[0]) & ids(pictures[1]) and not ids(pictures[1]) & ids(pictures[2])
    assert all(not ids(timeline.to_svg()) & ids(picture) for picture in pictures)
    assert timeline.to_svg() == timeline.to_svg(), "a file"
    for used in pictures:
        assert set(re.findall(r"url\(#([^)]+)\)", used)) <= ids(used)
    monkeypatch.setattr(svg, "_times", Counter())  # the kernel is restarted
    assert [timeline._repr_mimebundle_()["image/svg+xml"] for _ in range(3)] == pictures
    monkeypatch.setattr(svg, "_times", Counter())
    monkeypatch.setattr(svg, "_cell", lambda: "another")
    assert not ids(timeline._repr_mimebundle_()["image/svg+xml"]) & ids(pictures[0]), "of a cell that an earlier kernel has run"


@pytest.mark.parametrize(("strange", "shown"), [("\x00", "\ufffd"), ("\x0b", "\ufffd"), ("\x1b[31m", "\ufffd[31m"), ("\ufffe", "\ufffd"), ("\x7f\t<&", "\x7f\t<&")])
def test_pictures_are_xml_whatever_a_name_holds(strange: str, shown: str):
    timeline = timeline_of((f"a{strange}b", 0, (f"cpu{strange}:0",), K.RUN, 0, 10, 0, "", -1, 0, strange))
    for lanes, lane in (("device", f"cpu{shown}:0"), ("worker", f"a{shown}b[0]")):
        words = [e.text for e in ET.fromstring(timeline.to_svg(lanes=lanes)).iter() if e.tag.endswith("text")]
        assert words[0] == lane and words[-1] == f"a{shown}b"


def test_what_took_no_time_is_a_tick_in_a_ranks_lane():
    """Where nothing else is in the lane, and over spans where they are told apart; never more of them than pixels."""
    ms, (busy, often), only = 1_000_000, ((name, 0, ("cpu:0",)) for name in ("busy", "often")), ("only", 0, ())
    rows = [(*who, K.RUN, 0, 100 * ms) for who in (busy, often)] + [(*busy, K.PUT, at * ms, at * ms) for at in (10, 50, 100)]
    rows += [(*who, K.PUT, at * ms // 10, at * ms // 10) for at in range(1000) for who in (often, only)]
    timeline = timeline_of(*rows, devices=["cpu:0"])
    made = scene(timeline, timeline.accounting(), 400, "worker")
    ticks = [line for line in made.lines if line.y1 - line.y0 == _NOTCH]
    left = min(bar.x for bar in made.bars)
    columns = next(bar.width for bar in made.bars if bar.fill == "busy")
    assert [round((line.x0 - 0.5 - left) / columns, 2) for line in ticks] == [0.1, 0.5, 1.0] and len({line.y0 for line in ticks}) == 1
    lane = [bar for bar in made.bars if bar.fill == "only" and bar.height > 12]
    assert 0.9 * columns <= len(lane) <= columns and {bar.width for bar in lane} == {2}
    assert not [line for line in scene(timeline, timeline.accounting(), 400).lines if line.y1 - line.y0 == _NOTCH], "a device's lane is its time"


@pytest.mark.parametrize(("theme", "ground"), [("light", (255, 255, 255)), ("dark", (17, 17, 17))])
def test_the_png_shows_the_same_bars_in_the_same_colours(timeline: Timeline, tmp_path: Path, theme: str, ground: tuple):
    number, other = colour_numbers(t.worker for t in timeline.tracks if t.devices)["a"], {"light": "dark", "dark": "light"}[theme]
    first = tuple(bytes.fromhex(worker_colour(number, theme)[1:]))
    fixed, page = timeline.to_svg(theme=theme), timeline.to_svg()
    assert worker_colour(number, theme) in fixed and worker_colour(number, other) not in fixed and "media" not in fixed
    assert worker_colour(number, theme) in page and "prefers-color-scheme" in page
    image = Image.open(timeline.to_png(tmp_path / "t.png", 600, theme=theme, scale=2)).convert("RGB")
    pixels = np.asarray(image)
    assert image.width == 1200 and tuple(pixels[-1, -1]) == ground
    shown = (pixels == first).all(axis=2).sum()
    drawn = ET.fromstring(timeline.to_svg(width=600, theme=theme))
    bars = [e for e in drawn.iter() if e.tag.endswith("rect") and (e.get("class") or "").endswith(f"-w{number}")]
    assert bars
    area = 4 * sum(float(e.get("width")) * float(e.get("height")) for e in bars)
    assert 0.98 * area < shown <= area  # the line of the iteration lies over them
    with pytest.raises(UnknownNameError, match="theme"):
        timeline.to_png(tmp_path / "t.png", theme="bright")


@pytest.mark.parametrize("letter", "µ∞−–→×ä…")
def test_the_font_of_a_png_has_the_letters_of_rulers_and_names(letter: str) -> None:
    font = png._font(33.0)
    assert bytes(font.getmask(letter)) != bytes(font.getmask("\uffff")), "the box of a letter that is not there"
