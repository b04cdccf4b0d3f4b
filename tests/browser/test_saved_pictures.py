"""The pictures above widgets, as a saved notebook has them: beside the same picture, and while a run goes on."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pipeline_cell import pipeline_cell
from test_live_widgets import data, watch_errors

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

VIEW = """
from widget_samples import pipeline
from rlinf_lab.widgets import TimelineView
timeline = pipeline()
TimelineView(timeline)
"""


def test_the_picture_of_a_timeline_beside_its_widget_has_its_idle_time(jupyterlab: Any) -> None:
    """The widget's own picture, which is hidden, is the same one."""
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("beside", [VIEW, "timeline"]))
    lab.run_all()
    stills = lab.page.locator(".rlinf-lab-still")
    lab.wait_until(lambda: lab.page.locator(".rl-timeline").count() == 1 and stills.count() == 1 and not stills.first.is_visible(), "the widget")
    shown = lab.page.locator('svg[role="img"]').filter(visible=True)
    swatch = shown.locator('rect[fill^="url"]').last  # of the legend
    swatch.scroll_into_view_if_needed()
    drawn = np.asarray(Image.open(io.BytesIO(swatch.screenshot())).convert("RGB"))[2:-2, 2:-2].reshape(-1, 3)
    lab.screenshot("timeline-beside-its-widget")
    assert shown.count() == 1 and (drawn < 245).any(), "the pattern of a cause is painted"


RUN = pipeline_cell("goes on", 8, 0.01, 0.01).replace("emulate=True)", "iterations=4000, emulate=True)")
BUSY = "import os\nwhile not os.path.exists('the cell may end'):\n    pass"


def test_a_page_loaded_while_a_cell_is_busy_shows_how_far_the_run_had_come(jupyterlab: Any) -> None:
    """Its picture is renewed while the run goes on, under the live view, which is not made anew: it keeps its zoom."""
    path = jupyterlab.write_notebook("goes-on", [RUN, BUSY])
    lab = jupyterlab.open_notebook(path)
    errors = watch_errors(lab.page)
    lab.execute("notebook:run-cell-and-select-next")
    board, picture, canvas = (lab.page.locator(part) for part in (".rl-dashboard", ".rlinf-lab-still", ".rl-timeline canvas"))
    lab.wait_until(lambda: board.count() == 1 and int(data(lab, ".rl-dashboard", "iteration") or 0) >= 8, "iterations")
    lab.execute("notebook:run-cell-and-select-next", wait=False)
    lab.wait_until(lab.is_computing, "the second cell is at work")  # the kernel's status flickers by the widget's messages
    lab.page.get_by_role("button", name="Follow").last.click()
    canvas.first.hover(position={"x": 600, "y": 60})
    lab.page.mouse.wheel(0, -240)
    lab.page.wait_for_timeout(300)
    zoom = data(lab, ".rl-timeline", "range")
    lab.page.evaluate(
        """() => {
            const [board, picture] = ['.rl-dashboard', '.rlinf-lab-still'].map((name) => document.querySelector(name));
            const outputs = board.closest('.jp-OutputArea');
            window.seen = {board, height: outputs.offsetHeight, moved: 0, shown: 0, of: picture.innerText};
            const look = () => {
                const now = outputs.querySelector('.rlinf-lab-still');
                window.seen.moved += outputs.offsetHeight !== window.seen.height;
                window.seen.shown += now === null || now.offsetHeight > 0;
                requestAnimationFrame(look);
            };
            look();
        }"""
    )
    told = lambda: lab.page.evaluate("() => document.querySelector('.rlinf-lab-still').textContent")  # noqa: E731
    before = told()
    lab.wait_until(lambda: told() != before, "another picture", 60)
    lab.page.wait_for_timeout(300)
    seen = lab.page.evaluate("() => ({...window.seen, board: window.seen.board === document.querySelector('.rl-dashboard')})")
    assert seen["board"] and seen["shown"] == seen["moved"] == 0, "the view stays, and nothing moves"
    assert data(lab, ".rl-timeline", "range") == zoom and int(data(lab, ".rl-dashboard", "iteration")) > 3 and not errors
    lab.save()
    lab.wait_until(lambda: "as of 20" in path.read_text(), "the file")
    lab.page.goto(lab.url)
    lab.wait_until(lambda: picture.count() == 1 and picture.is_visible(), "the picture", 40)
    words = picture.inner_text()
    assert board.count() == 0 and "As of 20" in words and re.search(r"running · [1-9]\d* / 4000", words) and "starting" not in words, words
    assert {"cpu:0", "source", "sink"} <= set(picture.locator("text").all_text_contents())
    lab.screenshot("reload-while-a-run-goes-on")
    (jupyterlab.root / "the cell may end").touch()
    lab.wait_until(lambda: board.count() == 1 and int(data(lab, ".rl-dashboard", "iteration") or 0) > 3, "the dashboard", 40)
    lab.wait_until(lambda: not picture.is_visible(), "the picture hides")
