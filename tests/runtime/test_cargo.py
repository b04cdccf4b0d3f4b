"""Weights on their way: bit for bit what was published, over several hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import rlinf_lab as lab
from rlinf_lab.errors import WorkerError


# --- over hosts ------------------------------------------------------------------------------------------------
class Trains(lab.Worker):
    def __init__(self, size: int) -> None:
        self.state = np.zeros(size, np.float32)

    def train(self, weights: lab.Weights) -> float:
        self.state = self.state.copy()
        self.state[self.iteration :: 50] += 1
        weights.publish({"w": self.state, "step": self.iteration})
        return float(self.state.sum())


class Acts(lab.Worker):
    def act(self, weights: lab.Weights, every: int = 1) -> Any:
        if self.iteration % every:
            return None
        version, state = weights.pull(at_least=1)
        return version, state["step"], float(state["w"].sum()), state["w"].flags.writeable


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_every_reader_gets_what_was_published(executor: str) -> None:
    flow = lab.Workflow("shipped")
    weights = flow.weights("actor")
    trains, often, seldom = flow.worker(Trains, 20_000, name="trains"), flow.worker(Acts, name="often"), flow.worker(Acts, name="seldom")

    @flow.iteration
    def iteration() -> Any:
        total = trains.train(weights)
        total.wait()
        return total, often.act(weights), seldom.act(weights, 3)

    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"trains": [0], "often": [1], "seldom": [2]})
    with lab.session(flow, plan, executor=executor, emulate=True) as session:
        for i in range(7):
            total, each, third = session.step()
            assert each[:3] == (i + 1, i, total), i
            assert third is None if i % 3 else third[:3] == (i + 1, i, total)
            assert each[3], "what is pulled may be written"


def test_a_state_that_cannot_travel_is_named() -> None:
    import threading

    class Bad(lab.Worker):
        def train(self, weights: lab.Weights) -> None:
            weights.publish(threading.Lock())

    flow = lab.Workflow("bad")
    weights = flow.weights("actor")
    trains, acts = flow.worker(Bad, name="trains"), flow.worker(Acts, name="acts")

    @flow.iteration
    def iteration() -> Any:
        trains.train(weights).wait()
        return acts.act(weights)

    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"trains": [0], "acts": [1]})
    with pytest.raises(WorkerError, match="version 1 of the weights 'actor'"), lab.session(flow, plan, executor="processes", emulate=True) as session:
        session.step()
