"""A timeline under mouse and keys while its kernel computes: bubbles, arrows, outliers, a range, a search, two timelines over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_live_widgets import data, pixels, watch_errors
from widget_samples import MS

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

VIEW = """
from widget_samples import MS, pipeline
from rlinf_lab.widgets import TimelineView
view = TimelineView(pipeline(), over=pipeline(5 * MS), labels=("measured", "predicted"), height=480)
view
"""
# The kernel hears nothing until the test is through (or two minutes are over); it leaves the processor to the page.
BUSY = """
import time
from pathlib import Path
limit = time.monotonic() + 120
while not Path("through").exists() and time.monotonic() < limit:
    time.sleep(0.05)
print("THROUGH", Path("through").exists())
"""
SLOW = 125 * MS  # in the middle of the slow step, for which everybody waits
ROOT = ".rl-standalone"


class Hand:
    """Mouse and keys over the canvas; points are given by time and by what the tooltip there says."""

    def __init__(self, lab: Any) -> None:
        self.lab, self.page = lab, lab.page
        self.canvas, self.tip, self.details = (self.page.locator(f"{ROOT} {part}").first for part in ("canvas", ".rl-tip", ".rl-details"))

    def shown(self) -> tuple[float, float]:
        start, end = map(float, data(self.lab, ROOT, "range").split(","))
        return start, end

    def x(self, time: float) -> float:
        (start, end), (gutter, plot) = self.shown(), map(float, data(self.lab, ROOT, "plot").split(","))
        return gutter + (time - start) / (end - start) * plot

    def move(self, x: float, y: float) -> None:
        box = self.canvas.bounding_box()
        self.page.mouse.move(box["x"] + x, box["y"] + y)

    def find(self, time: float, title: str) -> None:
        """Go down the lanes at a time to the one whose tooltip begins so."""
        x, height = self.x(time), int(self.canvas.bounding_box()["height"])
        seen = []
        for y in range(34, height, 4):
            self.move(x, y)
            if self.tip.is_visible():
                seen.append(self.tip.inner_text().split("\n")[0])
                if seen[-1].startswith(title):
                    return
        raise AssertionError(f"nothing says {title!r} at {time / MS:g} ms: {sorted(set(seen))}")

    def click(self, time: float, title: str) -> str:
        """Choose what lies there; what the panel then says."""
        self.find(time, title)
        self.page.mouse.down()
        self.page.mouse.up()
        return self.says(title)

    def says(self, text: str) -> str:
        self.lab.wait_until(lambda: self.details.is_visible() and text in self.details.inner_text(), text)
        return str(self.details.inner_text())

    def press(self, key: str) -> None:
        self.canvas.press(key)

    def show_everything(self) -> None:
        self.press("f")
        self.lab.wait_until(lambda: self.shown()[0] == 0 and self.shown()[1] > 150 * MS, "everything")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.move(*start)
        self.page.mouse.down()
        self.move(*end)
        self.page.mouse.up()


@pytest.fixture(scope="module")
def through(jupyterlab_session: Any) -> Path:
    return jupyterlab_session.root / "through"


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.long)])
def test_everything_answers_while_the_cell_computes(jupyterlab: Any, through: Path, theme: str) -> None:
    through.unlink(missing_ok=True)
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(f"clicks_{theme}", [VIEW, BUSY]), theme=theme)
    errors = watch_errors(lab.page)
    lab.run_all(wait=False)
    try:
        lab.wait_until(lambda: lab.page.locator(ROOT).count() and int(data(lab, ROOT, "spans") or 0) > 60, "the spans")
        lab.wait_until(lab.is_computing, "a cell that is busy")
        hand = Hand(lab)
        hand.canvas.scroll_into_view_if_needed()
        hand.show_everything()
        a_bubble_says_its_cause_and_what_it_cost(hand, theme)
        arrows_of_the_chosen_span(hand, theme)
        both_timelines_can_be_chosen(hand)
        keys_zoom_and_pan(hand)
        outliers_lead_to_the_slow_step(hand)
        a_range_has_statistics(hand)
        a_search_goes_from_one_to_the_next(hand)
        assert "THROUGH" not in said(lab) and not errors, "the cell is still busy: by what it has said, for a widget's messages make the status flicker"
    finally:
        through.touch()
    lab.wait_kernel("idle")
    lab.wait_until(lambda: "THROUGH True" in said(lab), "the end of the cell")


def said(lab: Any) -> str:
    """What the cells have printed."""
    return "".join(lab.page.locator(".jp-OutputArea").all_inner_texts())


def a_bubble_says_its_cause_and_what_it_cost(hand: Hand, theme: str) -> None:
    said = hand.click(SLOW, "cpu:1: starved")
    assert "waiting for input" in said and "39.0 ms from 107 ms, iteration 1" in said
    assert "18 like it on cpu:1: 107 ms in all (60 % of its time), median 4.00 ms, longest 39.0 ms; this one is 9.8 × the median" in said
    assert "policy 0 waited for input from channel obs" in said and "simulator 0 ran step (100 % of it)" in said
    hand.lab.screenshot(f"timeline-bubble-{theme}")


def arrows_of_the_chosen_span(hand: Hand, theme: str) -> None:
    hand.press("Escape")
    hand.move(2, 2)
    chosen = lambda: data(hand.lab, ROOT, "chosen")  # noqa: E731
    hand.lab.wait_until(lambda: chosen() == "0", "no arrow")
    before = pixels(hand.page, f"{ROOT} canvas")
    said = hand.click(SLOW, "learner 0 ·")
    assert "get: waiting for input" in said and "items came from policy 0" in said and "and 6 more" in said
    box, at = hand.details.bounding_box(), hand.canvas.bounding_box()["x"]
    assert box["x"] + box["width"] < at + hand.x(107 * MS), "beside the span and its arrows, not over them"
    hand.move(2, 2)  # hovering draws arrows as well
    hand.lab.wait_until(lambda: chosen() == "10", "ten arrows")
    after = pixels(hand.page, f"{ROOT} canvas")
    assert (before != after).any(axis=2).sum() > 500, "they are drawn"
    hand.lab.screenshot(f"timeline-arrows-{theme}")
    hand.press("Escape")
    hand.lab.wait_until(lambda: chosen() == "0" and not hand.details.is_visible(), "no arrow")


def both_timelines_can_be_chosen(hand: Hand) -> None:
    said = hand.click(140 * MS, "learner 0 (predicted)")
    assert "20.0 ms" in said
    align = hand.page.get_by_role("button", name="Align: iteration")
    align.click()
    hand.page.get_by_role("button", name="Align: start").click()
    align.wait_for()


def keys_zoom_and_pan(hand: Hand) -> None:
    hand.press("Escape")
    for key, holds in (
        ("w", lambda old, new: new[1] - new[0] < old[1] - old[0]), ("d", lambda old, new: new[0] > old[0] and new[1] > old[1]),
        ("a", lambda old, new: new[0] < old[0] and new[1] < old[1]), ("s", lambda old, new: new[1] - new[0] > old[1] - old[0]),
    ):  # fmt: skip
        before = hand.shown()
        hand.press(key)
        hand.lab.wait_until(lambda before=before, holds=holds: holds(before, hand.shown()), key)
    hand.show_everything()
    for key, button, other in (("c", "Colour: worker", "Colour: kind"), ("g", "Lanes: device", "Lanes: worker")):
        before, there = pixels(hand.page, f"{ROOT} canvas"), hand.page.get_by_role("button", name=button)
        hand.press(key)
        hand.page.get_by_role("button", name=other).wait_for()
        hand.lab.wait_until(lambda before=before: not np.array_equal(pixels(hand.page, f"{ROOT} canvas"), before), other)
        hand.press(key)
        there.wait_for()


def outliers_lead_to_the_slow_step(hand: Hand) -> None:
    hand.page.get_by_role("button", name="Outliers").click()
    assert "simulator 0 step: 40.0 ms, 35.0 ms lost (8.00 × the median of 18), iteration 1" in hand.says("Outliers")
    hand.details.get_by_role("button", name="simulator 0 step: 40.0 ms").click()
    hand.says("simulator 0 · step")
    start, end = hand.shown()
    assert start <= 106 * MS and end >= 146 * MS and (start + end) / 2 == pytest.approx(126 * MS, abs=MS), "it is brought into sight"
    hand.show_everything()


def a_range_has_statistics(hand: Hand) -> None:
    hand.drag((hand.x(106 * MS), 15), (hand.x(146 * MS), 15))  # along the ruler
    lines = hand.says("selected").split("\n")
    simulator = next(line for line in lines if line.startswith("simulator")).split("\t")
    assert float(lines[0].split()[0]) == pytest.approx(40, abs=1) and int(simulator[1].split()[0]) >= 97, lines
    assert any(line.startswith("cpu:1") and "starved" in line for line in lines)
    hand.press("Escape")


def a_search_goes_from_one_to_the_next(hand: Hand) -> None:
    search = hand.page.locator(f"{ROOT} .rl-search")
    search.fill("train")
    hand.lab.wait_until(lambda: hand.page.locator(f"{ROOT} .rl-found").inner_text() == "8 found", "train, of both")
    search.press("Enter")
    hand.says("learner 0 ·")
    search.press("Escape")
