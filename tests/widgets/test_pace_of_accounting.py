"""How often a live view accounts for device time: soon where it costs little, seldom where it would cost more than it may."""

from __future__ import annotations

import itertools

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import feed as feed_module
from rlinf_lab.widgets.feed import TimelineFeed


class OwnClock:
    """Time goes on when it is told to; each accounting takes ``cost`` seconds of a core, and this process computes for ``load`` of the time beside it."""

    def __init__(self, cost: float, load: float) -> None:
        self.now, self.cost, self.load, self._asked = 1000.0, cost, load, 0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        self._asked += 1
        return self._asked // 2 * self.cost

    def process_time(self) -> float:
        return self.load * self.now + self._asked // 2 * self.cost


def looks(monkeypatch: pytest.MonkeyPatch, cost: float, load: float, seconds: float, idle_core: bool = True) -> list[float]:
    """When a run with an iteration each 100 ms is accounted for, in seconds since its begin; asked twice a second, as a dashboard does."""
    clock, recorder, timeline = OwnClock(cost, load), Recorder(), Timeline(["cpu:0"])
    monkeypatch.setattr(feed_module, "time", clock)
    monkeypatch.setattr(feed_module, "_a_core_is_idle", lambda: idle_core)
    track, driver, name, step = recorder.track("w", 0, ("cpu:0",)), recorder.track("driver", 0), recorder.name("iteration"), recorder.name("step")
    feed, found, at = TimelineFeed(timeline), list[float](), 0
    while clock.now < 1000 + seconds:
        for _ in range(5):
            recorder.add(track, SpanKind.RUN, step, at, at + 50_000_000, at // 100_000_000)
            recorder.add(driver, SpanKind.MARK, name, at, at + 100_000_000, at // 100_000_000)
            at += 100_000_000
        clock.now += 0.5
        timeline.extend(recorder.drain())
        feed.take_spans()
        if feed.take_bubbles():
            found.append(clock.now - 1000)
    return found


def test_short_runs_are_accounted_for_soon_and_long_ones_cost_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = looks(monkeypatch, 0.0013, 0.9, 120)
    assert busy[:6] == [1.0, 2.0, 3.5, 5.0, 7.0, 9.5], "soon at first: every five seconds it was"
    gaps = [b - a for a, b in itertools.pairwise(busy)]
    assert max(gaps) <= 4.5 and len(busy) * 0.0013 <= 120 / 2000 + 0.017
    assert looks(monkeypatch, 0.0013, 0.9, 120, idle_core=False) == busy


def test_where_it_disturbs_nobody_device_time_is_told_soon_all_along(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = looks(monkeypatch, 0.002, 0.1, 60)
    assert max(b - a for a, b in itertools.pairwise(alone)) <= 1.5 and len(alone) * 0.002 <= 60 / 500 + 0.025
    others_compute = looks(monkeypatch, 0.002, 0.1, 60, idle_core=False)
    assert others_compute == looks(monkeypatch, 0.002, 0.9, 60), "in other processes, on all cores"


def test_accounting_that_takes_long_is_done_as_seldom_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looks(monkeypatch, 0.05, 0.9, 60)
    assert min(b - a for a, b in itertools.pairwise(found)) >= 5 and len(found) <= 12
