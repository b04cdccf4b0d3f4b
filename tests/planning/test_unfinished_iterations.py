"""What a run has not brought to its end says nothing of what its workers take: iterations that are going on, that failed, or were given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from built import timeline_of
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import Planned
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.account.tables import whole_iterations
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

ITEMS, LAST = 8, 4  # the last iteration stops in its middle
DEVICES = ["cpu:0", "cpu:1"]
PROFILE = timed("ab", ITEMS, {"a": (0, 1.0), "b": (0, 1.0)}, {"a": 1, "b": 1})[1]


class Moment:
    """Of a run: stands still there until it may go on, or fails."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.there, self.on = fails, threading.Event(), threading.Event()

    def come(self) -> None:
        self.there.set()
        if self.fails:
            raise RuntimeError("no gradient")
        assert self.on.wait(60)


class Stops(Timed):
    moment: ClassVar[Moment]

    def worked(self, batch: list[Any], outs: Sequence[lab.Outbox]) -> int:
        size = super().worked(batch, outs)
        if self.iteration == LAST:
            self.moment.come()
        return size


def flow_of(moment: Moment) -> lab.Workflow:
    kind = type("StopsThen", (Stops,), {"moment": moment})  # one of its own for each run
    return timed("ab", ITEMS, {"a": (0, 1.5), "b": (0, 1.5)}, kinds={"b": kind})[0]


@pytest.fixture(scope="module", params=[(False, 0), (False, 2), (True, 0), (True, 2)], ids=["going on", "several going on", "failed", "failed with others"])
def stopped(request: pytest.FixtureRequest) -> Iterator[tuple[lab.Workflow, Planned, Timeline]]:
    """A run that stands in the middle of its last iteration, or failed there."""
    fails, staleness = request.param
    moment = Moment(fails)
    flow = flow_of(moment)
    plan = lab.plan(flow, DEVICES, PROFILE, micro_batches=ITEMS, staleness=staleness)["spatial"]
    run = lab.run(flow, plan, LAST + 4, dashboard=False, clock=MockClock())
    assert moment.there.wait(60)
    if fails:
        with pytest.raises(WorkerError, match="no gradient"):
            run.wait()
    while LAST not in run.timeline.spans["iteration"]:  # what is recorded arrives a few times a second
        moment.on.wait(0.01)
    yield flow, plan, run.timeline
    moment.on.set()
    if not fails:
        run.wait()


Stopped = tuple[lab.Workflow, Planned, Timeline]


@pytest.mark.parametrize("window", [2, 8])
def test_a_drift_is_seen_while_the_run_goes_on(stopped: Stopped, window: int) -> None:
    _, plan, timeline = stopped
    found = lab.replan(timeline, plan, window=window)
    assert [(d.worker, d.measured, d.sustained) for d in found.drifts] == [("a", 12.0, True), ("b", 12.0, True)]
    assert found.iterations == min(window, LAST - 1)


def test_the_timeline_its_files_and_its_summary_tell_which_came_to_their_end(stopped: Stopped, tmp_path: Path) -> None:
    _, _, timeline = stopped
    timeline.to_parquet(tmp_path / "t.parquet")
    timeline.to_perfetto(tmp_path / "t.json")
    for told in (timeline, Timeline.open(tmp_path / "t.parquet"), Timeline.open(tmp_path / "t.json")):
        assert whole_iterations(told) == set(range(LAST)) and LAST in set(told.spans["iteration"].tolist())
    summary, failed = timeline.summary(), set(timeline.iterations().query("failed")["iteration"])
    says = summary.to_dict()
    assert LAST in says["failed_iterations"] + says["open_iterations"] and set(says["failed_iterations"]) == failed
    assert f"PART: iteration{'s' * (len(says['failed_iterations'] + says['open_iterations']) > 1)} {LAST}" in str(summary)
    assert set(timeline.iterations()["iteration"]) - failed == set(range(LAST))


def test_profiles_and_estimates_know_nothing_of_the_rest(stopped: Stopped) -> None:
    flow, plan, timeline = stopped
    profile = lab.planning.profile_from_run(flow, plan.execution, timeline)
    traced = lab.planning.profile_from_trace(timeline, {w: w for w in "ab"}, ITEMS, [("a", "b")])
    for worker in (*profile.workers.values(), *traced.workers.values()):
        assert [s.seconds for s in worker.samples] == [1.5 * s.items for s in worker.samples]
    assert "outside of the iterations that came to their end left out" in " ".join(traced.notes)
    seconds = {line.split()[0]: line.split()[1] for line in repr(lab.estimate(flow, plan.execution, timeline)).splitlines() if " s on each rank" in line}
    assert seconds == {"a.make": "12", "b.work": "12"}


def test_too_few_that_ended_are_told(stopped: Stopped) -> None:
    flow, plan, timeline = stopped
    with pytest.raises(PlanError, match="one iteration at most"):
        lab.estimate(flow, plan.execution, timeline, iterations=[0, LAST])
    moment = Moment(True)
    short = flow_of(moment)
    run = lab.run(short, ExecutionPlan.spatial(short, DEVICES, {"a": [0], "b": [1]}), 2, dashboard=False, clock=MockClock())
    run.wait()
    with pytest.raises(PlanError, match=r"2 iterations that came to an end.*Next: replan\(\.\.\.\) after 1 more"):
        lab.replan(run, plan)


def test_a_trace_in_which_everything_failed_is_refused() -> None:
    timeline = timeline_of(("source", 0, ("cpu:0",), SpanKind.RUN, 0, 5, 0), ("driver", 0, (), SpanKind.MARK, 0, 5, 0, "failed"))
    with pytest.raises(PlanError, match="No iteration of the timeline came to its end.* Next: "):
        lab.planning.profile_from_trace(timeline, {"source": "source"}, 8, [])


def test_other_numbers_of_items_than_the_profile_counts_are_named(stopped: Stopped) -> None:
    flow, plan, timeline = stopped
    assert not any("items that are taken" in note for note in lab.replan(timeline, plan).notes)
    few = lab.plan(flow, DEVICES, PROFILE.replace(items=2), micro_batches=2, staleness=plan.execution.staleness)["spatial"]
    notes = [note for note in lab.replan(timeline, few).notes if "items that are taken" in note]
    assert len(notes) == 1 and notes[0].startswith(f"items that are taken in an iteration: b {ITEMS}; the profile counts 2.") and "Next: " in notes[0]
