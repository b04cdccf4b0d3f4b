"""Declaring a workflow and tracing its graph; every wrong call is refused by name."""

from __future__ import annotations

import pytest

from rlinf_lab.errors import ConfigError, UnknownNameError, WorkflowError
from rlinf_lab.workflow.worker import Collected, FunctionWorker, Inbox, Outbox, Scripted, Worker
from rlinf_lab.workflow.workflow import Workflow


class Sim(Worker):
    def collect(self, actions: Inbox, obs: Outbox, traj: Outbox) -> None:
        obs.put(0)

    def reset(self, seed: int) -> int:
        return seed


class Policy(Worker):
    def act(self, obs: Inbox, actions: Outbox, greedy: bool = False) -> None:
        """Docstrings do not count as a first statement."""
        for batch in obs:
            actions.put_all(batch)

    def load(self, weights: object) -> None:
        pass


class Learner(Worker):
    def train(self, traj: Inbox) -> None:
        batch = traj.get_all()
        del batch


class Odd(Worker):
    async def later(self) -> None: ...

    def lazily(self):
        yield 1

    def selfless() -> None: ...  # type: ignore[misc]

    @staticmethod
    def helper() -> None: ...

    @classmethod
    def maker(cls) -> None: ...


async def coroutine(batch: list) -> list:
    return batch


def lazily(batch: list):
    yield from batch


def ppo() -> Workflow:
    flow = Workflow("ppo")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    sim, policy, learner = flow.worker(Sim, name="sim"), flow.worker(Policy, name="policy"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration(batch):
        for _ in range(2):
            sim.collect(act, obs, traj)
        policy.act(obs, act)
        update = learner.train(traj)
        if update.metrics["loss"].wait() > 3:
            policy.load(update.weights)
        return update.metrics

    return flow


def test_the_graph_is_traced_from_the_loop() -> None:
    graph = ppo().graph
    assert [(e.producer, e.channel, e.consumer) for e in graph.edges] == [
        ("sim", "obs", "policy"), ("policy", "act", "sim"), ("sim", "traj", "learner"),
    ]  # fmt: skip
    assert graph.cells == (("sim", "policy"),)
    assert graph.depth == {"sim": 0, "policy": 0, "learner": 1}
    assert [s.worker for s in graph.program] == ["sim", "sim", "policy", "learner", "policy"]
    assert graph.program[-1].after == (3,)
    assert [(v.producer, v.consumer, v.label) for v in graph.value_edges] == [("learner", "policy", "weights")], "both sides of a branch are seen"
    starts = {(n.name, c.method): c.starts_on_device for n in graph.nodes for c in n.calls}
    assert starts == {("sim", "collect"): True, ("policy", "act"): False, ("policy", "load"): True, ("learner", "train"): False}
    assert "sim --obs--> policy" in repr(graph) and "cell: sim <-> policy" in repr(graph) and "<svg" in ppo()._repr_html_()
    assert dir(Workflow("w").worker(Policy)) == ["act", "load"]


def test_a_channel_that_nobody_reads_is_named() -> None:
    flow = Workflow("half")
    out = flow.channel("out")
    policy = flow.worker(lambda batch: batch, name="copy")
    source = flow.channel("source")

    @flow.iteration
    def iteration() -> None:
        source.put_all([1])
        policy(source, out)

    with pytest.raises(WorkflowError, match="Channel 'out'.*written by 'copy' but nobody reads it"):
        _ = flow.graph


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda f: f.channel("a b"), ConfigError, "'a b' is not an identifier"),
        (lambda f: f.channel("c", capacity=0), ConfigError, "capacity is 0"),
        (lambda f: (f.channel("twice"), f.channel("twice")), WorkflowError, "already"),
        (lambda f: f.worker(3), WorkflowError, "not 3"),
        (lambda f: f.worker(Sim()), WorkflowError, "the class, not an instance.*Next: `class Sim"),
        (lambda f: f.worker(f.worker(Sim)), WorkflowError, "the class, not an instance"),
        (lambda f: f.worker("Sim"), WorkflowError, "not 'Sim'.*Next: `class Mine"),
        (lambda f: f.worker(Sim, name="a b"), ConfigError, "Worker name 'a b'"),
        (lambda f: f.worker(Sim, name=3), ConfigError, "Worker name 3"),
        (lambda f: f.worker(dict), WorkflowError, "not <class 'dict'>"),
        (lambda f: f.worker(lambda batch: batch, 2, x=1), WorkflowError, "takes no further arguments, but got 2, x=1"),
        (lambda f: f.worker(lambda: []), WorkflowError, "called with one list of items.*too many positional"),
        (lambda f: f.worker(lambda a, b: []), WorkflowError, "called with one list of items.*missing"),
        (lambda f: f.worker(coroutine), WorkflowError, "'coroutine' is an async function"),
        (lambda f: f.worker(Odd, name="o").later, WorkflowError, "'later', a method of worker 'o' .Odd., is an async function"),
        (lambda f: f.worker(Odd, name="o").lazily, WorkflowError, "is a generator function .it contains yield."),
        (lambda f: f.worker(Odd, name="o").helper, WorkflowError, "'helper' is a staticmethod"),
        (lambda f: f.worker(Odd, name="o").maker, WorkflowError, "'maker' is a classmethod"),
        (lambda f: f.worker(Odd, name="o").rank, UnknownNameError, "method of worker 'o'"),
        (lambda f: f.iteration(coroutine), WorkflowError, "The iteration 'coroutine'.*async function"),
        (lambda f: f.iteration(lazily), WorkflowError, "The iteration 'lazily'.*generator function"),
        (lambda f: f.worker(Odd, name="o").selfless, WorkflowError, "'selfless'.*takes no self"),
        (lambda f: f.worker(sorted, name="s").run, UnknownNameError, "Known: none. Call the worker itself"),
        (lambda f: f.worker(Odd, name="o")._private, AttributeError, "begins with an underscore"),
        (lambda f: f.channel("c", capacity=True), ConfigError, "capacity is True"),
        (lambda f: f.channel("c", keyed="yes"), ConfigError, "keyed is 'yes'"),
        (lambda f: f.channel(3), ConfigError, "Channel name 3"),
        (lambda f: Workflow(3), ConfigError, "workflow's name is 3"),
        (lambda f: f.iteration(), WorkflowError, "without parentheses"),
        (lambda f: f.iteration(7), WorkflowError, "The iteration of workflow 'w' is 7"),
        (lambda f: f.worker(Sim, 1, 2), WorkflowError, "Worker class Sim"),
        (lambda f: (f.worker(Sim), f.worker(Sim)), WorkflowError, "'sim' already"),
        (lambda f: f.worker(Sim, name="driver"), WorkflowError, "'driver' already"),
        (lambda f: f.worker(Sim, name="s").colect, UnknownNameError, "Did you mean 'collect'"),
        (lambda f: f.body, WorkflowError, "no iteration yet"),
        (lambda f: f.worker(Sim, name="s").reset(1), WorkflowError, "outside a run"),
    ],
)
def test_wrong_declarations_are_refused_by_name(make, error, text) -> None:
    with pytest.raises(error, match=text):
        make(Workflow("w"))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s, c: s.reset(c), "not annotated as an Inbox or an Outbox"),
        (lambda s, c: s.collect(c, c, 5), "'traj' must be a channel"),
        (lambda s, c: s.reset(), "missing a required argument"),
        (lambda s, c: s.reset(1, 2, 3), "too many positional"),
    ],
)
def test_wrong_calls_are_refused_by_name(call, text) -> None:
    flow = Workflow("w")
    channel, sim = flow.channel("c"), flow.worker(Sim, name="sim")

    @flow.iteration
    def iteration() -> None:
        call(sim, channel)

    with pytest.raises(WorkflowError, match=text):
        _ = flow.graph


def test_functions_of_every_kind_that_take_a_batch_are_workers() -> None:
    import functools
    import math

    flow = Workflow("w")
    for i, function in enumerate((sorted, functools.partial(map, math.sqrt), lambda b, scale=2: b, lambda *b: b, lazily, ", ".join)):
        flow.worker(function, name=f"f{i}")
    assert len(flow.workers) == 6


@pytest.mark.parametrize(("function", "text"), [(lambda b: 3, "returned 3 for a batch of 2"), (len, "'len' returned 2"), (str, "returned '"), (dict, "{")])
def test_a_function_that_returns_no_list_is_told_so(function, text) -> None:
    with pytest.raises(WorkflowError, match=f"{text}.*Next: return a list"):
        FunctionWorker(function)(Scripted([(1, 2), (3, 4)]), Collected())


def test_a_class_that_was_defined_anew_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("w")
    flow.worker(Sim, name="sim")
    flow.worker(lambda batch: batch, name="copy")
    assert flow.outdated() == []
    monkeypatch.setitem(globals(), "Sim", type("Sim", (Worker,), {}))
    assert flow.outdated() == ["sim"]
    monkeypatch.delitem(globals(), "Sim")
    assert flow.outdated() == []


@pytest.mark.parametrize("name", ["name", "rank", "ranks", "device", "sub_batches", "iteration", "cancelled"])
def test_what_the_runtime_gives_cannot_be_assigned(name: str) -> None:
    with pytest.raises(WorkflowError, match=rf"Sim\.{name} = 3: every worker has '{name}' from the runtime.*self.my_{name}"):
        setattr(Sim(), name, 3)


def test_a_workers_methods_run_without_a_runtime() -> None:
    out: Collected[int] = Collected()
    Policy().act(Scripted([1, 2, 3], micro_batch=2), out)
    assert out == [1, 2, 3]
    worker = Sim()
    assert (worker.rank, worker.ranks, worker.device, worker.wants_frame()) == (0, 1, "cpu", False)
    with worker.span("anything"):
        worker.log(loss=1.0)
