"""The vocabulary of what happened when: kinds of span, causes of a bubble, tracks.

Spans are rows, not objects: millions of them must fit. A row is
(track, kind, name, start_ns, end_ns, iteration, items, nbytes, channel, flow); `Span` is its readable form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any


class SpanKind(IntEnum):
    """What a worker rank was doing between two instants (nanoseconds, half-open)."""

    RUN = 0  # user code on its devices (or on the host, for a rank without one): the only kind that counts as busy
    GET = 1  # waiting for input
    PUT = 2  # waiting for room in a full channel
    LOCK = 3  # input is there, waiting for the device, or for the thread to be woken on it
    ONLOAD = 4
    OFFLOAD = 5
    TRANSFER = 6  # bytes on their way
    WAIT = 7  # waiting for the value of another call
    LABEL = 8  # a user's `with self.span(...)`, nested inside RUN; does not count for bubbles
    MARK = 9  # an iteration of the whole workflow, on the driver's track; does not count for bubbles
    SETUP = 10  # a worker is being built: once per run, unlike the ONLOAD of every switch


class Cause(StrEnum):
    """Why a device was idle. Exactly one per idle nanosecond."""

    STARVED = "starved"  # waiting for input
    BLOCKED = "blocked"  # the output channel is full
    LOCK = "lock"  # work is ready, the device is being handed over
    SETUP = "setup"  # a worker is being built: `Worker.setup`, once per run
    SWITCH = "switch"  # onloading or offloading
    FILL = "fill"  # beginning of an iteration: nothing has reached this device yet
    DRAIN = "drain"  # end of an iteration: this device has done its part
    TAIL = "tail"  # the rest of the group has finished, the last items run elsewhere
    OFF = "off"  # nothing is placed here, or no iteration is running


@dataclass(frozen=True, slots=True)
class Track:
    """One lane of a timeline: a rank of a worker on a host. Its devices are names such as ``"cpu:0"``."""

    worker: str
    rank: int
    devices: tuple[str, ...]
    host: str = "local"

    def as_json(self) -> list[Any]:
        """[worker, rank, [device, …], host]: what files say of it, exactly."""
        return [self.worker, self.rank, list(self.devices), self.host]

    @classmethod
    def from_json(cls, said: list[Any]) -> Track:
        """The inverse of `as_json`."""
        worker, rank, devices, host = said
        return cls(worker, rank, tuple(devices), host)


@dataclass(frozen=True, slots=True)
class Span:
    """One row of a timeline, readable. ``flow`` joins a put to the get that received it; -1 means none."""

    track: Track
    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    iteration: int = -1
    items: int = 0
    nbytes: int = 0
    channel: str = ""
    flow: int = -1


def writable(text: str) -> str:
    """What no file can hold as an escape. That is half of a character, as file names may have: ``\\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode()
