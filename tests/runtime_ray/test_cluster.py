"""Several nodes, emulated on this machine by Ray's own cluster of processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from one_worker import one_worker
from programs import output_of

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors import ray_nodes
from rlinf_lab.runtime.executors.placement_group import SOMETHING, Reservation
from rlinf_lab.runtime.executors.ray_nodes import Node
from rlinf_lab.runtime.run.observer import loaded_devices
from rlinf_lab.runtime.run.run import run

THREE_NODES = """
import threading, time
import ray
from ray.cluster_utils import Cluster
import rlinf_lab as lab
from rlinf_lab.errors import ExecutorError, PlanError
from rlinf_lab.runtime.executors import ray_nodes as module
from rlinf_lab.runtime.executors.ray_nodes import nodes
from rlinf_lab.runtime.executors.ray_start import shutdown

class Where(lab.Worker):
    def make(self, out: lab.Outbox) -> str:
        for i in range(20):
            out.put((self.name, i))
        time.sleep(0.5)  # long enough to be sampled
        return ray.get_runtime_context().get_node_id()

    def count(self, inbox: lab.Inbox) -> tuple:
        return len(inbox.get_all()), ray.get_runtime_context().get_node_id()

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=3)

flow = lab.Workflow("spread")
items = flow.channel("items", capacity=2)
a, b, c = flow.worker(Where, name="a"), flow.worker(Where, name="b"), flow.worker(Where, name="c")

@flow.iteration
def iteration():
    made = [a.make(items), b.make(items)]
    return made, c.count(items)

here = len(lab.devices("cpu"))
assert lab.devices(address=cluster.address) == [f"cpu:{i}" for i in range(here)] + [f"node1/cpu:{i}" for i in range(3)]

plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node1/cpu:0", "node2/cpu:1"], {"a": [0], "b": [1], "c": [2]})
module.wait_for_nodes.__defaults__ = (1.0,)
try:
    lab.run(flow, plan, 1, executor="ray", address=cluster.address).wait(60)
except PlanError as error:
    print("refused:", error)
module.wait_for_nodes.__defaults__ = (60.0,)

going = lab.run(flow, plan, 2, executor="ray", address=cluster.address)
time.sleep(1.0)
assert going.state == "starting", going.state
cluster.add_node(num_cpus=2)  # late
for (at_a, at_b), (count, at_c) in going.wait(120):
    assert count == 40 and len({at_a, at_b, at_c}) == 3, (count, at_a, at_b, at_c)
assert at_a == ray.get_runtime_context().get_node_id()
assert going.timeline.bubble_sum_error_ns() == 0 and set(going.timeline.devices) == set(plan.devices)
assert {"cpu:0", "node1/cpu:0", "node2/cpu:1"} <= set(going.counters), sorted(going.counters)
groups = ray.util.placement_group_table()
assert [g["strategy"] for g in groups.values()] == ["STRICT_SPREAD"] and {g["state"] for g in groups.values()} == {"REMOVED"}, groups

class Other:
    pass

late = nodes()[2].id
pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(late, soft=False)
greedy = ray.remote(Other).options(num_cpus=2, scheduling_strategy=pinned).remote()
ray.get(greedy.__ray_ready__.remote())
try:
    lab.run(flow, plan, 1, executor="ray", address=cluster.address).wait(60)
except ExecutorError as error:
    print("reserved:", error)
shared = dict(executor="ray", address=cluster.address, emulate=True)  # cores may be shared, so nothing of them is reserved
assert lab.run(flow, plan, 1, **shared).wait(60)[0][1][0] == 40
ray.kill(greedy)
assert lab.devices(address=cluster.address)[-2:] == ["node2/cpu:0", "node2/cpu:1"]
with lab.session(flow, plan, executor="ray", address=cluster.address) as session:  # the node that came late, in a session of its own
    assert session.step()[1][1] == late
    bundles = [g for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
    assert [sorted(g["bundles"].values(), key=str) for g in bundles] == [[{"CPU": 1.0}] * 3], bundles
shutdown()
assert ray.is_initialized() and len([n for n in ray.nodes() if n["Alive"]]) == 3
cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
while len(left := nodes()) == 3:
    time.sleep(0.1)
started = time.monotonic()
try:
    lab.run(flow, plan, 1, executor="ray", address=cluster.address).wait(60)
except PlanError as error:
    print("gone:", error)
assert time.monotonic() - started < 20
ray.shutdown()
cluster.shutdown()
print("spread over three nodes")
"""


NODE_DIES = """
import os, threading, time
import ray
from ray.cluster_utils import Cluster
import rlinf_lab as lab
from rlinf_lab.errors import ExecutorError

class Quick(lab.Worker):
    def work(self) -> int:
        return 1

class Slow(Quick):
    def setup(self) -> None:
        open(%r, "w").close()
        time.sleep(60)

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
node = cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()
flow = lab.Workflow("dies")
quick, slow = flow.worker(Quick, name="quick"), flow.worker(Slow, name="slow")

@flow.iteration
def iteration():
    return quick.work(), slow.work()

def kill() -> None:
    while not os.path.exists(%r):
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)

threading.Thread(target=kill, daemon=True).start()
plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node1/cpu:0"], {"quick": [0], "slow": [1]})
try:
    lab.run(flow, plan, 1, executor="ray", address=cluster.address, dashboard=False).wait(100)
except ExecutorError as error:
    print("told:", error)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.long
@pytest.mark.ray
def test_a_node_that_dies_during_setup_is_told_as_such(tmp_path: Path) -> None:
    """Before, the advice was to try the worker's setup() elsewhere."""
    mark = str(tmp_path / "in_setup")
    told = r"told: Host 'host1' died while its workers were being set up \(its node.* has died.*\); slow\[0\] lived there\. Next: look at that node's memory"
    assert re.search(told, said := output_of(tmp_path, NODE_DIES % (mark, mark))), said


@pytest.mark.long
@pytest.mark.ray
def test_workers_on_three_nodes_one_of_which_joins_late(tmp_path: Path) -> None:
    # A node whose connection is refused five times is dead: asked for each 3 s that takes a quarter of a minute.
    said = output_of(tmp_path, THREE_NODES, RAY_health_check_period_ms="500")
    assert "spread over three nodes" in said
    assert re.search(r"reserved: Ray could not reserve what the plan needs within 5 s: node 2 \(\S+\): 1 CPU wanted, 0 free\. Next:", said), said
    assert re.search(r"gone: The plan uses node\d/cpu:\d, and that node has left the cluster", said), said
    assert "refused: The plan uses node2/cpu:1, and this Ray has 2 nodes after waiting 1 s. Next: add nodes" in said


CHECKED = """
from ray.cluster_utils import Cluster
import rlinf_lab as lab

class Quiet(lab.Worker):
    def go(self) -> int:
        return 1

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=1)
flow = lab.Workflow("spread")
a, b = flow.worker(Quiet, name="a"), flow.worker(Quiet, name="b")
flow.iteration(lambda: (a.go(), b.go()))
plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node1/cpu:0"], {"a": [0], "b": [1]})
report = lab.check(flow, plan, "ray", address=cluster.address)
assert report.ok, str(report)
assert report["ports"].found == "node 0 and 1 other node reach each other" and report["packages of node 1"].status == "ok", report
far = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node2/cpu:0"], {"a": [0], "b": [1]})
report = lab.check(flow, far, "ray", address=cluster.address)
assert not report.ok and "node2/cpu:0" in report["devices"].found, report
many = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node1/cpu:5"], {"a": [0], "b": [1]})
assert "node1/cpu:5" in lab.check(flow, many, "ray", address=cluster.address)["devices"].found
print("done")
"""


@pytest.mark.long
@pytest.mark.ray
def test_every_node_of_a_cluster_is_asked_before_a_launch(tmp_path: Path) -> None:
    assert "done" in output_of(tmp_path, CHECKED, OMP_NUM_THREADS="1")


def test_who_waits_for_a_node_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Before, a minute went by without a word."""
    monkeypatch.setattr(ray_nodes, "nodes", lambda: {0: Node("0", "", {"CPU": 2.0})})
    monkeypatch.setattr(ray_nodes, "_numbers_given", lambda: 1)
    monkeypatch.setattr(ray_nodes, "TOLD_AFTER_SECONDS", 0.1)
    with pytest.raises(PlanError, match="and this Ray has 1 node after waiting 0.5 s"):
        ray_nodes.wait_for_nodes(["node1/cpu:0"], lambda: False, 0.5)
    said = [r.getMessage() for r in caplog.records]
    assert said == ["Waiting up to 0.5 s for a node that is not there yet: the plan uses node1/cpu:0, and this Ray has 1 node."]


def test_a_node_that_has_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a minute, for a number that is never used again; and told that the Ray has 3 nodes, where the plan uses node2."""
    living = {n: Node(str(n), "", {"CPU": 2.0}) for n in (0, 1, 3)}
    monkeypatch.setattr(ray_nodes, "nodes", lambda: living)
    monkeypatch.setattr(ray_nodes, "_numbers_given", lambda: 5)
    for gone in (2, 4):
        with monkeypatch.context() as waits, pytest.raises(PlanError, match=rf"uses node{gone}/cpu:0, and that node has left.*There are now: this one, node1, node3. Next: "):
            waits.setattr(ray_nodes.time, "sleep", lambda _: pytest.fail("it waits"))
            ray_nodes.wait_for_nodes(["cpu:0", f"node{gone}/cpu:0"], lambda: False)
    with pytest.raises(PlanError, match="and this Ray has 3 nodes after waiting 0.2 s"):
        ray_nodes.wait_for_nodes(["node5/cpu:0"], lambda: False, 0.2)


@pytest.mark.parametrize(
    ("emulate", "wanted"),
    [
        (False, {0: {"CPU": 2.0, "GPU": 1.0}, 1: {"CPU": 1.0}, 2: SOMETHING}),  # node 2 was started with --num-cpus=0
        (True, {0: {"GPU": 1.0}, 1: SOMETHING, 2: SOMETHING}),
    ],
)
def test_what_is_reserved_of_each_node(monkeypatch: pytest.MonkeyPatch, emulate: bool, wanted: dict) -> None:
    there = {0: {"CPU": 4.0, "GPU": 1.0}, 1: {"CPU": 1.0}, 2: {"memory": 1e9}}
    monkeypatch.setattr("rlinf_lab.runtime.executors.placement_group.nodes", lambda: {n: Node("", "", r) for n, r in there.items()})
    devices = ["cpu:0", "cpu:1", "cuda:0", "node1/cpu:0", "node1/cpu:1", "node2/cpu:0"]
    made = Reservation.of(devices, {0: "a", 1: "b", 2: "c"}, emulate=emulate)
    assert made.wanted == wanted
    made.remove()  # nothing is reserved yet: harmless


def test_what_is_a_device_is_taken_apart_and_put_together_and_nothing_else_is_one() -> None:
    for name in ("cpu:0", "cuda:12", "node3/cuda:1"):
        assert str(Device.parse(name)) == name
    for name in ("cpu", "cpu:01", "node0/cpu:0", "node1", "gpu:0", "node1/cpu:-1", "", "NODE1/cpu:0"):
        assert not Device.is_name(name)
        with pytest.raises(PlanError, match="is no device. Next"):
            Device.parse(name)


def test_a_rank_lives_on_one_node_and_threads_and_processes_on_this_one() -> None:
    flow = one_worker()
    with pytest.raises(PlanError, match=r"placements\['w'\]\[0\] puts a rank on cpu:0, node1/cpu:0, which are on different nodes"):
        ExecutionPlan("wide", ("cpu:0", "node1/cpu:0"), {"w": ((0, 1),)}).validate(flow.graph)
    for executor, has in (("local", "process"), ("processes", "machine")):
        with pytest.raises(PlanError, match=rf"uses node1/cpu:0; the {executor} executor has this {has} only. Next: executor='ray'"):
            run(flow, ExecutionPlan("far", ("node1/cpu:0",), {"w": ((0,),)}), 1, executor)


def test_loads_are_told_by_device_and_node() -> None:
    sampled = {"core 3 %": 50.0, "core 1 %": 10.0, "node1/core 0 %": 100.0, "cuda:0 %": 70.0, "node2/cuda:1 %": 30.0, "host MiB": 5.0}
    loads = {device: sampled[name] / 100 for name, device in loaded_devices(sampled).items()}
    assert loads == {"cpu:0": 0.1, "cpu:1": 0.5, "node1/cpu:0": 1.0, "cuda:0": 0.7, "node2/cuda:1": 0.3}
