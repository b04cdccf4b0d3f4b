"""The what-if explorer without a browser: what it sends, what it does with what the page asks."""

from __future__ import annotations

import base64
import dataclasses
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning import cancellation
from rlinf_lab.planning.adapt.whatif import Question
from rlinf_lab.planning.planner.gantt import gantt
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import DeviceKind, EdgeProfile, Memory, Profile, Sample, WorkerProfile
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.widgets import PlanExplorer
from rlinf_lab.widgets.schedules import schedules

DOCS = Path(__file__).parents[2] / "docs" / "profiles"


def profile() -> Profile:
    heavy = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 2.0)), onload_s=0.5, offload_s=0.5, memory=Memory(10.0))
    return Profile(64, {"a": heavy, "b": heavy}, (EdgeProfile("a", "b"),), "two", device_memory_gib=80.0)


class Page:
    """An explorer with a page that notes what it is sent."""

    def __init__(self) -> None:
        self.explorer = PlanExplorer(plan(profile(), 8))
        self.heard: list[tuple[dict[str, Any], dict[str, bytes]]] = []
        self.explorer.send = lambda content, buffers=None: self.heard.append((content, dict(zip(content["parts"], buffers or [], strict=True))))

    def tell(self, **content: Any) -> dict[str, Any]:
        self.explorer._receive(None, content, None)
        return self.heard[-1][0]

    def post(self, number: int, simulate: bool = False, **positions: int) -> None:
        """Ask without waiting for the answer."""
        named = {("devices." if k == "devices" else k): v for k, v in positions.items()}
        self.explorer._receive(None, {"type": "ask", "id": number, "simulate": simulate, "positions": named}, None)

    def ask(self, number: int, simulate: bool = False, **positions: int) -> dict[str, Any]:
        self.post(number, simulate, **positions)
        until(lambda: number in self.answered())
        return next(told for told, _ in reversed(self.heard) if told.get("answered") == number)

    def answered(self) -> list[int]:
        """Numbers of the questions whose answers were sent."""
        return [told["answered"] for told, _ in list(self.heard) if "answered" in told]

    def slider(self, field: str) -> list[Any]:
        return next(list(s.values) for s in self.explorer._sliders if s.field == field)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_history_is_all_that_is_shown() -> None:
    page = Page()
    told = page.tell(type="history")
    _, parts = page.heard[-1]
    plans = page.explorer.plans
    assert [p["name"] for p in told["answer"]["plans"]] == [p.name for p in plans] and told["error"] == ""
    assert told["answer"]["lower_bound_s"] == plans.bound.seconds and told["answer"]["plans"][0]["bubbles"]
    for i, chart in enumerate(told["answer"]["charts"]):
        bars = np.frombuffer(parts[f"bars{i}"], np.float32).reshape(-1, 6)
        assert np.array_equal(bars, gantt(plans[i]).bars) and chart["workers"] == ["a", "b"] and chart["devices"] == 8
    assert set(told["positions"]) == {s["field"] for s in page.explorer.sliders}
    assert all(s["at"] == told["positions"][s["field"]] and len(s["texts"]) > 1 for s in page.explorer.sliders)


def test_a_moving_slider_is_answered_at_once_and_simulated_when_it_rests() -> None:
    page = Page()
    at = page.slider("devices.").index(16)
    moving = page.ask(1, devices=at)
    assert moving["answered"] == 1 and {p["seconds_are"] for p in moving["answer"]["plans"]} == {"followed"}
    assert page.explorer.question.devices == {"": 16} and moving["positions"]["devices."] == at
    resting = page.ask(2, simulate=True, devices=at)
    assert resting["answer"]["plans"][0]["seconds_are"] == "simulated"
    direct = plan(profile(), 16)
    assert [(p.shape, p.seconds) for p in page.explorer.plans] == [(p.shape, p.seconds) for p in direct]


def test_what_does_not_fit_is_said_and_the_last_answer_stays() -> None:
    page = Page()
    before = page.explorer.plans
    told = page.ask(1, memory_gib=page.slider("memory_gib").index(5.0))
    assert "needs 10 GiB" in told["error"] and page.explorer.plans is before and "needs 10 GiB" in repr(page.explorer)
    assert [p["name"] for p in told["answer"]["plans"]] == [p.name for p in before]
    told = page.ask(2, memory_gib=len(page.slider("memory_gib")) - 1)
    assert told["error"] == "" and page.explorer.question.memory_gib is None


def test_messages_that_make_no_sense_change_nothing() -> None:
    page = Page()
    before = page.explorer.question
    page.ask(1, devices=999, items=-1, nonsense=3)
    assert page.explorer.question == before
    page.explorer._receive(None, {"type": "what"}, None)
    page.explorer._receive(None, "text", None)


@pytest.mark.timeout(60)
def test_plans_that_are_shown_are_simulated_before_others_are_searched(simulation: Endless) -> None:
    """The best one first; the question is answered only by what `lab.plan` finds."""
    page, at = Page(), Page().slider("devices.").index(16)
    quick = page.ask(1, devices=at)["answer"]["plans"]
    page.post(2, simulate=True, devices=at)
    assert simulation.begun.wait(30), "now the search"
    more = [told for told, _ in page.heard if "answer" in told][-len(quick) :]
    assert [told["answered"] for told in more] == [1] * len(quick)
    assert [sum(p["seconds_are"] == "simulated" for p in told["answer"]["plans"]) for told in more] == list(range(1, len(quick) + 1))
    assert {p["name"]: p["seconds_are"] for p in more[0]["answer"]["plans"]}[quick[0]["name"]] == "simulated"
    shown = page.explorer.plans
    assert len(quick) > 1 and [p.seconds for p in shown] == sorted(p.seconds for p in shown) and page.explorer.question.devices == {"": 16}
    assert {(p.shape, p.seconds) for p in shown} <= {(p.shape, p.seconds) for p in plan(profile(), 16)}
    assert page.ask(3, devices=at)["answer"]["plans"][0]["seconds_are"] == "followed" and simulation.ended.wait(30), "given up for what is newer"


class Endless:
    """Stands for work that takes minutes, and looks whether it is wanted as all searches and forecasts do."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.begun.set()
        try:
            while True:
                cancellation.check()
        finally:
            self.ended.set()


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Endless:
    """Simulated answers take for ever, quick ones are as ever."""
    endless, quick = Endless(), Question.answer
    monkeypatch.setattr(Question, "answer", lambda self, base, simulate, like: endless() if simulate else quick(self, base, simulate, like))
    return endless


@pytest.mark.timeout(60)
def test_a_simulation_is_given_up_for_a_newer_question(simulation: Endless) -> None:
    page = Page()
    first, second = (page.slider("devices.").index(n) for n in (16, 4))
    page.post(1, simulate=True, devices=first)
    assert simulation.begun.wait(30)
    told = page.ask(2, devices=second)
    assert simulation.ended.wait(30) and page.answered() == [2]
    assert told["positions"]["devices."] == second and page.explorer.plans.devices == {"": 4}
    page.post(3, simulate=True, devices=first)
    assert page.explorer.ask(simulate=False, items=32).devices == {"": 4}, "a cell goes on from what is shown"
    assert page.answered()[-1] > 3, "the page does not wait for its own question any more"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_is_told_to_the_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    page, quick = Page(), Question.answer
    monkeypatch.setattr(Question, "answer", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in page.ask(1)["error"]
    monkeypatch.setattr(Question, "answer", quick)
    assert page.ask(2)["error"] == "", "and the next question is answered"


def test_asking_from_a_cell() -> None:
    explorer = PlanExplorer(plan(profile(), 8, simulate=False))
    assert explorer.ask(devices=4, memory_gib=40.0) is explorer.plans and explorer.plans.devices == {"": 4}
    assert explorer.plans.best.simulated is not None
    with pytest.raises(PlanError, match="needs 10 GiB"):
        explorer.ask(memory_gib=1.0)
    with pytest.raises(ConfigError, match=r"ask\(memory=\.\.\.\): a question has devices, items"):
        explorer.ask(memory=3)
    with pytest.raises(ConfigError, match=r"the plans of lab\.plan are needed"):
        PlanExplorer(profile())  # type: ignore[arg-type]


class Maker(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        out.put_all(range(64))


class User(lab.Worker):
    def use(self, inbox: lab.Inbox) -> int:
        return sum(len(batch) for batch in inbox)  # several ranks share them


def test_what_was_found_with_the_mouse_can_be_run() -> None:
    flow = lab.Workflow("two")
    numbers, a, b = flow.channel("numbers"), flow.worker(Maker, name="a"), flow.worker(User, name="b")

    @flow.iteration
    def iteration() -> int:
        a.make(numbers)
        return b.use(numbers)

    explorer = PlanExplorer(plan(flow, ["cpu:0", "cpu:1"], profile(), simulate=False))
    for asked, devices in ((2, ("cpu:0", "cpu:1")), (1, ("cpu:0",)), (4, ("cpu:0", "cpu:1", "cpu:2", "cpu:3"))):
        best = explorer.ask(simulate=False, devices=asked, micro_batches=2).best
        assert best.devices == devices and set(best.execution.micro_batches) == {"numbers"}
        results = lab.run(flow, best, iterations=2, dashboard=False, clock=MockClock()).wait()
        assert [sum(r) // len(ranks) if isinstance(r, list) else r for r, ranks in zip(results, 2 * [best.execution.placements["a"]], strict=True)] == [64, 64]


@pytest.mark.parametrize("simulate", [True, False])
def test_a_saved_notebook_keeps_the_table_and_the_schedules(simulate: bool) -> None:
    plans = plan(profile(), 8, simulate=simulate)
    data, _ = PlanExplorer(plans)._repr_mimebundle_()
    assert "<table" in data["text/html"] and "<svg" in data["text/html"] and data["text/plain"].startswith("PlanExplorer('two': ")
    drawn = schedules(plans)
    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).width == 1.5 * drawn.width
    assert [word.text.split(":")[0] for word in drawn.words][: len(plans)] == [p.name for p in plans][:4]
    assert {bar.fill for bar in drawn.bars} >= set(plans.profile.workers)


@pytest.mark.parametrize("count", [1, 8, 2048])
def test_the_schedules_show_who_works_when(count: int) -> None:
    plans = plan(profile(), count, simulate=False)
    best, picture = plans.best, gantt(plans.best)
    drawn = [bar for bar in schedules(dataclasses.replace(plans, ranked=(best,))).bars if bar.width != 12]  # without the legend
    px, each = 944 / picture.seconds, min(120 / picture.devices, 14)
    for start, end, first, stop, worker, _ in picture.bars.tolist():
        x, y = 8 + px * (start + end) / 2, 22 + each * (first + stop) / 2
        assert any(bar.fill == picture.workers[int(worker)] and bar.x - 1 <= x <= bar.x + bar.width + 1 and bar.y <= y <= bar.y + bar.height for bar in drawn)
    area = sum((end - start) * (stop - first) for start, end, first, stop, *_ in picture.bars.tolist()) * px * each
    assert sum(bar.width * bar.height for bar in drawn) == pytest.approx(area, rel=0.05)


def test_workers_of_published_profiles_have_their_sliders() -> None:
    explorer = PlanExplorer(plan(Profile.load(DOCS / "grpo_7b_case4.json"), 16, simulate=False))
    texts = {s["field"]: s["texts"][s["at"]] for s in explorer.sliders}
    speeds = {f"speed.{name}": "× 1" for name in explorer.plans.profile.workers}
    assert texts == {"devices.": "16", "items": "8192 items", "micro_batches": "64", "length": "× 1", "tail": "power 1", "staleness": "0 iterations", **speeds}
    staleness = next(s["texts"] for s in explorer.sliders if s["field"] == "staleness")
    assert staleness[:3] == ["0 iterations", "1 iteration", "2 iterations"]


def test_memory_is_asked_for_some_kinds_or_for_all() -> None:
    worker = WorkerProfile((Sample(1, 64.0, 8.0),), exponent=1.0, memory=Memory(20.0))
    made = Profile(64, {"a": worker, "b": worker}, (EdgeProfile("a", "b"),), kinds=(DeviceKind("H", 1.0, 80.0), DeviceKind("R", 1.0, 24.0)))
    explorer = PlanExplorer(plan(made, {"H": 2, "R": 2}, simulate=False))
    explorer.ask(memory_gib={"H": 40.0})
    assert explorer.question.memory_gib == {"H": 40.0, "R": 24.0}
    explorer.ask(memory_gib={})
    assert explorer.question.memory_gib == {"H": 40.0, "R": 24.0}
    explorer.ask(memory_gib=None)
    assert explorer.question.memory_gib is None and [s.field for s in explorer._sliders if "memory" in s.field]
