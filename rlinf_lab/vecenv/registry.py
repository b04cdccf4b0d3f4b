"""Environments by id. The core knows no simulator: adapters announce themselves as entry points of ``rlinf_lab.envs``,
or are registered by hand in a notebook cell."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.vecenv.base import VecEnv

GROUP = "rlinf_lab.envs"


class Adapter(Protocol):
    """What an entry point ``rlinf_lab.envs`` loads: an object with these two functions (a module will do).

    ``tasks()`` lists the task names; ``make(task, num_envs, horizon, **options)`` builds a vector. A missing simulator raises
    `MissingDependencyError`, in both.
    """

    def tasks(self) -> list[str]: ...
    def make(self, task: str, num_envs: int, horizon: int | None, **options: Any) -> VecEnv: ...


_REGISTERED: dict[str, Callable[..., VecEnv]] = {}


def register_env(id: str, make: Callable[..., VecEnv]) -> None:
    """Add an environment: ``make(num_envs=..., horizon=..., **options)`` builds the vector. ``id`` is "simulator/task"."""
    if id.count("/") != 1:
        raise ConfigError(f"register_env({id!r}): an id has the form 'simulator/task', for example 'mine/Reach-v0'.")
    _REGISTERED[id] = make


def make_vec(id: str, num_envs: int = 1, horizon: int | None = None, **options: Any) -> VecEnv:
    """N environments of one task.

    ``horizon``: steps after which an episode is cut (None: the task's own). Raises `UnknownNameError` with the nearest id,
    `MissingDependencyError` naming the extra of a simulator that is not installed, `ConfigError` for a bad number.
    """
    if not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(f"make_vec({id!r}, num_envs={num_envs!r}): a whole number of at least 1.")
    if horizon is not None and (not isinstance(horizon, int) or horizon < 1):
        raise ConfigError(f"make_vec({id!r}, horizon={horizon!r}): a whole number of steps of at least 1, or None.")
    if id in _REGISTERED:
        return _REGISTERED[id](num_envs=num_envs, horizon=horizon, **options)
    simulator, _, task = id.partition("/")
    found = {point.name: point for point in entry_points(group=GROUP)}
    if simulator not in found or not task:
        known = [*_REGISTERED, *(f"{name}/…" for name in found)]
        raise UnknownNameError.of("environment", id, known, "Ids have the form 'simulator/task'; lab.list_envs() lists them.")
    adapter: Adapter = found[simulator].load()
    tasks = adapter.tasks()
    if task not in tasks:
        raise UnknownNameError.of("environment", id, [f"{simulator}/{t}" for t in tasks])
    return adapter.make(task, num_envs, horizon, **options)


def list_envs(simulator: str | None = None) -> list[str]:
    """Ids of all environments whose simulator is installed; of one simulator if given."""
    ids = [i for i in _REGISTERED if simulator in (None, i.partition("/")[0])]
    for point in entry_points(group=GROUP):
        if simulator in (None, point.name):
            try:
                ids += [f"{point.name}/{task}" for task in point.load().tasks()]
            except ImportError:
                if simulator is not None:  # asked for by name: say what is missing
                    raise
    return sorted(ids)
