"""Does anything still move? Hosts know only their own threads; the driver's host asks them all.

A host is quiet when none of its threads runs. All are quiet for good when two waves of questions, the second sent after
the last answer to the first, get the same answers: everybody quiet, and as many messages heard as said (four counters:
Mattern 1987, termination detection). Then the hosts are asked one by one to relieve a channel (`Relief`); when nobody
can, it is a deadlock, and the waits of all hosts say who waits for whom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlinf_lab.runtime.host.liveness.relief import Relief
from rlinf_lab.runtime.host.liveness.wait_graph import Wait, Waits
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Pulse


class Watch:
    """At the driver's host. Every method runs under its mutex, and what it asks the loop: ``waits_in_iteration()``, an
    iteration is going on and the loop waits; ``stranded()``, streams whose readers have all ended; ``deadlock(waits)``,
    nothing can move any more, for these reasons.
    """

    def __init__(
        self, state: HostState, post: parts.Post, relief: Relief, waits: Waits, waits_in_iteration: Callable[[], bool],
        stranded: Callable[[], list[tuple[str, int]]], deadlock: Callable[[Sequence[Wait]], None],
    ) -> None:  # fmt: skip
        self._name, self._others = state.name, sorted(set(state.place.values()) - {state.name})
        self._post, self._relief, self._here = post, relief, waits
        self._waits_in_iteration, self._stranded, self._deadlock = waits_in_iteration, stranded, deadlock
        self._quiet: dict[str, bool] = {}
        self.reset()
        post.on(messages.PulseOf, self._answered)
        post.on(messages.Relieved, lambda m: self._relieved(m.name, m.did, m.waits))

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
        """Another host has said in passing whether it is quiet. When all are, they are asked."""
        self._quiet[name] = quiet
        suspicious = all(self._quiet.get(other) for other in self._others)
        if suspicious and not self._busy and self._waits_in_iteration():
            self._before = None
            self._ask_all()

    def _ask_all(self) -> None:
        self._wave += 1
        self._answers = {}
        for other in self._others:
            self._post.say(other, messages.AskPulse(self._wave))

    def _answered(self, message: messages.PulseOf) -> None:
        if message.wave != self._wave:
            return
        self._answers[message.name] = message.pulse
        if len(self._answers) < len(self._others):
            return
        answers = {**self._answers, self._name: self._relief.pulse()}
        pulses = answers.values()
        settled = all(p.quiet for p in pulses) and sum(p.said for p in pulses) == sum(p.heard for p in pulses)
        changed = self._before is not None and self._before != answers
        if not settled or changed or not self._waits_in_iteration():
            self.reset()
        elif self._before is None:
            self._before = answers
            self._ask_all()
        else:
            self.reset()
            self._asking = [self._name, *self._others]
            self._ask_next()

    def _ask_next(self) -> None:
        name, stranded = self._asking[0], self._stranded()
        if name == self._name:
            self._relieved(name, self._relief.relieve(stranded), self._here.all())
        else:
            self._post.say(name, messages.Relieve(stranded))

    def _relieved(self, name: str, did: bool, waits: Sequence[Wait]) -> None:
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
            self._deadlock(waits)
