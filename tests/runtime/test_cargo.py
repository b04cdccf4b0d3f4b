"""Weights in buckets: bit for bit what was published, over several hosts."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import WorkflowError
from rlinf_lab.runtime.transport.cargo import Arrived, Bucket, Outgoing, assembled, ranges
from rlinf_lab.runtime.transport.unchanged import Unchanged


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6), st.integers(1, 90))
def test_ranges_cover_every_byte_once_and_fit(sizes: list[int], bucket: int) -> None:
    found = ranges(sizes, bucket)
    covered = [np.zeros(size, int) for size in sizes]
    for one in found:
        assert sum(stop - start for _, start, stop in one) <= max(4, bucket)
        for block, start, stop in one:
            assert start < stop and start % 4 == 0
            covered[block][start:stop] += 1
    assert all((c == 1).all() for c in covered) and found


def sent(state: Any, bucket: int) -> Any:
    """What the reader has of it."""
    outgoing, arrived, count = Outgoing(1, state, bucket, Unchanged(state)), list[Arrived](), 1
    while len(arrived) < count:
        arrived.append(pickle.loads(pickle.dumps(Bucket(outgoing, len(arrived)), protocol=5)))
        count = arrived[-1].total
    return assembled(arrived).open()


KINDS = (np.float32, np.float64, np.float16, np.int8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from(KINDS)), min_size=1, max_size=5), st.integers(4, 700), st.integers(0, 1 << 20))
def test_what_arrives_is_what_was_sent(shapes: list, bucket: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = {i: rng.integers(0, 100, n).astype(kind) for i, (n, kind) in enumerate(shapes)}
    for key, array in sent(state, bucket).items():
        assert array.dtype == state[key].dtype and np.array_equal(array, state[key]) and array.flags.writeable


def test_tensors_of_any_type_and_states_without_arrays_travel_too() -> None:
    state = {"w": torch.randn(33).to(torch.bfloat16), "n": 3}
    assert torch.equal(sent(state, 16)["w"], state["w"])
    assert sent("plain", 16) == "plain"


# --- over hosts ------------------------------------------------------------------------------------------------
class Trains(lab.Worker):
    def __init__(self, size: int, shipping: dict) -> None:
        self.state, self.shipping = np.zeros(size, np.float32), shipping

    def train(self, weights: lab.Weights) -> float:
        self.state = self.state.copy()
        self.state[self.iteration :: 50] += 1
        weights.publish({"w": self.state, "step": self.iteration}, **self.shipping)
        return float(self.state.sum())


class Acts(lab.Worker):
    def act(self, weights: lab.Weights, every: int = 1) -> Any:
        if self.iteration % every:
            return None
        version, state = weights.pull(at_least=1)
        return version, state["step"], float(state["w"].sum()), state["w"].flags.writeable


@pytest.mark.parametrize("shipping", [{}, {"bucket_mib": 0.01}], ids=["whole", "buckets"])
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_every_reader_gets_what_was_published(shipping: dict, executor: str) -> None:
    flow = lab.Workflow("shipped")
    weights = flow.weights("actor")
    trains, often, seldom = flow.worker(Trains, 20_000, shipping, name="trains"), flow.worker(Acts, name="often"), flow.worker(Acts, name="seldom")

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


def test_a_bucket_that_holds_nothing_is_refused() -> None:
    for bad in (0, -1, float("nan"), "16", True):
        with pytest.raises(WorkflowError, match="bucket_mib="):
            lab.Weights().publish(1, bucket_mib=bad)  # type: ignore[arg-type]
