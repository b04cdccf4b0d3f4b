"""Cost of the engine's decision, as the number of workers grows."""

from __future__ import annotations

import time

from harness import Case

from rlinf_lab.planning.engine import Engine, Event


def microseconds_per_event(pairs: int, rounds: int) -> float:
    """Producer and consumer pairs, each on its own device, one item at a time: a put and a get are two events."""
    engine = Engine(2 * pairs)
    couples = []
    for i in range(pairs):
        a, b = engine.add_process((2 * i,)), engine.add_process((2 * i + 1,))
        couples.append((a, b, engine.open_channel(engine.open_stream(4))))
        engine.settle([(a, Event.START, -1, 1)])
        engine.settle([(b, Event.START, -1, 1)])
    turns = max(1, rounds // pairs)
    start = time.perf_counter()
    for _ in range(turns):
        for a, b, channel in couples:
            engine.settle([(a, Event.PUT, channel, 1)])
            engine.settle([(b, Event.GET, channel, 1)])
    return (time.perf_counter() - start) / (2 * turns * pairs) * 1e6


def cases(smoke: bool) -> list[Case]:
    rounds = 500 if smoke else 100_000
    sizes = (5, 50) if smoke else (5, 50, 500, 2_000)
    return [
        Case(
            "engine_decision", "us an event", lambda: microseconds_per_event(5, rounds), target="<= 5", target_of="value",
            curve=lambda: [[2 * n, microseconds_per_event(n, rounds)] for n in sizes], note="curve: number of workers, us",
        ),
    ]  # fmt: skip
