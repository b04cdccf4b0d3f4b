"""What a page would get from a real kernel while a cell is busy: every span once, in messages without a gap, fetched by the thread that sends."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from jupyter_client.manager import KernelManager

CELL = """
import threading, time
import rlinf_lab as lab
from rlinf_lab.runtime.run.observer import Observer

class Naps(lab.Worker):
    def nap(self, seconds):
        for _ in range(round(seconds / 0.005)):
            with self.span("breath"):
                time.sleep(0.004)
            sum(range(3000))

flow = lab.Workflow("naps")
w = flow.worker(Naps, name="w")

@flow.iteration
def iteration(seconds):
    return w.nap(seconds)

glances, looks = [], []
glance, collect = Observer.glance, Observer.collect
Observer.glance = lambda self: (glances.append(threading.current_thread().name), glance(self))[1]
Observer.collect = lambda self: (looks.append(threading.current_thread().name), collect(self))[1]
with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
    board = lab.show(s)
    s.step(2.0)
    time.sleep(1.5)  # nothing goes on: nobody comes
    s.step(1.0)
import json
print("TOLD", json.dumps([len(s.timeline), glances.count("IOPub"), looks.count("pump naps"), s.timeline.bubble_sum_error_ns()]))
"""


def told_by(code: str) -> tuple[list[Any], list[dict[str, Any]]]:
    """What the cell prints after TOLD, and what its widgets say, in order."""
    manager, said, pushed = KernelManager(), list[str](), list[dict[str, Any]]()
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        asked = client.execute(code)
        while True:
            message = client.get_iopub_msg(timeout=60)
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                said.append(content["text"])
            elif kind == "comm_msg" and content["data"].get("method") == "custom":
                pushed.append(content["data"]["content"])
            assert kind != "error", "\n".join(content["traceback"])
            if kind == "status" and content["execution_state"] == "idle" and message["parent_header"].get("msg_id") == asked:
                return json.loads("".join(said).split("TOLD")[1]), pushed
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_every_span_comes_once_and_the_thread_that_sends_fetches_them() -> None:
    (spans, glances, looks, error), pushed = told_by(CELL)
    deltas = [content for content in pushed if content["type"] == "delta"]
    assert [content["seq"] for content in deltas] == list(range(1, len(deltas) + 1))
    assert sum(content["layout"]["count"] for content in deltas if "spans" in content["parts"]) == spans > 600
    assert glances >= 8, "of twenty-five in three seconds; others compute, too"
    assert looks <= 25, "twice a second while somebody glances or nothing goes on, eight times a second for a moment in between"
    assert deltas[-1]["state"]["state"] == "finished" and deltas[-1]["state"]["iteration"] == 2 and error == 0
    assert {row["iteration"] for content in deltas for row in content.get("metrics", ())} == {0, 1}
    assert {row["iteration"] for content in deltas for row in content.get("bubbles", ())} == {0, 1}
