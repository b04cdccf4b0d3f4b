"""Counters below the lanes, and two timelines over each other: whose lane is whose."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from widget_samples import SampleRun

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]
ARTIFACTS = Path(__file__).resolve().parents[2] / "test-artifacts"


def sample(steps: int = 6) -> SampleRun:
    """A made-up run with load, memory, a channel's depth and a reward beside its spans."""
    made = SampleRun()
    for _ in range(steps):
        made.step()
    timeline, recorder = made.timeline, Recorder()
    each = timeline.elapsed_ns // 200
    for i in range(200):
        at = timeline.start_ns + i * each
        recorder.counter("cuda:0 %", at, 50 + 45 * math.sin(i / 9))
        recorder.counter("cuda:0 MiB", at, 9000 + 20 * i)
        recorder.counter("actions items", at, i % 8)
        recorder.counter("return", at, -100 + i)
    timeline.extend(recorder.drain())
    return made


def shown(page: Any, name: str) -> str:
    return page.evaluate(f"() => document.getElementById('timeline').dataset.{name} ?? ''")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_counters_lie_below_the_lanes(jupyterlab: Any, tmp_path: Path, theme: str) -> None:
    made = sample()
    page = jupyterlab.open_file(timeline_html(made.timeline, tmp_path / "counters.html", "Counters"), theme=theme)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.spans == {len(made.timeline)}", timeout=15_000)
    page.wait_for_function("() => document.getElementById('timeline').dataset.counters == 4")
    page.wait_for_timeout(200)
    page.screenshot(path=str(ARTIFACTS / f"timeline-counters-{theme}.png"))
    canvas = page.locator("#timeline canvas").first
    box = canvas.bounding_box()
    tip = page.locator(".rl-tip")
    for y in range(40, int(box["height"]), 12):  # the row of the counter, wherever it is
        page.mouse.move(box["x"] + 700, box["y"] + y)
        page.wait_for_timeout(30)
        if tip.is_visible() and tip.inner_text().startswith("actions items:"):
            break
    else:
        raise AssertionError("no tooltip of the counter")
    canvas.press("k")
    page.wait_for_function("() => document.getElementById('timeline').dataset.counters == 0")
    assert not errors


def test_a_dense_curve_is_drawn_by_columns_of_pixels(jupyterlab: Any, tmp_path: Path) -> None:
    """A path through every extreme takes the browser longer than a frame; and every column shows how high and low it goes there."""
    made, recorder = sample(), Recorder()
    for i in range(40_000):
        at = made.timeline.start_ns + i * made.timeline.elapsed_ns // 40_000
        recorder.counter("square %", at, 100.0 * (i % 2))
        recorder.counter("half %", at, 50.0)
    made.timeline.extend(recorder.drain())
    page = jupyterlab.open_file(timeline_html(made.timeline, tmp_path / "dense.html", "Dense"), theme="light")
    page.add_init_script("""(() => {
        const line = CanvasRenderingContext2D.prototype.lineTo, draw = CanvasRenderingContext2D.prototype.drawImage;
        window.corners = 0;
        CanvasRenderingContext2D.prototype.lineTo = function (...at) { window.corners++; return line.apply(this, at); };
        window.bars = null;
        CanvasRenderingContext2D.prototype.drawImage = function (from, ...rest) {
            if (rest.length === 8 && rest[3] > 1) window.bars = from;
            return draw.call(this, from, ...rest);
        };
    })()""")
    page.reload()
    page.wait_for_function("() => document.getElementById('timeline')?.dataset.counters == 6 && window.bars", timeout=15_000)
    frames = int(shown(page, "frames"))
    assert page.evaluate("() => window.corners") < frames * 2_000  # those of the other curves
    alpha = page.evaluate("""() => {
        const { width, height } = window.bars, data = window.bars.getContext("2d").getImageData(0, 0, width, height).data, middle = Math.floor(width / 2);
        return Array.from({ length: height }, (_, y) => data[4 * (y * width + middle) + 3]);
    }""")
    square, half = alpha[-46:-23], alpha[-23:]  # the last two rows of 23 px
    assert sum(a == 255 for a in square) >= len(square) - 3  # from the top to the bottom
    line = [i for i, a in enumerate(half) if a > 60]
    assert 1 <= len(line) <= 3 and abs(line[0] - len(half) / 2) < 3
    assert not any(half[: line[0] - 1]) and all(0 < a < 60 for a in half[line[-1] + 1 :])  # nothing above it, its area below
    page.screenshot(path=str(ARTIFACTS / "timeline-dense-counters.png"))


def test_both_lanes_of_an_overlay_are_named(jupyterlab: Any, tmp_path: Path) -> None:
    made, other = sample(), sample(5)
    path = timeline_html(made.timeline, tmp_path / "over.html", "Over", over=other.timeline, labels=("micro-batch 4", "micro-batch 32"))
    page = jupyterlab.open_file(path, theme="light")
    page.add_init_script("""(() => {
        const draw = CanvasRenderingContext2D.prototype.fillText;
        window.drawn = new Set();
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { window.drawn.add(text); return draw.call(this, text, ...rest); };
    })()""")
    page.reload()
    page.wait_for_function("() => window.drawn.has('micro-batch 4') && window.drawn.has('micro-batch 32')", timeout=15_000)
    page.wait_for_function("() => document.getElementById('timeline').dataset.counters == 8")
    page.screenshot(path=str(ARTIFACTS / "timeline-overlay-light.png"))


def test_what_is_missing_and_how_far_a_clock_can_be_trusted_is_said(jupyterlab: Any, tmp_path: Path) -> None:
    recorder, made = Recorder("far"), Timeline()
    recorder.add(recorder.track("w", 0, ("node1/cpu:0",)), SpanKind.RUN, recorder.name("step"), 0, 1_000_000)
    made.extend(replace(recorder.drain(), clock_error_ns=40_000, dropped=3))
    page = jupyterlab.open_file(timeline_html(made, tmp_path / "far.html", "Far"), theme="light")
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans == 1", timeout=15_000)
    assert page.locator(".rl-legend .rl-dropped").inner_text() == "3 spans dropped"
    box, tip = page.locator("#timeline canvas").first.bounding_box(), page.locator(".rl-tip")
    page.mouse.move(box["x"] + 600, box["y"] + 70)
    tip.wait_for()
    assert tip.inner_text().split("\n")[-1] == "by the clock of another node, aligned to ± 40.0 µs"
