"""One iteration of a plan as bars: who occupies which devices from when to when. From the micro-batches that were
followed, or from the simulated timeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_lab.errors import counted
from rlinf_lab.planning.forecast.steady_state import settled
from rlinf_lab.planning.forecast.stream_estimate import Work
from rlinf_lab.planning.planner.planner import Planned
from rlinf_lab.timeline.record.span import SpanKind

FINEST_SHARE = 1 / 800  # of an iteration: gaps and bars below it melt together
SAME_RELATIVE = 1e-9  # relative: sums of the same seconds in another order
BUSY, SWITCHING = 0, 1
Bar = tuple[float, float, float, float, int, int]


@dataclass(frozen=True)
class Gantt:
    """``bars``: shape (n, 6), float32: start and end [s], first lane and the one behind the last, worker, `BUSY` or
    `SWITCHING`.

    Lanes are the devices in order, then one for each worker that has none. ``seconds``: the end of the iteration.
    """

    bars: np.ndarray
    lanes: int
    devices: int
    workers: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        return f"Gantt({counted(len(self.bars), 'bar')} on {counted(self.devices, 'device')}, {self.seconds:.4g} s)"


def gantt(planned: Planned) -> Gantt:
    """Of the iteration that a run settles to. With staleness of the time between the ends of two, in which several are
    under way.
    """
    placement = planned.candidate.placement
    # as a timeline has them, and so in its colours
    workers = tuple(sorted(placement.seats, key=lambda n: not len(placement.seats[n].devices)))
    devices = sum(placement.setting.counts)
    hosts = [n for n, s in placement.seats.items() if not len(s.devices)]
    lanes = {n: (s.devices.start, s.devices.stop) for n, s in placement.seats.items()}
    lanes |= {n: (devices + i, devices + i + 1) for i, n in enumerate(hosts)}
    bars = _followed(planned, workers, lanes) if planned.simulated is None else _simulated(planned, workers, lanes)
    table = np.array(bars, np.float32).reshape(-1, 6)
    return Gantt(table, devices + len(hosts), devices, workers, planned.seconds)


def _followed(planned: Planned, workers: tuple[str, ...], lanes: dict[str, tuple[int, int]]) -> list[Bar]:
    placement = planned.candidate.placement
    found = list[Bar]()
    for stage, work in planned.candidate.streamed.work.items():
        members = placement.setting.stages[stage].members
        together = len(members) > 1 and len({lanes[m] for m in members}) == 1
        for i, name in enumerate(members):
            low, high = lanes[name]
            # they time-share step by step, too finely to be seen: each has its part of the height
            parts = len(members) if together else 1
            at = i if together else 0
            first, last = low + (high - low) * at / parts, low + (high - low) * (at + 1) / parts
            found += [
                (start, end, first, last, workers.index(name), BUSY)
                for start, end in _melted(work, planned.seconds, placement.setting.overlap > 0)
            ]
    return found


def _melted(work: Work, seconds: float, overlap: bool) -> list[tuple[float, float]]:
    starts, ends = _together(work, seconds) if overlap else (work.starts, work.ends)
    order = np.argsort(starts, kind="stable")
    return _merged(starts[order], ends[order], seconds)


def _together(work: Work, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """What goes on between the ends of two iterations where several are under way: the work of one that was followed
    and, each ``seconds`` earlier, of the next ones."""
    lengths = np.minimum(work.ends - work.starts, seconds)
    starts = np.mod(work.starts, seconds) if seconds else work.starts
    over = np.maximum(starts + lengths - seconds, 0.0)
    rest = over > SAME_RELATIVE * seconds
    return np.concatenate([starts, np.zeros(rest.sum())]), np.concatenate([starts + lengths - over, over[rest]])


def _simulated(planned: Planned, workers: tuple[str, ...], lanes: dict[str, tuple[int, int]]) -> list[Bar]:
    timeline = planned.timeline
    spans, tracks = timeline.spans, timeline.tracks
    last, seconds = settled(timeline, planned.candidate.placement.setting.staleness)
    origin, end = round((last - seconds) * 1e9), round(last * 1e9)
    kinds = {BUSY: (SpanKind.RUN,), SWITCHING: (SpanKind.ONLOAD, SpanKind.OFFLOAD)}
    within = spans[(spans["end"] > origin) & (spans["start"] < end)]
    at = {name: i for i, name in enumerate(planned.devices)}
    found, melted = list[Bar](), list[int]()
    for number, track in enumerate(tracks):
        if track.worker not in workers:
            continue
        own = within[within["track"] == number]
        places = [at[d] for d in track.devices]
        first, stop = (min(places), max(places) + 1) if places else lanes[track.worker]
        for kind, of in kinds.items():
            rows = own[np.isin(own["kind"], of)]
            rows = rows[np.argsort(rows["start"], kind="stable")]
            starts, ends = (
                (np.maximum(rows["start"], origin) - origin) / 1e9,
                (np.minimum(rows["end"], end) - origin) / 1e9,
            )
            bars = _merged(starts, ends, (end - origin) / 1e9)
            if len(bars) < len(rows):
                melted += range(len(found), len(found) + len(bars))
            found += [(a, b, first, stop, workers.index(track.worker), kind) for a, b in bars]
    return _told_apart(found, melted, FINEST_SHARE * (end - origin) / 1e9)


def _told_apart(bars: list[Bar], melted: list[int], least: float) -> list[Bar]:
    """Bars of several workers on one lane at the same time, for ``least`` seconds or longer, were turns too fine to be
    seen: each has its part of the height. Nobody else works on a lane at the same time, so only ``melted`` ones, those
    of workers whose spans were joined, are looked at."""
    lanes: dict[int, list[int]] = {}
    for i in melted:
        for lane in range(int(bars[i][2]), int(bars[i][3])):
            lanes.setdefault(lane, []).append(i)
    beside: dict[int, set[int]] = {}
    for some in lanes.values():
        open_: list[int] = []
        for i in sorted(some, key=lambda i: bars[i][0]) if len({bars[i][4] for i in some}) > 1 else ():
            open_ = [k for k in open_ if bars[k][1] - bars[i][0] >= least]
            for k in open_:
                if bars[k][4] != bars[i][4] and min(bars[k][1], bars[i][1]) - bars[i][0] >= least:
                    beside.setdefault(i, {i}).add(k)
                    beside.setdefault(k, {k}).add(i)
            open_.append(i)
    found = list[Bar]()
    for i, bar in enumerate(bars):
        start, end, first, stop, worker, kind = bar
        there = sorted({bars[k][4] for k in beside.get(i, ())}) or [worker]
        alike = len({bars[k][2:4] for k in beside.get(i, ())}) <= 1
        at, parts = there.index(worker), len(there)
        for low, high in [(first, stop)] if alike else [(lane, lane + 1) for lane in range(int(first), int(stop))]:
            found.append(
                (start, end, low + (high - low) * at / parts, low + (high - low) * (at + 1) / parts, worker, kind)
            )
    return found


def _merged(starts: np.ndarray, ends: np.ndarray, seconds: float) -> list[tuple[float, float]]:
    """Ascending intervals, those with less than `FINEST_SHARE` between them joined."""
    if not len(starts):
        return []
    reached = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(starts[1:] - reached[:-1] > FINEST_SHARE * seconds) + 1
    return [(float(starts[a]), float(reached[b - 1])) for a, b in zip([0, *cuts], [*cuts, len(starts)], strict=True)]
