"""Cores that work at the same time slow each other down. Threads share one core, cores share caches and a clock budget.
So do the streams of one GPU.

A predicted timeline knows when how many of them work; its time is stretched there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import PlanError, shown
from rlinf_lab.planning.plan.device import Device, whole
from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.span import SpanKind, Track
from rlinf_lab.timeline.timeline import Timeline


def checked_factors(factors: Sequence[float]) -> tuple[float, ...]:
    """Raises `PlanError` for what is no list of factors from 1 on, not falling."""
    try:
        found = tuple(float(f) for f in factors)
    except (TypeError, ValueError):
        found = (math.nan,)
    if not all(math.isfinite(f) and f >= 1 for f in found) or list(found) != sorted(found) or (found and found[0] != 1):
        raise PlanError(
            f"crowding={shown(factors)}: how many times longer work takes when 1, 2, 3 ... cores of a machine are "
            "busy, beginning with 1 and not falling. "
            f"Next: crowding=lab.profiling.crowding(), or (1.0, 1.3)."
        )
    return found


def stretched(timeline: Timeline, factors: Sequence[float]) -> Timeline:
    """The same timeline, as slow as cores make each other that work at once. Every moment is as many times longer.

    ``factors``: for 1, 2, ... busy cores of a machine, or shares of a GPU; the last one for more. Of several machines
    and GPUs the most crowded one counts.
    """
    if len(factors) < 2 or not len(timeline):
        return timeline
    edges, crowd = _crowd(timeline)
    times = np.asarray(factors)[np.clip(crowd, 1, len(factors)) - 1]
    moved = edges[0] + np.concatenate([[0.0], np.cumsum(np.diff(edges) * times)])
    spans = timeline.spans.copy()
    for column in ("start", "end"):
        spans[column] = np.rint(np.interp(spans[column], edges, moved))
    found = Timeline(timeline.devices)
    found.extend(SpanBatch("simulated", "stretched", 0, spans, tuple(timeline.tracks), tuple(timeline.names)))
    return found


def _crowd(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many cores of the busiest machine work at which time. Returns (moments at which the number changes, the
    number from each to the next).
    """
    spans, tracks = timeline.spans, timeline.tracks
    running = spans[spans["kind"] == SpanKind.RUN]
    cores = [_cores(track) for track in tracks]
    busy: dict[str, list[_Stretches]] = {}  # by machine, or GPU, for each of its cores or shares
    for core in sorted(set().union(*cores)):
        mine = running[np.isin(running["track"], [i for i, own in enumerate(cores) if core in own])]
        busy.setdefault(core[0], []).append(_Stretches.united(mine["start"], mine["end"]))
    every = [times for stretches in busy.values() for s in stretches for times in (s.starts, s.ends)]
    edges = np.unique(np.concatenate([*every, [timeline.start_ns, timeline.end_ns]]).astype(np.int64))
    crowd = np.zeros(len(edges) - 1, np.int64)
    for stretches in busy.values():
        crowd = np.maximum(crowd, np.sum([s.covers(edges[:-1]) for s in stretches], axis=0))
    return edges, crowd


def _cores(track: Track) -> set[tuple[str, Device]]:
    """(machine, core) and (GPU, share) of each."""
    devices = [Device.parse(name) for name in track.devices if Device.is_name(name)]
    return {(f"node{d.node}" if d.kind == "cpu" else whole(str(d)), d) for d in devices if d.kind == "cpu" or d.share}


@dataclass(frozen=True)
class _Stretches:
    """Disjoint stretches of time, ascending."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def united(cls, start: NDArray[np.int64], end: NDArray[np.int64]) -> _Stretches:
        """Those in which at least one of these is going on."""
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        begins = (
            np.flatnonzero(np.concatenate([[True], start[1:] > reached[:-1]])) if len(start) else np.zeros(0, np.intp)
        )
        return cls(start[begins], reached[np.append(begins[1:] - 1, len(start) - 1)] if len(start) else reached)

    def covers(self, moments: NDArray[np.int64]) -> NDArray[np.bool_]:
        at = np.searchsorted(self.starts, moments, side="right")
        ends = np.concatenate([[np.iinfo(np.int64).min], self.ends])
        return moments < ends[at]
