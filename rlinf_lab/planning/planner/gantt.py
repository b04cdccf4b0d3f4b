"""One iteration of a plan as bars: who occupies which devices from when to when. From the micro-batches that were
followed, or from the simulated timeline.
"""

from __future__ import annotations

from collections.abc import Iterator
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
Lanes = dict[str, tuple[int, int]]
Bar = tuple[str, tuple[int, int], float, float, int]
"""worker, lanes, start, end, kind"""


@dataclass(frozen=True)
class Gantt:
    """A plan's work on its devices as ``bars``, shape (n, 6), float32. A bar is start and end [s], first lane and the
    one behind the last, worker, `BUSY` or `SWITCHING`.

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
    bars = (_followed if planned.simulated is None else _simulated)(planned, lanes)
    found = [
        (start, end, *_part(planned, name, lanes, on), workers.index(name), kind) for name, on, start, end, kind in bars
    ]
    table = np.array(found, np.float32).reshape(-1, 6)
    return Gantt(table, devices + len(hosts), devices, workers, planned.seconds)


def _part(planned: Planned, name: str, lanes: Lanes, on: tuple[int, int]) -> tuple[float, float]:
    """The part of a bar's lanes that is drawn. Members of a cell on the same devices time-share step by step, too
    finely to be seen, so each has its part of the height.
    """
    setting = planned.candidate.placement.setting
    mates = [m for m in setting.stages[setting.home[name]].members if lanes[m] == lanes[name]]
    (low, high), at = on, mates.index(name)
    return low + (high - low) * at / len(mates), low + (high - low) * (at + 1) / len(mates)


def _followed(planned: Planned, lanes: Lanes) -> Iterator[Bar]:
    setting = planned.candidate.placement.setting
    for stage, work in planned.candidate.streamed.work.items():
        for name in setting.stages[stage].members:
            for start, end in _melted(work, planned.seconds, setting.overlap > 0):
                yield name, lanes[name], start, end, BUSY


def _melted(work: Work, seconds: float, overlap: bool) -> list[tuple[float, float]]:
    starts, ends = _together(work, seconds) if overlap else (work.starts, work.ends)
    order = np.argsort(starts, kind="stable")
    return _merged(starts[order], ends[order], seconds)


def _together(work: Work, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Bars between the ends of two iterations where several are under way. They are the work of one that was followed
    and, each ``seconds`` earlier, of the next ones.
    """
    lengths = np.minimum(work.ends - work.starts, seconds)
    starts = np.mod(work.starts, seconds) if seconds else work.starts
    over = np.maximum(starts + lengths - seconds, 0.0)
    rest = over > SAME_RELATIVE * seconds
    return np.concatenate([starts, np.zeros(rest.sum())]), np.concatenate([starts + lengths - over, over[rest]])


def _simulated(planned: Planned, lanes: Lanes) -> Iterator[Bar]:
    timeline = planned.timeline
    last, seconds = settled(timeline, planned.candidate.placement.setting.staleness)
    origin, end = round((last - seconds) * 1e9), round(last * 1e9)
    spans = timeline.spans[(timeline.spans["end"] > origin) & (timeline.spans["start"] < end)]
    spans = spans[np.argsort(spans["start"], kind="stable")]
    at = {name: i for i, name in enumerate(planned.devices)}
    for number, track in enumerate(timeline.tracks):
        if track.worker not in lanes:
            continue
        places = [at[d] for d in track.devices]
        on = (min(places), max(places) + 1) if places else lanes[track.worker]
        for kind, of in ((BUSY, (SpanKind.RUN,)), (SWITCHING, (SpanKind.ONLOAD, SpanKind.OFFLOAD))):
            rows = spans[(spans["track"] == number) & np.isin(spans["kind"], of)]
            starts, ends = np.maximum(rows["start"], origin) - origin, np.minimum(rows["end"], end) - origin
            for start, stop in _merged(starts / 1e9, ends / 1e9, seconds):
                yield track.worker, on, start, stop, kind


def _merged(starts: np.ndarray, ends: np.ndarray, seconds: float) -> list[tuple[float, float]]:
    """Ascending intervals, those with less than `FINEST_SHARE` between them joined."""
    if not len(starts):
        return []
    reached = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(starts[1:] - reached[:-1] > FINEST_SHARE * seconds) + 1
    return [(float(starts[a]), float(reached[b - 1])) for a, b in zip([0, *cuts], [*cuts, len(starts)], strict=True)]
