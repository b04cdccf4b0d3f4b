"""The critical path: a known pipeline, waits of every kind, and steps without a gap over random timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace as Row

import built
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.critical.critical_path import path

K = SpanKind
ONE, TWO = ("cpu:0",), ("cpu:1",)


def timeline_of(*rows: tuple) -> Timeline:
    """Rows are (worker, devices, kind, start, end, channel, first item, items)."""
    made = ((worker, 0, places, kind, start, end, 0, *rest) for worker, places, kind, start, end, *rest in rows)
    return built.timeline_of(*made, devices=(*ONE, *TWO))


def steps(timeline: Timeline) -> list[tuple[str, str, int, int]]:
    frame = timeline.critical_path(by=None)
    return list(zip(frame["worker"], frame["kind"], frame["start_ns"], frame["end_ns"], strict=True))


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
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_the_way_back_over_each_kind_of_wait(name: str) -> None:
    rows, expected = WAITS[name]
    assert steps(timeline_of(*rows)) == expected


def walked(timeline: Timeline) -> list[tuple[int, ...]]:
    """The same path, with every span asked at every step."""
    names = timeline.spans.dtype.names
    spans = [Row(row=i, **dict(zip(names, row, strict=True))) for i, row in enumerate(timeline.spans.tolist())]
    counted = [s for s in spans if s.kind not in (K.LABEL, K.MARK)]
    lasting = [s for s in counted if s.end > s.start]
    work = [s for s in lasting if s.kind in (K.RUN, K.ONLOAD, K.OFFLOAD, K.TRANSFER, K.SETUP)]

    def last(among: Iterable[Row], until: int, after: int, other_than: int) -> Row | None:
        return max((s for s in among if after < s.end <= until and s.track != other_than), key=lambda s: (s.end, s.row), default=None)

    def released_by(s: Row, time: int) -> Row | None:
        its = [o for o in spans if o.channel == s.channel >= 0]
        if s.kind == K.GET:
            puts = [p for p in its if p.kind == K.PUT and p.iteration == s.iteration and p.items * s.items and p.flow < s.flow + s.items and s.flow < p.flow + p.items]
            put = max((p for p in puts if min(p.flow, s.flow) >= 0 and p.start <= s.end), key=lambda p: (p.end, p.flow, p.row), default=None)
            return put if put and put.end > s.start else None
        if s.kind == K.LOCK:
            mine = [d for d in timeline.devices if d in timeline.tracks[s.track].devices]
            held = [last((w for w in work if d in timeline.tracks[w.track].devices), time, s.start, s.track) for d in mine]
            return max(filter(None, held), key=lambda w: w.end, default=None)
        return last((g for g in its if g.kind == K.GET) if s.kind == K.PUT else work, time, s.start, s.track)

    begin, time = timeline.start_ns, timeline.end_ns
    track = max(counted, key=lambda s: s.end, default=spans[0]).track
    here, found = {track}, []
    while time > begin:
        s = max((s for s in lasting if s.track == track and s.start < time), key=lambda s: (s.end, s.start, s.row), default=None)
        if s and s.end >= time:
            other = released_by(s, time) if s.kind in (K.GET, K.PUT, K.LOCK, K.WAIT) else None
            other = None if other and other.track in here else other
            kind, row, since = s.kind, s.row, min(time, max(s.start, other.end)) if other else s.start
        else:
            until = s.end if s else begin
            other = last(work, time, until, -1)
            kind, row, since = len(K), -1, other.end if other else until
        if since < time:
            found, time, here = [(track, kind, row, since, time), *found], since, set()
        track = other.track if other else track
        here.add(track)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_the_steps_follow_each_other_from_start_to_end(seed: int, count: int) -> None:
    timeline = built.timeline_of(*built.random_rows(seed, count), devices=(*ONE, *TWO))
    found = path(timeline)
    assert [tuple(step) for step in found] == walked(timeline)
    frame, rows, names, tracks = timeline.critical_path(None), timeline.spans, timeline.names, timeline.tracks
    of = [(names[rows["name"][s.row]], rows["iteration"][s.row]) if s.row >= 0 else ("", -1) for s in found]
    assert [*zip(frame["name"], frame["iteration"], strict=True)] == of
    assert [*zip(frame["worker"], frame["rank"], strict=True)] == [(tracks[s.track].worker, tracks[s.track].rank) for s in found]
    table, by_worker = timeline.critical_path(by="worker"), Counter[str]()
    for worker, ns in zip(frame["worker"], frame["end_ns"] - frame["start_ns"], strict=True):
        by_worker[worker] += ns
    assert dict(zip(table["worker"], table["ns"], strict=True)) == by_worker and table["ns"].is_monotonic_decreasing
    assert table["share"].sum() == pytest.approx(float(bool(by_worker))) and len(timeline_of().critical_path()) == 0
    with pytest.raises(UnknownNameError, match="worker"):
        timeline.critical_path(by="workr")
