"""Large arrays between nodes through Ray's object store: whole, kept until they have been fetched, named on the timeline; what is lost is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from one_worker import one_worker

from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.transport.routing import QueueId
from rlinf_lab.runtime.transport.traffic import Traffic, Transit
from rlinf_lab.timeline.record.clock import MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind

BETWEEN_LINKS = """
import dataclasses, os, pickle, queue, threading, time
import numpy as np, ray, torch
from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.transport.links import Link, Ways
from rlinf_lab.runtime.transport.listener import Listener

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
heard, errors, broken = queue.Queue(), queue.Queue(), queue.Queue()
slow = threading.Event()

def hear(message):
    if isinstance(message[1], str):
        slow.wait(30)
    heard.put(message)

listener = Listener("there", hear, broken.put, lambda h, e: errors.put(e))
there = dataclasses.replace(listener.address, ray_node="elsewhere")
link = Link(there, "here", Ways("object_store"))
pool = link._store

big = np.arange(1 << 19)
nested = {"a": big, "small": np.ones(3), "t": [torch.arange(1 << 19, dtype=torch.float32), (big[:200_000], "text")]}
for i in range(4):
    link.send(("value", nested))
    got = heard.get(timeout=30)[1]
    assert (got["a"] == big).all() and (got["small"] == 1).all() and torch.equal(got["t"][0], nested["t"][0])
    assert (got["t"][1][0] == big[:200_000]).all() and got["t"][1][1] == "text"
    assert got["a"].flags.writeable and got["t"][1][0].flags.writeable
    got["a"][:] = -1  # its own: neither the sender's nor anybody else's
    assert big[5] == 5
assert pool._made == 12, pool._made  # three large ones each time, the small one in the stream
deadline = time.time() + 20
while pool.kept and time.time() < deadline:
    time.sleep(0.01)
assert not pool._kept, "references are kept although everything has been fetched"

slow.clear()
link.send(("value", "wait"))
for i in range(3):
    link.send(("value", np.full(1 << 20, i)))
assert pool.kept == 3  # the receiver is busy: nothing may be thrown away
slow.set()
assert heard.get(timeout=30)[1] == "wait"
assert [int(heard.get(timeout=30)[1][-1]) for _ in range(3)] == [0, 1, 2]

class Sender:
    def send(self, address):
        link = Link(pickle.loads(address), "actor", Ways("object_store"))
        link.send(("value", "wait"))
        link.send(("value", np.zeros(1 << 20)))
        return link._store.kept

slow.clear()
sender = ray.remote(Sender).remote()
assert ray.get(sender.send.remote(pickle.dumps(there))) == 1
ray.kill(sender)
time.sleep(1)
slow.set()
lost = errors.get(timeout=60)
assert isinstance(lost, ExecutorError) and "8.0 MiB that travelled through Ray's object store did not arrive: its sender has died" in str(lost), lost
assert "Next: " in str(lost) and broken.get(timeout=20) == "actor"

def full(value):
    raise ray.exceptions.ObjectStoreFullError("full")

put, ray.put = ray.put, full
while not heard.empty():
    heard.get()
for i in range(2):
    link.send(("value", big))
    assert (heard.get(timeout=30)[1] == big).all()  # in the stream
ray.put = put
link.close()
listener.close()
assert not pool._kept
print("links done")
"""

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
    wanted = {"object_store"} if way == "ray" else {way}
    assert set(rows["transport"]) == wanted and rows["items"].sum() == 8, rows
    names = {s.name for s in going.timeline.rows() if s.kind == SpanKind.TRANSFER and s.channel == "items"}
    assert names == wanted, names
shutdown()
ray.shutdown()
cluster.shutdown()
print("spread done")
"""


def run_script(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    return subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.ray
def test_what_lies_in_the_store_is_kept_until_it_was_fetched(tmp_path: Path) -> None:
    done = run_script(tmp_path, BETWEEN_LINKS)
    assert done.returncode == 0 and "links done" in done.stdout, done.stdout + done.stderr[-3000:]
    told = "Ray's object store takes no array for host 'there' (ObjectStoreFullError: full"
    assert done.stderr.count(told) == 1, done.stderr[-3000:]  # once, though two arrays were refused


@pytest.mark.ray
@pytest.mark.timeout(240)
@pytest.mark.parametrize("ways", [("object_store", "gloo"), pytest.param(("ray",), marks=pytest.mark.slow)], ids="-".join)
def test_large_arrays_between_three_nodes(tmp_path: Path, ways: tuple[str, ...]) -> None:
    done = run_script(tmp_path, SPREAD, *ways)
    assert done.returncode == 0 and "spread done" in done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("way", ["plasma", None, 3])
def test_other_ways_are_refused(way: Any) -> None:
    with pytest.raises(ConfigError, match=r"between_nodes=.*: how items get to another node\. Next: 'stream' or 'object_store' or 'gloo' or 'ray'"):
        run(flow := one_worker(), ExecutionPlan.temporal(flow, ["cpu:0"]), 1, executor="ray", between_nodes=way)


def test_an_edge_that_used_the_stream_and_the_store_is_named_by_the_store() -> None:
    recorder = Recorder("b", MonotonicClock())
    traffic = Traffic("b", recorder, MonotonicClock())
    queue = QueueId("items", 0, 0, "b", -1)
    for transport in ("tcp", "object_store", "tcp"):
        traffic.arrived(queue, "a", 1, Transit(transport, 0, 10))
    traffic.write_down()
    batch = recorder.drain()
    assert [batch.names[row["name"]] for row in batch.spans if row["kind"] == int(SpanKind.TRANSFER)] == ["object_store"]
    assert {row["transport"]: row["messages"] for row in traffic.rows()} == {"tcp": 2, "object_store": 1}
