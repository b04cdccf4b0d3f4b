"""What one host knows of published weights. It knows versions that are here, and those said to be elsewhere."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.transport.cargo import ArrivedWhole
from rlinf_lab.runtime.transport.unchanged import Unchanged


@dataclass(eq=False)
class Held:
    """A version that is here. ``whole``: how it came, until the first who pulls it has put it together."""

    version: int
    state: Any = None
    unchanged: Unchanged | None = None  # where it was published
    whole: ArrivedWhole | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)


class Wanted(NamedTuple):
    """``exactly``: a call of several ranks has this version; else a newer one will do."""

    version: int
    exactly: bool


@dataclass(eq=False)
class Store:
    """One store as one host knows it. It knows what is here, and what is said to be elsewhere."""

    name: str
    held: dict[int, Held] = field(default_factory=dict)  # by version: the newest, and those that calls under way have
    # as many versions, each with the iteration in which it was published
    announced: list[tuple[int, int]] = field(default_factory=list)
    home: str = ""  # the host where it lies
    owner: str = ""  # the worker that publishes
    asked: int = 0  # the version that is on its way, one at a time
    # ranks, and events of threads that are no rank's
    waiters: dict[Process | threading.Event, Wanted] = field(default_factory=dict)
    unsealed: Held | None = None  # it has come, and may have changed on its way

    @property
    def known(self) -> int:
        """The newest version that is published."""
        return self.announced[-1][0] if self.announced else 0

    def has(self, version: int) -> bool:
        """Whether it is here."""
        return version in self.held

    def newest(self) -> int:
        """Of those that are here; 0: none."""
        return max(self.held, default=0)

    def first(self, wanted: int) -> int:
        """The first published version from this one on; 0: none yet. (A call that publishes twice hands out the latter
        only.)
        """
        return next((version for version, _ in self.announced if version >= wanted), 0)

    def found(self, wanted: Wanted) -> Held | None:
        """What is here of it."""
        held = self.held.get(self.first(wanted.version))
        if held is not None or wanted.exactly:
            return held
        return next((held for held in self.held.values() if held.version >= wanted.version), None)

    def say_what_is_there(self, process: Process, wanted: int) -> None:
        """For whoever looks at its wait."""
        process.awaited = f"{self.owner}[0]" if self.owner else ""
        there = f"({self.known} is the newest)" if self.known else "(nobody has yet)"
        process.advice = (
            f"publish version {wanted} of the weights {self.name!r} {there} in a call that ends before this one, or "
            f"pull(at_least=) of less"
        )
