"""The memory that a worker finds free on a device. Those who stay there while it works keep theirs."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.placement.budget import Budget
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.memory import ROUNDING
from rlinf_lab.planning.profile.profile import WorkerProfile
from rlinf_lab.planning.search.problem import members

TOGETHER, APART, SINGLE = "together", "apart", ""


class Window(NamedTuple):
    """How many devices a worker may have, and of which kinds (None: of any)."""

    fewest: int = 0
    most: int = 1 << 40
    kinds: frozenset[str] | None = None

    def on(self, kind: str, devices: np.ndarray) -> np.ndarray:
        """Those of these numbers of devices that it allows."""
        return (devices >= self.fewest) & (devices <= self.most) & (self.kinds is None or kind in self.kinds)


ANY = Window()


@dataclass(frozen=True)
class Forms:
    """Each stage's form, and what is settled about where its workers sit.

    ``windows``: of workers that may not have any number of devices. What others keep on a device can depend on how many
    devices they have. It is counted as if they had the most that their window allows, or, when ``careful``, the fewest
    on which they fit. ``meeting``: sets of workers that have a device in common; what others keep counts beside a
    worker for these only (None: for all that stay while it works). ``apart``: sets that have none in common.
    """

    of: tuple[str, ...]
    careful: bool = False
    windows: tuple[tuple[str, Window], ...] = ()
    meeting: frozenset[frozenset[str]] | None = None
    apart: frozenset[frozenset[str]] = frozenset()

    def __getitem__(self, stage: int) -> str:
        return self.of[stage]

    def window(self, worker: str) -> Window:
        return next((w for name, w in self.windows if name == worker), ANY)

    def within(self, workers: Collection[str], window: Window) -> Forms:
        """The same with another window of some workers."""
        rest = [(name, w) for name, w in self.windows if name not in workers]
        return replace(self, windows=tuple(sorted([*rest, *((name, window) for name in workers)], key=lambda w: w[0])))


@dataclass(frozen=True)
class Colocated:
    """Who is on the same devices: ``staying`` stages and ``mates``. Staying stages are a mask, in their ``forms``;
    mates are members of a cell, oneself included.
    """

    staying: int
    forms: Forms
    mates: tuple[str, ...]


@dataclass(frozen=True)
class FreeMemory:
    """Of the devices of one setting, in GiB."""

    setting: Budget

    def free(
        self, name: str, kind: str, devices: np.ndarray, items: float | np.ndarray, colocated: Colocated
    ) -> np.ndarray:
        """GiB that a worker may use on each of its devices. What stays there meanwhile is taken off. Has the shape of
        devices and ``items`` together.
        """
        workers = self.setting.profile.workers
        left = np.full(np.broadcast_shapes(devices.shape, np.shape(items)), self.setting.cap(kind), float)
        for mate in colocated.mates:
            if mate != name:
                left -= memory.kept(workers[mate], devices, items)
        return left - self.taken(name, kind, colocated)

    def taken(self, name: str, kind: str, colocated: Colocated) -> float:
        """GiB of a device on which a worker works that those who stay there keep."""
        here = {name, *colocated.mates}
        return max(
            self.kept(who, kind, colocated.forms) - self._twice({*here, *who})
            for who in self.colocations(name, colocated)
        )

    def running(
        self, name: str, kind: str, devices: np.ndarray, items: float, colocated: Colocated
    ) -> np.ndarray | None:
        """Sequences that a rank of a generator can run at once. None: the devices' memory is no limit."""
        worker = self.setting.profile.workers[name]
        return (
            None
            if worker.resource == "host"
            else memory.slots(worker, devices, self.free(name, kind, devices, items, colocated))
        )

    def kept(self, who: tuple[str, ...], kind: str, forms: Forms) -> float:
        """GiB that staying workers keep on a device. They have the most devices of their window on which they fit, or
        if ``careful``, the fewest.
        """
        return sum((self._kept(name, kind, forms.window(name), forms.careful) for name in who), 0.0)

    def _twice(self, names: Collection[str]) -> float:
        """GiB on a device on which these are: weights that several of them hold."""
        return memory.counted_twice(self.setting.profile.workers[n] for n in names)

    @cached_method
    def _kept(self, name: str, kind: str, window: Window, careful: bool) -> float:
        worker, items = self.setting.profile.workers[name], self.setting.profile.items
        devices = np.arange(1, self.setting.counts[self.setting.kinds.index(kind)] + 1)
        good = devices[allowed(worker, devices) & window.on(kind, devices)]
        finest = self.setting.fewest_items(name) / max(self.setting.cell(self.setting.home[name]).sub_batches)
        good = good[
            memory.needed(worker, good, finest, self.setting.profile.group_size(name))
            <= self.setting.cap(kind) + ROUNDING
        ]
        return float(memory.kept(worker, good[:1] if careful else good, items).min()) if len(good) else 0.0

    def _sharing(self, stage: int, forms: Forms) -> list[tuple[str, ...]]:
        """Who of a stage can be on one device. These are all of them, or one of those that sit apart."""
        names = self.setting.stages[stage].members
        return [(m,) for m in names] if forms[stage] == APART else [names]

    def colocations(self, name: str, colocated: Colocated) -> list[tuple[str, ...]]:
        """The sets of workers that stay on some device of a worker."""
        if colocated.forms.meeting is None:
            parts = [self._sharing(stage, colocated.forms) for stage in members(colocated.staying)]
            return [tuple(itertools.chain(*choice)) for choice in itertools.product(*parts)]
        there = [m for stage in members(colocated.staying) for m in self.setting.stages[stage].members]
        return [
            (),
            *(tuple(m for m in there if m in e) for e in sorted(colocated.forms.meeting, key=sorted) if name in e),
        ]


def allowed(worker: WorkerProfile, devices: np.ndarray) -> np.ndarray:
    """Which device counts the rank rule and a pin allow."""
    good = memory.valid(worker.ranks, devices)
    return good & (devices == worker.devices) if worker.devices is not None else good
