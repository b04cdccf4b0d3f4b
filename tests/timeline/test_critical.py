"""The critical path: a known pipeline, waits of every kind, and steps without a gap over random timelines."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.critical.critical_path import _Ends, path
from rlinf_lab.timeline.critical.gains import _Ended

K = SpanKind
ONE, TWO = ("cpu:0",), ("cpu:1",)


def timeline_of(*rows: tuple) -> Timeline:
    """Rows are (worker, devices, kind, start, end, channel, first item, items)."""
    recorder, timeline = Recorder(), Timeline(["cpu:0", "cpu:1"])
    for worker, devices, kind, start, end, *rest in rows:
        channel, flow, items = [*rest, *("", -1, 0)[len(rest) :]]
        number = recorder.channel(channel) if channel else -1
        recorder.add(recorder.track(worker, 0, devices), kind, recorder.name(f"of {worker}"), start, end, 0, items, 0, number, flow)
    timeline.extend(recorder.drain())
    return timeline


def steps(timeline: Timeline) -> list[tuple[str, str, int, int]]:
    frame = timeline.critical_path(by=None)
    return list(zip(frame["worker"], frame["kind"], frame["start_ns"], frame["end_ns"], strict=True))


def test_a_pipeline_of_two_goes_through_the_slow_one() -> None:
    """a makes items in 10 each; b takes 3 for each: b waits for a, so the path is a's, and b's last item."""
    rows = []
    for i in range(4):
        rows += [("a", ONE, K.RUN, 10 * i, 10 * i + 10), ("a", ONE, K.PUT, 10 * i + 10, 10 * i + 10, "c", i, 1)]
        rows += [("b", TWO, K.GET, 10 * i + (3 if i else 0), 10 * i + 10, "c", i, 1), ("b", TWO, K.RUN, 10 * i + 10, 10 * i + 13)]
    timeline = timeline_of(*rows)
    assert steps(timeline) == [*(("a", "run", 10 * i, 10 * i + 10) for i in range(4)), ("b", "run", 40, 43)]
    table = timeline.critical_path(by="worker")
    assert table["worker"].tolist() == ["a", "b"] and table["ns"].tolist() == [40, 3]
    assert table["share"].sum() == pytest.approx(1)


def test_a_full_channel_leads_to_its_consumer() -> None:
    timeline = timeline_of(
        ("a", ONE, K.RUN, 0, 2), ("a", ONE, K.PUT, 2, 50, "c", 1, 1), ("a", ONE, K.RUN, 50, 60),
        ("b", TWO, K.GET, 0, 0, "c", 0, 1), ("b", TWO, K.RUN, 0, 50), ("b", TWO, K.GET, 50, 50, "c", 1, 1),
    )  # fmt: skip
    assert steps(timeline) == [("b", "run", 0, 50), ("a", "run", 50, 60)]


def test_a_lock_leads_to_who_held_the_device_and_a_switch_is_a_step() -> None:
    timeline = timeline_of(
        ("a", ONE, K.RUN, 0, 30), ("a", ONE, K.OFFLOAD, 30, 34), ("b", ONE, K.LOCK, 5, 34), ("b", ONE, K.ONLOAD, 34, 40), ("b", ONE, K.RUN, 40, 55)
    )
    assert steps(timeline) == [("a", "run", 0, 30), ("a", "offload", 30, 34), ("b", "onload", 34, 40), ("b", "run", 40, 55)]


def test_items_that_were_there_are_not_waited_for_and_a_late_delivery_is_a_step() -> None:
    timeline = timeline_of(
        ("a", ONE, K.RUN, 0, 5), ("a", ONE, K.PUT, 5, 5, "c", 0, 1), ("b", TWO, K.RUN, 0, 20), ("b", TWO, K.GET, 20, 22, "c", 0, 1), ("b", TWO, K.RUN, 22, 30)
    )
    assert steps(timeline) == [("b", "run", 0, 20), ("b", "get", 20, 22), ("b", "run", 22, 30)]
    late = timeline_of(("a", ONE, K.RUN, 0, 10), ("a", ONE, K.PUT, 10, 10, "c", 0, 1), ("b", TWO, K.GET, 0, 13, "c", 0, 1), ("b", TWO, K.RUN, 13, 20))
    assert steps(late) == [("a", "run", 0, 10), ("b", "get", 10, 13), ("b", "run", 13, 20)]


def test_between_calls_the_one_who_worked_last_is_named() -> None:
    timeline = timeline_of(("a", ONE, K.RUN, 0, 10), ("b", TWO, K.RUN, 12, 20), ("b", TWO, K.LABEL, 12, 25))
    assert steps(timeline) == [("a", "run", 0, 10), ("b", "between calls", 10, 12), ("b", "run", 12, 20), ("b", "between calls", 20, 25)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=10), st.integers(-1, 10), st.integers(-1, 10), st.integers(-1, 2)
)  # fmt: skip
def test_who_ended_last_in_a_stretch_of_time(spans: list[tuple[int, int]], after: int, until: int, but: int) -> None:
    """Asked of every span; of a stretch the end counts and the beginning does not; of equal ends the later row. Both ways of asking agree."""
    end, track = np.array([e for e, _ in spans], np.int64), np.array([t for _, t in spans], np.int32)
    as_they_end, live = np.argsort(end, kind="stable"), _Ended()
    for row in as_they_end.tolist():
        live.add(row, int(end[row]), int(track[row]))
    fit = [(e, row) for row, (e, t) in enumerate(spans) if after < e <= until and t != but]
    expected = max(fit)[1] if fit else -1
    assert _Ends(np.arange(len(spans)), end, track).last(after, until, but) == expected
    assert live.last(until, after, but) == expected


def test_a_put_that_ends_as_a_get_begins_is_not_what_it_waited_for() -> None:
    def ended_by(put_end: int) -> list[tuple[str, str, int, int]]:
        return steps(timeline_of(
            ("a", ONE, K.RUN, 0, put_end), ("a", ONE, K.PUT, put_end, put_end, "c", 0, 1),
            ("b", TWO, K.RUN, 0, 10), ("b", TWO, K.GET, 10, 14, "c", 0, 1), ("b", TWO, K.RUN, 14, 20),
        ))  # fmt: skip

    assert ended_by(10) == [("b", "run", 0, 10), ("b", "get", 10, 14), ("b", "run", 14, 20)], "it was there"
    assert ended_by(11) == [("a", "run", 0, 11), ("b", "get", 11, 14), ("b", "run", 14, 20)]


def test_an_unknown_column_suggests_and_an_empty_timeline_has_no_path() -> None:
    with pytest.raises(UnknownNameError, match="worker"):
        timeline_of().critical_path(by="workr")
    assert len(timeline_of().critical_path()) == 0


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
