"""Names on spans, titles in the gutter and numbers of iterations: they stay where they belong, and what fits is said."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]
MS = 1_000_000
DEVICE = "node-with-a-very-long-host-name.example.internal/cuda:0"

#: Every text of the last frame: [text, left, right, y].
WATCH = """(() => {
    const draw = CanvasRenderingContext2D.prototype.fillText, clear = CanvasRenderingContext2D.prototype.setTransform;
    window.texts = [];
    CanvasRenderingContext2D.prototype.setTransform = function (...at) { window.texts = []; return clear.apply(this, at); };
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const { width } = this.measureText(text), left = this.textAlign === "right" ? x - width : this.textAlign === "center" ? x - width / 2 : x;
        window.texts.push([text, left, left + width, y]);
        return draw.call(this, text, x, y);
    };
})()"""


def drawn(browser: Any, timeline: Timeline, path: Path, width: int = 1366) -> tuple[list[Any], float, float]:
    """Texts, the gutter's width and that of the plot."""
    page = browser.new_page(viewport={"width": width, "height": 500})
    page.add_init_script(WATCH)
    page.goto(timeline_html(timeline, path).as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0 && window.texts.length", timeout=15_000)
    texts, plot = page.evaluate("() => [window.texts, document.getElementById('timeline').dataset.plot]")
    page.close()
    gutter, wide = map(float, plot.split(","))
    return texts, gutter, wide


def made(names: list[str], iterations: int, each: int = 40 * MS) -> Timeline:
    recorder, timeline = Recorder(), Timeline([DEVICE])
    track, driver, mark = recorder.track("w", 0, (DEVICE,)), recorder.track("driver", 0), recorder.name("iteration")
    for i, name in enumerate(names):
        recorder.add(track, SpanKind.RUN, recorder.name(name), i * each, i * each + each - 2 * MS, 0)
    length = len(names) * each // iterations
    for i in range(iterations):
        recorder.add(driver, SpanKind.MARK, mark, i * length, (i + 1) * length, i)
    timeline.extend(recorder.drain())
    return timeline


def test_a_name_stays_within_its_span_whatever_its_letters(browser: Any, tmp_path: Path) -> None:
    names = ["W" * 12 + "i" * 40, "i" * 40 + "W" * 12, "\N{GRINNING FACE}" * 30, "short", "i" * 12] * 2
    texts, gutter, plot = drawn(browser, made(names, 1), tmp_path / "names.html")
    spans = [(text, left, right) for text, left, right, y in texts if left > gutter and y > 50 and text[0] in "Wis\N{GRINNING FACE}"]
    assert len(spans) == len(names)
    for text, left, right in spans:
        place = int((left - gutter) / (plot / len(names)))
        assert right <= gutter + (place + 1) * plot / len(names), text
        whole = names[place]
        assert text == whole or (whole.startswith(text[:-1]) and text.endswith("…") and len(text) > 3), "a character is not cut in two"
    assert {"short", "i" * 12} <= {text for text, *_ in spans}


def test_titles_end_before_the_percentage_beside_them(browser: Any, tmp_path: Path) -> None:
    texts, gutter, _ = drawn(browser, made(["a"], 1), tmp_path / "gutter.html")
    (title,) = (t for t in texts if t[0].startswith("node-with"))
    (share,) = (t for t in texts if t[0].endswith(" %") and t[2] < gutter)
    assert title[2] + 3 < share[1] and title[0].endswith("…/cuda:0")


@pytest.mark.parametrize("iterations", [5, pytest.param(300, marks=pytest.mark.long), 4000])
def test_of_any_number_of_iterations_some_are_numbered_and_no_number_meets_another(browser: Any, tmp_path: Path, iterations: int) -> None:
    texts, gutter, plot = drawn(browser, made(["a"] * 40, iterations), tmp_path / "marks.html")
    numbers = [(int(text), left, right) for text, left, right, y in texts if text.isdigit() and left > gutter and y < 30]
    assert len(numbers) >= min(iterations, 10) and numbers[0][0] == 0
    assert all(before[2] + 2 < after[1] for before, after in itertools.pairwise(numbers)) and numbers[-1][2] <= gutter + plot
    for number, left, _ in numbers:
        assert left - 4 == pytest.approx(gutter + number * plot / iterations, abs=1.5), "it stands at the beginning of its own"


def test_devices_of_several_nodes_are_told_apart(browser: Any, tmp_path: Path) -> None:
    names = [f"node{n}/cuda:{i}" for n in (1, 12) for i in range(4)] + ["gpu-server-17/cuda:0", "gpu-server-17/cuda:1"]
    recorder, timeline = Recorder(), Timeline(names)
    for rank, name in enumerate(names):
        recorder.add(recorder.track("trainer", rank, (name,)), SpanKind.RUN, recorder.name("step"), rank * MS, (rank + 50) * MS, 0)
    timeline.extend(recorder.drain())
    texts, gutter, _ = drawn(browser, timeline, tmp_path / "nodes.html")
    left = [text for text, *_ in texts if "cuda:" in text]
    assert sorted(left) == sorted(names)  # whole: there is room for them
    assert all(right < gutter for text, _, right, _ in texts if "cuda:" in text)


def test_a_worker_that_sits_on_no_device_and_has_only_labels_has_a_lane(browser: Any, tmp_path: Path) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    recorder.add(recorder.track("w", 0, ("cpu:0",)), SpanKind.RUN, recorder.name("step"), 0, 40 * MS, 0)
    recorder.add(recorder.track("hosty", 0), SpanKind.LABEL, recorder.name("host label"), 0, 40 * MS, 0)
    timeline.extend(recorder.drain())
    texts, *_ = drawn(browser, timeline, tmp_path / "labels.html")
    assert any(text.startswith("hosty") for text, *_ in texts)


CONTRASTS = """async () => {
    const linear = (v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = (r, g, b) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const draw = CanvasRenderingContext2D.prototype.fillText, found = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        if (text.startsWith("part ")) { // the ground beside the first letter, and the ink
            const ratio = window.devicePixelRatio, [r, g, b] = this.getImageData(Math.round((x - 2) * ratio), Math.round(y * ratio), 1, 1).data;
            const n = parseInt(this.fillStyle.slice(1), 16), a = luminance(r, g, b), c = luminance(n >> 16, (n >> 8) & 255, n & 255);
            found.push((Math.max(a, c) + 0.05) / (Math.min(a, c) + 0.05));
        }
        return draw.call(this, text, x, y);
    };
    window.dispatchEvent(new Event("resize"));
    const canvas = document.querySelector("#timeline canvas");
    canvas.focus();
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "f", bubbles: true }));
    await new Promise((done) => setTimeout(done, 600));
    return found;
}"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_names_on_labels_are_legible_over_every_worker(browser: Any, tmp_path: Path, theme: Any) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    for i in range(10):  # as many as there are colours
        track = recorder.track(f"worker{i}", 0, ("cpu:0",))
        recorder.add(track, SpanKind.RUN, recorder.name("step"), 0, 40 * MS, 0)
        recorder.add(track, SpanKind.LABEL, recorder.name(f"part {i}"), 0, 40 * MS, 0)
    timeline.extend(recorder.drain())
    page = browser.new_page(viewport={"width": 1366, "height": 900}, color_scheme=theme)
    page.goto(timeline_html(timeline, tmp_path / f"{theme}.html").as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0", timeout=15_000)
    found = page.evaluate(CONTRASTS)
    page.close()
    assert len(found) >= 10 and min(found) >= 4.8, found


LONG = ["cluster-name-of-production-gpu-node-{:02d}.eu-west.internal", "gpu-node-{:02d}.cluster.some-company.internal", "node{}"]


@pytest.mark.parametrize("node", LONG)
def test_devices_of_nodes_whose_long_names_differ_anywhere_are_told_apart(browser: Any, tmp_path: Path, node: str) -> None:
    devices = [f"{node.format(n)}/cuda:{k}" for n in range(1, 4) for k in range(2)]
    recorder, timeline = Recorder(), Timeline(devices)
    for rank, device in enumerate(devices):
        recorder.add(recorder.track("w", rank, (device,)), SpanKind.RUN, recorder.name("step"), 0, MS, 0)
    timeline.extend(recorder.drain())
    texts, gutter, _ = drawn(browser, timeline, tmp_path / "nodes.html")
    titles = [t for t in texts if "/cuda:" in t[0] and t[1] < gutter]
    shares = [t for t in texts if t[0].endswith(" %") and t[2] < gutter]
    assert len({t[0] for t in titles}) == len(devices) == len(shares)
    assert max(t[2] for t in titles) < min(t[1] for t in shares), "none is over its share"
