"""Bars of completions side by side: the one under the pointer is chosen, and the kernel's answer is shown as text."""

from __future__ import annotations

from typing import Any

import pytest
from lanes import tell, view_page

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets.feed import TimelineFeed

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

MS = 1_000_000


def test_a_click_asks_for_the_bar_under_the_pointer(browser: Any) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, run, bar = recorder.track("generator", 0, ("cpu:0",)), recorder.name("generate"), recorder.name("completion")
    recorder.add(track, SpanKind.RUN, run, 0, 1000 * MS, 0)
    for k in range(6):  # the first one is the longest
        recorder.add(track, SpanKind.LABEL, bar, (10 + k) * MS, (990 - 100 * k) * MS, 0)
    timeline.extend(recorder.drain())
    page = view_page(browser)
    page.evaluate("() => { window.asked = []; view.ask = (bar) => asked.push(bar); }")
    tell(page, TimelineFeed(timeline), final=True)
    page.evaluate("() => { view.look(0, 1e9); }")
    places = page.evaluate("""() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
        const row = view.rows.find((r) => r.track && r.track.worker === "generator"), box = view.canvas.getBoundingClientRect();
        const { labels } = row.track, deep = labels.lanes.length, h = Math.max(row.h * 0.36, deep * 4) / deep;
        done(labels.lanes.map((lane, d) => [box.left + view.x(2e8), box.top + row.y + row.h - (deep - d - 0.5) * h, lane.columns.start[0]]));
    })))""")
    assert len(places) == 6
    for x, y, _ in places:
        page.mouse.click(x, y)
    assert page.evaluate("() => asked.map((bar) => [bar.worker, bar.rank, bar.start])") == [["generator", 0, start] for _, _, start in places]
    page.evaluate("""([start]) => {
        view.details.tellSample({ worker: "generator", rank: 0, start: start - 1, fields: [["text", "of another"]] });
        view.details.tellSample({ worker: "generator", rank: 0, start, fields: [["text", "<b>4</b>"], ["discarded", "too stale"]] });
    }""", [places[-1][2]])  # fmt: skip
    said = page.locator(".rl-details").inner_text()
    assert "<b>4</b>" in said and "too stale" in said and "of another" not in said
    page.close()
