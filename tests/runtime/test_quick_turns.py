"""Threads wait less for the interpreter for a moment, and as long as before afterwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from rlinf_lab.runtime.run.turns import QUICK_SECONDS, quick_turns


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def now() -> float:
    return round(sys.getswitchinterval(), 6)


def test_several_at_a_time_in_any_order_also_after_an_error() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with quick_turns():
            begun.set()
            go_on.wait(60)

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError), quick_turns():
        thread.start()
        assert begun.wait(60)
        raise KeyError
    assert now() == QUICK_SECONDS  # the other one has not done
    go_on.set()
    thread.join(60)
    assert now() == 0.005


def test_what_somebody_sets_meanwhile_stays() -> None:
    with quick_turns():
        sys.setswitchinterval(0.02)
    assert now() == 0.02
    sys.setswitchinterval(0.0001)
    with quick_turns():
        assert now() == 0.0001
    assert now() == 0.0001
