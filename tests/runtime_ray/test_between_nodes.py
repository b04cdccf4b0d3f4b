"""Large arrays between nodes by torch's Gloo: whole, and named on the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_worker import one_worker
from programs import output_of

from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.transport.routing import QueueId
from rlinf_lab.runtime.transport.traffic import Traffic, Transit
from rlinf_lab.timeline.record.clock import MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind

SPREAD = """
import sys
import numpy as np, ray, torch
from ray.cluster_utils import Cluster
import rlinf_lab as lab
from rlinf_lab.runtime.executors.ray_start import shutdown
from rlinf_lab.timeline.record.span import SpanKind

class Source(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        for i in range(4):
            out.put({"i": i, "x": np.full(1 << 18, i, np.float64), "t": (torch.full((1 << 19,), float(i)), ["small", np.arange(3)])})

class Sink(lab.Worker):
    def take(self, inbox: lab.Inbox) -> tuple:
        seen = []
        for item in (i for chunk in inbox for i in chunk):
            item["x"][0] += 1  # an item is its taker's own
            item["t"][0][0] += 1
            assert item["x"][1] == item["i"] == float(item["t"][0][1]) and item["t"][1][0] == "small"
            seen.append(item["i"])
        return sorted(seen), np.full(1 << 18, 7.0), ray.get_runtime_context().get_node_id()

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.add_node(num_cpus=1)
flow = lab.Workflow("far")
items = flow.channel("items", capacity=2)
near, far, sink = flow.worker(Source, name="near"), flow.worker(Source, name="far"), flow.worker(Sink, name="sink")

@flow.iteration
def iteration():
    near.make(items)
    far.make(items)
    return sink.take(items)

plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node1/cpu:0", "node2/cpu:0"], {"near": [0], "far": [1], "sink": [2]})
for way in sys.argv[1:]:
    going = lab.run(flow, plan, 1, executor="ray", address=cluster.address, between_nodes=way, dashboard=False)
    for seen, back, node in going.wait(120):
        assert seen == sorted(2 * list(range(4))), seen
        back[0] = 1  # results are whole, and ours
        assert back[1] == 7 and node != ray.get_runtime_context().get_node_id()
    rows = going.transports()
    rows = rows[rows["channel"] == "items"]
    wanted = {way}
    assert set(rows["transport"]) == wanted and rows["items"].sum() == 8, rows
    names = {s.name for s in going.timeline.rows() if s.kind == SpanKind.TRANSFER and s.channel == "items"}
    assert names == wanted, names
shutdown()
ray.shutdown()
cluster.shutdown()
print("spread done")
"""


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(240)
def test_large_arrays_between_three_nodes(tmp_path: Path) -> None:
    assert "spread done" in output_of(tmp_path, SPREAD, "gloo")


@pytest.mark.parametrize("way", ["object_store", None, 3])
@pytest.mark.parametrize(
    ("executor", "option", "told"),
    [
        ("ray", "between_nodes", r"how items get to another node\. Next: 'stream' or 'gloo'"),
        ("processes", "between_gpus", r"how tensors on a GPU get to other processes\. Next: 'ipc' or 'nccl' or 'host'"),
    ],
)
def test_other_ways_are_refused(executor: str, option: str, told: str, way: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option}=.*: {told}"):
        run(flow := one_worker(), ExecutionPlan.temporal(flow, ["cpu:0"]), 1, executor=executor, **{option: way})


def test_an_edge_that_used_the_stream_and_another_way_is_named_by_the_other() -> None:
    recorder = Recorder("b", MonotonicClock())
    traffic = Traffic("b", recorder, MonotonicClock())
    queue = QueueId("items", 0, 0, "b", -1)
    for transport in ("tcp", "gloo", "tcp"):
        traffic.arrived(queue, "a", 1, Transit(transport, 0, 10))
    traffic.write_down()
    batch = recorder.drain()
    assert [batch.names[row["name"]] for row in batch.spans if row["kind"] == int(SpanKind.TRANSFER)] == ["gloo"]
    assert {row["transport"]: row["messages"] for row in traffic.rows()} == {"tcp": 2, "gloo": 1}
