"""Keys in JupyterLab: what is pressed within a widget stays there, for a notebook has a shortcut for nearly every letter (x cuts the cell)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

CELLS = [
    "from widget_samples import pipeline\nfrom rlinf_lab.widgets import TimelineView\nTimelineView(pipeline())",
    "from rlinf_lab.widgets import Dashboard\nboard = Dashboard('keys', iterations=4)\n"
    "board.push({'state': 'running', 'iteration': 1}, timeline=pipeline())\nboard",
    "import rlinf_lab as lab\nexplorer = lab.PlanExplorer(lab.plan(lab.Profile.load(PROFILE), 16))\nexplorer",
]
PROFILE = Path(__file__).parents[2] / "docs/profiles/grpo_7b_by_hand.json"
LETTERS = "xbvazcymr"  # cut, add below, paste, add above, undo, copy, change the kind …
# Two frames after what was asked: the notebook's commands answer a key at once.
TEXTS = """async () => {
    for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
    return window.jupyterapp.shell.currentWidget.content.widgets.map((w) => w.model.type + w.model.sharedModel.source);
}"""


def test_keys_stay_in_the_widget_that_has_the_focus(jupyterlab: Any) -> None:
    cells = [cell.replace("PROFILE", repr(str(PROFILE))) for cell in CELLS]
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("keys_pressed", cells))
    page = lab.page
    lab.run_all()
    view = page.locator(".rl-standalone").first
    view.locator("canvas").first.wait_for()
    page.locator(".rl-explorer").first.wait_for(timeout=60_000)
    before = page.evaluate(TEXTS)
    assert len(before) == len(cells)

    def unharmed(after: str) -> None:
        assert page.evaluate(TEXTS) == before, after
        assert page.locator(".rl-standalone").count() >= 1 and page.locator(".rl-dashboard").count() >= 1

    def shown() -> str:
        return view.evaluate("e => e.dataset.range")

    view.locator("canvas").first.click(position={"x": 400, "y": 60})
    for key in [*LETTERS, "d", "d", "Delete", "Enter"]:
        page.keyboard.press(key)
        unharmed(f"{key} on the canvas")
    view.get_by_role("button", name="Fit").click()  # the focus is on the button now
    for key in "wsad":
        at = shown()
        page.keyboard.press(key)
        page.wait_for_function("([e, at]) => e.dataset.range !== at", arg=[view.element_handle(), at])
    for key in [*LETTERS, "d", "d"]:
        page.keyboard.press(key)
        unharmed(f"{key} after a button of the timeline")

    board = page.locator(".rl-dashboard").first
    for focus in (board.locator("canvas[tabindex]").first, board.get_by_role("button", name="Counters").first):
        focus.click()
        for key in [*LETTERS, "d", "d"]:
            page.keyboard.press(key)
            unharmed(f"{key} in the dashboard")
    page.locator(".rl-explorer input[type=range]").first.focus()
    for key in [*LETTERS, "d", "d", "ArrowRight"]:
        page.keyboard.press(key)
        unharmed(f"{key} in the explorer")

    search = view.get_by_role("searchbox").first
    search.click()
    page.keyboard.type("xbdd wsad")
    assert search.input_value() == "xbdd wsad"
    unharmed("typed into the search")
    page.wait_for_timeout(200)
    unharmed("all of it, by something that comes late")
    for where in (search, view.locator("canvas").first):
        where.click()
        lab.press_save()
