"""Which part of a timeline is in sight: all of it at first, what is pointed at when one zooms, the newest while that is followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lanes import tell, view_page

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html
from rlinf_lab.widgets.feed import TimelineFeed

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]
MS = 1_000_000


def iterations(each: int, count: int = 6, start: int = 0) -> Timeline:
    """Iterations of ``each`` ms with a span of all but a millisecond in each."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, driver, step, mark = recorder.track("w", 0, ("cpu:0",)), recorder.track("driver", 0), recorder.name("step"), recorder.name("iteration")
    for i in range(count):
        at = start + i * each * MS
        recorder.add(track, SpanKind.RUN, step, at, at + (each - 1) * MS, i)
        recorder.add(driver, SpanKind.MARK, mark, at, at + each * MS, i)
    timeline.extend(recorder.drain())
    return timeline


def opened(browser: Any, path: Path) -> Any:
    page = browser.new_page(viewport={"width": 1000, "height": 500})
    page.goto(path.as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0 && document.getElementById('timeline').dataset.plot", timeout=15_000)
    return page


def numbers(page: Any, name: str) -> list[float]:
    return [float(v) for v in page.evaluate(f"() => document.querySelector('.rl-timeline').dataset.{name}").split(",")]


def changed(page: Any, act: Callable[[], object]) -> list[float]:
    """The range after the frame that ``act`` leads to."""
    before = page.evaluate("() => document.querySelector('.rl-timeline').dataset.range")
    act()
    page.wait_for_function(f"() => document.querySelector('.rl-timeline').dataset.range !== '{before}'", timeout=10_000)
    return numbers(page, "range")


def test_a_wheel_zooms_at_the_pointer_and_a_key_in_the_middle(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, timeline_html(iterations(10), tmp_path / "wheel.html"))
    box, (gutter, plot) = page.locator("#timeline canvas").first.bounding_box(), numbers(page, "plot")
    whole = numbers(page, "range")
    assert whole == [0, 60 * MS]
    for part in (0.25, 0.95):
        from_, to = numbers(page, "range")
        page.mouse.move(box["x"] + gutter + part * plot, box["y"] + 60)
        seen = changed(page, lambda: page.mouse.wheel(0, -100))
        at = from_ + part * (to - from_)
        assert seen[1] - seen[0] < 0.9 * (to - from_)
        assert abs(seen[0] + part * (seen[1] - seen[0]) - at) < 2 * (to - from_) / plot
    page.locator("#timeline canvas").first.press("f")
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.range === '0,{60 * MS}'", timeout=10_000)
    seen = changed(page, lambda: page.keyboard.press("w"))
    assert sum(seen) == pytest.approx(60 * MS) and seen[1] - seen[0] == pytest.approx(48 * MS)
    page.close()


def test_one_cannot_get_lost_beside_a_timeline(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, timeline_html(iterations(10), tmp_path / "lost.html"))
    page.locator("#timeline canvas").first.focus()
    for key, away in (("d", lambda seen: seen[0] < 60 * MS), ("a", lambda seen: seen[1] > 0)):
        for _ in range(40):
            page.keyboard.press(key)
        page.wait_for_timeout(100)
        assert away(numbers(page, "range"))
    page.close()


def test_of_two_timelines_all_is_in_sight_also_what_lies_before_the_first(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, timeline_html(iterations(10), tmp_path / "over.html", over=iterations(20)))
    assert page.locator(".rl-legend").inner_text().splitlines()[0] == "paler: predicted"  # low lanes have no room to say it
    assert numbers(page, "range") == [-30 * MS, 90 * MS]  # the fourth iteration of both begins at 30 ms
    page.get_by_role("button", name="Align: iteration").click()
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.range === '0,{120 * MS}'", timeout=10_000)
    page.close()


def test_the_tail_is_followed_until_one_points_elsewhere(browser: Any) -> None:
    page = view_page(browser)

    def at(part: float) -> None:
        box, (gutter, plot) = page.locator("#host canvas").first.bounding_box(), numbers(page, "plot")
        page.mouse.move(box["x"] + gutter + part * plot, box["y"] + 60)
        page.mouse.wheel(0, -100)

    tell(page, TimelineFeed(iterations(10_000, 4)), final=True)
    page.wait_for_function("() => document.querySelector('.rl-timeline').dataset.spans > 0", timeout=10_000)
    assert changed(page, lambda: tell(page, TimelineFeed(iterations(10_000, 6)), final=True)) == [40e9, 60e9]
    seen = changed(page, lambda: at(0.97))  # near the newest: it stays in sight
    assert seen[1] == 60e9 and seen[0] > 40e9
    assert changed(page, lambda: tell(page, TimelineFeed(iterations(10_000, 7)), final=True)) == [pytest.approx(70e9 - (seen[1] - seen[0])), 70e9]
    page.locator("#host canvas").first.focus()
    assert changed(page, lambda: page.keyboard.press("w"))[1] == 70e9
    assert changed(page, lambda: at(0.3))[1] < 70e9
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "false"
    from_, to = numbers(page, "range")
    assert changed(page, lambda: page.get_by_role("button", name="Follow").click())[1] == 70e9  # drawn before the next is told
    seen = changed(page, lambda: tell(page, TimelineFeed(iterations(10_000, 8)), final=True))
    assert seen[1] == 80e9 and seen[1] - seen[0] == pytest.approx(to - from_)  # as wide as one had zoomed to
    page.evaluate("() => { view.over = true; }")
    page.locator("#host canvas").first.focus()
    seen = changed(page, lambda: page.keyboard.press("w"))  # a run that is over has no tail
    assert seen[1] < 80e9 and page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "false"
    page.close()


def test_a_selected_range_lies_over_the_spans_and_not_over_their_names(browser: Any, tmp_path: Path) -> None:
    """One that reaches out of sight on both sides."""
    page = opened(browser, timeline_html(iterations(10), tmp_path / "band.html"))
    box, (gutter, plot) = page.locator("#timeline canvas").first.bounding_box(), numbers(page, "plot")

    def closer() -> None:
        page.mouse.move(box["x"] + gutter + 0.5 * plot, box["y"] + 60)
        while numbers(page, "range")[1] > 40 * MS:
            changed(page, lambda: page.mouse.wheel(0, -100))

    page.locator("#timeline canvas").first.focus()
    names = """() => {
      const canvas = document.querySelector('#timeline canvas'), [gutter, plot] = document.getElementById('timeline').dataset.plot.split(',').map(Number);
      const part = (x, width) => [...canvas.getContext('2d').getImageData(x, 40, width, canvas.height - 40).data].join();
      return [part(0, Math.floor(gutter) - 1), part(Math.ceil(gutter + plot / 2), 4)];
    }"""
    closer()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.wait_for_timeout(200)
    before = page.evaluate(names)
    changed(page, lambda: page.keyboard.press("f"))
    page.mouse.move(box["x"] + gutter + 0.2 * plot, box["y"] + 15)
    page.mouse.down()
    page.mouse.move(box["x"] + gutter + 0.8 * plot, box["y"] + 15)
    page.mouse.up()
    closer()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.wait_for_timeout(200)
    after = page.evaluate(names)
    assert before[0] == after[0] and before[1] != after[1], "the band is there, and beside it nothing has changed"
    page.close()


def test_what_is_chosen_stays_so_when_late_spans_come(browser: Any) -> None:
    """A span that encloses others comes after them, and moves them to another line; a link to one that was listed before leads to it still."""
    page = view_page(browser)
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    feed, track, step, outer = TimelineFeed(timeline), recorder.track("w", 0, ("cpu:0",)), recorder.name("step"), recorder.name("outer")

    def add(*spans: tuple[int, int, int]) -> None:
        for name, start, end in spans:
            recorder.add(track, SpanKind.RUN, name, start * MS, end * MS)
        timeline.extend(recorder.drain())
        tell(page, feed)

    chosen = "() => { const p = view.picked; return [store.name(p.lane.columns.name[p.i]), p.lane.columns.start[p.i], p.lane.columns.dur[p.i]]; }"
    add(*((step, 10 * k, 10 * k + (9 if k == 14 else 2)) for k in range(20)))
    page.evaluate("() => { const [lane] = store.tracks[0].spans.lanes; view.pick({ layer: 0, track: store.tracks[0], lane, i: 12 }); }")
    assert page.evaluate(chosen) == ["step", 120 * MS, 2 * MS]
    add((outer, 95, 195))
    assert page.evaluate(chosen) == ["step", 120 * MS, 2 * MS]
    page.get_by_role("button", name="Outliers").click()
    add((outer, 45, 235))
    page.get_by_role("button", name="w 0 step: 9").click()
    assert page.evaluate(chosen) == ["step", 140 * MS, 9 * MS]
    page.evaluate("() => { store.reset(); view.refresh(); }")  # the whole history comes
    assert page.evaluate("() => view.picked") is None
    page.close()
