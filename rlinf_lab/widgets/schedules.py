"""The schedules of a few plans as one still picture, on one axis of time. That is what a saved notebook shows of a
`PlanExplorer`.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlinf_lab.planning.planner.gantt import BUSY, Gantt, gantt
from rlinf_lab.planning.planner.planner import Planned, Plans
from rlinf_lab.timeline.draw.picture import Bar, Scene, add_legend, heading, stacked
from rlinf_lab.timeline.record.span import Cause

_WIDTH_PX, _LEFT_PX = 960, 8  # px
_LANE_PX, _HIGH_PX, _HOST_PX = 14, 120, 8  # px: a device, all devices of a plan at most, and a worker that has none
_MAX_PLANS, _MAX_BARS = 4, 1000  # that are drawn at most, and rectangles of one

Box = tuple[int, int, str | Cause]


def schedules(plans: Plans) -> Scene:
    """The fastest plans, each with its name, seconds and shape. Of more than there are pixels not every device is
    drawn.
    """
    shown = [(planned, gantt(planned)) for planned in plans[:_MAX_PLANS]]
    longest = max((picture.seconds for _, picture in shown), default=0.0) or 1.0
    parts = [
        part
        for planned, picture in shown
        for part in (_caption(planned), _lanes(picture, (_WIDTH_PX - 2 * _LEFT_PX) / longest))
    ]
    whole = stacked(parts, f"Schedules of {len(shown)} plans")
    whole.height = add_legend(whole, _LEFT_PX, whole.height + 22) + 10
    return whole


def _caption(planned: Planned) -> Scene:
    return heading(f"{planned.name}: {planned.seconds:.4g} s an iteration, {planned.shape}", _WIDTH_PX)


def _lanes(picture: Gantt, px: float) -> Scene:
    """One plan's bars, ``px`` for each second. Those of one lane and worker that lie close together as one, where there
    are too many.
    """
    each = min(_HIGH_PX / max(picture.devices, 1), _LANE_PX)

    def y(lane: float) -> int:
        return round(min(lane, picture.devices) * each + max(0.0, lane - picture.devices) * _HOST_PX)

    boxes: dict[Box, list[tuple[float, float]]] = {}
    for start, end, first, stop, worker, kind in picture.bars.tolist():
        top, below = y(first), y(stop)
        if below > top:
            fill = picture.workers[int(worker)] if kind == BUSY else Cause.SWITCH
            boxes.setdefault((top, below, fill), []).append((start * px, end * px))
    for times in boxes.values():
        times.sort()
    gap = 1.0
    while (joined := {box: _joined(times, gap) for box, times in boxes.items()}) and sum(
        map(len, joined.values())
    ) > max(_MAX_BARS, len(boxes)):
        gap *= 2
    bars = [
        Bar(round(_LEFT_PX + a, 1), top, max(1.0, round(b - a, 1)), below - top, fill)
        for (top, below, fill), times in joined.items()
        for a, b in times
    ]
    hosts = picture.lanes - picture.devices  # workers without a device come last
    return Scene(
        _WIDTH_PX,
        y(picture.lanes) + 6,
        "",
        list(picture.workers),
        bars,
        placed=list(picture.workers[: len(picture.workers) - hosts]),
    )


def _joined(times: Iterable[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Intervals, by their starts; those with less than ``gap`` between them as one."""
    found: list[tuple[float, float]] = []
    for start, end in times:
        if found and start - found[-1][1] < gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
