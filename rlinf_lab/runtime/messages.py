"""What a message between two hosts costs, measured: two workers answer each other, in threads and in processes by turns.

    asks ── out ──> answers        in threads:    computing
      ^               │            in processes:  computing + computing for the messages + flights
      └──── back ─────┘

Both compute a little between messages, as workers do (`typical`), so that caches are as cold as they are in a run and who waits has gone to sleep (a wait
shorter than `lookout.AWAKE_NS` may be spent awake); a bare ping-pong would promise a third of the cost, products of one matrix six tenths of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.profile import Message
from rlinf_lab.runtime.crowding import computed
from rlinf_lab.runtime.devices import cores
from rlinf_lab.runtime.run import session
from rlinf_lab.runtime.typical import TypicalWork
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

ROUNDS = 100  # of an iteration
ITERATIONS = 9  # the first one warms up
REPEATS = 8  # of the work between two messages: some 0.3 ms


class _Item:
    """As much as observations of a few environments: some small arrays and a number."""

    def __init__(self) -> None:
        self.number = 0
        self.arrays = {name: np.zeros((16, 8), np.float32) for name in ("obs", "reward", "ended", "info")}


class _Asks(Worker):
    def setup(self) -> None:
        self.typical = TypicalWork()

    def ask(self, back: Inbox[Any], out: Outbox[Any]) -> None:
        item = _Item()
        for _ in range(ROUNDS):
            self.typical.do(REPEATS)
            out.put(item)
            back.take()


class _Answers(Worker):
    def setup(self) -> None:
        self.typical = TypicalWork()

    def answer(self, out: Inbox[Any], back: Outbox[Any]) -> None:
        for _ in range(ROUNDS):
            item = out.take()
            self.typical.do(REPEATS)
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

    plans = {other: ExecutionPlan.spatial(flow, [here, other], {"asks": [0], "answers": [1]}, chunk=1) for other in others}
    return tuple({m.transport: m for m in (_measured(flow, plan, executor, **options) for plan in plans.values())}.values())


def _measured(flow: Workflow, plan: ExecutionPlan, executor: str, **options: Any) -> Message:
    """Iterations in threads and in processes by turns: the machine may be faster in one second than in the next by more than a message costs."""
    with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as threads, session(flow, plan, executor, **options) as processes:
        for _ in range(ITERATIONS):
            threads.step()
            processes.step()
    table = processes.timeline.iterations()
    elapsed = dict(zip(table["iteration"].tolist(), table["seconds"].tolist(), strict=True))
    edges = processes.transports()
    transport = str(edges[edges["channel"] == "forth"]["transport"].iloc[0])
    return _cost(transport, computed(threads.timeline), computed(processes.timeline), elapsed)


def _cost(transport: str, together: Mapping[int, float], apart: Mapping[int, float], elapsed: Mapping[int, float]) -> Message:
    """Seconds computed in threads and in processes, and seconds passed in processes, by iteration; the first one does not count."""
    warm, hops = sorted(elapsed)[1:], 2 * ROUNDS
    computing = statistics.median(apart[i] - together[i] for i in warm) / hops
    under_way = statistics.median(elapsed[i] - apart[i] for i in warm) / hops
    return Message(transport, max(0.0, under_way), max(0.0, computing / 2))
