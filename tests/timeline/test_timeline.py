"""The timeline: many hosts become one, live, and two timelines can be compared."""

from __future__ import annotations

import numpy as np
import pytest
from built import timeline_of

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline import Recorder, SpanBatch, SpanKind, Timeline
from rlinf_lab.timeline.record.store import Growing


def recorded(host: str, shift: int = 0, worker: str = "w") -> Recorder:
    recorder = Recorder(host)
    for rank in range(2):
        track = recorder.track(worker, rank, (f"{host}:{rank}",))
        recorder.add(track, SpanKind.RUN, recorder.name(f"call {host}"), shift + 10, shift + 20, 0, channel=-1)
        recorder.add(track, SpanKind.GET, recorder.name("call"), shift + 20, shift + 30, 0, 1, 0, recorder.channel("c"))
    return recorder


def test_hosts_are_joined_on_one_clock():
    timeline = Timeline(["a:1", "idle:0"])
    timeline.extend(recorded("a").drain())
    timeline.extend(recorded("b", shift=1000).drain(), offset_ns=-995)
    assert timeline.devices == ["a:1", "idle:0", "a:0", "b:0", "b:1"]
    assert (timeline.start_ns, timeline.end_ns, timeline.elapsed_ns) == (10, 35, 25)
    assert {(s.track.host, s.name, s.channel) for s in timeline.rows()} == {
        ("a", "call a", ""), ("a", "call", "c"), ("b", "call b", ""), ("b", "call", "c"),
    }  # fmt: skip
    frame = timeline.to_pandas()
    assert frame.kind.tolist() == ["run", "get"] * 4 and frame.channel.isna().tolist() == [True, False] * 4 and frame["rank"].tolist() == [0, 0, 1, 1] * 2
    assert frame.devices.tolist()[:4] == ["a:0", "a:0", "a:1", "a:1"] and frame.seconds.sum() == pytest.approx(80e-9)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"start_ns": 40, "end_ns": 39, "kind": SpanKind.LOCK}, "end before they start.*LOCK, 40 to 39"),
        *(({field: n}, rf"{field} {n}, .*Recorder\.{field}\(\)") for field, n in (("track", -1), ("track", 2), ("name", -2), ("name", 3), ("channel", -2), ("channel", 3))),
    ],
)
def test_a_batch_with_a_span_that_ends_before_it_starts_or_a_number_that_nobody_gave_out_is_refused_whole(odd: dict, says: str):
    recorder, timeline = recorded("a"), Timeline()
    recorder.add(**{"track": 0, "kind": SpanKind.RUN, "name": 0, "start_ns": 1, "end_ns": 2, "channel": 0, **odd})
    with pytest.raises(TimelineError, match=says):
        timeline.extend(recorder.drain())
    assert len(timeline) == 0 and timeline.tracks == []


def test_an_array_that_was_handed_out_never_changes():
    recorder, timeline = recorded("a"), Timeline()
    timeline.extend(recorder.drain())
    before, frozen = timeline.spans, timeline.snapshot()
    for i in range(5000):
        recorder.add(0, SpanKind.RUN, 0, 100 + i, 101 + i)
    timeline.extend(recorder.drain())
    assert len(before) == len(frozen) == 4 and len(timeline) == 5004
    assert frozen.end_ns == 30
    timeline.extend(SpanBatch("a", recorder.source, 0, timeline.spans))
    assert len(timeline) == 5004, "a batch that comes twice counts once"
    with pytest.raises(TimelineError, match="Batch 5 .* 2 is the next"):
        timeline.extend(SpanBatch("a", recorder.source, 5, timeline.spans))
    assert frozen.spans["start"].tolist() == before["start"].tolist() == [10, 20, 10, 20]
    with pytest.raises(ValueError):
        before["start"][0] = 1
    with pytest.raises(TimelineError, match="snapshot"):
        frozen.extend(recorder.drain())


def test_a_difference_names_the_span_and_the_order_of_arrival_is_none() -> None:
    ours, theirs, other = Timeline(), Timeline(), Timeline()
    for timeline, hosts in ((ours, "ab"), (theirs, "ba")):
        for host in hosts:
            timeline.extend(recorded(host).drain())
    assert ours.diff(theirs) == theirs.diff(ours) == ""
    recorder = recorded("a")
    for _ in range(2):
        recorder.add(0, SpanKind.RUN, 0, 40, 50)
    for batch in (recorder.drain(), recorded("b").drain()):
        other.extend(batch)
    text = ours.diff(other)
    assert text.startswith("0 spans only here, 2 only in the other, 8 equal:")
    assert "+ 40–50 ns w[0] on a:0: RUN 'call a' iteration -1 items 0 (2 times)" in text and "- 40–50 ns" in other.diff(ours)


def test_an_empty_timeline_answers_everything():
    timeline = Timeline(["cpu:0"])
    assert timeline.rows() == [] and len(timeline.to_pandas()) == len(timeline.iterations()) == 0
    assert timeline.elapsed_ns == 0 and "1 device, 0 spans" in repr(timeline)
    assert len(timeline.bubbles()) == len(timeline.bubbles(by=None)) == timeline.bubble_sum_error_ns() == 0
    assert timeline.utilisation().to_dict() == {"cpu:0": 0}
    assert len(Timeline().busy()) == 0 and "0 devices" in repr(Timeline())


def test_a_long_timeline_lives_in_a_mapped_file_and_old_views_stay_as_they_were():
    array = Growing(np.dtype("<i8"), memory_bytes=16_384)
    views = []
    for i in range(40):
        array.append(np.arange(i * 1000, (i + 1) * 1000))
        views.append(array.view)
    assert array.in_file
    for i, view in enumerate(views):
        assert np.array_equal(view, np.arange((i + 1) * 1000))
    with pytest.raises(ValueError):
        array.view[0] = 7


def test_without_room_on_disk_it_stays_in_memory_and_says_so(monkeypatch: pytest.MonkeyPatch):
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    array = Growing(np.dtype("<i8"), memory_bytes=8192)
    with pytest.warns(UserWarning, match="stays in memory.*No space left"):
        array.append(np.arange(5000))
    array.append(np.arange(5000))
    assert not array.in_file and array.view.tolist() == [*range(5000)] * 2


@pytest.mark.parametrize(("ns", "said"), [(0, "0 s"), (1500, "1.5 µs"), (12_345_678, "0.01235 s"), (187_654 * 10**9, "187,654 s")])
def test_the_length_of_a_timeline_has_no_exponent(ns: int, said: str) -> None:
    timeline = timeline_of(("w", 0, ("cpu:0",), SpanKind.RUN, 0, ns))
    assert repr(timeline).startswith(f"Timeline: 1 device, 1 span, {said}")
