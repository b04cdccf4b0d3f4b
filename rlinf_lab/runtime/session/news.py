"""What the hosts of a run have recorded and logged, until somebody fetches it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_lab.runtime.host.context import Logged
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.host.liveness.wait_graph import Wait
from rlinf_lab.timeline.record.batch import SpanBatch


@dataclass(frozen=True)
class HostNews:
    """What another host tells the driver, ten times a second."""

    host: str
    spans: SpanBatch
    "What it has recorded since."
    metrics: list[Logged]
    frames: dict[str, Any]
    waits: list[Wait]
    channels: list[dict[str, Any]]
    is_quiet: bool
    transports: list[dict[str, Any]]


class News:
    """Of the host of the user's loop, and of the ``others`` as they tell. By any thread."""

    def __init__(self, host: Host, others: Sequence[str] = ()) -> None:
        self._host, self._others = host, others
        self._lock = threading.Lock()
        self._batches: list[SpanBatch] = []
        self._rounds = dict.fromkeys(others, 0)
        self._fetched = 0
        self._latest: dict[str, HostNews] = {}

    def hear(self, news: HostNews, batch: SpanBatch) -> None:
        """Another host has told this. ``batch``: its spans, on our clock."""
        with self._lock:
            self._batches.append(batch)
            self._host.told.metrics += news.metrics
            self._rounds[news.host] += 1
            self._latest[news.host] = news
        self._host.told.frames.update(news.frames)

    def drain(self) -> list[SpanBatch]:
        """What was recorded since the last time; read by `Timeline.extend`."""
        with self._lock:
            batches, self._batches = self._batches, []
        own = self._host.recorder.drain()
        return [own, *batches] if own else batches

    def rows(self, most: int) -> tuple[str, int, bytearray] | None:
        """(source, number of the batch, rows of `SPAN_DTYPE`) of at most ``most`` spans that wait.

        None where more wait, anything else but samples does, or there are several hosts: ask `drain`.
        """
        recorder = self._host.recorder
        found = None if self._others else recorder.take_rows(most)
        return None if found is None else (recorder.source, *found)

    def undrained(self) -> int:
        """How many spans `drain` would bring now."""
        with self._lock:
            return len(self._host.recorder) + sum(map(len, self._batches))

    def metrics(self) -> list[Logged]:
        """What was logged since the last time."""
        self._fetched += 1
        return self._host.told.take_metrics()

    def rounds(self) -> int:
        """How often every host has told what was logged there."""
        with self._lock:
            return min(self._rounds.values(), default=self._fetched)

    def frames(self) -> dict[str, Any]:
        """The latest picture of each source."""
        return dict(self._host.told.frames)

    def waits(self) -> list[Wait]:
        """Who waits for what and whom."""
        with self._lock:
            return [*self._host.waits(), *(wait for news in self._latest.values() for wait in news.waits)]

    def channels(self) -> list[dict[str, Any]]:
        """Depth, puts and gets of every queue."""
        with self._lock:
            return [*self._host.statistics(), *(row for news in self._latest.values() for row in news.channels)]

    def transports(self) -> list[dict[str, Any]]:
        """What has come from host to host, by edge, origin and transport."""
        with self._lock:
            return [*self._host.transports(), *(row for news in self._latest.values() for row in news.transports)]
