"""How often a rank may draw a picture."""

from __future__ import annotations

from rlinf_lab.runtime.host.pictures import PictureBudget

MS = 1_000_000


def test_quick_pictures_come_twice_a_second() -> None:
    budget, now, drawn = PictureBudget(), 0, 0
    while now < 10_000 * MS:
        if budget.wanted(now):
            drawn, now = drawn + 1, now + 2 * MS
            budget.drawn(now)
        now += 10 * MS
    assert drawn == 20


def test_slow_pictures_take_a_hundredth_of_the_time_after_the_first() -> None:
    budget, now, spent = PictureBudget(), 0, []
    while now < 60_000 * MS:
        if budget.wanted(now):
            spent.append(120 * MS)
            now += 120 * MS
            budget.drawn(now)
        now += 10 * MS
    assert 3 <= len(spent) <= 7 and sum(spent[1:]) <= 0.0101 * now


def test_who_was_asked_and_drew_nothing_is_asked_again() -> None:
    budget = PictureBudget()
    assert budget.wanted(0) and not budget.wanted(100 * MS) and budget.wanted(500 * MS)
