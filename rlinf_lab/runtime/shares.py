"""Shares that nobody takes: of everything each rank of a call gets its part, and one that ends without asking leaves its items to nobody.

That is no error of the run, which cannot know what the ranks are for, but hardly ever meant: the user is told, once for each channel. It is
known at the home of a queue only, and there in either order: the rank may have ended before another one asked for everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlinf_lab.planning.books import Part
from rlinf_lab.planning.engine import Engine
from rlinf_lab.runtime.queues import QueueTable


class Reading(NamedTuple):
    """A rank's call that has read a channel and ended well."""

    who: str
    part: Part


class LostShares:
    """Of one host. Every method runs under its mutex. ``tell``: the driver, about which channel and what."""

    def __init__(self, queues: QueueTable, engine: Engine, tell: Callable[[str, str], None]) -> None:
        self._queues, self._engine, self._say = queues, engine, tell
        self._ended: dict[tuple[str, int], list[Reading]] = {}  # by channel and iteration

    def ended(self, channel: str, iteration: int, reading: Reading | None) -> None:
        """None: it did not end well."""
        if reading is not None and not reading.part.is_alone:
            self._ended.setdefault((channel, iteration), []).append(reading)
            self._look_at([reading], channel, iteration)

    def look(self, channel: str, iteration: int) -> None:
        """What is there has become shares: of who has ended before, too."""
        self._look_at(self._ended.get((channel, iteration), ()), channel, iteration)

    def _look_at(self, readings: Sequence[Reading], channel: str, iteration: int) -> None:
        for queue in self._queues.divided(channel, iteration) if readings else ():
            group = self._engine.channels[queue.index].group
            for who, part in readings:
                if part.group == group and part.position < len(queue.shares) and (lost := queue.left_by(part.position)):
                    queue.untouched.discard(part.position)
                    self._tell(channel, iteration, who, lost)

    def _tell(self, channel: str, iteration: int, who: str, lost: int) -> None:
        worker = who.split("[")[0]
        text = (
            f"{lost} items of channel {channel!r} in iteration {iteration} went to nobody: another rank of {worker!r} asked for everything, of which each "
            f"rank of a call gets its share, and {who} ended without asking for its own. Next: have every rank ask (exchange() gives all of them all "
            f"shares), or a plan with one rank of {worker!r}."
        )
        self._say(channel, text)

    def retire(self, iteration: int) -> None:
        self._ended = {key: found for key, found in self._ended.items() if key[1] > iteration}
