"""Environments by id, or whatever else a researcher has in hand.

As one thing that makes vectors and travels to other processes.

    "CartPole-v1"  "numpy/ReachArm-v0"  a class  a function  a VectorEnv ──environment()──> EnvFactory ──(num_envs)──> VecEnv

The core knows no simulator: adapters announce themselves as entry points of ``rlinf_lab.envs``, or are registered by hand in a notebook cell.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import importlib
import inspect
import multiprocessing.queues
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, cast

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rlinf_lab.errors import (
    ConfigError,
    EnvError,
    MissingDependencyError,
    UnknownNameError,
    article,
    refuse_old_names,
    said,
    shown,
)
from rlinf_lab.vecenv.base import EnvSpec, Runner, VecEnv, cannot_leave
from rlinf_lab.vecenv.chosen import ChosenVecEnv
from rlinf_lab.vecenv.loop import LoopVecEnv
from rlinf_lab.vecenv.processes import ProcessVecEnv
from rlinf_lab.vecenv.runners import AUTO, LOOP, PROCESSES, Question, choose

GROUP = "rlinf_lab.envs"
OUTSIDE = (BaseProcess, Connection, multiprocessing.queues.Queue, subprocess.Popen, socket.socket)
"""what a vector holds of other processes"""
GYMNASIUM = "gymnasium"  # the adapter of single environments and vectors that are gymnasium's
OLD_NAMES = {"horizon": "max_episode_steps"}
KINDS = (
    "an id ('CartPole-v1', 'numpy/ReachArm-v0'), a gymnasium.Env class, a function that makes one, a VecEnv class or a function that makes one "
    "(num_envs=...), or a gymnasium.vector.VectorEnv"
)


class Adapter(Protocol):
    """What an entry point ``rlinf_lab.envs`` loads: an object with these functions (a module will do).

    ``tasks()`` lists the names of the tasks that can be made here, ``has(task)`` says whether there is one of that name;
    ``make(task, num_envs, max_episode_steps, *, options)`` builds a vector, its options by name. A missing simulator raises
    `MissingDependencyError` in all of them. It may have more:

    ``runners(task, options)``: names of its runners for a task, the best first, and whether each can share cores among threads; where there are several
    ``make`` takes ``runner``, and where one can share, ``cores``. ``spec(task, max_episode_steps)``: where spaces are known without making one.
    ``expert(task)``: its scripted policy, from observations of several environments to actions, or None.
    ``cannot_leave(task)``: why vectors cannot leave a device, or "". ``NEEDS``: what to install for it.
    """

    def tasks(self) -> list[str]: ...
    def has(self, task: str) -> bool: ...
    def make(self, task: str, num_envs: int, max_episode_steps: int | None, **options: Any) -> VecEnv: ...


@dataclass(frozen=True)
class EnvFactory:
    """What makes vectors of one environment: picklable, and complete in any process. Made by `environment`."""

    id: str
    make: Callable[..., VecEnv]
    """``make(num_envs=..., max_episode_steps=..., **options)``"""
    given: Any = None
    """the class or function that was handed over, if any"""
    runner: Runner | None = None
    """what steps its vectors where none is asked for; None: chosen by measuring, for each vector"""

    def __repr__(self) -> str:
        return f"EnvFactory({self.id!r}{f', steps by {self.runner.name}' if self.runner else ''})"

    def __call__(self, num_envs: int = 1, max_episode_steps: int | None = None, *, runner: str = AUTO, cores: int = 1, **options: Any) -> VecEnv:
        """A vector; see `make_vec`. `ConfigError` for a bad number, `UnknownNameError` for an option that there is not."""
        self._check(num_envs, max_episode_steps, cores, options)
        ways = self._ways(int(num_envs), max_episode_steps, int(cores), options, runner)
        chosen = self._chosen(int(num_envs), max_episode_steps, int(cores), options, runner, ways)
        env = ways[chosen.name](int(num_envs))
        if chosen.name == LOOP and not isinstance(env, LoopVecEnv):
            chosen = replace(chosen, name=type(env).__name__)  # a vector of somebody's own
        chosen = replace(chosen, cores=getattr(env, "cores", 1))
        with contextlib.suppress(AttributeError):  # somebody's own vector may not have it changed
            env.spec = replace(env.spec, runner=chosen)
        return ChosenVecEnv(env, ways) if chosen.rates and runner == AUTO else env

    def for_run(
        self, num_envs: int, max_episode_steps: int | None = None, *, runner: str = AUTO, cores: int = 1, elsewhere: bool = True, **options: Any
    ) -> EnvFactory:
        """This factory with one runner for all vectors of a run.

        The run has ``num_envs`` environments, however a plan divides them; see `make_vec`.

        Chosen for vectors of different sizes, runners would differ, and they differ in the last digits of their numbers. Where the simulator is not installed
        here it stays as it is, and each vector chooses: it may be installed where the workers will live. With ``elsewhere=False``, where they live here, it is
        refused: `MissingDependencyError` names the command that installs it.
        """
        self._check(num_envs, max_episode_steps, cores, options)
        self._check_copies(int(num_envs))
        try:
            if not elsewhere and hasattr(adapter := self._adapter(), "spec"):  # which is known without a simulator
                adapter.tasks()
            ways = self._ways(int(num_envs), max_episode_steps, int(cores), options, runner)
            return replace(self, runner=self._chosen(int(num_envs), max_episode_steps, int(cores), options, runner, ways))
        except MissingDependencyError:
            if not elsewhere:
                raise
            return self

    @property
    def size(self) -> int | None:
        """How many environments its vectors have, where that cannot be chosen: a VectorEnv was given."""
        return self.given.num_envs if isinstance(self.given, gymnasium.vector.VectorEnv) else None

    def _check_copies(self, num_envs: int) -> None:
        """A run has several vectors: of training, of evaluations, after a change of its plan. `ConfigError` where one was given that cannot be copied."""
        if self.size is None:
            return
        advice = "a function that takes num_envs, such as functools.partial(gymnasium.make_vec, 'CartPole-v1')"
        if num_envs != self.size:
            raise ConfigError(f"{self.id}: this VectorEnv has {self.size} environments, num_envs is {num_envs}. Next: num_envs={self.size}, or {advice}.")
        _refuse_running_statistics(self.id, self.given)
        refused = f"{self.id}: a run needs several vectors like this {type(self.given).__name__}, which cannot be copied"
        if elsewhere := _held_outside(self.given):
            raise ConfigError(f"{refused} ({elsewhere}). Next: {advice}.")
        try:
            copy.deepcopy(self.given).close()
        except Exception as error:  # whatever a simulator raises
            why = f"{type(error).__name__}: {said(error)}"[:200]
            raise ConfigError(f"{refused} ({why}). Next: {advice}.") from error

    def _chosen(
        self, num_envs: int, max_episode_steps: int | None, cores: int, options: dict[str, Any], wanted: str, ways: dict[str, Callable[[int], VecEnv]]
    ) -> Runner:
        if wanted == AUTO and self.runner is not None:
            if self.runner.name not in ways:
                raise UnknownNameError.of("runner", self.runner.name, ways, whose=self.id)
            return self.runner
        said_of = ", ".join(f"{name}={value!r}" for name, value in (("max_episode_steps", max_episode_steps), *options.items()) if value is not None)
        return choose(Question(self.id, num_envs, cores, ways, said_of, self.given is None and not options), wanted)

    def _check(self, num_envs: Any, max_episode_steps: Any, cores: Any, options: dict[str, Any]) -> None:
        if not _is_count(num_envs):
            raise ConfigError(f"make_vec({self.id!r}, num_envs={shown(num_envs)}): a whole number of at least 1.")
        if max_episode_steps is not None and not _is_count(max_episode_steps):
            raise ConfigError(f"make_vec({self.id!r}, max_episode_steps={shown(max_episode_steps)}): a whole number of steps of at least 1, or None.")
        if not _is_count(cores):
            raise ConfigError(f"make_vec({self.id!r}, cores={shown(cores)}): a whole number of at least 1.")
        refuse_old_names(f"make_vec({self.id!r})", options, OLD_NAMES)

    def runners(self, **options: Any) -> dict[str, bool]:
        """Runners in one process that its adapter has, the best first.

        The value says whether one can share several cores among threads.
        """
        adapter = self._adapter()
        asked = getattr(adapter, "runners", None)
        return dict(asked(self.id.partition("/")[2], options)) if asked is not None else {LOOP: False}

    def takes(self, option: str) -> bool:
        """Whether the adapter's ``make`` has this option."""
        adapter = self._adapter()
        return adapter is not None and takes(adapter.make, option)

    def _ways(
        self, num_envs: int, max_episode_steps: int | None, cores: int, options: dict[str, Any], wanted: str
    ) -> dict[str, Callable[[int], VecEnv]]:
        """See `runners.Question`."""
        runners = self.runners(**options)
        ways: dict[str, Callable[[int], VecEnv]] = {}
        for name, shares in runners.items():
            told = {**({"runner": name} if len(runners) > 1 else {}), **({"cores": cores} if shares and cores > 1 else {})}
            ways[name] = partial(self._made, max_episode_steps, {**told, **options})
        gains = cores > 1 and num_envs > 1  # one process alone is for whoever asks: faults stay in it
        if (gains or PROCESSES in (wanted, self.runner.name if self.runner else None)) and not isinstance(self.given, gymnasium.vector.VectorEnv):
            share = partial(self._share, max_episode_steps, options)
            ways[PROCESSES] = lambda n: ProcessVecEnv(share, n, min(cores, n))
        return ways

    def _made(self, max_episode_steps: int | None, told: dict[str, Any], num_envs: int) -> VecEnv:
        return self.make(num_envs=num_envs, max_episode_steps=max_episode_steps, **told)

    def _share(self, max_episode_steps: int | None, options: dict[str, Any], num_envs: int) -> VecEnv:
        """In a process of its own, by the first of the adapter's runners.

        The processes of a vector shall not choose differently.
        """
        return self(num_envs, max_episode_steps, runner=next(iter(self.runners(**options))), **options)

    def _adapter(self) -> Any:
        """Of the simulator; None where a class or a function was handed over."""
        point = adapters().get(self.id.partition("/")[0]) if self.given is None else None
        return None if point is None else point.load()

    def spec(self, max_episode_steps: int | None = None, **options: Any) -> EnvSpec:
        """Read from an environment that is made for it and closed.

        `ConfigError` where a wrapper of it keeps running statistics, which no two vectors would share.
        """
        if self.size is not None:
            return self(self.size, max_episode_steps, **options).spec
        if (known := self._known_spec(max_episode_steps)) is not None and not options:
            return known
        env = self(1, max_episode_steps, **{**options, "runner": next(iter(self.runners())), "cores": 1})
        try:
            _refuse_running_statistics(self.id, env)
            return env.spec
        finally:
            env.close()

    def expert(self) -> Callable[[Any], Any]:
        """The scripted policy of the task; `ConfigError` where there is none.

        From observations of several environments to actions, where its simulator has one.
        """
        adapter = self._adapter()
        scripted = getattr(adapter, "expert", None)
        policy = None if scripted is None else scripted(self.id.partition("/")[2])
        if policy is None:
            raise ConfigError(
                f"{self.id} has no scripted expert; those of Meta-World have one (metaworld/push-v3). Next: a trained policy, or a function from "
                "observations of several environments to their actions."
            )
        return cast(Callable[[Any], Any], policy)

    def __getstate__(self) -> dict[str, Any]:
        """With what was registered by hand in this process.

        A function may make environments by id, and shall find them where it is called.
        """
        by_hand = {id: spec for id, spec in gymnasium.registry.items() if not isinstance(spec.entry_point, str)} if callable(self.given) else {}
        return {**self.__dict__, "by_hand": by_hand, "registered": dict(_REGISTERED) if callable(self.given) else {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for id, spec in state.pop("by_hand").items():
            gymnasium.registry.setdefault(id, spec)
        for id, make in state.pop("registered").items():
            _REGISTERED.setdefault(id, make)
        self.__dict__.update(state)

    def _known_spec(self, max_episode_steps: int | None) -> EnvSpec | None:
        """As the adapter says without a simulator, where it can."""
        simulator, _, task = self.id.partition("/")
        adapter: Any = adapters()[simulator].load() if self.given is None and simulator in adapters() else None
        if not hasattr(adapter, "spec"):
            return None
        try:
            return cast(EnvSpec, adapter.spec(task, max_episode_steps)) if adapter.has(task) else None
        except MissingDependencyError:  # it is installed where the worker will live, perhaps
            return cast(EnvSpec, adapter.spec(task, max_episode_steps))

    def cannot_leave(self) -> str:
        """Why its vectors cannot leave a device; "" when they can.

        As far as that can be told without one; "" also when nobody knows.
        """
        simulator, _, task = self.id.partition("/")
        if isinstance(self.given, type) and not issubclass(self.given, gymnasium.Env):
            return cannot_leave(self.given)
        point = None if self.given is not None else adapters().get(simulator)
        if point is None:
            return ""
        try:
            adapter: Any = point.load()
            return str(adapter.cannot_leave(task)) if hasattr(adapter, "cannot_leave") and adapter.has(task) else ""
        except MissingDependencyError:  # it is installed where the worker will live, perhaps
            return ""


_REGISTERED: dict[str, Callable[..., Any]] = {}


def register(id: str, make: Callable[..., Any]) -> None:
    """Add an environment under an id, "simulator/task".

    ``make`` is whatever `environment` takes but an id: a class, or a function that makes one.
    """
    if not isinstance(id, str) or id.count("/") != 1:
        raise ConfigError(f"register({shown(id)}): an id has the form 'simulator/task', for example 'mine/Reach-v0'.")
    if not callable(make):
        raise ConfigError(f"register({id!r}, {shown(make)}): the second is a class or a function that makes an environment.")
    _REGISTERED[id] = make


def make_vec(id: Any, num_envs: int = 1, max_episode_steps: int | None = None, *, runner: str = AUTO, cores: int = 1, **options: Any) -> VecEnv:
    """N environments of one task, from whatever `environment` takes.

    ``max_episode_steps``: after so many an episode is cut (None: the task's own limit). ``runner``: what steps them; "auto" measures those that there are
    for some milliseconds, takes the fastest and says so (``env.spec.runner``). ``cores``: how many it may use, by threads or processes
    (``env.spec.runner.cores``: how many it does). Raises `UnknownNameError` with the nearest id,
    `MissingDependencyError` naming the extra of a simulator that is not installed, `ConfigError` for a bad number.
    """
    return environment(id)(num_envs, max_episode_steps, runner=runner, cores=cores, **options)


def environment(env: Any) -> EnvFactory:
    """What makes vectors of ``env``: an id, a class, a function, a VectorEnv. Looked up now, so that it is found in every process.

    Raises `UnknownNameError` with the nearest id, `ConfigError` for anything else that is no environment.
    """
    if isinstance(env, EnvFactory):
        return env
    if isinstance(env, str):
        return _by_id(env)
    if isinstance(env, VecEnv) and isinstance(env.spec, EnvSpec):
        again = "the class or function that it was made from"
        with contextlib.suppress(UnknownNameError, MissingDependencyError):
            again = repr(_by_id(env.spec.id).id)
        raise ConfigError(f"{shown(env, 60)}: a vector that has been made, and a run makes several of its own. Next: {again}.")
    if isinstance(env, gymnasium.vector.VectorEnv):
        return EnvFactory(_name_of(env), partial(_from_vector, _name_of(env), env), env)
    if isinstance(env, gymnasium.Env):
        return _of_an_instance(env)
    if callable(env) and not _looks_like_an_instance(env):
        return EnvFactory(_name_of(env), partial(_from_callable, _name_of(env), env), env)
    raise ConfigError(f"{shown(env)} is {_kind_of(env)}, and no environment. Next: {KINDS}.")


# --- by id ----------------------------------------------------------------------------------------------------------------
def _by_id(id: str) -> EnvFactory:
    if id in _REGISTERED:
        return EnvFactory(id, partial(_from_callable, id, _REGISTERED[id]), _REGISTERED[id])
    simulator, _, task = id.partition("/")
    if simulator in adapters() and task and simulator != GYMNASIUM:
        return EnvFactory(id, partial(_from_adapter, simulator, task))
    wanted = task if simulator == GYMNASIUM and task else id
    spec = _gymnasium_spec(wanted)
    if spec is None:
        hint = "lab.envs.ids() lists what there is; a class or a function will do, too."
        if task and simulator == "ALE":
            hint += f" Of Atari: 'atari/{task}', preprocessed as usual, or 'ale_py:{id}', frame by frame."
        elif simulator == "reasoning":
            hint += f" Tasks of language are GRPO's: lab.train('grpo', {id!r})."
        elif task and simulator not in adapters():
            hint += f" What a package registers with gymnasium is known when it is imported, or as 'package:{id}'."
        raise UnknownNameError.of("environment", id, _known_ids(simulator, "/" in id), hint)
    return EnvFactory(f"{GYMNASIUM}/{wanted}", partial(_from_gymnasium, "from_spec", f"{GYMNASIUM}/{wanted}", spec))


def _known_ids(simulator: str, simulator_given: bool) -> list[str]:
    prefix = f"{GYMNASIUM}/" if simulator == GYMNASIUM else ""
    known = [*_REGISTERED, *(f"{name}/…" for name in adapters())]
    if simulator in adapters() or not difflib.get_close_matches(simulator, adapters(), n=1):  # else it is one misspelt
        known += [prefix + task for task in gymnasium.registry]
    return [id for id in known if "/" in id] if simulator_given else known


def _gymnasium_spec(task: str) -> Any:
    module, colon, task = task.rpartition(":")
    if colon:  # "ale_py:ALE/Pong-v5", as gymnasium.make takes it
        try:
            importlib.import_module(module)
        except (ModuleNotFoundError, ValueError) as error:  # ValueError: of an empty name
            raise MissingDependencyError(
                f"Environment {shown(f'{module}:{task}')}: the module {module!r} cannot be imported, {error}. Next: install what has it, or a name that "
                "Python finds; 'package:id' imports the package, which registers the id."
            ) from error
    try:
        spec = gymnasium.spec(task)
    except gymnasium.error.Error:
        return None
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):  # which is another module elsewhere
        spec = copy.copy(spec)
        spec.entry_point = cast(Any, load_env_creator(str(spec.entry_point)))  # gymnasium's types know ids of vectors there, too
    return spec


def _from_adapter(simulator: str, task: str, *, num_envs: int, max_episode_steps: int | None, **options: Any) -> VecEnv:
    adapter: Adapter = adapters()[simulator].load()
    if not adapter.has(task):
        raise UnknownNameError.of("environment", f"{simulator}/{task}", [f"{simulator}/{t}" for t in adapter.tasks()])
    _check_options(f"{simulator}/{task}", adapter.make, options)
    return adapter.make(task, num_envs, max_episode_steps, **options)


def _from_gymnasium(function: str, id: str, what: Any, **arguments: Any) -> VecEnv:
    """What the adapter of gymnasium makes of something of gymnasium's.

    An EnvSpec, a class, a function or a VectorEnv.
    """
    vector: VecEnv = getattr(adapters()[GYMNASIUM].load(), function)(id, what, **arguments)
    return vector


def _from_vector(id: str, env: gymnasium.vector.VectorEnv, **arguments: Any) -> VecEnv:
    """A copy, so that each vector begins as the given one.

    That stays as it is, and is itself used where it cannot be copied.
    """
    if not _held_outside(env):
        with contextlib.suppress(Exception):  # whatever a simulator raises
            env = copy.deepcopy(env)
    return _from_gymnasium("from_vector", id, env, **arguments)


def _layers(env: Any) -> Iterator[Any]:
    """An environment, what it wraps, and the environments of a vector.

    These with what they wrap, too.

    Those of gymnasium are given out; vectors of this package are looked into.
    """
    waiting, seen = [env], set[int]()
    while waiting:
        layer = waiting.pop()
        if id(layer) not in seen and layer is not None:
            seen.add(id(layer))
            if isinstance(layer, (gymnasium.vector.VectorEnv, gymnasium.Env)):
                yield layer
            inside = getattr(layer, "__dict__", {})
            envs = layer.envs if isinstance(layer, LoopVecEnv) else inside.get("envs")
            waiting += [inside.get("env"), *(envs if isinstance(envs, (list, tuple)) else ())]


def _held_outside(env: gymnasium.vector.VectorEnv) -> str:
    """Which part of a vector is a process or a pipe, or "".

    For a message.

    To be asked before a copy is begun: the copy of a pipe has the number of the original, and closes it when it is dropped, even where copying failed.
    """
    for layer in _layers(env):
        if isinstance(layer, gymnasium.vector.AsyncVectorEnv):
            return "its environments live in processes of their own"
        for name, value in getattr(layer, "__dict__", {}).items():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else (value,)
            for part in parts:
                if isinstance(part, OUTSIDE):
                    return f"{type(layer).__name__}.{name} is a {type(part).__name__}, and no copy of it would be another"
    return ""


def _refuse_running_statistics(id: str, env: Any) -> None:
    """`ConfigError` for a wrapper whose statistics change from step to step.

    As those of gymnasium's `NormalizeObservation` do.
    """
    for layer in _layers(env):
        inside = getattr(layer, "__dict__", {})
        if inside.get("_update_running_mean", True) and any(name.endswith("_rms") for name in inside):
            raise ConfigError(
                f"{id}: {type(layer).__name__} keeps running statistics, which no two vectors share: evaluations would see others than training. "
                "Next: leave the wrapper out; the run normalises by itself, observations with normalize_obs=True, rewards with normalize_reward=True "
                "(see help(run.config)). Or freeze it: update_running_mean = False."
            )


def adapters() -> dict[str, EntryPoint]:
    return announced(GROUP)


def announced(group: str) -> dict[str, EntryPoint]:
    """What installed packages announce, by name.

    Looked for anew where a folder that Python searches has changed, as it does when something is installed: to read what all packages say takes 14 ms.
    """
    return dict(_announced(group, tuple((path, _changed_ns(path)) for path in sys.path)))


@functools.lru_cache(maxsize=8)
def _announced(group: str, folders: tuple[tuple[str, int], ...]) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _changed_ns(path: str) -> int:
    try:
        return Path(path or ".").stat().st_mtime_ns
    except OSError:
        return 0


# --- what a researcher has in hand ------------------------------------------------------------------------------------------
def _of_an_instance(env: gymnasium.Env) -> EnvFactory:
    if env.spec is None:
        raise ConfigError(
            f"{shown(env)} is a single environment that has been made already, and several are needed. Next: the class, {type(env.unwrapped).__name__}, "
            f"or a function that makes one: lambda: {type(env.unwrapped).__name__}(...)."
        )
    id = f"{GYMNASIUM}/{env.spec.id}"
    return EnvFactory(id, partial(_from_gymnasium, "from_spec", id, env.spec), env.spec)  # it knows the wrappers, too


def _from_callable(id: str, make: Callable[..., Any], *, num_envs: int, max_episode_steps: int | None, **options: Any) -> VecEnv:
    """Whatever the function gives: single environments of gymnasium's, or a vector."""
    if isinstance(make, type) and issubclass(make, gymnasium.Env):
        return _from_gymnasium("from_maker", id, make, num_envs=num_envs, max_episode_steps=max_episode_steps, **options)
    names = parameters(make)
    refuse_old_names(f"{id}, a parameter of the function that makes it", names, OLD_NAMES)
    _check_options(id, make, options)
    if "num_envs" not in names:
        return _from_zero_arguments(id, make, num_envs, max_episode_steps, options)
    limit = {"max_episode_steps": max_episode_steps} if "max_episode_steps" in names else {}
    made: Any = make(**{"num_envs": num_envs, **limit, **options})
    return _as_vector(id, made, num_envs, None if limit else max_episode_steps)


def _from_zero_arguments(id: str, make: Callable[..., Any], num_envs: int, max_episode_steps: int | None, options: dict[str, Any]) -> VecEnv:
    first = make(**options)
    if not isinstance(first, gymnasium.Env):
        return _as_vector(id, first, num_envs, max_episode_steps)
    given = iter([first])

    def single() -> Any:
        return next(given, None) or make(**options)

    return _from_gymnasium("from_maker", id, single, num_envs=num_envs, max_episode_steps=max_episode_steps)


def _as_vector(id: str, made: Any, num_envs: int, max_episode_steps: int | None) -> VecEnv:
    """A vector that somebody made, as one of ours. `EnvError` for anything else."""
    if isinstance(made, gymnasium.vector.VectorEnv):
        return _from_gymnasium("from_vector", id, made, num_envs=num_envs, max_episode_steps=max_episode_steps)
    if isinstance(made, gymnasium.Env):
        raise EnvError(f"{id}: the function takes num_envs and gave a single environment, {shown(made)}. Next: one without num_envs, or gymnasium.make_vec.")
    if not isinstance(made, VecEnv) or not isinstance(made.spec, EnvSpec):
        raise EnvError(f"{id}: the function gave {shown(made)}, {_kind_of(made)}, and no environment. Next: {KINDS}.")
    if made.num_envs != num_envs:
        raise EnvError(f"{id}: the function gave {made.num_envs} environments, {num_envs} are needed. Next: let it take num_envs.")
    return made


def _kind_of(thing: Any) -> str:
    """What it is, for a message. With a word on what people have instead of an environment."""
    module = type(thing).__module__
    if module.partition(".")[0] == "gym":
        return "an environment of the old package gym (Next: pip install shimmy, gymnasium.make('GymV26Environment-v0', env=...))"
    if module.startswith("stable_baselines3"):
        return "a vector of stable-baselines3 (Next: give the function that makes a single one of its environments)"
    missing = [name for name in ("num_envs", "spec", "reset", "step", "render", "close") if not hasattr(thing, name)]
    what = "None" if thing is None else article(type(thing).__name__)
    return f"{what} without {', '.join(missing)}" if missing and len(missing) < 6 else what


def _looks_like_an_instance(env: Any) -> bool:
    return not isinstance(env, type) and hasattr(env, "step") and hasattr(env, "reset")


def _name_of(env: Any) -> str:
    """An id for what has none. Its class or function in the module that it is from."""
    if getattr(env, "spec", None) is not None and not isinstance(env, type):
        return f"{GYMNASIUM}/{env.spec.id}" if hasattr(env.spec, "id") else str(env.spec)
    while isinstance(env, partial):
        env = env.func
    named = env if hasattr(env, "__qualname__") else type(env)
    return f"{named.__module__.rpartition('.')[2].strip('_')}/{named.__qualname__.rpartition('.')[2]}"


def parameters(make: Callable[..., Any]) -> list[str]:
    """Names that a function takes."""
    try:
        taken = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    return [p.name for p in taken if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


def takes(make: Callable[..., Any], name: str) -> bool:
    """Whether a function takes an argument of that name."""
    return name in parameters(make)


def _check_options(id: str, make: Callable[..., Any], options: dict[str, Any]) -> None:
    """`UnknownNameError` for an option that ``make`` does not have."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    taken = ("task", "num_envs", "max_episode_steps")
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in taken]
    for option in options:
        if option not in known:
            raise UnknownNameError.of("option", option, known, whose=id)


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def ids(simulator: str | None = None) -> list[str]:
    """Ids of the environments that `make_vec` can make here; of one simulator if given.

    Raises `UnknownNameError` for a simulator that nobody knows, `MissingDependencyError` for one that is not installed.
    """
    points = adapters()
    known = {*points, *(i.partition("/")[0] for i in _REGISTERED)}
    if simulator is not None and simulator not in known:
        raise UnknownNameError.of("simulator", simulator, known)
    return sorted(_listed(simulator, points))


def _listed(simulator: str | None, points: dict[str, EntryPoint]) -> Iterator[str]:
    yield from (i for i in _REGISTERED if simulator in (None, i.partition("/")[0]))
    for name, point in points.items():
        if simulator in (None, name):
            try:
                yield from [f"{name}/{task}" for task in point.load().tasks()]
            except ImportError:
                if simulator is not None:  # asked for by name: say what is missing
                    raise
