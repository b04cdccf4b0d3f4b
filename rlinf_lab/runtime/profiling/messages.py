"""What a message between two hosts costs, measured. Two workers answer each other, in threads and in processes by
turns.

    asks ── out ──> answers        in threads:    computing
      ^               │            in processes:  computing + computing for the messages + flights
      └──── back ─────┘

Both compute a little between messages, as workers do (`typical`), so that caches are as cold as they are in a run and
who waits has gone to sleep (a wait shorter than `lookout.AWAKE_NS` may be spent awake); a bare ping-pong would promise
a third of the cost, products of one matrix six tenths of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.profile import Message
from rlinf_lab.runtime.machine.devices import cores
from rlinf_lab.runtime.profiling.crowding import computed
from rlinf_lab.runtime.profiling.rounds import Rounds
from rlinf_lab.runtime.profiling.typical import TypicalWork
from rlinf_lab.runtime.run.observed_session import ObservedSession
from rlinf_lab.runtime.run.run import session
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


def message_costs(
    executor: str = "processes", devices: Sequence[str] | None = None, **options: Any
) -> tuple[Message, ...]:
    """Measure what a small message costs under an executor. It takes a second or two for each transport. Empty for
    ``"local"``: nothing travels there.

    ``devices``: the first one, and one for each transport of interest, such as ``["cpu:0", "cpu:1", "node1/cpu:0"]``
    (default: two cores of this machine).
    ``options``: of the executor. See `PingPong` for rounds between other measurements, which is steadier.

    Raises `PlanError` for fewer than two devices, and what the executor raises.
    """
    with PingPong(executor, devices, **options) as measuring:
        for _ in range(ITERATIONS):
            measuring.round()
    return measuring.costs()


class PingPong(Rounds):
    """Two workers that answer each other, in threads and in processes by turns. Arguments are those of `message_costs`.

    ``with PingPong(...) as measuring:`` and in it `round`, at least twice (the first one warms up); `costs` after it,
    when all that was recorded has come.
    """

    def __init__(self, executor: str = "processes", devices: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__()
        here, *others = devices or ("cpu:0", f"cpu:{min(1, len(cores()) - 1)}")
        if executor != "local" and (not others or here in others):
            raise PlanError(
                f"message_costs(devices={devices!r}): two different devices at least. Next: a machine with two cores, "
                "or devices of two nodes."
            )
        self._executor, self._options = executor, options
        self._here, self._others = here, () if executor == "local" else tuple(others)
        self._sessions: list[ObservedSession] = []  # in threads, then by other device
        self._numbers: list[list[int]] = []  # of each round, which iterations they were

    def _open(self, opening: ExitStack) -> None:
        flow = Workflow("messages")
        forth, back = flow.channel("forth"), flow.channel("back")
        asks, answers = flow.worker(_Asks, name="asks"), flow.worker(_Answers, name="answers")

        @flow.iteration
        def iteration() -> None:
            asks.ask(back, forth)
            answers.answer(forth, back)

        apart = {"asks": [0], "answers": [1]}
        plans = [ExecutionPlan.spatial(flow, [self._here, other], apart, micro_batch=1) for other in self._others]
        threads = [opening.enter_context(session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])))] if plans else []
        self._sessions = [
            *threads,
            *(opening.enter_context(session(flow, plan, self._executor, **self._options)) for plan in plans),
        ]

    def _do_round(self) -> None:
        """A hundred messages each way in threads, then in processes."""
        numbers = []
        for one in self._sessions:
            one.step()
            numbers.append(one.iteration - 1)
        self._numbers.append(numbers)

    def costs(self) -> tuple[Message, ...]:
        """As `message_costs` returns them. Raises `PlanError` before the end of the block and for less than
        two rounds.
        """
        self._refuse_early("costs")
        if not self._sessions:
            return ()
        (threads, theirs), *processes = zip(self._sessions, zip(*self._numbers, strict=True), strict=True)
        together = _by_round(computed(threads.timeline), theirs)
        return tuple({m.transport: m for m in (_measured(together, *one) for one in processes)}.values())

    def __repr__(self) -> str:
        return f"PingPong({self._executor!r}, {', '.join((self._here, *self._others))}: {self._rounds} rounds)"


def _measured(together: Mapping[int, float], processes: ObservedSession, numbers: Sequence[int]) -> Message:
    table = processes.timeline.iterations()
    elapsed = dict(zip(table["iteration"].tolist(), table["seconds"].tolist(), strict=True))
    edges = processes.transports()
    # or through Ray: between nodes
    transport = "unix" if (edges[edges["channel"] == "forth"]["transport"] == "unix").all() else "tcp"
    return _cost(transport, together, _by_round(computed(processes.timeline), numbers), _by_round(elapsed, numbers))


def _by_round(seconds: Mapping[int, float], numbers: Sequence[int]) -> dict[int, float]:
    """``seconds``: by iteration; ``numbers``: the iterations of the rounds that were done to their end."""
    return {number: seconds[iteration] for number, iteration in enumerate(numbers)}


def _cost(
    transport: str, together: Mapping[int, float], apart: Mapping[int, float], elapsed: Mapping[int, float]
) -> Message:
    """Seconds computed in threads and in processes, and seconds passed in processes, by round. The first one does not
    count.
    """
    warm, hops = sorted(elapsed)[1:], 2 * ROUNDS
    computing = statistics.median(apart[i] - together[i] for i in warm) / hops
    under_way = statistics.median(elapsed[i] - apart[i] for i in warm) / hops
    return Message(transport, max(0.0, under_way), max(0.0, computing / 2))
