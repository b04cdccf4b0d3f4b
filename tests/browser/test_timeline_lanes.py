"""The timeline's arithmetic in the browser's own engine: mean colours, exact sums, nested spans, arrows, causes."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lanes import fill
from widget_samples import pipeline

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.critical.flows import arrows
from rlinf_lab.widgets import feed
from rlinf_lab.widgets.feed import TimelineFeed

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

MS = 1_000_000
ROOT = Path(__file__).parents[2]


def test_a_delta_of_rows_says_what_one_of_columns_says(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of an epoch's clock are beyond 2^53; spans that overlap, in any order of arrival."""
    rng, recorder, timeline, epoch = random.Random(3), Recorder(), Timeline(["cpu:0", "cpu:1"]), 1_700_000_000_123_456_789
    tracks = [recorder.track("w", r, (f"cpu:{r % 2}",)) for r in range(5)]
    names = [recorder.name(n) for n in ("a", "b", "c")]
    for _ in range(600):
        start, kind = epoch + rng.randrange(10**9) + 1, rng.randrange(len(SpanKind))
        length = rng.choice((0, 7, rng.randrange(10**7)))
        numbers = rng.randrange(-1, 4), rng.randrange(9), rng.randrange(1 << 40), rng.choice((-1, names[2])), rng.choice((-1, 5, 1 << 40))
        recorder.add(rng.choice(tracks), kind, rng.choice(names), start, start + length, *numbers)
    timeline.extend(recorder.drain())
    seen = []
    for few in (1 << 30, -1):
        monkeypatch.setattr(feed, "_FEW_SPANS", few)
        layout = TimelineFeed(timeline).take().layout
        assert layout is not None and ("columns" in layout) == (few < 0)
        fill(page, timeline)
        seen.append(page.evaluate("() => checks.held()"))
    assert seen[0] == seen[1] and seen[0][-1][0] == 600


def test_rows_as_a_recorder_wrote_them_say_the_same(page: Any) -> None:
    rng, recorder, timeline, epoch = random.Random(5), Recorder(), Timeline(["cpu:0", "cpu:1"]), 1_700_000_000_123_456_789
    tracks = [recorder.track("w", r, (f"cpu:{r % 2}",)) for r in range(70)]
    names = [recorder.name(n) for n in ("a", "b", "c")]
    recorder.add(tracks[0], SpanKind.RUN, names[0], epoch, epoch + 5)
    live = TimelineFeed(timeline)
    timeline.extend(recorder.drain(), checked=True)
    first = live.take_spans()
    for _ in range(600):
        start, kind = epoch + rng.randrange(10**9) + 1, rng.randrange(len(SpanKind))
        iteration, items = rng.choice((-1, 0, (1 << 27) - 1)), rng.choice((0, 9, 65_535))
        numbers = iteration, items, rng.randrange(1 << 32), rng.choice((-1, names[2])), rng.choice((-1, 5, (1 << 31) - 1))
        recorder.add(rng.choice(tracks), kind, rng.choice(names), start, start + rng.choice((0, 7, rng.randrange(10**7), (1 << 32) - 1)), *numbers)
    timeline.extend(recorder.drain(), checked=True)
    second = live.take_waiting()
    assert second is not None and second.layout is not None and second.layout["count"] == 600
    seen = []
    for updates in ([first, second], [TimelineFeed(timeline).take_spans()]):
        told = [(content, {name: base64.b64encode(part).decode() for name, part in parts.items()}) for content, parts in (u.content() for u in updates)]
        page.evaluate("([c, p]) => checks.fill(c, p)", told[0])
        for content, parts in told[1:]:
            page.evaluate("([c, p]) => checks.more(c, p)", [content, parts])
        seen.append(page.evaluate("() => checks.held()"))
    assert seen[0] == seen[1] and seen[0][-1][0] == 601


def test_every_pixel_has_the_mean_colour_of_its_time(page: Any) -> None:
    """On the whole range and inside it, appended in several batches."""
    assert page.evaluate("() => checks.wrongPixels()") == []


def test_what_a_search_found_is_seen_among_what_it_did_not_find(page: Any) -> None:
    found = page.evaluate("() => checks.pixelsWithHits()")
    assert found["missed"] == 0 and found["there"] >= 25


def test_instants_are_ticks_and_a_search_lists_them(page: Any) -> None:
    assert page.evaluate("() => checks.wrongTicks()") == []


def test_one_steps_through_all_that_a_search_found(page: Any) -> None:
    """Also what begins at the same time, on any lane and on one, and what took no time."""
    recorder, timeline = Recorder(), Timeline(["cpu:0", "cpu:1"])
    tracks, step = [recorder.track("w", r, (f"cpu:{r}",)) for r in range(2)], recorder.name("step")
    for at in (0, 5, 5, 9):
        for track in tracks:
            recorder.add(track, SpanKind.PUT, step, at * MS, at * MS, 0)
            if at == 5:
                recorder.add(track, SpanKind.RUN, step, at * MS, at * MS + MS, 0)
    timeline.extend(recorder.drain())
    fill(page, timeline)
    forwards, backwards, hits = page.evaluate("() => checks.walked('step')")
    assert hits == 12 == len(forwards) == len({tuple(seen) for seen in forwards}) and backwards == forwards[::-1]


def test_sums_of_any_range_are_exact(page: Any) -> None:
    assert page.evaluate("() => checks.worstSum()") < 1e-6


def test_nested_and_late_spans_find_their_lane(page: Any) -> None:
    """Whatever the order of arrival: no overlap on a lane, nothing lost, and what encloses lies above what it encloses."""
    found = page.evaluate("() => checks.nestedStack()")
    assert found["count"] == found["n"] > 1000
    assert found["overlaps"] == 0 and found["inverted"] == 0 and found["depth"] == 5


def test_a_search_counts_and_draws_what_it_found_also_in_what_comes_later(page: Any) -> None:
    hits, there, drawn = page.evaluate("() => checks.searchHits()")
    assert hits == there == drawn > 100


def test_arrows_are_those_of_an_exported_trace(page: Any) -> None:
    timeline = pipeline()
    fill(page, timeline)
    slow, fast = page.evaluate("() => checks.arrowTexts()")
    spans, tracks = timeline.spans, timeline.tracks
    name = lambda row: f"{tracks[spans['track'][row]].worker} {tracks[spans['track'][row]].rank} {spans['flow'][row]}"  # noqa: E731
    expected = sorted(f"{spans['iteration'][p]} {name(p)} > {name(g)}" for p, g in zip(*arrows(spans), strict=True))
    assert slow == fast == expected and len(expected) == 40


def test_a_bubble_says_its_cause_and_follows_who_was_waited_for(page: Any) -> None:
    fill(page, pipeline())
    found = page.evaluate("() => checks.explained('cpu:1', 'starved')")
    assert found["title"] == "cpu:1: starved" and "iteration 1" in found["lines"][1] and found["lines"][1].startswith("39.0 ms")
    assert found["chain"] == ["policy 0 waited for input from channel obs", "simulator 0 ran step (100 % of it)"]
    chain = page.evaluate("() => checks.explained('cpu:2', 'fill')")["chain"]
    assert chain[0] == "learner 0 waited for input from channel traj"
    assert chain[1] == "policy 0 waited for input from channel obs" and chain[2].startswith("simulator 0 ran step")


def test_the_outlier_is_the_slow_step(page: Any) -> None:
    fill(page, pipeline())
    assert page.evaluate("() => checks.outliers()") == [["simulator 0 step", 40 * MS, 5 * MS, 18, 1, 0]]


def test_statistics_of_a_range_agree_with_the_timeline(page: Any) -> None:
    timeline = pipeline()
    fill(page, timeline)
    found = page.evaluate("(to) => checks.statistics(0, to)", timeline.elapsed_ns)
    busy = timeline.busy().set_index("device")["ns"]
    assert {d["device"]: d["busy"] for d in found["devices"]} == pytest.approx(busy.to_dict(), rel=1e-6)
    steps = next(n for n in found["names"] if n["worker"] == "simulator")
    assert steps["count"] == 20 and steps["total"] == pytest.approx(135 * MS) and steps["most"] == 40 * MS


@pytest.mark.long
@pytest.mark.parametrize(("name", "case"), [
    pytest.param("timeline_fps", "timeline_fps_nested", marks=pytest.mark.slow), ("event_to_screen", "event_to_screen_python"),
])  # fmt: skip
def test_a_benchmark_in_the_browser_runs(name: str, case: str) -> None:
    done = subprocess.run([sys.executable, "benchmarks/harness.py", name, "--smoke"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert case in done.stdout
