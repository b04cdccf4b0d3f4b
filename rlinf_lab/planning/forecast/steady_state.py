"""What a forecast settles to. It is the second iteration without staleness, and with it whatever comes again and again.

Where iterations overlap, a worker may get ahead for a while, until the staleness or a queue stops it: then one long
iteration follows many short ones. So it is not enough that iterations take equally long. A run has settled when
everybody's work of some iterations lies to each other as it did a few iterations before; from then on these are
repeated, because nothing in the scheduler looks further back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_lab.planning.forecast.forecast import BUNDLES, forecast
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

MAX_OVERLAPPING = 8  # iterations at most that are compared with earlier ones
# iterations that are forecast, unless more than half of them overlap; where nothing comes again until then, the later
# half counts
MAX_ITERATIONS = 64
MAX_SPANS = 100_000  # of a forecast that is made longer: some tenths of a second
ALIKE_RELATIVE = 1e-7  # relative to the run: durations are rounded to nanoseconds


def steady(placement: Placement, devices: Sequence[str] = (), detail: int = BUNDLES) -> Timeline:
    """A forecast of as many iterations as it takes to settle. ``detail``: of `forecast`."""
    staleness = placement.setting.staleness
    iterations = needed(staleness)
    timeline = forecast(placement, iterations, devices, detail=detail)
    while (
        staleness
        and iterations < MAX_ITERATIONS
        and 2 * len(timeline.spans) <= MAX_SPANS
        and _period(timeline, staleness) is None
    ):
        iterations = min(2 * iterations, MAX_ITERATIONS)
        timeline = forecast(placement, iterations, devices, detail=detail)
    return timeline


def needed(staleness: int) -> int:
    """Iterations after which it may be seen what a run settles to. The overlap builds up in the first, the next are
    compared, the last are followed by none.
    """
    return 2 if not staleness else 2 * (staleness + 1) + 2 * min(staleness + 1, MAX_OVERLAPPING) + 2


def settled(timeline: Timeline, staleness: int) -> tuple[float, float]:
    """(end of an iteration [s], seconds between such ends) that a `steady` forecast settles to."""
    marks = timeline.spans[timeline.spans["kind"] == SpanKind.MARK]
    ends = np.sort(marks["end"]) / 1e9
    if not staleness:
        return float(ends[-1]), float(marks["end"].max() - marks["start"].max()) / 1e9
    last = _last(len(ends), staleness)
    found = _period(timeline, staleness)
    if found is not None:
        return float(ends[last]), float(ends[last] - ends[last - found]) / found
    first = max(last // 2, min(staleness, last - 1))
    # Whoever has a lead may use it up later than that: no iteration takes less than any device works for one.
    return float(ends[last]), max(float(ends[last] - ends[first]) / (last - first), _busiest(timeline) / len(ends))


def _last(iterations: int, staleness: int) -> int:
    """The last ones compete with none that follow."""
    return iterations - staleness - 2


def _period(timeline: Timeline, staleness: int) -> int | None:
    """After how many iterations the last ones that count are repeated. None where they have not come before."""
    work = _work(timeline)
    last, some = _last(work.shape[1], staleness), min(staleness + 1, MAX_OVERLAPPING)
    tolerance = ALIKE_RELATIVE * max(float(timeline.elapsed_ns), 1.0)
    for period in range(1, last - some + 1):
        now, before = (work[:, stop - some : stop] for stop in (last + 1, last + 1 - period))
        if (np.isnan(now) == np.isnan(before)).all() and np.nanmax(np.abs(now - before), initial=0.0) <= tolerance:
            return period
    return None


def _work(timeline: Timeline) -> np.ndarray:
    """When each track began and ended its work of an iteration, from its end [ns]. The last row is when the iteration
    before ended. Shape (2 tracks + 1, iterations); nan where a track did nothing.
    """
    spans = timeline.spans
    marks = spans[spans["kind"] == SpanKind.MARK]
    ends = np.sort(marks["end"]).astype(float)
    work = spans[(spans["kind"] == SpanKind.RUN) & (spans["iteration"] >= 0) & (spans["iteration"] < len(ends))]
    begun, ended = (np.full((len(timeline.tracks), len(ends)), fill) for fill in (np.inf, -np.inf))
    at = work["track"], work["iteration"]
    np.minimum.at(begun, at, work["start"])
    np.maximum.at(ended, at, work["end"])
    found = np.vstack([begun - ends, ended - ends, np.diff(ends, prepend=0.0)[None]])
    return np.where(np.isfinite(found), found, np.nan)


def _busiest(timeline: Timeline) -> float:
    """Seconds for which the busiest device works."""
    runs = timeline.spans[timeline.spans["kind"] == SpanKind.RUN]
    by_track = np.bincount(runs["track"], weights=(runs["end"] - runs["start"]) / 1e9, minlength=len(timeline.tracks))
    busy: dict[str, float] = {}
    for track, seconds in zip(timeline.tracks, by_track, strict=True):
        for device in track.devices:
            busy[device] = busy.get(device, 0.0) + float(seconds)
    return max(busy.values(), default=0.0)
