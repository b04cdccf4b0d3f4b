"""The pictures above widgets, as a saved notebook has them: beside the same picture, and while a run goes on."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

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
