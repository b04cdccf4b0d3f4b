"""Words of the static picture stay in it, and off each other, however long and wide names are."""

from __future__ import annotations

import itertools

import pytest
from built import timeline_of
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.draw import picture
from rlinf_lab.timeline.draw.picture import Word, scene
from rlinf_lab.timeline.draw.short_names import narrow

WIDEST = 11.5  # px of a letter, at the size of the picture's words


def made(names: list[str], iterations: int = 3, first: int = 0) -> Timeline:
    devices, length = ("a-long-name-of-a-node.example.internal/cuda:0",), len(names) * 1000 // iterations
    rows = [(name, 0, devices, SpanKind.RUN, i * 1000, i * 1000 + 1000, 0) for i, name in enumerate(names)]
    marks = (("driver", 0, (), SpanKind.MARK, i * length, (i + 1) * length, first + i) for i in range(iterations))
    return timeline_of(*rows, *marks, devices=devices)


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
    assert all(word.x < min(bar.x for bar in picture.bars) for word in picture.words if word.anchor == "end" and "…" in word.text), "names of lanes"
    assert "worker" in {word.text.removesuffix("[0]") for word in picture.words}, "what fits is whole"
    assert any(word.text.startswith("MMM") and "…" in word.text for word in picture.words)
    assert {word.text[-3:] for word in picture.words if word.anchor == "end" and "…" in word.text} == {"[0]" if lanes == "worker" else "a:0"}


@pytest.mark.parametrize("first", [0, 123_456_000])
def test_numbers_of_iterations_stay_in_the_picture(first: int) -> None:
    timeline = made(["w"] * 400, 400, first)
    picture = scene(timeline, timeline.accounting())
    numbers = [ends(word) for word in picture.words if word.text.isdigit() and word.y < 20]
    assert {word.anchor for word in picture.words if word.text.endswith(("ns", "µs")) and word.x < picture.width - 60} == {"middle"}, "at its tick"
    assert len(numbers) >= 8 and numbers[-1][1] <= picture.width
    assert all(before[1] < after[0] for before, after in itertools.pairwise(numbers))


def test_every_worker_of_a_device_is_in_its_lane_once() -> None:
    ranks = [("a", 0, ("cuda:0",)), ("b", 0, ("cuda:0", "cuda:1")), ("a", 1, ("cuda:0",))]
    spans = ((*rank, SpanKind.RUN, i * 1000, i * 1000 + 1000) for i, rank in enumerate(ranks))
    timeline = timeline_of(*spans, devices=["cuda:0", "cuda:1", "cuda:2"])
    rows = list(picture._device_rows(timeline, timeline.accounting(), ["a", "b"]))
    of = [{label: part[0].tolist() for label, part in row.parts.items() if isinstance(label, str) and label in ("a", "b")} for row in rows]
    assert of == [{"a": [0, 2000], "b": [1000]}, {"b": [1000]}, {}]


def of_gangs(*gangs: tuple[str, int, int]) -> Timeline:
    """Workers one after another, each on so many devices, all of whose ranks begin and end together or one by one (the last number: ns apart)."""
    first, spans = 0, []
    for i, (name, count, apart) in enumerate(gangs):
        for rank in range(count):
            spans.append((name, rank, (f"cuda:{first + rank}",), SpanKind.RUN, i * 10**6, (i + 1) * 10**6 - rank * apart, 0))
        first += count
    return timeline_of(*spans, devices=[f"cuda:{d}" for d in range(first)])


def test_lanes_that_look_the_same_are_drawn_once_and_everybody_is_seen() -> None:
    timeline = of_gangs(("rollout", 32, 0), ("training", 32, 0))
    drawn = scene(timeline, timeline.accounting())
    labels = [w.text for w in drawn.words if w.text.startswith("cuda")]
    assert labels == ["cuda:0 … 31 (32)", "cuda:32 … 63 (32)"] and {"rollout", "training"} <= {bar.fill for bar in drawn.bars}
    assert drawn.height <= 400 and not any("more" in w.text for w in drawn.words)


def test_of_too_many_different_lanes_each_worker_has_one_and_the_picture_is_no_higher() -> None:
    timeline = of_gangs(("rollout", 32, 9_000), ("reward", 1, 0), ("training", 31, 0))
    drawn = scene(timeline, timeline.accounting())
    assert {"rollout", "reward", "training"} <= {bar.fill for bar in drawn.bars} and drawn.height <= 400
    hidden = next(w for w in drawn.words if "more" in w.text)
    assert hidden.text == "… and 23 more devices" and hidden.y < drawn.height  # 9 of 32 are shown, and all the others


@given(st.lists(st.lists(st.sampled_from(["a" * 30, "b" * 30, "x", "y", "界" * 12, "\n"]), min_size=1, max_size=6).map("".join), min_size=1, unique=True))
def test_names_in_a_terminal_fit_are_told_apart_and_stay_whole_where_they_are_short(names: list[str]) -> None:
    shown = narrow(names)
    assert all(cell_len(each) <= 56 and each.isprintable() for each in shown) and len(set(shown)) == len(names)
    assert all(each == name for name, each in zip(names, shown, strict=True) if name.isprintable() and cell_len(name) <= 56)


@given(st.integers(30, 200), st.integers(60, 200))
def test_what_tells_two_long_names_apart_is_shown(before: int, after: int) -> None:
    one, other = narrow(["a" * before + middle + "b" * after for middle in ("x", "y")])
    assert "ax" in one.replace("…", "") and "ay" in other.replace("…", "") and one.replace("x", "y") == other and one[:9] == "a" * 9
