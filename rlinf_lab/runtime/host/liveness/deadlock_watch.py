"""Does anything still move? Hosts know only their own threads; the driver's host asks them all.

A host is quiet when none of its threads runs. All are quiet for good when two waves of questions, the second sent after the last
answer to the first, get the same answers: everybody quiet, and as many messages heard as sent (four counters: Mattern 1987,
termination detection). Then the hosts are asked one by one to relieve a channel (`Engine.relieve`); when nobody can, it is a
deadlock, and the waits of all hosts say who waits for whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host
    from rlinf_lab.runtime.host.liveness.wait_graph import Wait


class Pulse(NamedTuple):
    """One host at one moment. ``sent``, ``heard``: messages, but not those of the watch itself."""

    quiet: bool
    sent: int
    heard: int


class Watch:
    """At the driver's host. Every method runs under its mutex."""

    def __init__(self, host: Host, others: Sequence[str]) -> None:
        self._host, self._others = host, list(others)
        self._quiet: dict[str, bool] = {}
        self.reset()

    def reset(self) -> None:
        """A new iteration begins: forget what was under way."""
        self._wave = 0
        self._answers: dict[str, Pulse] = {}
        self._before: dict[str, Pulse] | None = None
        self._asking: list[str] = []
        self._waits: list[Wait] = []
        self._quiet.clear()

    @property
    def _busy(self) -> bool:
        return self._wave > 0 or bool(self._asking)

    def news(self, name: str, quiet: bool) -> None:
        """Another host has said in passing whether it is quiet; when all are, they are asked."""
        self._quiet[name] = quiet
        suspicious = all(self._quiet.get(other) for other in self._others)
        if suspicious and not self._busy and self._host.waits_in_iteration():
            self._before = None
            self._ask_all()

    def _ask_all(self) -> None:
        self._wave += 1
        self._answers = {}
        for other in self._others:
            self._host.say(other, ("pulse?", self._wave))

    def answered(self, name: str, wave: int, pulse: Pulse) -> None:
        if wave != self._wave:
            return
        self._answers[name] = pulse
        if len(self._answers) < len(self._others):
            return
        answers = {**self._answers, self._host.name: self._host.pulse()}
        pulses = answers.values()
        settled = all(p.quiet for p in pulses) and sum(p.sent for p in pulses) == sum(p.heard for p in pulses)
        if not settled or not self._host.waits_in_iteration() or (self._before is not None and self._before != answers):
            self.reset()
        elif self._before is None:
            self._before = answers
            self._ask_all()
        else:
            self.reset()
            self._asking = [self._host.name, *self._others]
            self._ask_next()

    def _ask_next(self) -> None:
        name = self._asking[0]
        if name == self._host.name:
            self.relieved(name, self._host.relieve(), self._host.waits())
        else:
            assert self._host.loop is not None
            self._host.say(name, ("relieve", self._host.loop.stranded()))

    def relieved(self, name: str, did: bool, waits: Sequence[Wait]) -> None:
        """A host has tried; ``waits``: who waits there for what."""
        if not self._asking or self._asking[0] != name:
            return
        self._waits += waits
        self._asking.pop(0)
        if did:
            self.reset()
        elif self._asking:
            self._ask_next()
        else:
            waits = self._waits
            self.reset()
            self._host.deadlock(waits)
