"""Many workers, many devices, long times: nothing is cut, what does not fit can be opened, and a nanosecond has its pixel."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from test_names_and_marks import WATCH, drawn

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]
MS = 1_000_000
RULER = 30


def many(workers: int, devices: int, name: str = "worker_{}", iterations: int = 2) -> Timeline:
    """Each worker has a rank on every so many devices; each rank computes and waits."""
    names = [f"cuda:{k}" for k in range(devices)]
    recorder, timeline = Recorder(), Timeline(names)
    step, mark, driver = recorder.name("step"), recorder.name("iteration"), recorder.track("driver", 0)
    for w in range(workers):
        for rank, device in enumerate(names[w % devices :: workers]):
            track = recorder.track(name.format(w), rank, (device,))
            for i in range(iterations):
                recorder.add(track, SpanKind.RUN, step, (100 * i + w % 30) * MS, (100 * i + 60) * MS, i)
                recorder.add(track, SpanKind.GET, step, (100 * i + 60) * MS, (100 * i + 70) * MS, i)
                recorder.add(track, SpanKind.RUN, step, (100 * i + 70) * MS, (100 * i + 80) * MS, i)
    for i in range(iterations):
        recorder.add(driver, SpanKind.MARK, mark, 100 * i * MS, 100 * (i + 1) * MS, i)
    timeline.extend(recorder.drain())
    return timeline


def opened(browser: Any, timeline: Timeline, path: Path, size: tuple[int, int] = (1366, 768), **options: Any) -> Any:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.add_init_script(WATCH)
    page.goto(timeline_html(timeline, path, **options).as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0 && window.texts.length", timeout=15_000)
    return page


KEYS = """() => {
    const legend = document.querySelector('.rl-legend'), box = legend.getBoundingClientRect(), ofWorker = (e) => e.title.startsWith('worker ');
    const inside = ({ height, top, bottom }) => height && top >= box.top - 1 && bottom <= box.bottom + 1;
    const seen = [...legend.querySelectorAll('.rl-key')].filter((e) => inside(e.getBoundingClientRect()));
    return { workers: seen.filter(ofWorker).length, others: seen.filter((e) => !ofWorker(e)).map((e) => e.textContent),
             height: box.height, scrolls: legend.scrollHeight > legend.clientHeight + 1 };
}"""


@pytest.mark.parametrize("width", [1366, *(pytest.param(width, marks=pytest.mark.long) for width in (1000, 1920))])
def test_a_legend_of_many_workers_is_two_lines_with_all_causes_and_opens(browser: Any, tmp_path: Path, width: int) -> None:
    page = opened(browser, many(38, 64), tmp_path / "legend.html", (width, 768))
    found = page.evaluate(KEYS)
    assert found["height"] <= 34 and not found["scrolls"]
    assert {"busy", "starved", "drain"} <= set(found["others"])
    more = page.locator(".rl-more")
    hidden = int(re.fullmatch(r"\+(\d+) more", more.inner_text())[1])
    assert found["workers"] + hidden == 38 and found["workers"] >= 3
    more.click()
    page.wait_for_function("() => document.querySelector('.rl-more').textContent === 'fewer'")
    everything = page.evaluate(KEYS)
    assert (everything["workers"] == 38 or everything["scrolls"]) and more.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Enter")  # the button has the focus
    page.wait_for_function("() => document.querySelector('.rl-more').textContent.startsWith('+')")
    assert page.evaluate(KEYS) == found
    page.close()


def test_a_legend_with_room_for_all_offers_nothing_more(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, many(5, 4), tmp_path / "few.html")
    assert page.evaluate(KEYS)["workers"] == 5 and not page.locator(".rl-more").is_visible()
    page.close()


@pytest.mark.parametrize("height", [411, *(pytest.param(height, marks=pytest.mark.long) for height in (300, 555, 768))])
def test_no_lane_in_sight_is_cut_at_either_end_however_one_scrolls(browser: Any, tmp_path: Path, height: int) -> None:
    page = opened(browser, many(38, 64), tmp_path / "lanes.html", (1200, height))
    page.locator("#timeline canvas").first.focus()
    state = "() => [window.texts, document.getElementById('timeline').dataset, document.querySelector('#timeline canvas').clientHeight]"
    seen = set()
    for key in ["Home", *["ArrowDown"] * 9, "PageDown", "PageDown", "ArrowUp", "End"]:
        page.keyboard.press(key)
        page.wait_for_timeout(60)
        texts, data, canvas = page.evaluate(state)
        gutter, bottom = float(data["plot"].split(",")[0]), float(data["bottom"])
        assert canvas - 60 < bottom <= canvas
        for text, _, right, y in texts:
            if right < gutter and y > RULER and (re.match(r"worker_\d+ \d+$", text) or text.startswith("cuda:")):
                assert y + 5 <= bottom or y - 5 >= bottom, f"{text} is cut below after {key}"
                assert y - 5 >= RULER or y + 5 <= RULER, f"{text} is cut above after {key}"
                if y + 5 <= bottom:
                    seen.add(text)
    assert "cuda:63" in seen and "cuda:0" in seen, "both ends are reached"
    page.close()


def test_workers_whose_long_names_differ_in_the_middle_are_told_apart(browser: Any, tmp_path: Path) -> None:
    timeline = many(12, 4, "a_worker_with_quite_a_long_name_number_{}_of_the_third_stage")
    texts, gutter, _ = drawn(browser, timeline, tmp_path / "workers.html")
    lanes = [text for text, left, right, y in texts if right < gutter and y > RULER and "stage" in text]
    assert len(lanes) == len(set(lanes)) == 12
    page = opened(browser, timeline, tmp_path / "workers.html")
    keys = page.locator(".rl-legend .rl-key[title^='worker ']:visible").all_inner_texts()
    assert len(keys) == len(set(keys)) >= 3
    page.close()


def test_the_button_says_which_iteration_two_timelines_are_aligned_by(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, many(2, 2, iterations=5), tmp_path / "over.html", over=many(2, 2, iterations=5))
    align = page.get_by_role("button", name="Align:")
    assert align.inner_text() == "Align: iteration 2"  # in the middle of all
    page.locator("#timeline canvas").first.focus()
    for _ in range(5):
        page.keyboard.press("w")
    for _ in range(30):
        page.keyboard.press("a")
    page.wait_for_function("() => [...document.querySelectorAll('.rl-tool')].some((b) => b.textContent === 'Align: iteration 0')", timeout=5000)
    align.click()
    assert align.inner_text() == "Align: start"
    page.close()
    page = opened(browser, many(1, 1), tmp_path / "other.html", over=later(many(1, 1)))
    assert page.get_by_role("button", name="Align:").inner_text() == "Align: start (no iteration of both)"
    page.close()


def later(timeline: Timeline) -> Timeline:
    """The same with other numbers of iterations."""
    recorder, made = Recorder(), Timeline(timeline.devices)
    for s in timeline.rows():
        track = recorder.track(s.track.worker, s.track.rank, s.track.devices)
        recorder.add(track, s.kind, recorder.name(s.name), s.start_ns, s.end_ns, s.iteration + 100)
    made.extend(recorder.drain())
    return made


@pytest.mark.parametrize("hours", [0.01, 3, 24 * 30])
def test_a_lone_nanosecond_has_a_pixel_in_a_month(browser: Any, tmp_path: Path, hours: float) -> None:
    rng, whole = random.Random(5), round(hours * 3600e9)
    times = [round(whole * (k + rng.random()) / 30) for k in range(30)]
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step = recorder.track("w", 0, ("cpu:0",)), recorder.name("step")
    recorder.add(track, SpanKind.LABEL, recorder.name("first"), 0, 1, 0)
    for at in times:
        recorder.add(track, SpanKind.RUN, step, at, at + 1, 0)
    recorder.add(recorder.track("driver", 0), SpanKind.MARK, recorder.name("iteration"), 0, whole, 0)
    timeline.extend(recorder.drain())
    page = opened(browser, timeline, tmp_path / "lone.html", (1000, 400))
    columns = page.evaluate(
        """() => {
            const canvas = document.querySelector('#timeline canvas'), [gutter, plot] = document.getElementById('timeline').dataset.plot.split(',').map(Number);
            const y = window.texts.find((t) => t[0] === 'w 0')[3] - 10, row = canvas.getContext('2d').getImageData(gutter, y, plot, 1).data;
            return [...Array(Math.floor(plot)).keys()].filter((x) => Math.min(row[4 * x], row[4 * x + 1], row[4 * x + 2]) < 235);
        }"""
    )
    start, end = map(float, page.evaluate("() => document.getElementById('timeline').dataset.range").split(","))
    plot = float(page.evaluate("() => document.getElementById('timeline').dataset.plot").split(",")[1])
    page.close()
    missing = [at for at in times if not any(abs(x - (at - start) / (end - start) * plot) < 2 for x in columns)]
    assert not missing and len(columns) <= 3 * len(times)
