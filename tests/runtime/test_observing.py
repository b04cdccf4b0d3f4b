"""What a run and a session show while they work: metrics, their names, what is kept, what a worker may log."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logging_workers import Counts, counted, ended, made
from sessions import until

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.runtime.host.samples import SamplesInTheMaking
from rlinf_lab.runtime.run import observer
from rlinf_lab.runtime.run.metrics import MetricTable, labels
from rlinf_lab.runtime.run.observer import Observer, depths
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.transport.pickling import pickled
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


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


# --- bad input -------------------------------------------------------------------------------------------------------------
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


def test_which_samples_have_a_bar_and_when_each_began() -> None:
    """Against a plain list of those that run: no start comes twice; the first 16 have a bar, and the long tail."""
    rng, making, running, places, latest, now = random.Random(1), SamplesInTheMaking(), dict[str, int](), set[str](), -1, 0
    for turn in range(4000):
        now, id = now + rng.choice([-1, 0, 0, 1, 5]), str(rng.randrange(40))
        if rng.random() < (0.7 if turn % 200 < 80 else 0.3):
            making.begin(id, now)
            if id not in running:
                latest = running[id] = max(now, latest + 1)
                places |= {id} if len(places) < 16 else set()
            continue
        start = running.pop(id, None)
        assert making.end(id, now) == (None if start is None else (start, (id in places or len(running) < 4) and now >= start))
        places.discard(id)
