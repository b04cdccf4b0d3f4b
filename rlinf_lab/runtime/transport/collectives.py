"""Memory from one process to another by torch.distributed: NCCL between GPUs, Gloo between nodes. A group of two for
each link and GPU.

    frame with the size ──stream──> a buffer is made and received into, in order ── `Coming` ──> the rank that takes it
    thread of the sender ── send, in the same order ──────────^

Both ends of a group do one thing after another, each in a thread of its own, in the order of the frames: so the two
calls of a transfer always meet, whoever is first, and nobody who puts or hears waits for the other side. A sender's
thread hands a block to the group when the one before has left.
"""

from __future__ import annotations

import datetime
import logging
import pickle
import queue
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_lab.errors import ExecutorError, said

LARGE_FOR_GLOO = 1 << 20  # bytes; a smaller buffer is sooner there in the stream
BETWEEN_GPUS = "nccl"
TIMEOUT_SECONDS = 120.0
LEAVE_SECONDS = 5.0
HEAD = struct.Struct("<I")  # bytes of the description that follows
LOOPBACK = "127.0.0.1"
_LOG = logging.getLogger("rlinf_lab")


def _group(backend: str, store: Any, rank: int, address: str) -> Any:
    """A group of two that torch's registry does not know."""
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    if backend == "gloo":
        gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack its options
        options = gloo._Options()
        options._devices, options._timeout = [gloo.create_device(hostname=address)], timeout
        return gloo(store, rank, 2, options)
    wishes = dist.ProcessGroupNCCL.Options()
    wishes._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, 2, wishes)


def _wait(work: Any, block: Any) -> None:
    """Until a transfer is over, on the GPU too."""
    work.wait()
    if block.device.type == "cuda":
        import torch

        torch.cuda.current_stream(block.device).synchronize()


class Sender:
    """The sender's end of one group. Used by whoever holds the link's lock. Its thread ends with the link, or when a
    transfer has failed.
    """

    def __init__(self, peer: str, backend: str, address: str) -> None:
        import torch.distributed as dist

        self._peer, self._backend, self._address = peer, backend, address
        self.problem = ""
        self._group: Any = None
        timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        self._described = pickle.dumps((backend, address, self._store.port), protocol=5)
        self._blocks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"{backend} to {peer}", daemon=True)
        self._thread.start()

    def place(self, block: Any) -> bytes:
        """Have it sent: the transport's own, nobody writes into it. What to say in the frame."""
        self._blocks.put(block)
        return HEAD.pack(len(self._described)) + self._described

    def _work(self) -> None:
        try:
            self._group = _group(self._backend, self._store, 0, self._address)
            while (block := self._blocks.get()) is not None and not self.problem:
                _wait(self._group.send([block], 1, 0), block)
                del block
        except Exception as error:  # the receiver's call fails as well and is told there, if it lives
            if self.problem:
                return
            self.problem = f"{type(error).__name__}: {said(error).splitlines()[0]}"
            _LOG.warning(
                "%s to host %r has failed (%s); what follows takes the other way.",
                self._backend,
                self._peer,
                self.problem,
            )

    def receiver_died(self) -> None:
        """Nothing more can be sent. A call of NCCL does not notice that by itself, one of Gloo does."""
        self.problem = self.problem or "its receiver has died"
        self._blocks.put(None)
        if self._group is not None and self._backend == "nccl":
            self._group.abort()

    def close(self) -> None:
        """What was to be sent is sent first."""
        self._blocks.put(None)
        self._thread.join(LEAVE_SECONDS)


class Senders:
    """Who sends over one link. There is a group for each GPU that it sends from, and one for host memory."""

    def __init__(self, peer: str, address: str) -> None:
        self._peer, self._address = peer, address
        self._by_source: dict[str, Sender] = {}

    def place(self, block: Any, backend: str) -> bytes | None:
        """What to say in the frame. None when it has to travel by another way: a transfer has failed before."""
        source = str(block.device)
        sender = self._by_source.get(source)
        if sender is None:
            sender = self._by_source[source] = Sender(self._peer, backend, self._address)
        return None if sender.problem else sender.place(block)

    def place_bytes(self, raw: memoryview) -> bytes | None:
        """The same for host memory, by Gloo: a copy, for the caller may change it."""
        if raw.nbytes < LARGE_FOR_GLOO:
            return None
        import torch

        return self.place(torch.from_numpy(np.array(np.frombuffer(raw, np.uint8))), "gloo")

    def receiver_died(self) -> None:
        for sender in list(self._by_source.values()):
            sender.receiver_died()

    def close(self) -> None:
        for sender in self._by_source.values():
            sender.close()


class Coming:
    """Memory that is on its way."""

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self._block: Any = None
        self._error: BaseException | None = None

    def arrived(self, block: Any) -> None:
        self._block = block
        self._is_there.set()

    def failed(self, error: BaseException) -> None:
        self._error = error
        self._is_there.set()

    def open(self) -> Any:
        """The tensor of its bytes, when it is there. `ExecutorError` when it does not come."""
        self._is_there.wait()
        if self._error is not None:
            raise ExecutorError(
                f"A tensor did not arrive by torch.distributed: {said(self._error).splitlines()[0]}. Next: look at the "
                "sender's log; run with "
                f"between_gpus='host' or between_nodes='stream' if the network between these nodes does not carry it."
            ) from self._error
        return self._block

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """On to a third host: as a tensor of this one."""
        return _same, (self.open(),)


def _same(block: Any) -> Any:
    return block


class Receivers:
    """The receiver's end of one connection. Groups are joined by threads of their own; `end` when the
    stream has ended.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._queues: dict[bytes, queue.SimpleQueue[tuple[int, Coming] | None]] = {}
        self._waiting: set[Coming] = set()
        self._lock = threading.Lock()
        self._has_ended = False
        self._leave: list[Callable[[], None]] = []

    def expect(self, described: bytes, size: int) -> Coming:
        """So many bytes follow in this group."""
        coming = Coming()
        with self._lock:
            self._waiting.add(coming)
        todo = self._queues.get(described)
        if todo is None:
            todo = self._queues[described] = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(described, todo), name="receive", daemon=True).start()
        todo.put((size, coming))
        return coming

    def _work(self, described: bytes, todo: queue.SimpleQueue[tuple[int, Coming] | None]) -> None:
        backend, host, port = pickle.loads(described)
        problem: BaseException | None = None
        group: Any = None
        while (next_one := todo.get()) is not None:
            size, coming = next_one
            if problem is None:
                try:
                    if group is None:
                        group = self._joined(backend, host, port)
                    coming.arrived(_received(group, backend, size))
                except Exception as error:  # the order is lost: nothing more can be received here
                    problem = error
            if problem is not None:
                coming.failed(problem)
            with self._lock:
                self._waiting.discard(coming)

    def _joined(self, backend: str, host: str, port: int) -> Any:
        import torch.distributed as dist

        store = dist.TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS))
        group = _group(backend, store, 1, self._address)
        if backend == "nccl":
            with self._lock:
                self._leave.append(group.abort)  # a call of NCCL does not notice that the other side has died
        return group

    def end(self, died: bool) -> None:
        """``died``: without a farewell, so what is still on its way does not come."""
        for todo in self._queues.values():
            todo.put(None)
        if not died:
            return
        with self._lock:
            waiting, leave = list(self._waiting), list(self._leave)
        for coming in waiting:
            coming.failed(ConnectionError("its sender has died"))
        for abort in leave:
            abort()


def _received(group: Any, backend: str, size: int) -> Any:
    import torch

    block = torch.empty(size, dtype=torch.uint8, device="cpu" if backend == "gloo" else "cuda")
    _wait(group.recv([block], 0, 0), block)
    return block
