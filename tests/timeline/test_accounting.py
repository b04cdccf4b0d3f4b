"""Busy plus bubbles equals elapsed: against a reference that asks every single nanosecond. Names quote the rule."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from built import recorder_of, timeline_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import TimelineError, UnknownNameError
from rlinf_lab.timeline import Cause, Recorder, Span, SpanKind, Timeline
from rlinf_lab.timeline.account import accounting
from rlinf_lab.timeline.account.accounting import BUBBLE_DTYPE, CAUSES, Accounting, account, shares

K = SpanKind
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


ONE, TWO = ("cpu:0",), ("cpu:1",)
ITERATION = ("driver", 0, (), K.MARK, 0, 100, 0)


def test_a_bubble_says_who_waited_and_for_what():
    timeline = timeline_of(
        ITERATION,
        ("sim", 0, ONE, K.RUN, 0, 10, 0),
        ("sim", 0, ONE, K.GET, 10, 30, 0, "act"),
        ("sim", 0, ONE, K.RUN, 30, 40, 0),
        ("sim", 0, ONE, K.PUT, 40, 50, 0, "obs"),
        ("sim", 0, ONE, K.LOCK, 50, 60, 0),
        ("sim", 0, ONE, K.ONLOAD, 60, 65, 0),
        ("sim", 0, ONE, K.RUN, 65, 100, 0),
        ("learner", 3, TWO, K.SETUP, 0, 30),
        ("learner", 3, TWO, K.ONLOAD, 10, 40, 0),
        ("learner", 3, TWO, K.WAIT, 40, 100, 0),
        devices=DEVICES[:2],
    )
    table = timeline.bubbles(by=["cause", "worker", "rank", "waiting_for"])
    assert {tuple(row[:5]) for row in table.itertuples(index=False)} == {
        ("starved", "sim", 0, "channel act", 20),
        ("blocked", "sim", 0, "room in channel obs", 10),
        ("lock", "sim", 0, "the device", 10),
        ("switch", "sim", 0, "onload", 5),
        ("setup", "learner", 3, "setup", 30),
        ("switch", "learner", 3, "onload", 10),
        ("fill", "learner", 3, "the value of a call", 60),
    }
    assert timeline.bubbles(by="cause").share.sum() + timeline.utilisation().mean() == pytest.approx(1)
    assert timeline.bubbles(by="device").ns.tolist() == [100, 45]
    table = timeline_of(ITERATION, ("a", 2, ONE, K.RUN, 40, 100, 0), devices=DEVICES[:2]).bubbles(by=["device", "cause", "worker", "rank", "waiting_for"])
    assert [tuple(row[:6]) for row in table.itertuples(index=False)] == [
        ("cpu:1", "off", "(nobody)", -1, "(no call)", 100), ("cpu:0", "fill", "(nobody)", -1, "(no call)", 40),
    ]  # fmt: skip
    timeline = timeline_of(ITERATION, ("a", 0, ONE, K.RUN, 0, 100), ("a", 1, TWO, K.RUN, 50, 100), devices=DEVICES[:2])
    assert repr(timeline) == "Timeline: 2 devices, 3 spans, 0.1 µs, busy 75.0 %, bubbles: fill 25.0 %"
    with pytest.raises(UnknownNameError, match="Did you mean 'device'"):
        timeline.bubbles(by="devices")


# --- every single nanosecond ---------------------------------------------------------------------------------
_places = st.lists(st.sampled_from(DEVICES), max_size=2, unique=True).map(tuple)
_span = st.tuples(
    st.sampled_from(["a", "b"]), st.integers(0, 2), _places, st.sampled_from([k for k in K if k != K.MARK]),
    st.integers(0, 40), st.integers(0, 12), st.integers(-1, 3), st.sampled_from(["", "x", "y"]),
)  # fmt: skip
_mark = st.tuples(st.integers(0, 40), st.integers(0, 25), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(st.lists(_span, max_size=14), st.lists(_mark, max_size=4))
def test_one_cause_per_nanosecond_and_the_sum_is_exact(spans, marks):
    rows = [(w, r, p, k, s, s + n, i, c) for w, r, p, k, s, n, i, c in spans]
    rows += [("driver", 0, (), K.MARK, s, s + n, i) for s, n, i in marks]
    timeline = timeline_of(*rows, devices=DEVICES)
    accounting = account(timeline)
    assert accounting.sum_error_ns() == timeline.bubble_sum_error_ns() == 0
    assert (accounting.bubbles["end"] > accounting.bubbles["start"]).all()
    assert_whole(accounting)
    (busy, by_cause), table = shares(accounting), timeline.bubbles()
    assert by_cause == [(cause, pytest.approx(share)) for cause, share in zip(table["cause"], table["share"], strict=True)]
    assert busy + sum(share for _, share in by_cause) == pytest.approx(1.0 if timeline.elapsed_ns else 0.0)
    counted: Counter = Counter()
    for row in accounting.bubbles:
        for ns in range(row["start"], row["end"]):
            counted[(timeline.devices[row["device"]], ns, str(CAUSES[row["cause"]]), int(row["iteration"]))] += 1
    assert counted == Counter(reference(timeline.rows(), DEVICES))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(_span, max_size=5), max_size=6), st.lists(_mark, max_size=5), st.randoms(use_true_random=False))
def test_what_is_computed_as_spans_arrive_equals_what_is_computed_at_once(portions, marks, random):
    recorder, timeline, before = Recorder(), Timeline(DEVICES[:2]), []
    for portion in portions:
        rows = [(w, r, p, k, s, s + n, i) for w, r, p, k, s, n, i, _ in portion]
        rows += [("driver", 0, (), K.MARK, s, s + n, i) for s, n, i in marks if random.random() < 1 / len(portions)]
        timeline.extend(recorder_of(rows, recorder).drain())
        _assert_same(timeline.accounting(), now := account(timeline.snapshot()))
        before.append((timeline.snapshot(), now))
    for snapshot, then in before:
        _assert_same(snapshot.accounting(), then)


@pytest.mark.parametrize("overlap", [0, 2])
def test_of_a_run_only_what_is_new_is_looked_at_though_marks_begin_before_their_spans_and_come_after_them(overlap, monkeypatch):
    """As a live view asks: in the middle of an iteration, again and again. ``overlap``: so many iterations are open at a time beside the latest."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, name, mark = recorder.track("a", 0, ONE), recorder.name("call"), recorder.name("iteration")
    seen: list[int] = []
    whole = accounting.Stretch.__init__
    monkeypatch.setattr(accounting.Stretch, "__init__", lambda self, spans, *rest: (seen.append(len(spans)), whole(self, spans, *rest))[1])
    each, late = 40, 25  # spans of an iteration, and those of the next one that have come when it is looked
    for i in range(30):
        begin = 1000 * i
        for n in range(each):
            if n == late and i % 3 == 2:
                timeline.extend(recorder.drain())
                seen.clear()
                timeline.accounting()
                assert sum(seen) <= (3 + 2 + overlap) * each, f"{seen} spans for what came of 3 iterations"
            recorder.add(track, K.RUN, name, begin + 5 + 20 * n, begin + 15 + 20 * n, i)
        if i >= overlap:
            recorder.add(0, K.MARK, mark, begin - 1000 * overlap, begin + 900, i - overlap)
    _assert_same(timeline.accounting(), account(timeline.snapshot()))


def _assert_same(ours: Accounting, theirs: Accounting) -> None:
    assert ours.busy_ns.tolist() == theirs.busy_ns.tolist()
    assert (ours.devices, ours.start_ns, ours.end_ns) == (theirs.devices, theirs.start_ns, theirs.end_ns)
    assert ours.bubbles.tolist() == theirs.bubbles.tolist()
    assert ours.sum_error_ns() == 0
    assert_whole(ours)


def assert_whole(accounting: Accounting) -> None:
    """By device and start, and no bubble ends where one just like it begins."""
    before, after = accounting.bubbles[:-1], accounting.bubbles[1:]
    order = (before["device"] < after["device"]) | ((before["device"] == after["device"]) & (before["end"] <= after["start"]))
    alike = np.all([before[field] == after[field] for field in BUBBLE_DTYPE.names or () if field not in ("start", "end")], axis=0)
    assert order.all() and not (alike & (before["end"] == after["start"])).any()


def reference(rows: list[Span], devices: list[str]) -> list[tuple[str, int, str, int]]:
    """(device, ns, cause, iteration) of every idle nanosecond, straight from the sentences of the rule."""
    if not rows:
        return []
    first, last = min(s.start_ns for s in rows), max(s.end_ns for s in rows)
    owner = {ns: _owner(rows, ns, first, last) for ns in range(first, last)}
    result = []
    for device in devices:
        here = [s for s in rows if device in s.track.devices and s.kind not in (K.LABEL, K.MARK)]
        workers = {s.track.worker for s in rows if device in s.track.devices}
        for ns in range(first, last):
            covering = {s.kind for s in here if s.start_ns <= ns < s.end_ns}
            if K.RUN not in covering:
                window = [t for t in owner if owner[t] == owner[ns]] if owner[ns] is not None else []
                iteration = -1 if owner[ns] is None else owner[ns][1]
                cause = _cause(ns, covering, window, rows, here, workers)
                result.append((device, ns, str(cause), iteration))
    return result


def _cause(ns: int, covering: set, window: list[int], rows: list[Span], here: list[Span], workers: set[str]) -> Cause:
    if not workers:
        return Cause.OFF
    if K.SETUP in covering:
        return Cause.SETUP
    if covering & {K.ONLOAD, K.OFFLOAD}:
        return Cause.SWITCH
    if K.PUT in covering:
        return Cause.BLOCKED
    if K.LOCK in covering:
        return Cause.LOCK
    if not window:
        return Cause.OFF

    def ran(spans: list[Span]) -> list[int]:
        return [t for t in window if any(s.kind == K.RUN and s.start_ns <= t < s.end_ns for s in spans)]

    mine, group = ran(here), ran([s for s in rows if s.track.worker in workers])
    if not mine or ns < mine[0]:
        return Cause.FILL
    if ns < mine[-1]:
        return Cause.STARVED
    return Cause.TAIL if ns <= group[-1] else Cause.DRAIN


def _owner(rows: list[Span], ns: int, first: int, last: int) -> tuple[int, int] | None:
    """(start, iteration) of the iteration that owns this nanosecond."""
    windows = [(s.start_ns, s.iteration, s.end_ns) for s in rows if s.kind == K.MARK]
    marked = {i for _, i, _ in windows}
    for i in {s.iteration for s in rows if s.iteration >= 0} - marked:
        own = [s for s in rows if s.iteration == i]
        windows.append((min(s.start_ns for s in own), i, max(s.end_ns for s in own)))
    if not windows:
        windows = [(first, -1, last)]
    begun = [w for w in windows if w[0] <= ns]
    if not any(end > ns for _, _, end in begun):
        return None
    return max(begun)[:2]


def test_spans_that_lie_further_apart_than_any_clock_have_no_device_time_and_say_so() -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, name = recorder.track("w", 0, ("cpu:0",)), recorder.name("x")
    recorder.add(track, SpanKind.RUN, name, -(1 << 62), 1 - (1 << 62))
    timeline.extend(recorder.drain())
    assert timeline.busy()["ns"].sum() == 1, "what was known before is not told again"
    recorder.add(track, SpanKind.RUN, name, 1 << 62, (1 << 62) + 9)
    timeline.extend(recorder.drain())
    assert "no device time" in repr(timeline) and len(timeline.to_pandas()) == 2
    for ask in (timeline.bubbles, timeline.busy, timeline.utilisation, timeline.bubble_sum_error_ns):
        with pytest.raises(TimelineError, match="292 years apart.*Next: timeline.to_pandas"):
            ask()
