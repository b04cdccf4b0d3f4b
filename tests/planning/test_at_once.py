"""A put or a get that the engine takes at once leaves it as settling the same event does, and gives nobody else anything to do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rlinf_lab.planning.engine import ALL, Do, Engine, Event


def made(capacity: int | None, producers: int, consumers: int = 1, devices: int = 0, whole: bool = False) -> tuple[Engine, int]:
    """Consumers share ``devices`` in turn; with none they have none."""
    engine = Engine(max(1, devices))
    for p in range(producers + consumers):
        engine.add_process((p % devices,) if devices and p >= producers else ())
    channel = engine.open_channel(engine.open_stream(capacity, whole=whole))
    engine.settle([(p, Event.START, 0, int(p >= producers and devices > 0)) for p in range(producers + consumers)])
    return engine, channel


def state(engine: Engine, channel: int) -> tuple[Any, ...]:
    queue = engine.channels[channel]
    ranks = [(p.state, p.lo, p.hi, p.granted, p.holding) for p in engine.processes]
    return queue.head, queue.tail, queue.remote_stalled, ranks, engine.waiting(), engine.holder(0)


@pytest.mark.parametrize("kind", ["puts", "gets"])
def test_at_once_or_settled_the_engine_is_the_same(kind: str) -> None:
    assert sum(taken_at_once(random.Random(seed))[kind] for seed in range(300)) > 200


def taken_at_once(rng: random.Random) -> dict[str, int]:
    """Two engines hear the same random puts and gets, one of them those at once that it takes; how many of each kind those were."""
    producers, consumers = rng.randint(1, 3), rng.randint(1, 2)
    given = rng.choice((1, 2, 4, None)), producers, consumers, rng.randint(0, 2), rng.random() < 0.2
    (one, channel), (other, same) = made(*given), made(*given)
    taken = dict.fromkeys(("puts", "gets"), 0)
    for _ in range(80):
        running = [p.index for p in one.processes if p.state == "run"]
        if not running:
            break
        process = rng.choice(running)
        if process < producers:
            n = rng.randint(1, 2)
            event, first = (process, Event.PUT, channel, n), other.put_at_once(process, same, n)
            follows = [(Do.STORE, process, channel, first), (Do.RESUME, process, 0, 0)]
        else:
            n = rng.choice((0, 1, 2, -2, ALL))
            event, first = (process, Event.GET, channel, n), other.get_at_once(process, same, n)
            follows = [(Do.BOUND, process, first, first + abs(n)), (Do.RESUME, process, first, first + abs(n))]
        settled = one.settle([event])
        if first < 0:
            assert settled == other.settle([event])
        else:
            taken["puts" if process < producers else "gets"] += 1
            assert settled == follows
        assert state(one, channel) == state(other, same)
    return taken


def test_a_get_gives_its_devices_to_whoever_waits_for_them() -> None:
    engine, channel = made(None, 1, 2, devices=1)
    engine.settle([(0, Event.PUT, channel, 2)])
    assert [p.state for p in engine.processes] == ["run", "run", "lock"]
    assert engine.get_at_once(1, channel, 1) == -1


def test_what_lives_elsewhere_or_is_weighed_is_not_given_at_once() -> None:
    engine = Engine(1)
    for _ in range(2):
        engine.add_process()
    stub, weighed = (engine.open_channel(engine.open_stream(None), is_stub) for is_stub in (True, False))
    engine.settle([(p, Event.START, 0, 0) for p in (0, 1)])
    engine.settle([(0, Event.PUT, stub, 1)])
    assert engine.get_at_once(1, stub, 1) == -1
    engine.processes[0].weights = [3]
    engine.settle([(0, Event.PUT, weighed, 1)])
    assert engine.get_at_once(1, weighed, 1) == -1


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
