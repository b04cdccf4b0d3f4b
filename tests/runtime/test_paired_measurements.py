"""What messages cost and how cores slow each other down is told right on a machine that is faster in one second than in the next."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.planning.profile.profile import Message
from rlinf_lab.runtime.profiling import crowding, messages
from rlinf_lab.runtime.profiling.crowding import Crowd, _factors, computed
from rlinf_lab.runtime.profiling.messages import ROUNDS, PingPong, _cost
from rlinf_lab.runtime.run.observed_session import ObservedSession
from rlinf_lab.runtime.run.run import session

SHIFTS = [(0,), (1,), (2,), (3,), (0, 1), (0, 1, 2, 3)]
PACE = st.floats(0.5, 2.0)


@given(st.lists(PACE, min_size=2, max_size=12), st.lists(PACE, min_size=4, max_size=4), st.floats(1, 2), st.floats(1, 2))
def test_crowding_is_told_whatever_the_pace_of_a_round_and_of_a_core(rounds: list[float], cores: list[float], two: float, more: float) -> None:
    true = {1: 1.0, 2: two, 4: two * more}
    spent = {
        (number * len(SHIFTS) + i, rank): pace * cores[rank] * true[len(shift)]
        for number, pace in enumerate(rounds)
        for i, shift in enumerate(SHIFTS)
        for rank in shift
    }
    assert _factors(spent, SHIFTS) == pytest.approx([1.0, two, two * more])


def test_a_disturbed_round_and_the_first_one_do_not_count() -> None:
    spent = {(i, rank): 1.0 + 0.5 * (len(shift) > 1) for i, shift in enumerate(SHIFTS * 4) for rank in shift}
    for disturbed in (range(6), range(10, 12)):  # warming up; somebody else worked at the end of the second round
        spent.update({(i, rank): 9.0 for i, rank in spent if i in disturbed})
    assert _factors(spent, SHIFTS) == pytest.approx([1.0, 1.5, 1.5])


@given(st.lists(PACE, min_size=2, max_size=12), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_messages_are_told_whatever_the_pace_of_the_work_between_them(paces: list[float], busy: float, latency: float) -> None:
    hops = 2 * ROUNDS
    together = {i: 0.06 * pace for i, pace in enumerate(paces)}
    apart = {i: t + hops * 2 * busy for i, t in together.items()}
    elapsed = {i: a + hops * latency for i, a in apart.items()}
    elapsed[0] += 1.0  # warms up
    cost = _cost("unix", together, apart, elapsed)
    assert (cost.busy_s, cost.latency_s) == (pytest.approx(busy, abs=1e-9), pytest.approx(latency, abs=1e-9))


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_what_is_told_is_what_the_recorded_iterations_took(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (crowding, messages):
        monkeypatch.setattr(module, "TypicalWork", lambda: SimpleNamespace(do=lambda times: sum(range(times))))
    monkeypatch.setattr(messages, "ROUNDS", 3)
    monkeypatch.setattr(ObservedSession, "transports", lambda _: pd.DataFrame({"channel": ["forth", "back"], "transport": [way, {"unix": "tcp", "tcp": "unix"}[way]]}))
    monkeypatch.setattr(messages, "session", lambda flow, plan, *_: session(flow, plan, emulate=True))  # threads stand for processes
    crowd, pings = Crowd("local", ["cpu:0", "cpu:1", "cpu:2"], emulate=True), PingPong("processes", ["cpu:0", "cpu:1"])
    with crowd, pings:
        for _ in range(4):
            crowd.round(), pings.round()
    each = [np.reshape(list(computed(copy.timeline).values()), (4, -1))[1:] for copy in crowd._copies]  # rounds, steps
    two = statistics.median([*(each[0][:, 1] / each[0][:, 0]), *(each[1][:, 1] / each[1][:, 0])])
    three = statistics.median(np.concatenate([of[:, -1] / of[:, 0] for of in each]).tolist())
    assert crowd.factors() == pytest.approx((1.0, max(1.0, two), max(1.0, two, three)))
    together, apart = (np.array([*computed(one.timeline).values()])[1:] for one in pings._sessions)
    busy, late = statistics.median(apart - together) / 12, statistics.median(pings._sessions[1].timeline.iterations()["seconds"].to_numpy()[1:] - apart) / 6
    assert pings.costs() == (Message(way, pytest.approx(max(0.0, late)), pytest.approx(max(0.0, busy))),)
    assert crowd._threads._shutdown and all(one._executor.driver_host.stopping for one in (*crowd._copies, *pings._sessions))
