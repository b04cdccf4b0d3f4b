"""Which version of published weights a call has: the same for all its ranks, though a learner may publish between their pulls.

    a rank ── "fix" ──> the host of rank 0: who pulls first there fixes it ── "pin" ──> where it lies: kept from now on ── "pinned" ──> "fixed" ──> all ranks

A version that is superseded is kept only where a call has it, so a learner may publish as often as it likes. Where the weights lie a newer one may have taken
the place of the one that is asked for; then the call has that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rlinf_lab.runtime.host.rank import Process

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host
    from rlinf_lab.runtime.host.weights.weights import Store
    from rlinf_lab.workflow.specs import CallSpec


class Question(NamedTuple):
    """What has one answer for all ranks of a call."""

    call_id: int
    name: str
    at_least: int


@dataclass(eq=False)
class Answer:
    """``version``: -1 until it is known. At the host of rank 0: ``known``, the newest version that who asked first knew; the ``askers`` among the hosts;
    ``is_asked``, where the weights lie."""

    iteration: int
    known: int = 0
    version: int = -1
    waiters: list[Process] = field(default_factory=list)
    askers: list[str] = field(default_factory=list)
    is_asked: bool = False
    is_decided_here: bool = False


class Versions:
    """Of one host. ``store``: by the name of the weights."""

    def __init__(self, host: Host, store: Callable[[str], Store]) -> None:
        self._host, self._store = host, store
        self._answers: dict[Question, Answer] = {}
        self._pins: dict[Question, tuple[int, int]] = {}  # where the weights lie: iteration and version

    def __len__(self) -> int:
        return len(self._answers) + len(self._pins)

    def of_the_call(self, process: Process, call: CallSpec, question: Question) -> int:
        """The version that all its ranks get. In the thread of one of them."""
        host, home = self._host, self._host.place[call.worker, 0]  # rank 0 takes part in every call
        with host._mutex:
            known = self._store(question.name).known
            if home == host.name:
                self.decide(question, call.iteration, known)
            elif question not in self._answers:
                self._answers[question] = Answer(call.iteration)
                host.say(home, ("fix", question, call.iteration, known, host.name))
            answer = self._answers[question]
            if answer.version >= 0:
                return answer.version
            host._raise_if_interrupted(process)
            answer.waiters.append(process)
            self._say_what_is_missing(process, call, question)
        host.flush()
        with host._spans.wait(process):
            try:
                host._park(process)
                host._raise_if_interrupted(process)
            finally:
                with host._mutex:
                    if process in answer.waiters:
                        answer.waiters.remove(process)
        return answer.version

    def _say_what_is_missing(self, process: Process, call: CallSpec, question: Question) -> None:
        """For whoever looks at its wait, and it waits from here on."""
        store = self._store(question.name)
        if store.known < question.at_least:
            store.say_what_is_there(process, question.name, question.at_least)
            self._host._block(process, "value", f"version {question.at_least} of the weights {question.name!r}")
        else:
            process.awaited, process.advice = f"{call.worker}[0]", ""
            self._host._block(process, "value", f"the version of the weights {question.name!r} that its call has")

    # --- under the mutex -----------------------------------------------------------------------------------
    def decide(self, question: Question, iteration: int, known: int, asker: str = "") -> None:
        """At the host of rank 0; ``known``: the newest version that who asks knows; ``asker``: the host that hears the answer."""
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = Answer(iteration, known, is_decided_here=True)
            self._settle(question, answer)
        if asker and answer.version >= 0:
            self._host.say(asker, ("fixed", question, answer.version))
        elif asker:
            answer.askers.append(asker)

    def _settle(self, question: Question, answer: Answer) -> None:
        """As far as it can be: what else was asked in this call goes first, and what nobody has published yet comes later."""
        others = [a for q, a in self._answers.items() if q[:2] == question[:2] and a is not answer]
        if answer.is_asked or any(a.is_asked for a in others):
            return
        store = self._store(question.name)
        before = [a.version for a in others if a.version >= question.at_least]
        version = min(before, default=max(answer.known, store.known, question.at_least))
        if before or not version or self._host._alone or store.home == self._host.name:
            self.fixed(question, version)
        elif store.known >= question.at_least and store.home:
            answer.is_asked = True
            self._host.say(store.home, ("pin", question, answer.iteration, version, self._host.name))

    def published(self, name: str) -> None:
        """There is a newer version: somebody may have waited for it."""
        for question, answer in list(self._answers.items()):
            if question.name == name and answer.version < 0 and answer.is_decided_here:
                self._settle(question, answer)

    def pin(self, question: Question, iteration: int, version: int, asker: str) -> None:
        """Where the weights lie: this version is kept for a call, or the newest where it is not here any more."""
        store = self._store(question.name)
        there = store.first(version)
        pinned = there if there in store.held else max(store.held)
        self._pins[question] = iteration, pinned
        self._host.say(asker, ("pinned", question, pinned))

    def pinned(self, question: Question, version: int) -> None:
        """At the host of rank 0."""
        self.fixed(question, version)
        for other, answer in list(self._answers.items()):
            if other[:2] == question[:2] and answer.version < 0:  # they had to come after it
                self._settle(other, answer)

    def fixed(self, question: Question, version: int) -> None:
        """The host of rank 0 has decided."""
        if (answer := self._answers.get(question)) is None:  # its iteration is over
            return
        answer.version, answer.is_asked = version, False
        askers, answer.askers = answer.askers, []
        for host in askers:
            self._host.say(host, ("fixed", question, version))
        waiters, answer.waiters = answer.waiters, []
        for process in waiters:
            self._host._wake(process)

    def wanted(self, name: str) -> set[int]:
        """Versions that calls have."""
        found = {a.version for q, a in self._answers.items() if q.name == name and a.version > 0}
        return found | {version for q, (_, version) in self._pins.items() if q.name == name}

    def over(self, iteration: int) -> None:
        """This iteration and all before it are."""
        self._answers = {q: a for q, a in self._answers.items() if a.iteration > iteration}
        self._pins = {q: pin for q, pin in self._pins.items() if pin[0] > iteration}
