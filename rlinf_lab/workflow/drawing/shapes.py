"""Shapes of the drawn graph, and how wide a text will be. They are boxes, curves and arrow heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape

SLIM = frozenset("iljtfrI.,:;'|!()[] ")


@dataclass(frozen=True)
class Arrow:
    """One arrow. ``kind``: "edge" (a channel) or "value"."""

    source: str
    target: str
    label: str
    title: str
    kind: str


@dataclass(frozen=True)
class Box:
    """A rectangle: top left corner, width, height; pixels."""

    x: float
    y: float
    w: float
    h: float

    def meets(self, other: Box) -> bool:
        return (
            self.x < other.x + other.w
            and other.x < self.x + self.w
            and self.y < other.y + other.h
            and other.y < self.y + self.h
        )

    def holds(self, point: tuple[float, float]) -> bool:
        return self.x < point[0] < self.x + self.w and self.y < point[1] < self.y + self.h


@dataclass(frozen=True)
class Curve:
    """A straight arrow: from side to side, with its control points at half the way. ``best``: where its label should
    be, 0 to 1.
    """

    arrow: Arrow
    x0: float
    y0: float
    x1: float
    y1: float
    best: float

    def at(self, t: float) -> tuple[float, float]:
        u = 1 - t
        return u**3 * self.x0 + 1.5 * u * t * (self.x0 + self.x1) + t**3 * self.x1, u * u * (
            u + 3 * t
        ) * self.y0 + t * t * (t + 3 * u) * self.y1

    @cached_property
    def points(self) -> list[tuple[float, float]]:
        """Close enough to tell what a label hides."""
        return [self.at(i / 32) for i in range(33)]


def room_around(place: tuple[float, float], width: float) -> Box:
    """What a label of this width, centred there, covers."""
    return Box(place[0] - width / 2 - 3, place[1] - 8, width + 6, 16)


def path(a: Arrow, way: str, x: float, y: float, back: tuple[float, float]) -> str:
    """A line with its arrow head, whose tip is at (x, y). ``back`` points from the tip to the head's base."""
    bx, by = x + back[0], y + back[1]
    ox, oy = (0.0, 4.0) if back[0] else (4.0, 0.0)
    head = f"M{x:g} {y:g}L{bx + ox:g} {by + oy:g}L{bx - ox:g} {by - oy:g}Z"
    tip = "tip" if a.kind == "edge" else "vtip"
    return f'<g><title>{escape(a.title)}</title><path class="{a.kind}" d="{way}"/><path class="{tip}" d="{head}"/></g>'


def text_width(text: str, size: int, bold: bool = False) -> float:
    """About as wide as DejaVu Sans at ``size`` pixels. That is the widest of the fonts that may draw it."""
    ems = sum(0.36 if c in SLIM else 0.98 if c in "mwMW@%…" else 0.7 if c.isupper() else 0.62 for c in text)
    return ems * size * (1.1 if bold else 1.0)


def fitting(text: str, size: int, bold: bool, width: float) -> str:
    """The beginning of a text that is too wide."""
    if text_width(text, size, bold) <= width:
        return text
    while text and text_width(text + "…", size, bold) > width:
        text = text[:-1]
    return text + "…"


def short(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
