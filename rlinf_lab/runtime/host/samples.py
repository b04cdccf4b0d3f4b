"""Samples of a rank that are being worked on. It knows since when, and which of them get a bar on the timeline."""

from __future__ import annotations

from typing import NamedTuple

SIDE_BY_SIDE = 16
"""bars of a rank at once, of the samples that begin while there is room"""
LAST = 4
"""samples that get one although there was no room: when they end, fewer than so many others run"""


class Made(NamedTuple):
    """One that has ended."""

    start: int
    """ns; no two samples of a rank have the same"""
    has_bar: bool


class SamplesInTheMaking:
    """Hundreds may run at once: a bar for each would hide all else. So some have one, and always the long tail."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        self._places: set[str] = set()
        self._latest = -1

    def begin(self, id: str, now: int) -> None:
        """Nothing happens for one that runs."""
        if id in self._begun:
            return
        self._latest = self._begun[id] = max(now, self._latest + 1)  # a start names its sample
        if len(self._places) < SIDE_BY_SIDE:
            self._places.add(id)

    def end(self, id: str, now: int) -> Made | None:
        """None for one that has not begun."""
        start = self._begun.pop(id, None)
        if start is None:
            return None
        has_bar = id in self._places or len(self._begun) < LAST
        self._places.discard(id)
        return Made(start, has_bar and now >= start)
