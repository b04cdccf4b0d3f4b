"""The static picture of a timeline as bars, words and lines, whatever draws them. It has a lane per device or per
worker rank.

Every pixel column of a lane shows what took most of its time, so the picture's size does not grow with the spans. Idle
time is hatched by its cause, so that a print in grey tells causes apart, too. In a rank's lane there is a tick for what
took no time, as a put that finds room: as high as the lane where that is all the rank did, else at its top, where the
ticks are told apart.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import UnknownNameError, counted
from rlinf_lab.timeline.account.accounting import CAUSES, Accounting
from rlinf_lab.timeline.record.span import Cause, SpanKind
from rlinf_lab.timeline.record.store import SpanStore

LANES = ("device", "worker")
_TOP, _LANE, _GAP, _TEXT = 22, 22, 4, 6.6  # px; the last: width of a letter
MAX_LANES = 11  # with axis and legend at most 400 px
_WIDE = frozenset("MWmw@%")  # letters that take more
_NOTCH, _APART = 5, 24  # px: height of a tick over spans; nearer to each other, they would be a line that hides them
_TAIL = 7  # letters that are kept at the end of a name: "/cuda:0", "[12]"
#: What a waiting span of a worker's own lane is hatched as.
_WAITS = {
    SpanKind.GET: Cause.STARVED, SpanKind.WAIT: Cause.STARVED, SpanKind.TRANSFER: Cause.STARVED,
    SpanKind.PUT: Cause.BLOCKED,
    SpanKind.LOCK: Cause.LOCK, SpanKind.ONLOAD: Cause.SWITCH, SpanKind.OFFLOAD: Cause.SWITCH,
    SpanKind.SETUP: Cause.SETUP,
}  # fmt: skip


class Bar(NamedTuple):
    """``fill``: the name of a worker, or a `Cause`."""

    x: float
    y: float
    width: float
    height: float
    fill: str | Cause


class Word(NamedTuple):
    """``y``: of the base line; ``anchor``: start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"


class Line(NamedTuple):
    x0: float
    y0: float
    x1: float
    y1: float
    width: float = 1.0
    opacity: float = 1.0


@dataclass
class Scene:
    """What is drawn, in CSS pixels. ``workers``: in the order of the legend; ``placed``: those of them that have a
    device.
    """

    width: int
    height: int
    title: str
    workers: list[str]
    bars: list[Bar] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)


def scene(
    store: SpanStore, accounting: Accounting, width: int = 960, lanes: str = "device", max_lanes: int = MAX_LANES
) -> Scene:
    """The picture, ``width`` px wide. ``lanes``: "device" or "worker". Lanes that look the same are drawn once; of more
    than ``max_lanes`` those are drawn that show everybody, and it says how many are not.
    """
    if lanes not in LANES:
        raise UnknownNameError.of("kind of lane", lanes, LANES)
    workers = list(
        dict.fromkeys(
            t.worker for t in sorted(store.tracks, key=lambda t: not t.devices) if t.devices or lanes == "worker"
        )
    )
    rows = list(_worker_rows(store, workers) if lanes == "worker" else _device_rows(store, accounting, workers))
    zero, columns = accounting.start_ns, max(width - 80, 10)
    rows = _merged(rows, zero, np.linspace(zero, accounting.end_ns, columns + 1) - zero)
    shown = _of_everybody(rows, max_lanes)
    left = int(min(230, max(70, 16 + max((_width(row.label) for row in shown), default=0))))
    columns = max(width - left - 10, 10)
    bottom = _TOP + len(shown) * (_LANE + _GAP)
    placed = list(dict.fromkeys(t.worker for t in store.tracks if t.devices))
    made = Scene(width, 0, f"Timeline of {counted(len(accounting.devices), 'device')}", workers, placed=placed)
    edges = np.linspace(accounting.start_ns, accounting.end_ns, columns + 1) - accounting.start_ns
    for i, row in enumerate(shown):
        y = _TOP + i * (_LANE + _GAP)
        made.words.append(Word(left - 8, y + 15, _cut(row.label, left - 10), "end"))
        made.bars += _bars(row.parts, accounting.start_ns, edges, left, y)
        _add_ticks(made, row, accounting, left, columns, y)
    _mark_iterations(made, store, accounting, left, columns, bottom)
    _add_axis(made, accounting, left, columns, bottom)
    y = add_legend(made, left, bottom + 34)
    if len(rows) > len(shown):
        y += 16
        hidden = sum(row.lanes for row in rows) - sum(row.lanes for row in shown)
        made.words.append(Word(left, y, f"… and {hidden} more {lanes}s"))
    made.height = y + 10
    return made


def _width(text: str) -> float:
    """About how many px it takes."""
    return sum(_TEXT * (1.8 if c in _WIDE or unicodedata.east_asian_width(c) in "WF" else 1.0) for c in text)


def _cut(text: str, room: float) -> str:
    """As much of it as ``room`` px hold. It is the end, which says the rank or the device of a node, with an ellipsis
    for what is left out before it.
    """
    if _width(text) <= room:
        return text
    head, tail = text[:-_TAIL], text[-_TAIL:]
    taken = [*accumulate(map(_width, head), initial=_TEXT + _width(tail))]  # by so many letters of the head
    return f"{head[: max(1, bisect_right(taken, room) - 1)]}…{tail}"


def stacked(scenes: Sequence[Scene], title: str) -> Scene:
    """One picture above the other; a worker of several has one colour."""
    workers = list(dict.fromkeys(worker for each in scenes for worker in each.workers))
    placed = list(dict.fromkeys(worker for each in scenes for worker in each.placed))
    made = Scene(max((each.width for each in scenes), default=1), 0, title, workers, placed=placed)
    for each in scenes:
        made.bars += [bar._replace(y=bar.y + made.height) for bar in each.bars]
        made.words += [word._replace(y=word.y + made.height) for word in each.words]
        made.lines += [line._replace(y0=line.y0 + made.height, y1=line.y1 + made.height) for line in each.lines]
        made.height += each.height
    return made


def heading(text: str, width: int = 960) -> Scene:
    """A line of words, to be `stacked`."""
    return Scene(width, 22, text, [], words=[Word(4, 15, text)])


#: Intervals by fill: their starts and their ends, ns.
Parts = dict[str | Cause, tuple[NDArray[np.int64], NDArray[np.int64]]]


class Row(NamedTuple):
    """A lane, or several that look the same. ``instants``: when something took no time, ns, sorted; ``worker``: whose
    lane it is.
    """

    label: str
    parts: Parts
    instants: NDArray[np.int64] = np.empty(0, np.int64)
    worker: str = ""
    lanes: int = 1


def _merged(rows: Sequence[Row], zero: int, edges: NDArray) -> list[Row]:
    """Each lane that looks like no lane before it, in the order of the first."""
    alike = defaultdict[tuple[object, ...], list[Row]](list)
    for row in rows:
        bars = tuple(bar[0::2] + bar[4:] for bar in _bars(row.parts, zero, edges, 0, 0.0))
        alike[row.worker, bars, row.instants.tobytes()].append(row)
    return [some[0]._replace(label=_label([r.label for r in some]), lanes=len(some)) for some in alike.values()]


def _label(labels: Sequence[str]) -> str:
    """``cuda:0 … 31 (32)``. Where they do not follow each other, the first and how many more."""
    if len(labels) == 1:
        return labels[0]
    numbers = [re.fullmatch(r"(.*?)(\d+)(\D?)", label) for label in labels]
    if all(numbers) and len({m.group(1) for m in numbers if m}) == 1:
        counts = [int(m.group(2)) for m in numbers if m]
        if counts == list(range(counts[0], counts[0] + len(counts))):
            return f"{labels[0]} … {counts[-1]} ({len(labels)})"
    return f"{labels[0]} + {len(labels) - 1}"


def _of_everybody(rows: Sequence[Row], most: int) -> list[Row]:
    """At most so many, in their order. They are for each worker the first in which it is, then those from the top."""
    first = dict[str | Cause, int]()
    for i, row in enumerate(rows):
        for fill, (starts, _) in row.parts.items():
            if len(starts) and not isinstance(fill, Cause):
                first.setdefault(fill, i)
    wanted = [*dict.fromkeys([*first.values(), *range(len(rows))])][:most]
    return [rows[i] for i in sorted(wanted)]


def _device_rows(store: SpanStore, accounting: Accounting, workers: list[str]) -> Iterator[Row]:
    """Of each device: who ran, and the bubbles."""
    running = np.flatnonzero(store.spans["kind"] == SpanKind.RUN)
    track, start, end = (store.spans[name][running] for name in ("track", "start", "end"))
    bubbles = accounting.columns("device", "cause", "start", "end")
    number_of, here = {label: i for i, label in enumerate(workers)}, defaultdict(list)
    for i, each in enumerate(store.tracks):
        for device in each.devices:
            here[device].append((i, number_of[each.worker]))
    for number, name in enumerate(accounting.devices):
        # the number of each track's worker, or -1 where the track is not on this device
        worker = np.full(len(store.tracks) or 1, -1)
        for i, its in here[name]:
            worker[i] = its
        owner, cause = worker[track], np.where(bubbles["device"] == number, bubbles["cause"], -1)
        parts: Parts = {
            workers[i]: (start[owner == i], end[owner == i]) for i in sorted({its for _, its in here[name]})
        }
        for i, why in enumerate(CAUSES):
            mine = np.flatnonzero(cause == i)
            parts[why] = bubbles["start"][mine], bubbles["end"][mine]
        yield Row(name, parts)


def _worker_rows(store: SpanStore, workers: list[str]) -> Iterator[Row]:
    """Of each rank: when it ran and what it waited for."""
    kinds = store.spans["kind"]
    counts = np.flatnonzero((kinds != SpanKind.LABEL) & (kinds != SpanKind.MARK))
    of, kind, start, end = (store.spans[name][counts] for name in ("track", "kind", "start", "end"))
    for number in sorted(
        range(len(store.tracks)), key=lambda n: (workers.index(store.tracks[n].worker), store.tracks[n].rank)
    ):
        own, track = np.flatnonzero(of == number), store.tracks[number]
        if own.size:
            fills = {**_WAITS, SpanKind.RUN: track.worker}
            parts: Parts = {}
            for fill in (track.worker, *dict.fromkeys(_WAITS.values())):
                mine = own[np.isin(kind[own], [kind for kind, drawn in fills.items() if drawn is fill])]
                parts[fill] = start[mine], end[mine]
            yield Row(f"{track.worker}[{track.rank}]", parts, np.sort(start[own][end[own] == start[own]]), track.worker)


def _bars(parts: Parts, zero: int, edges: NDArray, left: int, y: float) -> list[Bar]:
    """Rectangles of one lane: equal neighbours joined; off is left empty."""
    labels = list(parts)
    shares = np.array([_cover(*rows, zero, edges) for rows in parts.values()])
    seen = np.where(shares.max(axis=0) > 0, shares.argmax(axis=0), -1)
    cuts = [0, *((seen[1:] != seen[:-1]).nonzero()[0] + 1).tolist(), seen.size]
    of = [None if number < 0 else labels[number] for number in seen[cuts[:-1]].tolist()]
    return [
        Bar(left + at, y, until - at, _LANE, label)
        for label, at, until in zip(of, cuts, cuts[1:], strict=False)
        if label not in (None, Cause.OFF)
    ]


def _add_ticks(made: Scene, row: Row, accounting: Accounting, left: int, columns: int, y: float) -> None:
    """What took no time, at most one tick for each pixel."""
    scale = columns / max(accounting.end_ns - accounting.start_ns, 1)
    pixels = np.unique(
        np.minimum(((row.instants - accounting.start_ns) * scale).astype(np.int64), columns - 1)
    ).tolist()
    if not any((end > start).any() for start, end in row.parts.values()):
        # two px: a line of an iteration may lie over one of them
        made.bars += [Bar(left + x, y, 2, _LANE, row.worker) for x in pixels]
    elif row.instants.size <= columns / _APART:
        made.lines += [Line(left + x + 0.5, y, left + x + 0.5, y + _NOTCH) for x in pixels]


def _cover(starts: NDArray[np.int64], ends: NDArray[np.int64], zero: int, edges: NDArray) -> NDArray:
    """How much of each interval between edges these cover. Overlapping ones are cut where the next begins."""
    if not starts.size:
        return np.zeros(len(edges) - 1)
    order = np.argsort(starts, kind="stable")
    start = (starts[order] - zero).astype(float)
    end = (np.maximum.accumulate(ends[order]) - zero).astype(float)
    end[:-1] = np.minimum(end[:-1], start[1:])
    times = np.stack([start, end], axis=1).ravel()
    total = np.repeat(np.concatenate([[0.0], np.cumsum(end - start)]), 2)[1:-1]
    return np.diff(np.interp(edges, times, total))


def add_legend(made: Scene, left: int, y: int) -> int:
    """Swatches of what was drawn, wrapped to the width; returns the y below them."""
    used = {bar.fill for bar in made.bars}
    x: float = left
    for label in [*made.workers, *CAUSES]:
        if label not in used:
            continue
        text = _cut(str(label), made.width - left - 30)
        step = 30 + _width(text)
        if x + step > made.width:
            x, y = left, y + 18
        made.bars.append(Bar(x, y - 10, 12, 12, label))
        made.words.append(Word(x + 17, y, text))
        x += step
    return y


def _mark_iterations(
    made: Scene, store: SpanStore, accounting: Accounting, left: int, columns: int, bottom: int
) -> None:
    """A line where each iteration begins, at most one every 3 px. Numbers where there is room for them."""
    scale = columns / max(accounting.end_ns - accounting.start_ns, 1)
    line, label, marks = -3.0, 0.0, store.marks()
    if len(marks):
        made.words.append(Word(left - 8, _TOP - 8, "iteration", "end"))
    for mark in marks:
        x = left + float(mark["start"] - accounting.start_ns) * scale
        if x - line >= 3:
            made.lines.append(Line(x, _TOP - 4, x, bottom, 0.6, 0.6))
            line = x
        number = str(mark["iteration"])
        if x >= label and x + 2 + _width(number) <= made.width:
            made.words.append(Word(x + 2, _TOP - 8, number))
            label = x + max(40, 8 + _width(number))


def _add_axis(made: Scene, accounting: Accounting, left: int, columns: int, bottom: int) -> None:
    """Ticks at round times, in s, ms, µs or ns."""
    elapsed = accounting.end_ns - accounting.start_ns
    unit, ns = next(
        (u, n) for u, n in (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1)) if elapsed >= n or n == 1
    )
    made.lines.append(Line(left, bottom, left + columns, bottom))
    if not elapsed:
        return
    rough = elapsed / ns / max(2, min(8, columns / 90))
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(f for f in (1, 2, 5, 10) if f * power >= rough)
    for value in np.arange(0, elapsed / ns + step / 1e6, step):
        x = left + value * ns / elapsed * columns
        made.lines.append(Line(x, bottom, x, bottom + 4))
        made.words.append(Word(x, bottom + 16, f"{value:.6g} {unit}", "end" if x > left + columns - 20 else "middle"))
