"""Outliers of real runs, whose calls are cut into slivers by their gets and puts: like is compared with like, and ranked by the time that was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lanes import encoded, fill, tell, view_page

import rlinf_lab as lab
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html
from rlinf_lab.widgets.feed import TimelineFeed

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

MS = 1_000_000
ITERATIONS, STEPS = 10, 60
ARTIFACTS = Path(__file__).resolve().parents[2] / "test-artifacts"


class Simulator(lab.Worker):
    def collect(self, actions: lab.Inbox, obs: lab.Outbox, steps: lab.Outbox) -> None:
        for _ in range(STEPS):
            obs.put(0)
            for _ in next(iter(actions)):
                steps.put(1)


class Policy(lab.Worker):
    """Thousands of spans of some microseconds; one call, in the middle of it all, takes 200 ms."""

    def __init__(self) -> None:
        self.asked = 0

    def act(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in obs:
            self.asked += 1
            self.compute(0.2 if self.asked == 6 * STEPS + 31 else 0.0003)
            for _ in batch:
                actions.put(1)


class Learner(lab.Worker):
    """A usual call takes 30 ms, and after its last batch some microseconds; one takes 180 ms."""

    def __init__(self) -> None:
        self.called = 0

    def train(self, steps: lab.Inbox) -> int:
        self.called += 1
        count = sum(len(batch) for batch in steps)
        self.compute(0.18 if self.called == 9 else 0.03)
        return count


@pytest.fixture(scope="module")
def run() -> lab.Run:
    flow = lab.Workflow("one slow call")
    obs, actions, steps = flow.channels("obs", "actions", "steps")
    simulator, policy, learner = flow.worker(Simulator, name="simulator"), flow.worker(Policy, name="policy"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> Any:
        simulator.collect(actions, obs, steps)
        policy.act(obs, actions)
        return learner.train(steps)

    devices = ["cpu:0", "cpu:1", "cpu:2"]
    plan = lab.ExecutionPlan.spatial(flow, devices, {"simulator": [0], "policy": [1], "learner": [2]}, micro_batch=1)
    done = lab.run(flow, plan, iterations=ITERATIONS, dashboard=False, clock=MockClock())  # a busy machine would add slow calls
    done.wait()
    return done


def outliers(page: Any, timeline: Timeline) -> list[list[Any]]:
    """[name, ns, median of what is alike, how many those are, iteration, how many more are left out] of each."""
    fill(page, timeline)
    return list(page.evaluate("() => checks.outliers()"))


def test_the_slow_calls_come_first(page: Any, run: lab.Run) -> None:
    first, second, *others = outliers(page, run.timeline)
    name, ns, median, count, iteration, _ = first
    assert (name, count, iteration) == ("policy 0 act", ITERATIONS * STEPS, 6) and 200 * MS <= ns < 290 * MS and median < 20 * MS
    name, ns, median, _, iteration, _ = second
    assert (name, iteration) == ("learner 0 train", 8) and 180 * MS <= ns < 270 * MS and 30 * MS <= median < 60 * MS
    assert not any("learner" in other[0] and other[1] - other[2] > 60 * MS for other in others), "usual calls are none"


def test_a_call_is_as_long_as_all_that_its_puts_cut(page: Any) -> None:
    """Twenty calls of four turns; in one of them each turn takes twice as long, between every two puts."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, act, obs, out = recorder.track("policy", 0, ("cpu:0",)), *(recorder.name(n) for n in ("act", "obs", "actions"))
    t = 0
    for i in range(20):
        for turn in range(4):
            recorder.add(track, SpanKind.GET, act, t, t + MS, i, 2, 0, obs, 2 * turn)
            t += MS
            for _ in range(3):  # two slivers of a microsecond beside what computes
                for ns in (1000, (2 if i == 13 else 1) * MS):
                    recorder.add(track, SpanKind.RUN, act, t, t + ns, i)
                    t += ns
                    recorder.add(track, SpanKind.PUT, act, t, t, i, 1, 0, out, 0)
    timeline.extend(recorder.drain())
    assert outliers(page, timeline) == [["policy 0 act, whole call", 24 * MS + 12_000, 12 * MS + 12_000, 20, 13, 0]], "once, and not its turns as well"
    like = page.evaluate("(at) => checks.like('policy 0', at)", t - MS // 2)
    turn, call = 3 * MS + 3000, 12 * MS + 12_000
    assert like == [[MS, 240, MS, 1, "stretch"], [turn, 80, turn, 6, "get"], [call, 20, call, 24, "whole"]], "the panel"


def test_what_is_slow_again_and_again_hides_nothing_else(page: Any) -> None:
    """Every twentieth step resets an environment; three of them stand for all, and the others are counted."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, act, step, obs = recorder.track("simulator", 0, ("cpu:0",)), *(recorder.name(n) for n in ("look", "step", "obs"))
    t = 0
    for k in range(400):
        name, ns = (act, (6 if k == 199 else 1) * MS) if k % 10 == 9 else (step, (20 if k % 20 == 0 else 1) * MS)
        recorder.add(track, SpanKind.GET, name, t, t + MS, 0, 1, 0, obs, 0)
        recorder.add(track, SpanKind.RUN, name, t + MS, t + MS + ns, 0)
        t += MS + ns
    timeline.extend(recorder.drain())
    reset = ["simulator 0 step", 20 * MS, MS, 360, 0]
    assert outliers(page, timeline) == [[*reset, 0], [*reset, 0], [*reset, 17], ["simulator 0 look", 6 * MS, MS, 40, 0, 0]]


def test_many_slow_pieces_are_told_once(page: Any) -> None:
    """A step in forty is slow, and those take most of the time: turns and calls that enclose them are explained by them, whether these are listed or not."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, step, actions, obs = recorder.track("simulator", 0, ("cpu:0",)), *(recorder.name(n) for n in ("step", "actions", "obs"))
    t, slow = 0, 0
    for k in range(800):
        recorder.add(track, SpanKind.GET, step, t, t + MS, k // 20, 1, 0, actions, 0)
        slow += (is_slow := k % 40 == 5)
        after = slow * MS // 2 if is_slow else 1000  # of the slowest turns the slow stretch is not among the longest
        for ns in (250 * MS - slow * MS // 10 if is_slow else 2 * MS, after):
            t += MS
            recorder.add(track, SpanKind.RUN, step, t, t + ns, k // 20)
            t += ns
            recorder.add(track, SpanKind.PUT, step, t, t, k // 20, 1, 0, obs, 0)
    timeline.extend(recorder.drain())
    found = outliers(page, timeline)
    assert [(name, median, count, more) for name, _, median, count, _, more in found[:3]] == [("simulator 0 step", 2 * MS, 800, more) for more in (0, 0, 17)]
    assert all(ns < 11 * MS for _, ns, *_ in found[3:]), "the losses of 250 ms are told"


def test_a_source_that_only_puts_has_stretches(page: Any) -> None:
    """It gives a batch of eight at a time, so seven of eight stretches are slivers; the slow batch is found, and usual ones are not."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, make, out = recorder.track("source", 0, ("cpu:0",)), recorder.name("make"), recorder.name("out")
    t = 0
    for k in range(300):
        for ns in ((12 if k == 123 else 3) * MS, *[1000] * 7):
            recorder.add(track, SpanKind.RUN, make, t, t + ns, 0)
            t += ns
            recorder.add(track, SpanKind.PUT, make, t, t, 0, 1, 0, out, 0)
    timeline.extend(recorder.drain())
    assert outliers(page, timeline) == [["source 0 make", 12 * MS, 3 * MS, 299, 0, 0]]


def test_batches_are_compared_with_those_of_their_size(page: Any) -> None:
    """Ten times the items take ten times as long, and that is no outlier, nor is a size that comes twice; the one that takes twice as long as its like is."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, act, obs = recorder.track("policy", 0, ("cpu:0",)), recorder.name("act"), recorder.name("obs")
    t = 0
    for k in range(200):
        items = 400 if k in (50, 150) else 40 if k % 20 == 7 else 4
        ns = MS * items * (2 if k == 107 else 1) + 1000 * (k % 3)
        recorder.add(track, SpanKind.GET, act, t, t, 0, items, 0, obs, 0)
        recorder.add(track, SpanKind.RUN, act, t, t + ns, 0)
        t += ns
    timeline.extend(recorder.drain())
    ((name, ns, _, count, _, _),) = outliers(page, timeline)
    assert (name, count) == ("policy 0 act", 10) and ns == pytest.approx(80 * MS, rel=1e-4)


def test_of_nested_spans_the_one_that_explains_the_loss_is_named(page: Any) -> None:
    """As profilers record: every call encloses its parts, and a name is used at two levels."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track = recorder.track("thread", 0, ("cpu:0",))
    outer, inner, op = (recorder.name(n) for n in ("step", "linear", "mm"))
    t = 0
    for k in range(30):
        mm = 9 * MS if k == 11 else MS
        for name, begin, end in ((outer, t, t + mm + 4 * MS), (op, t, t + 3 * MS), (inner, t + 3 * MS, t + 3 * MS + mm), (op, t + 3 * MS, t + 3 * MS + mm)):
            recorder.add(track, SpanKind.RUN, name, begin, end)
        t += mm + 5 * MS
    timeline.extend(recorder.drain())
    assert outliers(page, timeline) == [["thread 0 mm", 9 * MS, MS, 30, -1, 0]]


def test_a_switch_that_takes_long_is_one(page: Any) -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, come, act = recorder.track("policy", 0, ("cpu:0",)), recorder.name("policy"), recorder.name("act")
    for k in range(12):
        recorder.add(track, SpanKind.ONLOAD, come, 100 * k * MS, (100 * k + (50 if k == 5 else 3)) * MS, k)
        recorder.add(track, SpanKind.RUN, act, (100 * k + 60) * MS, (100 * k + 70) * MS, k)
    timeline.extend(recorder.drain())
    assert outliers(page, timeline) == [["policy 0 policy (onload)", 50 * MS, 3 * MS, 12, 5, 0]]


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.long)])
def test_a_click_leads_to_the_slow_call(browser: Any, run: lab.Run, tmp_path: Path, theme: str) -> None:
    page = browser.new_page(viewport={"width": 1100, "height": 520}, color_scheme=theme)
    page.goto(timeline_html(run.timeline, tmp_path / "outliers.html").as_uri())
    page.get_by_role("button", name="Outliers").click()
    panel = page.locator(".rl-details")
    text = panel.inner_text()
    assert "policy 0 act: 2" in text and "× the median of 600), iteration 6, 1 item" in text
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"outliers-{theme}.png"))
    panel.get_by_role("button", name="policy 0 act: 2").first.click()
    page.wait_for_function("() => document.querySelector('.rl-details').innerText.includes('from a get of 1 item to the next')")
    start, end = map(float, page.evaluate("() => document.getElementById('timeline').dataset.range").split(","))
    assert 1200 * MS <= end - start < 1800 * MS, "six times as long as the call"
    page.screenshot(path=str(ARTIFACTS / f"outliers-there-{theme}.png"))
    page.close()


def test_what_is_at_its_level_once_is_compared_with_all_levels(page: Any) -> None:
    """One product of large matrices in a profile: those of the layers lie within other spans."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    track, linear, mm = recorder.track("thread", 0, ("cpu:0",)), recorder.name("linear"), recorder.name("mm")
    for k in range(30):
        t = 10 * k * MS
        recorder.add(track, SpanKind.RUN, linear, t, t + 3 * MS)
        recorder.add(track, SpanKind.RUN, mm, t, t + 2 * MS)
    recorder.add(track, SpanKind.RUN, mm, 301 * MS, 361 * MS)
    timeline.extend(recorder.drain())
    assert outliers(page, timeline) == [["thread 0 mm", 60 * MS, 2 * MS, 31, -1, 0]]
    assert page.evaluate("(at) => checks.like('thread 0', at)", 330 * MS) == [[2 * MS, 31, 60 * MS, 1, "whole"]]


@pytest.mark.parametrize("rank", range(4))
def test_the_panel_leaves_in_sight_what_it_tells_of(browser: Any, rank: int) -> None:
    """Four lanes in a low dashboard, and a slow call on one of them, as wide on the screen as a link makes it: over or under its lane, or beside the call."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    step = recorder.name("step")
    for r in range(4):
        track = recorder.track("simulator", r, ("cpu:0",))
        for k in range(40):
            recorder.add(track, SpanKind.RUN, step, 100 * k * MS, (100 * k + (90 if (r, k) == (rank, 20) else 10)) * MS, k)
    timeline.extend(recorder.drain())
    page = view_page(browser)
    tell(page, TimelineFeed(timeline), final=True)
    page.wait_for_function("() => document.querySelector('.rl-timeline').dataset.spans > 0", timeout=10_000)
    page.get_by_role("button", name="Outliers").click()
    panel = page.locator(".rl-details")
    panel.get_by_role("button", name=f"simulator {rank} step: 90").first.click()
    page.wait_for_function("() => view.picked && !view.details.isNew", timeout=10_000)
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"panel-beside-{rank}.png"))
    box, canvas = panel.bounding_box(), page.locator(".rl-stage canvas").bounding_box()
    above, below = page.evaluate("(rank) => { const r = view.rows.find((r) => r.track?.rank === rank); return [r.y, r.y + r.h]; }", rank)
    start, end = page.evaluate("() => { const { lane: { columns: c }, i } = view.picked; return [view.x(c.start[i]), view.x(c.start[i] + c.dur[i])]; }")
    left, top = box["x"] - canvas["x"], box["y"] - canvas["y"]
    right, bottom = left + box["width"], top + box["height"]
    assert bottom <= above or top >= below or right <= start or left >= end, "beside the call"
    assert top >= 30 and bottom <= canvas["height"], "the ruler is seen, and the panel is not cut"
    assert page.evaluate("() => { const b = document.querySelector('.rl-detailsbody'); return b.scrollHeight <= b.clientHeight; }"), "all of it can be read"
    page.close()


def slow_call_of_two(slow: int, iteration: int = 20) -> tuple[Recorder, Timeline]:
    """Two ranks with a call of 10 ms every 100 ms; one of the first rank takes longer."""
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    step = recorder.name("step")
    for rank in range(2):
        track = recorder.track("simulator", rank, ("cpu:0",))
        for k in range(40):
            recorder.add(track, SpanKind.RUN, step, 100 * k * MS, (100 * k + (slow if (rank, k) == (0, iteration) else 10)) * MS, k)
    timeline.extend(recorder.drain())
    return recorder, timeline


def test_what_comes_while_they_are_looked_for_moves_them(page: Any) -> None:
    """A span that encloses the slow one comes late: that lies on the second line then. After a reset there is nothing that could be shown."""
    recorder, timeline = slow_call_of_two(90)
    feed = TimelineFeed(timeline)
    fill(page, timeline, feed)
    recorder.add(0, SpanKind.RUN, 0, 1950 * MS, 2500 * MS, 20)
    timeline.extend(recorder.drain())
    found = page.evaluate("([c, p]) => checks.outlierWhile(() => checks.more(c, p))", encoded(feed))
    assert found == [1, 2000 * MS, 90 * MS]
    assert page.evaluate("() => checks.outlierWhile((store) => store.reset())") is None


def test_the_page_goes_on_while_millions_are_looked_at(browser: Any) -> None:
    """Each look may take a millisecond here instead of 24, so that some thousand spans take long: progress is told, frames come, and closing ends it."""
    page = view_page(browser)
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    step = recorder.name("step")
    for rank in range(64):
        track = recorder.track("simulator", rank, ("cpu:0",))
        for k in range(800):
            recorder.add(track, SpanKind.RUN, step, 100 * k * MS, (100 * k + (90 if (rank, k) == (63, 700) else 10)) * MS, k)
    timeline.extend(recorder.drain())
    tell(page, TimelineFeed(timeline), final=True)
    page.wait_for_function("() => document.querySelector('.rl-timeline').dataset.spans > 0", timeout=10_000)
    page.evaluate("""() => {
        const body = document.querySelector('.rl-detailsbody');
        window.seen = []; window.frames = 0;
        new MutationObserver(() => seen.push(body.innerText)).observe(body, { childList: true });
        const now = performance.now.bind(performance); performance.now = () => 24 * now();
        const count = () => { frames++; requestAnimationFrame(count); }; count();
    }""")
    page.get_by_role("button", name="Outliers").click()
    page.wait_for_function("() => document.querySelector('.rl-detailsbody').innerText.includes('simulator 63 step: 90')", timeout=30_000)
    seen, frames = page.evaluate("() => [seen, frames]")
    told = [int(text.split(" %")[0]) for text in seen if "of the spans looked at" in text]
    assert len(told) > 2 and told == sorted(told) and frames > 1, (told, frames)
    page.evaluate("() => { seen.length = 0; view.details.showOutliers(); view.details.close(); }")
    page.wait_for_timeout(500)
    assert not page.locator(".rl-details").is_visible(), "who closes it does not want it any more"
    page.close()
