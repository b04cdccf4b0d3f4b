"""Seconds that workers really took lately in a run, against those that the plan expected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlinf_lab.errors import PlanError, counted
from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.simulator.state import SIMULATED
from rlinf_lab.timeline.account.tables import whole_iterations
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline


@dataclass(frozen=True)
class Drift:
    """Of one worker: seconds of an iteration, expected and measured. ``sustained``: off by more than the threshold all
    through the window.
    """

    worker: str
    expected: float
    measured: float
    sustained: bool

    @classmethod
    def of(cls, worker: str, expected: float | Sequence[float], measured: Sequence[float], threshold: float) -> Drift:
        """``measured``: of each iteration of the window; ``expected``: of any, or of each. A drift is sustained when
        the medians of both halves say so.
        """
        each = [expected] * len(measured) if isinstance(expected, float | int) else list(expected)
        off = [m / e - 1 if e else math.inf if m else 0.0 for m, e in zip(measured, each, strict=True)]
        middle = len(off) // 2
        halves = [statistics.median(part) for part in (off[:middle], off[middle:]) if part]
        sustained = len(halves) > 1 and (all(h > threshold for h in halves) or all(h < -threshold for h in halves))
        typical = expected if isinstance(expected, float | int) else statistics.median(each)
        return cls(worker, typical, statistics.median(measured) if measured else 0.0, sustained)

    @property
    def factor(self) -> float:
        return self.measured / self.expected if self.expected else math.inf

    @property
    def percent(self) -> str:
        """How far off; nothing where no time was expected."""
        off = round(100 * (self.factor - 1)) if self.expected else 0
        return f"{off:+d} %" if off else "0 %" if self.expected else ""


@dataclass(frozen=True)
class Window:
    """The last iterations of a timeline. ``workers``: seconds that the busiest rank of each computed in them, without
    handovers; ``handovers``: by (worker, method) the same of those; ``elapsed``: seconds of each iteration."""

    timeline: Timeline
    warm: np.ndarray
    workers: Mapping[str, list[float]]
    handovers: Mapping[tuple[str, str], list[float]]
    elapsed: list[float]

    @classmethod
    def of(cls, timeline: Timeline, profile: Profile, most: int) -> Window:
        """Of ``most`` iterations at most that have ended, without the first, which warms up. Raises `PlanError` where
        that leaves fewer than two.
        """
        timeline = timeline.snapshot()
        spans, over = timeline.spans, whole_iterations(timeline)
        runs = spans[(spans["kind"] == SpanKind.RUN) & (spans["iteration"] >= 0)]
        if not len(runs) and np.isin(spans["kind"], (SpanKind.RUN, SpanKind.LABEL)).any():
            raise PlanError(
                "No span of the timeline says of which iteration it is, as those of other tools: it cannot be told "
                "what an iteration takes. "
                "Next: lab.planning.profile_from_trace(timeline, ...) and lab.plan with it, or the timeline of a run "
                "of lab.run."
            )
        every = np.unique(runs["iteration"])
        every = every if over is None else every[np.isin(every, sorted(over))]
        warm = every[1:][-most:]
        if len(warm) < 2:
            raise PlanError(
                f"The timeline has {counted(len(every), 'iteration')} that came to an end; the first one warms up, and "
                "two more are needed to see a drift. "
                f"Next: replan(...) after {3 - len(every)} more."
            )
        runs = runs[np.isin(runs["iteration"], warm)]
        handed, rest = {}, np.ones(len(runs), bool)
        for h in profile.handovers:
            own = [i for i, track in enumerate(timeline.tracks) if track.worker == h.worker]
            name = [i for i, text in enumerate(timeline.names) if text == h.method]
            some = np.isin(runs["track"], own) & np.isin(runs["name"], name)
            handed[h.worker, h.method] = _busiest(timeline, runs[some], warm).get(h.worker, [0.0] * len(warm))
            rest &= ~some
        table = timeline.iterations().set_index("iteration")["seconds"]
        elapsed = [float(table[i]) for i in warm if i in table.index]
        return cls(timeline, warm, _busiest(timeline, runs[rest], warm), handed, elapsed)

    def of_worker(self, profile: Profile, worker: str) -> list[float]:
        """Seconds an iteration. Who works in some iterations only: those, with the share that the profile says."""
        measured, share = self.workers[worker], profile.workers[worker].calls
        return [s * share for s in measured if s] if share < 1 else measured

    def of_handover(self, worker: str, method: str) -> list[float]:
        """Seconds an iteration. Where some iterations made no such call it is their mean, once: how often it should be
        made, the profile does not say.
        """
        measured = self.handovers[worker, method]
        return measured if all(measured) or not any(measured) else [statistics.fmean(measured)]

    def elapsed_of(self, profile: Profile) -> list[float]:
        """Seconds of each iteration; their mean where a worker works in some of them only."""
        if self.elapsed and any(w.calls < 1 for w in profile.workers.values()):
            return [statistics.fmean(self.elapsed)] * len(self.elapsed)
        return self.elapsed

    def batches(self, worker: str) -> tuple[np.ndarray, np.ndarray]:
        """(items, seconds) of the batches of one rank of a worker. The one with most of them; empty where it reads
        none. What it computes after the last one belongs to none."""
        gets, channel = self._gets(worker)
        if not len(gets):
            return np.empty(0), np.empty(0)
        spans = self._spans(worker)
        spans = np.sort(spans[spans["track"] == np.bincount(gets["track"]).argmax()], order=("start", "end"))
        begins = np.flatnonzero((spans["kind"] == SpanKind.GET) & (spans["channel"] == channel))
        spent = np.add.reduceat(np.where(spans["kind"] == SpanKind.RUN, spans["end"] - spans["start"], 0) / 1e9, begins)
        items = spans["items"][begins]
        return items[items > 0].astype(float), spent[items > 0]

    @cached_method
    def taken(self, worker: str) -> list[np.ndarray]:
        """For each iteration the batches of the rank that computed most. Each as the part that it would be of all items
        if every rank took as many. Empty where nothing was read."""
        gets, _ = self._gets(worker)
        spans, ranks = self._spans(worker), sum(track.worker == worker for track in self.timeline.tracks)
        busy = np.zeros((len(self.timeline.tracks), len(self.warm)))
        np.add.at(
            busy,
            (spans["track"], self._at(spans)),
            np.where(spans["kind"] == SpanKind.RUN, spans["end"] - spans["start"], 0),
        )
        everything = np.bincount(self._at(gets), gets["items"], len(self.warm))
        own = gets[gets["track"] == busy.argmax(axis=0)[self._at(gets)]]
        own = own[np.argsort(self._at(own), kind="stable")]
        parts = own["items"] * ranks / everything[self._at(own)]
        return np.split(parts, np.searchsorted(self._at(own), np.arange(1, len(self.warm))))

    @property
    def is_simulated(self) -> bool:
        """Whether it is one of a simulation, kept in a file perhaps."""
        return all(track.host == SIMULATED for track in self.timeline.tracks)

    def items(self, worker: str) -> float:
        """How many a worker took of that channel in an iteration, all ranks together. 0 where it read none."""
        gets, _ = self._gets(worker)
        return float(np.median(np.bincount(self._at(gets), gets["items"], len(self.warm)))) if len(gets) else 0.0

    @cached_method
    def _spans(self, worker: str) -> np.ndarray:
        """What a worker computed and took."""
        own = [i for i, track in enumerate(self.timeline.tracks) if track.worker == worker]
        return np.asarray(self._recent[np.isin(self._recent["track"], own)])

    @cached_property
    def _recent(self) -> np.ndarray:
        spans = self.timeline.spans
        return spans[np.isin(spans["kind"], (SpanKind.RUN, SpanKind.GET)) & np.isin(spans["iteration"], self.warm)]

    def _at(self, spans: np.ndarray) -> np.ndarray:
        """Of each span the place of its iteration in the window."""
        return np.searchsorted(self.warm, spans["iteration"])

    def _gets(self, worker: str) -> tuple[np.ndarray, int]:
        """A worker's gets on the channel that it read most often, and that channel. They count its batches."""
        spans = self._spans(worker)
        gets = spans[(spans["kind"] == SpanKind.GET) & (spans["items"] > 0) & (spans["channel"] >= 0)]
        if not len(gets):
            return gets, -1
        channel = int(np.bincount(gets["channel"]).argmax())
        return gets[gets["channel"] == channel], channel


def _busiest(timeline: Timeline, runs: np.ndarray, warm: np.ndarray) -> dict[str, list[float]]:
    """Of each worker, for each iteration: seconds that its busiest rank computed."""
    busy = np.zeros((len(timeline.tracks), len(warm)))
    np.add.at(busy, (runs["track"], np.searchsorted(warm, runs["iteration"])), (runs["end"] - runs["start"]) / 1e9)
    found: dict[str, np.ndarray] = {}
    for track, row in zip(timeline.tracks, busy, strict=True):
        found[track.worker] = np.maximum(found[track.worker], row) if track.worker in found else row
    return {worker: row.tolist() for worker, row in found.items()}
