"""From a plan tree to devices: which worker sits on which, as how many ranks, and whether everything fits there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from rlinf_lab.planning import memory
from rlinf_lab.planning.costs import CostEstimate
from rlinf_lab.planning.memory import ROUNDING
from rlinf_lab.planning.search.problem import Counts
from rlinf_lab.planning.search.trees import SPATIAL, TEMPORAL, Leaf, Tree, company, leaf_of, mode, shape
from rlinf_lab.planning.setting import Arrangement, Setting
from rlinf_lab.planning.tables import APART, Company


@dataclass(frozen=True)
class Seat:
    """One worker: ``devices`` by their number (kind after kind), ``chunks`` calls an iteration, in ``sub_batches`` inside a cell."""

    worker: str
    devices: range
    ranks: int
    chunks: int
    sub_batches: int
    stays: bool


@dataclass(frozen=True)
class Placement:
    """A plan of the search on numbered devices."""

    setting: Setting
    arrangement: Arrangement
    tree: Tree

    @cached_property
    def beside(self) -> dict[int, int]:
        """For each unit, the staying units on its devices (a mask)."""
        return company(self.tree, self.arrangement.staying)

    @cached_property
    def seats(self) -> Mapping[str, Seat]:
        """By worker, in the profile's order."""
        found: dict[str, Seat] = {}
        self._seat(self.tree, (0,) * len(self.setting.counts), found)
        return {name: found[name] for name in self.setting.profile.workers}

    @property
    def mode(self) -> str:
        """``temporal``, ``spatial``, ``hybrid``; ``alone`` for a flow of one worker. A cell whose members sit apart streams inside."""
        own = mode(self.tree)
        apart = APART in self.arrangement.forms.of
        return own if not apart or own == SPATIAL else SPATIAL if own == "alone" else "hybrid"

    @property
    def shape(self) -> str:
        """Who shares and who streams: `>` one after another on the same devices, `|` at the same time, `+` a cell in turns, step by step."""
        forms, units = self.arrangement.forms, self.setting.units
        return shape(self.tree, [f"({' | '.join(u.members)})" if forms[i] == APART else u.name for i, u in enumerate(units)])

    @cached_property
    def used(self) -> int:
        """How many devices somebody sits on."""
        return len({d for seat in self.seats.values() for d in seat.devices})

    @cached_property
    def _firsts(self) -> set[int]:
        """Devices from each of these up to the next are alike."""
        return {seat.devices.start for seat in self.seats.values()} | {0, *accumulate(self.setting.counts)}

    def misfit(self) -> str:
        """What does not fit on which device, or "" when everything does. Said of real places, not of the search's bounds."""
        for name, seat in self.seats.items():
            for device in sorted(self._firsts & set(seat.devices)):
                short = self._short(name, seat, device)
                if short:
                    return short
        return ""

    def all_fit_at_once(self) -> bool:
        """Whether everybody could stay on its devices all the time: then nobody is switched."""
        return all(
            self._gib(name, seat, device, all_stay=True) <= self.cap(device) + ROUNDING
            for name, seat in self.seats.items() for device in sorted(self._firsts & set(seat.devices))
        )  # fmt: skip

    def gib(self, device: int) -> float:
        """The most memory that is used on a device at any time."""
        return max([0.0, *(self._gib(name, seat, device) for name, seat in self.seats.items() if device in seat.devices)])

    def cap(self, device: int) -> float:
        ends = list(accumulate(self.setting.counts))
        return self.setting.cap(self.setting.kinds[int(np.searchsorted(ends, device, side="right"))])

    def kind(self, seat: Seat) -> str:
        """The kind of device that a worker sits on; the first one for who takes none."""
        ends = list(accumulate(self.setting.counts))
        return self.setting.kinds[int(np.searchsorted(ends, seat.devices.start, side="right")) if seat.devices else 0]

    def at_once(self, seat: Seat) -> float:
        """Items of one call, over all its ranks. A generator's requests are all there from the start, however finely its responses leave."""
        worker = self.setting.profile.workers[seat.worker]
        return self.setting.profile.items / seat.sub_batches / (1 if worker.kind == "generation" else seat.chunks)

    def estimate(self, unit: int) -> CostEstimate:
        """Seconds of one call of a unit's worker where it sits, with their range and what they rest on; of a cell, of all its calls for a chunk."""
        setting, found = self.setting, {}
        for name in setting.units[unit].members:
            seat = self.seats[name]
            kind = self.kind(seat)
            there, made = setting.measured_on(name, kind), setting.models[name, kind].estimate(len(seat.devices), self.at_once(seat))
            found[name] = made if there == kind else made.by_speed(there)
        if len(found) == 1:
            return found.popitem()[1]
        calls = {n: e.times(setting.profile.workers[n].calls) for n, e in found.items()}
        apart = self.arrangement.forms[unit] == APART
        return setting.cell_model(unit).estimate(calls, next(self.seats[n].sub_batches for n in found) if apart else None)

    def member_seconds(self, name: str) -> float:
        """Seconds of a cell's member for one sub-batch of a chunk, all its calls."""
        unit, seat = self.setting.home[name], self.seats[name]
        forms, leaf = self.arrangement.forms, leaf_of(self.tree, unit)
        mates = (name,) if forms[unit] == APART else self.setting.units[unit].members
        row = self.setting.tables.member(name, seat.sub_batches, leaf.grain, Company(self.beside[unit], forms, mates))
        firsts = [0, *accumulate(self.setting.counts)]
        counts = [len(range(max(seat.devices.start, a), min(seat.devices.stop, b))) for a, b in itertools.pairwise(firsts)]
        return self.setting.cell(unit).calibration * float(row[int(np.ravel_multi_index(counts, self.setting.shape))])

    # --- seats -----------------------------------------------------------------------------------------------
    def _seat(self, tree: Tree, start: Counts, found: dict[str, Seat]) -> None:
        if isinstance(tree, Leaf):
            self._seat_unit(tree, start, found)
            return
        self._seat(tree.before, start, found)
        shifted = tuple(s + n for s, n in zip(start, tree.before.devices, strict=True))
        self._seat(tree.after, start if tree.kind == TEMPORAL else shifted, found)

    def _seat_unit(self, leaf: Leaf, start: Counts, found: dict[str, Seat]) -> None:
        unit, forms = self.setting.units[leaf.worker], self.arrangement.forms
        stays = bool(self.arrangement.staying >> leaf.worker & 1)
        if forms[leaf.worker] != APART:
            for name in unit.members:
                found[name] = self._one(name, start, leaf.devices, leaf.grain, 1, stays)
            return
        split = self.setting.tables.split(leaf.worker, leaf.grain, self.beside[leaf.worker], forms)
        code = int(np.ravel_multi_index(leaf.devices, self.setting.shape))
        for name, own in zip(unit.members, split.codes[:, code], strict=True):
            counts = tuple(int(n) for n in np.unravel_index(own, self.setting.shape))
            found[name] = self._one(name, start, counts, leaf.grain, int(split.sub_batches[code]), stays)
            start = tuple(s + n for s, n in zip(start, counts, strict=True))

    def _one(self, name: str, start: Counts, counts: Counts, grain: int, sub_batches: int, stays: bool) -> Seat:
        worker = self.setting.profile.workers[name]
        if worker.resource == "host":
            return Seat(name, range(0), 1, 2**grain, sub_batches, True)
        axis = int(np.argmax(counts))  # a worker sits on devices of one kind
        first = sum(self.setting.counts[:axis]) + start[axis]
        ranks = counts[axis] // worker.ranks.devices_per_rank
        return Seat(name, range(first, first + counts[axis]), ranks, 2**grain, sub_batches, stays)

    # --- memory ----------------------------------------------------------------------------------------------
    def _gib(self, name: str, seat: Seat, device: int, all_stay: bool = False) -> float:
        """GiB on a device while this worker works there; ``all_stay``: if nobody left it."""
        profile, on = self.setting.profile, np.array([len(seat.devices)])
        worker = profile.workers[name]
        at_once = profile.items / seat.chunks / (1 if worker.kind == "simulator" else seat.sub_batches)
        mates = self.setting.units[self.setting.home[name]].members
        total = float(memory.needed(worker, on, at_once)[0])
        for other, there in self.seats.items():
            if other != name and device in there.devices and (there.stays or all_stay or other in mates):
                total += float(memory.kept(profile.workers[other], np.array([len(there.devices)]), profile.items / (seat.chunks if other in mates else 1))[0])
        return total

    def _short(self, name: str, seat: Seat, device: int) -> str:
        need, cap = self._gib(name, seat, device), self.cap(device)
        if need <= cap + ROUNDING:
            return ""
        others = [o for o, s in self.seats.items() if o != name and s.stays and device in s.devices]
        beside = f" beside {', '.join(others)}" if others else ""
        return f"{name} needs {need:.3g} GiB on device {device}{beside}, {cap:g} are there"
