"""Short packets of one queue that are gathered one after another travel as one frame; whoever hears it finds each of them, in order."""

from __future__ import annotations

import pickle
import random
import socket
import threading
from typing import Any

import numpy as np
import pytest

from rlinf_lab.runtime.transport.collectives import Receivers
from rlinf_lab.runtime.transport.frames import FrameReader, NotYetThere, Stream
from rlinf_lab.runtime.transport.links import MOST_TOGETHER, SHORT, Link, _Run
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.shared_memory import SlotViews

Put = tuple[Any, int, Any, str, Any]  # queue, count, value, origin, tags


class Ear:
    """Hears puts, those that came together one by one."""

    def __init__(self) -> None:
        self.puts: list[Put] = []
        self.others: list[Any] = []
        self.frames: list[int] = []  # how many puts each had
        self.changed = threading.Condition()
        self.listener = Listener("ear", self._hear, lambda peer: None, lambda peer, error: self._hear(("error", error)))

    def _hear(self, message: tuple) -> None:
        with self.changed:
            if message[0] == "put":
                _, name, count, packed, origin, tags, _ = message
                self.puts.append((name, count, packed.open(), origin, tags))
                self.frames.append(1)
            elif message[0] == "puts":
                _, name, counts, packets, origin, transit = message
                self.puts += [(name, count, pickle.loads(data), origin, None) for count, data in zip(counts, packets, strict=True)]
                self.frames.append(len(packets))
                assert transit.nbytes == sum(map(len, packets)) and transit.sent_ns > 0
            else:
                self.others.append(message)
            self.changed.notify_all()


@pytest.fixture
def ear() -> Any:
    made = Ear()
    yield made
    made.listener.close()


@pytest.mark.parametrize("seed", range(5))
def test_every_put_is_heard_once_and_in_order(ear: Ear, seed: int) -> None:
    rng, link = random.Random(seed), Link(ear.listener.address, "mouth")
    put: list[Put] = []
    for i in range(800):
        size = rng.choice((0, 3, 100, SHORT + 1, 300_000 if i % 40 == 0 else 0))
        value: Any = [np.full(3 + size // 8, i) if rng.random() < 0.1 else (i, bytes(size))]
        tags = (i,) if rng.random() < 0.1 else None
        put.append((f"queue {rng.random() < 0.2}", rng.randint(1, 9), value, "mouth", tags))
        packed, _ = Packed.of_items(value, "queue")
        link.gather(("put", put[-1][0], put[-1][1], packed, "mouth", tags))
        if rng.random() < 0.05:
            link.gather(("close", i))
        if rng.random() < 0.05:
            link.flush()
    link.flush()
    with ear.changed:
        assert ear.changed.wait_for(lambda: len(ear.puts) == 800, 30), ear.others
    for heard, sent in zip(ear.puts, put, strict=True):
        assert heard[:2] == sent[:2] and heard[3:] == sent[3:]
        assert np.array_equal(heard[2][0], sent[2][0]) if isinstance(sent[2][0], np.ndarray) else heard[2] == sent[2]
    assert 2 < max(ear.frames) <= MOST_TOGETHER and not any(m[0] == "error" for m in ear.others)
    link.close()


def test_a_single_one_is_not_held_back_and_many_fill_several_frames(ear: Ear) -> None:
    link = Link(ear.listener.address, "mouth")
    for n in (1, MOST_TOGETHER + 1, 2 * MOST_TOGETHER):
        ear.frames.clear()
        for i in range(n):
            link.gather(("put", "queue", 1, Packed.of([i]), "mouth", None))
        assert link.has_gathered()
        link.flush()
        assert not link.has_gathered()
        with ear.changed:
            assert ear.changed.wait_for(lambda n=n: sum(ear.frames) == n, 30)
        assert ear.frames == [MOST_TOGETHER] * (n // MOST_TOGETHER) + [1] * (n % MOST_TOGETHER)
    link.close()


def test_a_frame_that_arrives_in_two_parts_is_read_when_it_is_there() -> None:
    """By a rank that listens: it does not wait for the rest, and the thread that does reads it from the beginning."""
    run = _Run(pickle.dumps(("queue", "mouth", None)))
    for n in (1, 2, 3):
        run.packets.append(pickle.dumps([n]))
        run.counts.append(n)
    frame = run.frame()
    for cut in range(1, len(frame)):
        mouth, ears = socket.socketpair()
        with mouth, ears:
            stream = Stream(ears)
            reader = FrameReader(stream, _no_slots(), Receivers("127.0.0.1"), "unix")
            mouth.sendall(frame[:cut])
            stream.fetch()
            mark, stream.waits = stream.mark(), False
            with pytest.raises(NotYetThere):
                reader.next()
            stream.back(mark)
            mouth.sendall(frame[cut:])
            stream.waits = True
            assert reader.next()
            kind, queue, counts, packets, origin, _ = reader.message()
            assert (kind, queue, tuple(counts), origin) == ("puts", "queue", (1, 2, 3), "mouth")
            assert [pickle.loads(p) for p in packets] == [[1], [2], [3]] and not stream.has_more()


def _no_slots() -> SlotViews:
    return SlotViews.__new__(SlotViews)  # no buffer of these frames lies in one
