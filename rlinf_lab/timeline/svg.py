"""The static picture of a timeline: a lane per device, colours by worker, idle time in grey patterns by cause.

Every pixel column of a lane shows what took most of its time, so the picture's size does not grow with the spans.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.accounting import CAUSES, Accounting
from rlinf_lab.timeline.batch import SpanArray
from rlinf_lab.timeline.span import Cause, SpanKind
from rlinf_lab.timeline.store import SpanStore

#: Ten colours that stay apart in the three colour-vision deficiencies and have contrast 3 on white and on near-black.
PALETTE = ("c3001e", "3c695a", "a500c3", "004bff", "875a96", "69964b", "ff4b0f", "e15ad2", "b48796", "3c96ff")

# Idle time is grey whatever the theme; the pattern tells the cause, so no colour is needed for it.
_HATCH = {
    Cause.STARVED: '<path d="M0 6L6 0" stroke="#888" stroke-width="1"/>',
    Cause.BLOCKED: '<path d="M0 0L6 6M0 6L6 0" stroke="#888" stroke-width="1"/>',
    Cause.LOCK: '<circle cx="3" cy="3" r="1.2" fill="#888"/>',
    Cause.SETUP: '<rect width="6" height="3" fill="#888"/>',
    Cause.SWITCH: '<rect width="3" height="6" fill="#888"/>',
    Cause.FILL: '<rect width="6" height="6" fill="#888" opacity=".18"/>',
    Cause.DRAIN: '<rect width="6" height="6" fill="#888" opacity=".32"/>',
    Cause.TAIL: '<path d="M0 3H6" stroke="#888" stroke-width="1"/>',
}
_STYLE = (
    ".rl-t{fill:#333;font:11px system-ui,sans-serif}.rl-l{stroke:#333}"
    "@media(prefers-color-scheme:dark){.rl-t{fill:#ddd}.rl-l{stroke:#ddd}}"
    'body[data-jp-theme-light="true"] .rl-t{fill:#333}body[data-jp-theme-light="true"] .rl-l{stroke:#333}'
    'body[data-jp-theme-light="false"] .rl-t{fill:#ddd}body[data-jp-theme-light="false"] .rl-l{stroke:#ddd}'
)
_LEFT, _TOP, _LANE, _GAP = 90, 22, 22, 4


def to_svg(store: SpanStore, accounting: Accounting, width: int = 960, max_lanes: int = 32) -> str:
    """The picture as SVG text, ``width`` px wide. Of more than ``max_lanes`` devices the first are drawn, and it says so."""
    devices = accounting.devices[:max_lanes]
    workers = list(dict.fromkeys(t.worker for t in store.tracks if t.devices))
    colours = {worker: f"#{PALETTE[i % len(PALETTE)]}" for i, worker in enumerate(workers)}
    columns = max(width - _LEFT - 10, 10)
    paint = _Paint(colours, prefix=f"h{zlib.crc32(repr((store.start_ns, len(store))).encode()):x}")
    lanes = [paint.lane(i, _shares(store, accounting, i, workers, columns), workers) for i in range(len(devices))]
    bottom = _TOP + len(devices) * (_LANE + _GAP)
    parts = [*paint.patterns(), *lanes]
    for i, device in enumerate(devices):
        parts.append(_text(_LEFT - 8, _TOP + i * (_LANE + _GAP) + 15, device, "end"))
    parts += _iteration_marks(store, accounting, columns, bottom)
    parts += _axis(accounting, columns, bottom)
    y = bottom + 34
    legend, y = paint.legend(width, y)
    parts += legend
    if len(accounting.devices) > max_lanes:
        y += 16
        parts.append(_text(_LEFT, y, f"… and {len(accounting.devices) - max_lanes} more devices"))
    height = y + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%" role="img"'
        f' style="max-width:{width}px"><title>Timeline of {len(accounting.devices)} devices</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>"
    )


def _shares(store: SpanStore, accounting: Accounting, device: int, workers: list[str], columns: int) -> NDArray:
    """(workers + causes, columns): nanoseconds of each pixel column that each takes."""
    edges = np.linspace(accounting.start_ns, accounting.end_ns, columns + 1) - accounting.start_ns
    name = accounting.devices[device]
    # The lane's number of each track: its worker's, or none where the track is not on this device.
    worker = np.array([workers.index(t.worker) if name in t.devices else -1 for t in store.tracks] or [-1])
    runs = store.spans[store.spans["kind"] == SpanKind.RUN]
    owner = worker[runs["track"]]
    runs, owner = runs[owner >= 0], owner[owner >= 0]
    mine = accounting.bubbles[accounting.bubbles["device"] == device]
    rows = [_cover(runs[owner == i], accounting.start_ns, edges) for i in range(len(workers))]
    rows += [_cover(mine[mine["cause"] == i], accounting.start_ns, edges) for i in range(len(CAUSES))]
    return np.array(rows)


def _cover(rows: SpanArray, zero: int, edges: NDArray) -> NDArray:
    """How much of each interval between edges the rows cover. Overlapping rows are cut where the next begins."""
    if not len(rows):
        return np.zeros(len(edges) - 1)
    rows = rows[np.argsort(rows["start"], kind="stable")]
    start = (rows["start"] - zero).astype(float)
    end = (np.maximum.accumulate(rows["end"]) - zero).astype(float)
    end[:-1] = np.minimum(end[:-1], start[1:])
    times = np.stack([start, end], axis=1).ravel()
    total = np.repeat(np.concatenate([[0.0], np.cumsum(end - start)]), 2)[1:-1]
    return np.diff(np.interp(edges, times, total))


@dataclass
class _Paint:
    """Fills of workers and causes, and which of them were used."""

    colours: dict[str, str]
    prefix: str

    def __post_init__(self) -> None:
        self.used: set[str] = set()

    def lane(self, number: int, shares: NDArray, workers: list[str]) -> str:
        """Rectangles of one device: equal neighbours joined; off is left empty."""
        labels = [*workers, *CAUSES]
        winner = shares.argmax(axis=0)
        cuts = np.flatnonzero(np.diff(winner)) + 1
        rects, y = [], _TOP + number * (_LANE + _GAP)
        for at, until in zip([0, *cuts.tolist()], [*cuts.tolist(), winner.size], strict=True):
            label = labels[winner[at]]
            if label is Cause.OFF or shares[winner[at], at] <= 0:
                continue
            self.used.add(label)
            rects.append(
                f'<rect x="{_LEFT + at}" y="{y}" width="{until - at}" height="{_LANE}" fill="{self._fill(label)}"/>'
            )
        return "".join(rects)

    def _fill(self, label: str) -> str:
        return f"url(#{self.prefix}-{label})" if isinstance(label, Cause) else self.colours[label]

    def patterns(self) -> list[str]:
        body = "".join(
            f'<pattern id="{self.prefix}-{cause}" width="6" height="6" patternUnits="userSpaceOnUse">{shape}</pattern>'
            for cause, shape in _HATCH.items()
        )
        return [f"<defs>{body}</defs>"]

    def legend(self, width: int, y: int) -> tuple[list[str], int]:
        """Swatches of what was drawn, wrapped to the width; and the y below them."""
        parts, x = [], _LEFT
        for label in [*self.colours, *_HATCH]:
            if label not in self.used:
                continue
            step = 26 + 7 * len(label)
            if x + step > width and x > _LEFT:
                x, y = _LEFT, y + 18
            parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{self._fill(label)}"/>')
            parts.append(_text(x + 17, y, label))
            x += step
        return parts, y


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="rl-t" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _iteration_marks(store: SpanStore, accounting: Accounting, columns: int, bottom: int) -> list[str]:
    """A line where each iteration begins, at most one every 3 px; numbers where there is room for them."""
    scale = columns / max(accounting.end_ns - accounting.start_ns, 1)
    parts, line, label = [], -3.0, -40.0
    for mark in store.marks():
        x = _LEFT + float(mark["start"] - accounting.start_ns) * scale
        if x - line >= 3:
            parts.append(f'<path class="rl-l" d="M{x:.1f} {_TOP - 4}V{bottom}" stroke-width=".6" opacity=".6"/>')
            line = x
        if x - label >= 40:
            parts.append(_text(x + 2, _TOP - 8, f"it {mark['iteration']}"))
            label = x
    return parts


def _axis(accounting: Accounting, columns: int, bottom: int) -> list[str]:
    """Ticks at round times, in s, ms, µs or ns."""
    elapsed = accounting.end_ns - accounting.start_ns
    unit, ns = next(
        (u, n) for u, n in (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1)) if elapsed >= n or n == 1
    )
    parts = [f'<path class="rl-l" d="M{_LEFT} {bottom}H{_LEFT + columns}" stroke-width="1"/>']
    if not elapsed:
        return parts
    rough = elapsed / ns / 8
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(f for f in (1, 2, 5, 10) if f * power >= rough)
    for value in np.arange(0, elapsed / ns + step / 1e6, step):
        x = _LEFT + value * ns / elapsed * columns
        parts.append(f'<path class="rl-l" d="M{x:.1f} {bottom}v4" stroke-width="1"/>')
        parts.append(_text(x, bottom + 16, f"{value:.6g} {unit}", "middle"))
    return parts
