"""Tasks by name."""

from __future__ import annotations

import builtins
import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.tasks.countdown import Countdown
from rlinf_lab.tasks.graphs import ShortestPath
from rlinf_lab.tasks.gym import PREFIX, ReasoningGym
from rlinf_lab.tasks.jsonl import Jsonl
from rlinf_lab.tasks.remainder import Remainder
from rlinf_lab.tasks.sorting import Sorting
from rlinf_lab.tasks.task import Task
from rlinf_lab.tasks.tools import Products

if TYPE_CHECKING:
    import pandas as pd

ROOM = "reasoning/"
"""what the front door puts before the name of a task"""
FILE = ".jsonl"

_TASKS: dict[str, type[Task]] = {}


def register(kind: type[Task]) -> type[Task]:
    """Make a `Task` class known by its ``name``; a decorator. Registering again replaces."""
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ConfigError(f"register({shown(kind)}): a subclass of lab.tasks.Task is needed.")
    if kind.name == Task.name:
        raise ConfigError(f"{kind.__name__} has no name. Next: name = 'my_task' in the class.")
    _TASKS[kind.name] = kind
    return kind


for _kind in (Remainder, Countdown, Sorting, ShortestPath, Products):
    register(_kind)


def make(name: str, **options: Any) -> Task:
    """The task of this name; ``options`` go to its constructor. "reasoning/" may stand before it.

    "reasoning_gym/<data set>" is one of reasoning-gym's, with its own options; what ends with ".jsonl" is a file
    (`Jsonl`). Raises `UnknownNameError`, which suggests the nearest name, and `MissingDependencyError` where
    reasoning-gym is not installed.
    """
    plain = name.removeprefix(ROOM) if isinstance(name, str) else name
    if isinstance(plain, str) and plain.startswith(PREFIX):
        return ReasoningGym(plain.removeprefix(PREFIX), **options)
    if isinstance(plain, str) and plain.endswith(FILE):
        return Jsonl(plain, **options)
    if plain not in _TASKS:
        raise UnknownNameError.of("task", name, names())
    return _TASKS[plain](**options)


def names() -> builtins.list[str]:
    """What `make` takes."""
    return [*_TASKS, PREFIX + "<data set>", "<file>" + FILE]


def is_task(named: object) -> bool:
    """Whether this is a `Task`, or a name that only tasks have. "reasoning/…", "reasoning_gym/…", "….jsonl"."""
    if isinstance(named, str):
        return named.startswith((ROOM, PREFIX)) or named.endswith(FILE)
    return isinstance(named, Task)


def list() -> pd.DataFrame:
    """All tasks with their levels, sizes, an example, and whether they run here."""
    import pandas as pd

    rows: builtins.list[dict[str, Any]] = []
    for name, kind in sorted(_TASKS.items()):
        task = kind()
        (problem,) = task.sample(np.random.default_rng(0), 1, 1)
        example = f"{problem.prompt} {task.solution(problem)}"
        rows.append({"name": name, "levels": task.levels, "example": example, "needs": "", "runs_here": True})
    there = importlib.util.find_spec("reasoning_gym") is not None
    needs = "rlinf-lab[tasks]"
    rows.append({"name": PREFIX + "<data set>", "levels": 1, "example": "", "needs": needs, "runs_here": there})
    return pd.DataFrame(rows).set_index("name")
