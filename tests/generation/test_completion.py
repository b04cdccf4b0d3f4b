"""What goes in and out: checks at the door, ids of samples, going on, crossing a process."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation import Completion, Request, SamplingParams, requests_for


@pytest.mark.parametrize(
    "bad",
    [{"max_tokens": 0}, {"max_tokens": 1.5}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"seed": "x"}],
)
def test_numbers_that_cannot_work_are_named(bad):
    with pytest.raises(ConfigError, match=f"SamplingParams.{next(iter(bad))} is .*Next:"):
        SamplingParams(**bad)


def test_numpy_numbers_become_plain_ones():
    params = SamplingParams(max_tokens=np.int64(3), temperature=np.float32(0.5), stop_ids=np.array([1, 2]))
    assert params == SamplingParams(max_tokens=3, temperature=0.5, stop_ids=(1, 2))


def test_samples_of_one_prompt_have_keys_of_their_own():
    asked = requests_for([[1, 2], [3]], SamplingParams(), repeat=3, items=["a", "b"], name="i7:")
    assert [r.id for r in asked] == ["i7:0/0", "i7:0/1", "i7:0/2", "i7:1/0", "i7:1/1", "i7:1/2"]
    assert [r.item for r in asked] == ["a"] * 3 + ["b"] * 3
    keys = {r.key for r in asked} | {r.key for r in requests_for([[1, 2], [3]], SamplingParams(seed=1), repeat=3, name="i7:")}
    assert len(keys) == 12 and all(0 <= key < 2**63 for key in keys)


def test_a_prompt_is_a_row_of_ids():
    for bad in ("text", [[1, 2]], [0.5]):
        with pytest.raises(ConfigError, match="row of token ids"):
            Request(bad, SamplingParams(), "a")


def test_a_partial_goes_on_and_a_whole_one_does_not():
    partial = Completion(np.array([4, 5]), np.array([7]), np.array([-0.5], np.float32), np.array([3]), "abort", "x", SamplingParams(max_tokens=9), "item")
    again = partial.resumed()
    assert again.prefix is partial and again.id == "x" and again.item == "item" and again.params.max_tokens == 9
    back = pickle.loads(pickle.dumps(partial))
    assert repr(back) == repr(partial) == "Completion('x': 2 prompt tokens, 1 tokens, versions 3..3, abort)"
    with pytest.raises(ConfigError, match="was not broken off"):
        Completion.refused(again, "why").resumed()
