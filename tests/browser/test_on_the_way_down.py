"""What a reader meets who goes through a notebook: the wheel scrolls past a timeline, lanes say on which device they are, a mean says of how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(180)]

BOARD = """
from widget_samples import SampleRun
from rlinf_lab.widgets import Dashboard, TimelineView
sample = SampleRun()
board = Dashboard("run", iterations=9)
for done in range(1, 4):
    board.push({"state": "running", "iteration": done}, [{**sample.step(), "seconds": 2.0}], sample.timeline)
board
"""
TEXT = "print(*range(60), sep='\\n')"
SCROLLED = "() => document.querySelector('.jp-WindowedPanel-outer').scrollTop"


def test_the_wheel_scrolls_past_a_timeline_and_zooms_where_one_points_at_it(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("scrolling", [TEXT, BOARD, TEXT, "TimelineView(sample.timeline)", TEXT, TEXT]))
    page = lab.page
    lab.run_all()
    view = page.locator(".rl-standalone")
    lab.wait_until(lambda: view.count() == 1 and (view.get_attribute("data-spans") or "0") != "0", "the timeline")
    page.evaluate("() => { document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0; }")
    page.wait_for_timeout(300)
    seen, x, y = view.get_attribute("data-range"), 700, 400  # on the text above the dashboard
    page.mouse.move(x, y)
    passed = False

    def is_past() -> bool:
        nonlocal passed
        page.mouse.wheel(0, 120)
        page.wait_for_timeout(40)
        passed |= page.evaluate("([x, y]) => !!document.elementFromPoint(x, y)?.closest('.rl-standalone')", [x, y])
        return passed and view.bounding_box()["y"] < 0

    lab.wait_until(is_past, "the timeline above the pointer", 20)
    assert view.get_attribute("data-range") == seen, "it was scrolled past, not zoomed"
    view.locator("canvas").first.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    box, at = view.locator("canvas").first.bounding_box(), page.evaluate(SCROLLED)
    page.mouse.move(box["x"] + 600, box["y"] + 80)
    page.mouse.wheel(0, -120)
    lab.wait_until(lambda: view.get_attribute("data-range") != seen, "zoomed", 10)
    assert page.evaluate(SCROLLED) == at


def test_a_mean_says_of_how_many(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("mean", [BOARD]))
    lab.run_all()
    tile = lab.page.locator(".rl-kpi").filter(has_text="Iteration")
    tile.wait_for()
    lab.wait_until(lambda: "mean of last 3" in tile.inner_text(), "three iterations")


@pytest.mark.parametrize("by", ["device", "worker"])
def test_lanes_on_no_device_are_not_under_the_last_one(browser: Any, tmp_path: Path, by: str) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    step = recorder.name("step")
    recorder.add(recorder.track("learner", 0, ("cpu:0",)), SpanKind.RUN, step, 0, 9_000_000, 0)
    recorder.add(recorder.track("driver", 0), SpanKind.PUT, step, 0, 9_000_000, 0)
    timeline.extend(recorder.drain())
    page = browser.new_page(viewport={"width": 900, "height": 400})
    page.goto(timeline_html(timeline, tmp_path / "timeline.html").as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.plot", timeout=15_000)
    if by == "worker":
        page.get_by_role("button", name="Lanes: device").click()
    box, told = page.locator("#timeline canvas").first.bounding_box(), list[str]()
    for y in range(34, 300, 4):
        page.mouse.move(box["x"] + 30, box["y"] + y)
        tip = page.locator(".rl-tip").first
        if tip.is_visible() and (title := tip.inner_text().split("\n")[0]) not in told:
            told.append(title)
    page.close()
    lanes = ["cpu:0", "learner 0"] if by == "device" else ["learner", "0 on cpu:0", "cpu:0"]
    assert told == [*lanes, "no device", "driver 0"]
