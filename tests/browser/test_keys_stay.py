"""Keys that are pressed in a widget stay in it: the notebook's cells stay as they are, whatever has the focus. Those of the page still reach it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_explorer_in_lab import EXPLORER, PROFILES
from test_live_widgets import DASHBOARD, data, watch_errors

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

TIMELINE = "from rlinf_lab.widgets import TimelineView\nTimelineView(sample.timeline)"
CELLS = ["1 + 1", DASHBOARD, TIMELINE, EXPLORER.format(path=str(PROFILES / "grpo_7b_case4.json"), devices=16, gib={}), "2 + 2"]
STANDALONE, BOARD, EXPLORER_ROOT = ".rl-standalone", ".rl-dashboard", ".rl-explorer"
#: In command mode: cut, insert above and below, paste, delete, undo, markdown, raw, headings, merge and select up and down, run.
LETTERS = ["x", "a", "b", "v", "d", "d", "z", "c", "m", "y", "r", "1", "j", "k", "Shift+M", "Shift+K", "Shift+J", "Enter", "Shift+Enter", "0", "0", "Space"]
#: What tells that a key did something to the notebook, two frames after it: its commands answer a key at once, or with a dialog.
NOTEBOOK = """async () => {
    for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
    const { content } = window.jupyterapp.shell.currentWidget;
    const cells = content.widgets.map((c) => [c.model.type, c.model.sharedModel.source, c.model.executionCount]);
    return JSON.stringify([content.mode, content.activeCellIndex, document.querySelectorAll(".jp-Dialog").length, cells]);
}"""


@pytest.fixture(scope="module")
def lab(jupyterlab_of_module: Any) -> Any:
    """A notebook with all widgets, in command mode."""
    page = jupyterlab_of_module.open_notebook(jupyterlab_of_module.write_notebook("keys", CELLS))
    page.run_all()
    for root in (BOARD, STANDALONE):
        page.wait_until(lambda root=root: int(data(page, f"{root}{' .rl-timeline' if root == BOARD else ''}", "spans") or 0) > 5000, "the spans")
    page.wait_until(lambda: data(page, EXPLORER_ROOT, "best") != "", "an answer")
    assert not page.errors()
    return page


@pytest.fixture
def no_dialog_stays(lab: Any) -> Iterator[None]:
    """A dialog fails the test that has left it, and is gone when the next one presses its keys."""
    yield
    assert lab.dismiss_dialogs() == []


def selected(lab: Any, root: str) -> None:
    """The cell of the widget is the active one, as after a click on it, and on the screen."""
    lab.page.evaluate(
        """(root) => {
            const { content } = window.jupyterapp.shell.currentWidget, cell = document.querySelector(root).closest(".jp-Cell");
            content.activeCellIndex = content.widgets.findIndex((c) => c.node === cell);
            content.mode = "command";
            cell.querySelector(root).scrollIntoView({ block: "center" });
        }""",
        root,
    )
    lab.wait_rest(f"document.querySelector({root!r}).getBoundingClientRect()")


def button(lab: Any, root: str, name: str) -> Any:
    return lab.page.locator(root).first.get_by_role("button", name=name, exact=True)


def focused_on(lab: Any, root: str, where: str) -> None:
    selected(lab, root)
    widget = lab.page.locator(root).first
    if where == "beside everything":
        widget.locator("h2" if root != STANDALONE else ".rl-legend").first.click()
    elif where == "a slider":
        widget.locator("input[type=range]").first.focus()
    elif where == "a row":
        widget.locator("tbody tr[tabindex]").first.focus()
    elif where == "the lanes":
        widget.locator(".rl-stage canvas").first.click(position={"x": 500, "y": 60})
    elif where == "the panel":
        button(lab, root, "Outliers").click()
        widget.get_by_role("button", name="Close").focus()
    else:
        button(lab, root, where).click()


PLACES = [
    (STANDALONE, "the lanes"), (STANDALONE, "Arrows"), (STANDALONE, "the panel"), (STANDALONE, "beside everything"),
    (BOARD, "the lanes"), (BOARD, "Fit"), (BOARD, "Pause"), (BOARD, "beside everything"),
    (EXPLORER_ROOT, "Reset"), (EXPLORER_ROOT, "a slider"), (EXPLORER_ROOT, "a row"), (EXPLORER_ROOT, "beside everything"),
]  # fmt: skip
DAILY = [(STANDALONE, "the lanes"), (STANDALONE, "the panel"), (BOARD, "Pause"), (BOARD, "beside everything"), (EXPLORER_ROOT, "a slider"), (EXPLORER_ROOT, "a row")]


@pytest.mark.usefixtures("no_dialog_stays")
@pytest.mark.parametrize(("root", "where"), [pytest.param(*place, marks=[] if place in DAILY else pytest.mark.long) for place in PLACES])
def test_no_key_touches_the_cells(lab: Any, root: str, where: str) -> None:
    errors = watch_errors(lab.page)
    focused_on(lab, root, where)
    before, inside = lab.page.evaluate(NOTEBOOK), "(root) => Boolean(document.activeElement.closest(root))"
    assert lab.page.evaluate(inside, root)
    for key in LETTERS:
        lab.page.keyboard.press(key)
        assert lab.page.evaluate(NOTEBOOK) == before, f"{key} in {root}, {where}"
    lab.page.wait_for_timeout(200)  # what might come late
    assert lab.page.evaluate(NOTEBOOK) == before and lab.page.locator(".jp-Dialog").count() == 0
    assert lab.page.evaluate(inside, root) and not errors


@pytest.mark.usefixtures("no_dialog_stays")
@pytest.mark.parametrize(("root", "where"), [p for p in PLACES if p[0] == STANDALONE or p[1] in ("the lanes", "Fit")])
def test_wasd_pans_and_zooms_wherever_the_focus_is(lab: Any, root: str, where: str) -> None:
    focused_on(lab, root, where)
    timeline = root if root == STANDALONE else f"{root} .rl-timeline"
    lab.page.keyboard.press("f")

    def seen() -> tuple[float, float]:
        """Middle and width of what is in sight."""
        start, end = map(float, data(lab, timeline, "range").split(","))
        return (start + end) / 2, end - start

    for key, which, sign in [("w", 1, -1), ("w", 1, -1), ("a", 0, -1), ("d", 0, 1), ("s", 1, 1)]:
        lab.wait_rest(f"document.querySelector({timeline!r}).dataset.range")
        before = seen()
        lab.page.keyboard.press(key)
        lab.wait_until(lambda which=which, sign=sign, before=before: sign * (seen()[which] - before[which]) > 0, f"{key} from {where}", 5)


@pytest.mark.usefixtures("no_dialog_stays")
@pytest.mark.parametrize(("root", "where"), [(STANDALONE, "the lanes"), (STANDALONE, "search"), (BOARD, "Fit"), (EXPLORER_ROOT, "a slider")])
def test_a_key_with_control_reaches_the_page(lab: Any, root: str, where: str, jupyterlab_session: Any) -> None:
    """Ctrl+S saves the notebook."""
    if where == "search":
        selected(lab, root)
        lab.page.locator(f"{root} .rl-search").click()
    else:
        focused_on(lab, root, where)
    path, mark = Path(jupyterlab_session.root) / "keys.ipynb", f"{root} {where}"
    lab.page.evaluate("(mark) => window.jupyterapp.shell.currentWidget.content.model.sharedModel.setMetadata('saved_by', mark)", mark)
    lab.press_save()
    assert json.loads(path.read_text(encoding="utf-8"))["metadata"].get("saved_by") == mark


@pytest.mark.usefixtures("no_dialog_stays")
def test_text_goes_into_the_search_field_and_nowhere_else(lab: Any) -> None:
    selected(lab, STANDALONE)
    before, seen = lab.page.evaluate(NOTEBOOK), data(lab, STANDALONE, "range")
    field = lab.page.locator(f"{STANDALONE} .rl-search")
    field.click()
    lab.page.keyboard.type("xabvddwasd / 1")
    assert field.input_value() == "xabvddwasd / 1"
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.press("Home")
    lab.page.keyboard.press("Delete")
    assert field.input_value() == "abvddwasd / 1"
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.type("train")
    lab.page.keyboard.press("Enter")
    lab.wait_until(lambda: lab.page.locator(f"{STANDALONE} .rl-found").inner_text().endswith(" found"), "what was found")
    lab.page.keyboard.press("Shift+Enter")
    assert field.input_value() == "train" and lab.page.evaluate(NOTEBOOK) == before
    lab.page.keyboard.press("Escape")
    assert field.input_value() == "" and data(lab, STANDALONE, "range") != seen, "the hit was looked at"
    assert lab.page.evaluate("() => document.activeElement.tagName") == "CANVAS" and lab.page.evaluate(NOTEBOOK) == before


@pytest.mark.usefixtures("no_dialog_stays")
def test_tab_and_escape_leave_the_widget(lab: Any) -> None:
    """Tab goes to the next button; Escape closes the panel first, and the next one gives the keys back to the cell."""
    focused_on(lab, STANDALONE, "Outliers")
    lab.page.keyboard.press("Tab")
    assert lab.page.evaluate("() => document.activeElement.textContent") == "Arrows"
    panel = lab.page.locator(f"{STANDALONE} .rl-details")
    assert panel.is_visible()
    lab.page.keyboard.press("Escape")
    assert not panel.is_visible() and lab.page.evaluate("() => document.activeElement.tagName") == "CANVAS"
    lab.page.keyboard.press("Escape")
    assert lab.page.evaluate("() => document.activeElement.classList.contains('jp-Cell')")
    count = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
    cells = lab.page.evaluate(count)
    lab.page.keyboard.press("b")
    lab.wait_until(lambda: lab.page.evaluate(count) == cells + 1, "a new cell: the keys are the notebook's again", 5)


def test_a_link_of_the_panel_leaves_the_keys_to_the_lanes(browser: Any, tmp_path: Path) -> None:
    """The link goes as it is followed, and the focus with it."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step = recorder.track("w", 0, ("cpu:0",)), recorder.name("step")
    for i in range(40):
        recorder.add(track, SpanKind.RUN, step, 10_000 * i, 10_000 * i + (9000 if i == 17 else 3000), 0)
    timeline.extend(recorder.drain())
    page = browser.new_page(viewport={"width": 1000, "height": 500})
    page.goto(timeline_html(timeline, tmp_path / "outlier.html").as_uri())
    seen = "() => document.getElementById('timeline').dataset.range"
    page.get_by_role("button", name="Outliers").click()
    page.locator(".rl-link").first.click()
    assert page.evaluate("() => document.activeElement.tagName") == "CANVAS"
    page.wait_for_timeout(200)
    before = page.evaluate(seen)
    page.keyboard.press("s")
    page.wait_for_function(f"() => ({seen})() !== '{before}'", timeout=5000)
    page.close()
