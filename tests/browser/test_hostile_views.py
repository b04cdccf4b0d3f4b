"""Views that nobody wishes for: nothing in them, odd times, names that are code or run backwards, thousands of lanes, and kernels that go away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_explorer_in_lab import EXPLORER, PROFILES
from test_live_widgets import DASHBOARD, data, watch_errors
from test_names_and_marks import WATCH

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]
MS = 1_000_000
RTL = "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd"
NAMES = ["<script>hacked = 1</script>", "<img src=x onerror='hacked = 1'>", "\N{GRINNING FACE}" * 60, RTL, "\u202eback", "x" * 300, "a\nb\tc", " "]
KEYS = [*"wwsadgcrkofnpmgcrk", "End", "PageUp", "Home", "PageDown", "Escape", "f"]


def spans(*times: tuple[int, int], devices: tuple[str, ...] = ("cpu:0",)) -> Timeline:
    recorder, timeline = Recorder(), Timeline(devices)
    track = recorder.track("w", 0, devices[:1])
    for start, end in times:
        recorder.add(track, SpanKind.RUN, recorder.name("step"), start, end, 0)
    timeline.extend(recorder.drain())
    return timeline


def named(names: list[str]) -> Timeline:
    recorder, timeline = Recorder(), Timeline(["cpu:0", "cpu:1"])
    for k, name in enumerate(names):
        track, method = recorder.track(name, k, (f"cpu:{k % 2}",)), recorder.name(name)
        for i in range(3):
            recorder.add(track, SpanKind.RUN, method, 10 * i * MS, (10 * i + 7) * MS, i)
            recorder.add(track, SpanKind.GET, method, (10 * i + 7) * MS, (10 * i + 9) * MS, i, 3, 0, recorder.channel(name), 3 * i)
            recorder.add(track, SpanKind.LABEL, method, (10 * i + 1) * MS, (10 * i + 3) * MS, i)
        recorder.counter(name, 5 * MS, float(k))
    timeline.extend(recorder.drain())
    return timeline


def lanes(workers: int, devices: int) -> Timeline:
    recorder, timeline = Recorder(), Timeline([f"cuda:{i}" for i in range(devices)])
    step = recorder.name("step")
    for w in range(workers):
        track = recorder.track(f"w{w % 1000}", w // 1000, (f"cuda:{w % devices}",))
        for i in range(4):
            recorder.add(track, SpanKind.RUN, step, (3 * i + w % 3) * MS, (3 * i + w % 3 + 1) * MS, 0)
    timeline.extend(recorder.drain())
    return timeline


CASES: dict[str, Any] = {
    "nothing": lambda: Timeline([]),
    "devices alone": lambda: Timeline(["cpu:0", "cuda:1"]),
    "one span": lambda: spans((5, 5 + MS)),
    "an instant": lambda: spans((7, 7)),
    "instants": lambda: spans((7, 7), (7, 7), (9, 9)),
    "before 0": lambda: spans((-(10**18), 5 - 10**18), (0, 10**9)),
    "ages": lambda: spans((0, 10**9), (9 * 10**18, 9 * 10**18 + 10**9)),
    "names": lambda: named(NAMES),
    "2,000 lanes of one device": lambda: lanes(2000, 1),
    "2,000 devices": lambda: lanes(2000, 2000),
}


def opened(browser: Any, timeline: Timeline, path: Path) -> tuple[Any, list[str]]:
    page = browser.new_page(viewport={"width": 1200, "height": 600})
    page.add_init_script(WATCH)
    errors = watch_errors(page)
    page.goto(timeline_html(timeline, path).as_uri())
    page.wait_for_function("() => document.getElementById('timeline')?.dataset.frames > 0", timeout=20_000)
    return page, errors


DAILY = ("nothing", "before 0", "names", "2,000 lanes of one device")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case in DAILY else pytest.mark.long) for case in CASES])
def test_keys_and_clicks_do_no_harm_and_fit_brings_back_all(browser: Any, tmp_path: Path, case: str) -> None:
    timeline = CASES[case]()
    page, errors = opened(browser, timeline, tmp_path / "odd.html")
    shown = "() => document.getElementById('timeline').dataset"
    whole = page.evaluate(shown)
    assert int(whole["spans"]) == len(timeline)
    start, end = map(float, whole["range"].split(","))
    assert start == 0 and end >= 200
    canvas = page.locator("#timeline canvas").first
    canvas.focus()
    for key in KEYS:
        page.keyboard.press(key)
    box = canvas.bounding_box()
    for x, y in ((5, 50), (300, 15), (600, 45), (600, 70), (1190, 300)):
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.mouse.click(box["x"] + x, box["y"] + y)
        page.mouse.wheel(0, -300)
    page.locator(".rl-search").fill("step <")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.range === '{whole['range']}'", timeout=10_000)
    assert not errors and page.evaluate("() => window.hacked") is None
    page.close()


def test_the_ruler_of_nothing_and_of_nanoseconds_is_in_whole_nanoseconds(browser: Any, tmp_path: Path) -> None:
    for name, timeline in (("nothing", Timeline(["cpu:0"])), ("short", spans((0, 3), (5, 9)))):
        page, _ = opened(browser, timeline, tmp_path / f"{name}.html")
        ticks = [text for text, left, _, y in page.evaluate("() => window.texts") if y < 14 and left > 100]
        page.close()
        assert len(ticks) >= 3 and ticks[0] == "0 ns" and len(set(ticks)) == len(ticks)
        assert all(tick.removesuffix(" ns").isdigit() for tick in ticks)


def test_the_rank_stays_behind_a_name_that_is_written_from_right_to_left(browser: Any, tmp_path: Path) -> None:
    """U+2068 and U+2069 around it make it a part of its own; a search finds it all the same."""
    page, _ = opened(browser, named([RTL, "\u202eback", "plain"]), tmp_path / "rtl.html")
    texts = [text for text, *_ in page.evaluate("() => window.texts")]
    assert f"\u2068{RTL}\u2069 0" in texts and "\u2068\u202eback\u2069 1" in texts and "plain 2" in texts
    page.locator(".rl-search").fill(f"{RTL} 0")
    page.wait_for_function("() => document.querySelector('.rl-found').textContent === '9 found'", timeout=5000)
    page.close()


TWO = (
    DASHBOARD.rsplit("board\n", 1)[0]
    + """
from IPython.display import display
from rlinf_lab.widgets import TimelineView
view = TimelineView(sample.timeline)
display(view)
display(view)
"""
)
CLOSED = """
view.close(); board.close()
sample.step()
view.update()
board.push({"state": "running"}, timeline=sample.timeline)
print("still here")
"""


def run_cell(lab: Any, number: int) -> None:
    lab.page.evaluate("(i) => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; }", number)
    lab.execute("notebook:run-cell")


@pytest.mark.long
def test_two_views_of_one_run_are_looked_at_apart_and_closing_harms_nobody(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("two", [TWO, "sample.step()\nview.update()", CLOSED]))
    errors = watch_errors(lab.page)
    run_cell(lab, 0)
    views = lab.page.locator(".rl-standalone")
    told = lambda: views.evaluate_all("(all) => all.map((e) => [e.dataset.spans, e.dataset.range])")  # noqa: E731
    lab.wait_until(lambda: views.count() == 2 and all(int(n or 0) > 5000 for n, _ in told()), "both")
    (count, whole), other = told()
    assert (count, whole) == tuple(other)
    views.first.locator("canvas").first.click(position={"x": 500, "y": 60})
    lab.page.keyboard.press("w")
    lab.wait_until(lambda: told()[0][1] != whole, "the first zooms")
    assert told()[1] == other, "the second does not"
    run_cell(lab, 1)
    lab.wait_until(lambda: all(int(n) > int(count) for n, _ in told()), "news in both")
    run_cell(lab, 2)
    lab.wait_until(lambda: "still here" in lab.page.locator(".jp-Notebook").inner_text(), "the closing")
    lab.page.wait_for_timeout(300)
    assert not errors and lab.errors() == []


@pytest.mark.long
def test_a_view_whose_kernel_was_restarted_can_be_looked_at_and_says_that_nobody_hears_it(jupyterlab: Any) -> None:
    explorer = EXPLORER.format(path=str(PROFILES / "grpo_7b_case4.json"), devices=16, gib={})
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("restarted", [DASHBOARD, explorer]))
    lab.run_all()
    root, timeline = lab.page.locator(".rl-dashboard"), ".rl-dashboard .rl-timeline"
    lab.wait_until(lambda: root.count() and int(data(lab, timeline, "spans") or 0) > 5000, "the spans")
    lab.wait_until(lambda: lab.page.locator(".rl-explorer").count() and data(lab, ".rl-explorer", "best") != "", "an answer")
    errors = watch_errors(lab.page)
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    lab.wait_kernel("idle")
    whole = data(lab, timeline, "range")
    lab.page.locator(f"{timeline} canvas").first.click(position={"x": 500, "y": 60})
    lab.page.keyboard.press("w")
    lab.wait_until(lambda: data(lab, timeline, "range") != whole, "zoom")
    root.get_by_role("button", name="Pause").click()
    lab.wait_until(lambda: lab.page.locator(".rl-silence").inner_text() == "the kernel of this view is gone: run the cell again", "what to do")
    assert root.get_by_role("button", name="Stop").is_disabled()
    slider = lab.page.locator(".rl-explorer input[type=range]").first
    slider.focus()
    lab.page.keyboard.press("ArrowLeft")
    lab.wait_until(lambda: "is gone" in lab.page.locator(".rl-explorer .rl-message").inner_text(), "the same")
    assert not errors
