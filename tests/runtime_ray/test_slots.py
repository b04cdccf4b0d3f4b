"""Arrays in shared memory between two processes' links: whole, private while they live, given back when they die."""

from __future__ import annotations

import collections
import errno
import gc
import itertools
import pickle
import random
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from ends import Ends
from sessions import until

from rlinf_lab.runtime.transport import shared_memory
from rlinf_lab.runtime.transport.pickling import pickled


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()
    assert made.errors == []


def slots_of(ends: Ends) -> list[Any]:
    return ends.link._slots._slots


def test_a_large_array_is_seen_without_a_copy_and_its_slot_is_used_again(ends: Ends) -> None:
    for i in range(20):
        array = ends.send(np.full(100_000, i, np.int64))
        assert (array == i).all() and array.flags.writeable and not array.flags.owndata
        array[:] = -1  # its own
        del array
    assert len(slots_of(ends)) <= 3  # the one of the greeting, one in use, one on its way back


def drop_together(gate: threading.Barrier, arrays: list[Any]) -> None:
    gate.wait()
    arrays.clear()


def test_slots_that_several_threads_give_back_are_each_used_once(ends: Ends) -> None:
    """Otherwise two arrays would share a slot."""
    for _ in range(30):
        kept = [[ends.send(np.full(10_000, 8 * k + j)) for j in range(8)] for k in range(4)]
        gate = threading.Barrier(len(kept))
        threads = [threading.Thread(target=drop_together, args=(gate, mine)) for mine in kept]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    held = [ends.send(np.full(10_000, i)) for i in range(64)]
    assert all((a == i).all() for i, a in enumerate(held))
    numbers = [slot.number for free in ends.link._slots._free.values() for slot in free]
    assert len(numbers) == len(set(numbers))


def test_a_number_that_comes_in_two_parts_is_one_number() -> None:
    near, far = socket.socketpair()
    with near, far:
        returned, whole = shared_memory.Returned(near), struct.pack("<5I", 0, 1, 70_000, 3, 2**31)
        found = []
        for lo, hi in itertools.pairwise((0, 3, 4, 10, 10, 19, 20)):
            far.sendall(whole[lo:hi])
            found.append(list(returned.heard()))
        assert found == [[], [0], [1], [], [70_000, 3], [2**31]]


def test_what_a_full_socket_does_not_take_goes_back_later_once_and_in_order() -> None:
    class Full:
        room, sent = 2, b""

        def send(self, data: bytes, flags: int) -> None:
            assert flags == socket.MSG_DONTWAIT
            if not self.room:
                raise BlockingIOError
            self.room, self.sent = self.room - 1, self.sent + data

    views, full = shared_memory.SlotViews.__new__(shared_memory.SlotViews), Full()
    views.__dict__.update(_connection=full, _done=collections.deque())
    for number in range(4):
        views.give_back(number)
    assert struct.unpack("<2I", full.sent) == (0, 1)
    full.room = 9
    views.give_back(4)
    assert struct.unpack("<5I", full.sent) == (0, 1, 2, 3, 4) and not views._done


def test_beyond_the_limit_arrays_travel_in_the_stream(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "LIMIT", 1 << 20)
    kept = [ends.send(np.full(1 << 18, i, np.uint8)) for i in range(12)]
    assert all((a == i).all() for i, a in enumerate(kept))
    assert sum(s.size for s in slots_of(ends)) <= (1 << 20) + 4096


def test_many_slots_need_few_files(ends: Ends) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    kept = [ends.send(np.full(1 << 16, i, np.uint8)) for i in range(200)]
    assert all((a == i).all() for i, a in enumerate(kept)) and len(slots_of(ends)) == 200
    assert len([*Path("/proc/self/fd").iterdir()]) <= before + 4


def test_a_sender_that_may_open_no_more_files_uses_the_stream(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(shared_memory.os, "memfd_create", refuse)
    array = ends.send(np.full(1 << 20, 7, np.uint8))
    assert (array == 7).all() and not slots_of(ends)


def test_a_receiver_that_may_open_no_more_files_says_so_and_hears_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    real = shared_memory.SlotViews._map
    answers = iter([OSError(errno.EMFILE, "Too many open files")])

    def fail_once(self: shared_memory.SlotViews, arena: int, file: int) -> Any:
        for error in answers:
            raise error
        return real(self, arena, file)

    monkeypatch.setattr(shared_memory.SlotViews, "_map", fail_once)
    ends.link.send(("value", np.zeros(1 << 20, np.uint8)))
    assert (ends.send(np.full(1 << 20, 7, np.uint8)) == 7).all()
    assert [said for _, said in ends.errors] == ["[Errno 24] Too many open files"]
    ends.close()


def test_any_mixture_arrives_whole_and_is_not_written_over(ends: Ends) -> None:
    rng, np_rng = random.Random(3), np.random.default_rng(3)
    kept: list[tuple[Any, Any]] = []
    for _ in range(150):
        sent = [np_rng.random(rng.choice((0, 1, 7, 1_000, 8_192, 8_193, 40_000))).astype(rng.choice(("f4", "f8"))) for _ in range(rng.randint(1, 4))]
        got = ends.send({"arrays": sent, "text": "x" * rng.randint(0, 9)})["arrays"]
        kept.append((sent, [array[:] for array in got]))  # a view holds the slot as well
        while len(kept) > rng.randint(0, 6):
            for a, b in zip(*kept.pop(0), strict=True):
                np.testing.assert_array_equal(a, b)
    last = np.arange(40_000)
    kept_on = ends.send(last)
    ends.link.close()
    np.testing.assert_array_equal(kept_on, last)


def test_what_the_sender_changes_afterwards_does_not_arrive(ends: Ends) -> None:
    array = np.zeros(4_000_000)  # more than a socket takes at once
    slot_free = np.zeros(5_000)
    for value in (array, slot_free):
        ends.link.send(("value", value))
        value[:] = 9
        assert ends.next().sum() == 0


def test_a_plain_tensor_is_a_buffer_beside_the_pickle() -> None:
    data, buffers = pickled({"w": torch.ones(100_000)})
    assert len(data) < 500 and [b.nbytes for b in buffers] == [400_000]


def test_a_sparse_tensor_is_not_kept_when_it_has_died(ends: Ends) -> None:
    got = weakref.ref(ends.send(torch.eye(300).to_sparse()))
    gc.collect()
    assert got() is None


SENDER = """
import pickle, sys, time
import numpy as np
from rlinf_lab.runtime.transport.links import Link
link = Link(pickle.loads(bytes.fromhex(sys.argv[1])), "child")
for i in range(5):
    link.send(("value", np.full(100_000, i)))
time.sleep(600)  # longer than a test may last
"""


def test_arrays_outlive_the_process_that_sent_them() -> None:
    ends = Ends()
    child = subprocess.Popen([sys.executable, "-c", SENDER, pickle.dumps(ends.listener.address).hex()])
    arrays = [ends.next() for _ in range(5)]
    child.kill()
    until(lambda: ends.broken == ["child"])
    child.wait(60)
    assert [int(a[0]) for a in arrays] == [0, 1, 2, 3, 4] and all((a == a[0]).all() and not a.flags.owndata for a in arrays)
    ends.close()
