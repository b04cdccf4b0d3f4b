"""Cost of the engine's decision, as the number of workers grows; and of a meeting of two ranks."""

from __future__ import annotations

import time
from typing import Any

from harness import Case

import rlinf_lab as lab
from rlinf_lab.planning.engine.engine import Engine, Event


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


class Meets(lab.Worker):
    def meet(self, times: int) -> float:
        """Seconds of one meeting, when the first ones have been."""
        for _ in range(times // 10 + 1):
            self.exchange(None)
        start = time.perf_counter()
        for _ in range(times):
            self.exchange(None)
        return (time.perf_counter() - start) / times


def microseconds_per_meeting(times: int, executor: str, shares: bool) -> float:
    """Two ranks that do nothing else. ``shares``: another worker whose ranks may meet has the same devices, so these step aside and come back."""
    flow = lab.Workflow("meetings")
    meets = flow.worker(Meets, name="meets")
    both = [[0], [1]]
    places = {"meets": both}
    if shares:
        flow.worker(Meets, name="others")
        places["others"] = both

    @flow.iteration
    def iteration() -> Any:
        return meets.meet(times)

    with lab.session(flow, lab.ExecutionPlan("meetings", ("cpu:0", "cpu:1"), places), executor) as session:
        return max(session.step()) * 1e6


def meeting(executor: str, shares: bool, times: int) -> Case:
    name = f"meeting_{executor}{'_shared' * shares}"
    what = "another worker that meets has the same devices" if shares else "devices of their own"
    return Case(name, "us a meeting", lambda: microseconds_per_meeting(times, executor, shares), note=f"exchange() of 2 ranks, {what}")


def cases(smoke: bool) -> list[Case]:
    rounds = 500 if smoke else 100_000
    sizes = (5, 50) if smoke else (5, 50, 500, 2_000)
    times = 20 if smoke else 2_000
    return [
        *(meeting(executor, shares, times) for executor in ("local", "processes") for shares in (False, True)),
        Case(
            "engine_decision", "us an event", lambda: microseconds_per_event(5, rounds), target="<= 5", target_of="value",
            curve=lambda: [[2 * n, microseconds_per_event(n, rounds)] for n in sizes], note="curve: number of workers, us",
        ),
    ]  # fmt: skip
