"""Rows that a runtime leaves as numbers: none is lost, doubled or late, whoever packs them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlinf_lab.runtime.host.state.spans import SpanWriter
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record import pending
from rlinf_lab.timeline.record.batch import SPAN_DTYPE
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind


def _leave(recorder: Recorder, start: int) -> None:
    recorder.loose.extend((start, start + 1, 0, -1, 0, 0, -1, 0, 0, SpanKind.RUN))
    if len(recorder.loose) >= recorder.most_loose:
        recorder.pack_up()


def test_a_mark_is_never_taken_without_what_was_written_before_it(monkeypatch):
    """Whoever ends an iteration adds its mark while somebody drains: what ran in it comes with the mark, or before it."""
    recorder = Recorder()
    _leave(recorder, 1)
    recorder.add(0, SpanKind.MARK, 0, 0, 9)
    _leave(recorder, 2)
    pack = pending.packed

    def packed_while_others_write(numbers):
        _leave(recorder, 3)
        recorder.add(0, SpanKind.MARK, 0, 0, 99)
        return pack(numbers)

    monkeypatch.setattr(pending, "packed", packed_while_others_write)
    first = recorder.drain().spans[["kind", "start", "end"]].tolist()
    monkeypatch.undo()
    assert sorted(first) == [(SpanKind.RUN, 1, 2), (SpanKind.RUN, 2, 3), (SpanKind.MARK, 0, 9)]
    rest = recorder.drain().spans[["kind", "start", "end"]].tolist()
    assert sorted(rest) == [(SpanKind.RUN, 3, 4), (SpanKind.MARK, 0, 99)]


@pytest.mark.parametrize("take", ["drain", "pack_up"])
def test_a_collection_of_garbage_in_the_middle_may_write(take):
    """CPython 3.11 collects where it makes room for a container: what that runs, or a thread that it lets run, may write, and the numbers move."""
    code = f"""
import gc, sys
from rlinf_lab.timeline.record.recorder import Recorder
recorder, row, kept, wrote = Recorder(limit=1 << 22), (7, 8, 0, -1, 0, 0, -1, 0, 0, 0), [[] for _ in range(200)], 0
recorder.loose.extend(row * 1000)
def write(phase, info):
    global wrote
    if phase == "start" and sys._getframe(1).f_code.co_name == "_loose_now":
        wrote += 1
        recorder.loose.extend(row * 100_000)
        kept.extend([None] * 9000 for _ in range(9))  # where the numbers were
    kept.extend([] for _ in range(9))  # so that the next container begins a collection again
gc.callbacks.append(write)
gc.set_threshold(1)
kept += [], [], []
found = recorder.{take}()
gc.callbacks.clear()
gc.set_threshold(700)
spans = sum(len(batch.spans) for batch in [recorder.drain(), *([found] if found else [])])
print(spans - 1000 == 100_000 * wrote)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


@pytest.mark.parametrize("limit", [1, 2, 10, 1000, 5000])
def test_what_finds_no_room_is_counted(limit):
    recorder = Recorder(limit=limit)
    for i in range(3 * limit + 7):
        _leave(recorder, i)
    waiting = len(recorder._buffer)
    kept = len(recorder.drain())
    assert kept + recorder.dropped == 3 * limit + 7 and recorder.dropped > 0 and waiting <= limit * SPAN_DTYPE.itemsize
    assert limit <= kept <= limit + recorder.most_loose // 10
    for i in range(limit):
        _leave(recorder, i)
    assert len(recorder.drain()) == limit, "there is room again"


def test_who_computes_nothing_leaves_no_more_rows_than_others():
    """A driver that hands out items, and ranks whose stretches take no time by a clock that stands still."""
    recorder = Recorder()
    writer = SpanWriter(recorder, MockClock(5))
    driver = SimpleNamespace(since=5, call=SimpleNamespace(iteration=3), on_device=False, track=0, method=0, waited=False, bound_ns=0, first=-1)
    driver.queue = SimpleNamespace(number=1)
    for _ in range(3_000):
        writer.end_run(driver)
        writer.resumed(driver, int(SpanKind.PUT), 8)
        assert len(recorder.loose) <= recorder.most_loose + 10
    assert len(recorder) == 3_000
