"""Queues as one host keeps them: opened once, dropped where nobody reads, gone with their iteration, payloads and all."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_lab.planning.engine.engine import Engine
from rlinf_lab.runtime.host.state.queues import MOST_TOGETHER, Queue, QueueTable
from rlinf_lab.runtime.transport.item_batches import Parcel
from rlinf_lab.runtime.transport.routing import QueueId
from rlinf_lab.workflow.specs import ChannelSpec

SHARES = {"x": 6, "endless": None}


@pytest.fixture
def table() -> Iterator[QueueTable]:
    """Of host "here". Channel x has room for 12, half of it for each of two hosts."""
    spec = ChannelSpec("x", capacity=12)
    layout: Any = SimpleNamespace(graph=SimpleNamespace(channel=lambda name: spec), capacity={"x": 12}.get, is_shared=lambda name: True)
    router: Any = SimpleNamespace(share=SHARES.get, is_numbered=lambda name: False)
    made = QueueTable(layout, Engine(0), router, "here")
    yield made
    made.retire(99)
    engine = made._engine
    assert not (made._queues or made._streams or made._by_index or made._abandoned or engine.channels or engine.streams), "all is freed"


def name(channel: str = "x", iteration: int = 0, home: str = "here", key: int = -1) -> QueueId:
    return QueueId(channel, iteration, 0, home, key)


def filled(queue: Queue, *counts: int) -> Queue:
    for count in counts:
        queue.store(Parcel(count, "there", list(range(count))), None)
        queue.put += count
    return queue


def test_a_queue_is_opened_once_and_gone_with_its_iteration(table: QueueTable) -> None:
    one, other = table.queue(name(key=0)), table.queue(name(key=1))
    assert table.queue(name(key=0)) is one and table.of(one.index) is one and table.of(other.index) is other
    assert one.stream == other.stream and table.queue(name(iteration=1)).stream != one.stream
    last = filled(table.queue(name(iteration=2)), 2)
    assert not table.is_retired(0)
    for over in (1, 0):  # the second comes late
        table.retire(over)
        assert [table.is_retired(i) for i in range(3)] == [True, True, False]
    assert table.queue(name(iteration=2)) is last and list(table._engine.channels) == [last.index]
    assert [row["iteration"] for row in table.rows()] == [2]


@pytest.mark.parametrize("opened", [True, False])
def test_what_nobody_reads_is_dropped_whether_its_queue_is_there_already_or_not(table: QueueTable, opened: bool) -> None:
    other, later, stub = (filled(table.queue(n), 3) for n in (name("endless"), name(iteration=1), name(home="there")))
    if opened:
        filled(table.queue(name()), 2, 3)
    assert table.abandon("x", 0, True) == ([table.queue(name())] if opened else [])
    left = table.queue(name())
    assert left.abandoned and not left.parcels
    assert opened or table._engine.channels[left.index].capacity > 10**6, "whatever is put is accepted"
    assert not any(q.abandoned for q in (other, later, stub)) and all(len(q.parcels) == 1 for q in (other, later, stub))
    assert table.left("x", 0) == (5 if opened else 0) and table.left("x", 1) == 3, "what was dropped counts"
    table.retire(0)
    assert not table.queue(name(iteration=2)).abandoned


@pytest.mark.parametrize(("channel", "portion"), [("x", 3), ("endless", MOST_TOGETHER)])
def test_one_half_of_the_room_of_another_host_travels_while_the_other_is_used_up(table: QueueTable, channel: str, portion: int) -> None:
    there, here = table.queue(name(channel, home="there")), table.queue(name(channel))
    assert (there.portion, here.portion, there.share) == (portion, 1, SHARES[channel])
    assert (there.stub, here.stub) == (True, False) and table.at_home(channel, 0) == [here]


@pytest.mark.parametrize("order", ["fifo", "lifo", "priority", "oldest_group"])
def test_only_at_home_and_only_in_another_order_than_of_their_coming_items_are_sorted(table: QueueTable, order: str) -> None:
    table._layout.graph.channel = lambda name: ChannelSpec(name, order=order, group=2, gather="readers" if "group" in order else "writers")
    there, here = table.queue(name(home="there")), table.queue(name())
    assert there.ordered is None and (here.ordered is None) == (order == "fifo")
