"""What a dashboard shows while nothing ends, what it does not know and why, and views that are updated in place."""

from __future__ import annotations

from typing import Any

import pytest
from test_live_widgets import DASHBOARD, data, watch_errors

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]
ROOT = ".rl-dashboard .rl-timeline"
S = 1_000_000_000
LATE = "board.push({'state': 'running'}, timeline=sample.timeline, now_ns=sample.now + 20 * 10**9)"
PAUSED = "board.push({'state': 'paused'}, timeline=sample.timeline)"
NOTED = "board.push({'load_note': 'No GPU curves: NVML Shared Library Not Found'})"
UPDATED = """
from IPython.display import display
from rlinf_lab.widgets import TimelineView
view = TimelineView(sample.timeline)
handle = display(view, display_id=True)
for _ in range(5):
    sample.step()
    view.update()
    handle.update(view)
"""
ONLY_UPDATED = "handle = display('soon', display_id=True)\nhandle.update(TimelineView(sample.timeline))"


def end(lab: Any) -> float:
    return float(data(lab, ROOT, "range").split(",")[1])


def test_the_axis_goes_on_during_a_long_call_and_the_load_says_what_is_missing(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("late", [DASHBOARD, LATE, PAUSED, NOTED]))
    errors = watch_errors(lab.page)
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: lab.page.locator(ROOT).count() and int(data(lab, ROOT, "spans") or 0) > 5000, "the spans")
    known = end(lab)
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: end(lab) == pytest.approx(known + 20 * S), "now")
    start = float(data(lab, ROOT, "range").split(",")[0])
    assert start <= max(0, known - 0.7 * 20 * S), "what is known is not squeezed into a corner"
    lab.page.locator(".rl-dashboard").scroll_into_view_if_needed()
    lab.screenshot("dashboard-long-call")
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: end(lab) == pytest.approx(known), "the last end: nothing is under way in a pause")
    note = lab.page.locator(".rl-loadnote")
    assert not note.is_visible()
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(note.is_visible, "why there is no curve")
    assert note.inner_text() == "No GPU curves: NVML Shared Library Not Found" and not errors


def test_a_view_that_is_updated_in_a_loop_has_one_picture(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("updated", [DASHBOARD, UPDATED, ONLY_UPDATED]))
    lab.run_all()
    lab.wait_until(lambda: lab.page.locator(".rl-standalone").count() == 2, "the views")
    outputs = """() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells.map((c) => c.outputs.map((o) => {
        const data = o.data || {}, text = JSON.stringify(data);
        return ['application/vnd.jupyter.widget-view+json' in data, /rlinf-lab-still/.test(text), /<svg/.test(text)];
    }))"""
    _, updated, only = lab.page.evaluate(outputs)
    assert [(live, still) for live, still, _ in updated] == [(False, True), (True, False)], "a picture and below it the view, however often"
    assert len(only) == 1 and only[0][0] and only[0][2], "where nothing was above it, the picture is beside it"
    assert not lab.errors()


BEGUN = "from rlinf_lab.widgets import Dashboard\nboard = Dashboard('over', iterations=4)\nboard"
ENDED = "board.push({'state': 'finished', 'iteration': 4}, [{'iteration': i, 'return': 1.0 + i} for i in range(4)])"
SIZES = "(all) => all.map((e) => [e.clientWidth, e.querySelector('canvas').clientWidth])"


def test_curves_of_a_run_that_is_over_fill_their_panel(jupyterlab: Any) -> None:
    """A run without pictures leaves their room to its curves, at once: nothing comes any more that would draw them again."""
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("over", [BEGUN, ENDED]))
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: lab.page.locator(".rl-dashboard[data-state='starting']").count(), "the beginning")
    before = lab.page.locator(".rl-chartstage").evaluate_all(SIZES)
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: lab.page.locator(".rl-dashboard[data-iteration='4']").count(), "the end")
    lab.page.wait_for_timeout(300)
    sizes = lab.page.locator(".rl-chartstage").evaluate_all(SIZES)
    assert sizes and all(stage == canvas for stage, canvas in sizes), (before, sizes)
