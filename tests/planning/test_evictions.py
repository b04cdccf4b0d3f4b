"""Who leaves a device for whom: as few as make room, the longest there first, never one at work; and streams that somebody joins."""

from __future__ import annotations

import pytest

from rlinf_lab.planning.engine.engine import Do, Engine, Event


def leaving(sizes: list[int], coming: int, memory: int, fixed: tuple[int, ...] = (), working: int = 0) -> list[int]:
    """Who is moved off the device, one after another there, when one more comes."""
    engine = Engine(1, memory)
    for size in sizes:
        engine.add_process((0,), size=size, offloadable=len(engine.processes) not in fixed)
    newcomer = engine.add_process((0,), size=coming, working=working)
    for process in range(len(sizes)):
        engine.settle([(process, Event.START, 0, 1)])
        engine.settle([(process, Event.ONLOADED, -1, 0)])
        engine.settle([(process, Event.DONE, 0, 0)])
    return [process for do, process, _, _ in engine.settle([(newcomer, Event.START, 0, 1)]) if do == Do.OFFLOAD]


@pytest.mark.parametrize(
    ("sizes", "coming", "memory", "fixed", "working", "leave"),
    [
        ([1, 1, 1], 1, 3, (), 0, [0]),  # one is enough
        ([1, 1, 1], 1, 4, (), 0, []),
        ([1, 1, 1], 2, 3, (), 0, [0, 1]),
        ([2, 1, 1], 2, 4, (), 0, [0]),
        ([1, 2, 1], 2, 4, (), 0, [0, 1]),
        ([1, 1, 1], 1, 3, (0,), 0, [1]),  # who cannot leave stays
        ([0, 1, 1], 1, 2, (), 0, [1]),  # who takes nothing is not in the way
        ([1, 1, 1], 1, 4, (), 1, [0]),  # what it needs while it works counts
    ],
)
def test_as_few_leave_as_make_room(
    sizes: list[int], coming: int, memory: int, fixed: tuple[int, ...], working: int, leave: list[int]
) -> None:
    assert leaving(sizes, coming, memory, fixed, working) == leave


def moved(said: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    return [one for one in said if one[0] in (Do.STORE, Do.RESUME)]


@pytest.mark.parametrize("widen", [False, True])
def test_where_nothing_moves_the_shallowest_full_channel_takes_one_more_or_grows(widen: bool) -> None:
    engine = Engine(0)
    for _ in range(2):
        engine.add_process()
    deep, shallow = (engine.open_channel(engine.open_stream(capacity)) for capacity in (3, 2))
    engine.settle([(p, Event.START, 0, 0) for p in range(2)])
    for process, channel, fills in ((1, deep, 3), (0, shallow, 2)):
        engine.settle([(process, Event.PUT, channel, fills)])
        assert engine.settle([(process, Event.PUT, channel, 1)]) == [], "it is full"
    assert moved(engine.relieve(widen)) == [(Do.STORE, 0, shallow, 2), (Do.RESUME, 0, 0, 0)]
    assert [engine.depth(c) for c in (deep, shallow)] == [3, 3] and engine.waiting_at(deep) == (0, 1)
    assert engine.channels[shallow].capacity == (2 * 2 + 1 if widen else 2)
    assert moved(engine.relieve(spared=[deep])) == []
    assert moved(engine.relieve()) == [(Do.STORE, 1, deep, 3), (Do.RESUME, 1, 0, 0)]


def test_where_nothing_moves_and_nothing_is_full_the_first_who_waits_for_a_batch_gets_what_is_there() -> None:
    engine = Engine(0)
    for _ in range(3):
        engine.add_process()
    channels = [engine.open_channel(engine.open_stream(None)) for _ in range(3)]
    engine.settle([(p, Event.START, 0, 0) for p in range(3)])
    for process, channel, n, there in ((0, 0, -4, 0), (1, 1, 5, 2), (2, 2, -4, 3)):  # nothing there; exactly five; at most four
        engine.remote_put(channels[channel], there) if there else None
        assert engine.settle([(process, Event.GET, channels[channel], n)]) == []
    assert engine.relieve() == [(Do.BOUND, 2, 0, 3), (Do.RESUME, 2, 0, 3)]
    assert [p.state for p in engine.processes] == ["get", "get", "run"] and engine.relieve() == []
