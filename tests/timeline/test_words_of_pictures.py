"""Words of the static picture stay in it, and off each other, however long and wide names are."""

from __future__ import annotations

import itertools

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.draw import picture
from rlinf_lab.timeline.draw.picture import Word, scene

WIDEST = 11.5  # px of a letter, at the size of the picture's words


def made(names: list[str], iterations: int = 3, first: int = 0) -> Timeline:
    recorder, timeline = Recorder(), Timeline(["a-long-name-of-a-node.example.internal/cuda:0"])
    for i, name in enumerate(names):
        recorder.add(recorder.track(name, 0, tuple(timeline.devices)), SpanKind.RUN, recorder.name("step"), i * 1000, i * 1000 + 1000, 0)
    driver, length = recorder.track("driver", 0), len(names) * 1000 // iterations
    for i in range(iterations):
        recorder.add(driver, SpanKind.MARK, recorder.name("iteration"), i * length, (i + 1) * length, first + i)
    timeline.extend(recorder.drain())
    return timeline


def ends(word: Word) -> tuple[float, float]:
    width = sum(WIDEST if c in "WM" else 3.0 if c in "i.-:[]" else 6.6 for c in word.text)
    return (word.x - width, word.x) if word.anchor == "end" else (word.x, word.x + width)


@pytest.mark.parametrize("lanes", ["device", "worker"])
def test_wide_names_are_cut_and_do_not_meet(lanes: str) -> None:
    timeline = made(["W" * 40, "M" * 200, "worker", "i" * 30])
    picture = scene(timeline, timeline.accounting(), lanes=lanes)
    for line in {word.y for word in picture.words}:
        places = sorted(ends(word) for word in picture.words if word.y == line and word.anchor != "middle")
        assert places[0][0] >= 0 and places[-1][1] <= picture.width
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))
    assert "worker" in {word.text.removesuffix("[0]") for word in picture.words}, "what fits is whole"
    assert any(word.text.startswith("MMM") and "…" in word.text for word in picture.words)
    assert {word.text[-3:] for word in picture.words if word.anchor == "end" and "…" in word.text} == {"[0]" if lanes == "worker" else "a:0"}


@pytest.mark.parametrize("first", [0, 123_456_000])
def test_numbers_of_iterations_stay_in_the_picture(first: int) -> None:
    timeline = made(["w"] * 400, 400, first)
    picture = scene(timeline, timeline.accounting())
    numbers = [ends(word) for word in picture.words if word.text.isdigit() and word.y < 20]
    assert len(numbers) >= 8 and numbers[-1][1] <= picture.width
    assert all(before[1] < after[0] for before, after in itertools.pairwise(numbers))


def test_names_of_many_letters_and_lanes_of_many_devices_take_no_squares_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, width = 0, picture._width

    def counted(text: str) -> float:
        nonlocal asked
        asked += len(text)
        return width(text)

    monkeypatch.setattr(picture, "_width", counted)
    timeline = made(["x" * 150 + str(i) for i in range(20)])
    made_of_it = scene(timeline, timeline.accounting(), lanes="worker")
    assert sum("…" in word.text for word in made_of_it.words) > 20, "labels and the legend are cut"
    assert asked < 20 * 150 * 8


def test_every_worker_of_a_device_is_in_its_lane_once() -> None:
    recorder, timeline = Recorder(), Timeline(["cuda:0", "cuda:1", "cuda:2"])
    for i, (worker, rank, devices) in enumerate([("a", 0, ("cuda:0",)), ("b", 0, ("cuda:0", "cuda:1")), ("a", 1, ("cuda:0",))]):
        recorder.add(recorder.track(worker, rank, devices), SpanKind.RUN, recorder.name("step"), i * 1000, i * 1000 + 1000)
    timeline.extend(recorder.drain())
    rows = list(picture._device_rows(timeline, timeline.accounting(), ["a", "b"]))
    of = [{label: part[0].tolist() for label, part in row.parts.items() if isinstance(label, str) and label in ("a", "b")} for row in rows]
    assert of == [{"a": [0, 2000], "b": [1000]}, {"b": [1000]}, {}]
