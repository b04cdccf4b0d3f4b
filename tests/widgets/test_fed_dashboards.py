"""What feeds a dashboard from a run or a session: how often, by whose thread, and what it is told at the end or when something fails."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from logging_workers import Unprintable, counted, ended, made

import rlinf_lab as lab
from rlinf_lab import notebook
from rlinf_lab.errors import ConfigError
from rlinf_lab.notebook import CLOCK_SECONDS, _Feeder, load_note
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.widgets import Dashboard
from rlinf_lab.widgets.express import Beat
from rlinf_lab.workflow.worker import Worker

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from sessions import until


class Board:
    """Remembers what a dashboard is sent. With a ``loop`` it has a thread that sends, which comes so often as it is asked to."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.sent, self.states, self.beats, self.threads = list[int](), list[str](), list[Beat](), set[str]()
        self.pictures = self.spans = self.later = 0
        self.is_closed = self.fails = False
        self.ended, self.loop = threading.Event(), loop

    def wants_frame(self) -> bool:
        return True

    def push(
        self, state: Any, rows: Any = (), timeline: Any = None, loads: Any = None, picture: bytes | None = None, final: bool = False, *,
        bubbles: bool = True, now_ns: int | None = None, later: bool = False,
    ) -> None:  # fmt: skip
        self.states.append(state["state"])
        self.later += later
        new = list(rows)
        self.sent.append(len(new))
        self.rows |= {int(row["iteration"]): row for row in new}
        self.pictures += picture is not None
        if final:
            self.ended.set()

    def push_spans(self, _timeline: Any, wait: bool = True, state: str | None = None, iteration: int | None = None) -> None:
        self.spans += 1
        if state is not None and state != self.states[-1]:
            self.states.append(state)
        if self.loop and not wait:
            self.threads.add(threading.current_thread().name)
            if self.fails:
                raise RuntimeError("no way to the page")

    def every(self, seconds: float, work: Callable[[], bool]) -> Any:
        if self.loop:
            self.beats.append(Beat(self.loop, seconds, work))
        return self.beats[-1] if self.beats else None

    def account(self) -> None: ...


@pytest.fixture
def beats() -> Iterator[Board]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="sends", daemon=True)
    thread.start()
    yield Board(loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def feeding(watched: Any, board: Any) -> _Feeder:
    """As `lab.show` has a dashboard fed."""
    feeder = _Feeder(watched, board, None)
    watched.on_update(feeder, afterwards=feeder.account, glances=feeder.glances)
    return feeder


class Naps(Worker):
    """Until it is let go."""

    awake: ClassVar[threading.Event] = threading.Event()

    def nap(self) -> int:
        breaths = 0
        while not self.awake.is_set() and not self.cancelled:
            with self.span("breath"):
                time.sleep(0.01)
            breaths += 1
        return breaths


@contextmanager
def napping(s: Any) -> Iterator[list[int]]:
    """Work that goes on as long as the block lasts; how many breaths that were."""
    Naps.awake.clear()
    one, breaths = s.submit(), list[int]()
    try:
        yield breaths
    finally:
        Naps.awake.set()
    breaths.append(one.wait())


def test_the_thread_that_sends_comes_for_the_spans(beats: Board) -> None:
    with session(*made(lambda h, _: h["w"].nap(), w=Naps)) as s:
        feeder = feeding(s, beats)
        taken = 0
        for times in (1, 2):  # and it is asked to come again
            with napping(s) as breaths:
                until(lambda times=times: beats.threads and len(beats.beats) >= times)
            assert beats.threads == {"sends"}
            taken += sum(breaths)
            until(lambda: not feeder.glances())  # nothing goes on: the own thread waits for the next iteration
            assert not s.glance()
        assert beats.later > 0 and "running" in beats.states
    assert beats.ended.is_set() and not s.glance()
    breathed = [span for span in s.timeline.rows() if span.name == "breath"]
    assert len(breathed) == taken and s.timeline.bubble_sum_error_ns() == 0, "nothing is lost or taken twice"


@pytest.mark.parametrize("what", ["no picture", "no way to the page", "nobody is asked any more", "closed"])
def test_a_dashboard_that_fails_or_is_closed_is_fed_no_more_and_the_work_goes_on(
    what: str, beats: Board, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans alone, without an end, would look as if all were well. One that is closed is told the end, and nothing before."""

    def unable(*_: object) -> bool:
        raise RuntimeError(what)

    beats.fails = what == "no way to the page"
    with session(*made(lambda h, _: h["w"].nap(), w=Naps)) as s:
        heard, nothing = list[int](), cast(Any, None)
        with pytest.raises(ConfigError, match="on_update"):
            s.on_update(print, glances=nothing)
        feeder = feeding(s, beats) if what != "nobody is asked any more" else None
        if feeder is None:
            s.on_update(lambda _: heard.append(1), glances=unable)
        with napping(s):
            if feeder is None:
                until(lambda: len(heard) > 3)  # it is told all the same, in the background
            elif what == "closed":
                until(lambda: len(beats.threads))
                beats.is_closed = True
                until(lambda: not feeder._beat or not feeder._beat.goes_on())
                told = (len(beats.sent), beats.spans)
            else:
                if what == "no picture":
                    until(feeder.glances)
                    monkeypatch.setattr(feeder, "_picture", unable)
                until(lambda: not s._listeners)
                until(lambda: not feeder.glances())
        if what == "closed":
            assert (len(beats.sent), beats.spans) == told
        else:
            until(lambda: what in caplog.text)  # it is called no more first, and told of then
            assert len(beats.beats) <= 1
    assert what != "closed" or beats.ended.is_set()


def test_a_glance_waits_for_nobody_also_where_the_state_has_changed() -> None:
    """A page's question for the history of a long run is answered for a second: all output of the kernel would wait as long."""
    Naps.awake.clear()
    started, board = run(*made(lambda h, _: h["w"].nap(), w=Naps), 1), Dashboard()
    feeder = _Feeder(started, board, None)
    until(lambda: started.state == "running")
    feeder(started)
    started.pause()
    with board._push_lock:
        glance = threading.Thread(target=feeder._glance, args=(started,))
        glance.start()
        glance.join(5)
        assert not glance.is_alive()
    assert feeder._glance(started) and board._state["state"] == "paused", "it is told by the next one"
    started.stop()
    feeder._glance(started)
    assert board._state["state"] == "paused", "the end is told by the run"


def test_a_dashboard_that_the_user_closes_says_so_and_is_told_the_end() -> None:
    Naps.awake.clear()
    started, board = run(*made(lambda h, _: h["w"].nap(), w=Naps), 2), Dashboard()
    feeder = feeding(started, board)
    until(lambda: board._state.get("state") == "running")
    assert not board.is_closed
    board.close()
    Naps.awake.set()
    started.wait(30)
    assert board.is_closed and feeder.glances()
    until(lambda: board._state["state"] == "finished")
    assert "finished" in board.still().text


def test_the_dashboard_is_told_what_diverged() -> None:
    said = [{"loss": 0.5, "gain": 1.0, "rare": 1.0}, {"loss": float("nan"), "gain": -float("inf")}]
    done = ended(run(*made(lambda h, metrics: h["w"].say(metrics)), inputs=said))
    board = Dashboard()
    _Feeder(done, board, None)
    rows = board._history()[0]["metrics"]
    assert [row["loss"] for row in rows] == [0.5, "NaN"] and rows[1]["gain"] == "−∞"
    assert "rare" in rows[0] and "rare" not in rows[1], "what was not measured did not diverge"


def test_the_dashboard_has_every_number_when_wait_returns_also_those_that_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    started, board = run(*counted(), inputs=range(100)), Board()
    said = started._executor.news.metrics
    late: list[Any] = []

    def delayed() -> list[Any]:  # as of a host whose news take one more round
        late[:], now = said(), list(late)
        return [*now, *late] if started._executor._ended else now

    monkeypatch.setattr(started._executor.news, "metrics", delayed)
    started.on_update(_Feeder(started, board, None))
    started.wait(60)
    assert board.ended.wait(60)
    assert [board.rows[i].get("x") for i in range(100)] == started.metrics["x"].tolist() == [float(i) for i in range(100)]


def test_between_two_tellings_spans_alone_are_sent_unless_the_state_changes_and_a_picture_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, plan = made(lambda h, i: (h["w"].go(i), h["w"].show())[0])
    done, board, now = run(flow, plan, 5), Board(), [100.0]
    done.wait(30)
    done.state = "running"  # as if it went on
    monkeypatch.setattr(notebook, "time", SimpleNamespace(monotonic=lambda: now[0]))
    feeder = _Feeder(done, board, None)
    done._observer.table.logged("w", 0, 3, {"late": 1.0})
    feeder(done)
    assert board.sent == [5] and board.spans == 1
    now[0] += CLOCK_SECONDS
    feeder(done)
    assert board.sent == [5, 1] and board.rows[3]["late"] == 1.0
    done.state = "paused"
    feeder(done)
    assert board.sent == [5, 1, 0] and board.spans == 1
    done.state = "finished"
    assert board.pictures == 1, "encoded once"


def test_the_stored_picture_is_renewed_while_the_run_goes_on_and_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook saved meanwhile, and a page loaded while a cell is busy, have nothing else. Pause is told at once."""
    flow, plan = counted()
    done, now, spent, kept = run(flow, plan, 5), [0.0], [0.0], list[float]()
    done.wait(30)
    done.state = "running"  # as if it went on

    class Keeping(Board):
        def renew(self, _handle: Any) -> None: ...

        def keep(self) -> bool:
            spent[0] += 0.03
            kept.append(now[0])
            return True

    monkeypatch.setattr(notebook, "time", SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: spent[0]))
    feeder = _Feeder(done, Keeping(), object())
    for half in range(8000):
        now[0] = half / 2
        feeder(done)
        feeder.account(done)
    assert kept[0] <= 1 and kept[1] <= 6 and len(kept) > 20, "soon, and all along"
    first = kept[: notebook.FIRST_PICTURES + 1]
    assert 0.03 * (len(kept) - len(first)) < 0.00025 * (4000 - first[-1])
    done.state, now[0] = "paused", 4000.5
    feeder(done)
    for _ in range(3):
        feeder.account(done)
    assert kept[-2] < kept[-1] == 4000.5
    done.state = "finished"
    feeder(done)
    feeder.account(done)
    assert kept[-1] == 4000.5, "the end is stored by `renew`"


def test_why_gpus_have_no_curves_is_told_once_and_in_the_status() -> None:
    with session(*counted()) as s:
        tell = s._observer._sampler._tell
        tell("Not Supported")
        s.step(0)
        assert "curves" not in s.status().lower(), "of a plan without GPUs nobody wants them"
        (devices,), host = tell.args, s._host
        assert list(devices) == ["cpu:0"]
        with pytest.warns(RuntimeWarning, match="Curves of GPUs are missing on host .*: Not Supported.*Next: ") as told:
            for i in range(2):
                tell.func(["cpu:0", "cuda:0"], "Not Supported")
                s.step(1 + i)
        assert len(told) == 1 and s.status().count("Curves of GPUs are missing") == 1
        assert s.missing_curves == {host.name: "Not Supported"}
        assert load_note(s.missing_curves) == "No GPU curves: Not Supported"
    assert load_note({}) == "" and load_note({"b": "one", "a": "one"}) == "No GPU curves: one"
    assert load_note({"b": "one", "a": "two: three. Four"}) == "No GPU curves: a: two: three. Four; b: one"


def test_a_dashboard_of_a_session_has_its_rows_states_and_no_buttons() -> None:
    states, board = list[str](), Board()
    with session(*counted()) as s:
        s.on_update(_Feeder(s, board, None))
        s.on_update(lambda it: states.append(it.state))
        assert s.state == "idle" and s.iterations is None
        for i in range(3):
            s.step(i)
        config = lab.show(s).config
        assert config["buttons"] is False and config["every_seconds"] == CLOCK_SECONDS and "idle" in s.state
        for charts in ("loss", [3], []):
            with pytest.raises(ConfigError, match=r"show\(charts="):
                lab.show(s, charts)
    assert board.ended.wait(60)  # of listeners that last the end is not waited for
    assert s.state == states[-1] == "finished" and [board.rows[i]["x"] for i in range(3)] == [0.0, 1.0, 2.0]
    with pytest.raises(KeyError), session(*counted()) as s:
        raise KeyError("mine")
    assert s.state == "failed" and isinstance(s.error, KeyError)


def test_a_loop_that_fails_without_a_text_ends_the_run_and_the_dashboard_is_told() -> None:
    def fails(handles: Any, argument: int) -> Any:
        if argument:
            raise Unprintable
        return handles["w"].go()

    board = Board()
    started = run(*made(fails), inputs=[1])
    started.on_update(_Feeder(started, board, None))
    with pytest.raises(Unprintable):
        started.wait(30)
    assert started.state == "failed" and board.ended.wait(10)
