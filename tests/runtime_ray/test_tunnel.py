"""Nodes that reach each other through Ray alone: messages in order, large arrays in the object store, ends and deaths heard, and the user told."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from one_worker import one_worker

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.node_probe import NodeFacts
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.run import preflight
from rlinf_lab.runtime.transport.links import Ways

SCRIPT = """
import dataclasses, pickle, queue, time
import numpy as np, ray
from rlinf_lab.errors import ChannelBroken
from rlinf_lab.runtime.transport.links import Link, Ways
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
heard, errors, broken = queue.Queue(), queue.Queue(), queue.Queue()
listener = Listener("there", heard.put, broken.put, lambda h, e: errors.put(e))
node = ray.get_runtime_context().get_node_id()
closed = dataclasses.replace(listener.address, node="elsewhere", ray_node=node, tcp=("127.0.0.1", 1))

try:
    Link(closed, "here")
except ConnectionRefusedError:
    print("without Ray: refused")

link = Link(closed, "here", Ways("stream", "another node"))
assert link.transport == "ray"
for i in range(300):
    link.send(("value", i, np.full(100_000 if i % 50 == 0 else 2, i)))
for i in range(300):
    _, number, array = heard.get(timeout=30)
    assert number == i and (array == i).all()

def put(items):
    packed, _ = Packed.of_items(items, "items")
    link.send(("put", QueueId("items", 0, 0, "there", -1), len(items), packed, "here", None))
    _, _, _, packed, _, _, transit = heard.get(timeout=30)
    return packed.open(), transit.transport

assert put([1, 2]) == ([1, 2], "ray")
(array,), way = put([np.full(1 << 19, 3.0)])
assert way == "object_store" and (array == 3).all() and array.flags.writeable
link.close()
assert listener.wait_for_farewells({"here"}, 20)

class Sender:
    def send(self, address):
        link = Link(pickle.loads(address), "actor", Ways("ray", "another node"))
        self.link = link
        link.send(("value", 5))
        return link.transport

sender = ray.remote(Sender).remote()
assert ray.get(sender.send.remote(pickle.dumps(listener.address.__class__(**{**closed.__dict__, "tcp": listener.address.tcp})))) == "ray"
assert heard.get(timeout=30) == ("value", 5)
ray.kill(sender)
assert broken.get(timeout=30) == "actor"  # Ray ends the relay with its owner

gone = Link(closed, "once more", Ways("stream", "another node"))
listener.close()
deadline = time.time() + 30
try:
    while time.time() < deadline:
        gone.send(("value", bytes(100_000)))
        time.sleep(0.05)
except ChannelBroken as error:
    print("gone:", error)
try:
    Link(dataclasses.replace(closed, unix="\\0nobody"), "nobody", Ways("stream", "another node"))
except ChannelBroken as error:
    print("nobody:", error)
gone.close()
assert errors.empty()
print("tunnel done")
"""


@pytest.mark.ray
def test_a_link_through_ray(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0 and "tunnel done" in done.stdout, done.stdout + done.stderr[-3000:]
    assert "without Ray: refused" in done.stdout and "gone: Host 'there' is gone" in done.stdout
    assert "nobody: Host 'there' cannot be reached, neither at 127.0.0.1:1 nor through Ray" in done.stdout


@pytest.mark.parametrize(("asked", "told"), [("stream", 1), ("ray", 0)])
def test_the_launch_names_who_takes_the_detour(caplog: Any, asked: str, told: int) -> None:
    flow = one_worker()
    executor = ProcessExecutor(flow, ExecutionPlan.temporal(flow, ["cpu:0"]))
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        executor._tell_detours({"driver": {"host0": "ray", "host1": "tcp"}, "host1": {"driver": "ray"}}, Ways(asked))
    assert len(caplog.records) == told
    assert not told or "from driver to host0, host1 to driver: what they say goes through calls of Ray" in caplog.text


def test_a_check_says_that_messages_will_go_through_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "reach", lambda first, second: "10.0.0.2:7: timed out" if second == "b" else "")
    flow = one_worker()
    looking = preflight._Looking(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), None, False, "ray")
    found = looking._ports({0: "a", 1: "b"}, {0: NodeFacts({}, 1.0)})
    assert found.status == "optional" and found.mend == "let TCP through between the nodes"
    assert found.found == "node 0 cannot open a connection to node 1 (10.0.0.2:7: timed out): messages go through Ray there, slower"
