"""Asynchronous training in virtual time. Responses are generated all the time, a learner takes batches of groups.

    slots ──responses──▶ groups ──queue (policy)──▶ learner ──new version──▶ slots

One event for each response and update; see `AsynchronousTraining`. Legend: N responses, in the order they are asked
for.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.planning.simulator.rollout_result import DROPPED, USED, Rollouts
from rlinf_lab.planning.simulator.staleness import GroupQueue, StalenessPolicy


@dataclass(frozen=True)
class AsynchronousTraining:
    """Generation and learning side by side. `simulate` says how stale, how long and how idle. Raises `ConfigError`."""

    concurrency: int
    """responses that are generated at once"""
    batch: int
    """responses of an update, a multiple of ``group_size``"""
    training_s: float
    """seconds of an update"""
    group_size: int = 1
    """responses to a prompt"""
    policy: StalenessPolicy = field(default_factory=StalenessPolicy)
    load_s: float = 0.0
    """seconds for which generation stands still when new weights come (with "resume": to compute its tokens again)"""
    steady: bool = False
    """groups end at an even pace, as many a second as the slots give on average: the assumption of the closed forms"""

    def __post_init__(self) -> None:
        for name in ("concurrency", "batch", "group_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(
                    f"AsynchronousTraining.{name} is {shown(value)}; it must be a whole number. Next: 1 or more."
                )
        for name, least in (("training_s", "above 0"), ("load_s", "at least 0")):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (value == 0 and name == "training_s"):
                raise ConfigError(
                    f"AsynchronousTraining.{name} is {shown(value)}; it must be {least}. Next: a number of seconds."
                )
        if self.batch % self.group_size:
            raise ConfigError(
                f"AsynchronousTraining.batch is {self.batch}, no multiple of group_size={self.group_size}. "
                f"Next: {max(1, self.batch // self.group_size) * self.group_size}."
            )
        if self.steady and (
            self.policy.name not in ("drop_oldest", "drop_stale") or self.policy.while_generating == "retract"
        ):
            raise ConfigError(
                f"AsynchronousTraining.steady with {self.policy}: nothing may hold up or repeat generation. "
                "Next: drop_oldest."
            )

    def simulate(self, seconds: ArrayLike, *, updates: int | None = None) -> Rollouts:
        """Generate responses that take ``seconds`` (N,) until they, or ``updates``, are used up."""
        seconds_N = np.asarray(seconds, np.float64)
        count = len(seconds_N) // self.group_size * self.group_size if seconds_N.ndim == 1 else 0
        if not count or not np.isfinite(seconds_N).all() or (seconds_N < 0).any():
            raise ConfigError(
                f"simulate(seconds={shown(seconds)}): at least one group of finite durations, not negative. "
                "Next: lengths / rate."
            )
        run = (_Steady if self.steady else _Slots)(self, seconds_N[:count])
        run.go(math.inf if updates is None else updates)
        return run.result()


class _Slots:
    """The state of one simulation. Its responses are in slots, each of which takes the next as soon as it is free."""

    def __init__(self, setting: AsynchronousTraining, seconds_N: NDArray[np.float64]) -> None:
        self.setting, self.seconds_N = setting, seconds_N
        self.size, groups = setting.group_size, len(seconds_N) // setting.group_size
        self.queue: GroupQueue[int] = GroupQueue(setting.policy, setting.batch // setting.group_size)
        self.version, self.now = 0, 0.0
        self.published: list[float] = []
        self.training_until = math.inf  # nobody learns
        self.trained_s = self._busy_s = self._busy_since = 0.0
        self.filled = (0.0, 0.0)  # until the last response began: seconds of all slots that were busy, and seconds
        self.taken: list[tuple[int, float, int]] = []
        self.dropped: set[int] = set()
        self._seconds: list[float] = seconds_N.tolist()
        self._begin, self._end = [math.nan] * len(seconds_N), [math.nan] * len(seconds_N)
        self._with = [-1] * len(seconds_N)
        self._missing = [self.size] * groups
        self._to_ask: deque[int] = deque(range(len(seconds_N)))
        self._running: list[tuple[float, int]] = []
        self._begun = 0

    def go(self, updates: float) -> None:
        while self.version < updates:
            self._fill()
            ends = self._next_end()
            if ends == self.training_until == math.inf:
                return  # everything has been answered, or what is left is too little for an update
            if self.training_until <= ends:
                self.now = self.training_until
                self._publish()
            else:
                self.now = ends
                self._finish()
            if self.training_until == math.inf:
                self._take()

    # --- generation ------------------------------------------------------------------------------------------
    def _fill(self) -> None:
        while self._to_ask and len(self._running) < self.setting.concurrency:
            one = self._to_ask[0]
            if one % self.size == 0:
                if not self.queue.may_begin(self._begun, self.version):
                    return
                self._begun += 1
            self._to_ask.popleft()
            self._start(one, 0.0)

    def _start(self, one: int, pause: float) -> None:
        self._account()
        self.filled = (self._busy_s, self.now)
        self._begin[one], self._with[one] = self.now, self.version
        heapq.heappush(self._running, (self.now + pause + self._seconds[one], one))

    def _account(self) -> None:
        """Slots have been as they are since the last change."""
        self._busy_s += len(self._running) * (self.now - self._busy_since)
        self._busy_since = self.now

    def _next_end(self) -> float:
        return self._running[0][0] if self._running else math.inf

    def _finish(self) -> None:
        self._account()
        _, one = heapq.heappop(self._running)
        self._end[one] = self.now
        group = one // self.size
        self._missing[group] -= 1
        if not self._missing[group]:
            oldest = min(self._with[group * self.size : (group + 1) * self.size])
            self._lose(self.queue.offer(group, oldest, group))

    def _lose(self, groups: list[int]) -> None:
        self.dropped.update(groups)
        if self.setting.policy.name == "recycle":
            for group in reversed(groups):
                self._missing[group] = self.size
                self._to_ask.extendleft(reversed(range(group * self.size, (group + 1) * self.size)))

    # --- learning --------------------------------------------------------------------------------------------
    def _take(self) -> None:
        batch, lost = self.queue.take(self.version)
        self._lose(lost)
        if batch:
            self.taken += [(waiting.group, self.now, self.version) for waiting in batch]
            self.training_until = self.now + self.setting.training_s
            self.trained_s += self.setting.training_s

    def _publish(self) -> None:
        self.version += 1
        self.published.append(self.now)
        self.training_until = math.inf
        pause = self.setting.load_s
        if self.setting.policy.while_generating == "retract":
            self._account()
            running, self._running = [one for _, one in self._running], []
            for one in running:
                self._start(one, pause)
        elif pause:
            self._running = [(end + pause, one) for end, one in self._running]  # their order stays

    def result(self) -> Rollouts:
        if self.training_until != math.inf:  # of an update that is not over only what has been worked counts
            self.trained_s -= self.training_until - self.now
        groups = len(self._missing)
        used_by, take, fate = np.full(groups, -1), np.full(groups, np.nan), np.zeros(groups, np.int8)
        fate[list(self.dropped)] = DROPPED
        if self.taken:
            which, when, version = (np.array(column) for column in zip(*self.taken, strict=True))
            used_by[which], take[which], fate[which] = version, when, USED
        each = partial(np.repeat, repeats=self.size)
        return Rollouts(
            self.setting.concurrency, self.seconds_N, *self._generated(), each(take), each(used_by), each(fate),
            np.array(self.published), self.now, self.trained_s, self.filled,
        )  # fmt: skip

    def _generated(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Begin and end of each response, and the version that began it."""
        return np.array(self._begin), np.array(self._end), np.array(self._with)


class _Steady(_Slots):
    """Groups end at an even pace. Each has begun as long before as its longest response takes."""

    def __init__(self, setting: AsynchronousTraining, seconds_N: NDArray[np.float64]) -> None:
        super().__init__(setting, seconds_N)
        self._every = float(seconds_N.mean()) * self.size / setting.concurrency
        self._longest: list[float] = seconds_N.reshape(-1, self.size).max(axis=1).tolist()
        self._group = 0
        self._oldest = [0] * len(self._longest)

    def _fill(self) -> None:
        pass

    def _next_end(self) -> float:
        return (self._group + 1) * self._every if self._group < len(self._longest) else math.inf

    def _finish(self) -> None:
        group = self._group
        self._group += 1
        self._oldest[group] = bisect.bisect_right(self.published, self.now - self._longest[group])
        self._lose(self.queue.offer(group, self._oldest[group], group))

    def _generated(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        end = np.full(len(self._longest), np.nan)
        end[: self._group] = np.arange(1, self._group + 1) * self._every
        oldest = np.where(np.isnan(end), -1, self._oldest)
        return tuple(np.repeat(x, self.size) for x in (end - self._longest, end, oldest))  # type: ignore[return-value]
