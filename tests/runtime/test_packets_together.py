"""Short packets of one queue that are gathered one after another travel as one frame; whoever hears it finds each of them, in order."""

from __future__ import annotations

import pickle
import random
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ends import Ends

from rlinf_lab.runtime.transport.collectives import Receivers
from rlinf_lab.runtime.transport.frames import FrameReader, NotYetThere, Stream
from rlinf_lab.runtime.transport.links import MOST_TOGETHER, SHORT, _Run
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.shared_memory import SlotViews

Put = tuple[Any, int, Any, str, Any]  # queue, count, value, origin, tags


def puts(ends: Ends, count: int) -> tuple[list[Put], list[int]]:
    """So many puts as they are heard, and how many each frame had."""
    found, frames = list[Put](), list[int]()
    while len(found) < count:
        match ends.heard.get(timeout=60):
            case "put", name, number, packed, origin, tags, _:
                found.append((name, number, packed.open(), origin, tags))
                frames.append(1)
            case "puts", name, counts, packets, origin, transit:
                found += [(name, number, pickle.loads(data), origin, None) for number, data in zip(counts, packets, strict=True)]
                frames.append(len(packets))
                assert transit.nbytes == sum(map(len, packets)) and transit.sent_ns > 0
    return found, frames


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()
    assert not made.errors


@pytest.mark.parametrize("seed", range(3))
def test_every_put_is_heard_once_and_in_order(ends: Ends, seed: int) -> None:
    rng, put = random.Random(seed), list[Put]()
    for i in range(800):
        size = rng.choice((0, 3, 100, SHORT + 1, 300_000 if i % 40 == 0 else 0))
        value: Any = [np.full(3 + size // 8, i) if rng.random() < 0.1 else (i, bytes(size))]
        tags = (i,) if rng.random() < 0.1 else None
        put.append((f"queue {rng.random() < 0.2}", rng.randint(1, 9), value, "mouth", tags))
        packed, _ = Packed.of_items(value, "queue")
        ends.link.gather(("put", put[-1][0], put[-1][1], packed, "mouth", tags))
        if rng.random() < 0.05:
            ends.link.gather(("close", i))
        if rng.random() < 0.05:
            ends.link.flush()
    ends.link.flush()
    found, frames = puts(ends, 800)
    for heard, sent in zip(found, put, strict=True):
        assert heard[:2] == sent[:2] and heard[3:] == sent[3:]
        assert np.array_equal(heard[2][0], sent[2][0]) if isinstance(sent[2][0], np.ndarray) else heard[2] == sent[2]
    assert 2 < max(frames) <= MOST_TOGETHER


def test_a_single_one_is_not_held_back_and_many_fill_several_frames(ends: Ends) -> None:
    for n in (1, MOST_TOGETHER + 1, 2 * MOST_TOGETHER):
        for i in range(n):
            ends.link.gather(("put", "queue", 1, Packed.of([i]), "mouth", None))
        assert ends.link.has_gathered()
        ends.link.flush()
        assert not ends.link.has_gathered()
        assert puts(ends, n)[1] == [MOST_TOGETHER] * (n // MOST_TOGETHER) + [1] * (n % MOST_TOGETHER)


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
            # no buffer of these frames lies in a slot
            reader = FrameReader(stream, SlotViews.__new__(SlotViews), Receivers("127.0.0.1"), "unix")
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
