"""Traces that are no JSON here and there: all good events are read, in their order, and what is left out is named."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline import Timeline
from rlinf_lab.timeline.formats.chrome_text import load

#: Of one event each: its text, and what of it is read (None: nothing).
ODD = {
    '{"ph": "X", "name": "{"a": "cpu"}(12): run", "pid": 9, "tid": 9, "ts": 1, "dur": 5, "args": {}}': None,  # pytorch/kineto 1459
    '{"ph": "X", "name": "no value", "ts": , "pid": 9}': None,
    '{"ph": "X", "name": "copy", "ts": 1, "args": {"memory bandwidth (GB/s)": inf, "low": -inf, "is nan": nan}}': "copy",  # pytorch/kineto 105
    '{"ph": "X", "name": "||S\x01(1): <module>", "ts": 10, "dur": 5, "args": {"list": [{"a": 1}, {"b": 2}]}}': "||S\x01(1): <module>",  # perfetto 598
}


def good(number: int) -> str:
    return json.dumps({"ph": "X", "name": f"good {number}, inf nan", "ts": number, "dur": 1, "args": {"nested": [{"ph": 1}, {"b": {}}]}})


@given(st.lists(st.sampled_from([None, *ODD]), min_size=1, max_size=8), st.sampled_from(["array", "object"]), st.sampled_from([", ", ",\n", "\n,\n"]))
@settings(max_examples=60, deadline=None)
def test_all_but_the_odd_events_are_read(tmp_path_factory: pytest.TempPathFactory, which: list[str | None], form: str, between: str) -> None:
    texts = [good(-1), *(good(i) if text is None else text for i, text in enumerate(which)), good(99)]
    body = between.join(texts)
    path = tmp_path_factory.mktemp("odd") / "trace.json"
    path.write_text(f"[{body}]" if form == "array" else f'{{"schemaVersion": 1, "distributedInfo": {{"rank": 3}}, "traceEvents": [\n{body}\n]}}')
    names = [json.loads(t)["name"] if t not in ODD else ODD[t] for t in texts]
    found = load(path)
    assert [e["name"] for e in found.events] == [n for n in names if n is not None]
    assert len(found.odd) == names.count(None) and not found.is_cut and found.rank == (3 if form == "object" else None)
    for said, text in zip(found.odd, [t for t in texts if ODD.get(t, t) is None], strict=True):
        assert said.startswith("line ") and text[:20] in said
    if found.odd and which.count(None) == len(which) - 1:
        number = path.read_text()[: path.read_text().index(next(t for t in texts if ODD.get(t, t) is None))].count("\n") + 1
        assert found.odd[0].startswith(f"line {number}: ")
        with pytest.warns(UserWarning, match=rf"1 events are no JSON and are left out; {len(texts) - 1} are read. The first: line {number}: "):
            Timeline.open(path)


@pytest.mark.parametrize("as_text", [True, False])
def test_times_as_texts_are_numbers(tmp_path: Path, as_text: bool) -> None:
    """More digits than a double has."""
    times = [("9007199254740.993", "50"), ("1587074269993629", "50.5")]
    events = [{"ph": "X", "name": n, "pid": 1, "tid": 1, "ts": ts, "dur": dur} for n, (ts, dur) in zip("ab", times, strict=True)]
    events.append({"ph": "C", "name": "CPU", "pid": 1, "ts": times[1][0] if as_text else int(times[1][0]), "args": {"usr": 3}})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timeline = Timeline.open(path)
    rows = timeline.to_pandas().set_index("name")
    assert rows.loc["b", "start_ns"] == 1587074269993629000 and rows.loc["b", "end_ns"] == 1587074269993679500
    assert len(timeline.counters()) == 1


def rank(folder: Path, number: int | None, name: str) -> Path:
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 100, "dur": 50, "args": {"device": 0, "stream": 7}}
    said: dict[str, Any] = {"traceEvents": [event, {"ph": "C", "name": "power", "pid": 0, "ts": 120, "args": {"watts": 3.0}}]}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(said if number is None else {"distributedInfo": {"rank": number}, **said}))
    return path


def test_files_of_ranks_are_one_timeline(tmp_path: Path) -> None:
    timeline = Timeline.open([rank(tmp_path, 1, "a"), rank(tmp_path, 0, "b")])
    assert timeline.devices == ["rank0/cuda:0", "rank1/cuda:0"]
    rows = timeline.to_pandas()
    assert dict(zip(rows["name"], rows["devices"].map(str), strict=True)) == {"a": "rank1/cuda:0", "b": "rank0/cuda:0"}
    assert set(timeline.counters()["name"]) == {"rank0 power", "rank1 power"} and len(rows) == 2
    for wrong, said in [([], "no file"), ([rank(tmp_path, 1, "a"), rank(tmp_path, 1, "c")], "same rank: 'a.json' of rank1, 'c.json' of rank1")]:
        with pytest.raises(TimelineError, match=said):
            Timeline.open(wrong)


def test_a_zip_of_one_trace_is_opened(tmp_path: Path) -> None:
    for number, some in enumerate((["a"], ["a", "b"])):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            for name in some:
                archive.write(rank(tmp_path, None, name), f"{name}.pt.trace.json")
    assert Timeline.open(tmp_path / "0.zip").to_pandas()["name"].tolist() == ["a"]
    with pytest.raises(TimelineError, match=r"a zip of 2 files .*Next: unpack it, then Timeline.open\(\[file, file, ...\]\)"):
        Timeline.open(tmp_path / "1.zip")
    whole = (tmp_path / "0.zip").read_bytes()
    for length in (4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.zip").write_bytes(whole[:length])
        with pytest.raises(TimelineError, match="damaged, cut off"):
            Timeline.from_chrome(tmp_path / "cut.zip")
