"""What calls are given: values of other calls deep inside structures, local and on Ray; channels that the dry run has not seen."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flows import Numbers

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, PlanError, UnknownNameError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = ["cpu:0", "cpu:1"]
Pair = collections.namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Update:
    weights: Any
    version: int
    notes: list[Any] = field(default_factory=list)


class Maker(Worker):
    def make(self, n: int) -> dict[str, Any]:
        return {"array": np.full(3, float(n)), "n": n, "inner": [n, n + 1]}

    def fail(self) -> None:
        raise ValueError("no value today")


class Taker(Worker):
    def take(self, value: Any, *more: Any, **named: Any) -> str:
        """What really came, as text: handles would show as such."""
        return repr((value, more, named))


def nested_flow() -> Workflow:
    flow = Workflow("nested")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(n: int = 1, fails: bool = False):
        if fails:
            return taker.take([{"x": maker.fail()}])
        made = maker.make(n)
        taken = taker.take(
            {"list": [made.n, (made["inner"][1], "plain")], "pair": Pair(made.n, 0), "update": Update(made.array, 7, [made.n])},
            [made["n"]], {made.wait()["n"]}, named=[{"deep": (made.inner,)}], same=[1, 2.0, "x"],
        )  # fmt: skip
        return {"taken": taken, "pair": Pair(made.n, [made["inner"]]), "update": Update(made.n, 0)}

    return flow


def expected(n: int) -> str:
    update = Update(np.full(3, float(n)), 7, [n])
    value = {"list": [n, (n + 1, "plain")], "pair": Pair(n, 0), "update": update}
    return repr((value, ([n], {n}), {"named": [{"deep": ([n, n + 1],)}], "same": [1, 2.0, "x"]}))


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_values_deep_inside_arguments_and_results_arrive_and_one_that_failed_is_the_makers_failure(executor: str) -> None:
    flow = nested_flow()
    assert [(v.consumer, v.label) for v in flow.graph.value_edges][:2] == [("taker", "n"), ("taker", "['inner'][1]")]
    assert flow.graph.program[1].after == (0,)
    with session(flow, ExecutionPlan.spatial(flow, DEVICES, {"maker": [0], "taker": [1]}), executor=executor) as s:
        for n in (1, 5):
            result = s.step(n)
            assert result == {"taken": expected(n), "pair": Pair(n, [[n, n + 1]]), "update": Update(n, 0)}
        with pytest.raises(WorkerError, match="no value today") as caught:
            s.step(1, True)
        assert caught.value.worker == "maker"


def test_a_channel_that_the_dry_run_has_not_seen_in_use_is_named() -> None:
    flow, real = Workflow("hidden"), list[Any]()
    seen, extra = flow.channels("seen", "extra")
    a, b = flow.worker(Numbers, name="a"), flow.worker(Numbers, name="b")

    @flow.iteration
    def iteration():
        a.make(1, seen)
        for use in real:
            use()
        return b.count(seen)

    hidden = (
        (lambda: a.make(1, extra), r"a\.make writes to channel 'extra', which it did not do in the dry run"),
        (lambda: b.count(extra), r"b\.count reads from channel 'extra'"),
        (lambda: b.make(1, seen), r"b\.make writes to channel 'seen'.*there, a did\. The plan"),
        (lambda: seen.put(1), "The iteration function writes to channel 'seen'"),
        (lambda: seen.get(), "The iteration function reads from channel 'seen'.*there, b did"),
    )
    with session(flow, ExecutionPlan.temporal(flow, DEVICES)) as s:
        for use, text in hidden:
            real[:] = [use]
            with pytest.raises(WorkflowError, match=text):
                s.step()
            real.clear()
            assert s.step() == 1


def test_what_was_kept_of_the_dry_run_or_of_another_run_is_refused() -> None:
    flow = Workflow("kept")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")
    keeper = SimpleNamespace(kept=[])  # outside the loop: unlike lists and counters, the dry run shares it

    @flow.iteration
    def iteration(use: int):
        result = taker.take(keeper.kept[use]) if keeper.kept else None
        handle = maker.make(1)
        if len(keeper.kept) < 2:
            keeper.kept.extend([handle, handle.n.wait()])
        return result

    plan = ExecutionPlan.temporal(flow, DEVICES)
    with session(flow, plan) as s:
        for use, text in enumerate(("'value' is Handle.* of the dry run", "symbol of the dry run")):
            with pytest.raises(WorkflowError, match=text):
                s.step(use)
        keeper.kept.clear()
        assert s.step(0) is None
        assert s.step(0) == repr(({"array": np.full(3, 1.0), "n": 1, "inner": [1, 2]}, (), {}))
    with session(flow, plan) as s, pytest.raises(WorkflowError, match="of another run"):
        s.step(0)


# --- how a run is started and stepped --------------------------------------------------------------------------------
def one_argument() -> Workflow:
    flow = Workflow("one")
    maker = flow.worker(Maker, name="maker")

    @flow.iteration
    def iteration(n: int, *, twice: bool = False):
        return maker.make(n).n

    return flow


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda f, p: run(f, p, 1), WorkflowError, r"iteration iteration\(n.*missing a required argument: 'n'.*inputs="),
        (lambda f, p: run(f, p, inputs=5), ConfigError, "inputs=5"),
        (lambda f, p: run(f, p, True, inputs=[1]), ConfigError, "iterations=True"),
        (lambda f, p: run(f, p, inputs=[1], executor="ray", adress="x"), UnknownNameError, "Did you mean 'address'"),
        (lambda f, p: run(f, p, inputs=[1], executor="ray", address=5), ConfigError, "address=5: .*'host:port'"),
        (lambda f, p: run(f, "temporal", inputs=[1]), PlanError, "must be an ExecutionPlan"),
        (lambda f, p: lab.check(f, executor="moon"), ConfigError, "'moon' is not known"),
        (lambda f, p: f.channel("c", discard_unread="yes"), ConfigError, "discard_unread is 'yes'; it must be True or False"),
        (lambda f, p: f.channel("c", may_be_empty=1), ConfigError, "may_be_empty is 1; it must be True or False"),
        (lambda f, p: lab.run("x", dashboard=False), WorkflowError, r"run\(\) takes a Workflow, not 'x'.*Next"),
        (lambda f, p: lab.show(3), ConfigError, r"show\(\) takes a Run or a session, not 3.*Next"),
    ],
)
def test_what_cannot_begin_is_refused_at_once_by_name(call: Any, error: type[Exception], text: str) -> None:
    flow = one_argument()
    with pytest.raises(error, match=text):
        call(flow, ExecutionPlan.temporal(flow, ["cpu:0"]))


def test_what_a_run_cannot_be_asked_is_refused_by_name() -> None:
    going = run(one_argument(), None, np.int64(2), inputs=[1, 2])  # a whole number, whoever made it
    for ask, text in ((lambda: going.wait("x"), "timeout='x'"), (lambda: going.on_update(3), r"on_update\(3\)"), (going.start, "has been started before")):
        with pytest.raises(ConfigError, match=text):
            ask()
    assert len(going.wait(60)) == 2


def test_a_step_with_other_arguments_is_refused_and_a_class_defined_anew_in_its_cell_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = one_argument()
    monkeypatch.setitem(globals(), "Maker", type("Maker", (Worker,), {}))
    with pytest.warns(RuntimeWarning, match="class of 'maker' was defined anew"), session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
        with pytest.raises(WorkflowError, match="too many positional"):
            s.step(1, 2)
        assert s.step(3, twice=True) == 3


class Defaults(Worker):
    def work(self, a: int, b: int = 2, c: int = 3, *, d: int = 4, **more: int) -> tuple:
        return a, b, c, d, more

    def several(self, a: int, b: int = 2, *rest: int) -> tuple:
        return a, b, rest


def test_an_argument_given_by_name_behind_one_that_keeps_its_default_arrives_where_it_belongs() -> None:
    flow = Workflow("defaults")
    worker = flow.worker(Defaults, name="worker")

    @flow.iteration
    def iteration() -> Any:
        return [worker.work(1, c=9), worker.work(1, d=8, e=7), worker.work(a=1, c=worker.several(1).wait()[1]), worker.several(1, 5, 6, 7)]

    assert run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1).wait() == [[(1, 2, 9, 4, {}), (1, 2, 3, 8, {"e": 7}), (1, 2, 2, 4, {}), (1, 5, (6, 7))]]
