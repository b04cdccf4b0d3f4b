"""The recorder: nothing lost, nothing twice, bytes equal to what was added."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SPAN_STRUCT
from rlinf_lab.timeline.record.store import Growing


def test_no_span_is_lost_or_doubled_while_threads_add_or_leave_numbers_and_another_drains():
    recorder, timeline, each = Recorder(), Timeline(), 20_000

    def leave(rank: int) -> None:
        """As a runtime writes its rows."""
        track, name = recorder.track("worker", rank), recorder.name("call 0")
        for i in range(each):
            recorder.loose.extend((i, i + 1, 0, -1, track, name, -1, 0, 0, SpanKind.RUN))
            if len(recorder.loose) >= recorder.most_loose:
                recorder.pack_up()

    threads = [threading.Thread(target=leave, args=(rank,)) for rank in (0, 1)]
    threads += [threading.Thread(target=_add_many, args=(recorder, rank, each)) for rank in (2, 3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (rows := recorder.take_rows(1 << 20)) is None:
            timeline.extend(pickle.loads(pickle.dumps(recorder.drain())))
        elif rows[1]:
            timeline.extend_by_rows(recorder.source, *rows)
    timeline.extend(recorder.drain())
    for track in range(4):
        assert timeline.spans[timeline.spans["track"] == track]["start"].tolist() == list(range(each))
    assert len(timeline) == 4 * each and recorder.dropped == timeline.dropped == 0


def _add_many(recorder: Recorder, rank: int, count: int) -> None:
    track = recorder.track("worker", rank)
    for i in range(count):
        recorder.add(track, 0, recorder.name(f"call {i % 50}"), i, i + 1)


def test_each_field_of_a_row_is_read_where_it_was_written_and_as_wide():
    row = (-(1 << 62) + 3, (1 << 62) - 5, (1 << 62) - 11, -(1 << 62) - 9, (1 << 31) - 7, -(1 << 31), 1 - (1 << 31), -15, (1 << 30) + 1, 255)
    assert np.frombuffer(SPAN_STRUCT.pack(*row), SPAN_DTYPE)[0].tolist() == row


_field = st.one_of(st.integers(-1, 9), st.sampled_from([(1 << 27) - 1, (1 << 31) - 1]))
_long = st.one_of(st.integers(0, 99), st.sampled_from([1 << 32, 1 << 40]))


_row = st.tuples(_long, _long, _long, _long, _field, _field, _field, _field, _field, st.sampled_from(SpanKind))


@settings(max_examples=200, deadline=None)
@given(st.lists(_row, max_size=400), st.integers(0, 400))
def test_rows_hold_what_was_added_or_left_as_numbers(rows, ordinary):
    """Also between many in which all numbers are small."""
    added, left, few = Recorder(), Recorder(), [(7, 8, 0, -1, 0, 0, 1, 3, 5, SpanKind.GET)] * ordinary
    every = [*few, *((start, start + length, *rest) for start, length, *rest in rows), *few]
    for start, end, nbytes, flow, track, name, channel, iteration, items, kind in every:
        added.add(track, kind, name, start, end, iteration, items, nbytes, channel, flow)
        left.loose.extend((start, end, nbytes, flow, track, name, channel, iteration, items, kind))
    assert len(left) == len(added) == len(every)
    assert left.drain().spans.tolist() == added.drain().spans.tolist() == every
    assert not left.loose and len(left) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["span", "mark", "sample", "name", "track", "other"]), st.sampled_from("-srbwm")), max_size=25))
def test_rows_that_wait_in_a_timeline_are_there_for_whoever_reads(steps):
    """A run's own spans are filled in when somebody asks: the same as at once, whatever comes and is asked in between, and in the same order."""
    live, usual, recorder, other, names = Timeline(["cpu:0"]), Timeline(["cpu:0"]), Recorder(), Recorder("far"), ["a", "iteration"]
    track, numbers, elsewhere = recorder.track("w", 0, ("cpu:0",)), [recorder.name(n) for n in names], other.track("v", 0)
    waited, now = 0, 0
    for what, asked in steps:
        now += 10
        if what == "other":
            other.add(elsewhere, SpanKind.RUN, other.name("b"), now, now + 3)
        elif what == "sample":
            recorder.counter("load", now, 0.5)
        elif what == "name":
            numbers.append(recorder.name(f"n{now}"))
        elif what == "track":
            track = recorder.track("w", now)
        kind, name = (SpanKind.MARK, numbers[1]) if what == "mark" else (SpanKind.RUN, numbers[-1])
        recorder.add(track, kind, name, now, now + 7, now)
        for source in (recorder, other):
            batch = source.drain()
            usual.extend(batch)
            live.extend(batch, checked=True)
        rows = live.waiting(waited)
        if rows is not None:
            assert np.frombuffer(rows, SPAN_DTYPE).tolist() == usual.spans[waited:].tolist()
        if asked == "s":
            waited = len(live.spans)
        elif asked == "r":
            assert (live.start_ns, live.end_ns, live.elapsed_ns) == (usual.start_ns, usual.end_ns, usual.elapsed_ns)
        elif asked == "b":
            assert live.snapshot().bubble_sum_error_ns() == 0
        elif asked == "m":
            assert live.marks().tolist() == usual.marks().tolist()
        elif asked == "w":
            assert len(live) == len(usual)
    assert live.spans.tolist() == usual.spans.tolist() and live.marks().tolist() == usual.marks().tolist()
    assert live.counter_samples.tolist() == usual.counter_samples.tolist() and (live.tracks, live.names) == (usual.tracks, usual.names)


def _in_a_fork(told: Callable[[], bytes]) -> bytes:
    """What a forked child tells; it ends as an ordinary process does, its clean-up included (but for what is not of the toolkit: folders of other tests)."""
    gc.collect()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, told())
            gc.collect()
            for end in list(weakref.finalize._registry):
                end.atexit = end.atexit and type((end.peek() or (None,))[0]).__module__.startswith("rlinf_lab.")
            weakref.finalize._exitfunc()  # the clean-up of a process that ends by itself
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_forked_children_record_nothing_and_leave_what_their_parent_has_to_tell():
    recorder = Recorder(limit=1000)
    _add_many(recorder, 0, 500)
    waiting, timeline = len(recorder), Timeline()

    def child() -> bytes:
        _add_many(recorder, 1, 3)
        recorder.add(0, SpanKind.RUN, 0, 0, 1 << 40, items=1 << 20)
        recorder.counter("load", 1, 2.0)
        batch = recorder.drain()
        assert not len(batch) and not len(batch.counters) and (recorder.dropped, recorder.dropped_samples) == (4, 1)
        own = Recorder()
        _add_many(own, 0, 2)
        return pickle.dumps(own.drain())

    with recorder._lock, recorder._draining:  # another thread of the parent may be in the middle of it
        theirs = pickle.loads(_in_a_fork(child))
    for batch in [recorder.drain(), theirs]:
        timeline.extend(batch)
    assert len(theirs) == 2 and len(timeline) == waiting + 2 and (recorder.dropped, recorder.dropped_samples) == (0, 0)


def test_a_forked_child_does_not_write_into_its_parents_timeline():
    rows = Growing(np.dtype("<i8"), memory_bytes=64)
    rows.append(np.arange(2000))
    assert rows.in_file

    def child() -> bytes:
        rows.append(np.full(10, -1))
        return rows.view[-11:].tobytes()

    theirs = np.frombuffer(_in_a_fork(child), "<i8")
    assert theirs.tolist() == [1999] + [-1] * 10
    rows.reserve(10)
    rows.commit(10)
    assert -1 not in rows.view


def test_samples_that_nobody_fetches_are_no_spans_that_are_missing():
    recorder, timeline = Recorder(limit=10), Timeline()
    for i in range(13):
        recorder.counter("load", i, 1.0)
    timeline.extend(pickle.loads(pickle.dumps(recorder.drain())))
    assert (recorder.dropped, timeline.dropped, timeline.dropped_samples, len(timeline.counters())) == (0, 0, 3, 10)
    assert "3 counter samples DROPPED" in repr(recorder) and "3 counter samples DROPPED" in repr(timeline) and "spans DROPPED" not in repr(timeline)


@pytest.mark.parametrize(
    ("what", "given_", "says"),
    [
        *(("track", g, r"track\(.*Next: recorder\.track\('actor'") for g in (
            ("a", 0, "cpu:0"), ("a", 0, (1,)), (5, 0), ("a", "0"), ("a", 0.5), ("a", 1 << 63), ("a", -(1 << 64)))),
        *(("counter", g, r"(counter|name)\(.*Next: recorder\.") for g in (
            (None, 1, 1.0), ("reward", 1.5, 1.0), ("reward", 1 << 70, 1.0), ("reward", 1, "high"), (["a"], 1, 1.0))),
        *(("add", (0, kind, 0, 1, 2), rf"add\(kind={kind}\).*Next: SpanKind.RUN") for kind in (99, -99, len(SpanKind))),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_where_it_is_said(what: str, given_: tuple, says: str):
    recorder = Recorder()
    assert not recorder.drain() and recorder.drain().seq == -1, "nothing takes no number"
    track, name = recorder.track("w", 0), recorder.name("step")
    with pytest.raises(TimelineError, match=says):
        getattr(recorder, what)(*given_)
    recorder.add(track, SpanKind.RUN, name, 1, 2)
    recorder.counter("reward", 1, 2)
    batch = recorder.drain()
    assert len(batch) == len(batch.counters) == 1


_step = st.tuples(st.integers(0, 1), st.sampled_from(["add", "add", "name", "track", "sample", "take", "take", "busy", "drain"]), st.integers(1, 5))


@settings(max_examples=150, deadline=None)
@given(st.lists(_step, max_size=40))
def test_rows_are_taken_where_nothing_else_is_to_be_told(steps):
    """Of two sources, so that numbers are translated: as if all had been drained, and been looked at. Not while somebody drains, nor of more than so many;
    samples wait on."""
    timeline, usual, ways = Timeline(), Timeline(), [(Recorder(host), Recorder(host)) for host in "ab"]
    is_new, waiting, counters = [True, True], [0, 0], [set[int](), set[int]()]
    for now, (who, what, n) in enumerate([(1, "track", 0), (0, "track", 0), *steps, (0, "drain", 0), (1, "drain", 0)]):
        for recorder in ways[who]:
            if what == "track":
                recorder.track(f"w{now}", who), recorder.name("call")
            elif what == "name":
                recorder.name(f"n{now}")
            elif what == "sample":
                recorder.counter(f"c{n}", now, 0.5)
            elif what == "add":
                for i in range(n):
                    recorder.add(0, (now + i) % 11, 0, now, now + (i << 34 * (n > 4)), now % 7 - 1, i, n << 40 * (n > 3), now % 2 - 1, i - 1)
        is_new[who] |= what in ("track", "name") or (what == "sample" and n not in counters[who])
        waiting[who] += n * (what == "add")
        counters[who] |= {n} if what == "sample" else set()
        one, other = ways[who]
        with one._draining if what == "busy" else nullcontext():
            found = one.take_rows(n) if what in ("take", "busy") else None
        assert (found is not None) == (what == "take" and not is_new[who] and waiting[who] <= n)
        if found is not None and found[1]:
            timeline.extend_by_rows(one.source, *found)
            timeline.extend_by_rows(one.source, *found)  # comes again
        if what == "drain" and (batch := one.drain()):
            timeline.extend(batch, checked=True)
        if what == "drain" or found is not None:
            usual.extend(other.drain())
            is_new[who], waiting[who] = False, 0
    assert timeline.spans.tolist() == usual.spans.tolist() and (timeline.tracks, timeline.names) == (usual.tracks, usual.names)
    assert sorted(timeline.counter_samples.tolist()) == sorted(usual.counter_samples.tolist())
    with pytest.raises(TimelineError, match="Batch 700 of"):
        timeline.extend_by_rows(ways[0][0].source, 700, bytes(56))


@pytest.mark.parametrize("options", [{"limit": -5}, {"limit": 0}, {"limit": 2.5}, {"limit": True}, {"host": 5}])
def test_recorders_that_make_no_sense_are_refused(options: dict):
    with pytest.raises(TimelineError, match=r"Recorder\(.*Next: "):
        Recorder(**options)
