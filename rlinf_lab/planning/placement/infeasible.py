"""Why a worker fits nowhere, and the nearest thing that would work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement.budget import Budget, Stage
from rlinf_lab.planning.placement.free_memory import allowed
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.memory import ROUNDING
from rlinf_lab.planning.schema.arguments import MAX_DEVICES

FURTHER_FACTOR = 64  # times as many devices as there are: so far a larger number is looked for


class Refusal(NamedTuple):
    """``said``: who fits nowhere and why; ``advice``: what is likely to help, with the memory and the devices in it as
    numbers where they are there.
    """

    said: str
    advice: str = ""
    gib: int | float | None = None
    devices: int | None = None


class Unplaceable(PlanError):
    """A worker fits nowhere. What is advised was only estimated (`feasible.nearest` tries it). ``devices``: how many of
    each kind were to be had.
    """

    def __init__(self, refusal: Refusal, devices: Mapping[str, int]) -> None:
        super().__init__(f"{refusal.said} Next: {refusal.advice}." if refusal.advice else refusal.said)
        self.refusal, self.devices = refusal, devices


def on_each(devices: int) -> str:
    """Where memory is needed, in words."""
    return "on 1 device" if devices == 1 else f"on each of {devices} devices"


def refusal(setting: Budget, stage: Stage) -> Refusal:
    """The first worker of a stage that cannot be placed."""
    for name in stage.members:
        found = _ranks(setting, name) or _memory(setting, (name,)) or _reach(setting, name)
        if found:
            return found
    return _memory(setting, stage.members) or _kinds(setting, stage) or _apart(setting, stage)


def _kinds(setting: Budget, stage: Stage) -> Refusal | None:
    """Of kinds of devices none will do: too few, or too small."""
    if len(setting.devices) == 1:
        return None
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
            return Refusal(f"Worker {name!r} fits on no kind of device: {'; '.join(found)}.")
    return None


def _apart(setting: Budget, stage: Stage) -> Refusal:
    """The members of a cell share no number of devices, and there are too few for them to sit apart."""
    fewest = {name: int(counts.min()) for name in stage.members if len(counts := _counts(setting, name))}
    needs = " + ".join(f"{n} {name}" for name, n in fewest.items())
    total = sum(fewest.values())
    said = (
        f"Workers {', '.join(map(repr, stage.members))} of a cell have no number of devices in common, and apart they "
        f"need {needs} = {total} devices; "
        f"{_there(setting)}."
    )
    return Refusal(said, f"devices={total}", devices=total) if total > max(setting.counts) else Refusal(said)


def _there(setting: Budget) -> str:
    if setting.counts == (1,):
        return "there is 1 device"
    return (
        "there are "
        + " + ".join(f"{n} {k}".strip() for k, n in setting.devices.items())
        + (" devices" if len(setting.devices) == 1 else "")
    )


def _counts(setting: Budget, name: str) -> np.ndarray:
    devices = np.arange(1, max(setting.counts) + 1)
    return devices[allowed(setting.profile.workers[name], devices)]


def _ranks(setting: Budget, name: str) -> Refusal | None:
    worker = setting.profile.workers[name]
    if worker.resource == "host" or len(_counts(setting, name)):
        return None
    if worker.devices is not None:
        said = f"Worker {name!r} is pinned to {worker.devices} devices, but {_there(setting)}."
        return Refusal(said, f"devices={worker.devices} or fewer for the pin", devices=worker.devices)
    least = worker.ranks.fewest
    said = (
        f"Worker {name!r} needs at least {least} devices by profile.workers.{name}.ranks ({worker.ranks}), but "
        f"{_there(setting)}."
    )
    if least > MAX_DEVICES:
        return Refusal(said, "fewer or smaller ranks")
    return Refusal(said, f"devices={least}, or smaller ranks", devices=least)


def _memory(setting: Budget, names: tuple[str, ...]) -> Refusal | None:
    """``names``: workers that share each device."""
    cap = max(setting.cap(k) for k in setting.kinds)
    counts = [n for n in _counts(setting, names[0]) if all(n in _counts(setting, m) for m in names)]
    if math.isinf(cap) or not counts:
        return None
    needs = _least_need(setting, names, np.array(counts))
    least, at = float(needs.min()), counts[int(needs.argmin())]
    if least <= cap + ROUNDING:
        return None
    who = f"Worker {names[0]!r} needs" if len(names) == 1 else f"Workers {' and '.join(map(repr, names))} together need"
    further = np.arange(max(setting.counts) + 1, min(FURTHER_FACTOR * max(setting.counts), MAX_DEVICES) + 1)
    further = further[np.all([allowed(setting.profile.workers[m], further) for m in names], axis=0)]
    fitting = further[_least_need(setting, names, further) <= cap + ROUNDING]
    count = int(fitting[0]) if len(fitting) else None
    enough = memory.advised(max(_enough(setting, stage) for stage in setting.stages))
    said = (
        f"{who} {least:.3g} GiB {on_each(at)}, and {'a' if len(setting.kinds) == 1 else 'the largest'} device has "
        f"{cap:g} GiB."
    )
    return Refusal(said, f"{f'devices={count}, or ' if count else ''}device_memory_gib={enough}", enough, count)


def _enough(setting: Budget, stage: Stage) -> float:
    """GiB with which the stage fits by itself on some number of devices, together or, a cell, apart."""
    alone = []
    for name in stage.members:
        counts = _counts(setting, name)
        if setting.profile.workers[name].resource != "host" and len(counts):
            alone.append(float(_least_need(setting, (name,), counts).min()))
    shared = [n for n in _counts(setting, stage.members[0]) if all(n in _counts(setting, m) for m in stage.members)]
    together = (
        float(_least_need(setting, stage.members, np.array(shared)).min())
        if shared and len(alone) == len(stage.members)
        else math.inf
    )
    return min(max(alone, default=0.0), together) if len(stage.members) > 1 else max(alone, default=0.0)


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


def _reach(setting: Budget, name: str) -> Refusal | None:
    worker = setting.profile.workers[name]
    reach = max(setting.models[name, k].reach() for k in setting.kinds)
    counts = _counts(setting, name)
    finest = setting.fewest_items(name)
    if worker.resource == "host" or math.isinf(reach) or not len(counts) or finest / counts.max() <= reach:
        return None
    said = f"Worker {name!r} would have {finest / counts.max():g} items on a device, and was measured up to {reach:g}."
    return Refusal(
        said,
        f"at least {math.ceil(finest / reach)} devices, or a sample with more items",
        devices=math.ceil(finest / reach),
    )
