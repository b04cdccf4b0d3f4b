"""Ranks that come and go at random moments in random workflows, with threads held up: each item exactly once, in every channel."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest
from driving import hold_up_threads, recorded
from random_flows import Scenario, scenario
from sweeps import sweep

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.layout import checked_layout, refuse_fixed_place
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock

ITERATIONS = 3


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_up_threads(monkeypatch, 11, 0.1, 0.0002)


def movable(made: Scenario) -> list[tuple[str, int]]:
    """The ranks that may come and go."""
    layout, found = checked_layout(made.flow, made.plan), []
    for worker in layout.graph.workers:
        for rank in range(layout.ranks(worker)):
            try:
                refuse_fixed_place(layout, "test", worker, rank)
            except PlanError:
                continue
            found.append((worker, rank))
    return found


@pytest.mark.usefixtures("held_up")
@sweep(40, 120, first=80_000)
def test_each_item_is_done_once_whoever_comes_and_goes(seeds: range) -> None:
    changes, tried = 0, 0
    for seed in seeds:
        log: list = []
        made = scenario(seed, log)
        if not (ranks := movable(made)) or made.stages[0].kind != "source":
            continue
        tried += 1
        changes += turn_over(made, ranks, random.Random(seed))
        assert_once(made, log)
    assert tried > 8 and changes > 20, "some came and went"


def turn_over(made: Scenario, ranks: list[tuple[str, int]], rng: random.Random) -> int:
    """Run it; how many came or went."""
    absent: dict[str, list[int]] = {}
    for worker, rank in ranks:
        if rng.random() < 0.4:
            absent.setdefault(worker, []).append(rank)
    executor = LocalExecutor(made.flow, made.plan, MockClock(), absent=absent)
    executor.start()
    session, over = Session(executor), threading.Event()
    changes: list[Any] = []
    failures: list[BaseException] = []

    def change() -> None:
        try:
            while not over.is_set():
                worker, rank = rng.choice(ranks)
                getattr(session, "leave" if rank in session.members[worker] else "join")(worker, rank)
                changes.append(worker)
                over.wait(rng.random() * 0.002)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(ITERATIONS):
            session.submit()
        session.finish()
    finally:
        over.set()
        thread.join(30)
        assert executor.stop() == Ended() and not failures, failures
    timeline = recorded(made.plan, executor)
    assert timeline.bubble_sum_error_ns() == 0
    return len(changes)


def assert_once(made: Scenario, log: list) -> None:
    """What the ranks of the source produced, all channels carried, once; those of a rank are all there or none, iteration by iteration."""
    received = {c: Counter(item for entry in log if entry[0] == c for item in entry[3]) for s in made.stages for c in s.inputs}
    first = received[made.stages[0].outputs[0]]
    assert all(items == first for items in received.values()), (made.seed, received)
    for rank in range(made.plan.ranks("source")):
        times = {first[rank, i] for i in range(made.stages[0].count)}
        assert len(times) == 1 and times <= set(range(ITERATIONS + 1)), (made.seed, rank, first)
        assert rank or times == {ITERATIONS}, (made.seed, first)
