"""Groups in the making.

What begins, what goes on in the next iteration, what is handed over, and what is lost.

    asked ──▶ backlog ──begin──▶ running ──whole──▶ queue (policy) ──▶ handed over
                                    └──too stale──▶ dropped, or asked again

Nothing here knows an engine: `GeneratorWorker` adds what `begin` returns and tells what finishes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.generation import SamplingParams
from rlinf_lab.planning.simulator.staleness import GroupQueue, StalenessPolicy, Waiting
from rlinf_lab.workers.reasoning.lengths import LengthPredictor
from rlinf_lab.workers.reasoning.records import (
    Asked,
    Response,
    live_asked,
    live_completion,
    plain_asked,
    plain_completion,
)


@dataclass
class Making:
    """One group that is not whole yet."""

    asked: list[Asked]
    number: int
    """in the order of beginning"""
    version: int
    """of the weights that began it"""
    done: list[Response] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int]:
        return self.asked[0].round, self.asked[0].prompt

    @property
    def tokens(self) -> int:
        return sum(map(len, self.done))


class GroupsInTheMaking:
    """The groups of one generator across iterations.

    ``batch``: groups that an iteration hands over; ``whole``: that it makes whole for that (more with "drop_oldest");
    ``concurrency``: that are in the making at once. ``longest_first``: of the next ``batch`` groups those whose prompts
    had long answers begin first; all of them begin before any later one, so none is left out for being short.
    """

    def __init__(
        self,
        policy: StalenessPolicy,
        *,
        batch: int,
        concurrency: int,
        whole: int | None = None,
        longest_first: bool = False,
    ) -> None:
        self.policy, self.batch, self.concurrency = policy, batch, concurrency
        self.whole_wanted = batch if whole is None else whole
        self.streams = policy.name != "drop_oldest"  # which of them are newest is known at the end
        self._queue: GroupQueue[Making] = GroupQueue(policy, 1 if self.streams else batch)
        self._backlog: deque[list[Asked]] = deque()
        self._next_up: list[list[Asked]] = []  # with longest_first: these before the backlog
        self._open: dict[tuple[int, int], Making] = {}
        self._begun = 0
        self._lengths = LengthPredictor() if longest_first else None
        self.learning = 0
        """version that learns from what is handed over now"""
        self.whole = self._handed = 0
        self._tokens = [0, 0]
        self._responses = [0, 0]  # of what was handed over, and of everything that was made whole
        self.dropped = self.recycled = 0
        self.lost: list[str] = []
        """ids of responses that were there and went with their group, in this iteration"""

    # --- an iteration ----------------------------------------------------------------------------------------
    def enter(self, asked: Iterable[Asked], learning: int) -> list[Asked]:
        """A new iteration, from which the weights of ``learning`` learn. Returns what is too stale to go on."""
        groups: dict[tuple[int, int], list[Asked]] = {}
        for one in asked:
            groups.setdefault((one.round, one.prompt), []).append(one)
        self._backlog.extend(groups.values())
        while len(self._backlog) > self.concurrency + self.whole_wanted:  # more than can begin
            self._backlog.pop()
        self.lost = []
        self.learning, self.dropped, self.recycled, self._handed = learning, 0, 0, 0
        self.whole = len(self._queue) if self.streams else 0  # some may be left over
        if not self.policy.drops_stale:
            return []
        stale = [g for g in self._open.values() if learning - g.version > self.policy.bound]
        broken_off = [one for group in stale for one in self._missing(group)]
        for group in stale:
            del self._open[group.key]
            self._lose(group)
        return broken_off

    @property
    def satisfied(self) -> bool:
        """Whether this iteration has what it needs."""
        return self.whole >= self.whole_wanted

    def begin(self, version: int) -> list[Asked]:
        """What may begin now, under the weights of ``version``."""
        found: list[Asked] = []
        while (self._next_up or self._backlog) and len(self._open) < self.concurrency:
            group = self._next()
            self._open[group[0].round, group[0].prompt] = Making(group, self._begun, version)
            self._begun += 1
            found += group
        return found

    def finished(self, response: Response) -> list[list[Response]]:
        """One response is there: the groups that are handed over for it."""
        if self._lengths is not None:
            self._lengths.tell(response.asked.problem, len(response))
        group = self._open[response.asked.round, response.asked.prompt]
        group.done.append(response)
        if len(group.done) < len(group.asked):
            return []
        del self._open[group.key]
        if self.policy.drops_stale and self.learning - group.version > self.policy.bound:
            self._lose(group)
            return []
        self.whole += 1
        self._count(group, 1)
        for oldest in self._queue.offer(group, group.version, group.number):
            self._gone(oldest)
        return self.take() if self.streams else []

    def take(self) -> list[list[Response]]:
        """What is handed over now.

        At the beginning what is left over, then as it is whole, or with "drop_oldest" at the end.
        """
        found: list[list[Response]] = []
        while self._handed < self.batch:
            batch, lost = self._queue.take(self.learning)
            for group in lost:
                self.whole -= 1
                self._lose(group, counted=True)
            if not batch:
                break
            for waiting in batch:
                self._count(waiting.group, 0)
                found.append(sorted(waiting.group.done, key=lambda r: r.asked.sample))
            self._handed += len(batch)
        return found

    def renewed(self, version: int) -> None:
        """What runs begins anew under these weights ("retract"). A group is as old as its oldest response."""
        for group in self._open.values():
            oldest = [r.completion.oldest for r in group.done if len(r)]
            group.version = min([version, *oldest])

    @property
    def why_lost(self) -> str:
        """In words."""
        if self.streams:
            return "too stale, asked again" if self.policy.name == "recycle" else "too stale"
        return "newer groups were there"

    @property
    def running(self) -> list[Asked]:
        return [one for group in self._open.values() for one in self._missing(group)]

    # --- a checkpoint -----------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Everything that goes on in the next iteration, but what `running` has so far."""
        waiting = self._queue.waiting
        return {
            "open": [_plain(group) for group in self._open.values()],
            "waiting": [{**_plain(w.group), "version": w.version} for w in waiting],
            "next_up": [[plain_asked(one) for one in group] for group in self._next_up],
            "backlog": [[plain_asked(one) for one in group] for group in self._backlog],
            "counts": [self._begun, self.learning, self._queue.taken, self._queue.dropped],
            "tokens": [*self._tokens, *self._responses],
            "lengths": None if self._lengths is None else self._lengths.state(),
        }

    def load(self, states: Sequence[Mapping[str, Any]], params: SamplingParams) -> None:
        """Go on from what `state` gave. Of one, or of several whose groups come together here."""
        self._open = {group.key: group for s in states for group in (_live(g, params) for g in s["open"])}
        waiting = [Waiting(_live(g, params), g["version"], g["number"]) for s in states for g in s["waiting"]]
        self._next_up = [[live_asked(one) for one in group] for s in states for group in s["next_up"]]
        self._backlog = deque([live_asked(one) for one in group] for s in states for group in s["backlog"])
        begun, learning, taken, dropped = (sum(s["counts"][i] for s in states) for i in range(4))
        self._begun, self.learning = begun, learning // max(1, len(states))
        self._queue.put_back(waiting, taken, dropped)
        counts = [sum(s["tokens"][i] for s in states) for i in range(4)]
        self._tokens, self._responses = counts[:2], counts[2:]
        for s in states:
            if self._lengths is not None and s["lengths"] is not None:
                self._lengths.load(s["lengths"])

    def told(self) -> dict[str, float]:
        """Of this iteration; the bias since the beginning."""
        bias = 1.0
        if self._responses[0] and self._tokens[1]:
            bias = (self._tokens[0] / self._responses[0]) / (self._tokens[1] / self._responses[1])
        lost = self._queue.dropped if not self.streams else self.dropped
        return {
            "carried": float(len(self._open)),
            "dropped": float(lost),
            "recycled": float(self.recycled),
            "length_bias": bias,
        }

    # --- parts -----------------------------------------------------------------------------------------------
    def _next(self) -> list[Asked]:
        if self._lengths is None:
            return self._backlog.popleft()
        if not self._next_up:
            self._next_up = [self._backlog.popleft() for _ in range(min(self.batch, len(self._backlog)))]
        predicted = [self._lengths.of(group[0].problem) for group in self._next_up]
        return self._next_up.pop(predicted.index(max(predicted)))

    def _missing(self, group: Making) -> list[Asked]:
        there = {r.asked.sample for r in group.done}
        return [one for one in group.asked if one.sample not in there]

    def _lose(self, group: Making, counted: bool = False) -> None:
        self.dropped += 1
        self._gone(group)
        if not counted:
            self._count(group, 1)
        if self.policy.name == "recycle":
            self.recycled += 1
            self._backlog.appendleft([dataclasses.replace(one, attempt=one.attempt + 1) for one in group.asked])

    def _gone(self, group: Making) -> None:
        self.lost += [r.asked.id for r in group.done]

    def _count(self, group: Making, which: int) -> None:
        self._tokens[which] += group.tokens
        self._responses[which] += len(group.done)

    def __repr__(self) -> str:
        there = f"{len(self._open)} open, {len(self._backlog)} not begun"
        return f"GroupsInTheMaking({self.policy.name}, {there}, {self._queue!r})"


def dealt(state: Mapping[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """The part of `GroupsInTheMaking.state` that one of several goes on with. Counts are kept by the first."""
    groups = {name: state[name][rank::ranks] for name in ("open", "waiting", "next_up", "backlog")}
    begun, learning, taken, dropped = state["counts"]
    if rank:
        begun, taken, dropped = 0, 0, 0
    tokens = [0 if rank else n for n in state["tokens"]]
    return {**groups, "counts": [begun, learning, taken, dropped], "tokens": tokens, "lengths": state["lengths"]}


def _plain(group: Making) -> dict[str, Any]:
    done = [{**plain_completion(r.completion), "text": r.text} for r in group.done]
    asked = [plain_asked(one) for one in group.asked]
    return {"asked": asked, "number": group.number, "version": group.version, "done": done}


def _live(state: Mapping[str, Any], params: SamplingParams) -> Making:
    group = Making([live_asked(one) for one in state["asked"]], state["number"], state["version"])
    for one in state["done"]:
        completion = live_completion(one, params)
        group.done.append(Response(completion.item, completion, one["text"]))
    return group
