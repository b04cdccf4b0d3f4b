"""Generation with continuous batching over a length distribution.

An engine (one rank) advances all its running sequences by one token in a step of ``alpha + beta · load`` seconds.
``load`` is what grows with the work at hand: the tokens of context in the key-value cache when the model's shape is
known (the roofline of a decode step: bytes of weights against bytes of cache), else the number of running sequences. At
most ``cap`` sequences run; the others wait, in a queue of any length: the representative requests pass several times
where the slots would be too many for them. What was measured on no devices (a service beside the plan's) is one rank
whatever the plan. Which sequence runs at which *step* does not depend on alpha or beta, so seconds are linear in both
and they can be identified

- from two or more measurements at different device counts or sizes (least squares, neither negative), or
- from one measurement and the model's shape: ``beta / alpha = cache bytes of a token / bytes of weights``, or
- from one measurement and an exponent: the load's share of its seconds, and so the local slope of seconds over devices,
  log against log.

With nothing of these, all is taken as load (perfect scaling) and every answer says that this is assumed.

Source of the fluid form: measured completion curves of reasoning rollouts (RLinf, arXiv 2509.15965, Fig. 2).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rlinf_lab.planning.costs.base import NOBODY, CostEstimate, Misfit, by_relative_error, estimated, of_a_rank
from rlinf_lab.planning.costs.completion_curve import lengths_from_completion
from rlinf_lab.planning.costs.lengths import QUANTILES, issue_order, quantiles
from rlinf_lab.planning.profile.profile import Lengths, ModelShape, Sample

KEPT_SCHEDULES = 512  # schedules of a model, 8 KiB each: a model answers many questions
DRAWN_SLOTS = 32  # slots of a long queue that are looked at
ROUNDING = 1e-9


@dataclass(frozen=True)
class Stream:
    """Outputs in micro-batches. ``times`` [s] when each micro-batch is complete, ``weights`` relative to an average
    micro-batch; both shape (micro-batches,).
    """

    times: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Schedule:
    """Of one engine, in steps: each request's end, and the accumulated load up to then. Both in issue order, shape
    (QUANTILES,).

    ``round``: steps that all requests take on these slots when none is ever empty; so many more for each further time
    that they all pass.
    """

    ends: np.ndarray
    loads: np.ndarray
    round: float

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
    group_size: int = 1
    _schedules: dict[tuple[int, int, bool, float], Schedule] = field(default_factory=dict, repr=False, compare=False)

    def seconds(
        self,
        devices: np.ndarray,
        items: float | np.ndarray,
        beside: frozenset[str] = NOBODY,
        cap: np.ndarray | None = None,
    ) -> np.ndarray:
        """Time until the last response. ``cap``: most running sequences of a rank for each entry of ``devices``
        (memory), None: no limit.
        """
        alpha, beta = self.parameters
        requests = self._requests(devices, items)
        slots, rounds = self._slots(requests, cap)
        steps, loads = np.empty_like(requests), np.empty_like(requests)
        for s in np.unique(slots):
            schedule, here = self.schedule(int(s)), slots == s
            steps[here], loads[here] = schedule.steps + (rounds[here] - 1) * schedule.round, schedule.load
        return alpha * steps + beta * loads * requests / QUANTILES

    def stream(
        self, devices: int, items: float, micro_batches: int, group: int = 1, cap: float | None = None
    ) -> Stream:
        """When ``micro_batches`` equal parts of the outputs are complete. ``group``: so many responses (issued
        together) count when the last is there.

        The last one is there after `seconds`, whoever asks for groups: on few slots another order of issue would end a
        little earlier or later.
        """
        alpha, beta = self.parameters
        requests = self._requests(np.array([devices]), items)
        slots, rounds = self._slots(requests, None if cap is None else np.array([cap]))
        schedule = self.schedule(int(slots[0]), group, rounds=float(rounds[0]))
        ends = alpha * schedule.ends + beta * schedule.loads * requests[0] / QUANTILES
        tokens = self.asked[issue_order(group, self.lengths.group_correlation)]
        if group > 1:
            single = self.schedule(int(slots[0]), rounds=float(rounds[0]))
            total = float(np.max(alpha * single.ends + beta * single.loads * requests[0] / QUANTILES))
            ends *= total / ends.max() if ends.max() else 1.0
            starts = np.arange(0, QUANTILES, group)
            ends, tokens = np.maximum.reduceat(ends, starts), np.add.reduceat(tokens, starts)
        order = np.argsort(ends, kind="stable")
        ends, tokens = ends[order], tokens[order]
        share = np.linspace(0, 1, len(ends) + 1)
        edges = np.linspace(0, 1, micro_batches + 1)
        times = np.interp(edges[1:], share[1:], ends)
        weights = np.diff(np.interp(edges, share, np.concatenate([[0.0], np.cumsum(tokens)])))
        return Stream(times, weights / weights.mean())

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        guessed = "" if self.identified != "assumed" else "all of a step taken as load"
        value = float(self.seconds(np.array([devices]), items)[0])
        return estimated(value, self.samples, self.misfit, devices, items, guessed, f"load part from {self.identified}")

    def reach(self) -> float:
        return float("inf")

    @property
    def share(self) -> float:
        """Load's share of the first measurement's seconds: how much of it shrinks with more devices."""
        first = self.samples[0]
        total = float(self.seconds(np.array([first.devices]), first.items)[0])
        return 1 - self.parameters[0] * self._row(first)[0] / total if total else 0.0

    @property
    def identified(self) -> str:
        """What told fixed cost from load: ``measurements``, ``model shape``, ``exponent`` or ``assumed``."""
        if len({float(self._measured(s)) for s in self.samples}) > 1:
            return "measurements"
        return "model shape" if self.model is not None else "exponent" if self.exponent is not None else "assumed"

    @cached_property
    def tokens(self) -> np.ndarray:
        """Lengths [tokens], ascending, shape (QUANTILES,)."""
        if not self.lengths.completion:
            return quantiles(self.lengths)
        requests = self._measured(self.samples[0])
        measured = replace(self.lengths, factor=1.0, tail=1.0)
        if self.model is None:
            return lengths_from_completion(measured, None, self._assumed_share())
        return lengths_from_completion(measured, self.ratio * requests, 0.0)

    @cached_property
    def asked(self) -> np.ndarray:
        """The lengths that seconds are asked for. They are the measured ones, or what `Lengths.factor` and
        `Lengths.tail` make of them.
        """
        factor, tail = self.lengths.factor, self.lengths.tail
        if factor == tail == 1:
            return self.tokens
        # where most responses are empty the ratio to 0 says nothing
        middle = float(np.median(self.tokens)) or float(self.tokens.mean())
        return factor * middle * (self.tokens / middle) ** tail

    @property
    def ratio(self) -> float:
        """beta / alpha of a token of context, from bytes."""
        assert self.model is not None
        return self.model.kv_bytes_per_token / (self.model.weight_gb * 1e9)

    @cached_property
    def misfit(self) -> Misfit:
        fitted = [
            self.parameters[0] * steps + self.parameters[1] * load for steps, load in map(self._row, self.samples)
        ]
        return Misfit.of(np.array([s.seconds for s in self.samples]), np.array(fitted))

    @cached_property
    def parameters(self) -> tuple[float, float]:
        """(alpha [s a step], beta [s a step and group_size of load])."""
        rows = np.array([self._row(s) for s in self.samples])
        t = np.array([s.seconds for s in self.samples])
        if self.identified == "measurements":
            return _two(rows, t)
        if self.identified == "model shape":
            alpha = float(np.mean(t / (rows[:, 0] + self.ratio * rows[:, 1])))
            return alpha, alpha * self.ratio
        share = self._assumed_share()
        return float(np.mean((1 - share) * t / rows[:, 0])), float(np.mean(share * t / rows[:, 1]))

    def _assumed_share(self) -> float:
        if self.identified == "measurements":
            first, last = min(self.samples, key=lambda s: s.devices), max(self.samples, key=lambda s: s.devices)
            x = [self._measured(s) for s in (first, last)]
            slope = (first.seconds - last.seconds) / (x[0] - x[1]) if x[0] != x[1] else 0.0
            return (
                float(np.clip(slope * self._measured(self.samples[0]) / self.samples[0].seconds, 0.0, 1.0))
                if self.samples[0].seconds
                else 0.0
            )
        return 1.0 if self.exponent is None else min(self.exponent, 1.0)

    def _row(self, sample: Sample) -> tuple[float, float]:
        """(steps, load) of a measurement."""
        requests = np.array([self._measured(sample)])
        slots, rounds = self._slots(requests, None)
        schedule = self.schedule(int(slots[0]), measured=True)
        return schedule.steps + (float(rounds[0]) - 1) * schedule.round, schedule.load * float(requests[0]) / QUANTILES

    def _measured(self, sample: Sample) -> float:
        """Requests of a rank in a measurement."""
        return float(self._requests(np.array([sample.devices]), sample.items)[0])

    def _requests(self, devices: np.ndarray, items: float | np.ndarray) -> np.ndarray:
        """Of each rank. A service beside the plan's devices was measured on none, and is one rank whatever the plan."""
        beside = not any(s.devices for s in self.samples)
        ranks = (
            np.ones(np.shape(devices))
            if beside
            else np.maximum(np.asarray(devices, float) / self.devices_per_rank, 1e-9)
        )
        return of_a_rank(items, ranks, self.group_size)

    def _slots(self, requests: np.ndarray, cap: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """On how many slots the representative requests are looked at, and how often they pass. There are QUANTILES
        requests, and each is to have its share of real slots.

        As many slots as there are really, up to DRAWN: fewer would make the last ones drain at once. Then the queue is
        as long as it is by more rounds.
        """
        limit = np.full_like(requests, np.inf) if cap is None else np.maximum(np.asarray(cap, float), 1.0)
        if self.max_running is not None:
            limit = np.minimum(limit, self.max_running)
        share = QUANTILES * limit / np.maximum(requests, 1e-9)
        few = np.minimum(np.ceil(np.where(share < QUANTILES, share, QUANTILES) - ROUNDING), QUANTILES)
        slots = np.maximum(few, np.where(share < DRAWN_SLOTS, np.minimum(np.floor(limit), DRAWN_SLOTS), 1.0))
        return slots.astype(int), np.where(share < QUANTILES, np.maximum(slots / share, 1.0), 1.0)

    def schedule(self, slots: int, group: int = 1, measured: bool = False, rounds: float = 1.0) -> Schedule:
        """Requests in issue order on ``slots`` slots; a freed slot takes the next. ``measured``: of the lengths that
        were measured. ``rounds``: how often all of them pass, one of so many being looked at."""
        key = (slots, group, measured, rounds)
        found = self._schedules.get(key)
        if found is None:
            tokens = (self.tokens if measured else self.asked)[issue_order(group, self.lengths.group_correlation)]
            starts, round_ = _starts(tokens, slots), float(tokens.sum()) / slots
            if rounds > 1:
                starts = _in_rounds(starts, tokens, group, rounds, round_)
            found = _schedule(starts, tokens, self.lengths.prompt_tokens, self.model is not None, round_)
            if len(self._schedules) >= KEPT_SCHEDULES:
                self._schedules.clear()
            self._schedules[key] = found
        return found


def _starts(tokens: np.ndarray, slots: int) -> np.ndarray:
    starts = np.zeros(QUANTILES)
    if slots < QUANTILES:
        free = [(float(t), i) for i, t in enumerate(tokens[:slots])]
        heapq.heapify(free)
        for i in range(slots, QUANTILES):
            starts[i] = free[0][0]
            heapq.heapreplace(free, (free[0][0] + float(tokens[i]), i))
    return starts


def _in_rounds(starts: np.ndarray, tokens: np.ndarray, group: int, rounds: float, round_: float) -> np.ndarray:
    """Starts of one in ``rounds`` requests when all pass so often. The queue fills as in the first half of one round
    and drains as in its second half; between, the slots take one after the other. Groups stay together, and whoever
    ends last is among them.
    """
    first, half = np.arange(QUANTILES), QUANTILES // 2
    issued = np.where(first < half, first, first + QUANTILES * (rounds - 1))
    begun = np.where(first < half, starts, starts + round_ * (rounds - 1))
    found = np.interp(first // group * group * rounds + first % group, issued, begun)
    last = int(np.argmax(starts + tokens))
    found[last] = starts[last] + round_ * (rounds - 1)
    return found


def _schedule(starts: np.ndarray, tokens: np.ndarray, prompt: float, by_context: bool, round_: float) -> Schedule:
    ends = starts + tokens
    points = np.unique(np.concatenate([starts, ends]))
    running = np.searchsorted(np.sort(starts), points, side="right") - np.searchsorted(
        np.sort(ends), points, side="right"
    )
    width = np.diff(points)
    if by_context:  # load(x) = sum over running of (prompt + x - start)
        begun = np.concatenate([[0.0], np.cumsum(np.sort(starts))])[
            np.searchsorted(np.sort(starts), points, side="right")
        ]
        by_end = np.argsort(ends, kind="stable")
        left = np.concatenate([[0.0], np.cumsum(starts[by_end])])[np.searchsorted(ends[by_end], points, side="right")]
        at = running * (prompt + points) - (begun - left)
        pieces = width * (at[:-1] + running[:-1] * width / 2)
    else:
        pieces = width * running[:-1]
    total = np.concatenate([[0.0], np.cumsum(pieces)])
    return Schedule(ends, np.interp(ends, points, total), round_)


def _two(rows: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Least squares of relative errors for two parts, neither negative."""
    weight = by_relative_error(seconds)
    rows, wanted = rows * weight[:, None], seconds * weight
    alpha, beta = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    if alpha < 0:
        return 0.0, float((rows[:, 1] * wanted).sum() / (rows[:, 1] ** 2).sum())
    if beta < 0:
        return float((rows[:, 0] * wanted).sum() / (rows[:, 0] ** 2).sum()), 0.0
    return float(alpha), float(beta)
