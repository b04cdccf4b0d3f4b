"""How answers are shared out and in which order they begin: what `dispatch` and `longest_first` bring, simulated and measured.

Two rollout ranks run the recipe's own workers on an engine that sleeps instead of computing: a decode step takes 8 ms, whatever runs in its slots,
and an answer is as long as its problem says (log-normal within a level). Shared out evenly, a rank with the longer answers keeps the other waiting;
with "shortest_queue" each takes one as it has room. Longest first, told by a moving mean of the lengths so far, is simulated by
`predicted_rollouts`, which knows the lengths and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from harness import Case

import rlinf_lab as lab
from rlinf_lab.generation import Completion, Request, SamplingParams
from rlinf_lab.generation.generator import Generator
from rlinf_lab.planning.simulator.scripts import ALL, Script, SimCall, Turn, get, get_nowait, put, run
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.tasks import Problem
from rlinf_lab.workers.reasoning import (
    Asked,
    ContinuingGenerator,
    GeneratorWorker,
    LengthPredictor,
    ModelWeights,
    Response,
)
from rlinf_lab.workers.reasoning.prediction import predicted_rollouts

RANKS, SLOTS, STEP_MS = 2, 8, 8
PROMPTS, SIZE, LEVELS = 12, 8, 3
POLICY = lab.planning.StalenessPolicy("pace", bound=1)


def problem(iteration: int, prompt: int) -> Problem:
    """Of level 1 to 3, in an order drawn with the iteration."""
    level = 1 + int(np.random.default_rng([iteration, prompt]).integers(LEVELS))
    return Problem("?" * level, "", level)


@lru_cache(maxsize=100_000)
def length(iteration: int, prompt: int, sample: int) -> int:
    """Tokens: 12, 24 or 48 in the middle of a level, with a long tail."""
    level = problem(iteration, prompt).level
    return int(np.clip(np.random.default_rng([iteration, prompt, sample]).lognormal(np.log(6 * 2**level), 0.6), 2, 160))


def tokens(asked: Asked) -> int:
    return length(asked.round, asked.prompt, asked.sample)


def asked(iteration: int, prompts: int) -> list[Asked]:
    return [Asked(problem(iteration, p), iteration, p, k) for p in range(prompts) for k in range(SIZE)]


class Sleeping(Generator):
    """An engine of which only time and lengths are real."""

    context, vocabulary = 4096, 2

    def __init__(self, sleep: Callable[[float], None]) -> None:
        super().__init__()
        self._sleep, self._queue, self._running = sleep, deque[Request](), dict[str, tuple[Request, list[int]]]()

    def _begin(self, request: Request) -> None:
        self._queue.append(request)

    def _advance(self) -> list[Completion]:
        while self._queue and len(self._running) < SLOTS:
            request = self._queue.popleft()
            had = [] if request.prefix is None else request.prefix.versions.tolist()
            self._running[request.id] = request, had
        self._sleep(STEP_MS / 1e3)
        for _, versions in self._running.values():
            versions.append(self.version)
        over = [id for id, (request, versions) in self._running.items() if len(versions) >= tokens(request.item)]
        return [self._completion(id, "stop") for id in over]

    def _completion(self, id: str, reason: Any) -> Completion:
        request, versions = self._running.pop(id)
        n = len(versions)
        return Completion(request.prompt_ids, np.zeros(n, np.int64), np.zeros(n, np.float32), np.array(versions), reason, id, request.params, request.item)

    def _break_off(self, ids: set[str]) -> list[Completion]:
        waiting = [Completion.broken_off(r) for r in self._queue if r.id in ids]
        self._queue = deque(r for r in self._queue if r.id not in ids)
        return [self._completion(id, "abort") for id in list(self._running) if id in ids] + waiting

    def _so_far(self) -> list[Completion]:
        return [self._completion(id, "abort") for id in self._running] + [Completion.broken_off(r) for r in self._queue]

    def _take(self, state: Mapping[str, Any]) -> None: ...


class Letters:
    """A model of which only `encode_prompt` and `decode` are asked."""

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.zeros(len(text), np.int64)

    def decode(self, ids: np.ndarray) -> str:
        return ""


class Sleeps(GeneratorWorker):
    def setup(self) -> None:
        self.model, self.generator = Letters(), Sleeping(self.compute)  # type: ignore[assignment]


class ContinuingSleeps(ContinuingGenerator, Sleeps):
    """Its groups, and the engine that sleeps."""


class Asks(lab.Worker):
    def __init__(self, prompts: int) -> None:
        self.prompts = prompts

    def ask(self, questions: lab.Outbox[Asked]) -> None:
        questions.put_all(asked(self.iteration, self.prompts))


class Reader(lab.Worker):
    """Waits for everything and publishes the next version."""

    def setup(self) -> None:
        self.version = 0

    def read(self, responses: lab.Inbox[Response], weights: lab.workflow.weights.Weights) -> int:
        found = len(responses.get_all())
        self.version += 1
        weights.publish(ModelWeights(self.version, {}))
        return found


def made(kind: type[GeneratorWorker], prompts: int, **options: Any) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("dispatch")
    questions, responses, weights = flow.channel("asked", capacity=None), flow.channel("responses", capacity=None), flow.weights("policy")
    generator = flow.worker(
        kind, Letters, SamplingParams(max_tokens=4000), name="generator", slots=SLOTS, log_completions=False, **options
    )  # fmt: skip
    asks, reader = flow.worker(Asks, prompts, name="asks"), flow.worker(Reader, name="reader")

    @flow.iteration
    def iteration() -> Any:
        asks.ask(questions)
        generator.generate(questions, responses, weights)
        return reader.read(responses, weights)

    devices = [f"cpu:{i}" for i in range(RANKS + 1)]
    return flow, lab.ExecutionPlan.spatial(flow, devices, {"asks": [RANKS], "generator": list(range(RANKS)), "reader": [RANKS]})


def measured_ms(iterations: int, kind: type[GeneratorWorker], prompts: int, clock: Any = None, **options: Any) -> float:
    """Of an iteration; with a `MockClock` of one that takes no time."""
    flow, plan = made(kind, prompts, **options)
    executor = LocalExecutor(flow, plan, clock) if clock is not None else LocalExecutor(flow, plan, emulate=True)
    executor.start()
    session = Session(executor)
    try:
        began = executor.clock.now_ns()
        for _ in range(iterations):
            session.step()
        session.finish()
        return (executor.clock.now_ns() - began) / iterations / 1e6
    finally:
        executor.stop()


# --- shares, and the order within one -------------------------------------------------------------------------------
def generated(dispatch: str, longest_first: bool) -> Callable[[Turn], Script]:
    """The loop of `GeneratorWorker.generate`. Items come in the order in which they were asked, whoever takes them."""
    taken: dict[int, int] = {}
    lengths = [LengthPredictor() for _ in range(RANKS)]

    def next_of(turn: Turn, n: int) -> list[Asked]:
        first = taken.get(turn.iteration, 0) if dispatch == "shortest_queue" else turn.rank * PROMPTS * SIZE // RANKS
        taken[turn.iteration] = first + n
        mine = asked(turn.iteration, PROMPTS)[first : first + n]
        return sorted(mine, key=lambda one: -lengths[turn.rank].of(one.problem)) if longest_first else mine

    def generate(turn: Turn) -> Script:
        even = dispatch == "even"
        n = yield get("asked", ALL if even else SLOTS)
        waiting, running = deque(next_of(turn, n)), list[list[Any]]()
        while waiting or running:
            while waiting and len(running) < SLOTS:
                running.append([waiting.popleft(), 0])
            yield run(STEP_MS * 1_000_000)
            for one in running:
                one[1] += 1
            over = [one for one, had in running if had == tokens(one)]
            for one in over:
                lengths[turn.rank].tell(one.problem, tokens(one))
            yield put("responses", len(over))
            running = [pair for pair in running if pair[0] not in over]
            if not even and len(running) < SLOTS:
                free = SLOTS - len(running)
                n = yield get_nowait("asked", free) if running else get("asked", free)
                waiting.extend(next_of(turn, n))

    return generate


def read(turn: Turn) -> Script:
    yield get("responses", ALL)


def ask(turn: Turn) -> Script:
    yield put("asked", PROMPTS * SIZE)


def simulated_ms(iterations: int, dispatch: str = "even", longest_first: bool = False) -> float:
    calls = [
        SimCall("asks", "ask", ask, (), ("asked",)),
        SimCall("generator", "generate", generated(dispatch, longest_first), ("asked",), ("responses",)),
        SimCall("reader", "read", read, ("responses",), (), starts_on_device=False),
    ]
    flow, plan = made(Sleeps, PROMPTS, dispatch=dispatch)
    return lab.planning.Simulator(flow, plan).simulate(calls, iterations).elapsed_ns / iterations / 1e6


# --- the order of groups that go on ------------------------------------------------------------------------------------------------------
def foretold_ms(iterations: int, longest_first: bool) -> float:
    """Of the slower rank in each iteration: the prompts of an iteration are shared out, a group goes to one of them."""
    steps = np.zeros((RANKS, iterations))
    for rank in range(RANKS):
        first = rank * 3 * PROMPTS // RANKS

        def of(one: Asked, first: int = first) -> int:
            return length(one.round, first + one.prompt, one.sample)

        table = predicted_rollouts(
            POLICY, of, prompts=PROMPTS // RANKS, group_size=SIZE, asked=3 * PROMPTS // RANKS, slots=SLOTS, iterations=iterations, refill_share=SLOTS,
            longest_first=longest_first, problem=lambda round_, prompt, first=first: problem(round_, first + prompt),
        )  # fmt: skip
        steps[rank] = table.groupby("iteration").decode_steps.first()
    return float(steps.max(axis=0).mean()) * STEP_MS


def foretold(iterations: int) -> dict[str, dict[str, float]]:
    """By what is compared and how: milliseconds of an iteration, simulated."""
    return {
        "share": {how: simulated_ms(iterations, how) for how in ("even", "shortest_queue")},
        "order": {"as asked": simulated_ms(iterations), "longest first": simulated_ms(iterations, longest_first=True)},
        "order of groups": {"as asked": foretold_ms(iterations, False), "longest first": foretold_ms(iterations, True)},
    }


def run_ms(iterations: int, what: str, how: str, clock: Any = None) -> float:
    """The same by the recipe's workers."""
    if what == "share":
        return measured_ms(iterations, Sleeps, PROMPTS, clock, dispatch=how)
    first = how == "longest first"
    if what == "order":
        return measured_ms(iterations, Sleeps, PROMPTS, clock, longest_first=first)
    return measured_ms(iterations, ContinuingSleeps, 3 * PROMPTS, clock, policy=POLICY, batch=PROMPTS, longest_first=first)


def cases(smoke: bool) -> list[Case]:
    """Of each: parity of an iteration on a clock that only the workers' steps move, which measures nothing; the gain in seconds."""
    n, runs, rows = (2, 1, []) if smoke else (4, 3, [])
    note = f"{RANKS} rollout ranks of {SLOTS} slots, {PROMPTS} groups of {SIZE}, steps of {STEP_MS} ms, {n} iterations"
    notes = {"share": note, "order": f"{note}; lengths predicted by a moving mean per level", "order of groups": f"{note}; 'pace': groups go on"}
    for what, ways in foretold(n).items():
        (base, before), (other, after) = ways.items()
        for how, ms in ways.items():
            measure = lambda what=what, how=how: run_ms(n, what, how, MockClock())  # noqa: E731
            rows.append(
                Case(
                    f"parity, {what}: {how}", "ms an iteration", measure, {"predicted": lambda ms=ms: ms}, target="<= 1.001", runs=1,
                    note=f"{notes[what]}; the recipe's workers on a clock that only steps move",
                )
            )  # fmt: skip
        of = {"predicted": lambda gain=before / after: gain}
        gain = lambda what=what, base=base, other=other: run_ms(n, what, base) / run_ms(n, what, other)  # noqa: E731
        rows.append(Case(f"{what}: gain of {other}", "times", gain, of, target=">= 0.9", runs=runs, note=f"{notes[what]} that sleep; in seconds"))
    return rows
