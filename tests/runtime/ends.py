"""A link within one process, and what arrives at its other end: for tests of the transport."""

from __future__ import annotations

import dataclasses
import gc
import queue
from collections.abc import Callable
from typing import Any

from sessions import until

from rlinf_lab.runtime.transport.links import Link, Ways
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId

QUEUE = QueueId("items", 0, 0, "there", -1)


class Ends:
    """``address``: what the link takes its other end for, one on another node say."""

    def __init__(self, ways: Ways = Ways(), outlives: bool = False, **address: Any) -> None:  # noqa: B008
        self.heard: queue.Queue[tuple] = queue.Queue()
        self.errors: list[tuple[type, str]] = []  # not the errors: their tracebacks keep arrays
        self.broken: list[str] = []
        self.listener = Listener("there", self.heard.put, self.broken.append, lambda _, e: self.errors.append((type(e), str(e))), outlives=outlives)
        self.link = Link(dataclasses.replace(self.listener.address, **address), "here", ways)

    def send(self, value: Any) -> Any:
        self.link.send(("value", value))
        return self.next()

    def next(self) -> Any:
        """The value that arrives."""
        return self.heard.get(timeout=30)[1]

    def put(self, items: list[Any]) -> tuple[Packed, str]:
        """What arrives of a put, still closed, and by which way."""
        packed, _ = Packed.of_items(items, "items")
        self.link.send(("put", QUEUE, len(items), packed, "here", None))
        del packed
        kind, _, count, packed, _, _, transit = self.heard.get(timeout=30)
        assert kind == "put" and count == len(items)
        return packed, transit.transport

    def wait_for(self, count: int) -> None:
        """So many messages, errors and broken links."""
        until(lambda: self.heard.qsize() + len(self.errors) + len(self.broken) >= count)

    @property
    def values(self) -> list[Any]:
        """What has arrived and not been taken."""
        return [message[1] for message in self.heard.queue]

    @property
    def lent(self) -> dict[int, Any]:
        self.link.reclaim()
        return self.link._lender._lent

    def close(self) -> None:
        self.link.close()
        self.listener.close()


def once_collected(is_so: Callable[[], bool]) -> bool:
    """Waits for what is so when garbage has been collected; always true."""
    until(lambda: (gc.collect(), is_so())[1])
    return True
