"""A put that the engine takes at once leaves it as settling the same event does, and gives nobody anything to do."""

from __future__ import annotations

import random
from typing import Any

from rlinf_lab.planning.engine import ALL, Do, Engine, Event


def made(capacity: int | None, producers: int) -> tuple[Engine, int]:
    engine = Engine(1)
    for _ in range(producers + 1):
        engine.add_process()
    channel = engine.open_channel(engine.open_stream(capacity))
    engine.settle([(p, Event.START, 0, 0) for p in range(producers + 1)])
    return engine, channel


def state(engine: Engine, channel: int) -> tuple[Any, ...]:
    queue = engine.channels[channel]
    return queue.head, queue.tail, [p.state for p in engine.processes], engine.waiting()


def test_at_once_or_settled_the_engine_is_the_same() -> None:
    assert sum(taken_at_once(random.Random(seed)) for seed in range(200)) > 200


def taken_at_once(rng: random.Random) -> int:
    """Two engines hear the same random puts and gets, one of them the puts at once where it takes them; how many those were."""
    capacity, producers = rng.choice((1, 2, 4, None)), rng.randint(1, 3)
    (one, channel), (other, same) = made(capacity, producers), made(capacity, producers)
    taken = 0
    for _ in range(80):
        running = [p.index for p in one.processes if p.state == "run"]
        if not running:
            break
        process = rng.choice(running)
        if process < producers:
            n = rng.randint(1, 2)
            settled = one.settle([(process, Event.PUT, channel, n)])
            first = other.put_at_once(process, same, n)
            if first < 0:
                assert settled == other.settle([(process, Event.PUT, same, n)])
            else:
                taken += 1
                assert settled == [(Do.STORE, process, channel, first), (Do.RESUME, process, 0, 0)]
        else:
            wanted = rng.choice((1, 2, -2, ALL))
            assert one.settle([(process, Event.GET, channel, wanted)]) == other.settle([(process, Event.GET, same, wanted)])
        assert state(one, channel) == state(other, same)
    return taken


def test_where_somebody_waits_or_items_weigh_it_is_not_taken_at_once() -> None:
    engine, channel = made(None, 2)
    engine.settle([(2, Event.GET, channel, 1)])
    assert engine.put_at_once(0, channel, 1) == -1  # its item is wanted
    engine.settle([(0, Event.PUT, channel, 1)])
    engine.processes[0].weights = [3]
    assert engine.put_at_once(0, channel, 1) == -1
    engine.processes[0].weights = None
    assert engine.put_at_once(0, channel, 1) == 1
    full, channel = made(1, 2)
    assert full.put_at_once(0, channel, 1) == 0 and full.put_at_once(1, channel, 1) == -1
