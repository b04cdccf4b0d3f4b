"""What a faster worker would bring, told by doing the run again in virtual time, and compared with the run in which it is faster."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from driving import executed
from hypothesis import given
from hypothesis import strategies as st
from mock_runs import run
from random_flows import Scenario, scenario
from sweeps import sweep
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.errors import TimelineError
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.replay.recorded_calls import Batch, Deed, Pieces
from rlinf_lab.planning.replay.rerun import Rerun
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.critical import gains
from rlinf_lab.timeline.critical.gains import SCHEDULER, SPANS
from rlinf_lab.timeline.record.batch import SpanBatch


def ran(seed: int, faster: str = "") -> tuple[Scenario, Timeline]:
    """A random flow under a random plan; what one of its workers computes in half the time."""
    made = scenario(seed, [])
    for stage in made.stages:
        if stage.name == faster:
            stage.fixed, stage.each, stage.epilogue = stage.fixed / 2, stage.each / 2, stage.epilogue / 2
            stage.first = None if stage.first is None else stage.first / 2
    timeline = executed(made.flow, made.plan)
    timeline.rerun = Rerun(checked_layout(made.flow, made.plan))
    return made, timeline


@pytest.mark.long
@sweep(30, 120)
def test_a_gain_is_what_the_faster_run_gains_and_says_where_it_is_about(seeds: range) -> None:
    """Equal, whatever is shared, bounded, stale or takes no time; where something is assumed the note says so, and it is near."""
    sure = 0
    for seed in seeds:
        made, before = ran(seed)
        table = before.gains(2)
        assert table.attrs["basis"] == SCHEDULER, (seed, table.attrs["note"])
        told = table.set_index("worker")["seconds"]
        worker = made.stages[seed % len(made.stages)].name
        gained = (before.elapsed_ns - ran(seed, worker)[1].elapsed_ns) / 1e9
        sure += not table.attrs["note"]
        within = 0.05 * before.elapsed_ns / 1e9 if table.attrs["note"] else 1e-7
        assert told.get(worker, 0.0) == pytest.approx(gained, abs=within), (seed, worker, table.attrs["note"])
    assert sure >= len(seeds) // 2


def made(order: str = "fifo") -> Timeline:
    flow = lab.Workflow("two")
    items = flow.channel("items", order=order)
    maker, taker = (flow.worker(Timed, 6, 0.0, each, 1, name=name) for name, each in (("maker", 0.003), ("taker", 0.005)))

    @flow.iteration
    def iteration() -> None:
        maker.make(items)
        taker.work(items)

    return run(flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"maker": [0], "taker": [1]}, micro_batch=1), 2).timeline


def test_a_file_and_an_order_of_its_own_are_answered_from_the_spans_and_say_so(tmp_path: Path) -> None:
    known = made()
    known.to_parquet(tmp_path / "run.parquet")
    assert (known.gains().attrs["basis"], known.gains().attrs["note"]) == (SCHEDULER, "")
    assert Timeline.open(tmp_path / "run.parquet").gains().attrs["basis"] == SPANS
    by_order = made("lifo").gains()
    assert by_order.attrs["basis"] == SPANS and "ABOUT" in by_order.attrs["note"] and "'items'" in by_order.attrs["note"]


def test_a_run_that_comes_out_otherwise_is_not_trusted() -> None:
    """Somebody else held the machine up: half of the time is in no span."""
    known = made()
    spans = known.spans.copy()
    spans["end"][spans["kind"] == SpanKind.MARK] += 20_000_000
    table = written(known, spans).gains()
    assert table.attrs["basis"] == SPANS and "were recorded" in table.attrs["note"]


def written(like: Timeline, spans) -> Timeline:
    timeline = Timeline(like.devices)
    timeline.extend(SpanBatch("again", "local", 0, spans, tuple(like.tracks), tuple(like.names)))
    timeline.rerun = like.rerun
    return timeline


def test_items_without_numbers_are_counted_in_the_order_of_their_puts() -> None:
    """As between processes."""
    known = made()
    spans = known.spans.copy()
    spans["flow"] = -1
    assert written(known, spans).gains().equals(known.gains()) and known.gains().attrs["basis"] == SCHEDULER


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 50), st.integers(0, 50), st.data())
def test_other_batches_of_the_same_items_take_what_these_take(sizes: list[int], fixed: int, each: int, data: st.DataObject) -> None:
    batches, total = [], sum(sizes)
    for size in sizes:
        first = sum(len(b.items) for _, b in batches)
        puts = [Deed(SpanKind.PUT, "out", 1, 0, item) for item in range(first, first + size)]
        batches.append(("q", Batch(tuple(range(first, first + size)), ([Deed(SpanKind.RUN, "", 0, fixed + each * size, -1), *puts],))))
    pieces = Pieces("f()", batches)
    assert all(pieces.parts("q", batch.items) == batch.parts for _, batch in batches) and not pieces.guessed
    n = data.draw(st.integers(1, total))
    part = pieces.parts("q", range(n))[0]
    assert [deed.first for deed in part if deed.kind == SpanKind.PUT] == list(range(n))
    if len(set(sizes)) > 1 and not pieces.guessed:
        assert sum(deed.ns for deed in part) == pytest.approx(fixed + each * n, abs=1)


def of_many() -> Timeline:
    """A chain of twelve, of which the middle worker takes longest."""
    names = "abcdefghijkl"
    flow, _ = timed(" ".join(map("".join, itertools.pairwise(names))), 3, {n: (0.0, 0.001 * (1 + min(i, 12 - i))) for i, n in enumerate(names)})
    return run(flow, lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(12)], {n: [i] for i, n in enumerate(names)}, micro_batch=1), 2).timeline


def test_of_many_workers_the_run_is_done_again_for_those_that_gain_most(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline, done = of_many(), 0
    assert timeline.rerun is not None
    everybody = timeline.gains()
    original = timeline.rerun

    def counting(*args):
        again = original(*args)

        def one(times):
            nonlocal done
            done += 1
            return again(times)

        one.notes = again.notes
        return one

    timeline.rerun = counting
    told = timeline.gains(most=3)
    assert done == 1 + 3
    assert told.head(3).equals(everybody.head(3)) and told.iloc[0]["worker"] == "g"
    assert told.attrs["basis"] == SCHEDULER and everybody.attrs["note"] == ""
    assert "done again for 3 of 12 rows" in told.attrs["note"] and told.attrs["note"].endswith("Next: gains(most=12).")
    assert timeline.gains(most=12).equals(everybody)
    monkeypatch.setattr(gains, "MAX_RERUN_SPANS", 5 * len(timeline))
    assert "done again for 5 of 12 rows" in timeline.gains().attrs["note"]
    with pytest.raises(TimelineError, match=r"gains\(most=0\).*Next"):
        timeline.gains(most=0)


def test_groups_side_by_side_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = made()
    at_once = gains.gains(timeline.snapshot(), by=["worker", "name"])
    monkeypatch.setattr(gains, "_MAX_NUMBERS", 1)
    assert gains.gains(timeline.snapshot(), by=["worker", "name"]).equals(at_once)


def test_what_is_brought_to_a_device_is_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder("here")
    for worker in ("a", "b"):
        track = recorder.track(worker, 0, ("cpu:0",))
        start = 0 if worker == "a" else 14
        recorder.add(track, SpanKind.ONLOAD, recorder.name("onload"), start, start + 10, 0)
        recorder.add(track, SpanKind.RUN, recorder.name("work"), start + 10, start + 14, 0)
    timeline = Timeline()
    timeline.extend(recorder.drain())
    for cells in (1, 1 << 24):
        monkeypatch.setattr(gains, "_MAX_NUMBERS", cells)
        assert (timeline.gains(2)["seconds"] * 1e9).tolist() == [2, 2]
