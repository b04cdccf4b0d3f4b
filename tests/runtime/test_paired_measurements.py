"""What messages cost and how cores slow each other down is told right on a machine that is faster in one second than in the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.runtime.profiling.crowding import _factors
from rlinf_lab.runtime.profiling.messages import ROUNDS, _cost

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
