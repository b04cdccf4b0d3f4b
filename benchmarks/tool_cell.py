"""Eight responses, four of which call a tool: decode steps until all are answered.

A step takes 4 ms for one or for eight, a tool 30 ms. Taken one by one and only when nothing else runs, what comes back costs steps of
its own; taken as it comes, fewer; with a step put off until it is there, as few as the longest response has tokens, in the same time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from harness import Case

import rlinf_lab as lab
from rlinf_lab.generation import Completion, Generator, Request, SamplingParams, small_model
from rlinf_lab.planning.simulator.tool_cell import ToolCell
from rlinf_lab.tasks import Problem, Tool
from rlinf_lab.workers.reasoning import AgentGenerator, Asked, ToolWorker

TURNS = [(10, 2 + 3 * p) if p % 2 else (12 + 3 * p,) for p in range(8)]
"""tokens before the call and after it"""
BY_COUNT = ToolCell(step_s=0.004, tool_s=0.03, by_count=True)


class Sleeps(Tool):
    """Takes 30 ms."""

    name = "sleeps"

    def run(self, argument: str) -> str:
        time.sleep(0.03)
        return argument


class Scripted(Generator):
    """An engine whose answers have the turns of the toy."""

    context, vocabulary = 512, 32

    def __init__(self, called: int, end: int) -> None:
        super().__init__()
        self._called, self._end = called, end
        self._running: dict[str, tuple[Request, int]] = {}

    def _begin(self, request: Request) -> None:
        turn = int(request.prefix is not None)
        self._running[request.id] = (request, TURNS[request.item.prompt][turn])

    def _advance(self) -> list[Completion]:
        self._running = {key: (request, left - 1) for key, (request, left) in self._running.items()}
        over = [key for key, (_, left) in self._running.items() if not left]
        return [self._over(self._running.pop(key)[0]) for key in over]

    def _over(self, request: Request) -> Completion:
        had = request.prefix
        last = had is not None or len(TURNS[request.item.prompt]) == 1
        ids = np.array([2, self._end if last else self._called])
        before = [] if had is None else had.token_ids.tolist()
        n = len(before) + len(ids)
        return Completion(
            request.prompt_ids, np.array([*before, *ids]), np.zeros(n, np.float32), np.array([*(had.versions if had is not None else ()), 0, 0]), "stop",
            request.id, request.params, request.item,
        )  # fmt: skip

    def _break_off(self, ids: set[str]) -> list[Completion]:
        return [Completion.broken_off(self._running.pop(key)[0]) for key in ids]

    def _so_far(self) -> list[Completion]:
        return [Completion.broken_off(request) for request, _ in self._running.values()]

    def _take(self, state: Mapping[str, Any]) -> None:
        pass


class Agent(AgentGenerator):
    def setup(self) -> None:
        super().setup()
        self.generator = Scripted(int(self._called), self.model.stop_ids[0])


class Asking(lab.Worker):
    def ask(self, asked: lab.Outbox) -> None:
        asked.put_all([Asked(Problem("1", "1"), 0, p, 0) for p in range(len(TURNS))])


def executed(tools: int, patience_s: float) -> int:
    """Decode steps of the cell as workers on two devices, tools that really sleep."""
    flow = lab.Workflow("tool_cell")
    asked, turns, responses = (flow.channel(name, capacity=None) for name in ("asked", "turns", "responses"))
    answers, weights = flow.channel("answers", may_be_empty=True), flow.weights("policy")
    asking = flow.worker(Asking, name="asking")
    generator = flow.worker(Agent, lambda: small_model("12[];?"), SamplingParams(max_tokens=400), name="generator", patience_s=patience_s)
    worker = flow.worker(ToolWorker, [Sleeps()], name="tools", concurrency=tools, timeout_s=600.0)

    @flow.iteration
    def iteration() -> Any:
        asking.ask(asked)
        generator.generate_with_tools(asked, answers, turns, responses, weights)
        worker.answer(turns, answers)
        return len(responses.get_all())

    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"asking": [0], "generator": [0], "tools": [1]})
    run = lab.run(flow, plan, iterations=1, executor="local", dashboard=False)
    run.wait()
    assert run.results == [len(TURNS)]
    return int(run.metrics["decode_steps"].iloc[0])


def cases(smoke: bool) -> list[Case]:
    rows = []
    for tools in (1, 4):
        as_it_comes = ToolCell(step_s=0.004, tool_s=0.03, tools=tools)
        planned = as_it_comes.best(TURNS)
        times, plain, worst = (cell.simulate(TURNS) for cell in (planned, as_it_comes, BY_COUNT))
        note = f"{times.seconds:.3f} s in virtual time; {plain.seconds:.3f} s as it comes, {worst.seconds:.3f} s by count"
        rows.append(
            Case(
                f"tool_cell, {tools} tool{'s' * (tools > 1)} at once", "decode steps", lambda t=times: float(t.steps), {
                    "by count": lambda w=worst: float(w.steps), "as it comes": lambda p=plain: float(p.steps),
                }, "<= 35", "value", 1, note,
            )
        )  # fmt: skip
        rows.append(
            Case(
                f"tool_cell, {tools} tool{'s' * (tools > 1)} at once, as run", "decode steps", lambda n=tools: float(executed(n, math.inf)), target="<= 35",
                target_of="value", runs=1, note="generator and tools as workers on two devices, an engine with the toy's turns, tools that sleep 30 ms",
            )
        )  # fmt: skip
    return rows
