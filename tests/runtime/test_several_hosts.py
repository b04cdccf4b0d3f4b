"""The contract of channels when workers live on several hosts: exactly once, in order, exact gets, and never a hang."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flows import Numbers, apart
from mesh import MeshExecutor
from sessions import in_time, opened, session_of, step_within
from sweeps import sweep

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import ExecutorError, WorkerError
from rlinf_lab.runtime.host.channels.credit import Credits
from rlinf_lab.runtime.host.driver import waiting

sys.path.insert(0, str(Path(__file__).parent.parent / "planning"))
from driving import hold_up_threads
from random_flows import scenario
from test_parity import ITERATIONS, assert_contract, assert_once, in_made_up_time, movable, turn_over


@sweep(60, 2_060)
def test_random_flows_keep_the_contract(seeds: range) -> None:
    for seed in seeds:
        log: list = []
        made, delay = scenario(seed, log, unit=1e-5), random.Random(seed).choice((0.0, 0.0005)) if seed >= 60 else 0.0
        with opened("mesh", made.flow, made.plan, delay, seed=seed) as session:
            for _ in range(ITERATIONS):  # they overlap when the plan says so
                in_time(session.submit, session)
            in_time(session.finish, session)
        assert_contract(made, log)


@pytest.mark.parametrize("kind", ["mock", "mesh"])
@sweep(40, 120, first=80_000)
def test_each_item_is_done_once_whoever_comes_and_goes(kind: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one host threads are held up at random places."""
    changes = tried = 0
    if kind == "mock":
        hold_up_threads(monkeypatch, 7, 0.05, 0.0001)
    for seed in seeds:
        log: list = []
        made = scenario(seed, log, *([1e-4] if kind == "mesh" else []))
        if (ranks := movable(made)) and made.stages[0].kind == "source":
            tried += 1
            changes += turn_over(made, ranks, random.Random(seed), partial(MeshExecutor, delay=0.0003, seed=seed) if kind == "mesh" else in_made_up_time)
            assert_once(made, log)
    assert tried > 8 and changes > 20, "some came and went"


FREED = threading.Event()


class Ends(Worker):
    def computes_on(self, out: Outbox) -> None:
        out.put(0)  # it has begun
        assert FREED.wait(60)

    def fails(self, inbox: Inbox) -> None:
        inbox.get(1)
        raise ValueError("as it was asked to")


def test_credits_are_saved_up_to_half_of_a_share_or_until_somebody_is_stalled() -> None:
    said: list[int] = []
    post: Any = SimpleNamespace(on=lambda *_: None, say=lambda _, credit: said.append(credit.n))
    around: Any = SimpleNamespace(apply=lambda _: None, engine=SimpleNamespace(remote_stall=lambda _: ()))
    queue: Any = SimpleNamespace(index=0, name=None, share=6, debt={"far": 1}, saved={}, stalled={}, credited=Counter())
    for n in (0, 1, 1, 1, 1, 1):  # the first that is taken had been given ahead
        Credits(around, around, post).give(queue, {"far": n})
    assert said == [3]
    queue.stalled["far"] = None
    for n in (0, 1):
        Credits(around, around, post).give(queue, {"far": n})
    assert said == [3, 1] and queue.credited == {"far": 4}


def test_the_next_step_waits_for_those_that_compute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    FREED.clear()
    flow = Workflow("spread")
    items, maker, reader = flow.channel("items"), flow.worker(Ends, name="maker"), flow.worker(Ends, name="reader")
    flow.iteration(lambda is_quick=False: 5 if is_quick else (maker.computes_on(items), reader.fails(items))[1])
    with opened("mesh", flow, apart(flow), 0.0) as s:
        monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.2)
        with pytest.raises(WorkerError, match="as it was asked to") as caught:
            step_within(s)
        assert "Still busy, and not interruptible: maker[0].computes_on" in caught.value.__notes__[0]
        threading.Timer(0.2, FREED.set).start()
        assert step_within(s, True) == 5 and FREED.is_set()  # the step had to wait for that
    with pytest.raises(ExecutorError, match="The session has ended"):
        step_within(s, True)


class Asks(Worker):
    def ask(self, answers: Inbox, questions: Outbox) -> None:
        for _ in range(100):
            questions.put_all(iter(range(3)))  # one by one: the first leaves at once, the others may wait for co-location
            answers.get(3)


def test_what_a_rank_has_put_is_sent_before_it_lets_go_of_its_device() -> None:
    """Who gets the device may keep the sender from its core, for as long as a step of a simulator."""
    flow = Workflow("asking")
    forth, back = flow.channel("forth"), flow.channel("back")
    asks, answers = flow.worker(Asks, name="asks"), flow.worker(Numbers, name="answers")
    flow.iteration(lambda: (asks.ask(back, forth), answers.pass_on(forth, back)))
    executor = MeshExecutor(flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"asks": [0], "answers": [1]}, micro_batch=1), slow_sending=0.0005)
    held: dict[str, list[bool]] = {}
    for name, host in executor.hosts.items():

        def watched(to: str, message: tuple, host: Any = host, name: str = name) -> None:
            if message[0] == "put":
                held.setdefault(name, []).append(any(p.machine.holding for p in host.state.ranks))

        executor.before_sending[name] = watched
    with session_of(executor) as s:
        step_within(s)
    assert sum(map(len, held.values())) == 600
    assert all(all(sent) for sent in held.values())
