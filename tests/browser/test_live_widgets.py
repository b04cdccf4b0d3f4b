"""The widgets in JupyterLab in Chromium: live while a cell is busy, zoom, theme, reload, commands, saved picture."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from widget_samples import SampleRun

from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

DASHBOARD = """
import math, random
from widget_samples import DEVICES, SampleRun, picture
from rlinf_lab.widgets import Dashboard
sample = SampleRun()
board = Dashboard("Meta-World button-press", plan="spatial: cpu:0 | cpu:1", devices=DEVICES, iterations=60)
heard = []
board.on_command(heard.append)
share = lambda p, i: min(1, max(0, p + 0.06 * math.sin(i / 3) + random.gauss(0, 0.04)))
for i in range(40):
    row = sample.step()
    state = {"state": "running", "iteration": i + 1, "elapsed_seconds": 3 + 0.6 * i, "eta_seconds": 0.6 * (59 - i)}
    board.push(state, [row], sample.timeline, {"cpu:0": share(0.86, i), "cpu:1": share(0.62, i)})
board.push(timeline=sample.timeline, frame=picture(), final=True)
board
"""
# The cell stays busy in pure Python until the page has shown what the thread pushed and pressed a button (or 30 s are over).
BUSY = """
import threading, time
pushed, ended, heard_at = [], threading.Event(), []
board.on_command(lambda command: (heard_at.append(len(pushed)), ended.set()))
def pushing():
    while not ended.is_set():
        board.push({"state": "running", "iteration": sample.iteration + 1}, [sample.step()], sample.timeline)
        pushed.append(sample.iteration)
        ended.wait(0.1)
thread = threading.Thread(target=pushing)
thread.start()
limit, turns = time.monotonic() + 30, 0
while not ended.is_set() and time.monotonic() < limit:
    turns += 1
ended.set()
thread.join()
print("HEARD", heard)
"""


def pixels(page: Any, selector: str) -> np.ndarray:
    """The element as it is on the screen, (height, width, 3)."""
    return np.asarray(Image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("RGB"))


def data(lab: Any, selector: str, name: str) -> str:
    return lab.page.locator(selector).first.evaluate(f"(e) => e.dataset.{name} ?? ''")


def cut_off(lab: Any) -> list[str]:
    """Texts of parts of the dashboard that do not fit into themselves, or reach out of it."""
    return lab.page.evaluate(
        """() => {
            const right = document.querySelector('.rl-dashboard').getBoundingClientRect().right;
            return [...document.querySelectorAll('.rl-dashboard header, .rl-kpi, .rl-top, .rl-cause, .rl-utilrow, .rl-panel')]
                .filter((e) => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > right).map((e) => e.textContent);
        }"""
    )


def watch_errors(page: Any) -> list[str]:
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_dashboard_shows_a_run_and_fits_a_laptop(jupyterlab: Any, theme: str) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(f"dashboard_{theme}", [DASHBOARD]), theme=theme)
    errors = watch_errors(lab.page)
    lab.run_all()
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40", "40 iterations")
    lab.wait_until(lambda: int(data(lab, ".rl-timeline", "spans") or 0) > 5000, "the spans")
    lab.page.locator(".rl-dashboard").evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.page.wait_for_timeout(300)
    lab.screenshot(f"dashboard-{theme}")
    box = lab.page.locator(".rl-dashboard").bounding_box()
    assert box["height"] <= 560
    assert cut_off(lab) == []
    assert not errors and not lab.errors()
    background = pixels(lab.page, ".rl-timeline .rl-stage")[-3, 3]
    assert (background.mean() > 200) == (theme == "light")


def test_pushes_and_buttons_work_while_the_cell_is_busy(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("busy", [DASHBOARD, BUSY]))
    lab.run_all(wait=False)
    lab.wait_until(lambda: int(data(lab, ".rl-dashboard", "iteration") or 0) >= 42, "deltas from the thread", 60)
    before = pixels(lab.page, ".rl-timeline canvas")
    seen = int(data(lab, ".rl-dashboard", "iteration"))
    lab.wait_until(lambda: int(data(lab, ".rl-dashboard", "iteration")) >= seen + 3, "more deltas")
    after = pixels(lab.page, ".rl-timeline canvas")
    assert lab.is_computing()
    assert before.shape == after.shape and (before != after).any(axis=2).mean() > 0.01
    lab.screenshot("dashboard-busy")
    lab.page.get_by_role("button", name="Pause").click()
    # The button ends the cell's loop: were it answered only after the cell, the loop would run into its limit.
    lab.wait_kernel("idle", 20)
    lab.wait_until(lambda: "HEARD ['pause']" in lab.page.locator(".jp-OutputArea").all_inner_texts()[-1], "the command")


def hover(lab: Any, canvas: Any, x: float, y: float) -> None:
    """Move the mouse to a point of the canvas, wherever the canvas is by now: outputs above it may still grow."""
    box = canvas.bounding_box()
    lab.page.mouse.move(box["x"] + x, box["y"] + y)


def drag(lab: Any, canvas: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press at one point of the canvas, move to another, release."""
    hover(lab, canvas, *start)
    lab.page.mouse.down()
    hover(lab, canvas, *end)
    lab.page.mouse.up()


@pytest.mark.long
def test_zoom_pan_search_selection_and_theme(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("zoom", [DASHBOARD, "from rlinf_lab.widgets import TimelineView\nTimelineView(sample.timeline)"]))
    errors = watch_errors(lab.page)
    lab.run_all()
    view = ".rl-standalone"
    lab.wait_until(lambda: int(data(lab, view, "spans") or 0) > 5000, "the spans")
    canvas = lab.page.locator(f"{view} canvas").first
    canvas.scroll_into_view_if_needed()
    span = lambda: [float(v) for v in data(lab, view, "range").split(",")]  # noqa: E731
    lab.page.get_by_role("button", name="Follow").last.click()
    whole = span()

    def zoomed() -> bool:
        # One wheel event a look: a busy browser merges several into one, and one zooms by no more than a step.
        hover(lab, canvas, 600, 80)
        lab.page.mouse.wheel(0, -120)
        return span()[1] - span()[0] < 0.1 * (whole[1] - whole[0])

    lab.wait_until(zoomed, "zoom")
    canvas.click(position={"x": 500, "y": 80})
    left = span()[0]
    lab.page.keyboard.press("d")
    lab.wait_until(lambda: span()[0] > left, "pan by key")
    hover(lab, canvas, 590, 44)  # the row of the first device: every moment of it has a cause
    lab.wait_until(lambda: lab.page.locator(f"{view} .rl-tip").is_visible(), "tooltip")
    lab.screenshot("timeline-zoomed-light")
    lab.page.keyboard.down("Shift")
    drag(lab, canvas, (300, 80), (700, 90))
    lab.page.keyboard.up("Shift")
    lab.wait_until(lambda: "selected" in lab.page.locator(f"{view} .rl-details").inner_text(), "the statistics")
    lab.page.locator(f"{view} .rl-search").fill("act")
    lab.wait_until(lambda: "found" in lab.page.locator(f"{view} .rl-found").inner_text(), "search")
    # The corner below the lanes: bare background, whatever part of the run the zoom has ended at.
    corner = lambda: pixels(lab.page, f"{view} canvas")[-2, 1].mean()  # noqa: E731
    assert corner() > 200
    lab.set_theme("dark")
    lab.wait_until(lambda: data(lab, view, "theme") == "dark", "the theme")
    lab.wait_until(lambda: corner() < 60, "dark pixels")
    lab.screenshot("timeline-selection-dark")
    canvas.dblclick(position={"x": 500, "y": 80})
    lab.wait_until(lambda: span()[0] == 0 and span()[1] >= whole[1], "fit")
    assert not errors


def test_reload_brings_the_history_back_once(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("reload", [DASHBOARD]))
    lab.run_all()
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40", "40 iterations")
    spans = data(lab, ".rl-timeline", "spans")
    lab.save()
    saved = json.loads((jupyterlab.root / "reload.ipynb").read_text())
    bundle = saved["cells"][0]["outputs"][0]["data"]
    assert "<svg" in "".join(bundle["text/html"]) and "Dashboard(" in "".join(bundle["text/plain"])
    lab.reload()
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40" if lab.page.locator(".rl-dashboard").count() else False, "the dashboard", 40)
    lab.wait_until(lambda: data(lab, ".rl-timeline", "spans") == spans, "the same number of spans")


@pytest.mark.long
def test_a_reload_while_the_cell_is_busy_shows_the_saved_picture_and_then_the_widget(jupyterlab: Any) -> None:
    """Jupyter asks the kernel for its widgets, which answers when the cell ends."""
    busy = "import os, time\nwhile not os.path.exists('go on'):\n    pass"
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("reload-busy", [DASHBOARD, busy]))
    lab.run_all(wait=False)
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40", "40 iterations")
    prompts = lab.page.locator(".jp-InputPrompt")  # the kernel's status flickers by the widget's messages
    lab.wait_until(lambda: prompts.all_inner_texts() == ["[1]:", "[*]:"], "the second cell is at work")
    lab.save()
    lab.page.goto(lab.url)  # the page does not even know the kernel's state until it has answered
    picture, board = lab.page.locator(".rlinf-lab-still"), lab.page.locator(".rl-dashboard")
    lab.wait_until(lambda: picture.count() == 1 and picture.is_visible(), "the picture", 40)
    assert board.count() == 0
    lab.screenshot("reload-busy")
    (jupyterlab.root / "go on").touch()
    lab.wait_until(lambda: board.count() == 1 and data(lab, ".rl-dashboard", "iteration") == "40", "the dashboard", 40)
    lab.wait_until(lambda: not picture.is_visible(), "the picture hides")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_notebook_that_is_opened_again_shows_the_pictures(jupyterlab: Any, theme: str) -> None:
    """Its kernel has gone, and no widget with it; while there is one the picture above it hides. A widget that is shown twice has a picture each time, and
    one whose cell is run again, too."""
    view = "from rlinf_lab.widgets import TimelineView\nview = TimelineView(sample.timeline)\nview"
    path = jupyterlab.write_notebook(f"again-{theme}", [DASHBOARD, view, "view"])
    lab = jupyterlab.open_notebook(path, theme=theme)
    lab.run_all()
    timelines = lab.page.locator(".rl-timeline")
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40" and timelines.count() == 3, "the widgets")
    lab.execute("notebook:run-cell")
    lab.wait_until(lambda: timelines.count() == 3 and "[4]:" in lab.page.locator(".jp-InputPrompt").all_inner_texts(), "the last one again")
    pictures = lab.page.locator(".rlinf-lab-still")
    assert pictures.count() == 3 and not any(picture.is_visible() for picture in pictures.all())
    lab.save()
    lab.wait_until(lambda: path.read_text().count('class=\\"rlinf-lab-still') == 3, "the file")
    jupyterlab.close_pages()
    lab = jupyterlab.open_notebook(path, theme=theme, fresh=True)
    no_model = lab.page.get_by_text("Error displaying widget")
    lab.wait_until(lambda: no_model.count() == 3, "widgets without a model")
    assert not any(message.is_visible() for message in no_model.all())
    pictures = lab.page.locator(".rlinf-lab-still")
    assert pictures.count() == 3 and all(picture.is_visible() for picture in pictures.all())
    assert {"cpu:0", "simulator", "starved"} <= set(pictures.last.locator("text").all_text_contents())
    lab.screenshot(f"opened-again-{theme}")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_converted_notebook_shows_the_picture(jupyterlab: Any, tmp_path: Path, theme: str) -> None:
    """`jupyter nbconvert --to html` of a saved notebook: no widget runs there, the picture of the end is seen."""
    from nbconvert import HTMLExporter

    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("converted", [DASHBOARD]))
    lab.run_all()
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "iteration") == "40", "40 iterations")
    lab.save()
    html, _ = HTMLExporter(theme=theme).from_filename(str(jupyterlab.root / "converted.ipynb"))
    (tmp_path / "converted.html").write_text(html, encoding="utf-8")
    page = jupyterlab.open_file(tmp_path / "converted.html", theme=theme)
    picture = page.locator('svg[role="img"]').last
    picture.scroll_into_view_if_needed()
    page.screenshot(path=str(Path(__file__).resolve().parents[2] / "test-artifacts" / f"nbconvert-{theme}.png"))
    assert {"cpu:0", "simulator", "starved"} <= set(picture.locator("text").all_text_contents())
    assert picture.bounding_box()["width"] > 600
    assert page.get_by_text("Meta-World button-press").last.is_visible()
    assert page.locator('svg[role="img"]').count() == 1 and page.locator(".rlinf-lab-still").count() == 1, "one picture, not one of each output"


def test_page_without_a_kernel(jupyterlab: Any, tmp_path: Path) -> None:
    sample = SampleRun()
    for _ in range(12):
        sample.step()
    path = timeline_html(sample.timeline, tmp_path / "timeline.html", "Twelve iterations </script> & more")
    page = jupyterlab.open_file(path, theme="dark")
    errors = watch_errors(page)
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.spans == {len(sample.timeline)}", timeout=15_000)
    page.screenshot(path=str(Path(__file__).resolve().parents[2] / "test-artifacts" / "timeline-page-dark.png"))
    assert not errors and "</script> & more" in page.locator("h1").inner_text()
    assert len(np.unique(pixels(page, "#timeline canvas").reshape(-1, 3), axis=0)) > 20


FAILED = (
    DASHBOARD
    + """
board.push({"state": "failed", "eta_seconds": None, "message": "Worker 'policy' rank 0 failed in act(): ValueError: 3 actions, 4 observations"})
board
"""
)


@pytest.mark.parametrize("width", [pytest.param(1100, marks=pytest.mark.long), 640])
def test_a_failed_run_says_so_in_a_narrow_window(jupyterlab: Any, width: int) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(f"failed_{width}", [FAILED]), size=(width, 768))
    lab.run_all()
    lab.wait_until(lambda: lab.page.locator(".rl-dashboard").count() and data(lab, ".rl-dashboard", "state") == "failed", "the state")
    lab.page.locator(".rl-dashboard").evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.page.wait_for_timeout(300)
    lab.screenshot(f"dashboard-failed-{width}")
    assert lab.page.get_by_role("button", name="Stop").is_disabled()
    assert "3 actions, 4 observations" in lab.page.locator(".rl-message").inner_text()
    assert cut_off(lab) == []


BOXES = """(all) => all.map((e) => {
    const [box, all, panel] = [e, e.closest('svg'), e.closest('.rl-still')].map((node) => node.getBoundingClientRect());
    return {name: e.dataset.node, stroke: getComputedStyle(e.querySelector('rect')).stroke, left: box.left, right: box.right,
            inside: box.top >= panel.top && box.bottom <= panel.bottom && all.left >= panel.left && all.bottom <= panel.bottom && all.right <= panel.right};
})"""
STILL = (
    DASHBOARD
    + """
board.push({"state": "running", "standstill": [
    "Nothing has moved for 7 s", "simulator[0] waits for items of channel 'actions'", "policy[0] waits for its devices (cpu:0 is held by simulator[0])",
    "reward[0] waits for the value of policy[0]",
    "driver[0] waits for the calls of this iteration", "logger[0].write computes", "a cycle: simulator[0] → policy[0] → simulator[0]"],
    "waits": {"nodes": [
        {"name": "simulator[0]", "text": "items of channel 'actions'", "computes": False},
        {"name": "policy[0]", "text": "its devices (cpu:0 is held by simulator[0])", "computes": False},
        {"name": "reward[0]", "text": "the value of policy[0]", "computes": False}, {"name": "logger[0]", "text": "computes write", "computes": True}],
        "edges": [[0, 1, "actions"], [1, 0, "cpu:0"], [2, 1, ""]], "cycles": [[0, 1]]}})
board
"""
)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_a_standstill_is_drawn_and_explained_until_something_moves(jupyterlab: Any, theme: str) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(f"still_{theme}", [STILL, "board.push({'standstill': []})"]), theme=theme)
    errors = watch_errors(lab.page)
    lab.execute("notebook:run-cell-and-select-next")
    still = lab.page.locator(".rl-still").first
    lab.wait_until(still.is_visible, "the explanation")
    lab.page.locator(".rl-dashboard").evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.page.wait_for_timeout(300)
    lab.screenshot(f"dashboard-standstill-{theme}")
    assert still.locator(".rl-cycle").inner_text() == "a cycle: simulator[0] → policy[0] → simulator[0]"
    edges = still.locator(".rl-waits [data-edge]").evaluate_all(
        "(all) => all.map((e) => [e.dataset.edge, e.dataset.cycle, e.querySelector('text')?.textContent ?? ''])"
    )
    assert sorted(map(tuple, edges)) == [
        ("policy[0] > simulator[0]", "true", "cpu:0"), ("reward[0] > policy[0]", "false", ""), ("simulator[0] > policy[0]", "true", "actions"),
    ]  # fmt: skip
    boxes = {e["name"]: e for e in still.locator(".rl-waits [data-node]").evaluate_all(BOXES)}
    assert len(boxes) == 4 and len({boxes[name]["stroke"] for name in ("policy[0]", "simulator[0]")}) == 1
    assert len({boxes[name]["stroke"] for name in ("policy[0]", "reward[0]", "logger[0]")}) == 3, "the cycle, who computes and the others are told apart"
    assert boxes["reward[0]"]["right"] < boxes["policy[0]"]["left"] < boxes["simulator[0]"]["left"]
    assert all(box["inside"] for box in boxes.values()), "the whole graph is in sight"
    panel, lanes, board = (lab.page.locator(f".rl-dashboard {part}").first.bounding_box() for part in (".rl-still", ".rl-stage", ".rl-lanes"))
    assert panel["y"] >= lanes["y"] + lanes["height"] and lanes["height"] >= 100, "it lies below the lanes, over none"
    assert panel["y"] + panel["height"] <= board["y"] + board["height"]
    assert lab.page.locator(".rl-dashboard").bounding_box()["height"] < 650, "and all of it fits on a laptop's screen"
    still.locator("summary").click()
    lab.wait_until(lambda: not still.locator(".rl-waits").is_visible(), "folded away")
    assert still.locator(".rl-cycle").is_visible() and cut_off(lab) == [] and not errors
    lab.run_all()
    lab.wait_until(lambda: not lab.page.locator(".rl-still").first.is_visible(), "its end")


ROWS = """
from rlinf_lab.widgets import Dashboard
board = Dashboard("rows", charts=["loss"])
board.push({"state": "running", "iteration": 8}, [{"iteration": i, "seconds": 0.1, "x": -1234567.0 + i} for i in range(8)])
board
"""


def test_rows_that_come_again_replace_theirs_and_names_may_change(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(
        jupyterlab.write_notebook(
            "rows",
            [
                ROWS,
                'board.push(metrics=[{"iteration": i, "seconds": 0.1, "loss": float(i)} for i in range(8)])',
                'board.push(metrics=[{"iteration": i, "seconds": 0.1, "a.loss": float(i), "b.loss": 50.0} for i in range(8)])',
                'other = Dashboard("other", charts=["return|reward", "value_loss|loss"])\nother',
                'other.push(metrics=[{"iteration": i, "seconds": 0.1, "reward": float(i), "loss": 50.0} for i in range(8)])',
            ],
        )
    )
    errors = watch_errors(lab.page)

    def tiles() -> list[str]:
        return lab.page.locator(".rl-kpi").evaluate_all("(all) => all.map((e) => e.firstChild.textContent + ' ' + e.querySelector('b').textContent)")

    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: tiles() == ["X −1.23 M", "Iteration 0.100 s"], "what there is, for want of the metric that was asked for")
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: tiles() == ["Loss 7.00", "Iteration 0.100 s"], "the metric that came late")
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: tiles() == ["Loss · a 7.00", "Loss · b 50.0", "Iteration 0.100 s"], "a name for each worker")
    assert lab.page.locator(".rl-chart h3").all_inner_texts() == ["Loss · a", "Loss · b"]
    lab.execute("notebook:run-cell-and-select-next")
    second = lab.page.locator(".rl-dashboard").nth(1)
    lab.wait_until(lambda: second.locator(".rl-chart h3").all_inner_texts() == ["Return", "Value loss"], "the first of each, until it is known what there is")
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: second.locator(".rl-chart h3").all_inner_texts() == ["Reward", "Loss"], "those that there are")
    assert cut_off(lab) == [] and not errors and not lab.errors()
