"""Python objects through a stream socket: a length, then the pickle."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_HEAD = struct.Struct("<Q")


def send(connection: socket.socket, thing: Any) -> None:
    told = pickle.dumps(thing, protocol=5)
    connection.sendall(_HEAD.pack(len(told)) + told)


def receive(connection: socket.socket) -> Any:
    """`EOFError` when the other end is closed."""
    (size,) = _HEAD.unpack(_exactly(connection, _HEAD.size))
    return pickle.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = connection.recv(size, socket.MSG_WAITALL)
    while len(found) < size:  # a signal can cut a wait for all short
        more = connection.recv(size - len(found), socket.MSG_WAITALL)
        if not more:
            raise EOFError("the other process has ended")
        found += more
    return found
