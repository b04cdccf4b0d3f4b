"""``rlinf-lab trace``: a summary for people and for scripts, other formats, and errors of one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rlinf_lab.cli import main
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.draw.short_names import narrow

K = SpanKind


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    recorder, timeline = Recorder(), Timeline(["cpu:0", "cpu:1"])
    a, b, driver = recorder.track("maker", 0, ("cpu:0",)), recorder.track("taker", 0, ("cpu:1",)), recorder.track("driver", 0)
    make, take, channel = recorder.name("make"), recorder.name("take"), recorder.channel("items")
    recorder.add(a, K.RUN, make, 0, 60_000_000, 0)
    recorder.add(a, K.RUN, make, 10_000_000, 30_000_000, 0)  # within the other: not counted twice
    recorder.add(a, K.PUT, make, 60_000_000, 60_000_000, 0, 1, 0, channel, 0)
    recorder.add(b, K.GET, take, 0, 60_000_000, 0, 1, 0, channel, 0)
    recorder.add(b, K.RUN, take, 60_000_000, 100_000_000, 0)
    recorder.add(driver, K.MARK, recorder.name("iteration"), 0, 100_000_000, 0)
    timeline.extend(recorder.drain())
    return timeline.to_parquet(tmp_path / "run.parquet")


def test_the_summary_says_where_the_time_went(parquet: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["trace", str(parquet), "--summary"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("6 spans of 3 lanes on 2 devices, 0.1 s, 1 iteration\n")
    assert "cpu:0  0.06 s  60.0 %" in said and "fill" in said
    assert re.search(r"maker\[0\] +cpu:0 +3 spans +0.06 s +60.0 %", said)
    assert "maker  make  run  0.06 s  60.0 %" in said and "taker  take  run  0.04 s  40.0 %" in said


def test_the_summary_as_json(parquet: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["trace", str(parquet), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["spans"], found["seconds"], found["iterations"], found["dropped"]) == (6, 0.1, 1, 0)
    busy, idle = sum(d["ns"] for d in found["devices"]), sum(b["ns"] for b in found["bubbles"])
    assert busy + idle == 2 * 100_000_000 and sum(s["ns"] for s in found["critical_path"]) == 100_000_000
    assert {lane["lane"]: lane["ns"] for lane in found["lanes"]} == {"maker[0]": 60_000_000, "taker[0]": 40_000_000, "driver[0]": 0}


def test_every_format_is_written_and_chrome_comes_back(parquet: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = [tmp_path / f"out{ending}" for ending in (".html", ".json.gz", ".json", ".parquet", ".svg", ".png")]
    assert main(["trace", str(parquet), "--no-summary", "--to", *map(str, paths)]) == 0
    assert capsys.readouterr().out == "" and all(path.stat().st_size > 100 for path in paths)
    assert Timeline.open(paths[2]).diff(Timeline.open(parquet)) == ""


@pytest.mark.parametrize(("arguments", "words"), [
    (["nothing.json"], "There is no 'nothing.json'"), (["{file}", "--to", "x.pdff"], "'.pdff'"), (["{other}"], "holds no Chrome trace"),
])  # fmt: skip
def test_errors_are_one_line(parquet: Path, tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], words: str) -> None:
    (tmp_path / "other").write_text("hello")
    assert main(["trace", *(a.format(file=parquet, other=tmp_path / "other") for a in arguments)]) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said


def test_a_name_that_is_no_text_becomes_an_escape(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lane = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "\ud800"}}
    (tmp_path / "odd.json").write_text(json.dumps([{"ph": "X", "name": "a\udfff", "pid": 1, "tid": 1, "ts": 0, "dur": 5}, lane]))
    to = [str(tmp_path / f"t.{ending}") for ending in ("svg", "json", "parquet")]
    assert main(["trace", str(tmp_path / "odd.json"), "--to", *to]) == 0
    said = capsys.readouterr().out
    assert r"\ud800" in said and r"a\udfff" in said


def test_small_numbers_are_read_at_a_glance(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    recorder.add(recorder.track("w", 0, ("cpu:0",)), K.RUN, recorder.name("step"), 0, 101_600, 0)
    recorder.add(recorder.track("driver", 0), K.MARK, recorder.name("iteration"), 0, 101_600, 0)
    timeline.extend(recorder.drain())
    assert main(["trace", str(timeline.to_parquet(tmp_path / "short.parquet"))]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 spans of 2 lanes on 1 device, 102 µs, 1 iteration\n") and "1 span " in said and "e-0" not in said


def test_nothing_is_written_where_one_of_the_endings_is_unknown(parquet: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["trace", str(parquet), "--to", str(tmp_path / "a.svg"), str(tmp_path / "b.pdf")]) == 2
    assert "'.pdf'" in capsys.readouterr().err and not (tmp_path / "a.svg").exists()


def test_json_is_printed_also_without_a_summary_for_people(parquet: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["trace", str(parquet), "--json", "--no-summary"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == 6


@pytest.mark.parametrize("time", ['"soon"', "NaN", "1e999", "[1]"])
def test_a_time_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture, time: str) -> None:
    (tmp_path / "odd.json").write_text(f'[{{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": {time}, "dur": 5}}]')
    assert main(["trace", str(tmp_path / "odd.json")]) == 2
    said = capsys.readouterr().err
    assert "odd.json" in said and "the time of an event is" in said and "Next: " in said


_FUNCTOR = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::internal::{}Functor<float> >, {}>"


def test_the_names_of_kernels_fit_into_a_terminal_and_stay_different(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Kernels of one template differ in the middle of hundreds of characters. A line break or an escape in a name is no line, and erases nothing."""
    end = "std::array<char*, 3ul> >(int, " * 4
    kernels = [_FUNCTOR.format("Mul", end), _FUNCTOR.format("Add", end), f"void cutlass::Kernel2<{'sm80_tensorop_' * 20}>", "two\nlines \x1b[2J"]
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 10, "args": {"device": 0, "stream": 7}}
    events = [{**kernel, "name": name, "ts": 10 * i} for i, name in enumerate(kernels)]
    (tmp_path / "kernels.json").write_text(json.dumps(events))
    assert main(["trace", str(tmp_path / "kernels.json")]) == 0
    said = capsys.readouterr().out
    lines = said.split("Critical path\n")[1].split("\n\n")[0].splitlines()
    assert len(lines) == 4 and max(map(len, said.splitlines())) <= 120
    assert sum("MulFunctor" in line for line in lines) == sum("AddFunctor" in line for line in lines) == 1
    assert "\x1b" not in said and r"two\nlines \x1b[2J" in said
    assert main(["trace", str(tmp_path / "kernels.json"), "--json"]) == 0
    assert {step["name"] for step in json.loads(capsys.readouterr().out)["critical_path"]} == set(kernels), "scripts have the names as they are"


@given(names=st.lists(st.text("ab<\n学é\u0301", max_size=90), max_size=9), most=st.integers(40, 60))
def test_names_are_never_wider_than_the_column(names: list[str], most: int) -> None:
    cut = narrow(names, most)
    assert all(cell_len(text) <= most and text.isprintable() for text in cut)
    assert all(text == name for text, name in zip(cut, names, strict=True) if cell_len(name) <= most and name.isprintable() and "…" not in text)
    assert len(set(cut)) == len(set(names))


def test_names_of_any_script_stand_in_columns() -> None:
    """Chinese characters are two columns wide, an accent of its own none: the numbers after such names stood elsewhere, and long ones broke the line."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    for i, worker in enumerate(["learner", "学习者", "模拟器" * 30, "e\u0301tudiant", "학습자"]):
        recorder.add(recorder.track(worker, 0, ("cpu:0",)), K.RUN, recorder.name("步骤"), 10 * i, 10 * i + 9, 0)
    timeline.extend(recorder.drain())
    lines = repr(timeline.summary()).splitlines()
    lanes = lines[lines.index("Lanes, share of time in RUN spans") + 1 :][:5]
    assert len({cell_len(line.partition("cpu:0")[0]) for line in lanes}) == 1
    assert all(cell_len(line) < 100 for line in lines[3:])
    assert cell_len("学习者") == 6 and cell_len("e\u0301") == 1
