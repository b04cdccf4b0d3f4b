"""The policies for responses that older weights gave, and the queue that carries them out.

The learner and the simulator hold the same queue, so what is predicted is what runs. Legend: groups are all responses
to one prompt; a version counts updates; staleness is the version that learns less the version that began the response.

Sources: AReaL (arXiv 2505.24298) for "bound", Applied Compute, "Predicting and Controlling Staleness in Fully
Asynchronous RL Training" (2026) for the queue that drops the oldest and its closed forms.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rlinf_lab.errors import ConfigError, shown

T = TypeVar("T")

POLICIES = ("drop_oldest", "block", "bound", "pace", "drop_stale", "recycle")
WHILE_GENERATING = ("in_place", "resume", "retract")


@dataclass(frozen=True)
class StalenessPolicy:
    """How stale a response may be, and what happens to it. Raises `ConfigError` naming the field."""

    name: str = "bound"
    """"drop_oldest": generation never waits, a full queue loses its oldest group. "block": no group begins while the
    queue is full. "bound": group n is learnt from in update n // batch and begins when all but ``bound`` of those
    before are done: none is staler, and an update waits for its longest, as iterations of a plan with that staleness
    do. "pace": a group begins for each that is taken; in the making and waiting are at most ``bound + 1`` batches.
    "drop_stale": groups staler than ``bound`` are lost when a batch is taken. "recycle": as well, and their prompts are
    asked again"""
    bound: int = 1
    """updates, for all but "drop_oldest" and "block" """
    queue: float = 2.0
    """batches that wait at most, for "drop_oldest" and "block" """
    while_generating: str = "in_place"
    """what runs when new weights come: "in_place" goes on with what it has computed, "resume" is broken off and
    computes its tokens again, "retract" forgets them and begins anew"""

    def __post_init__(self) -> None:
        for field, value, known in (
            ("name", self.name, POLICIES),
            ("while_generating", self.while_generating, WHILE_GENERATING),
        ):
            if value not in known:
                raise ConfigError(f"StalenessPolicy.{field} is {shown(value)}. Next: {' or '.join(map(repr, known))}.")
        if isinstance(self.bound, bool) or not isinstance(self.bound, int) or self.bound < 0:
            raise ConfigError(
                f"StalenessPolicy.bound is {shown(self.bound)}; it must be a whole number of at least 0. Next: 1."
            )
        if not isinstance(self.queue, (int, float)) or isinstance(self.queue, bool) or not self.queue >= 1:
            raise ConfigError(
                f"StalenessPolicy.queue is {shown(self.queue)}; it must be at least 1 batch. Next: 2, or math.inf."
            )

    @property
    def drops_stale(self) -> bool:
        return self.name in ("drop_stale", "recycle")


@dataclass(frozen=True)
class Waiting(Generic[T]):
    """A group in the queue."""

    group: T
    version: int
    """of the weights that began it: of its oldest token"""
    number: int
    """in the order of beginning"""


class GroupQueue(Generic[T]):
    """Whole groups between generation and learning. ``batch``: groups of an update."""

    def __init__(self, policy: StalenessPolicy, batch: int) -> None:
        if batch < 1:
            raise ConfigError(f"GroupQueue(batch={shown(batch)}). Next: at least 1 group.")
        self.policy, self.batch = policy, batch
        self._waiting: deque[Waiting[T]] = deque()
        self.taken = 0
        """groups that were learnt from"""
        self.dropped = 0
        """groups that were lost"""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def capacity(self) -> float:
        """Groups that may wait."""
        bounded = self.policy.name in ("drop_oldest", "block")
        return math.inf if not bounded or math.isinf(self.policy.queue) else round(self.policy.queue * self.batch)

    def offer(self, group: T, version: int, number: int = 0) -> list[T]:
        """A group is whole, the ``number``-th that began (from 0; only "bound" asks). What is lost for it."""
        self._waiting.append(Waiting(group, version, number))
        if self.policy.name == "drop_oldest" and len(self._waiting) > self.capacity:
            self.dropped += 1
            return [self._waiting.popleft().group]
        return []

    def take(self, version: int) -> tuple[list[Waiting[T]], list[T]]:
        """The next batch for the weights of ``version``, oldest first, and what is lost. Nothing while there is too
        little."""
        lost: list[T] = []
        if self.policy.drops_stale:
            fresh = deque(w for w in self._waiting if version - w.version <= self.policy.bound)
            if len(fresh) < len(self._waiting):
                lost = [w.group for w in self._waiting if version - w.version > self.policy.bound]
                self._waiting = fresh
                self.dropped += len(lost)
        if len(self._waiting) < self.batch:  # asked at every event, so it must be cheap
            return [], lost
        batch = (
            [w for w in self._waiting if w.number < self.taken + self.batch] if self.policy.name == "bound" else None
        )
        if len(self._waiting if batch is None else batch) < self.batch:
            return [], lost
        self.taken += self.batch
        if batch is None:
            return [self._waiting.popleft() for _ in range(self.batch)], lost
        self._waiting = deque(w for w in self._waiting if w.number >= self.taken)
        return sorted(batch, key=lambda w: w.number), lost

    @property
    def waiting(self) -> tuple[Waiting[T], ...]:
        """Those that wait, as they came."""
        return tuple(self._waiting)

    def put_back(self, waiting: Iterable[Waiting[T]], taken: int, dropped: int) -> None:
        """Go on as another queue stood: who waited in it, and its counts."""
        self._waiting, self.taken, self.dropped = deque(waiting), taken, dropped

    def may_begin(self, begun: int, version: int) -> bool:
        """Whether one more group may begin when ``begun`` have, and ``version`` updates are done."""
        name, bound = self.policy.name, self.policy.bound
        if name == "bound":
            return begun < (version + bound + 1) * self.batch
        if name == "pace":
            return begun - self.taken - self.dropped < (bound + 1) * self.batch
        return name != "block" or len(self._waiting) < self.capacity

    def __repr__(self) -> str:
        return f"GroupQueue({self.policy.name}, {len(self)} groups wait, {self.taken} taken, {self.dropped} dropped)"


@dataclass(frozen=True)
class MeanStaleness:
    """The mean staleness in closed form. For steady arrivals, updates of equal length and a queue that drops its
    oldest.

    With ρ = generated over trained per second, C responses at once, B of an update, a queue of q batches, and
    M = E[longest of a group] / E[length]. It holds for batches of many groups and, where ρ > 1, for groups whose times
    are spread so far that their fractions of an update are about even. Source: Applied Compute (2026).
    """

    concurrency: float
    batch: float
    queue: float
    utilisation: float
    """ρ"""
    tail: float
    """M"""

    @property
    def generating(self) -> float:
        """Updates between a response's beginning and its group's end: C·M / (B·max(1, ρ))."""
        return self.concurrency * self.tail / (self.batch * max(1.0, self.utilisation))

    @property
    def waiting(self) -> float:
        """Updates in the queue: ρ below 1, else (2q + ρ - 1) / 2ρ."""
        rho = self.utilisation
        return rho if rho < 1 else (2 * self.queue + rho - 1) / (2 * rho)

    @property
    def total(self) -> float:
        return self.generating + self.waiting
