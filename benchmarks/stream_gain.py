"""What streaming and overlapping iterations bring over whole batches: predicted by the simulator, measured with workers that sleep.

Generation with slots that are filled again, groups that go on as soon as they are whole, a learner that goes through each group and then
updates: on two devices, as batch (everything handed over at the end), stream (group by group) and asynchronous (staleness 1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from harness import Case

import rlinf_lab as lab
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn, get, put, run
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session

GROUPS, SIZE, SLOTS = 12, 8, 24
GROUP_MS, UPDATE_MS = 14, 30
PLANS = {"batch": ({"groups": GROUPS}, 0), "stream": ({"groups": 1}, 0), "asynchronous": ({"groups": 1}, 1)}


@lru_cache(maxsize=64)
def groups_end(iteration: int) -> tuple[int, ...]:
    """Milliseconds at which each group of an iteration is whole, in order; lengths are log-normal."""
    rng = np.random.default_rng(iteration)
    slots, ends = [0] * SLOTS, [0] * GROUPS
    for one in range(GROUPS * SIZE):
        end = heapq.heappop(slots) + int(np.clip(rng.lognormal(3.7, 0.8), 8, 240))
        heapq.heappush(slots, end)
        ends[one // SIZE] = max(ends[one // SIZE], end)
    return tuple(sorted(ends))


def waits(iteration: int) -> Iterator[int]:
    """Milliseconds from one whole group to the next."""
    before = 0
    for end in groups_end(iteration):
        yield end - before
        before = end


class Generator(lab.Worker):
    def generate(self, groups: lab.Outbox) -> None:
        for ms in waits(self.iteration):
            self.compute(ms / 1e3)
            groups.put(self.iteration)


class Learner(lab.Worker):
    def learn(self, groups: lab.Inbox) -> None:
        for batch in groups:
            self.compute(len(batch) * GROUP_MS / 1e3)
        self.compute(UPDATE_MS / 1e3)


def made(name: str) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    micro_batches, staleness = PLANS[name]
    flow = lab.Workflow("stream_gain")
    groups = flow.channel("groups", capacity=None)
    generator, learner = flow.worker(Generator, name="generator"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> None:
        generator.generate(groups)
        learner.learn(groups)

    on = {"generator": [0], "learner": [1]}
    return flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], on, micro_batches=micro_batches, staleness=staleness)


def measured_s(name: str, iterations: int) -> float:
    executor = LocalExecutor(*made(name), emulate=True)
    executor.start()
    session = Session(executor)
    try:
        began = executor.clock.now_ns()
        for _ in range(iterations):
            session.submit()
        session.finish()
        return (executor.clock.now_ns() - began) / 1e9
    finally:
        executor.stop()


def simulated_s(name: str, iterations: int) -> float:
    def generate(turn: Turn) -> Script:
        for ms in waits(turn.iteration):
            yield run(ms * 1_000_000)
            yield put("groups")

    def learn(turn: Turn) -> Script:
        while n := (yield get("groups")):
            yield run(n * GROUP_MS * 1_000_000)
        yield run(UPDATE_MS * 1_000_000)

    calls = [SimCall("generator", "generate", generate, (), ("groups",)), SimCall("learner", "learn", learn, ("groups",), (), starts_on_device=False)]
    return lab.planning.Simulator(*made(name)).simulate(calls, iterations).elapsed_ns / 1e9


def gain(of: Callable[[str, int], float], name: str, iterations: int) -> float:
    return of("batch", iterations) / of(name, iterations)


def cases(smoke: bool) -> list[Case]:
    n, rows = 2 if smoke else 20, []
    for name in ("stream", "asynchronous"):
        predicted = gain(simulated_s, name, n)
        note = f"{n} iterations of {GROUPS} groups of {SIZE}, {SLOTS} slots, log-normal lengths, two devices, workers that sleep; the machine was shared"
        rows += [
            Case(f"{name}_gain, predicted", "times batch", lambda p=predicted: p, target=">= 1.15", target_of="value", runs=1, note=note),
            Case(
                f"{name}_gain, measured against predicted", "times batch", lambda m=name: gain(measured_s, m, n), {"predicted": lambda p=predicted: p},
                runs=1 if smoke else 3, note=note,
            ),
            Case(
                f"{name}_gain, error", "measured over predicted, less 1", lambda m=name, p=predicted: abs(gain(measured_s, m, n) / p - 1), target="<= 0.1",
                target_of="value", runs=1 if smoke else 3, note=note,
            ),
        ]  # fmt: skip
    return rows
