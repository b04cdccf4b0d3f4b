"""Large arrays between nodes through Ray's object store: the frame has only a reference, Ray moves the bytes.

The sender puts a buffer into the store of its node and keeps the reference until the receiver has the bytes: its number
comes back on the same socket. The receiver fetches all buffers of a message at once, in the thread that hears the link,
so that an item has arrived when it is counted, and copies them out of the store: what lies there cannot be written, and
an item is its taker's own by every way.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlinf_lab.errors import ExecutorError, said
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.transport.shared_memory import Returned

LARGE_IN_STORE = 1 << 20  # bytes; a smaller buffer is sooner there in the stream
FETCH_SECONDS = 120.0
HEAD = struct.Struct("<IH")  # its number, and the bytes of Ray's reference that follow
_NUMBER = struct.Struct("<I")
_LOG = logging.getLogger("rlinf_lab")


class InStore(NamedTuple):
    """What travels of a buffer that lies in the store."""

    number: int
    reference: bytes
    size: int


class StorePool:
    """The sender's end of one link. Used by whoever holds the link's lock."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._returned, self._peer = Returned(connection), peer
        self._kept: dict[int, Any] = {}  # references of what is still under way, by number
        self._made = 0
        self._has_told = False

    @property
    def kept(self) -> int:
        """How many buffers the other end has not fetched yet, as far as was heard."""
        self._take_back()
        return len(self._kept)

    def place(self, raw: memoryview) -> bytes | None:
        """Put a buffer into the store; the reference to send, or None when it has to travel in the stream."""
        if raw.nbytes < LARGE_IN_STORE:
            return None
        self._take_back()
        ray = load_ray()
        try:
            reference = ray.put(np.frombuffer(raw, np.uint8))
            made = _described(reference)
        except (ray.exceptions.RayError, OSError) as error:
            self._tell(error)
            return None
        number, self._made = self._made, (self._made + 1) % (1 << 32)
        self._kept[number] = reference
        return HEAD.pack(number, len(made)) + made

    def _tell(self, error: BaseException) -> None:
        """Once for each link; the timeline names the way of each message."""
        if not self._has_told:
            self._has_told = True
            _LOG.warning(
                "Ray's object store takes no array for host %r (%s: %s): it travels in the stream. Next: ray start "
                "--object-store-memory=..., or fewer items "
                "in the channel.", self._peer, type(error).__name__, said(error),
            )  # fmt: skip

    def _take_back(self) -> None:
        """Hear what has been fetched."""
        for number in self._returned.heard():
            self._kept.pop(number, None)

    def close(self) -> None:
        self._kept.clear()


def _described(reference: Any) -> bytes:
    """A reference for another process of this Ray, whoever it is. Pickled as usual Ray would keep the object until this
    process ends.
    """
    core = load_ray()._private.worker.global_worker.core_worker
    made, owner, status = core.serialize_object_ref(reference)
    return pickle.dumps((made.binary(), made.call_site(), owner, status, made.tensor_transport()), protocol=5)


class StoreViews:
    """The receiver's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fetch(self, buffers: Sequence[InStore]) -> list[Any]:
        """The bytes of all of them, copied out of the store. `ExecutorError` when Ray has lost one, or does not bring
        it.
        """
        ray = load_ray()
        reference = ray._private.serialization._object_ref_deserializer
        try:
            found = ray.get([reference(*pickle.loads(b.reference)) for b in buffers], timeout=FETCH_SECONDS)
            return [np.array(array) for array in found]
        except ray.exceptions.GetTimeoutError as error:
            raise _lost(buffers, f"Ray has not brought it within {FETCH_SECONDS:g} s") from error
        except ray.exceptions.OwnerDiedError as error:
            raise _lost(buffers, "its sender has died (OwnerDiedError)") from error
        except ray.exceptions.RayError as error:
            raise _lost(buffers, f"Ray has lost it ({type(error).__name__})") from error
        finally:
            self.give_back(buffers)

    def give_back(self, buffers: Sequence[InStore]) -> None:
        """Also what could not be fetched: nobody asks for it again."""
        with contextlib.suppress(OSError):  # the sender is gone, and what it kept with it
            self._connection.sendall(b"".join(_NUMBER.pack(b.number) for b in buffers))


def _lost(buffers: Sequence[InStore], why: str) -> ExecutorError:
    size = sum(b.size for b in buffers) / 2**20
    return ExecutorError(
        f"{size:.1f} MiB that travelled through Ray's object store did not arrive: {why}. Next: look at the memory of "
        "both nodes (`ray memory`, `ray status`), "
        f"or run with between_nodes='stream'."
    )
