"""What a faster worker would bring, told by doing the run again in virtual time, and compared with the run in which it is faster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_runs import run
from test_parity import execute

import rlinf_lab as lab
from rlinf_lab.planning.layout import checked_layout
from rlinf_lab.planning.pieces import Batch, Deed, Pieces
from rlinf_lab.planning.rerun import Rerun
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.batch import SpanBatch
from rlinf_lab.timeline.gains import SCHEDULER, SPANS

sys.path.insert(0, str(Path(__file__).parent))
from random_flows import Scenario, scenario


def ran(seed: int, faster: str = "") -> tuple[Scenario, Timeline]:
    """A random flow under a random plan; what one of its workers computes in half the time."""
    made = scenario(seed, [])
    for stage in made.stages:
        if stage.name == faster:
            stage.fixed, stage.each, stage.epilogue = stage.fixed / 2, stage.each / 2, stage.epilogue / 2
            stage.first = None if stage.first is None else stage.first / 2
    timeline = execute(made)
    timeline.rerun = Rerun(checked_layout(made.flow, made.plan))
    return made, timeline


@pytest.mark.parametrize("block", range(4))
def test_a_gain_is_what_the_faster_run_gains_and_says_where_it_is_about(block: int) -> None:
    """Equal, whatever is shared, bounded, stale or takes no time; where something is assumed the note says so, and it is near."""
    sure = 0
    for seed in range(block * 30, block * 30 + 30):
        made, before = ran(seed)
        table = before.gains(2)
        assert table.attrs["basis"] == SCHEDULER, (seed, table.attrs["note"])
        told = table.set_index("worker")["seconds"]
        worker = made.stages[seed % len(made.stages)].name
        gained = (before.elapsed_ns - ran(seed, worker)[1].elapsed_ns) / 1e9
        sure += not table.attrs["note"]
        within = 0.05 * before.elapsed_ns / 1e9 if table.attrs["note"] else 1e-7
        assert told.get(worker, 0.0) == pytest.approx(gained, abs=within), (seed, worker, table.attrs["note"])
    assert sure >= 15


class Maker(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        for item in range(6):
            self.compute(0.003)
            out.put(item)


class Taker(lab.Worker):
    def take(self, into: lab.Inbox) -> None:
        for batch in into:
            self.compute(0.005 * len(batch))


def made(order: str = "fifo") -> Timeline:
    flow = lab.Workflow("two")
    items, maker, taker = flow.channel("items", order=order), flow.worker(Maker), flow.worker(Taker)

    @flow.iteration
    def iteration() -> None:
        maker.make(items)
        taker.take(items)

    return run(flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"maker": [0], "taker": [1]}, chunk=1), 2).timeline


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
