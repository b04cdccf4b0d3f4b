"""Collectors and a learner with timed workers, iterations overlapping: what a staleness of 1 or 2 brings, measured and simulated.

Two collectors take 20 to 60 ms for an iteration (drawn with a seed, as episodes of different length), the learner 40 ms. Workers sleep, so that
only the runtime computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from harness import Case

import rlinf_lab as lab
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn, get, put, run
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session

COLLECTORS = 2
LEARNING_MS = 40


def collecting_ms(rank: int, iteration: int) -> int:
    return random.Random(f"{rank} of {iteration}").randint(20, 60)


class Collector(lab.Worker):
    def setup(self) -> None:
        self.count = 0

    def collect(self, out: lab.Outbox) -> None:
        self.compute(collecting_ms(self.rank, self.count) / 1e3)
        self.count += 1
        out.put(self.rank)


class Learner(lab.Worker):
    def learn(self, inbox: lab.Inbox) -> int:
        received = inbox.get_all()
        self.compute(LEARNING_MS / 1e3)
        return len(received)


def made(staleness: int) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("asynchronous")
    records = flow.channel("records", whole=True)
    collector, learner = flow.worker(Collector, name="collector"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> Any:
        collector.collect(records)
        return learner.learn(records)

    on = {"collector": list(range(COLLECTORS)), "learner": [COLLECTORS]}
    return flow, lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(COLLECTORS + 1)], on, staleness=staleness)


def measured(staleness: int, iterations: int) -> Callable[[], float]:
    """Milliseconds of an iteration, executed."""

    def measure() -> float:
        flow, plan = made(staleness)
        executor = LocalExecutor(flow, plan, emulate=True)
        executor.start()
        session = Session(executor)
        try:
            began = executor.clock.now_ns()
            for _ in range(iterations):
                session.submit()
            session.finish()
            return (executor.clock.now_ns() - began) / iterations / 1e6
        finally:
            executor.stop()

    return measure


def predicted(staleness: int, iterations: int) -> Callable[[], float]:
    """The same, simulated."""

    def collect(turn: Turn) -> Script:
        yield run(collecting_ms(turn.rank, turn.iteration) * 1_000_000)
        yield put("records")

    def learn(turn: Turn) -> Script:
        yield get("records", COLLECTORS)
        yield run(LEARNING_MS * 1_000_000)

    def simulate() -> float:
        calls = [SimCall("collector", "collect", collect, (), ("records",)), SimCall("learner", "learn", learn, ("records",), (), starts_on_device=False)]
        return lab.planning.Simulator(*made(staleness)).simulate(calls, iterations).elapsed_ns / iterations / 1e6

    return simulate


def cases(smoke: bool) -> list[Case]:
    n = 3 if smoke else 25
    return [
        Case(
            f"staleness_{s}", "ms an iteration", measured(s, n), {"simulated": predicted(s, n), **({"staleness 0": measured(0, n)} if s else {})},
            target="<= 1.1", runs=1 if smoke else 5, note=f"{COLLECTORS} collectors of 20 to 60 ms, a learner of {LEARNING_MS} ms, {n} iterations",
        )
        for s in (0, 1, 2)
    ]  # fmt: skip
