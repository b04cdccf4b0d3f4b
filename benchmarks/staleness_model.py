"""Mean staleness as simulated against its closed form and against published runs; and the staleness of every item of a run.

Closed forms and measured rows: Applied Compute, "Predicting and Controlling Staleness in Fully Asynchronous RL Training" (2026).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from harness import Case

import rlinf_lab as lab
from rlinf_lab.planning.simulator.rollouts import AsynchronousTraining
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn, get, put, run
from rlinf_lab.planning.simulator.simulator import ALL
from rlinf_lab.planning.simulator.staleness import MeanStaleness, StalenessPolicy
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.runtime.threads.clocks import MockClock

ROWS = ((120, 240, 2, 0.63, 1.42, 1.26), (240, 120, 2, 0.92, 1.43, 3.59), (128, 128, 2, 1.07, 1.44, 3.09), (128, 128, 1, 1.14, 1.45, 2.01))
"""C, B, q, ρ, M and the mean staleness that was measured"""


def closed_form_gap(seed: int) -> float:
    """Of one random point of the closed form's regime: ρ 0.15 or more from 1, 96 to 192 groups a batch, and where ρ > 1 group
    times whose fractions of an update are spread evenly (first Fourier coefficient at most 0.05): the form takes a mean over them."""
    rng = np.random.default_rng(seed)
    while True:
        size, groups, queue = int(rng.choice([2, 4])), int(rng.integers(96, 193)), int(rng.integers(1, 5))
        rho, batch, sigma = rng.uniform(0.3, 2.5), size * groups, rng.uniform(0.2, 0.8)
        concurrency = int(batch * rng.uniform(0.3, 2.5))
        mean = concurrency / (rho * batch)  # updates that a response takes
        longest = _log_normal(rng, sigma, 2000 * size, mean).reshape(-1, size).max(axis=1)
        if abs(rho - 1) >= 0.15 and (rho < 1 or abs(np.exp(2j * np.pi * longest).mean()) <= 0.05):
            break
    settled = int(np.quantile(longest, 0.9999) * min(1, rho)) + 3 + (0 if rho < 1 else int(queue / (rho - 1)))
    updates = settled + 60
    seconds_N = _log_normal(rng, sigma, int(groups * max(1, rho) * (updates + 1) + groups) * size, mean)
    policy = StalenessPolicy("drop_oldest", queue=queue)
    found = AsynchronousTraining(concurrency, batch, 1.0, size, policy, steady=True).simulate(seconds_N, updates=updates)
    tail = seconds_N[found.used(settled)].reshape(-1, size).max(axis=1).mean() / seconds_N.mean()
    return abs(float(found.staleness_N(settled).mean()) - MeanStaleness(concurrency, batch, queue, rho, tail).total)


def _log_normal(rng: np.random.Generator, sigma: float, count: int, mean: float) -> np.ndarray:
    drawn = np.exp(sigma * rng.standard_normal(count))
    return np.asarray(drawn * (mean / drawn.mean()))


def row_gap(row: tuple[float, ...], updates: int) -> float:
    """Against a published row: slots that are filled again and again, no steady arrivals."""
    concurrency, batch, queue, rho, tail, measured = row
    size, rng = 8, np.random.default_rng(0)
    seconds_N = np.exp(spread_for(tail, size) * rng.standard_normal(int(batch * max(1, rho) * updates * 1.1)))
    seconds_N /= seconds_N.mean()
    setting = AsynchronousTraining(int(concurrency), int(batch), rho * batch / concurrency, size, StalenessPolicy("drop_oldest", queue=queue))
    return abs(float(setting.simulate(seconds_N, updates=updates).staleness_N(updates // 10).mean()) - measured)


def spread_for(tail: float, size: int) -> float:
    """Sigma of a log-normal whose groups have E[longest] / E[length] = ``tail``."""
    normal = np.random.default_rng(1).standard_normal((20_000, size))
    low, high = 0.01, 3.0
    for _ in range(40):
        sigma = (low + high) / 2
        lengths = np.exp(sigma * normal)
        low, high = (sigma, high) if lengths.max(axis=1).mean() / lengths.mean() < tail else (low, sigma)
    return sigma


# --- a run, item by item: slots, responses that go on in the next iteration, iterations that overlap -------------------
SLOTS, TAKES = 6, 4


def _ticks(item: int) -> int:
    """Steps of a response: few, sometimes many."""
    return 1 + int(np.random.default_rng(item).geometric(0.25))


def _step_ns(iteration: int) -> int:
    return 1_000_000 + 1_003 * (iteration % 7)


def _training_ns(iteration: int) -> int:
    return 3_000_000 + 700_001 * (iteration * 5 % 4)


class Generator(lab.Worker):
    """Ends a call when ``TAKES`` responses are done; the others go on in the next one, under its weights."""

    def setup(self) -> None:
        self.running: list[list[int]] = []  # item, steps left, version that began it
        self.next = 0

    def generate(self, done: lab.Outbox, weights: lab.Weights) -> None:
        version, finished = weights.pull().version, 0
        while finished < TAKES:
            while len(self.running) < SLOTS:
                self.running.append([self.next, _ticks(self.next), version])
                self.next += 1
            self.compute(_step_ns(self.iteration) / 1e9)
            for one in self.running:
                one[1] -= 1
            for one in [r for r in self.running if not r[1]]:
                self.running.remove(one)
                done.put((one[0], one[2]))
                finished += 1


class Learner(lab.Worker):
    def setup(self) -> None:
        self.version = 0

    def learn(self, done: lab.Inbox, weights: lab.Weights) -> list[tuple[int, int]]:
        staleness = [(item, self.version - version) for item, version in done.get_all()]
        self.compute(_training_ns(self.iteration) / 1e9)
        self.version += 1
        weights.publish(self.version)
        return staleness


def made(staleness: int) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("staleness")
    done, weights = flow.channel("done", capacity=None), flow.weights("policy")
    generator, learner = flow.worker(Generator, name="generator"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> object:
        generator.generate(done, weights)
        return learner.learn(done, weights)

    on = {"generator": [0], "learner": [1]}
    return flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], on, staleness=staleness)


def run_items(staleness: int, iterations: int) -> dict[int, int]:
    """Staleness of each item of a run, in mock time."""
    executor = LocalExecutor(*made(staleness), MockClock())
    executor.start()
    session = Session(executor)
    try:
        found = [session.submit() for _ in range(iterations)]
        session.finish()
        return {item: stale for result in found for item, stale in result.wait()}
    finally:
        executor.stop()


def simulated_items(staleness: int, iterations: int) -> dict[int, int]:
    """The same from scripts in the simulator: the version is how many learners' calls have ended."""
    found: dict[int, int] = {}
    running: list[list[int]] = []
    version = [0]
    handed: dict[int, list[list[int]]] = {}
    asked = [0]

    def generate(turn: Turn) -> Script:
        now, finished = version[0], []
        while len(finished) < TAKES:
            for _ in range(SLOTS - len(running)):
                running.append([asked[0], _ticks(asked[0]), now])
                asked[0] += 1
            yield run(_step_ns(turn.iteration))
            for one in list(running):
                one[1] -= 1
                if one[1] == 0:
                    running.remove(one)
                    finished.append(one)
                    yield put("done")
        handed[turn.iteration] = finished

    def learn(turn: Turn) -> Script:
        yield get("done", ALL)
        yield run(_training_ns(turn.iteration))
        for item, _, began in handed.pop(turn.iteration):
            found[item] = version[0] - began
        version[0] += 1

    calls = [SimCall("generator", "generate", generate, (), ("done",)), SimCall("learner", "learn", learn, ("done",), ())]
    lab.planning.Simulator(*made(staleness)).simulate(calls, iterations)
    return found


def different_items(iterations: int) -> float:
    """Items whose staleness in the run is not the simulated one, over plans of staleness 0, 1 and 2; the runs must differ among each other."""
    runs = [run_items(s, iterations) for s in (0, 1, 2)]
    assert len({tuple(sorted(Counter(r.values()).items())) for r in runs}) == 3 and max(runs[2].values()) > 2
    return float(sum(r.get(k) != v for s, r in enumerate(runs) for k, v in simulated_items(s, iterations).items()))


def cases(smoke: bool) -> list[Case]:
    points, updates, iterations = (2, 20, 12) if smoke else (1_000, 400, 400)
    return [
        Case(
            "staleness_model: closed form", "largest gap in updates", lambda: max(map(closed_form_gap, range(points))), target="<= 0.02", target_of="value",
            runs=1, note=f"{points:,} random points, steady arrivals, the oldest dropped, 96 to 192 groups of an update, 60 updates each",
        ),
        Case(
            "staleness_model: published rows", "largest gap in updates", lambda: max(row_gap(row, updates) for row in ROWS), target="<= 0.3",
            target_of="value", runs=1, note="Applied Compute's four rows, slots in a loop, log-normal lengths with the row's M in groups of 8",
        ),
        Case(
            "staleness_model: a run item by item", "items that differ", lambda: different_items(iterations), target="<= 0", target_of="value", runs=1,
            note=f"{iterations} iterations under plans of staleness 0, 1 and 2, responses that go on in the next iteration; mock clock",
        ),
    ]  # fmt: skip
