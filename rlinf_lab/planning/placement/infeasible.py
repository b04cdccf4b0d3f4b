"""Why a worker fits nowhere."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement.budget import Budget, Stage
from rlinf_lab.planning.placement.free_memory import allowed
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.memory import ROUNDING


class Unplaceable(PlanError):
    """A worker fits nowhere: what is ``said`` (`feasible.nearest` looks for what would help). ``devices``: how many of
    each kind were to be had.
    """

    def __init__(self, said: str, devices: Mapping[str, int]) -> None:
        super().__init__(f"{said} Next: more devices, more memory on each, or other ranks.")
        self.said, self.devices = said, devices


def on_each(devices: int) -> str:
    """Where memory is needed, in words."""
    return "on 1 device" if devices == 1 else f"on each of {devices} devices"


def why_nowhere(setting: Budget, stage: Stage) -> str:
    """Of the first worker of a stage that cannot be placed."""
    for name in stage.members:
        found = _ranks(setting, name) or _memory(setting, (name,)) or _reach(setting, name)
        if found:
            return found
    return _memory(setting, stage.members) or _kinds(setting, stage) or _apart(setting, stage)


def _kinds(setting: Budget, stage: Stage) -> str:
    """Of kinds of devices none will do: too few, or too small."""
    if len(setting.devices) == 1:
        return ""
    for name in stage.members:
        found = []
        for kind, there in setting.devices.items():
            counts = _counts(setting, name)
            few = counts[counts <= there]
            if not len(few):
                found.append(
                    f"of {kind} there are {there}, it needs {counts.min()}"
                    if len(counts)
                    else f"of {kind} there are {there}"
                )
                continue
            least = float(_least_need(setting, (name,), few).min())
            if least > setting.cap(kind) + ROUNDING:
                found.append(f"a {kind} has {setting.cap(kind):g} GiB, it needs {least:.3g}")
        if len(found) == len(setting.devices):
            return f"Worker {name!r} fits on no kind of device: {'; '.join(found)}."
    return ""


def _apart(setting: Budget, stage: Stage) -> str:
    """The members of a cell share no number of devices. There are too few for them to sit apart."""
    fewest = {name: int(counts.min()) for name in stage.members if len(counts := _counts(setting, name))}
    needs = " + ".join(f"{n} {name}" for name, n in fewest.items())
    return (
        f"Workers {', '.join(map(repr, stage.members))} of a cell have no number of devices in common, and apart they "
        f"need {needs} = {sum(fewest.values())} devices; "
        f"{_there(setting)}."
    )


def _there(setting: Budget) -> str:
    if setting.counts == (1,):
        return "there is 1 device"
    return (
        "there are "
        + " + ".join(f"{n} {k}".strip() for k, n in setting.devices.items())
        + (" devices" if len(setting.devices) == 1 else "")
    )


def _counts(setting: Budget, *names: str) -> np.ndarray:
    devices = np.arange(1, max(setting.counts) + 1)
    return devices[np.all([allowed(setting.profile.workers[name], devices) for name in names], axis=0)]


def _ranks(setting: Budget, name: str) -> str:
    worker = setting.profile.workers[name]
    if worker.resource == "host" or len(_counts(setting, name)):
        return ""
    if worker.devices is not None:
        return f"Worker {name!r} is pinned to {worker.devices} devices, but {_there(setting)}."
    return (
        f"Worker {name!r} needs at least {worker.ranks.fewest} devices by profile.workers.{name}.ranks "
        f"({worker.ranks}), but {_there(setting)}."
    )


def _memory(setting: Budget, names: tuple[str, ...]) -> str:
    """``names``: workers that share each device."""
    cap = max(setting.cap(k) for k in setting.kinds)
    counts = _counts(setting, *names)
    if math.isinf(cap) or not len(counts):
        return ""
    needs = _least_need(setting, names, counts)
    if needs.min() <= cap + ROUNDING:
        return ""
    who = f"Worker {names[0]!r} needs" if len(names) == 1 else f"Workers {' and '.join(map(repr, names))} together need"
    return (
        f"{who} {needs.min():.3g} GiB {on_each(int(counts[needs.argmin()]))}, and "
        f"{'a' if len(setting.kinds) == 1 else 'the largest'} device has {cap:g} GiB."
    )


def _least_need(setting: Budget, names: tuple[str, ...], devices: np.ndarray) -> np.ndarray:
    """With the finest micro-batches, which hold the fewest items at once."""
    finest = max(setting.fewest_items(m) for m in names)
    workers = [setting.profile.workers[m] for m in names]
    rest = [memory.kept(w, devices, finest) for w in workers]
    own = [
        memory.needed(w, devices, finest, setting.profile.group_size(m)) for m, w in zip(names, workers, strict=True)
    ]
    return np.asarray(
        np.max([n + sum(rest) - r for n, r in zip(own, rest, strict=True)], axis=0)
    ) - memory.counted_twice(workers)


def _reach(setting: Budget, name: str) -> str:
    worker = setting.profile.workers[name]
    reach = max(setting.models[name, k].reach() for k in setting.kinds)
    counts = _counts(setting, name)
    finest = setting.fewest_items(name)
    if worker.resource == "host" or math.isinf(reach) or not len(counts) or finest / counts.max() <= reach:
        return ""
    return f"Worker {name!r} would have {finest / counts.max():g} items on a device, and was measured up to {reach:g}."
