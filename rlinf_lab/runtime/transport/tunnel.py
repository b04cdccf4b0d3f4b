"""A stream between nodes that reach each other through Ray alone: both ends are sockets, between them an actor of Ray
carries the bytes.

    Link ══ socket pair ══ thread ── calls of the actor, in order ──> Relay on the other node ══ its listener
                           thread <── what the listener says ────────

Neither the link nor the listener knows; a stream that ends on one side ends on the other. The relay belongs to the
process whose link it carries: Ray ends it with that process, so the other side hears of its death as ever.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from typing import Any, Protocol

from rlinf_lab.errors import ChannelBroken, said
from rlinf_lab.runtime.machine.ray_library import load_ray

MOST_BYTES = 1 << 20  # of one call
UNDER_WAY = 8  # calls that are not answered yet: what else is to be sent waits in the link
START_SECONDS = 60.0


class Relay:
    """Lives on the node of the listener. Its two methods are called by a thread each, from far away."""

    def __init__(self, unix: str, tcp: tuple[str, int]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(unix)
        except OSError:  # another container of that node
            self._socket.close()
            self._socket = socket.create_connection(tcp, timeout=10)
            self._socket.settimeout(None)

    def ready(self) -> None:
        """Made: what went wrong comes with the answer."""

    def send(self, data: bytes) -> bool:
        """On to the listener; nothing: that was all. False when it has hung up."""
        try:
            self._socket.sendall(data) if data else self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True

    def hear(self) -> bytes:
        """What the listener says, when it says something; nothing when it has hung up."""
        try:
            return self._socket.recv(MOST_BYTES)
        except OSError:
            return b""


class Listening(Protocol):
    """What is needed of a `links.Address`."""

    @property
    def host(self) -> str: ...
    @property
    def unix(self) -> str: ...
    @property
    def tcp(self) -> tuple[str, int]: ...
    @property
    def ray_node(self) -> str: ...


def through_ray(address: Listening) -> socket.socket:
    """A socket whose other end is the listener at ``address``. `ChannelBroken` when Ray makes no relay there."""
    ray = load_ray()
    node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(address.ray_node, soft=False)
    made = ray.remote(concurrency_groups={"send": 1, "hear": 1}, num_cpus=0)(Relay)
    relay = made.options(scheduling_strategy=node).remote(address.unix, address.tcp)
    try:
        ray.get(relay.ready.remote(), timeout=START_SECONDS)
    except ray.exceptions.RayError as error:
        raise ChannelBroken(
            f"Host {address.host!r} cannot be reached, neither at {address.tcp[0]}:{address.tcp[1]} nor through Ray: "
            f"{type(error).__name__}: {said(error)}. "
            f"Next: let TCP through between the nodes, or look at `ray status`."
        ) from error
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for work in (_carry, _bring):
        threading.Thread(target=work, args=(theirs, relay), name=f"tunnel to {address.host}", daemon=True).start()
    return ours


def _carry(connection: socket.socket, relay: Any) -> None:
    """What the link sends."""
    ray = load_ray()
    asked: deque[Any] = deque()
    with contextlib.suppress(OSError, ray.exceptions.RayError):
        while True:
            data = connection.recv(MOST_BYTES)
            asked.append(relay.send.options(concurrency_group="send").remote(data))
            while len(asked) > (UNDER_WAY if data else 0):
                if not ray.get(asked.popleft()):
                    _hang_up(connection)
                    return
            if not data:
                return
    _hang_up(connection)


def _bring(connection: socket.socket, relay: Any) -> None:
    """What the listener answers."""
    ray = load_ray()
    with contextlib.suppress(OSError, ray.exceptions.RayError):
        while data := ray.get(relay.hear.options(concurrency_group="hear").remote()):
            connection.sendall(data)
    _hang_up(connection)
    connection.close()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
