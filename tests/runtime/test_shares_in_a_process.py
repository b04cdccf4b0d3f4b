"""Workers on shares of one core, in the processes executor: one process, each in a thread of its own."""

from __future__ import annotations

import os
from typing import Any

import rlinf_lab as lab


class Makes(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        for i in range(5):
            out.put((os.getpid(), i))


class Takes(lab.Worker):
    def take(self, inbox: lab.Inbox) -> dict[str, Any]:
        found = [item for batch in inbox for item in batch]
        return {"items": [i for _, i in found], "together": {pid for pid, _ in found} == {os.getpid()}, "device": self.device}


def test_shares_of_a_core_are_in_one_process_and_cores_are_not() -> None:
    flow = lab.Workflow("shares")
    items = flow.channel("items")
    makes, takes = flow.worker(Makes, name="makes"), flow.worker(Takes, name="takes")

    @flow.iteration
    def iteration() -> dict[str, Any]:
        makes.make(items)
        return takes.take(items)

    for devices, together in ((("cpu:0.1", "cpu:0.2"), True), (("cpu:0", "cpu:1"), False)):
        plan = lab.ExecutionPlan.spatial(flow, devices, {"makes": [0], "takes": [1]})
        (found,) = lab.run(flow, plan, 1, executor="processes", emulate=True).wait(60)
        assert found == {"items": [*range(5)], "together": together, "device": "cpu"}
