"""Which version of published weights a call has. It is the same for all its ranks, though a learner may publish between
their pulls.

    rank ── Fix ──> host of rank 0: who pulls first there fixes it ── Pin ──> where it lies: kept ── Pinned ──> Fixed

A version that is superseded is kept only where a call has it, so a learner may publish as often as it likes. Where the
weights lie a newer one may have taken the place of the one that is asked for; then the call has that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Question
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.weights.stores import Store
from rlinf_lab.runtime.host.weights.unpublished import Unpublished
from rlinf_lab.workflow.specs import CallSpec


@dataclass(eq=False)
class Answer:
    """``version``: -1 until it is known. At the host of rank 0: ``known``, the newest version that who asked first
    knew; the ``askers`` among the hosts; ``is_asked``, where the weights lie."""

    iteration: int
    known: int = 0
    version: int = -1
    waiters: list[Process] = field(default_factory=list)
    askers: list[str] = field(default_factory=list)
    is_asked: bool = False
    is_decided_here: bool = False


class Versions:
    """Of one host."""

    def __init__(
        self,
        state: HostState,
        control: parts.RankControl,
        post: parts.Post,
        store: Callable[[str], Store],
        unpublished: Unpublished,
    ) -> None:
        self._unpublished = unpublished
        self._state, self._control, self._post, self._store = state, control, post, store
        self._answers: dict[Question, Answer] = {}
        self._pins: dict[Question, tuple[int, int]] = {}  # where the weights lie: iteration and version
        post.on(messages.Fix, lambda m: self._decide(m.question, m.iteration, m.known, m.asker))
        post.on(messages.Fixed, lambda m: self._fixed(m.question, m.version))
        post.on(messages.Pin, self._pin)
        post.on(messages.Pinned, lambda m: self._pinned(m.question, m.version))

    def __len__(self) -> int:
        return len(self._answers) + len(self._pins)

    def of_the_call(self, process: Process, call: CallSpec, question: Question) -> int:
        """The version that all its ranks get. In the thread of one of them."""
        state, home = self._state, self._state.place[call.worker, 0]  # rank 0 takes part in every call
        with state.mutex:
            known = self._store(question.name).known
            if home == state.name:
                self._decide(question, call.iteration, known)
            elif question not in self._answers:
                self._answers[question] = Answer(call.iteration)
                self._post.say(home, messages.Fix(question, call.iteration, known, state.name))
            answer = self._answers[question]
            if answer.version >= 0:
                return answer.version
            process.raise_if_interrupted()
            answer.waiters.append(process)
            self._say_what_is_missing(process, call, question)
        self._post.flush()
        with self._control.spans.wait(process):
            try:
                self._control.park(process)
                process.raise_if_interrupted()
            finally:
                with state.mutex:
                    if process in answer.waiters:
                        answer.waiters.remove(process)
        return answer.version

    def _say_what_is_missing(self, process: Process, call: CallSpec, question: Question) -> None:
        """For whoever looks at its wait, and it waits from here on."""
        store = self._store(question.name)
        if store.known < question.at_least:
            store.say_what_is_there(process, question.at_least)
            self._control.block(process, "value", f"version {question.at_least} of the weights {question.name!r}")
            self._unpublished.lacks(process, question.name, question.at_least)
        else:
            process.awaited, process.advice = f"{call.worker}[0]", ""
            self._control.block(process, "value", f"the version of the weights {question.name!r} that its call has")

    # --- under the mutex -----------------------------------------------------------------------------------
    def _decide(self, question: Question, iteration: int, known: int, asker: str = "") -> None:
        """At the host of rank 0. ``known``: the newest version that who asks knows; ``asker``: who hears the answer."""
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = Answer(iteration, known, is_decided_here=True)
            self._settle(question, answer)
        if asker and answer.version >= 0:
            self._post.say(asker, messages.Fixed(question, answer.version))
        elif asker:
            answer.askers.append(asker)

    def _settle(self, question: Question, answer: Answer) -> None:
        """Settle a question as far as it can be. What else was asked in this call goes first, and what nobody has
        published yet comes later.
        """
        others = [a for q, a in self._answers.items() if q[:2] == question[:2] and a is not answer]
        if answer.is_asked or any(a.is_asked for a in others):
            return
        store = self._store(question.name)
        before = [a.version for a in others if a.version >= question.at_least]
        version = min(before, default=max(answer.known, store.known, question.at_least))
        if before or not version or self._state.alone or store.home == self._state.name:
            self._fixed(question, version)
        elif store.known >= question.at_least and store.home:
            answer.is_asked = True
            self._post.say(store.home, messages.Pin(question, answer.iteration, version, self._state.name))

    def published(self, name: str) -> None:
        """There is a newer version, or one is fixed: somebody may have waited for it."""
        for question, answer in list(self._answers.items()):
            if question.name == name and answer.version < 0 and answer.is_decided_here:
                self._settle(question, answer)

    def _pin(self, message: messages.Pin) -> None:
        """Where the weights lie: keep this version for a call. Where it is not here any more, the newest is kept."""
        store = self._store(message.question.name)
        there = store.first(message.version)
        pinned = there if store.has(there) else store.newest()
        self._pins[message.question] = message.iteration, pinned
        self._post.say(message.asker, messages.Pinned(message.question, pinned))

    def _pinned(self, question: Question, version: int) -> None:
        """At the host of rank 0."""
        self._fixed(question, version)
        self.published(question.name)  # what else its call asked had to come after it

    def _fixed(self, question: Question, version: int) -> None:
        """The host of rank 0 has decided."""
        if (answer := self._answers.get(question)) is None:  # its iteration is over
            return
        answer.version, answer.is_asked = version, False
        askers, answer.askers = answer.askers, []
        for host in askers:
            self._post.say(host, messages.Fixed(question, version))
        waiters, answer.waiters = answer.waiters, []
        for process in waiters:
            self._control.wake(process)

    def wanted(self, name: str) -> set[int]:
        """Versions that calls have."""
        found = {a.version for q, a in self._answers.items() if q.name == name and a.version > 0}
        return found | {version for q, (_, version) in self._pins.items() if q.name == name}

    def over(self, iteration: int) -> None:
        """This iteration and all before it are."""
        self._answers = {q: a for q, a in self._answers.items() if a.iteration > iteration}
        self._pins = {q: pin for q, pin in self._pins.items() if pin[0] > iteration}
