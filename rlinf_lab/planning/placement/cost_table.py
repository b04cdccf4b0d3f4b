"""Seconds of a micro-batch for every stage, granularity, number of devices, and co-location. Co-location is on the same
devices; seconds are inf where it cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rlinf_lab.planning.costs import BatchModel, CostModel, GenerationModel
from rlinf_lab.planning.costs.base import NOBODY
from rlinf_lab.planning.placement.budget import Budget
from rlinf_lab.planning.placement.cells import Apart, apart
from rlinf_lab.planning.placement.free_memory import APART, Colocated, Forms, FreeMemory, allowed
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.memory import ROUNDING
from rlinf_lab.planning.search.problem import members

TINY_S = 1e-300  # seconds
SAMPLED_COUNTS = 8  # device counts for which a stream is computed
PERIOD_FACTORS = (0.5, 0.8, 1.0, 1.4, 2.2)  # periods of the bounds of a stream, relative to an even one


@dataclass(frozen=True)
class _Alone:
    """What does not change with co-location. It has ``items`` of a micro-batch, GiB ``needed`` and whether a number of
    devices is ``allowed``, shape (grains, devices), and the ``seconds`` of a call beside those in whose co-location it
    was measured.
    """

    items: np.ndarray
    needed: np.ndarray
    allowed: np.ndarray
    seconds: dict[frozenset[str], np.ndarray] = field(default_factory=dict)

    @cached_property
    def most(self) -> float:
        """GiB with which it has enough, however many devices it has."""
        return float(np.where(self.allowed, self.needed, -np.inf).max())


@dataclass(frozen=True)
class Tables:
    """Of one setting; each is made once."""

    setting: Budget
    _known: dict[Any, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _streams: dict[Any, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False, compare=False)
    _apart: dict[Any, Apart] = field(default_factory=dict, repr=False, compare=False)
    _lags: dict[Any, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _workers: dict[Any, _Alone] = field(default_factory=dict, repr=False, compare=False)
    _lone: dict[Any, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def free_memory(self) -> FreeMemory:
        return FreeMemory(self.setting)

    def of(self, stage: int, staying: int, forms: Forms) -> np.ndarray:
        """Seconds of a micro-batch, shape (granularities, codes), beside ``staying`` stages."""
        key = self._key(stage, staying, forms)
        if key not in self._known:
            made = self._rows(stage, staying, forms)
            # Co-location never makes a worker faster, whatever a lone sample says.
            self._known[key] = (
                np.maximum(made, alone) if staying and (alone := self.of(stage, 0, forms)) is not made else made
            )
        return self._known[key]

    def streams(self, stage: int, staying: int, forms: Forms) -> tuple[np.ndarray, np.ndarray]:
        """(fill, period) pairs that bound the stream of a generator, as `search.problem.Problem.streams` wants them."""
        key = self._key(stage, staying, forms)
        if key not in self._streams:
            seconds = self.of(stage, staying, forms)
            total, micro_batches = seconds[0], 2.0 ** np.arange(len(seconds))[:, None]
            fills, periods = [], []
            for number, rate in enumerate(self._rates()):
                lag = np.array([self._lag(stage, staying, forms, g)[number] for g in range(len(seconds))])
                fills.append(np.where(np.isfinite(total), np.where(np.isfinite(total), total, 0.0) * lag, np.inf))
                periods.append(np.where(micro_batches == 1, 1.0, rate) * total / micro_batches)
            self._streams[key] = np.array(fills), np.array(periods)
        return self._streams[key]

    def split(self, stage: int, g: int, staying: int, forms: Forms) -> Apart:
        """How a cell whose members sit apart shares devices."""
        key = *self._key(stage, staying, forms), g
        if key not in self._apart:
            seconds = {
                k: [self.member(m, k, g, Colocated(staying, forms, (m,))) for m in self.setting.stages[stage].members]
                for k in self.setting.cell(stage).sub_batches if self.setting.profile.items / 2**g >= k
            }  # fmt: skip
            self._apart[key] = apart(
                seconds, len(self.setting.stages[stage].members), self.setting.shape, self.setting.cell_model(stage)
            )
        return self._apart[key]

    def member(self, name: str, sub_batches: int, g: int, colocated: Colocated) -> np.ndarray:
        """Seconds of a member of a cell for one sub-batch of a micro-batch, by code."""
        return self._worker(name, np.array([g]), sub_batches, colocated)[0]

    def member_rows(self, name: str, sub_batches: int, colocated: Colocated) -> np.ndarray:
        """The same in micro-batches of all sizes, shape (granularities, codes)."""
        return self._worker(name, np.arange(self.setting.granularities), sub_batches, colocated)

    # --- rows ------------------------------------------------------------------------------------------------
    def _rows(self, stage: int, staying: int, forms: Forms) -> np.ndarray:
        """Shape (granularities, codes)."""
        names, grains = self.setting.stages[stage].members, np.arange(self.setting.granularities)
        if forms[stage] == APART:
            return np.array([self.split(stage, int(g), staying, forms).seconds for g in grains])
        if len(names) == 1:
            return self._of_one(names[0], grains, Colocated(staying, forms, names))
        return self.setting.cell_model(stage).together(
            [self._worker(m, grains, 1, Colocated(staying, forms, names)) for m in names]
        )

    def _of_one(self, name: str, grains: np.ndarray, colocated: Colocated) -> np.ndarray:
        """The seconds of a worker that is no part of a cell. They are made once for all who leave it as much memory, or
        enough, and beside whom it was measured alike.
        """
        setting, left = self.setting, list[float]()
        if setting.profile.workers[name].resource == "host":
            return self._worker(name, grains, 1, colocated)
        for kind in setting.kinds:
            devices, free = (
                np.arange(1, setting.devices[kind] + 1),
                setting.cap(kind) - self.free_memory.taken(name, kind, colocated),
            )
            enough = (
                not isinstance(setting.models[name, kind], GenerationModel)
                and free >= self._alone(name, kind, devices, grains, 1).most
            )
            left.append(np.inf if enough else free)
        key = setting.home[name], colocated.forms.window(name), self._measured_beside(name, colocated), *left
        if key not in self._lone:
            self._lone[key] = self._worker(name, grains, 1, colocated)
        return self._lone[key]

    def _worker(self, name: str, grains: np.ndarray, sub_batches: int, colocated: Colocated) -> np.ndarray:
        """Seconds of all calls of a worker for one of the sub-batches of a micro-batch. Shape (grains, codes)."""
        rows = self._in_micro_batches(name, grains, sub_batches, colocated)
        rows[grains > self.setting.finest_call[self.setting.home[name]]] = np.inf
        return rows

    def _in_micro_batches(self, name: str, grains: np.ndarray, sub_batches: int, colocated: Colocated) -> np.ndarray:
        """The same for whoever may have micro-batches."""
        setting, worker = self.setting, self.setting.profile.workers[name]
        items = setting.profile.items / 2.0 ** grains[:, None] / sub_batches
        if worker.resource == "host":
            # On processors of its own: as fast on no device as on any.
            model, none = setting.models[name, setting.kinds[0]], np.array([0])
            seconds = worker.calls * self._of_a_micro_batch(name, model, none, grains, items)
            return np.repeat(seconds, int(np.prod(setting.shape)), axis=1)
        row = np.full((len(grains), *setting.shape), np.inf)
        for axis, kind in enumerate(setting.kinds):
            devices = np.arange(1, setting.counts[axis] + 1)
            only = tuple(slice(1, None) if a == axis else 0 for a in range(len(setting.shape)))
            row[(slice(None), *only)] = self._seconds(name, kind, devices, grains, sub_batches, colocated)
        return row.reshape(len(grains), -1)

    def _seconds(
        self, name: str, kind: str, devices: np.ndarray, grains: np.ndarray, sub_batches: int, colocated: Colocated
    ) -> np.ndarray:
        """Shape (grains, devices)."""
        alone = self._alone(name, kind, devices, grains, sub_batches)
        free = self.free_memory.free(name, kind, devices, alone.items, colocated)
        good = alone.allowed & colocated.forms.window(name).on(kind, devices) & (alone.needed <= free + ROUNDING)
        found = np.full(good.shape, np.inf)
        some = np.flatnonzero(good.any(axis=0))
        if not len(some):
            return found
        worker, model = self.setting.profile.workers[name], self.setting.models[name, kind]
        if isinstance(model, GenerationModel) and colocated.mates == (name,):
            n = devices[some]
            seconds = (
                model.seconds(n, self.setting.profile.items, cap=memory.slots(worker, n, free[0, some]))
                / 2.0 ** grains[:, None]
            )
        else:
            beside = self._measured_beside(name, colocated)
            for one in beside:
                if one not in alone.seconds:  # of all numbers of devices: they are asked for again, with less memory
                    n = np.flatnonzero(alone.allowed.any(axis=0))
                    alone.seconds[one] = np.full(good.shape, np.inf)
                    alone.seconds[one][:, n] = self._of_a_micro_batch(
                        name, model, devices[n], grains, alone.items / sub_batches, one
                    )
            seconds = np.max([alone.seconds[one][:, some] for one in beside], axis=0)
        found[:, some] = np.where(good[:, some], worker.calls * seconds, np.inf)
        return found

    def _measured_beside(self, name: str, colocated: Colocated) -> frozenset[frozenset[str]]:
        """Who is beside a worker on some device, where it was measured in co-location."""
        if not any(sample.beside for sample in self.setting.profile.workers[name].samples):
            return frozenset([NOBODY])
        return frozenset(
            frozenset({*c, *colocated.mates} - {name}) for c in self.free_memory.colocations(name, colocated)
        )

    def _alone(self, name: str, kind: str, devices: np.ndarray, grains: np.ndarray, sub_batches: int) -> _Alone:
        key = self.setting.home[name], name, kind, sub_batches, tuple(grains.tolist())
        if key not in self._workers:
            worker, items = self.setting.profile.workers[name], self.setting.profile.items / 2.0 ** grains[:, None]
            at_once = items / sub_batches
            # the scenes of all sub-batches exist at the same time
            held = items if worker.kind == "simulator" else at_once
            needed = memory.needed(worker, devices, held, self.setting.profile.group_size(name))
            there = allowed(worker, devices) & (at_once / devices <= self.setting.models[name, kind].reach() + ROUNDING)
            self._workers[key] = _Alone(items, needed, there)
        return self._workers[key]

    def _of_a_micro_batch(
        self,
        name: str,
        model: CostModel,
        devices: np.ndarray,
        grains: np.ndarray,
        items: np.ndarray,
        beside: frozenset[str] = NOBODY,
    ) -> np.ndarray:
        """Seconds of one micro-batch of so many items, shape (grains, devices). They are the mean of those of the calls
        that a run makes of all micro-batches.
        """
        if name in self.setting.sources and isinstance(model, BatchModel):
            return model.of_a_part(devices, self.setting.profile.items, 2.0 ** grains[:, None], beside)
        if name not in self.setting.in_whole_calls:
            return model.seconds(devices, items, beside)
        micro_batches, ranks = (
            2.0 ** grains[:, None],
            np.maximum(devices // self.setting.profile.workers[name].ranks.devices_per_rank, 1),
        )
        return self.setting.calls(name, micro_batches, ranks).seconds(model, devices, beside) / micro_batches

    # --- streams ---------------------------------------------------------------------------------------------
    def _rates(self) -> tuple[float, ...]:
        """Periods of the bounds, relative to an even stream. With staleness iterations overlap: none can be faster than
        the stream as a whole.
        """
        return tuple(r for r in PERIOD_FACTORS if r >= 1 or not self.setting.staleness)

    def _lag(self, stage: int, staying: int, forms: Forms, g: int) -> np.ndarray:
        """Fill of each bound as a part of the stream's seconds, shape (rates, codes). Micro-batch j has left after fill
        + j · period.

        Computed for some device counts and interpolated, because it changes slowly.
        """
        key = self._key(stage, staying, forms)
        if key not in self._lags:
            name, setting = self.setting.stages[stage].members[0], self.setting
            grid = np.ones((len(self._rates()), setting.granularities, *setting.shape))
            for axis, kind in enumerate(setting.kinds):
                model, devices = setting.models[name, kind], np.arange(1, setting.counts[axis] + 1)
                if isinstance(model, GenerationModel) and setting.profile.workers[name].resource == "host":
                    grid.T[:] = self._lags_at(name, model, 0, None).T  # the same whatever devices the others have
                elif isinstance(model, GenerationModel):
                    only = tuple(slice(1, None) if a == axis else 0 for a in range(len(setting.shape)))
                    grid[(slice(None), slice(None), *only)] = self._lags_on(
                        name, kind, model, devices, Colocated(staying, forms, (name,))
                    )
                else:  # an even stream
                    rates = np.array(self._rates())[:, None]
                    micro_batches = 2.0 ** np.arange(setting.granularities)
                    even = np.where(
                        micro_batches == 1,
                        1.0,
                        1 / micro_batches + np.maximum(0.0, 1 - rates) * (1 - 1 / micro_batches),
                    )
                    grid[:] = even.reshape(*even.shape, *(1,) * len(setting.shape))
            self._lags[key] = grid.reshape(*grid.shape[:2], -1)
        return self._lags[key][:, g]

    def _lags_on(
        self, name: str, kind: str, model: GenerationModel, devices: np.ndarray, colocated: Colocated
    ) -> np.ndarray:
        """Shape (rates, granularities, devices)."""
        setting, worker = self.setting, self.setting.profile.workers[name]
        good = np.flatnonzero(allowed(worker, devices))
        shape = len(self._rates()), setting.granularities, len(devices)
        if not len(good):
            return np.ones(shape)
        some = good[np.unique(np.geomspace(1, len(good), SAMPLED_COUNTS).astype(int)) - 1]
        cap = self.free_memory.running(name, kind, devices, setting.profile.items, colocated)
        rows = np.array(
            [self._lags_at(name, model, int(devices[i]), None if cap is None else float(cap[i])) for i in some]
        )
        flat = rows.reshape(len(some), -1)
        return np.array([np.interp(np.log(devices), np.log(devices[some]), column) for column in flat.T]).reshape(shape)

    def _lags_at(self, name: str, model: GenerationModel, devices: int, cap: float | None) -> np.ndarray:
        """Shape (rates, granularities)."""
        setting, atoms = self.setting, 2 ** (self.setting.granularities - 1)
        stream = model.stream(
            devices, setting.profile.items, atoms, setting.group(name), None if cap is None or cap < 1 else cap
        )
        total = max(float(stream.times[-1]), TINY_S)
        weights = stream.weights if setting.profile.weights == "tokens" else np.ones(atoms)
        found = np.ones((len(self._rates()), setting.granularities))
        for g in range(1, setting.granularities):
            size = atoms >> g
            before = np.concatenate([[0.0], np.cumsum(weights.reshape(2**g, size).mean(axis=1))[:-1]])
            for number, rate in enumerate(self._rates()):
                found[number, g] = np.max(stream.times[size - 1 :: size] - rate * before * total / 2**g) / total
        return found

    # --- co-location ---------------------------------------------------------------------------------------------
    def _key(self, stage: int, staying: int, forms: Forms) -> tuple[Any, ...]:
        """What of it all matters to a stage beside those that stay."""
        own, there = (
            set(self.setting.stages[stage].members),
            {m for i in members(staying) for m in self.setting.stages[i].members},
        )
        others = tuple(forms[i] for i in members(staying))
        windows = tuple(w for w in forms.windows if w[0] in own or w[0] in there)
        meeting = (
            None
            if forms.meeting is None or not staying
            else frozenset(e & (own | there) for e in forms.meeting if e & own)
        )
        return stage, staying, forms[stage], others, windows, meeting, forms.careful
