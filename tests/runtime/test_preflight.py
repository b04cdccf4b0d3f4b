"""What is known before a launch, and that a launch refuses it too."""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flows import Numbers
from gymnasium.spaces import Box
from own_threads import own_threads

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import make_policy
from rlinf_lab.runtime.executors.node_probe import facts_here
from rlinf_lab.runtime.run import preflight
from rlinf_lab.runtime.run.preflight import _Looking
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.workers import PolicyWorker, SimulatorWorker


def robot(num_envs: int = 4) -> lab.Workflow:
    flow = lab.Workflow("robot")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    simulator = flow.worker(SimulatorWorker, "numpy/ReachArm-v0", name="simulator", num_envs=num_envs, n_steps=2)
    policy = flow.worker(PolicyWorker, partial(make_policy, Box(-np.inf, np.inf, (8,)), Box(-1, 1, (2,))), name="policy")

    @flow.iteration
    def iteration():
        simulator.collect(act, obs, traj)
        policy.act(obs, act)
        return len(traj.get_all())

    return flow


def plan_of(flow: lab.Workflow, ranks: int = 1, **fields) -> lab.ExecutionPlan:
    return lab.ExecutionPlan.temporal(flow, ["cpu:0", "cpu:1"], {"simulator": ranks}, **fields)


def test_a_plan_that_can_be_launched_is_ready() -> None:
    flow = robot()
    report = lab.check(flow, plan_of(flow, 2), emulate=True)
    assert report.ok and report["plan"].found == "3 ranks of 2 workers on 2 devices"
    assert lab.run(flow, plan_of(flow, 2), 1, emulate=True).wait(60) == [2]


def test_ranks_that_do_not_divide_are_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = robot(num_envs=3)
    report = lab.check(flow, plan_of(flow, 2), emulate=True)
    assert not report.ok and [c.name for c in report.broken] == ["workers"]
    assert "num_envs=3 cannot be shared by 2 ranks" in report["workers"].found and report["workers"].mend == "a multiple of 2."
    started = own_threads(monkeypatch)
    with pytest.raises(ConfigError, match="num_envs=3 cannot be shared"):
        lab.run(flow, plan_of(flow, 2), 1, emulate=True)
    assert not [t for t in started if t.name != "aside"]  # that one asks


def test_what_does_not_fit_is_named() -> None:
    """Devices that are not there, a plan and a profile of another workflow."""
    flow = robot()
    plan = replace(plan_of(flow), devices=("cpu:0", "cpu:998"))
    assert "cpu:998" in lab.check(flow, plan)["devices"].found and lab.check(flow, plan, emulate=True).ok
    elsewhere = replace(plan_of(flow), devices=("cpu:0", "node1/cpu:0"))
    assert "node1/cpu:0" in lab.check(flow, elsewhere)["devices"].found
    report = lab.check(flow, lab.ExecutionPlan("odd", ("cpu:0",), {"nobody": ((0,),)}))
    assert not report.ok and "nobody" in report["plan"].found and [c.name for c in report.checks] == ["plan"]


def test_a_worker_whose_module_is_missing_elsewhere_is_named() -> None:
    missing = Packed(b"cno_such_module_here\nThing\n.")
    assert facts_here({"odd": missing}).problems == {"odd": "ModuleNotFoundError: No module named 'no_such_module_here'"}


class Locked(lab.Worker):
    def __init__(self, lock) -> None:
        self.lock = lock

    def go(self) -> int:
        return 1


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_several_processes_are_asked_for_pickling_packages_and_ports() -> None:
    flow = robot()
    report = lab.check(flow, plan_of(flow, 2), "ray", emulate=True)
    assert report.ok, str(report)
    assert [c.name for c in report.checks] == ["plan", "workers", "devices", "pickling", "packages of node 0", "ports", "items"]
    flow = lab.Workflow("locked")
    locked = flow.worker(Locked, threading.Lock(), name="locked")
    flow.iteration(lambda: locked.go())
    report = lab.check(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), "ray")
    assert "worker 'locked' cannot travel" in report["pickling"].found and not report.ok


def elastic() -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("elastic")
    items = flow.channel("items")
    source, sink = flow.worker(Numbers, name="source"), flow.worker(Numbers, name="sink")
    flow.iteration(lambda: (source.make(1, items), sink.count(items)))
    return flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"source": [0], "sink": [1, 2]})


def test_absent_ranks_are_looked_at_and_what_is_wrong_with_them_is_refused_by_a_session_too() -> None:
    flow, plan = elastic()
    report = lab.check(flow, plan, emulate=True, absent={"sink": [1]})
    assert report.ok and report["plan"].found == "3 ranks of 2 workers on 3 devices, sink[1] not there at first"
    for rank, found in ((0, "rank 0 of 'sink' stays"), (5, "'sink' has no rank 5")):
        report = lab.check(flow, plan, emulate=True, absent={"sink": [rank]})
        assert [c.name for c in report.broken] == ["plan"] and found in report["plan"].found
        with pytest.raises(lab.errors.RlinfLabError, match=found), lab.session(flow, plan, emulate=True, absent={"sink": [rank]}):
            pass


def test_a_worker_whose_module_another_process_cannot_import_is_found_before_the_launch() -> None:
    module = types.ModuleType("only_in_this_process")
    exec("import rlinf_lab as lab\nclass Here(lab.Worker):\n    def go(self): return 7\n", module.__dict__)
    sys.modules[module.__name__] = module
    try:
        flow = lab.Workflow("imports")
        here = flow.worker(module.Here, name="here")
        flow.iteration(lambda: here.go())
        plan = lab.ExecutionPlan.temporal(flow, ["cpu:0"])
        assert lab.check(flow, plan).ok  # threads import nothing
        report = lab.check(flow, plan, "processes")
        assert not report.ok and "worker 'here' cannot be made in another process: ModuleNotFoundError: No module named 'only_in" in report["imports"].found
    finally:
        del sys.modules[module.__name__]


def test_nodes_that_do_not_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "reach", lambda first, second: "10.0.0.2:7: timed out" if second == "b" else "")
    flow, plan = elastic()
    found = _Looking(flow, plan, False, "ray", None)._ports({0: "a", 1: "b"})
    assert (found.status, found.mend) == ("broken", "let TCP through between the nodes")
    assert found.found == "node 0 cannot open a connection to node 1 (10.0.0.2:7: timed out)"
