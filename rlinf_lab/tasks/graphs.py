"""Shortest paths in small random graphs."""

from __future__ import annotations

import itertools
from collections import deque
from typing import ClassVar

import numpy as np

from rlinf_lab.tasks.task import Problem, RewardResult, Task, answer_of

NODES = "abcdefghijkl"


class ShortestPath(Task):
    """``ab,bc,ac,cd:a>d=`` is answered by ``#acd``: any shortest path counts. Level k has 2·k + 2 nodes."""

    name: ClassVar[str] = "shortest_path"
    alphabet = NODES + ",:>=#"
    levels = 5
    max_length = len(NODES) + 1

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        nodes = [NODES[i] for i in rng.permutation(2 * level + 2)]
        # A random tree keeps it connected; half as many edges more make ways around.
        edges = {_edge(nodes[i], nodes[int(rng.integers(i))]) for i in range(1, len(nodes))}
        for _ in range(len(nodes) // 2):
            a, b = rng.choice(len(nodes), 2, replace=False)
            edges.add(_edge(nodes[a], nodes[b]))
        start, goal = (nodes[i] for i in rng.choice(len(nodes), 2, replace=False))
        listed = sorted(edges)
        order = rng.permutation(len(listed))
        prompt = f"{','.join(listed[i] for i in order)}:{start}>{goal}="
        path = shortest_path(edges, start, goal)
        return Problem(prompt, path, level, {"edges": tuple(listed), "start": start, "goal": goal})

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        path = answer_of(completion)
        if path is None:
            return RewardResult(0.0, "no answer")
        start, goal, edges = (problem.detail[k] for k in ("start", "goal", "edges"))
        if not path or (path[0], path[-1]) != (start, goal):
            return RewardResult(0.0, f"does not lead from {start} to {goal}")
        missing = [a + b for a, b in itertools.pairwise(path) if _edge(a, b) not in edges]
        if missing:
            return RewardResult(0.0, f"there is no edge {missing[0]}")
        if len(path) > len(problem.answer):
            return RewardResult(0.0, f"{len(path) - 1} steps, {len(problem.answer) - 1} are enough")
        return RewardResult(1.0, "right")


def shortest_path(edges: set[str], start: str, goal: str) -> str:
    """A path of fewest edges, by breadth first; the graph must be connected."""
    before = {start: ""}
    waiting = deque([start])
    while goal not in before:
        node = waiting.popleft()
        for neighbour in sorted({e.replace(node, "", 1) for e in edges if node in e}):
            if neighbour not in before:
                before[neighbour] = node
                waiting.append(neighbour)
    path = goal
    while before[path[0]]:
        path = before[path[0]] + path
    return path


def _edge(a: str, b: str) -> str:
    return "".join(sorted((a, b)))
