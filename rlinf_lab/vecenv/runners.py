"""Which runner steps the environments of a vector.

What there is for a task is tried for some milliseconds, and the fastest one taken.

    loop       single environments one after another, in this process: for everything
    numpy, mujoco, batched ...   an adapter's own for some tasks, with the same numbers
    processes  shares of them in processes, where more than one core may be used; or one process, for who asks for it: faults stay in there

A measurement is remembered, in this process and in the user's cache folder, so that the next vector of that task and size is made at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.vecenv.base import Runner, VecEnv
from rlinf_lab.vecenv.spaces import sampled

AUTO, LOOP, PROCESSES = "auto", "loop", "processes"
TRIAL_SECONDS = 0.02
WARM_STEPS, MOST_STEPS = 3, 500
TRIED_ENVS = 256  # of more environments so many are tried: making thousands, for a moment, takes minutes in a loop

Make = Callable[[int], VecEnv]


@dataclass(frozen=True)
class Question:
    """Which of ``ways`` shall step ``num_envs`` environments of ``id``."""

    id: str
    num_envs: int
    cores: int
    ways: Mapping[str, Make] = field(repr=False)
    """name of the runner -> what makes a vector; the first is taken to be the best"""
    options: str = ""
    """what else it depends on"""
    remembers: bool = True
    """whether the id and these words say it all, in other processes too"""

    @property
    def key(self) -> str:
        return f"{self.id} × {self.num_envs} on {self.cores} of {os.cpu_count()} cores: {', '.join(self.ways)} {self.options}".rstrip()


def choose(question: Question, wanted: str) -> Runner:
    """``wanted``: the name of a runner, or "auto". `UnknownNameError` for one that this task does not have."""
    if not isinstance(wanted, str):
        raise ConfigError(f"make_vec({question.id!r}, runner={shown(wanted)}): 'auto', or one of {', '.join(question.ways)}.")
    if wanted != AUTO:
        if wanted not in question.ways:
            raise UnknownNameError.of("runner", wanted, [*question.ways, PROCESSES], whose=question.id)
        return Runner(wanted, "by its name")
    names = list(question.ways)
    if len(names) == 1:
        return Runner(names[0], "the only one")
    rates = _remembered(question.key)
    if rates is None or set(rates) != set(names):
        rates = {name: steps_per_second(make, min(question.num_envs, TRIED_ENVS)) for name, make in question.ways.items()}
        _remember(question.key, rates, question.remembers)
    best = max(names, key=rates.__getitem__)
    return Runner(best, "measured", {name: rates[name] for name in sorted(rates, key=rates.__getitem__, reverse=True)})


def steps_per_second(make: Make, num_envs: int, seconds: float = TRIAL_SECONDS) -> float:
    """Environment steps a second with actions at random, resets included. The vector is made for it and closed."""
    env = make(num_envs)
    try:
        env.reset(seed=0)
        actions = [sampled(env.spec.action_space, np.random.default_rng(k), num_envs) for k in range(WARM_STEPS)]
        for action in actions:
            env.step(action)
        steps, start = 0, time.perf_counter()
        while ((passed := time.perf_counter() - start) < seconds and steps < MOST_STEPS) or not steps:
            env.step(actions[steps % WARM_STEPS])
            steps += 1
        return steps * num_envs / passed
    finally:
        env.close()


# --- memory -----------------------------------------------------------------------------------------------------------------
_KNOWN: dict[str, dict[str, float]] = {}


def memory_file() -> Path | None:
    """In the user's cache, or the folder that ``RLINF_LAB_CACHE`` names. None where that is empty: nothing is kept."""
    folder = os.environ.get("RLINF_LAB_CACHE")
    if folder == "":
        return None
    return Path(folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlinf_lab") / "runners.json"


def _remembered(key: str) -> dict[str, float] | None:
    if key not in _KNOWN:
        _KNOWN.update({known: rates for known, rates in _read().items() if known not in _KNOWN})
    return _KNOWN.get(key)


def _read() -> dict[str, dict[str, float]]:
    path = memory_file()
    if path is None:
        return {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            return {str(key): {str(n): float(r) for n, r in rates.items()} for key, rates in found.items() if isinstance(rates, dict)}
    return {}


def _remember(key: str, rates: dict[str, float], in_file: bool) -> None:
    """In the file too, where it can be written. Another process may be writing it: it is replaced as a whole."""
    _KNOWN[key] = rates
    path = memory_file()
    if path is None or not in_file:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({**_read(), key: rates}, indent=1))
        written.replace(path)
