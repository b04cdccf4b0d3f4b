"""Depths of channels in the browser: every change as in `Timeline.depths`, whatever the messages; and what is on the screen is what was."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import feed
from rlinf_lab.widgets.assets import TIMELINE, module, stylesheet
from rlinf_lab.widgets.feed import TimelineFeed, Update

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000_123_456_789


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1200, "height": 700}, color_scheme="light")
    own = Path(__file__).with_name("depths.js").read_text(encoding="utf-8")
    page.set_content(f"<style>{stylesheet()} body {{ margin: 0 }} #timeline {{ height: 680px }}</style><div id=timeline></div>")
    page.add_script_tag(content=f"{module(*TIMELINE)}\n{own}", type="module")
    page.wait_for_function("() => window.checks", timeout=10_000)
    yield page
    page.close()


def wire(update: Update) -> tuple[dict[str, Any], dict[str, str]]:
    content, parts = update.content()
    return content, {name: base64.b64encode(part).decode() for name, part in parts.items()}


def told(timeline: Timeline, origin: int) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for row in timeline.depths().itertuples():
        found.setdefault(f"{row.channel} items", []).append([row.time_ns - origin, row.depth])
    return found


def moving(rng: random.Random, recorder: Recorder, since: int, until: int) -> None:
    """Puts and gets that end in this time (ns): short ones, and waits so long that a float of 24 bits does not hold them."""
    names = [recorder.name("step"), *(recorder.channel(c) for c in ("a", "b", "only_read"))]
    for _ in range(80):
        channel, end = rng.choice((-1, 1, 1, 2, 3)), rng.randrange(since, until)
        kind = SpanKind.GET if channel == 3 else rng.choice((SpanKind.PUT, SpanKind.PUT, SpanKind.GET, SpanKind.RUN))
        length = rng.choice((0, 0, 5, 700, 123_456_789, 4_123_456_789))
        track = recorder.track("w", rng.randrange(5), ("cpu:0",))
        recorder.add(track, kind, names[0], end - length, end, rng.randrange(4), rng.choice((0, 1, 3)), 0, names[channel] if channel > 0 else -1)


@pytest.mark.parametrize("few", [1 << 30, -1])
@pytest.mark.parametrize("each", [False, True])
def test_every_change_is_that_of_the_timeline(page: Any, monkeypatch: pytest.MonkeyPatch, few: int, each: bool) -> None:
    """In columns, in rows of both widths, in any order of arrival, after any of them; ends of iterations come before spans of them, or never."""
    monkeypatch.setattr(feed, "_FEW_SPANS", few)
    for seed in range(12):
        rng, recorder, timeline, live, messages = random.Random(seed), Recorder(), Timeline(["cpu:0"]), None, []
        recorder.add(recorder.track("w", 0, ("cpu:0",)), SpanKind.RUN, recorder.name("step"), EPOCH - 5_000_000_000, EPOCH - 4_999_999_990)
        for part in range(6):
            if part:
                late = rng.choice((0, 0, 900))
                moving(rng, recorder, EPOCH + 1000 * part - late, EPOCH + 1000 * part + 1000)
            if part in (2, 3, 4):
                recorder.add(recorder.track("driver", 0), SpanKind.MARK, recorder.name("iteration"), EPOCH, EPOCH + 1000 * part + rng.randrange(1500), part - 2)
            timeline.extend(recorder.drain(), checked=True)
            live = live or TimelineFeed(timeline)
            messages.append(wire(live.take_spans()))
        origin = int(messages[0][0]["tables"]["origin"])
        right = told(timeline, origin)
        assert set(right) == {"a items", "b items"} and min(map(len, right.values())) > 20
        assert page.evaluate("([m, each]) => checks.stepsAfter(m, each)", [messages, each]) == right, seed
        assert page.evaluate("([m, each]) => checks.stepsAfter(m, each)", [[wire(TimelineFeed(timeline).take_spans())], each]) == right, seed


def test_the_lowest_and_the_highest_of_any_stretch(page: Any) -> None:
    count, wrong = page.evaluate("() => checks.wrongBounds()")
    assert count > 4000 and wrong == []


def sampled(puts: bool, dropped: int = 0) -> Timeline:
    """A channel with samples beside its spans."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step = recorder.track("w", 0, ("cpu:0",)), recorder.name("step")
    for i in range(9):
        recorder.add(track, SpanKind.PUT if puts and i % 2 else SpanKind.GET, step, 1000 * i, 1000 * i, 0, 1, 0, recorder.channel("box"))
        recorder.counter("box items", 1000 * i, 7.0)
    timeline.extend(recorder.drain())
    timeline.dropped = dropped
    return timeline


@pytest.mark.parametrize(("puts", "dropped", "exact"), [(True, 0, True), (True, 3, False), (False, 0, False)])
def test_samples_stay_only_where_spans_do_not_tell(page: Any, puts: bool, dropped: int, exact: bool) -> None:
    content, parts = wire(TimelineFeed(sampled(puts, dropped)).take(final=True))
    assert page.evaluate("([c, p]) => checks.show(c, p)", [content, parts]) == ["box items"]
    assert page.evaluate("() => view.rows.find((r) => r.title === 'box items').series.steps") == exact


def slow_run() -> Timeline:
    """That of notebook 31: two samplers hand a learner all 32 responses of an iteration at once."""
    cells = json.loads((ROOT / "notebooks/31_reading_a_timeline.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names: dict[str, Any] = {}
    exec(source[: source.index("lab.show(slow")], names)
    names["slow"].wait()
    return names["slow"].timeline


def test_notebook_31_shows_that_all_prompts_wait_in_every_iteration(page: Any) -> None:
    """Samples, two a second, drew 12, 4, 0, 0, 0 and nothing. (The tip of a peak that is taken at once may be two pixels of half the ink.)"""
    timeline = slow_run()
    content, parts = wire(TimelineFeed(timeline).take(final=True))
    assert {"prompts items", "responses items"} <= set(page.evaluate("([c, p]) => checks.show(c, p)", [content, parts]))
    for channel in ("prompts items", "responses items"):
        assert page.evaluate("(title) => checks.highestDrawn(title)", channel) == [pytest.approx(32, abs=3.3)] * 6, channel  # a pixel is 1.6
