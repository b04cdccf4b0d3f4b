"""What a message between two hosts costs, measured: two workers answer each other, once in threads and once in processes.

    asks ── out ──> answers        in threads:    computing
      ^               │            in processes:  computing + computing for the messages + flights
      └──── back ─────┘

Both compute a little between messages, as workers do, so that caches are as cold as they are in a run and who waits has gone to sleep (a wait shorter
than `lookout.AWAKE_NS` may be spent awake); a bare ping-pong would promise a third of the cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.profile import Message
from rlinf_lab.runtime.devices import cores
from rlinf_lab.runtime.run import run
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

ROUNDS = 100  # of an iteration
ITERATIONS = 9  # the first one warms up
SIZE = 160  # of the matrices that are multiplied: some 0.4 ms


class _Item:
    """As much as observations of a few environments: some small arrays and a number."""

    def __init__(self) -> None:
        self.number = 0
        self.arrays = {name: np.zeros((16, 8), np.float32) for name in ("obs", "reward", "ended", "info")}


def _compute(weights: np.ndarray) -> float:
    return float(np.tanh(weights @ weights).sum())


class _Asks(Worker):
    def setup(self) -> None:
        self.weights = np.ones((SIZE, SIZE), np.float32)

    def ask(self, back: Inbox[Any], out: Outbox[Any]) -> None:
        item = _Item()
        for _ in range(ROUNDS):
            _compute(self.weights)
            out.put(item)
            back.take()


class _Answers(Worker):
    def setup(self) -> None:
        self.weights = np.ones((SIZE, SIZE), np.float32)

    def answer(self, out: Inbox[Any], back: Outbox[Any]) -> None:
        for _ in range(ROUNDS):
            item = out.take()
            _compute(self.weights)
            back.put(item)


def message_costs(executor: str = "processes", devices: Sequence[str] | None = None, **options: Any) -> tuple[Message, ...]:
    """Measure what a small message costs under an executor, a second or two for each transport. Empty for ``"local"``: nothing travels there.

    ``devices``: the first one, and one for each transport of interest, such as ``["cpu:0", "cpu:1", "node1/cpu:0"]`` (default: two cores of this machine).
    ``options``: of the executor. Raises `PlanError` for fewer than two devices, and what the executor raises.
    """
    if executor == "local":
        return ()
    here, *others = devices or ("cpu:0", f"cpu:{min(1, len(cores()) - 1)}")
    if not others or here in others:
        raise PlanError(f"message_costs(devices={devices!r}): two different devices at least. Next: a machine with two cores, or devices of two nodes.")
    flow = Workflow("messages")
    forth, back = flow.channel("forth"), flow.channel("back")
    asks, answers = flow.worker(_Asks, name="asks"), flow.worker(_Answers, name="answers")

    @flow.iteration
    def iteration() -> None:
        asks.ask(back, forth)
        answers.answer(forth, back)

    together = _spent(run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), ITERATIONS, "local"))
    found: dict[str, Message] = {}
    for other in others:
        made = run(flow, ExecutionPlan.spatial(flow, [here, other], {"asks": [0], "answers": [1]}, chunk=1), ITERATIONS, executor, **options)
        apart = _spent(made)
        table = made.transports()
        transport = str(table[table["channel"] == "forth"]["transport"].iloc[0])
        hops = 2 * ROUNDS
        computing, elapsed = (apart[0] - together[0]) / hops, (apart[1] - apart[0]) / hops
        found[transport] = Message(transport, max(0.0, elapsed), max(0.0, computing / 2))
    return tuple(found.values())


def _spent(made: Any) -> tuple[float, float]:
    """Median seconds of an iteration that were computed, by both together, and that passed."""
    made.wait(60)
    return _computed(made.timeline), statistics.median(made.timeline.iterations()["seconds"].tolist()[1:])


def _computed(timeline: Timeline) -> float:
    sums: dict[int, int] = {}
    for span in timeline.rows():
        if span.kind == SpanKind.RUN and span.track.worker != DRIVER and span.iteration > 0:
            sums[span.iteration] = sums.get(span.iteration, 0) + span.end_ns - span.start_ns
    return statistics.median(sums.values()) / 1e9
