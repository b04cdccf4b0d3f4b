"""What a host in virtual time knows of its ranks and of the iterations that they are in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from rlinf_lab.planning.engine.engine import Process as EngineProcess
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn

# What a rank is doing, that is, what its next wake-up means. Ordered: up to _PUTTING it is at a channel, from _IDLE on
# between calls.
GETTING, PUTTING, RUNNING, STARTING, LOOKING, VALUE, FILLING, DRIVING, AWAITING, ASKING, IDLE, ENDING = range(12)


class Iteration:
    """One that has begun and not ended. ``unended``: by position of a call, how many ranks have not done it.
    ``left_off``: channels of which calls that ended because nobody reads what they write may have left something."""

    __slots__ = ("all_known", "in_body", "left_off", "start", "unended")

    def __init__(self, start: int) -> None:
        self.start = start
        self.in_body = True  # the loop has not come to its end
        self.all_known = False  # the same, as its end was heard
        self.unended: dict[int, int] = {}
        self.left_off: set[str] = set()


class Rank:
    """One rank of a worker, following scripts."""

    __slots__ = (
        "away", "bound_ns", "bound_round", "call", "calls", "channel", "coming", "deferred", "doing", "ends", "first",
        "index", "iteration", "left",
        "lock_from", "lock_waited", "machine", "method", "moves", "number", "on_device", "ports", "queue", "rank",
        "send", "since", "slot", "start",
        "switch_from", "switching", "track", "value", "waits_for", "worker",
    )  # fmt: skip

    def __init__(self, worker: str, rank: int, index: int, track: int, machine: EngineProcess) -> None:
        self.worker, self.rank, self.index, self.track, self.machine = worker, rank, index, track, machine
        self.slot = 2 * index
        self.calls: deque[tuple[int, SimCall, Turn]] = deque()
        self.call: SimCall | None = None
        self.number = self.iteration = -1
        self.method = 0  # number of the name on its spans
        self.send: Callable[[Any], tuple[int, Any, int, int]] = _no_script
        self.doing = IDLE
        self.waits_for: list[int] = []  # positions of the calls whose values it still needs
        # channel or (channel, key): queue, number of the name, micro-batch
        self.ports: dict[Any, tuple[int, int, int]] = {}
        self.queue = self.left = self.value = 0
        self.channel = self.first = self.bound_round = -1
        self.start = self.since = self.bound_ns = self.lock_from = 0
        self.lock_waited = self.on_device = False
        self.switching = self.coming = self.deferred = False  # deferred: woken while it switches, goes on after that
        self.switch_from = 0
        self.moves = True  # whether its switch moves anything
        self.ends = False  # it is leaving
        # when one of its devices is not there, and whether what it does then is lost
        self.away: list[tuple[int, int, bool]] = []

    @property
    def label(self) -> str:
        return f"{self.worker}[{self.rank}]"


def _no_script(_sent: Any) -> NoReturn:
    """Between calls nothing goes on."""
    raise StopIteration


def next_of(script: Script, got: int | None) -> tuple[int, Any, int, int] | None:
    """The next operation of a script; None at its end."""
    try:
        return next(script) if got is None else script.send(got)
    except StopIteration:
        return None
