"""Environments by id. The core knows no simulator: adapters announce themselves as entry points of ``rlinf_lab.envs``,
or are registered by hand in a notebook cell."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from numbers import Integral
from typing import Any, Protocol

from rlinf_lab.errors import ConfigError, MissingDependencyError, UnknownNameError, shown
from rlinf_lab.vecenv.base import VecEnv

GROUP = "rlinf_lab.envs"


class Adapter(Protocol):
    """What an entry point ``rlinf_lab.envs`` loads: an object with these functions (a module will do).

    ``tasks()`` lists the names of the tasks that can be made here, ``has(task)`` says whether there is one of that name;
    ``make(task, num_envs, horizon, *, options)`` builds a vector, its options by name. A missing simulator raises
    `MissingDependencyError` in all of them. One that knows of vectors that cannot leave a device may have ``cannot_leave(task)``: why not, or "".
    """

    def tasks(self) -> list[str]: ...
    def has(self, task: str) -> bool: ...
    def make(self, task: str, num_envs: int, horizon: int | None, **options: Any) -> VecEnv: ...


_REGISTERED: dict[str, Callable[..., VecEnv]] = {}


def register_env(id: str, make: Callable[..., VecEnv]) -> None:
    """Add an environment: ``make(num_envs=..., horizon=..., **options)`` builds the vector. ``id`` is "simulator/task"."""
    if not isinstance(id, str) or id.count("/") != 1:
        raise ConfigError(f"register_env({shown(id)}): an id has the form 'simulator/task', for example 'mine/Reach-v0'.")
    if not callable(make):
        raise ConfigError(f"register_env({id!r}, {shown(make)}): the second is a function, make(num_envs=..., horizon=..., **options).")
    _REGISTERED[id] = make


def make_vec(id: str, num_envs: int = 1, horizon: int | None = None, **options: Any) -> VecEnv:
    """N environments of one task.

    ``horizon``: steps after which an episode is cut (None: the task's own). Raises `UnknownNameError` with the nearest id,
    `MissingDependencyError` naming the extra of a simulator that is not installed, `ConfigError` for a bad number.
    """
    if not isinstance(id, str):
        raise ConfigError(f"make_vec({shown(id)}): an id has the form 'simulator/task'. Next: lab.list_envs() lists them.")
    if not _is_count(num_envs):
        raise ConfigError(f"make_vec({id!r}, num_envs={shown(num_envs)}): a whole number of at least 1.")
    if horizon is not None and not _is_count(horizon):
        raise ConfigError(f"make_vec({id!r}, horizon={shown(horizon)}): a whole number of steps of at least 1, or None.")
    if id in _REGISTERED:
        _check_options(id, _REGISTERED[id], options)
        return _REGISTERED[id](num_envs=num_envs, horizon=horizon, **options)
    simulator, _, task = id.partition("/")
    found = {point.name: point for point in entry_points(group=GROUP)}
    if simulator not in found or not task:
        known = [*_REGISTERED, *(f"{name}/…" for name in found)]
        raise UnknownNameError.of("environment", id, known, "Ids have the form 'simulator/task'; lab.list_envs() lists them.")
    adapter: Adapter = found[simulator].load()
    if not adapter.has(task):
        raise UnknownNameError.of("environment", id, [f"{simulator}/{t}" for t in adapter.tasks()])
    _check_options(id, adapter.make, options)
    return adapter.make(task, num_envs, horizon, **options)


def cannot_leave_by_id(id: str) -> str:
    """Why vectors of this environment cannot leave a device, as far as its adapter tells without one; "" when they can, or nobody knows."""
    simulator, _, task = id.partition("/")
    point = None if id in _REGISTERED else next((p for p in entry_points(group=GROUP) if p.name == simulator), None)
    if point is None:
        return ""
    try:
        adapter: Any = point.load()
        return str(adapter.cannot_leave(task)) if hasattr(adapter, "cannot_leave") and adapter.has(task) else ""
    except MissingDependencyError:  # it is installed where the worker will live, perhaps
        return ""


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _check_options(id: str, make: Callable[..., VecEnv], options: dict[str, Any]) -> None:
    """`UnknownNameError` for an option that ``make`` does not have."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in ("task", "num_envs", "horizon")]
    for option in options:
        if option not in known:
            raise UnknownNameError.of(f"option of {id}", option, known)


def list_envs(simulator: str | None = None) -> list[str]:
    """Ids of the environments that `make_vec` can make here; of one simulator if given.

    Raises `UnknownNameError` for a simulator that nobody knows, `MissingDependencyError` for one that is not installed.
    """
    points = {point.name: point for point in entry_points(group=GROUP)}
    known = {*points, *(i.partition("/")[0] for i in _REGISTERED)}
    if simulator is not None and simulator not in known:
        raise UnknownNameError.of("simulator", simulator, known)
    ids = [i for i in _REGISTERED if simulator in (None, i.partition("/")[0])]
    for name, point in points.items():
        if simulator in (None, name):
            try:
                ids += [f"{name}/{task}" for task in point.load().tasks()]
            except ImportError:
                if simulator is not None:  # asked for by name: say what is missing
                    raise
    return sorted(ids)
