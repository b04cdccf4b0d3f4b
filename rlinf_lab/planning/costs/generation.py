"""Generation with continuous batching over a length distribution.

An engine (one rank) advances all its running sequences by one token in a step of ``alpha + beta · load`` seconds. ``load`` is
what grows with the work at hand: the tokens of context in the key-value cache when the model's shape is known (the roofline of a
decode step: bytes of weights against bytes of cache), else the number of running sequences. At most ``cap`` sequences run; the
others wait. Which sequence runs at which *step* does not depend on alpha or beta, so seconds are linear in both and they can be identified

- from two or more measurements at different device counts or sizes (least squares, neither negative), or
- from one measurement and the model's shape: ``beta / alpha = cache bytes of a token / bytes of weights``, or
- from one measurement and an exponent: the local slope of seconds over devices is the load's share.

With nothing of these, all is taken as load (perfect scaling) and every answer says that this is assumed.

Source of the fluid form: measured completion curves of reasoning rollouts (RLinf, arXiv 2509.15965, Fig. 2).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rlinf_lab.planning.costs.base import NOBODY, CostEstimate, basis_of
from rlinf_lab.planning.costs.lengths import QUANTILES, issue_order, quantiles
from rlinf_lab.planning.costs.unroll import lengths_from_completion
from rlinf_lab.planning.profile import Lengths, ModelShape, Sample


@dataclass(frozen=True)
class Stream:
    """Outputs in chunks: ``times`` [s] when each chunk is complete, ``weights`` relative to an average chunk; both shape (chunks,)."""

    times: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Schedule:
    """Of one engine, in steps: each request's end, and the accumulated load up to then. Both in issue order, shape (QUANTILES,)."""

    ends: np.ndarray
    loads: np.ndarray

    @property
    def steps(self) -> float:
        return float(self.ends.max())

    @property
    def load(self) -> float:
        return float(self.loads.max())


@dataclass(frozen=True)
class GenerationModel:
    """See the module's docstring. ``max_running``: of one rank; ``devices_per_rank``: its model-parallel size."""

    samples: tuple[Sample, ...]
    lengths: Lengths
    model: ModelShape | None = None
    devices_per_rank: int = 1
    max_running: int | None = None
    exponent: float | None = None
    _schedules: dict[tuple[int, int, bool], Schedule] = field(default_factory=dict, repr=False, compare=False)

    def seconds(self, devices: np.ndarray, items: float, beside: frozenset[str] = NOBODY, cap: np.ndarray | None = None) -> np.ndarray:
        """Time until the last response. ``cap``: most running sequences of a rank for each entry of ``devices`` (memory), None: no limit."""
        alpha, beta = self.parameters
        ranks = np.maximum(np.asarray(devices, float) / self.devices_per_rank, 1e-9)
        requests = items / ranks
        slots = self._slots(requests, cap)
        steps, loads = np.empty_like(requests), np.empty_like(requests)
        for s in np.unique(slots):
            schedule = self.schedule(int(s))
            steps[slots == s], loads[slots == s] = schedule.steps, schedule.load
        return alpha * steps + beta * loads * requests / QUANTILES

    def stream(self, devices: int, items: float, chunks: int, group: int = 1, cap: float | None = None) -> Stream:
        """When ``chunks`` equal parts of the outputs are complete. ``group``: so many responses (issued together) count when the last is there."""
        alpha, beta = self.parameters
        requests = items / max(devices / self.devices_per_rank, 1e-9)
        slots = int(self._slots(np.array([requests]), None if cap is None else np.array([cap]))[0])
        schedule = self.schedule(slots, group)
        ends = alpha * schedule.ends + beta * schedule.loads * requests / QUANTILES
        tokens = self.asked[issue_order(group, self.lengths.group_correlation)]
        if group > 1:
            starts = np.arange(0, QUANTILES, group)
            ends, tokens = np.maximum.reduceat(ends, starts), np.add.reduceat(tokens, starts)
        order = np.argsort(ends, kind="stable")
        ends, tokens = ends[order], tokens[order]
        share = np.linspace(0, 1, len(ends) + 1)
        edges = np.linspace(0, 1, chunks + 1)
        times = np.interp(edges[1:], share[1:], ends)
        weights = np.diff(np.interp(edges, share, np.concatenate([[0.0], np.cumsum(tokens)])))
        return Stream(times, weights / weights.mean())

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        basis, relative, note = basis_of(self.samples, devices, items, "" if self.identified != "assumed" else "all of a step taken as load")
        value = float(self.seconds(np.array([devices]), items)[0])
        return CostEstimate.around(value, basis, relative, note or f"load part from {self.identified}")

    def reach(self) -> float:
        return float("inf")

    @property
    def share(self) -> float:
        """Load's share of the first measurement's seconds: how much of it shrinks with more devices."""
        first = self.samples[0]
        total = float(self.seconds(np.array([first.devices]), first.items)[0])
        return 1 - self.parameters[0] * self._row(first)[0] / total

    @property
    def identified(self) -> str:
        """What told fixed cost from load: ``measurements``, ``model shape``, ``exponent`` or ``assumed``."""
        if len({s.items / s.devices for s in self.samples}) > 1:
            return "measurements"
        return "model shape" if self.model is not None else "exponent" if self.exponent is not None else "assumed"

    @cached_property
    def tokens(self) -> np.ndarray:
        """Lengths [tokens], ascending, shape (QUANTILES,)."""
        if not self.lengths.completion:
            return quantiles(self.lengths)
        first = self.samples[0]
        requests = first.items * self.devices_per_rank / first.devices
        measured = replace(self.lengths, factor=1.0, tail=1.0)
        if self.model is None:
            return lengths_from_completion(measured, None, self._assumed_share())
        return lengths_from_completion(measured, self.ratio * requests, 0.0)

    @cached_property
    def asked(self) -> np.ndarray:
        """The lengths that seconds are asked for: the measured ones, or what `Lengths.factor` and `Lengths.tail` make of them."""
        factor, tail = self.lengths.factor, self.lengths.tail
        if factor == tail == 1:
            return self.tokens
        median = float(np.median(self.tokens))
        return factor * median * (self.tokens / median) ** tail

    @property
    def ratio(self) -> float:
        """beta / alpha of a token of context, from bytes."""
        assert self.model is not None
        return self.model.kv_bytes_per_token / (self.model.weight_gb * 1e9)

    @cached_property
    def parameters(self) -> tuple[float, float]:
        """(alpha [s a step], beta [s a step and unit of load])."""
        rows = np.array([self._row(s) for s in self.samples])
        t = np.array([s.seconds for s in self.samples])
        if self.identified == "measurements":
            return _two(rows / t[:, None])
        if self.identified == "model shape":
            alpha = float(np.mean(t / (rows[:, 0] + self.ratio * rows[:, 1])))
            return alpha, alpha * self.ratio
        share = self._assumed_share()
        return float(np.mean((1 - share) * t / rows[:, 0])), float(np.mean(share * t / rows[:, 1]))

    def _assumed_share(self) -> float:
        if self.identified == "measurements":
            first, last = min(self.samples, key=lambda s: s.devices), max(self.samples, key=lambda s: s.devices)
            x = [s.items / s.devices for s in (first, last)]
            slope = (first.seconds - last.seconds) / (x[0] - x[1])
            return float(np.clip(slope * self.samples[0].items / self.samples[0].devices / self.samples[0].seconds, 0.0, 1.0))
        return 1.0 if self.exponent is None else min(self.exponent, 1.0)

    def _row(self, sample: Sample) -> tuple[float, float]:
        """(steps, load) of a measurement."""
        requests = sample.items * self.devices_per_rank / sample.devices
        schedule = self.schedule(int(self._slots(np.array([requests]), None)[0]), measured=True)
        return schedule.steps, schedule.load * requests / QUANTILES

    def _slots(self, requests: np.ndarray, cap: np.ndarray | None) -> np.ndarray:
        """Of QUANTILES representative requests, how many run at once."""
        limit = np.full_like(requests, np.inf) if cap is None else np.asarray(cap, float)
        if self.max_running is not None:
            limit = np.minimum(limit, self.max_running)
        return np.clip(np.round(QUANTILES * limit / np.maximum(requests, 1e-9)), 1, QUANTILES).astype(int)

    def schedule(self, slots: int, group: int = 1, measured: bool = False) -> Schedule:
        """Requests in issue order on ``slots`` slots; a freed slot takes the next. ``measured``: of the lengths that were measured."""
        key = (slots, group, measured)
        if key not in self._schedules:
            tokens = (self.tokens if measured else self.asked)[issue_order(group, self.lengths.group_correlation)]
            self._schedules[key] = _schedule(tokens, slots, self.lengths.prompt_tokens, by_context=self.model is not None)
        return self._schedules[key]


def _schedule(tokens: np.ndarray, slots: int, prompt: float, by_context: bool) -> Schedule:
    starts = np.zeros(QUANTILES)
    if slots < QUANTILES:
        free = [(float(t), i) for i, t in enumerate(tokens[:slots])]
        heapq.heapify(free)
        for i in range(slots, QUANTILES):
            starts[i] = free[0][0]
            heapq.heapreplace(free, (free[0][0] + float(tokens[i]), i))
    ends = starts + tokens
    points = np.unique(np.concatenate([starts, ends]))
    running = np.searchsorted(np.sort(starts), points, side="right") - np.searchsorted(np.sort(ends), points, side="right")
    width = np.diff(points)
    if by_context:  # load(x) = sum over running of (prompt + x - start)
        begun = np.concatenate([[0.0], np.cumsum(np.sort(starts))])[np.searchsorted(np.sort(starts), points, side="right")]
        by_end = np.argsort(ends, kind="stable")
        left = np.concatenate([[0.0], np.cumsum(starts[by_end])])[np.searchsorted(ends[by_end], points, side="right")]
        at = running * (prompt + points) - (begun - left)
        pieces = width * (at[:-1] + running[:-1] * width / 2)
    else:
        pieces = width * running[:-1]
    total = np.concatenate([[0.0], np.cumsum(pieces)])
    return Schedule(ends, np.interp(ends, points, total))


def _two(rows: np.ndarray) -> tuple[float, float]:
    """Least squares of relative errors for two parts, neither negative."""
    one = np.ones(len(rows))
    alpha, beta = np.linalg.lstsq(rows, one, rcond=None)[0]
    if alpha < 0:
        return 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if beta < 0:
        return float(rows[:, 0].sum() / (rows[:, 0] ** 2).sum()), 0.0
    return float(alpha), float(beta)
