"""Buffers against plain lists: what is kept, what is drawn, what comes back from a file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from rlinf_lab.errors import ConfigError
from rlinf_lab.replay import PrioritisedReplayBuffer, ReplayBuffer
from rlinf_lab.replay.flat import flat, nested
from rlinf_lab.replay.prioritised import SumTree


def transitions(numbers):
    numbers = np.asarray(numbers)
    image = np.repeat(numbers[:, None], 4, 1).astype(np.uint8).reshape(-1, 2, 2)
    return {
        "obs": {"camera/left": image, "joints": (numbers.astype(np.float32), numbers[:, None] * 2.0)},
        "done": numbers % 2 == 0,
    }


def held(buffer):
    return buffer.rows(buffer.order)["obs"]["joints"][0].astype(int).tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 7))
def test_keeps_the_last_in_order(sizes, capacity):
    buffer, every = ReplayBuffer(capacity), []
    for size in sizes:
        new = list(range(len(every), len(every) + size))
        every += new
        if size:
            buffer.add(transitions(new))
        assert len(buffer) == min(capacity, len(every))
    if every:
        assert held(buffer) == every[-capacity:]
        batch = buffer.sample(50)
        assert set(batch["obs"]["joints"][0].astype(int)) <= set(every[-capacity:])
        assert (batch["obs"]["camera/left"][:, 1, 1] == batch["obs"]["joints"][1][:, 0] / 2).all()


def test_draws_uniformly():
    buffer = ReplayBuffer(10, seed=3)
    buffer.add(transitions(range(10)))
    counts = np.bincount(buffer.sample(20_000).index_B, minlength=10)
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9  # chi square, 9 degrees of freedom, one in a thousand


def test_trees_come_apart_and_together():
    tree = {"a/b": np.zeros(2), "#0": {"%": np.ones(2)}, "t": (np.zeros(2), {"x": np.ones(2)})}
    again = nested(flat(tree))
    assert again.keys() == tree.keys() and again["#0"].keys() == {"%"} and isinstance(again["t"], tuple)
    assert (nested(flat(np.arange(3))) == np.arange(3)).all()
    with pytest.raises(ConfigError, match="empty dict"):
        flat({"obs": {}})


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritisedReplayBuffer])
def test_a_restart_draws_what_would_have_been_drawn(kind, tmp_path):
    buffer = kind(8, seed=5)
    buffer.add(transitions(range(11)))
    if kind is PrioritisedReplayBuffer:
        buffer.update(buffer.order[:3], [9.0, 0.1, 4.0])
    buffer.sample(7)
    buffer.save(tmp_path / "replay.safetensors")
    again = kind.load(tmp_path / "replay.safetensors")
    for _ in range(3):
        one, other = buffer.sample(16), again.sample(16)
        assert (one["obs"]["joints"][0] == other["obs"]["joints"][0]).all() and (one.weight_B == other.weight_B).all()
    for each in (buffer, again):
        each.add(transitions([99]))
    assert held(again) == held(buffer) == [*range(4, 11), 99]
    assert [p.name for p in tmp_path.iterdir()] == ["replay.safetensors"]
    assert again.rows(again.order)["done"].dtype == bool and again.nbytes == buffer.nbytes


def test_files_that_are_something_else(tmp_path):
    path = tmp_path / "replay.safetensors"
    ReplayBuffer(3).save(path)
    assert len(ReplayBuffer.load(path)) == 0
    with pytest.raises(ConfigError, match="holds ReplayBuffer.*wanted: Prioritised"):
        PrioritisedReplayBuffer.load(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        ReplayBuffer.load(path)
    with pytest.raises(FileNotFoundError, match=r"ReplayBuffer\.save"):
        ReplayBuffer.load(tmp_path / "none")


@pytest.mark.parametrize(("state", "said"), [
    ({"capacity": 10**13, "next": 0}, "MemoryError"), ({"capacity": 10, "next": 3}, "KeyError: 'rng'"), ({}, "KeyError: 'capacity'"),
    ({"capacity": 10, "rng": "x"}, "does not hold the state"), ([], "does not hold the state"),
], ids=str)  # fmt: skip
def test_a_state_of_somebody_else_is_refused(state, said, tmp_path):
    meta = {"format": "rlinf_lab replay 1", "kind": "ReplayBuffer", "state": json.dumps(state)}
    save_file({"row:obs": np.zeros((3, 4), np.float32)}, path := tmp_path / "replay.safetensors", metadata=meta)
    with pytest.raises(ConfigError, match="does not hold the state of a ReplayBuffer") as error:
        ReplayBuffer.load(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_what_does_not_fit_is_named():
    buffer = ReplayBuffer(4)
    with pytest.raises(ConfigError, match="nothing to sample"):
        buffer.sample(1)
    buffer.add(transitions([1, 2]))
    with pytest.raises(ConfigError, match=r"'obs/joints/#0' is complex128\[\] a row"):
        buffer.add(
            {**transitions([1]), "obs": {**transitions([1])["obs"], "joints": (np.ones(1) * 1j, np.ones((1, 1)))}}
        )
    with pytest.raises(ConfigError, match=r"differ from the buffer's in \['done'\]"):
        buffer.add({"obs": transitions([1])["obs"]})
    with pytest.raises(ConfigError, match="one leading axis"):
        buffer.add({**transitions([1]), "done": np.zeros(2, bool)})
    with pytest.raises(ConfigError, match="numbers only"):
        ReplayBuffer(4).add({"text": np.array(["a"])})
    with pytest.raises(ConfigError, match="capacity=0"):
        ReplayBuffer(0)
    assert held(buffer) == [1, 2] and "2 of 4" in repr(buffer)


def test_sum_tree_finds_what_a_cumulative_sum_finds():
    rng = np.random.default_rng(0)
    for leaves in (1, 2, 5, 64, 100):
        tree, value = SumTree(leaves), rng.random(leaves) * (rng.random(leaves) < 0.7)
        value[rng.integers(leaves)] = 0.5
        tree.set(np.arange(leaves), rng.random(leaves))
        tree.set(np.arange(leaves), value)
        sums = rng.random(200) * tree.total
        assert tree.total == pytest.approx(value.sum())
        assert (tree.find(sums) == np.searchsorted(np.cumsum(value), sums, side="right")).all()
        assert value[tree.find(np.array([tree.total]))[0]] > 0  # the very end


def test_priorities_decide_and_weights_undo_it():
    buffer = PrioritisedReplayBuffer(4, alpha=0.5, seed=1)
    index = buffer.add(transitions(range(4)))
    buffer.update(index, [1.0, 4.0, 9.0, 16.0])
    batch = buffer.sample(50_000, beta=1.0)
    share = np.bincount(batch.index_B, minlength=4) / len(batch)
    np.testing.assert_allclose(share, [0.1, 0.2, 0.3, 0.4], atol=0.002)
    weighed = np.bincount(batch.index_B, batch.weight_B, minlength=4)
    np.testing.assert_allclose(weighed / weighed.sum(), [0.25] * 4, atol=0.003)
    buffer.add(transitions([7]))  # as likely as the likeliest
    assert (np.bincount(buffer.sample(50_000).index_B, minlength=4)[0] / 50_000) == pytest.approx(4 / 13, abs=0.002)
    with pytest.raises(ConfigError, match="nan"):
        buffer.update(index, [1, 2, float("nan"), 3])
