"""What ranks have heard by themselves is on the timeline, all of it, and not only when they wait again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rlinf_lab import Inbox, Outbox, Worker, Workflow
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import Run, run
from rlinf_lab.timeline.record.span import SpanKind

TRIPS = 40


def compute_until(file: str, worker: Worker) -> None:
    while not Path(file).exists() and not worker.cancelled:
        time.sleep(0.01)


class Asks(Worker):
    def ask(self, out: Outbox, replies: Inbox, seen: str) -> None:
        for i in range(TRIPS):
            out.put(i)
            replies.take()
        compute_until(seen, self)


class Answers(Worker):
    def answer(self, inbox: Inbox, out: Outbox, seen: str) -> None:
        for _ in range(TRIPS):
            out.put(inbox.take())
        compute_until(seen, self)


def transfers(started: Run, to: str) -> list[Any]:
    return [s for s in started.timeline.rows() if s.kind == SpanKind.TRANSFER and s.track.worker.endswith(to)]


def test_a_rank_that_computes_after_it_has_heard_something_is_not_waited_for(tmp_path: Path) -> None:
    flow = Workflow("trips")
    there, back = flow.channel("there"), flow.channel("back")
    asks, answers = flow.worker(Asks, name="asks"), flow.worker(Answers, name="answers")

    @flow.iteration
    def iteration() -> None:
        asks.ask(there, back, str(tmp_path / "seen"))
        answers.answer(there, back, str(tmp_path / "seen"))

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"asks": [0], "answers": [1]}, micro_batches={"there": 1, "back": 1})
    started = run(flow, plan, 1, "processes")
    try:
        late = time.monotonic() + 60
        while sum(s.items for s in transfers(started, "host1")) < TRIPS and time.monotonic() < late and not started.error:
            time.sleep(0.05)
        assert sum(s.items for s in transfers(started, "host1")) == TRIPS  # the last of them, too, though who took it computes on
    finally:
        (tmp_path / "seen").touch()
    started.wait(60)
    rows = {r["channel"]: r for r in started.transports().to_dict("records")}
    for channel, to in (("there", "host1"), ("back", "host0")):
        spans = transfers(started, to)
        assert sum(s.items for s in spans) == rows[channel]["items"] == TRIPS
        assert len(spans) > 1  # how many messages are heard in one go depends on how busy the machine is
