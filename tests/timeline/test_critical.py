"""The critical path: a known pipeline, waits of every kind, and steps without a gap over random timelines."""

from __future__ import annotations

from collections import Counter
from random import Random

import built
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.critical.critical_path import path
from rlinf_lab.timeline.critical.flows import Ended

K = SpanKind
ONE, TWO = ("cpu:0",), ("cpu:1",)


def timeline_of(*rows: tuple) -> Timeline:
    """Rows are (worker, devices, kind, start, end, channel, first item, items)."""
    made = ((worker, 0, places, kind, start, end, 0, *rest) for worker, places, kind, start, end, *rest in rows)
    return built.timeline_of(*made, devices=(*ONE, *TWO))


def steps(timeline: Timeline) -> list[tuple[str, str, int, int]]:
    frame = timeline.critical_path(by=None)
    return list(zip(frame["worker"], frame["kind"], frame["start_ns"], frame["end_ns"], strict=True))


def item(put_end: int, got: tuple[int, int], end: int, before: int = 0) -> list[tuple]:
    """a makes an item until ``put_end``; b works until ``before``, gets it and works on until ``end``."""
    made = [("a", ONE, K.RUN, 0, put_end), ("a", ONE, K.PUT, put_end, put_end, "c", 0, 1), ("b", TWO, K.GET, *got, "c", 0, 1), ("b", TWO, K.RUN, got[1], end)]
    return [*made, ("b", TWO, K.RUN, 0, before)] if before else made


WAITS = {
    "a full channel leads to its consumer": (
        [("a", ONE, K.RUN, 0, 2), ("a", ONE, K.PUT, 2, 50, "c", 1, 1), ("a", ONE, K.RUN, 50, 60), ("b", TWO, K.GET, 0, 0, "c", 0, 1), ("b", TWO, K.RUN, 0, 50),
         ("b", TWO, K.GET, 50, 50, "c", 1, 1)],
        [("b", "run", 0, 50), ("a", "run", 50, 60)],
    ),
    "a lock leads to who held the device, and a switch is a step": (
        [("a", ONE, K.RUN, 0, 30), ("a", ONE, K.OFFLOAD, 30, 34), ("b", ONE, K.LOCK, 5, 34), ("b", ONE, K.ONLOAD, 34, 40), ("b", ONE, K.RUN, 40, 55)],
        [("a", "run", 0, 30), ("a", "offload", 30, 34), ("b", "onload", 34, 40), ("b", "run", 40, 55)],
    ),
    "items that were there are not waited for": (item(5, (20, 22), 30, 20), [("b", "run", 0, 20), ("b", "get", 20, 22), ("b", "run", 22, 30)]),
    "nor what was put as the get began": (item(10, (10, 14), 20, 10), [("b", "run", 0, 10), ("b", "get", 10, 14), ("b", "run", 14, 20)]),
    "but what came in it": (item(11, (10, 14), 20, 10), [("a", "run", 0, 11), ("b", "get", 11, 14), ("b", "run", 14, 20)]),
    "a late delivery is a step": (item(10, (0, 13), 20), [("a", "run", 0, 10), ("b", "get", 10, 13), ("b", "run", 13, 20)]),
    "between calls the one who worked last is named": (
        [("a", ONE, K.RUN, 0, 10), ("b", TWO, K.RUN, 12, 20), ("b", TWO, K.LABEL, 12, 25)],
        [("a", "run", 0, 10), ("b", "between calls", 10, 12), ("b", "run", 12, 20), ("b", "between calls", 20, 25)],
    ),
    # a makes items in 10 each; b takes 3 for each and waits for a
    "a pipeline goes through the slow one": (
        [row for i in range(4) for row in (
            ("a", ONE, K.RUN, 10 * i, 10 * i + 10), ("a", ONE, K.PUT, 10 * i + 10, 10 * i + 10, "c", i, 1),
            ("b", TWO, K.GET, 10 * i + 3 * (i > 0), 10 * i + 10, "c", i, 1), ("b", TWO, K.RUN, 10 * i + 10, 10 * i + 13),
        )],
        [*(("a", "run", 10 * i, 10 * i + 10) for i in range(4)), ("b", "run", 40, 43)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_the_way_back_over_each_kind_of_wait(name: str) -> None:
    rows, expected = WAITS[name]
    assert steps(timeline_of(*rows)) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=10), st.integers(-1, 10), st.integers(-1, 10), st.integers(-1, 2)
)  # fmt: skip
def test_who_ended_last_in_a_stretch_of_time(spans: list[tuple[int, int]], after: int, until: int, but: int) -> None:
    """Asked of every span; of a stretch the end counts and the beginning does not; of equal ends the later row."""
    live = Ended()
    for row in sorted(range(len(spans)), key=lambda row: spans[row][0]):
        live.add(row, *spans[row])
    fit = [(e, row) for row, (e, t) in enumerate(spans) if after < e <= until and t != but]
    assert live.last(until, after, but) == (max(fit)[1] if fit else -1)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_the_steps_follow_each_other_from_start_to_end(seed: int, count: int) -> None:
    rng, rows = Random(seed), []
    for _ in range(count):
        start = rng.randrange(100)
        kind = rng.choice(list(K))
        flow, items = (rng.randrange(6), rng.randint(1, 3)) if kind in (K.GET, K.PUT) else (-1, 0)
        places, end = rng.choice([ONE, TWO, (*ONE, *TWO), ()]), start + rng.choice([0, 1, 7, 30])
        rows.append((rng.choice("abcd"), places, kind, start, end, rng.choice("xy"), flow, items))
    timeline = timeline_of(*rows)
    found = path(timeline)
    edges = [timeline.start_ns, *(s.end_ns for s in found)]
    assert [s.start_ns for s in found] == edges[:-1] and edges[-1] == timeline.end_ns
    assert all(s.end_ns > s.start_ns for s in found)
    for step in found:
        if step.row >= 0:
            row = timeline.spans[step.row]
            assert row["start"] <= step.start_ns and step.end_ns <= row["end"] and row["track"] == step.track
    table, by_worker = timeline.critical_path(by="worker"), Counter[str]()
    for worker, _, begins, ends in steps(timeline):
        by_worker[worker] += ends - begins
    assert dict(zip(table["worker"], table["ns"], strict=True)) == by_worker and table["ns"].is_monotonic_decreasing
    assert table["share"].sum() == pytest.approx(float(bool(by_worker))) and len(timeline_of().critical_path()) == 0
    with pytest.raises(UnknownNameError, match="worker"):
        timeline.critical_path(by="workr")
