"""A real run under its dashboard's buttons, in JupyterLab; and a page of hundreds of lanes under mouse and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pipeline_cell import pipeline_cell
from test_live_widgets import cut_off, data, watch_errors

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]
ARTIFACTS = Path(__file__).resolve().parents[2] / "test-artifacts"
RUN = pipeline_cell("endless", 4, 0.02, 0.03)


def test_a_real_run_is_paused_resumed_and_stopped_from_its_dashboard(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("real", [RUN, 'print("STATE", run.state, run.error, run.timeline.bubble_sum_error_ns())']))
    errors = watch_errors(lab.page)
    lab.execute("notebook:run-cell-and-select-next")
    board = ".rl-dashboard"
    iteration = lambda: int(data(lab, board, "iteration") or 0)  # noqa: E731
    lab.wait_until(lambda: lab.page.locator(board).count() and iteration() >= 3, "iterations")
    button = lambda name: lab.page.get_by_role("button", name=name, exact=True)  # noqa: E731
    button("Pause").click()
    lab.wait_until(lambda: data(lab, board, "state") == "paused", "the pause")
    seen = [-1]

    def rests() -> bool:  # the iteration under way is finished first
        before, seen[0] = seen[0], iteration()
        lab.page.wait_for_timeout(400)
        return before == seen[0] == iteration()

    lab.wait_until(rests, "rest")
    at = iteration()
    button("Resume").click()
    lab.wait_until(lambda: iteration() > at + 2, "more iterations")
    lab.page.locator(board).evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.page.wait_for_timeout(300)
    lab.screenshot("dashboard-real-run")
    assert cut_off(lab) == []
    lab.save()
    at, spans = iteration(), int(data(lab, ".rl-timeline", "spans"))
    lab.reload()  # the run goes on meanwhile
    lab.wait_until(lambda: lab.page.locator(board).count() and iteration() > at + 2, "the run after the reload")
    lab.wait_until(lambda: int(data(lab, ".rl-timeline", "spans") or 0) > spans, "its spans")  # drawn after the state
    lab.page.locator(board).evaluate("(e) => e.scrollIntoView({block: 'end'})")
    button("Stop").click()
    lab.wait_until(lambda: data(lab, board, "state") == "stopped", "the stop")
    lab.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")  # a click on an output has chosen its cell
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: "STATE stopped None 0" in "".join(lab.page.locator(".jp-OutputArea").all_inner_texts()), "the state in the kernel")
    assert not errors


RING = """
import threading
import rlinf_lab as lab
release = threading.Event()

class Polite(lab.Worker):
    def go(self, inbox: lab.Inbox, out: lab.Outbox):
        if self.is_ready():  # whether it reads at all is up to its state: that both wait for the other to begin is found while they run
            for batch in inbox:
                out.put(len(batch))

    def is_ready(self):
        return True

class Busy(lab.Worker):
    def count(self):
        release.wait(120)

flow = lab.Workflow("after you")
there, back = flow.channel("there"), flow.channel("back")
a, b, busy = flow.worker(Polite, name="a"), flow.worker(Polite, name="b"), flow.worker(Busy)

@flow.iteration
def iteration():
    a.go(back, there)
    b.go(there, back)
    return busy.count()

run = lab.run(flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"a": [0], "b": [1], "busy": [2]}), 1, emulate=True)
"""


@pytest.mark.long
def test_workers_that_wait_for_each_other_are_drawn_while_they_do_and_after_that_failed(jupyterlab: Any) -> None:
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook("ring", [RING, "release.set()"]), theme="dark")
    errors = watch_errors(lab.page)
    lab.execute("notebook:run-cell-and-select-next")
    still = lab.page.locator(".rl-still").first
    lab.wait_until(lambda: lab.page.locator(".rl-still").count() and still.is_visible(), "the explanation")
    edges = lambda: set(still.locator('.rl-waits [data-edge][data-cycle="true"]').evaluate_all("(all) => all.map((e) => e.dataset.edge)"))  # noqa: E731
    assert edges() == {"a[0] > b[0]", "b[0] > a[0]"}
    assert "Nothing has moved for" in still.inner_text() and "busy[0].count computes" in still.inner_text()
    lab.page.locator(".rl-dashboard").evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.page.wait_for_timeout(300)
    lab.screenshot("dashboard-ring-dark")
    lab.execute("notebook:run-cell-and-select-next")
    lab.wait_until(lambda: data(lab, ".rl-dashboard", "state") == "failed", "the end")
    lab.wait_until(lambda: "Nothing can move any more" in still.inner_text(), "the reason")
    assert edges() == {"a[0] > b[0]", "b[0] > a[0]"} and not errors


def large(ranks: int = 300, steps: int = 40) -> Timeline:
    """Ranks on devices of their own that wait for a slow one; one step is ten times as long."""
    recorder, made = Recorder(limit=1 << 20), Timeline()
    name, waited, channel = recorder.name("step"), recorder.name("step"), recorder.channel("obs")
    driver = recorder.track("driver", 0)
    for step in range(steps):
        recorder.add(driver, SpanKind.MARK, recorder.name("iteration"), step * 1000, step * 1000 + 1000, step)
    for rank in range(ranks):
        track = recorder.track("simulator", rank, (f"cpu:{rank}",))
        for step in range(steps):
            begin, long = step * 1000, 900 if (rank, step) == (7, 20) else 90
            for part in range(5):
                recorder.add(track, SpanKind.RUN, name, begin + 100 * part, begin + 100 * part + (long if part == 0 and long > 90 else 60), step)
                if long > 90:
                    break
            if long == 90:
                recorder.add(track, SpanKind.GET, waited, begin + 500, begin + 990, step, 1, 8, channel, rank)
    made.extend(recorder.drain())
    return made


@pytest.mark.long
def test_hundreds_of_lanes_under_mouse_and_keys(jupyterlab: Any, tmp_path: Path) -> None:
    made = large()
    page = jupyterlab.open_file(timeline_html(made, tmp_path / "large.html", "Three hundred lanes"), theme="light")
    errors = watch_errors(page)
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.spans == {len(made)}", timeout=20_000)
    canvas, details = page.locator("#timeline canvas").first, page.locator(".rl-details")
    until = lambda what: page.wait_for_function(f"() => {what}", timeout=15_000)  # noqa: E731
    frames = lambda: int(page.evaluate("() => document.getElementById('timeline').dataset.frames"))  # noqa: E731
    canvas.click(position={"x": 500, "y": 5})
    picture = canvas.screenshot()
    for key in ("PageDown", "End"):
        before = frames()
        page.keyboard.press(key)
        until(f"document.getElementById('timeline').dataset.frames > {before}")
        assert canvas.screenshot() != picture, key
        picture = canvas.screenshot()
    page.screenshot(path=str(ARTIFACTS / "timeline-300-lanes-light.png"))
    canvas.press("Home")
    canvas.press("o")
    until("document.querySelector('.rl-details').innerText.includes('simulator 7 step')")
    details.get_by_role("button", name="simulator 7 step").first.click()
    until("document.querySelector('.rl-details').innerText.includes('900 ns')")
    canvas.press("Escape")
    canvas.press("f")
    until("document.getElementById('timeline').dataset.range.startsWith('0,')")
    for key in ("w", "w", "d", "a", "s"):
        before = page.evaluate("() => document.getElementById('timeline').dataset.range")
        canvas.press(key)
        until(f"document.getElementById('timeline').dataset.range != '{before}'")
    canvas.press("f")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 15)  # the ruler: a drag selects
    page.mouse.down()
    page.mouse.move(box["x"] + 900, box["y"] + 15, steps=4)
    page.mouse.up()
    until("document.querySelector('.rl-details').innerText.includes('selected')")
    assert not errors
