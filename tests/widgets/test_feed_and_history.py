"""What the kernel sends: spans and bubbles exactly once, numbered deltas, a history that equals their sum."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from widget_samples import LiveRun, SampleRun, picture

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.record.batch import SPAN_DTYPE
from rlinf_lab.widgets import Dashboard, TimelineView, fallback, timeline_html
from rlinf_lab.widgets import feed as feed_module
from rlinf_lab.widgets.fallback import WIDGET, dashboard_still
from rlinf_lab.widgets.feed import Numbers, TimelineFeed, Update
from rlinf_lab.widgets.packing import BUSY, IDLE_WIRE


def columns(update: Update) -> dict[str, np.ndarray]:
    """Undo the packing."""
    assert update.layout is not None
    n = update.layout["count"]
    if "columns" not in update.layout:
        rows = np.frombuffer(update.spans, SPAN_DTYPE)
        assert len(rows) == n
        return {name: rows[name] for name in ("track", "kind")} | {"start": (rows["start"] - int(update.layout["origin"])).astype(np.float64)}
    out = {name: np.frombuffer(update.spans, kind, n, offset) for name, kind, offset in update.layout["columns"]}
    return out | {"start": out["start"] + update.layout["shift"]}


def triples(updates: list[Update]) -> list[tuple]:
    """(start, track, kind) of every span of some updates, sorted."""
    rows: list[tuple] = []
    for u in updates:
        if u.spans:
            c = columns(u)
            rows += zip(c["start"].tolist(), c["track"].tolist(), c["kind"].tolist(), strict=True)
    return sorted(rows)


def capture(widget: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, list]]:
    sent: list[tuple[dict, list]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, list(buffers or []))))
    return sent


def expected(sample: SampleRun | LiveRun) -> list[tuple]:
    spans = sample.timeline.spans
    return sorted(zip((spans["start"] - sample.timeline.start_ns).tolist(), spans["track"].tolist(), spans["kind"].tolist(), strict=True))


@pytest.mark.parametrize("few", [0, 5, 10_000])
def test_deltas_add_up_to_the_timeline_and_to_the_history(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones in columns; the tables come only when they change."""
    monkeypatch.setattr(feed_module, "_FEW_SPANS", few)
    sample = SampleRun(steps=3)
    feed, updates = TimelineFeed(sample.timeline), list[Update]()
    for _ in range(5):
        sample.step()
        updates.append(feed.take())
    assert not feed.take().spans and triples(updates) == triples([feed.everything()]) == expected(sample)
    assert all(("columns" in u.layout) == (u.layout["count"] > few) for u in updates if u.layout)
    first, *others = [u.tables for u in updates]
    assert first is not None and first["origin"] == sample.timeline.start_ns and first["devices"] == ["cpu:0", "cpu:1"] and others == [None] * 4


@given(st.lists(st.sampled_from("ssswabhn"), max_size=25))
def test_spans_that_wait_are_told_once_whoever_else_reads_and_whatever_else_is_asked(steps: str) -> None:
    """s: an iteration; w: tell what waits, else all; a: tell all; b: device time; h: the history; n: a new lane."""
    sample = LiveRun(steps=2)
    feed, updates = TimelineFeed(sample.timeline), []
    for step in [*steps, "s", "w"]:
        if step == "s":
            sample.step()
        elif step == "n":
            sample.recorder.track("late", sample.now)
        elif step == "b":
            assert not feed.take_bubbles().spans
        elif step == "h":
            assert triples([feed.everything()]) == triples(updates)
        else:
            waiting = feed.take_waiting() if step == "w" else None
            updates.append(feed.take_spans() if waiting is None else waiting)
    assert triples(updates) == expected(sample)
    assert feed.take_waiting() is None or not feed.take_waiting()
    for _ in range(2):
        sample.step()
        assert (feed.take_waiting() or feed.take_spans()).spans
    sample.step()
    news = feed.take_waiting()
    assert news is not None and news.layout is not None and len(news.spans) == 56 * news.layout["count"] and news.tables is None
    sample.recorder.track("later", 0)
    sample.step()
    assert feed.take_waiting() is None and feed.take_spans().tables, "a page has to hear of the new lane"
    assert feed._seen == len(sample.timeline)


def test_device_time_goes_with_the_next_message_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, board = LiveRun(steps=4), Dashboard()
    sent = capture(board, monkeypatch)
    for _ in range(20):
        sample.step()
        board.push(timeline=sample.timeline, bubbles=False)
    before = len(sent)
    board.account()
    assert len(sent) == before
    sample.step()
    board.push_spans(sample.timeline)
    assert len(sent) == before + 1 and sent[-1][0]["parts"] == ["spans", "idle"] and sent[-1][0]["bubbles"]
    board.push_spans(sample.timeline)
    assert len(sent) == before + 1, "nothing is new"
    monkeypatch.setattr(board._feed, "_not_before", 0.0)
    for _ in range(20):
        sample.step()
    board.push_spans(sample.timeline)
    board.account()
    assert board._left[1]
    board._receive(board, {"type": "history"}, [])
    told, history = sent[-2:]
    assert history[0]["type"] == "history" and history[0]["seq"] == told[0]["seq"] and told[0]["bubbles"], "before it, for who listens to deltas alone"
    assert len(history[0]["bubbles"]) > 20 and board._left == ({}, {}), "it is in the history"
    sample.step()
    board.push_spans(sample.timeline)
    assert "bubbles" not in sent[-1][0]


def test_what_is_not_urgent_goes_with_the_next_spans_and_what_is_newer_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, board = LiveRun(steps=4), Dashboard()
    sent = capture(board, monkeypatch)
    sample.step()
    board.push({"state": "starting"}, timeline=sample.timeline, bubbles=False, later=True)
    assert sent[-1][0]["state"]["state"] == "starting" and "spans" in sent[-1][0]["parts"], "the first says what the rows mean"
    before = len(sent)
    sample.step()
    sample.recorder.counter("known", sample.recorder.clock.now_ns(), 1.0)
    sample.timeline.extend(sample.recorder.drain())
    board.push({"state": "running", "iteration": 1}, [{"iteration": 0, "loss": 1.0}], sample.timeline, {"cpu:0": 0.5}, later=True, bubbles=False)
    assert len(sent) == before
    board.push_spans(sample.timeline)
    content = sent[-1][0]
    assert len(sent) == before + 1 and content["state"]["iteration"] == 1 and content["metrics"] and content["counters"]
    assert sorted(content["parts"]) == ["samples", "spans"]
    for iteration in (2, 3):  # nobody has come for the first of them meanwhile
        board.push({"iteration": iteration}, [{"iteration": iteration - 1, "loss": 1.0}], sample.timeline, later=True, bubbles=False)
    assert len(sent) == before + 2
    board.push({"state": "finished", "iteration": 4}, timeline=sample.timeline, final=True, later=True)
    told = [content["state"]["iteration"] for content, _ in sent[before:] if "state" in content]
    assert told == [1, 2, 3, 4] and [row["iteration"] for content, _ in sent for row in content.get("metrics", ())] == [0, 1, 2]
    samples = b"".join(part for content, parts in sent for name, part in zip(content["parts"], parts, strict=True) if name == "samples")
    assert len(samples) == 24 * len(sample.timeline.counter_samples), "each of them once"


def test_the_answer_to_one_page_takes_nothing_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has seen all deltas since the first does not listen to a history, also where it has asked for it itself."""
    sample, board = LiveRun(steps=4), Dashboard()
    sent = capture(board, monkeypatch)
    sample.step()
    board.push({"state": "running"}, timeline=sample.timeline, bubbles=False)
    board.push({"iteration": 1}, [{"iteration": 0, "loss": 1.0}], sample.timeline, {"cpu:0": 0.5}, bubbles=False, later=True)
    board._receive(board, {"type": "history"}, [])
    sample.step()
    board.push_spans(sample.timeline)
    deltas, histories = ([content for content, _ in sent if content["type"] == kind] for kind in ("delta", "history"))
    assert [row["iteration"] for content in deltas for row in content.get("metrics", ())] == [0] and any("counters" in content for content in deltas)
    assert [content["seq"] for content in deltas] == [1, 2, 3] and [content["seq"] for content in histories] == [2] and histories[0]["metrics"]


@pytest.mark.parametrize("later", [True, False])
def test_samples_of_a_counter_that_comes_meanwhile_are_not_told_before_its_name(later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that sends extends the timeline while another one pushes."""
    sample, board = LiveRun(steps=4), Dashboard()
    sent = capture(board, monkeypatch)
    sample.step()
    board.push(timeline=sample.timeline, bubbles=False)
    look = TimelineFeed._shape_of

    def grows_after(store: Any) -> tuple[Any, ...]:
        monkeypatch.setattr(TimelineFeed, "_shape_of", staticmethod(look))
        shape = look(store)
        sample.recorder.counter("as it comes", sample.recorder.clock.now_ns(), 1.0)
        sample.timeline.extend(sample.recorder.drain())
        return shape

    before = len(sent)
    monkeypatch.setattr(TimelineFeed, "_shape_of", staticmethod(grows_after))
    board.push({"state": "running"}, timeline=sample.timeline, bubbles=False, later=later)
    board.push_spans(sample.timeline)
    assert "as it comes" in sample.timeline.names
    first = next(content for content, _ in sent[before:] if "samples" in content["parts"])
    assert "as it comes" in first["tables"]["names"]


def test_a_state_is_told_with_the_spans_where_it_is_another_one_and_not_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, board = LiveRun(steps=4), Dashboard()
    sent = capture(board, monkeypatch)
    board.push({"state": "running", "iteration": 3}, timeline=sample.timeline)
    before = len(sent)
    board.push_spans(sample.timeline, wait=False, state="running")
    assert len(sent) == before, "nothing new"
    with board._push_lock:
        other = threading.Thread(target=board.push_spans, args=(sample.timeline, False, "paused"))
        other.start()
        other.join(5)
        assert not other.is_alive() and len(sent) == before
    board.push_spans(sample.timeline, wait=False, state="paused")
    assert sent[-1][0]["state"] == {"state": "paused", "iteration": 3} and len(sent) == before + 1
    board.push({"state": "stopped"}, timeline=sample.timeline, final=True)
    board.push_spans(sample.timeline, wait=False, state="stopping")  # read before the end, by a thread that had to wait since
    assert [content["state"]["state"] for content, _ in sent if "state" in content][-1] == "stopped"


def test_device_time_that_waits_is_told_before_that_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, board = LiveRun(steps=4), Dashboard()
    sent = capture(board, monkeypatch)
    for _ in range(20):
        sample.step()
    board.push(timeline=sample.timeline, bubbles=False)
    board.account()
    board.push(timeline=sample.timeline, final=True)
    idle = [content["idle_from"] for content, _ in sent if "idle" in content.get("parts", ())]
    assert len(idle) == 2 and idle[0] == 0 < idle[1]
    rows = [row["iteration"] for content, _ in sent for row in content.get("bubbles", ())]
    assert rows == list(range(20))


@given(st.lists(st.integers(-3, 12), max_size=40))
def test_a_set_of_numbers_that_follow_each_other_is_a_set(numbers: list[int]) -> None:
    ours, known = Numbers(), set[int]()
    for number in numbers:
        assert ours.add(number) == (number not in known)
        known.add(number)
        asked = np.arange(-4, 14)
        assert ours.has(asked).tolist() == [i in known for i in asked.tolist()]
    assert len(ours._others) <= len({n for n in known if n < 0 or any(m not in known for m in range(n))})


def test_device_time_fills_every_device_without_gap_or_overlap_and_bubbles_their_iterations() -> None:
    sample = SampleRun(steps=4)
    feed, updates = TimelineFeed(sample.timeline), list[Update]()
    for i in range(8):
        sample.step()
        updates.append(feed.take(final=i == 7))
    rows = np.concatenate([np.frombuffer(u.idle, IDLE_WIRE) for u in updates])
    assert next(u.idle_from for u in updates if u.idle) == 0
    for device in range(2):
        own = np.sort(rows[rows["device"] == device], order="start")
        assert own["start"][0] == 0
        np.testing.assert_allclose(own["start"][1:], own["start"][:-1] + own["dur"][:-1], atol=64)
    busy = rows[(rows["cause"] == BUSY) & (rows["device"] == 0)]["dur"].sum()
    assert busy == pytest.approx(sample.timeline.accounting().busy_ns[0], rel=1e-6)
    told = [row for u in updates for row in u.bubbles]
    assert [row.pop("iteration") for row in told] == list(range(8)), "each once"
    assert [sum(row.values()) for row in told] == pytest.approx(2 * sample.timeline.iterations()["seconds"])


def test_device_time_of_the_end_is_replaced_when_the_timeline_grows() -> None:
    """A view that was made in the middle, as a finished one, shows device time up to the end; so it does when more has come."""
    sample = SampleRun(steps=4)
    feed, shown = TimelineFeed(sample.timeline), np.zeros(0, IDLE_WIRE)
    for i in range(6):
        sample.step()
        if i < 3:  # without the mark of the next iteration: the end of the timeline is no end of an iteration
            sample.add(sample.policy, SpanKind.RUN, "act", sample.now, sample.now + 5e6)
            sample.timeline.extend(sample.recorder.drain())
        final = i in (0, 1, 2, 5)
        update = feed.take(final)
        if update.idle:
            shown = np.concatenate([shown[shown["start"] < update.idle_from - 0.5], np.frombuffer(update.idle, IDLE_WIRE)])
        if final:
            assert shown[shown["device"] == 0]["dur"].sum() == pytest.approx(sample.timeline.elapsed_ns, rel=1e-6)
    accounting = sample.timeline.accounting()
    for device in range(2):
        busy = shown[(shown["cause"] == BUSY) & (shown["device"] == device)]["dur"].sum()
        assert busy == pytest.approx(accounting.busy_ns[device], rel=1e-6)
    everything = np.frombuffer(feed.everything().idle, IDLE_WIRE)
    assert sorted(everything.tolist()) == sorted(shown.tolist())


@pytest.mark.parametrize(
    ("wished", "shown"),
    [
        (("return|reward", "value_loss|loss"), ["reward", "loss"]), (("loss", "reward|return"), ["loss", "reward"]),
        (("gain", "none"), ["x", "policy_loss", "value_loss"]), (("x_loss", "e_loss"), ["x", "policy_loss", "value_loss"]),
        (("kl",), ["a.kl", "b.kl"]), (("reward", "mean|reward"), ["reward"]),
    ],
)  # fmt: skip
def test_a_stored_picture_plots_what_the_page_does(wished: tuple[str, ...], shown: list[str]) -> None:
    board = Dashboard(charts=wished)
    metrics = {"x": 1.0, "policy_loss": 2.0, "value_loss": 3.0, "note": "text", "a.kl": 4.0, "b.kl": 5.0, "reward": 6.0, "loss": 7.0}
    if "value_loss|loss" in wished:
        del metrics["value_loss"]
    board.push(metrics=[{"iteration": 0, "seconds": 0.1, **metrics}])
    assert re.findall(r"([\w.]+): \d \(", re.sub(r"<svg.*?</svg>", "", board.still()._repr_html_())) == shown


def test_a_stored_picture_says_why_a_run_failed() -> None:
    board = Dashboard("dead")
    plain = board.still().scene
    still_lines = ["Nothing can move any more", "a waits for <b>", "b waits for a"]
    board.push({"state": "failed", "message": "Nothing can move any more: a → b", "standstill": still_lines})
    still = board.still()
    assert still._repr_html_().count("Nothing can move any more") == 1
    assert re.search(r"failed.*Nothing can move any more: a → b.*a waits for &lt;b&gt;.*b waits for a", still._repr_html_())
    assert still.scene is not None and plain is not None and still.scene.height > plain.height - 22 + 60  # the plain one says of when it is
    board.push({"message": "x" * 300})
    assert re.search(r"^<div style=\"[^\"]*overflow-wrap:anywhere.*x{300}", board.still()._repr_html_(), re.DOTALL), "it is not cut"


def test_a_stored_picture_says_what_diverged_and_from_where() -> None:
    board = Dashboard(charts=("loss", "return"))
    board.push(metrics=[{"iteration": 0, "loss": 1.0, "return": 3.0}, {"iteration": 1, "loss": 0.5, "return": "∞"}, {"iteration": 2, "loss": "NaN"}])
    html = board._repr_mimebundle_()[0]["text/html"]
    assert "loss is NaN, was: 0.5 (0.5 to 1)" in html and "return is ∞, was: 3 (3 to 3)" in html


marks = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(1, 20)), max_size=12)


@given(st.lists(marks, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_iterations_are_told_once_whenever_their_marks_come(portions: list[list[tuple[int, int, int]]], quiet: list[bool]) -> None:
    recorder, timeline, told = Recorder(), Timeline(), list[int]()
    driver, name, second = recorder.track("driver", 0), recorder.name("iteration"), 10**9
    feed = TimelineFeed(timeline)
    for portion, still in zip(portions, quiet, strict=False):
        for number, start, length in portion:
            recorder.add(driver, SpanKind.MARK, name, start * second, (start + length) * second, number)
        timeline.extend(recorder.drain())
        feed._not_before = 0.0
        if still:
            feed._grown_at = -1e9
        told += [row["iteration"] for row in feed.take().bubbles]
        assert len(feed._unsettled) <= sum(len(p) for p in portions)
    told += [row["iteration"] for row in feed.take(final=True).bubbles]
    known = {number for portion in portions for number, _, _ in portion}
    assert len(told) == len(set(told)) and set(told) <= known
    if len(told) < len(known):  # those that came when all time had been told already wait for more of it
        recorder.add(driver, SpanKind.MARK, name, 100 * second, 101 * second, 99)
        timeline.extend(recorder.drain())
        told += [row["iteration"] for row in feed.take(final=True).bubbles if row["iteration"] != 99]
    assert sorted(told) == sorted(known)


LABELS, PIXELS, SECONDS = [("a",), "ab", (), (1, 2), None, 3], [None, True, 0, -5, 2.5, "380"], [0, -1, math.nan, math.inf, "60", True]


@pytest.mark.parametrize(("make", "wrong", "says"), [
    (lambda path, odd: TimelineView(Timeline(), over=Timeline(), labels=odd), LABELS, r"TimelineView\(labels="),
    (lambda path, odd: timeline_html(Timeline(), path, over=Timeline(), labels=odd), LABELS, r"timeline_html\(labels="),
    (lambda path, odd: TimelineView(Timeline(), height=odd), PIXELS, r"TimelineView\(height="), (lambda path, odd: TimelineView(odd), [3, None, "run"], "a Timeline"),
    (lambda path, odd: timeline_html(odd, path), [3, None], r"timeline_html\("), (lambda path, odd: timeline_html(Timeline(), path, over=odd), ["run"], "a Timeline"),
    (lambda path, odd: timeline_html(Timeline(), path, title=odd), [None, 1], "title"),
    (lambda path, odd: Dashboard(every_seconds=odd), SECONDS, r"Dashboard\(every_seconds="),
    (lambda path, odd: Dashboard().push({odd: 3}), ["iteraton"], "Did you mean 'iteration'"),
])  # fmt: skip
def test_arguments_that_make_no_sense(tmp_path: Path, make: Any, wrong: list[Any], says: str) -> None:
    for odd in wrong:
        with pytest.raises((ConfigError, UnknownNameError), match=says):
            make(tmp_path / "a.html", odd)
    assert not list(tmp_path.iterdir())


def test_an_empty_timeline_sends_its_devices_only() -> None:
    update = TimelineFeed(Timeline(["cpu:0"])).take(final=True)
    assert update.tables is not None and update.tables["devices"] == ["cpu:0"] and not update.spans and not update.idle


def test_deltas_are_numbered_without_a_gap_and_the_history_carries_the_number_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Dashboard(iterations=3)
    sent = capture(board, monkeypatch)
    sample = SampleRun(steps=2)
    for i in range(3):
        board.push({"state": "running", "iteration": i + 1}, [sample.step()], sample.timeline, {"cpu:0": 0.5}, picture())
    assert [m["seq"] for m, _ in sent] == [1, 2, 3] and all(len(m["parts"]) == len(b) for m, b in sent)
    assert [m["parts"].count("frame") for m, _ in sent] == [1, 0, 0], "pictures are sent at most twice a second"
    board.push(metrics=[{"iteration": 0, "late": 5.0}])  # replaces what was known of its iteration
    sent.clear()
    board._receive(board, {"type": "history", "have": 0}, [])
    ((message, buffers),) = sent
    assert message["type"] == "history" and message["seq"] == 4 and message["state"]["iteration"] == 3
    assert [row["iteration"] for row in message["metrics"]] == [0, 1, 2] and len(message["counters"]) == 3 and message["metrics"][0] == {"iteration": 0, "late": 5.0}
    assert message["layout"]["count"] == len(sample.timeline) and buffers[message["parts"].index("frame")].startswith(b"\x89PNG")
    board.push(frame=b"\x89PNG last", final=True)
    assert sent[-1][0]["parts"].count("frame") == 1
    heard: list[str] = []
    board.on_command(heard.append)
    for command in ("pause", "format the disk", "stop"):
        board._receive(board, {"type": "command", "command": command}, [])
    assert heard == ["pause", "stop"]


def test_numbers_that_json_has_not_are_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """One NaN in a message and no browser reads any of it."""
    board = Dashboard()
    sent = capture(board, monkeypatch)
    row = {"iteration": np.int64(0), "loss": math.nan, "low": -math.inf, "high": np.float32(math.inf), "steps": np.float32(0.5), "note": "a"}
    board.push({"state": "running", "eta_seconds": math.inf}, [row], counters={"cpu:0": math.nan, "cpu:1": np.float32(0.25)})
    board._receive(board, {"type": "history", "have": 0}, [])
    for message, _ in sent:
        read = json.loads(json.dumps(message, allow_nan=False))
        assert read["metrics"] == [{"iteration": 0, "loss": "NaN", "low": "−∞", "high": "∞", "steps": 0.5, "note": "a"}]
        assert read["state"]["eta_seconds"] is None and read["counters"][0][1] == {"cpu:1": 0.25}
    assert len(sent) == 2


def test_a_bar_that_is_clicked_is_answered_with_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    run, board = SampleRun(start_ns=7_000), Dashboard()
    rows = {("simulator", 1, 7_000 + 25): {"text": "<b>4</b>", "reward": 0.123456, "tokens": 16.0, "learnt_in": 3}}
    board.on_sample(lambda *bar: rows.get(bar))
    sent = capture(board, monkeypatch)
    board._receive(board, {"type": "sample", "worker": "simulator", "rank": 1, "start": 25}, [])
    assert not sent  # there is no timeline yet
    run.step()
    board.push(timeline=run.timeline)
    sent.clear()
    for start in (25, 26, None, "25"):
        board._receive(board, {"type": "sample", "worker": "simulator", "rank": 1, "start": start}, [])
    said = [content["sample"] for content, _ in sent]
    assert [one["start"] for one in said] == [25, 26] and said[1]["fields"] == []
    assert said[0]["fields"] == [["text", "<b>4</b>"], ["reward", "0.1235"], ["tokens", "16.0"], ["learnt_in", "3"]]
    with pytest.raises(ConfigError, match="on_sample"):
        board.on_sample(5)  # type: ignore[arg-type]


def test_the_saved_notebook_has_a_picture() -> None:
    sample = SampleRun(steps=2)
    board = Dashboard("a <b>", plan="fused", iterations=2)
    board.push({"state": "finished", "iteration": 2}, [sample.step(), sample.step()], sample.timeline, final=True)
    data, _ = board._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"] and "a &lt;b&gt;" in data["text/html"] and "success_rate" in data["text/html"]
    assert data["text/plain"] == "Dashboard('a <b>', plan 'fused': finished, iteration 2/2)"
    same = [re.sub(r"\bh[0-9a-f]+-\d+-|\bpicture-[0-9a-f]+-\d+-", "", html) for html in (board.still()._repr_html_(), data["text/html"])]  # ids are its own
    assert same[0] == same[1]
    drawn = board.still().scene
    words = [word.text for word in drawn.words] if drawn else []
    assert words[0] == "a <b> · fused · finished · 2 / 2" and words[1].startswith("success_rate: ") and {"cpu:0", "cpu:1"} <= set(words)
    assert board.still()._repr_png_() == base64.b64decode(data["image/png"])


def test_every_widget_has_a_still_picture_in_both_forms() -> None:
    sample = SampleRun(steps=2)
    sample.step()
    for widget in (TimelineView(sample.timeline), TimelineView(sample.timeline, over=sample.timeline), Dashboard()):
        data, _ = widget._repr_mimebundle_()
        with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as picture:
            assert picture.format == "PNG" and picture.width == 1440 and picture.height > 20
        assert data["text/html"]
    assert "image/png" not in TimelineView(Timeline())._repr_mimebundle_()[0]  # nothing to be seen yet


def test_on_a_page_of_jupyter_the_picture_is_an_output_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool, str]] = []

    def display(picture: Any, display_id: str, update: bool) -> None:
        shown.append((display_id, update, picture._repr_html_()))

    class Output:
        def update(self, board: Dashboard) -> None:
            self.data, _ = board._repr_mimebundle_()

    again = False
    monkeypatch.setattr(fallback, "is_possible", lambda: True)
    monkeypatch.setattr(fallback, "is_update", lambda: again)  # as IPython's display has it
    monkeypatch.setattr("IPython.display.display", display)
    board, output = Dashboard("made up"), Output()
    board.push({"state": "running"})
    output.update(board)
    before = output.data
    board.push({"state": "finished"}, final=True)
    again = True
    board.renew(output)
    again = False
    output.update(board)  # the same cell again, whose output is another one, or another cell: with a picture, too
    assert len({name for name, _, _ in shown}) == 1 and [update for _, update, _ in shown] == [False, True, False]
    assert "running" in shown[0][2] and all("finished" in html for _, _, html in shown[1:])
    assert before.keys() == output.data.keys() == {WIDGET, "text/plain", "text/html"} and output.data["text/plain"].startswith("Dashboard('made up': finished")


def test_the_stored_picture_of_a_run_that_goes_on_says_of_when_it_is_and_is_renewed_under_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[bool, Any]] = []
    monkeypatch.setattr(fallback, "is_possible", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda picture, display_id, update: shown.append((update, picture)))
    sample, board = SampleRun(steps=2), Dashboard("goes on", iterations=400)
    board.push({"state": "running", "iteration": 1}, [sample.step()], sample.timeline)
    assert not board.keep() and not shown, "where there is no output yet"
    board._repr_mimebundle_()
    assert board.keep() and not board.keep(), "only where something is new"
    board.push({"iteration": 2}, [sample.step()], sample.timeline)
    assert board.keep() and [update for update, _ in shown] == [False, True, True]
    html = shown[-1][1]._repr_html_()
    assert re.search(r"running · 2 / 400.*As of 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d .*the run had not ended then", html) and "<svg" in html
    assert re.search(r"iteration 2/400\), as of 20", repr(shown[-1][1]))
    for last in ({"state": "failed"}, {"state": "running"}):
        board.push(last, final=last["state"] == "running")
        assert "as of 20" not in board.still()._repr_html_().lower() + repr(board.still()), "the end is the end"


@pytest.mark.parametrize("elsewhere", [("VSCODE_PID", "7"), ("VSCODE_CWD", "/")])
def test_other_pages_would_show_both(monkeypatch: pytest.MonkeyPatch, elsewhere: tuple[str, str]) -> None:
    class Shell:
        kernel = object()

    monkeypatch.setattr("IPython.core.getipython.get_ipython", Shell)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    for name in ("VSCODE_PID", "VSCODE_CWD"):
        monkeypatch.delenv(name, raising=False)
    assert fallback.is_possible()
    monkeypatch.setenv(*elsewhere)
    assert not fallback.is_possible()


def test_what_has_stood_still_for_a_while_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused run: no span comes that would be later than the last iterations, and their device time is shown all the same."""
    now = [100.0]
    monkeypatch.setattr("rlinf_lab.widgets.feed.time.monotonic", lambda: now[0])
    sample = SampleRun(steps=2)
    feed = TimelineFeed(sample.timeline)
    for _ in range(2):
        sample.step()
    assert [row["iteration"] for row in feed.take().bubbles] == []  # each takes a fifth of a second: more may come
    now[0] += 0.4
    assert feed.take().bubbles == []
    now[0] += 0.3
    assert [row["iteration"] for row in feed.take().bubbles] == [0, 1]


def test_the_saved_picture_of_a_long_run_is_small_and_shows_its_extremes() -> None:
    rows = [{"iteration": i, "loss": 1.0 + (9.0 if i == 54_321 else 0.0) - (1.0 if i == 12_345 else 0.0)} for i in range(100_000)]
    html = dashboard_still({"title": "long", "plan": "", "iterations": None, "charts": ["loss"]}, {}, rows, None, "").html
    (points,) = re.findall(r'points="([^"]*)"', html)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert len(heights) < 1000 and min(heights) == 14.0 and max(heights) == 76.0 and "(0 to 10)" in html


def test_device_time_before_zero_is_as_long_as_the_timeline() -> None:
    recorder, timeline = Recorder(), Timeline(["cpu:0"])
    recorder.add(recorder.track("w", 0, ("cpu:0",)), SpanKind.RUN, recorder.name("step"), -5_000_000, -4_000_000)
    timeline.extend(recorder.drain())
    idle = np.frombuffer(TimelineFeed(timeline).take(final=True).idle, IDLE_WIRE)
    assert timeline.elapsed_ns == 1_000_000 == idle["dur"].sum() and set(idle["cause"]) == {BUSY}
