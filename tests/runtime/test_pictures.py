"""How often a rank may draw a picture."""

from __future__ import annotations

from rlinf_lab.runtime.host.pictures import PictureBudget

MS = 1_000_000


def test_quick_pictures_come_twice_a_second_and_slow_ones_take_a_hundredth_of_the_time_after_the_first() -> None:
    spent = {}
    for takes, until in ((2, 10_000), (120, 60_000)):
        budget, now, drawn = PictureBudget(), 0, 0
        while now < until * MS:
            if budget.wanted(now):
                drawn, now = drawn + 1, now + takes * MS
                budget.drawn(now)
            now += 10 * MS
        spent[takes] = drawn
    assert spent[2] == 20 and 3 <= spent[120] <= 7 and (spent[120] - 1) * 120 <= 0.0101 * now / MS


def test_who_was_asked_and_drew_nothing_is_asked_again() -> None:
    budget = PictureBudget()
    assert budget.wanted(0) and not budget.wanted(100 * MS) and budget.wanted(500 * MS)
