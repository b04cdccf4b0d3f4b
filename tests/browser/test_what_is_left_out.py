"""What a picture leaves out is said in the picture, and what is there is not cut: arrows, legends, rows of counters, labels seen from afar, tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import assets, timeline_html
from rlinf_lab.widgets.assets import stylesheet

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]
MS = 1_000_000


def handed_over(iterations: int, items: int) -> Timeline:
    """Each item is put by one worker and got by another."""
    recorder, timeline = Recorder(), Timeline(["cpu:0", "cpu:1"])
    source, sink, driver = recorder.track("source", 0, ("cpu:0",)), recorder.track("sink", 0, ("cpu:1",)), recorder.track("driver", 0)
    make, use, mark, channel = (recorder.name(n) for n in ("make", "use", "iteration", "channel"))
    for i in range(iterations):
        begin = i * items * MS
        for k in range(items):
            at = begin + k * MS
            recorder.add(source, SpanKind.RUN, make, at, at + 800_000, i)
            recorder.add(source, SpanKind.PUT, make, at + 800_000, at + 900_000, i, 1, 0, channel, k)
            recorder.add(sink, SpanKind.GET, use, at + 500_000, at + 900_000, i, 1, 0, channel, k)
        recorder.add(driver, SpanKind.MARK, mark, begin, begin + items * MS, i)
    timeline.extend(recorder.drain())
    return timeline


def opened(browser: Any, path: Path, size: tuple[int, int] = (1000, 500)) -> Any:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    page.goto(path.as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0 && document.getElementById('timeline').dataset.plot", timeout=15_000)
    return page


def with_arrows(browser: Any, path: Path) -> str:
    """What is said once arrows are asked for."""
    page = opened(browser, path)
    assert page.locator(".rl-note").inner_text() == ""
    frames = page.evaluate("() => Number(document.getElementById('timeline').dataset.frames)")
    page.locator("#timeline canvas").first.press("r")
    page.wait_for_function(f"() => document.getElementById('timeline').dataset.frames > {frames}", timeout=10_000)
    said = page.locator(".rl-note").inner_text()
    page.locator("#timeline canvas").first.press("r")
    page.wait_for_function("() => !document.querySelector('.rl-note').textContent", timeout=10_000)
    page.close()
    return said


def test_arrows_that_are_not_drawn_are_told_of(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_arrows(browser, timeline_html(handed_over(2, 20), tmp_path / "few.html")) == ""
    assert "More than 240 arrows" in with_arrows(browser, timeline_html(handed_over(2, 200), tmp_path / "many.html"))
    assert "More than 4 iterations" in with_arrows(browser, timeline_html(handed_over(6, 5), tmp_path / "long.html"))
    links = (assets.STATIC / "links.js").read_text(encoding="utf-8")
    few = tmp_path / "static"
    few.mkdir()
    for file in assets.STATIC.iterdir():
        (few / file.name).write_bytes(file.read_bytes())
    (few / "links.js").write_text(links.replace("const MOST = 4000000", "const MOST = 1000"), encoding="utf-8")
    monkeypatch.setattr(assets, "STATIC", few)
    assets.module.cache_clear()
    try:
        path = timeline_html(handed_over(1, 400), tmp_path / "huge.html")
    finally:
        assets.module.cache_clear()
    assert "Iteration 0 has more than 1,000 spans" in with_arrows(browser, path)


def test_a_long_name_leaves_the_others_their_place_in_the_legend(browser: Any, tmp_path: Path) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    for i, name in enumerate(["a" * 300, "<img src=x onerror=alert(1)>", "policy"]):
        recorder.add(recorder.track(name, 0, ("cpu:0",)), SpanKind.RUN, recorder.name("work"), 2 * i * MS, 2 * i * MS + MS, 0)
    timeline.extend(recorder.drain())
    page = opened(browser, timeline_html(timeline, tmp_path / "legend.html"))
    legend, keys = page.locator(".rl-legend").first.bounding_box(), page.locator(".rl-legend .rl-key")
    boxes = {keys.nth(i).inner_text(): keys.nth(i).bounding_box() for i in range(keys.count())}
    assert {"policy", "busy"} <= boxes.keys()
    for box in boxes.values():
        assert box["x"] + box["width"] <= legend["x"] + legend["width"] + 1 and box["y"] + box["height"] <= legend["y"] + legend["height"] + 1
    page.close()


@pytest.mark.parametrize("height", [380, *(pytest.param(height, marks=pytest.mark.long) for height in (330, 401, 450))])
def test_no_row_of_counters_is_cut_while_lanes_can_give_way(browser: Any, tmp_path: Path, height: int) -> None:
    made, recorder = handed_over(2, 20), Recorder()  # its channel has a row, too
    for i in range(16):
        for k in range(10):
            recorder.counter(f"counter {i}", k * MS, float(k))
    made.extend(recorder.drain())
    page = opened(browser, timeline_html(made, tmp_path / "rows.html"), (900, height))
    # Each row has a line at its foot and texts at its ends: where its pixels end, the gutter's texts tell.
    page.add_init_script("""(() => {
        const fill = CanvasRenderingContext2D.prototype.fillRect, clear = CanvasRenderingContext2D.prototype.setTransform;
        window.feet = [];
        CanvasRenderingContext2D.prototype.setTransform = function (...at) { window.feet = []; return clear.apply(this, at); };
        CanvasRenderingContext2D.prototype.fillRect = function (x, y, w, h) {
            if (h === 1 && w > 500) window.feet.push(y);
            return fill.call(this, x, y, w, h);
        };
    })()""")
    page.reload()
    page.wait_for_function(
        """() => {
            const stage = document.querySelector('.rl-stage')?.clientHeight ?? 0, inside = window.feet.filter(y => y > 30 && y + 1 <= stage);
            return document.getElementById('timeline')?.dataset.counters == 17 && inside.length > 1 && stage - (inside.at(-1) + 1) <= 6;
        }""",
        timeout=15_000,
    )  # a busy machine may show a frame for a page of another height first
    feet, stage = page.evaluate("() => [window.feet, document.querySelector('.rl-stage').clientHeight]")
    feet = [y for y in feet if y > 30]
    rows = np.diff(feet)
    assert len(feet) >= 2 and np.ptp(rows) < 0.01 and 26 <= rows[0] < 52
    inside = [y for y in feet if y + 1 <= stage]
    assert inside and 0 <= stage - (inside[-1] + 1) <= 6  # the last one that is in sight ends where the picture ends
    page.close()


def test_labels_seen_from_afar_are_no_darker_than_what_they_are_part_of(browser: Any, tmp_path: Path) -> None:
    """A lane that is idle most of the time is faint, with labels in its spans and without."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step, label = recorder.track("learner", 0, ("cpu:0",)), recorder.name("train"), recorder.name("loss")
    for i in range(20_000):
        recorder.add(track, SpanKind.RUN, step, i * MS, i * MS + MS // 20, 0)
        recorder.add(track, SpanKind.LABEL, label, i * MS, i * MS + MS // 40, 0)
    timeline.extend(recorder.drain())
    page = opened(browser, timeline_html(timeline, tmp_path / "labels.html"))
    gutter, plot = map(float, page.evaluate("() => document.getElementById('timeline').dataset.plot").split(","))
    column = page.evaluate("""([x]) => {
        const canvas = document.querySelector("#timeline canvas"), ratio = canvas.width / canvas.clientWidth;
        const data = canvas.getContext("2d").getImageData(Math.round(x * ratio), 0, 1, canvas.height).data;
        return Array.from({ length: canvas.height }, (_, y) => [data[4 * y], data[4 * y + 1], data[4 * y + 2]]);
    }""", [gutter + plot / 2 + 7])  # fmt: skip
    lane = [sum(pixel) / 3 for pixel in column[52:90]]  # below the device's strip
    lane = [value for value in lane if value < 250]
    assert len(lane) > 20 and min(lane) > 140
    page.close()


def test_a_narrow_dashboard_has_room_for_its_figures(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 380, "height": 300})
    tile = "<div class='rl-kpi'><span>{}</span><div><b>{}</b><small>mean of last 5</small></div></div>"
    tiles = "".join(tile.format(*each) for each in [("Loss", "0.0526"), ("Iteration", "0.512 s"), ("Devices busy", "89 %"), ("Env steps", "1.25 k")])
    host = "<div class='rl-host' style='width: 268px'>"
    page.set_content(f"<style>{stylesheet()}</style>{host}<div class='rl-dashboard'><div class='rl-kpis'>{tiles}</div></div></div>")
    cut = page.evaluate("() => [...document.querySelectorAll('.rl-kpi > *')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)")
    assert not cut
    page.close()


BOXES = """() => {
    const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }, root = document.querySelector(".rl-timeline");
    const panel = root.querySelector(".rl-details"), body = root.querySelector(".rl-detailsbody");
    const cut = body.scrollWidth > body.clientWidth, over = panel.closest(".rl-stage") !== null;
    return { root: box(root), panel: box(panel), lanes: box(root.querySelector(".rl-stage")), cut, over };
}"""


@pytest.mark.parametrize(("width", "over"), [(380, False), (1000, True)])
def test_a_panel_lies_beside_the_lanes_where_they_are_narrow(browser: Any, tmp_path: Path, width: int, over: bool) -> None:
    page = opened(browser, timeline_html(handed_over(2, 20), tmp_path / "narrow.html"), (width, 700))
    canvas, panel = page.locator("#timeline canvas").first, page.locator(".rl-details")
    box, gutter = canvas.bounding_box(), float(page.evaluate("() => document.getElementById('timeline').dataset.plot.split(',')[0]"))
    page.mouse.move(box["x"] + gutter + 20, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + width - 60, box["y"] + 8)
    page.mouse.up()
    panel.get_by_text("selected").wait_for(timeout=10_000)
    seen = page.evaluate(BOXES)
    left, _, right, bottom = seen["root"]
    assert seen["over"] is over and not seen["cut"]
    assert left <= seen["panel"][0] and seen["panel"][2] <= right and bottom >= seen["panel"][3]
    assert seen["lanes"][3] - seen["lanes"][1] >= 250
    if not over:
        assert seen["panel"][1] >= seen["lanes"][3]
        page.get_by_role("button", name="Close").click()
        page.wait_for_function(f"() => document.querySelector('.rl-stage').clientHeight > {seen['lanes'][3] - seen['lanes'][1] + 50}", timeout=10_000)
        page.set_viewport_size({"width": 1000, "height": 700})
        page.wait_for_function("() => document.querySelector('.rl-stage .rl-details')", timeout=10_000)
    page.close()
