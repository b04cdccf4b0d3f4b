"""What a pull needs, and no more: one look at whether a version is whole, small tensors together, nothing kept of what has come."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from sessions import opened

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.state.messages import Message
from rlinf_lab.runtime.transport.cargo import ALIGNED, LITTLE, Whole
from rlinf_lab.runtime.transport.pickling import LARGE
from rlinf_lab.runtime.transport.unchanged import Unchanged
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

PUBLISHED: list[weakref.ref] = []


class Learns(Worker):
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def learn(self, weights: Weights) -> int:
        state = [np.full(size, self.iteration, np.float32) for size in self.sizes]
        PUBLISHED.append(weakref.ref(state[0]))
        return weights.publish(state)


class Acts(Worker):
    def act(self, at_least: int, weights: Weights) -> list[float]:
        return [float(each.mean()) for each in weights.pull(at_least).state]


def weights_of(sizes: list[int]) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("costs")
    weights = flow.weights("w")
    learns, acts = flow.worker(Learns, sizes, name="learns"), flow.worker(Acts, name="acts")

    @flow.iteration
    def iteration(pulls: bool) -> object:
        version = learns.learn(weights).wait()
        return acts.act(version, weights) if pulls else None

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learns": [0], "acts": [1]})


@pytest.mark.parametrize(("sizes", "asks"), [([1000] * 20, 1), ([100_000] * 5, 2)], ids=["little", "much"])
def test_a_version_is_looked_at_once_and_not_under_the_mutex(sizes: list[int], asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, twice, while the learner's whole host waited; what is little was asked after, too."""
    seen, under_the_mutex = Counter[str](), Counter[str]()
    changed, say = Unchanged.changed, Post.say
    mutexes: list[Any] = []

    def counted(self: Unchanged) -> str:
        seen["looks"] += 1
        under_the_mutex["looks"] += any(mutex._is_owned() for mutex in mutexes)
        return changed(self)

    def told(self: Post, host: str, message: Message, urgent: bool = False) -> None:
        seen[message.kind] += 1
        say(self, host, message, urgent)

    with opened("mesh", *weights_of(sizes)) as s:
        mutexes += [host.state.mutex for host in s._executor.hosts.values()]
        monkeypatch.setattr(Unchanged, "changed", counted)
        monkeypatch.setattr(Post, "say", told)
        assert s.step(True) == [0.0] * len(sizes)
    assert (seen["looks"], seen["pull"], under_the_mutex["looks"]) == (1, asks, 0)


def test_nothing_of_a_version_that_has_come_and_is_superseded_stays() -> None:
    PUBLISHED.clear()
    with opened("mesh", *weights_of([100_000])) as s:
        for pulls in (True, False, False):
            s.step(pulls)
        gc.collect()
        assert [ref() is None for ref in PUBLISHED] == [True, True, False]


def packed(state: list[Any]) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(Whole(1, state, Unchanged(state)), protocol=5, buffer_callback=buffers.append), buffers


def test_small_arrays_travel_together() -> None:
    """Before, each took tens of microseconds on its way: 20 MB in 600 arrays took longer than 100 MB in 300."""
    sizes = [0, 1, 3, 1000, 16_000, LARGE // 4, 100_000] * 60
    state = [np.arange(size, dtype=np.float32) for size in sizes]
    data, buffers = packed(state)
    large = sum(size * 4 >= LARGE for size in sizes)
    small = sum(4 * size for size in sizes if 4 * size < LARGE)
    assert large < len(buffers) <= large + small / LITTLE * 1.1 + 1
    arrived = pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])
    assert not arrived.is_sealed
    for got, sent in zip(arrived.open(), state, strict=True):
        assert np.array_equal(got, sent) and got.flags.writeable and (got.size == 0 or got.ctypes.data % 16 == 0)
    assert all(place.start % ALIGNED == 0 for place in arrived.places if place is not None)


def test_of_what_is_little_a_change_while_it_is_packed_is_noticed() -> None:
    class Changes:
        def __reduce__(self) -> tuple:
            part[:] = 1
            return str, ()

    part = np.zeros(100)
    data, buffers = packed([part, Changes()])
    assert not pickle.loads(data, buffers=[bytes(b) for b in buffers]).is_sealed
