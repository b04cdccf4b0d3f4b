"""A worker's colour follows from its name: in the browser as in Python, and in two views of one page."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.draw import palette
from rlinf_lab.widgets import timeline_html
from rlinf_lab.widgets.assets import TIMELINE, module

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]
MS = 1_000_000


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.add_script_tag(content=f"{module(*TIMELINE)}\nwindow.parts = {{ colourNumbers }};", type="module")
    page.wait_for_function("() => window.parts", timeout=10_000)
    yield page
    page.close()


def test_the_browser_gives_the_numbers_that_python_gives(page: Any) -> None:
    rng = random.Random(2)
    letters = "abcz 019_-/[]\u00e9\u05e9\u30e6\N{GRINNING FACE}"
    for _ in range(60):
        names = ["".join(rng.choices(letters, k=rng.randrange(9))) for _ in range(rng.randint(1, 24))]
        cut = rng.randint(0, len(names))
        told = page.evaluate("([a, b]) => [...parts.colourNumbers(a, b)]", [names[:cut], names[cut:]])
        assert dict(told) == palette.colour_numbers(names[:cut], names[cut:])


def timeline_of(workers: list[str]) -> Timeline:
    recorder, timeline = Recorder(), Timeline([f"cpu:{i}" for i in range(len(workers))])
    for i, worker in enumerate(workers):
        recorder.add(recorder.track(worker, 0, (f"cpu:{i}",)), SpanKind.RUN, recorder.name("work"), i * MS, 9 * MS, 0)
    timeline.extend(recorder.drain())
    return timeline


def test_another_plan_or_a_second_timeline_changes_no_colour(browser: Any, tmp_path: Path) -> None:
    seen = []
    for i, (order, over) in enumerate([(["b", "a", "c"], None), (["a", "c", "b"], None), (["c"], ["b", "a", "c"])]):
        other = timeline_of(over) if over else None
        page = browser.new_page(color_scheme="light")
        page.goto(timeline_html(timeline_of(order), tmp_path / f"{i}.html", over=other).as_uri())
        page.wait_for_function("() => document.getElementById('timeline').dataset.spans > 0", timeout=15_000)
        seen.append(page.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".rl-key")]
            .filter((key) => key.title.startsWith("worker ")).map((key) => [key.textContent, key.querySelector("i").style.background]))"""))
        page.close()
    assert seen[0] == seen[1] == seen[2] and len(set(seen[0].values())) == 3
