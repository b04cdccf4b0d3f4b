"""The host of the user's loop where there are others. It has links to them, and hears what comes over these."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rlinf_lab.errors import ExecutorError
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.executors.node_clocks import NodeClocks
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.session.news import News
from rlinf_lab.runtime.transport.links import Address, Link, Ways
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.timeline.record.clock import MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder

DEATH_SECONDS = 3


class Driver:
    """See the module's docstring. ``others``: the hosts of workers."""

    def __init__(
        self, layout: Layout, place: dict[tuple[str, int], str], others: Sequence[str], check_items: bool
    ) -> None:
        clock = MonotonicClock()
        recorder = Recorder("driver", clock)
        self.host = Host("driver", layout, place, clock, recorder, self._send, self._sent, check_items)
        self.news = News(self.host, others)
        self.links: dict[str, Link] = {}
        self.pids: dict[str, int] = {}
        self.clocks = NodeClocks(time.monotonic_ns, self._ask_the_time)
        self._listener: Listener | None = None

    def listen(self, ip: str) -> Address:
        """From now on hosts that reach this process at ``ip`` are heard. Where they find it."""
        self.host.state.address = ip
        self._listener = Listener(
            "driver", self.receive, self._broken, self.host.unreadable, ip, self.host.heard_all, outlives=True
        )
        return self._listener.address

    def found(self, address: Address, pid: int) -> None:
        """A host has come into being."""
        assert self._listener is not None
        self.pids[address.host] = pid
        if address.node != self._listener.address.node:
            self.clocks.add(address.host)

    def connect(self, addresses: Sequence[Address], ways: Ways) -> None:
        """Open a link to each of these hosts."""
        for address in addresses:
            self.links[address.host] = Link(address, "driver", ways)

    def receive(self, message: tuple) -> None:
        """A message of another host."""
        if message[0] == "clock":
            self.clocks.heard(*message[1:])
        elif message[0] == "news":
            news = message[1]
            self.news.hear(news, self.clocks.aligned(news.spans))
            self.host.hear_news(news.host, news.is_quiet)
        else:
            self.host.receive(message)

    def _send(self, host: str, message: tuple) -> None:
        link = self.links.get(host)
        if link is not None:
            link.gather(message)
        elif not self.host.stopping:
            raise ExecutorError(
                f"Host {host!r} is not connected: the executor was not started. Next: executor.start() first."
            )

    def _sent(self) -> None:
        for link in list(self.links.values()):
            link.reclaim()
            with contextlib.suppress(ConnectionError):  # the end of its own stream to us says that it died
                link.flush()

    def _ask_the_time(self, host: str, asked_ns: int) -> None:
        with contextlib.suppress(ConnectionError):  # the end of its own stream to us says that it died
            self.links[host].send(("clock?", asked_ns))

    def _broken(self, host: str) -> None:
        try:
            if host in self.links:
                self.links[host].peer_died()
        finally:  # whatever that raises: the run has to hear of the death
            if not self.host.stopping:
                self.host.lost(host)

    def wait_for_farewells(self, hosts: set[str], seconds: float) -> None:
        """Of these hosts the last spans are on their way."""
        if self._listener is not None:
            self._listener.wait_for_farewells(hosts, seconds)

    def wait_for_deaths(self) -> None:
        """Of the processes of this node: they are gone when `stop` returns. One that has not ended by `DEATH_SECONDS`
        is killed.
        """
        here = [self.pids[name] for name, link in self.links.items() if link.transport == "unix"]
        deadline = time.monotonic() + DEATH_SECONDS
        while (left := [pid for pid in here if _runs(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the links; harmless when they have ended."""
        for link in list(self.links.values()):
            link.close()
        if self._listener is not None:
            self._listener.close()


def _runs(pid: int) -> bool:
    """Whether a process is there. One that has ended is, where nobody takes note of that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
