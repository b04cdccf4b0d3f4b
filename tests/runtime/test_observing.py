"""What a run and a session show while they work: metrics, their names, what is kept, what a worker may log."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sessions import until

import rlinf_lab as lab
from rlinf_lab import notebook
from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.notebook import CLOCK_SECONDS, _Feeder, load_note
from rlinf_lab.runtime.run import observer
from rlinf_lab.runtime.run.metrics import MetricTable, labels
from rlinf_lab.runtime.run.observer import Observer, depths
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.transport.pickling import pickled
from rlinf_lab.widgets import Dashboard
from rlinf_lab.widgets.express import Beat
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


class Counts(Worker):
    def __init__(self) -> None:
        self.seen_at_birth = (self.name, self.rank, self.ranks, self.device)

    def setup(self) -> None:
        self.log(parameters=12.0 + self.rank)

    def go(self, i: int = 0) -> int:
        self.log(x=float(i + self.rank))
        return i

    def birth(self) -> tuple[str, int, int, str]:
        return self.seen_at_birth

    def say(self, metrics: dict[str, Any]) -> None:
        self.log(**metrics)

    def label(self, label: Any) -> None:
        with self.span(label):
            pass

    def raises(self) -> None:
        raise Unprintable

    def show(self) -> None:
        self.frame(np.zeros((4, 4, 3), np.uint8))


def made(call: Any, ranks: int = 1, **workers: type[Worker]) -> tuple[Workflow, lab.ExecutionPlan]:
    """A workflow whose iteration is ``call(handles, argument)``."""
    flow = Workflow("watched")
    handles = {name: flow.worker(cls, name=name) for name, cls in (workers or {"w": Counts}).items()}

    @flow.iteration
    def iteration(argument: Any = 0) -> Any:
        return call(handles, argument)

    return flow, lab.ExecutionPlan.temporal(flow, [f"cpu:{i}" for i in range(ranks)], dict.fromkeys(handles, ranks))


def counted() -> tuple[Workflow, lab.ExecutionPlan]:
    return made(lambda h, i: h["w"].go(i))


def ended(going: Any) -> Any:
    going.wait(30)
    return going


# --- sessions ----------------------------------------------------------------------------------------------------
def test_a_session_shows_what_a_run_shows_and_waits_for_nobody_to_look() -> None:
    flow, plan = made(lambda h, i: (h["w"].go(i), h["w"].show())[0])
    told: list[int] = []
    with session(flow, plan) as s:
        s.on_update(lambda it: told.append(it.iteration))
        for i in range(50):
            s.step(i)
        until(lambda: "x" in s.metrics and not s.metrics["x"].isna().any())
        assert list(s.metrics["x"]) == list(s.metrics["result"]) == [float(i) for i in range(50)]
        executor = s._executor
        until(lambda: not executor.driver_host.told.metrics and not executor.news.undrained())
        until(lambda: not s._observer.table._ranks)  # all of them are settled
        assert s.frames["w[0]"].shape == (4, 4, 3) and "50 iterations done" in s.status() and list(s.channels().columns) == []
    assert len(s.timeline.iterations()) == 50 and s.timeline.bubble_sum_error_ns() == 0 and told[-1] == 50
    assert s.waits() == [] and s.standstill() is None


def test_a_failed_iteration_of_a_session_is_no_row() -> None:
    with session(*made(lambda h, m: h["w"].say(m))) as s:
        s.step({"x": 1.0})
        with pytest.raises(WorkerError):
            s.step({"x": "abc"})
        s.step({"x": 3.0})
    assert list(s.metrics["iteration"]) == [0, 2] and list(s.metrics["x"]) == [1.0, 3.0]


@pytest.mark.parametrize("who", ["the own thread", "a glance", "a run"])
def test_what_cannot_be_collected_is_raised_by_the_next_step_or_ends_the_run(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    flow, plan = counted()
    if who == "a run":
        going = run(flow, plan, inputs=itertools.count())
        monkeypatch.setattr(going.timeline, "extend", full)
        with pytest.raises(OSError, match="No space"):
            going.wait(20)
        assert going.state == "failed"
        return
    with pytest.raises(OSError, match="No space"), session(flow, plan) as s:
        if who == "a glance":
            monkeypatch.setattr(s._observer, "collect", lambda: None)
        monkeypatch.setattr(s.timeline, "extend", full)
        for _ in range(2000):
            s.step()
            s.glance() if who == "a glance" else None
            time.sleep(0.01)


# --- names --------------------------------------------------------------------------------------------------------
def test_two_workers_that_log_one_name_have_a_column_each_and_what_setup_logs_belongs_to_the_first_iteration() -> None:
    done = ended(run(*made(lambda h, i: (h["a"].go(1), h["b"].go(101), {"x": 7.0})[-1], ranks=2, a=Counts, b=Counts), 3))
    assert [list(done.metrics[c]) for c in ("a.x", "b.x", "x")] == [[1.5] * 3, [101.5] * 3, [7.0] * 3]
    assert done.metrics["a.parameters"].tolist()[0] == 12.5 and done.metrics["a.parameters"].isna().tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["iteration", "seconds"])
def test_the_runs_own_columns_are_refused(name: str) -> None:
    for call, error, who in (
        (lambda h, m: h["w"].say(m), WorkerError, r"w\[0\] gives"), (lambda h, m: m, WorkflowError, "iteration function of workflow 'watched' gives"),
    ):  # fmt: skip
        with pytest.raises(error, match=rf"{who} a metric the name '{name}'.*Next"):
            run(*made(call), inputs=[{name: 5.0}]).wait(30)


def test_what_is_no_number_or_has_no_name_is_refused_where_it_is_logged() -> None:
    for value in ("abc", None, [1.0], 1j, np.zeros(2), 10**400):
        with pytest.raises(WorkflowError, match=r"Counts (logs x=|gives the metric 'x').*Next"):
            Counts().log(x=value)
    with pytest.raises(WorkflowError, match=r"log\(\{'x': 1\}\) gives no name.*\*\*metrics"):
        Counts().log({"x": 1})
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(WorkflowError, match=r"compute\(.*Next"):
            Counts().compute(seconds)


def test_numbers_of_every_kind_are_logged() -> None:
    values = {"a": 1, "b": True, "c": np.float32(0.5), "d": torch.tensor(2.0, requires_grad=True), "e": np.array(3), "f": float("inf")}
    done = ended(run(*made(lambda h, m: h["w"].say(m)), inputs=[values]))
    assert done.metrics.iloc[0][list(values)].tolist() == [1.0, 1.0, 0.5, 2.0, 3.0, float("inf")]


@pytest.mark.parametrize("label", [None, object()])
def test_a_span_needs_a_text(label: Any) -> None:
    flow, plan = made(lambda h, label: h["w"].label(label))
    with pytest.raises(WorkerError, match=r"w\[0\]: span\(.*\) is no text.*Next"):
        run(flow, plan, inputs=[label]).wait(30)


@pytest.mark.parametrize("label", ["a\udcffb", "a\0b</script>", "x" * 100_000])
def test_odd_texts_of_spans_are_kept_so_that_every_file_can_hold_them(label: str, tmp_path: Any) -> None:
    done = ended(run(*made(lambda h, label: h["w"].label(label)), inputs=[label] * 3))
    kept = [name for name in done.timeline.names if name[0] in "ax" and name not in ("w",)]
    assert len(kept) == 1 and len(kept[0]) <= 201
    done.timeline.to_perfetto(tmp_path / "t.json")


# --- what is kept -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("keep", "kept"), [(True, [0, 1, 2, 3]), (2, [2, 3]), (False, [])])
def test_results_are_kept_as_asked(keep: bool | int, kept: list[int]) -> None:
    before = time.monotonic()
    done = run(*counted(), inputs=range(4), keep_results=keep)
    assert done.wait(30) == done.results == kept and len(done.metrics) == 4
    assert 0 < done.elapsed_seconds <= time.monotonic() - before
    assert not done._observer.table._ranks  # nothing more of iterations that cannot change any more
    for bad in (-1, 2.5, "all", None):
        with pytest.raises(ConfigError, match="keep_results="):
            run(*counted(), 1, keep_results=bad)


# --- what the dashboard gets --------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize(
    ("glanced", "idle", "costs", "between", "afters"),
    [
        (False, False, 0.0, observer.LOOK_SECONDS, 4), (True, False, 0.0, observer.RELIEVED_SECONDS, 1),
        (True, False, 0.0005, 0.75, 1), (True, False, 1.0, observer.SELDOM_SECONDS, 1),
        (False, True, 0.0, observer.IDLE_SECONDS - observer.LOOK_SECONDS + observer.LEAST_REST, 2),
    ],
)  # fmt: skip
def test_how_often_the_own_thread_looks(monkeypatch: pytest.MonkeyPatch, glanced: bool, idle: bool, costs: float, between: float, afters: int) -> None:
    """By a clock of the test. Less often where somebody else glances or nothing goes on, and still less where a look takes more than a 1500th of a core."""
    clock, looks, told, told_after = SimpleNamespace(now=0.0, spent=0.0), list[float](), list[float](), list[float]()

    def look() -> None:
        looks.append(clock.now)
        clock.spent += costs

    def rests(timeout: float) -> bool:
        clock.now += timeout
        return clock.now > 20

    monkeypatch.setattr(observer, "time", SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: clock.spent, sleep=lambda s: None))
    watching = Observer.__new__(Observer)
    watching.__dict__.update(
        _rest=SimpleNamespace(acquire=rests), _wake=SimpleNamespace(wait=rests, clear=lambda: None), _over=False, problem=None,
        is_relieved=lambda: glanced, collect=look, _is_idle=lambda: idle, _update=lambda: told.append(clock.now),
        _afterwards=lambda: told_after.append(clock.now),
    )  # fmt: skip
    watching._pumping()
    assert told == looks and np.diff(looks)[1:].tolist() == pytest.approx([between] * (len(looks) - 2))
    assert told_after == looks[::afters]


@pytest.mark.parametrize("is_open", [False, True])
def test_somebody_glances_for_longer_than_the_own_thread_is_away_once_nothing_goes_on(monkeypatch: pytest.MonkeyPatch, is_open: bool) -> None:
    """What begins right after that was seen half a second later."""
    news, executor = SimpleNamespace(rows=lambda _: (b"", b"", 0)), SimpleNamespace(driver_host=SimpleNamespace(loop=SimpleNamespace(is_open=lambda: is_open)))
    watching, now, away, glances = Observer.__new__(Observer), [0.0], observer.IDLE_SECONDS + observer.SELDOM_SECONDS, list[bool]()
    watching.__dict__.update(_over=False, problem=None, moved_at=0.0, _lock=threading.Lock(), _news=news, _executor=executor)
    monkeypatch.setattr(observer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for now[0] in (0.0, away, away + 2 * observer.LOOK_SECONDS):
        glances.append(watching.glance())
    assert glances == [True, True, is_open]


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


# --- bad input -------------------------------------------------------------------------------------------------------------
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


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bomb:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __reduce__(self) -> Any:
        raise SystemExit(3)


def test_errors_and_values_without_a_text_are_told_all_the_same() -> None:
    flow, plan = made(lambda h, i: h["w"].raises())
    with pytest.raises(WorkerError, match=r"raises\(\): Unprintable: <Unprintable, whose str raises RuntimeError>"):
        run(flow, plan, 1).wait(30)
    with pytest.raises(WorkflowError, match=r"logs x=<Bomb, whose repr raises RuntimeError>"):
        Counts().log(x=Bomb())
    with pytest.raises(WorkflowError, match=r"<Bomb, whose repr raises RuntimeError> cannot be sent.*SystemExit: 3"):
        pickled(Bomb())


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


@pytest.mark.parametrize("error", [SystemExit(1), ZeroDivisionError("in the listener")])
def test_a_listener_that_raises_is_logged_once_and_dropped_and_the_others_go_on(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    flow, plan = counted()
    heard, calls = list[str](), list[int]()

    def bad(_: Any) -> None:
        calls.append(1)
        raise error

    started = run(flow, plan, inputs=range(10))
    started.on_update(bad)
    started.on_update(lambda r: heard.append(r.state))
    assert started.wait(30) == list(range(10)) and heard[-1] == "finished" and len(started.metrics) == 10
    assert len(calls) == 1 and caplog.text.count(f"{type(error).__name__}: ") == 1
    heard.clear()
    started.on_update(lambda r: heard.append(r.state))
    assert heard == ["finished"], "who comes after the end is told once"


@dataclass(frozen=True)
class Frozen(Worker):
    step: int

    def go(self) -> int:
        return self.step + self.ranks


class Net(Worker, torch.nn.Module):
    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.place = self.rank, self.ranks

    def go(self) -> tuple[int, int]:
        return self.place


def test_classes_that_mind_their_attributes_can_be_workers() -> None:
    """And each knows its place in its constructor."""
    flow = Workflow("attributes")
    frozen, net, born = flow.worker(Frozen, 4, name="frozen"), flow.worker(Net, name="net"), flow.worker(Counts, name="w")
    flow.iteration(lambda: (frozen.go(), net.go(), born.birth()))
    plan = lab.ExecutionPlan.temporal(flow, ["cpu:0", "cpu:1"], {"w": 2})
    assert run(flow, plan, 1).wait(30) == [(5, (0, 1), [("w", 0, 2, "cpu"), ("w", 1, 2, "cpu")])]


# --- counters beside spans ------------------------------------------------------------------------------------------------
def test_what_is_returned_logged_and_queued_lies_beside_the_spans() -> None:
    done = ended(run(*counted(), inputs=range(4)))
    table = done.timeline.counters().groupby("name", observed=True)["value"].apply(list)
    assert table["result"] == [0.0, 1.0, 2.0, 3.0] and table["w[0].x"] == [0.0, 1.0, 2.0, 3.0]
    assert done.counters["result"] == 3.0
    rows = [{"channel": "a", "depth": 2}, {"channel": "b", "depth": 0}, {"channel": "a", "depth": 3}]
    assert depths(rows) == {"a items": 5.0, "b items": 0.0}, "summed over its queues"


def test_what_is_not_urgent_comes_after_what_is() -> None:
    """How often, says the own thread's clock above."""
    told, no_function = list[str](), cast(Any, 3)

    def fails(_run: Any) -> None:
        told.append("fails")
        raise ValueError("no")

    with session(*counted()) as s:
        s.on_update(lambda _: told.append("now"), afterwards=lambda _: told.append("afterwards"))
        s.on_update(lambda _: None, afterwards=fails)
        with pytest.raises(ConfigError, match=r"on_update\(3\)"):
            s.on_update(lambda _: None, afterwards=no_function)
        s.step(1)
        until(lambda: told.count("afterwards") >= 3)
    assert "now" in told[: told.index("afterwards")] and told.count("fails") == 1


# --- the table of metrics by itself: what a row holds, which rows are new, what is forgotten ---
@given(st.sets(st.tuples(st.sampled_from(["driver", "a", "b", "c"]), st.sampled_from(["x", "y", "a.x", "b.a.x", "c.b.a.x"]))))
def test_no_two_columns_have_one_name(keys: set[tuple[str, str]]) -> None:
    """What the loop returns keeps its name."""
    assert len(set(labels(keys).values())) == len(keys)
    assert labels([("driver", "loss"), ("a", "loss"), ("a", "x")]) == {("driver", "loss"): "loss", ("a", "loss"): "a.loss", ("a", "x"): "x"}


said = (st.integers(0, 2), st.sampled_from(["a", "b", "driver"]), st.integers(0, 1), st.sampled_from("xy"), st.floats(-9, 9))


@given(st.lists(st.tuples(*said, st.booleans()), max_size=20))
def test_rows_are_means_of_what_ranks_said_last_and_those_that_changed_are_told(events: list[Any]) -> None:
    """A listener that replaces rows has the whole table: of iterations that have ended, whatever comes late."""
    table, seen, version, touched, known = MetricTable(), dict[int, Any](), 0, set[int](), dict[tuple[str, str], str]()
    cells: dict[int, dict[tuple[str, str], dict[int, float]]] = {}  # by iteration, worker and name: of each rank
    took: dict[int, float] = {}
    for number, (iteration, who, rank, name, value, looks) in enumerate([*events, (9, "driver", 1, "x", 1.0, True)]):
        row = cells.setdefault(iteration, {})
        if who != "driver" or rank:  # the loop may return nothing
            row.setdefault((who, name), {})[rank] = value
        if who == "driver":
            took[iteration] = number / 10
            table.finished(iteration, took[iteration], {name: value} if rank else {})
        else:
            table.logged(who, rank, iteration, {name: value})
        touched.add(iteration)
        before, known = known, labels({key for row in cells.values() for key in row})
        if any(known[key] != name for key, name in before.items()):
            touched |= set(took)
        if looks:
            rows, version = table.since(version)
            new = {row["iteration"]: row for row in rows}
            assert table.since(version) == ([], version) and set(new) <= touched
            seen, touched = seen | new, set()
    assert set(seen) == set(took) and table.pace() == pytest.approx(sum(took.values()) / len(took))
    for i in took:
        means = {known[key]: pytest.approx(sum(ranks.values()) / len(ranks)) for key, ranks in cells[i].items()}
        assert seen[i] == {"iteration": i, "seconds": took[i], **means}
    table.settle(1)
    whole = [{k: v for k, v in row.items() if not math.isnan(v)} for row in table.frame().to_dict("records")]
    assert whole == [seen[i] for i in sorted(took)] and not set(table._ranks) & {0, 1}
