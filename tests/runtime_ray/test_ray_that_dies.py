"""A private Ray of which a part is killed under a session: that one goes on, for its hosts speak with each other; nothing stays, and the next run is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from programs import output_of

SCRIPT = """
import json, os, sys, time
import psutil
from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.executors.ray_start import shutdown
from rlinf_lab.runtime.run.run import session

class Makes(Worker):
    def make(self, count: int, out: Outbox[int]) -> None:
        out.put_all(range(count))

class Takes(Worker):
    def take(self, numbers: Inbox[int]) -> int:
        return sum(sum(batch) for batch in numbers)

flow = Workflow("two")
numbers = flow.channel("numbers")
makes, takes = flow.worker(Makes, name="makes"), flow.worker(Takes, name="takes")

@flow.iteration
def iteration(count):
    makes.make(count, numbers)
    return takes.take(numbers).wait()

plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"makes": [0], "takes": [1]})

def runs(process):
    try:
        return process.is_running() and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False

def alive(processes):  # what was killed is there until the system has cleared it away; one whose parent takes no note of its end stays a zombie
    until = time.monotonic() + 5
    while any(map(runs, processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return [p.pid for p in processes if runs(p)]

said = {}
for part in [*sys.argv[1:], None]:
    with session(flow, plan, executor="ray", emulate=True) as s:
        first = s.step(10)
        for before in said.values():
            before.setdefault("again", first)
        if part is None:
            break
        all_of_ray = psutil.Process().children(recursive=True)
        hosts = [psutil.Process(pid) for pid in s._executor.driver.pids.values()]
        next(p for p in all_of_ray if part in p.name()).kill()
        time.sleep(0.5)
        second = s.step(10)
    hosts, began, told = alive(hosts), time.monotonic(), ""
    try:
        session(flow, plan, executor="ray", emulate=True).__enter__()
    except ExecutorError as error:
        told = str(error)
    seconds = time.monotonic() - began
    shutdown()
    time.sleep(1)
    said[part] = {"first": first, "second": second, "hosts": hosts, "told": told, "seconds": seconds, "left": alive(all_of_ray)}
shutdown()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One private Ray after the other loses a part: what a session, the next one and the one after `shutdown` did."""
    return json.loads(output_of(tmp_path_factory.mktemp("dies"), SCRIPT, "raylet", "gcs_server").split("\n")[-1])


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_nothing_of_a_ray_that_has_died_stays(part: str, said: dict[str, Any]) -> None:
    """Before, the hosts went on after the session, Ray's agents for a minute after its end; of a raylet that was gone the worker's setup() was blamed."""
    found = said[part]
    assert found["first"] == found["second"] == found["again"] == 45
    assert found["hosts"] == found["left"] == []
    told = found["told"]
    assert told.startswith("The private Ray of this process is gone: its raylet (process " if part == "raylet" else "The Ray at '"), told
    assert "is gone" in told and "Next: rlinf_lab.shutdown()" in told and found["seconds"] < 10
