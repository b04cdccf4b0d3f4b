"""A saved notebook in the JupyterLab of somebody who has not run it: outputs are not trusted there, SVG and style sheets are taken out of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_live_widgets import DASHBOARD, data, pixels

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(180)]

PIPELINE = """
import rlinf_lab as lab

class Source(lab.Worker):
    def produce(self, n: int, out: lab.Outbox): ...

class Sink(lab.Worker):
    def consume(self, inbox: lab.Inbox): ...

flow = lab.Workflow("pipeline")
things = flow.channel("things")
source, sink = flow.worker(Source), flow.worker(Sink)

@flow.iteration
def iteration():
    source.produce(9, things)
    sink.consume(things)

flow
"""
PROFILE = str(Path(__file__).parents[2] / "docs" / "profiles" / "grpo_1.5b_case1.json")
CELLS = [
    DASHBOARD,
    "from rlinf_lab.widgets import TimelineView\nTimelineView(sample.timeline)",
    "sample.timeline",
    PIPELINE,
    "flow",
    f"import rlinf_lab as lab\nplans = lab.plan(lab.Profile.load({PROFILE!r}), 4)\nplans.best",
]
PICTURES = "() => [...document.querySelectorAll('.jp-OutputArea img[src^=\"data:image/svg\"]')].filter((e) => e.offsetWidth).map((e) => e.naturalWidth > 100)"


@pytest.fixture(scope="module")
def saved(jupyterlab_of_module: Any) -> dict[str, Any]:
    """The notebook as who has run it has saved it; no picture stands beside what is drawn."""
    path = jupyterlab_of_module.write_notebook("mine", CELLS)
    lab = jupyterlab_of_module.open_notebook(path)
    lab.run_all()
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40" and lab.page.locator(".rl-timeline").count() == 2, "the widgets")
    for theme in ("light", "dark"):
        lab.set_theme(theme)
        assert lab.page.evaluate(PICTURES) == [], "who has run it sees what is drawn"
        assert lab.page.locator("svg[role=img]:visible").count() >= 1
    lab.save()
    lab.wait_until(lambda: path.read_text().count("data:image/svg") >= 4, "the file")
    jupyterlab_of_module.close_pages()
    return json.loads(path.read_text())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_shows_the_pictures(jupyterlab: Any, saved: dict[str, Any], theme: str) -> None:
    book = copy.deepcopy(saved)
    book["cells"][0]["source"] = "# of somebody else"  # so its signature is not of this machine
    other = jupyterlab.root / f"theirs-{theme}.ipynb"
    other.write_text(json.dumps(book))
    lab = jupyterlab.open_notebook(other, theme=theme, size=(1366, 3000), fresh=True)  # all of it: cells out of sight are not drawn
    lab.wait_until(lambda: len(lab.page.evaluate(PICTURES)) == 9, "the pictures", 20)  # 4 timelines, 3 curves, a graph twice
    assert all(lab.page.evaluate(PICTURES))
    words = lab.page.locator(".jp-OutputArea-output").all_inner_texts()
    assert not any("cpu:0cpu:1" in text or "sourceSource" in text or "cuda:0cuda:1" in text for text in words), "words without their places"
    assert not any("TimelineView(" in text or "Dashboard(" in text for text in words), "what stands for a widget where nothing else can"
    for picture in (".rlinf-lab-still img[alt^=Timeline]", ".jp-OutputArea-executeResult img[alt^=Timeline]"):
        image = lab.page.locator(picture).first
        image.scroll_into_view_if_needed()
        assert len(np.unique(pixels(lab.page, picture).reshape(-1, 3), axis=0)) > 20
    lab.screenshot(f"of-somebody-else-{theme}")
    cell = CELLS.index(PIPELINE)
    lab.page.evaluate("(cell) => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell; }", cell)
    lab.execute("notebook:run-cell")
    lab.wait_until(lambda: len(lab.page.evaluate(PICTURES)) == 8 and lab.page.locator("svg.rl-graph:visible").count() == 1, "one of two equal graphs", 20)
