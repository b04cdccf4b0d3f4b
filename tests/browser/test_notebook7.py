"""The widgets in Jupyter Notebook 7: the same page, another application around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lab_browser
import pytest
from test_live_widgets import BUSY, DASHBOARD, data, pixels, watch_errors

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

LETTERS = "xbvazcymr"  # cut, add below, paste, add above, undo, copy, change the kind …
# Two frames after what was asked: the notebook's commands answer a key at once.
TEXTS = """async () => {
    for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
    return window.jupyterapp.shell.currentWidget.content.widgets.map((w) => w.model.type + w.model.sharedModel.source);
}"""


@pytest.fixture
def notebook7(browser: Any, tmp_path: Any) -> Iterator[lab_browser.JupyterLab]:
    with lab_browser.jupyterlab(browser, tmp_path, "notebook") as server:
        yield server
        server.close_pages()


def test_a_dashboard_and_a_timeline_in_notebook_7(notebook7: lab_browser.JupyterLab) -> None:
    cells = [DASHBOARD, "from rlinf_lab.widgets import TimelineView\nTimelineView(sample.timeline)"]
    page = notebook7.open_notebook(notebook7.write_notebook("seven", cells), theme="dark")
    errors = watch_errors(page.page)
    assert page.page.evaluate("() => window.jupyterapp.name") == "Jupyter Notebook"
    page.run_all()
    page.wait_until(lambda: data(page, ".rl-dashboard", "iteration") == "40", "40 iterations")
    page.wait_until(lambda: int(data(page, ".rl-standalone", "spans") or 0) > 5000, "the spans")
    canvas = page.page.locator(".rl-standalone canvas").first
    canvas.scroll_into_view_if_needed()
    page.page.wait_for_timeout(200)
    page.screenshot("notebook7-dark")
    before = data(page, ".rl-standalone", "range")
    canvas.click(position={"x": 500, "y": 80})
    page.page.keyboard.press("w")
    page.wait_until(lambda: data(page, ".rl-standalone", "range") != before, "zoom by key")
    assert data(page, ".rl-standalone", "theme") == "dark"
    texts = page.page.evaluate(TEXTS)
    for key in "sad":
        before = data(page, ".rl-standalone", "range")
        page.page.keyboard.press(key)
        page.wait_until(lambda before=before: data(page, ".rl-standalone", "range") != before, f"{key} in the timeline")
        page.page.wait_for_timeout(300)
    page.page.keyboard.press("c")
    page.page.locator(".rl-standalone").get_by_role("button", name="Colour: kind").wait_for(timeout=5000)
    for key in LETTERS:
        page.page.keyboard.press(key)
        assert page.page.evaluate(TEXTS) == texts, f"{key} belongs to the timeline"
    page.press_save()
    assert not errors and not page.errors()


def test_it_lives_while_the_cell_is_busy_and_comes_back_in_notebook_7(notebook7: lab_browser.JupyterLab) -> None:
    """News and a button while Python computes; after a reload all of it again; opened with no kernel, its picture."""
    path = notebook7.write_notebook("seven-busy", [DASHBOARD, BUSY])
    page = notebook7.open_notebook(path, theme="light")
    errors = watch_errors(page.page)
    page.run_all(wait=False)
    page.wait_until(lambda: int(data(page, ".rl-dashboard", "iteration") or 0) >= 42, "deltas from the thread", 60)
    before, seen = pixels(page.page, ".rl-timeline canvas"), int(data(page, ".rl-dashboard", "iteration"))
    page.wait_until(lambda: int(data(page, ".rl-dashboard", "iteration")) >= seen + 3, "more deltas")
    assert page.is_computing() and (before != pixels(page.page, ".rl-timeline canvas")).any()
    page.screenshot("notebook7-busy-light")
    page.page.get_by_role("button", name="Pause").click()
    page.wait_kernel("idle", 20)
    page.wait_until(lambda: "HEARD ['pause']" in page.page.locator(".jp-OutputArea").all_inner_texts()[-1], "the command")
    assert not errors and not page.errors()
    last, spans = data(page, ".rl-dashboard", "iteration"), data(page, ".rl-timeline", "spans")
    page.save()
    page.reload()
    board = page.page.locator(".rl-dashboard")
    page.wait_until(lambda: board.count() > 0 and data(page, ".rl-dashboard", "iteration") == last, "the dashboard", 40)
    page.wait_until(lambda: data(page, ".rl-timeline", "spans") == spans, "the same number of spans")
    assert data(page, ".rl-dashboard", "theme") == "light"
    notebook7.close_pages()
    page = notebook7.open_notebook(path)
    picture = page.page.locator(".rlinf-lab-still")
    page.wait_until(lambda: picture.count() == 1 and picture.is_visible(), "the picture")
