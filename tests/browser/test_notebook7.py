"""The widgets in Jupyter Notebook 7: the same page, another application around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lab_browser
import pytest
from test_live_widgets import DASHBOARD, data, watch_errors

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]


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
    assert not errors and not page.errors()
