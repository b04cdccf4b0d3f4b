"""A put or a get that the engine takes at once leaves it as settling the same event does, and gives nobody else anything to do."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from random_profiles import any_flow
from six_workers import six_workers
from sweeps import sweep

from rlinf_lab.planning.engine.engine import ALL, Do, Engine, Event
from rlinf_lab.planning.engine.fast_path import NOBODY, NOT_AT_ONCE
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.simulator.batched_puts import PutsInARow


def made(capacity: int | None, producers: int, consumers: int = 1, devices: int = 0, whole: bool = False) -> tuple[Engine, int]:
    """Consumers share ``devices`` in turn; with none they have none."""
    engine = Engine(max(1, devices))
    for p in range(producers + consumers):
        engine.add_process((p % devices,) if devices and p >= producers else ())
    channel = engine.open_channel(engine.open_stream(capacity, whole=whole))
    engine.settle([(p, Event.START, 0, int(p >= producers and devices > 0)) for p in range(producers + consumers)])
    return engine, channel


@sweep(250, 1000)
def test_at_once_or_settled_the_engine_is_the_same(seeds: range) -> None:
    taken = sum((changed_hands(random.Random(seed)) for seed in seeds), Counter[str]())
    assert min(taken.values()) > len(seeds) // 8 and len(taken) == 8, taken


def cell(rng: random.Random) -> tuple[Engine, list[int]]:
    """Ranks that put and take, of which some share devices, some need two, some have none; three channels, of which one may give only whole batches."""
    ranks, devices, memory = rng.randint(2, 4), rng.randint(1, 3), rng.choice((None, None, 1, 4))
    engine = Engine(devices, memory)
    for priority in range(ranks):
        mine = rng.sample(range(devices), min(devices, rng.choice((0, 1, 1, 1, 2))))
        engine.add_process(mine, priority, size=int(memory is not None), working=int(memory is not None and rng.random() < 0.2))
    streams = [engine.open_stream(rng.choice((1, 3, None)), whole=rng.random() < 0.1) for _ in range(3)]
    channels = [engine.open_channel(s, rng.random() < 0.05, own=rng.random() < 0.5) for s in streams]
    for channel in channels:
        if rng.random() < 0.05:
            engine.remote_stall(channel)
    return engine, channels


def changed_hands(rng: random.Random) -> Counter[str]:
    """Two engines hear the same random puts, gets, arrivals, switches, closings and withdrawals, one of them at once what it takes so; how many those were."""
    seed = rng.random()
    (one, channels), (other, _) = (cell(random.Random(seed)) for _ in range(2))
    begin = [(p.index, Event.START, 0, int(bool(p.devices) and rng.random() < 0.8)) for p in one.processes]
    taken = Counter[str]()
    follow(one, other, one.settle(list(begin)), other.settle(list(begin)))
    for stream in list(one.streams):
        follow(one, other, one.seal(stream, 1), other.seal(stream, 1))
    for _ in range(100):
        running = [p.index for p in one.processes if p.state == "run"]
        waiting = [p.index for p in one.processes if p.state in ("get", "put", "lock")]
        wanted = [c for c in channels if one.channels[c].getters and not one.channels[c].stub]
        chance = rng.random()
        if wanted and chance < (0.03 if running else 0.5):
            arrives(one, other, rng.choice(wanted), rng.randint(1, 3), rng.random() < 0.1, taken)
        elif not running:
            follow(one, other, one.relieve(), other.relieve())
        elif chance < 0.035:
            stream = rng.choice([s for s in one.streams if not one.streams[s].ended] or [0])
            if stream:
                follow(one, other, one.close(stream), other.close(stream))
        elif chance < 0.08 and waiting:
            process = rng.choice(waiting)
            follow(one, other, one.cancel(process), other.cancel(process))
        elif chance < 0.12:
            in_a_row(one, other, rng.sample(running, rng.randint(1, len(running))), rng.choice(channels), rng.randint(1, 9), taken)
        elif chance < 0.55:
            process, n = rng.choice(running), rng.randint(1, 3)
            for engine in (one, other):
                engine.processes[process].weights = [3] * n if chance > 0.54 else None
            puts(one, other, process, rng.choice(channels), n, taken)
        else:
            n = rng.choice((1, 1, 2, -2)) if rng.random() < 0.85 else rng.choice((0, ALL, ALL + 2, ALL + 4))
            gets(one, other, rng.choice(running), rng.choice(channels), n, taken)
        assert books(one) == books(other)
    return taken


def arrives(one: Engine, other: Engine, channel: int, n: int, weighed: bool, taken: Counter[str]) -> None:
    weights = [3] * n if weighed else None
    first, settled = one.remote_put(channel, n, weights)
    process = -1 if weighed else other.arrival_at_once(channel, n)
    if process < 0:
        same, follows = other.remote_put(channel, n, weights)
        assert first == same
        follow(one, other, settled, follows)
    else:
        taken["arrives"] += 1
        p = other.processes[process]
        assert settled == [(Do.BOUND, process, p.lo, p.hi), (Do.RESUME, process, p.lo, p.hi)]


def in_a_row(one: Engine, other: Engine, putters: list[int], channel: int, rounds: int, taken: Counter[str]) -> None:
    for _ in range(other.puts_at_once(putters, {channel: len(putters)}, rounds)):
        taken["in a row"] += 1
        settled = one.settle([(p, Event.PUT, channel, 1) for p in putters])
        assert [(do, p) for do, p, *_ in settled] == [(do, p) for p in sorted(putters) for do in (Do.STORE, Do.RESUME)], "nothing for anybody else"


def puts(one: Engine, other: Engine, process: int, channel: int, n: int, taken: Counter[str]) -> None:
    first = other.put_at_once(process, channel, n)
    reader = other.put_to_waiting(process, channel, n) if first < 0 else -1
    settled = one.settle([(process, Event.PUT, channel, n)])
    if first >= 0:
        taken["puts"] += 1
        assert settled == [(Do.STORE, process, channel, first), (Do.RESUME, process, 0, 0)]
    elif reader < 0:
        follow(one, other, settled, other.settle([(process, Event.PUT, channel, n)]))
    else:
        q, first = other.processes[reader], other.channels[channel].tail - n
        taken["goes on" if q.state == "run" else "waits for its device"] += 1
        follows = [(Do.STORE, process, channel, first), (Do.RESUME, process, 0, 0), (Do.BOUND, reader, q.lo, q.hi)]
        assert settled == follows + [(Do.RESUME, reader, q.lo, q.hi)] * (q.state == "run")


def gets(one: Engine, other: Engine, process: int, channel: int, n: int, taken: Counter[str]) -> None:
    first = other.get_at_once(process, channel, n)
    holder = other.wait_at_once(process, channel, n) if first < 0 else NOT_AT_ONCE
    settled = one.settle([(process, Event.GET, channel, n)])
    if first >= 0:
        taken["gets"] += 1
        assert settled == [(do, process, first, first + abs(n)) for do in (Do.BOUND, Do.RESUME)]
    elif holder == NOT_AT_ONCE:
        follow(one, other, settled, other.settle([(process, Event.GET, channel, n)]))
    else:
        taken["waits and nobody has it" if holder == NOBODY else "gives its device to another"] += 1
        assert settled == [(Do.RESUME, p.index, p.lo, p.hi) for p in other.processes if p.index == holder]


def follow(one: Engine, other: Engine, *said: list[tuple[int, int, int, int]]) -> None:
    """Both have said the same; whoever shall leave or come onto devices does so in both."""
    while said[0]:
        assert said[0] == said[1] and books(one) == books(other)
        moves = {Do.OFFLOAD: Event.OFFLOADED, Do.ONLOAD: Event.ONLOADED}
        events = [(process, moves[Do(do)], -1, 0) for do, process, _, _ in said[0] if do in moves]
        said = (one.settle(list(events)), other.settle(list(events))) if events else ([], [])


def books(engine: Engine) -> list[Any]:
    """All that an engine knows of its processes, channels and devices."""
    ranks = [[getattr(p, a) for a in ("state", "lo", "hi", "granted", "holding", "resident", "lock_key", "iteration")] for p in engine.processes]
    waiting = [([(g.index, n) for g, n in q.getters], [(p.index, n) for p, n in q.putters]) for q in all_queues(engine)]
    queues = [(q.head, q.tail, q.capacity, q.remote_stalled, q.weights and q.weights.total) for q in all_queues(engine)]
    held = engine._devices
    return [ranks, waiting, queues, engine.waiting(), [engine.holder(d) for d in range(len(held.queue))], held._arrivals, held.touched, held._used]


def all_queues(engine: Engine) -> list[Any]:
    return [queue for q in engine.channels.values() for queue in (q, *q.shares)]


def test_puts_of_a_row_end_before_the_item_that_somebody_waits_for() -> None:
    engine, channel = made(None, 1)
    engine.settle([(1, Event.GET, channel, 4)])
    assert engine.puts_at_once((0,), {channel: 1}, 9) == 3
    assert engine.puts_at_once((0,), {channel: 1}, 6) == 0
    full, channel = made(5, 2)
    assert full.puts_at_once((0, 1), {channel: 2}, 9) == 2  # room for five
    full.processes[0].weights = [3]
    assert full.puts_at_once((0,), {channel: 1}, 1) == 0


def test_a_simulation_in_which_puts_are_done_in_a_row_is_span_for_span_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def spans() -> list[list[bytes]]:
        found = []
        for profile, devices in [(six_workers(), 16), *(any_flow(seed)[:2] for seed in range(4))]:
            plans = plan(profile, devices, memory_gib=1000, quick=True, simulate=False)
            made = forecast(plans.best.candidate.placement, 2, plans.best.devices, detail=128).spans
            found.append([made[name].tobytes() for name in made.dtype.names or ()])
        return found

    settled, settle = list[int](), Engine.settle
    monkeypatch.setattr(Engine, "settle", lambda self, events: settled.append(len(events)) or settle(self, events))
    quick, few = spans(), len(settled)
    monkeypatch.setattr(PutsInARow, "done", lambda self, now: False)
    assert spans() == quick
    assert few < 0.4 * (len(settled) - few)


# --- who leaves a device for whom; streams that somebody joins; where nothing moves ---------------------------------
@sweep(100, 400)
def test_as_few_leave_as_make_room_who_came_first_before_the_others(seeds: range) -> None:
    """Who keeps nothing or cannot leave stays; of a cell that fits there is room for all; what it needs while it works counts."""
    left = Counter[int]()
    for rng in map(random.Random, seeds):
        memory, all_of_them, there = rng.randint(2, 5), range(rng.randint(3, 6)), list[int]()
        engine = Engine(1, memory)
        sizes, working, cells = ([rng.choice(some) for _ in all_of_them] for some in ((0, 1, 1, 2, 3), (0, 0, 1), (None, None, 0, 1)))
        fixed = {p for p in all_of_them if rng.random() < 0.15}
        for p in all_of_them:
            engine.add_process((0,), size=sizes[p], working=working[p], offloadable=p not in fixed, cell=cells[p])
        for who in rng.choices(all_of_them, k=12):
            mates = [p for p in all_of_them if p == who or cells[p] == cells[who] is not None]
            said = engine.settle([(who, Event.START, 0, 1)])
            while True:  # once more, where one of its cell has left
                come = [p for p in (mates if sum(sizes[p] for p in mates) <= memory else [who]) if p not in there] if who not in there else []
                may = [p for p in there if sizes[p] and p not in {*fixed, who}] if come or working[who] else []
                rest = [working[who] + sum(sizes[p] for p in (*come, *there) if p not in may[:n]) for n in range(len(may) + 1)]
                leave = next((may[:n] for n, units in enumerate(rest) if units <= memory), may)
                assert [p for do, p, *_ in said if do == Do.OFFLOAD] == leave
                left[len(leave)] += 1
                if not leave:
                    break
                for p in leave:
                    said = engine.settle([(p, Event.OFFLOADED, -1, 0)])
                there = [p for p in there if p not in leave]
            assert [p for do, p, *_ in said if do == Do.ONLOAD] == [who] * (who not in there)
            if who not in there:
                there.append(who)
                engine.settle([(who, Event.ONLOADED, -1, 0)])
            assert engine.processes[who].state == "run"
            engine.settle([(who, Event.DONE, -1, 0)])
    assert min(left[n] for n in range(3)) > len(seeds) // 10, left


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
