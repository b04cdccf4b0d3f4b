"""Every public object says in a line or two what it is; where there is a rich form, it is well formed."""

from __future__ import annotations

import html.parser
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rlinf_lab as lab
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.simulator.simulator import SimCall
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.session.session import Iteration
from rlinf_lab.workers import Residence
from rlinf_lab.workflow.tracing.trace import Tracer
from rlinf_lab.workflow.worker import FunctionWorker, Inbox, Outbox

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from flows import DEVICES, Policy, Sim, cell_flow, cell_plans


class Objects:
    """One of each, made when asked for."""

    def __init__(self) -> None:
        self.flow = cell_flow()
        self.plan = cell_plans(self.flow)[0]
        self.graph = self.flow.graph
        self.run = run(self.flow, self.plan, 2)
        self.run.wait(60)
        self.many = [f"cuda:{i}" for i in range(1024)]
        self.seen: list[Any] = []

    def handle(self) -> Any:
        flow = lab.Workflow("w")
        worker = flow.worker(Sim, 3, name="sim")
        with flow.dispatching(Tracer(flow)):
            return worker.collect(flow.channel("act"), flow.channel("obs"), flow.channel("traj"))

    def ports(self) -> list[Any]:
        """What a worker's method is given, while it runs."""
        flow, seen = lab.Workflow("ports"), []

        class Looks(lab.Worker):
            def look(self, inbox: Inbox, out: Outbox) -> None:
                seen.extend([inbox, out, self, repr(inbox), repr(out), repr(self)])
                out.put_all(inbox.get_all())

        looks, a, b = flow.worker(Looks, name="looks"), flow.channel("a"), flow.channel("b")

        @flow.iteration
        def iteration() -> list:
            a.put(1)
            looks.look(a, b)
            return b.get_all()

        with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
            s.step()
            seen.append(s)
        return seen


@pytest.fixture(scope="module")
def objects() -> Objects:
    return Objects()


class Step(lab.Worker):
    def step(self) -> None: ...


def _many(o: Objects) -> Any:
    flow = cell_flow()
    return lab.ExecutionPlan.temporal(flow, o.many, {"sim": 1000, "policy": 1000, "learner": 1000})


SAMPLE = {"devices": 1, "items": 4, "seconds": 2.0}
TWO = {"name": "two", "items": 4, "workers": {"a": {"samples": [SAMPLE]}, "b": {"samples": [SAMPLE]}}, "edges": [{"producer": "a", "consumer": "b"}]}
MAKERS: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "Workflow": (lambda o: o.flow, "Workflow 'cell': 3 workers, 3 channels\n  sim --obs--> policy"),
    "Workflow without iteration": (lambda o: lab.Workflow("w"), "Workflow('w': 0 workers, 0 channels, no iteration yet)"),
    "WorkerHandle": (lambda o: lab.Workflow("w").worker(Policy), "WorkerHandle('policy': Policy, act(observations: Inbox, actions: Outbox), load_weights("),
    "Declaration": (lambda o: o.flow.declaration("sim"), "Declaration('sim': Sim(6))"),
    "Channel": (lambda o: lab.Workflow("w").channel("c", keyed=True), "Channel('c', capacity=64, keyed)"),
    "Handle": (lambda o: o.handle(), "Handle(sim.collect, iteration 0)"),
    "Ref": (lambda o: o.handle().metrics["loss"], "Ref(Handle(sim.collect, iteration 0).metrics['loss'])"),
    "Symbol": (lambda o: Tracer(o.flow).wait(o.handle()._call, (), None), "<value of sim.collect(), known at run time>"),
    "WorkflowGraph": (lambda o: o.graph, "Workflow 'cell'"),
    "Node": (lambda o: o.graph.nodes[0], "Node('sim': Sim, calls collect)"),
    "Call": (lambda o: o.graph.nodes[0].calls[0], "Call(collect(actions: Inbox, observations: Outbox, trajectories: Outbox), reads act"),
    "Edge": (lambda o: o.graph.edges[0], "Edge(sim --obs--> policy)"),
    "ValueEdge": (lambda o: o.graph.value_edges[0], "ValueEdge(learner ..weights..> policy)"),
    "Step": (lambda o: o.graph.program[3], "Step(policy.load_weights, after [2])"),
    "ChannelSpec": (lambda o: o.graph.channels[0], "ChannelSpec(name='obs'"),
    "ExecutionPlan": (lambda o: o.plan, "ExecutionPlan 'temporal' on 2 devices: cpu:0, cpu:1\n  sim          2 ranks on cpu:0, cpu:1"),
    "ExecutionPlan of a thousand": (_many, "ExecutionPlan 'temporal' on 1024 devices: cuda:0, cuda:1, cuda:2, …, cuda:1023\n  sim          1000 ranks"),
    "Layout": (lambda o: Layout(o.graph, o.plan), "Layout(workflow 'cell' under plan 'temporal': 4 ranks on 2 devices; channels obs"),
    "Simulator": (lambda o: lab.planning.Simulator(o.graph, o.plan), "Simulator(workflow 'cell' under plan 'temporal', 2 devices)"),
    "SimCall": (lambda o: SimCall("sim", "collect", lambda turn: iter(()), ("act",), ("obs",), (0,)), "SimCall(sim.collect, reads act, writes obs, after [0])"),
    "Run": (lambda o: o.run, "Run('cell', plan 'temporal': finished, iteration 2/2"),
    "Session": (lambda o: o.ports()[-1], "Session('ports', plan 'temporal': 1 iteration done)"),
    "Iteration": (lambda o: Iteration(o.ports()[-1], 7), "Iteration(7 of 'ports': going on)"),
    "Weights": (lambda o: lab.Weights("actor"), "Weights('actor', version 0)"),
    "WeightsHandle": (lambda o: lab.Workflow("w").weights("actor"), "WeightsHandle('actor' of 'w')"),
    "Inbox": (lambda o: o.ports()[3], "\"Inbox('a' of looks[0], iteration 0)\""),
    "Outbox": (lambda o: o.ports()[4], "\"Outbox('b' of looks[0], iteration 0)\""),
    "Worker": (lambda o: o.ports()[5], "'<Looks looks[0] on cpu>'"),
    "Worker by hand": (lambda o: Sim(3), "<Sim, by hand>"),
    "TorchWorker": (lambda o: lab.TorchWorker(), "<TorchWorker, by hand>"),
    "Residence": (lambda o: Residence([torch.nn.Linear(512, 512)], "cpu"), "Residence(Linear of cpu, 1.0 MiB, now in cpu)"),
    "Collected": (lambda o: lab.testing.Collected(), "[]"),
    "Scripted": (lambda o: lab.testing.Scripted([1, 2, 3], micro_batch=2), "Scripted(3 items left, in batches of 2)"),
    "Timeline": (lambda o: o.run.timeline, "Timeline: 2 devices"),
    "TimelineView": (lambda o: lab.TimelineView(o.run.timeline), "TimelineView("),
    "Recorder": (lambda o: lab.testing.Recorder("here", _Clock()), "Recorder on here"),
    "estimate": (lambda o: lab.estimate(o.graph, o.plan, o.run.timeline), "Estimate of workflow 'cell' from a run under plan 'temporal'"),
    "Profile": (lambda o: Profile.from_dict({"items": 4, "workers": {"a": {"samples": [SAMPLE]}}}), "Profile 'profile': 4 items"),
    "plan": (lambda o: lab.plan(Profile.from_dict(TWO), 2), "2 plans for 'two' on 2 devices; none can take less than 2 s (all workers"),
    "Planned": (lambda o: lab.plan(Profile.from_dict(TWO), 2).best, "temporal: 2 s an iteration, a > b\n  a            2 devices"),
    "PlanExplorer": (lambda o: lab.PlanExplorer(lab.plan(Profile.from_dict(TWO), 2)), "PlanExplorer('two': 2 plans, a > b 2 s)"),
    "make_vec": (lambda o: lab.envs.make_vec("numpy/ReachArm-v0", 2), "numpy/ReachArm-v0 × 2"),
    "EnvSpec": (lambda o: lab.envs.make_vec("numpy/ReachArm-v0", 2).spec, "EnvSpec(id='numpy/ReachArm-v0'"),
    "devices": (lambda o: lab.devices("cpu"), "['cpu:0'"),
    "WorkerError": (lambda o: lab.errors.WorkerError.of("w", 1, "f", ValueError("x"), "trace"), "WorkerError(\"Worker 'w' rank 1 failed in f(): ValueError: x"),
    "check": (lambda o: lab.check(o.flow, o.plan, emulate=True), "workflow 'cell' under plan 'temporal', executor 'local': ready"),
    "doctor": (lambda o: lab.doctor(), "rlinf_lab"),
    "PingPong": (lambda o: lab.profiling.PingPong("processes", ["cpu:0", "cpu:1"]), "PingPong('processes', cpu:0, cpu:1: 0 rounds)"),
    "Crowd": (lambda o: lab.profiling.Crowd("local", ["cpu:0"], o.flow), "Crowd(cpu:0: copies of workflow 'cell', 0 rounds)"),
}  # fmt: skip
RICH = {"Workflow", "WorkflowGraph", "ExecutionPlan", "ExecutionPlan of a thousand", "Timeline", "Profile", "plan", "Planned", "doctor"}
# Functions that give one of the above, nothing, or a text; and protocols.
ELSEWHERE = {
    "profile", "replan", "session", "run", "show", "shutdown", "train", "collect", "teleoperate", "resume", "load_policy", "compare", "runs", "sweep", "linear",
    "envs", "algorithms", "datasets", "errors", "generation", "planning", "profiling", "replay", "tasks", "testing",
}  # fmt: skip


class _Clock:
    def now_ns(self) -> int:
        return 0


class _Balanced(html.parser.HTMLParser):
    """Every tag that is opened is closed, in order."""

    VOID = frozenset({"br", "hr", "img", "input", "meta", "link", "col"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open += [tag] if tag not in self.VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag


@pytest.mark.parametrize("name", MAKERS)
def test_a_public_object_says_what_it_is(name: str, objects: Objects) -> None:
    make, start = MAKERS[name]
    made = make(objects)
    text = repr(made)
    assert text.startswith(start)
    assert " object at 0x" not in text
    assert len(text) < 2500 and max(map(len, text.splitlines())) < 240
    if name in RICH:
        rich = made._repr_html_()
        checked = _Balanced()
        checked.feed(rich)
        assert not checked.open and len(rich) < 200_000


def test_no_public_name_is_left_out() -> None:
    assert set(lab.__dir__()) - {"__version__"} <= {*MAKERS, *ELSEWHERE}


def test_names_in_rich_forms_are_escaped() -> None:
    flow = cell_flow()
    plan = lab.ExecutionPlan.temporal(flow, DEVICES, name="<b>bold</b>")
    assert "<b>bold" not in plan._repr_html_() and "&lt;b&gt;bold" in plan._repr_html_()


def test_a_function_as_worker_shows_its_name() -> None:
    flow = lab.Workflow("w")
    assert repr(flow.worker(sorted)) == "WorkerHandle('sorted': sorted)"
    assert repr(FunctionWorker(sorted)) == "<FunctionWorker, by hand>"


def test_a_flat_name_of_before_says_the_one_of_today() -> None:
    moved = {"make_vec": "lab.envs.make_vec", "profile_from_run": "lab.planning.profile_from_run", "Collected": "lab.testing.Collected"}
    for name, now in moved.items():
        with pytest.raises(AttributeError, match=rf"^lab\.{name} is called {now} now\.$"):
            getattr(lab, name)
        assert callable(operator.attrgetter(now.removeprefix("lab."))(lab))
    with pytest.raises(AttributeError, match=r"^lab\.Filler is gone\. Next: a second workflow"):
        _ = lab.Filler
    flow = cell_flow()
    with pytest.raises(lab.errors.ConfigError, match="'fillers' is gone. Next: a second workflow"):
        lab.run(flow, lab.ExecutionPlan.temporal(flow, DEVICES), fillers=[])
    with pytest.raises(lab.errors.ConfigError, match=r"check: 'profile' is gone\. Next: lab\.plan"):
        lab.check(flow, profile=None)
    assert len(lab._HOME) <= 33  # a newcomer reads all of it
