"""Spans that took no time are in the picture: seen, pointed at, found, counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]
MS = 1_000_000
COLUMN = """(x) => {
    const canvas = document.querySelector("#timeline canvas"), data = canvas.getContext("2d").getImageData(x, 0, 1, canvas.height).data;
    return Array.from({ length: canvas.height }, (_, y) => [data[4 * y], data[4 * y + 1], data[4 * y + 2]].join());
}"""


def opened(browser: Any, timeline: Timeline, path: Path) -> Any:
    page = browser.new_page(viewport={"width": 1000, "height": 300}, color_scheme="light")
    page.goto(timeline_html(timeline, path).as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0 && document.getElementById('timeline').dataset.plot", timeout=15_000)
    return page


def x_of(page: Any, time: float) -> float:
    """Where a time is on the canvas, px."""
    said = page.evaluate("() => { const { plot, range } = document.getElementById('timeline').dataset; return `${plot},${range}`; }")
    gutter, plot, from_, to = map(float, said.split(","))
    return gutter + (time - from_) / (to - from_) * plot


def look(page: Any, act: Any) -> None:
    """Until the frame that ``act`` leads to."""
    frames = page.evaluate("() => Number(document.getElementById('timeline').dataset.frames)")
    act()
    page.wait_for_function(f"() => Number(document.getElementById('timeline').dataset.frames) > {frames}", timeout=10_000)


def column(page: Any, x: float) -> list[str]:
    """Colours of a pixel column below the ruler and the device's strip."""
    return page.evaluate(COLUMN, int(x))[52:]


def test_a_lane_of_instants_is_not_empty(browser: Any, tmp_path: Path) -> None:
    """Ticks in the worker's colour; the pointer, a search, a click and a selection find them."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step, channel = recorder.track("source", 0, ("cpu:0",)), recorder.name("step"), recorder.name("items")
    for i in range(11):
        recorder.add(track, SpanKind.PUT, step, i * 10 * MS, i * 10 * MS, 0, 3, 0, channel, 3 * i)
    timeline.extend(recorder.drain())
    page = opened(browser, timeline, tmp_path / "instants.html")
    canvas = page.locator("#timeline canvas").first
    colour = page.evaluate("() => getComputedStyle(document.querySelector('.rl-key i')).backgroundColor.replace(/[^0-9,]/g, '')")
    x = x_of(page, 50 * MS)
    lane = [y for y, pixel in enumerate(column(page, x)) if pixel == colour]
    assert len(lane) > 10 and colour not in column(page, x_of(page, 55 * MS))
    y = 52 + lane[len(lane) // 2]
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_function("() => getComputedStyle(document.querySelector('.rl-tip')).display === 'block'", timeout=10_000)
    said = page.locator(".rl-tip").inner_text()
    assert "source 0 · step" in said and "put, took no time" in said and "at 50.0 ms" in said and "channel items" in said
    canvas.click(position={"x": x, "y": y})
    assert "at 50.0 ms" in page.locator(".rl-details").inner_text()
    canvas.press("m")
    row = page.locator(".rl-details tr").nth(1).inner_text().split()
    assert row[0] == "source" and row[-1] == "1"
    canvas.press("Escape")
    page.locator(".rl-search").fill("items")
    page.wait_for_function("() => document.querySelector('.rl-found').textContent === '11 found'", timeout=10_000)
    page.locator(".rl-search").press("Enter")
    page.wait_for_function("() => document.querySelector('.rl-details').innerText.includes('at 60.0 ms')", timeout=10_000)
    page.close()


def test_instants_at_every_pixel_are_fainter_than_a_span(browser: Any, tmp_path: Path) -> None:
    """A lane of many that took no time is not like one that was busy all the time."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    step = recorder.name("step")
    tracks = [recorder.track("source", rank, ("cpu:0",)) for rank in range(2)]
    recorder.add(tracks[1], SpanKind.RUN, step, 0, 5000 * MS, 0)
    for i in range(5000):
        recorder.add(tracks[0], SpanKind.RUN, step, i * MS, i * MS, 0)
    timeline.extend(recorder.drain())
    page = opened(browser, timeline, tmp_path / "many.html")
    seen = column(page, x_of(page, 2400 * MS))
    shades = [sum(map(int, pixel.split(","))) / 3 for pixel in dict.fromkeys(pixel for pixel in seen if seen.count(pixel) > 10 and pixel != "255,255,255")]
    assert len(shades) == 2 and shades[0] > shades[1] + 40
    page.close()


def test_instants_over_spans_are_told_apart_or_left_out_until_they_are_searched(browser: Any, tmp_path: Path) -> None:
    """A put that finds room lies in the running stretch of who puts: a notch at its top where puts are not too near to each other."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step, channel = recorder.track("source", 0, ("cpu:0",)), recorder.name("step"), recorder.name("items")
    recorder.add(track, SpanKind.RUN, step, 0, 1000 * MS, 0)
    for i in range(1000):
        recorder.add(track, SpanKind.PUT, step, i * MS, i * MS, 0, 1, 0, channel, i)
    timeline.extend(recorder.drain())
    page = opened(browser, timeline, tmp_path / "notches.html")
    canvas = page.locator("#timeline canvas").first
    shades = lambda time: set(column(page, x_of(page, time)))  # noqa: E731
    assert shades(500 * MS) == shades(500.5 * MS)  # a line along the lane would hide it, and tell nothing
    for _ in range(16):
        look(page, lambda: canvas.press("w"))
    notched, between = column(page, x_of(page, 500 * MS)), column(page, x_of(page, 500.5 * MS))
    assert 2 <= sum(a != b for a, b in zip(notched, between, strict=True)) <= 5
    look(page, lambda: canvas.press("f"))
    page.locator(".rl-search").fill("items")
    page.wait_for_function("() => document.querySelector('.rl-found').textContent === '1,000 found'", timeout=10_000)
    page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
    assert column(page, x_of(page, 500 * MS)).count("31,35,40") > 10
    page.close()
