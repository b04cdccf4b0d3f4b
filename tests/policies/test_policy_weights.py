"""Weights on their way: copies with a version, through a file, a pickle and read-only memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import PolicyWeights, make_policy

ARM = spaces.Box(-1, 1, (3,))


def made(size=5, seed=0):
    return make_policy(spaces.Box(-1, 1, (size,)), ARM, seed=seed)


def test_weights_are_a_copy_and_survive_a_file_and_a_pickle(tmp_path):
    policy = made()
    policy.set_normaliser(np.arange(5), np.arange(5) + 1)
    policy.version = 12
    weights = policy.weights()
    obs = np.random.default_rng(0).normal(size=(4, 5))
    before = policy.act(obs, None)[0]
    with torch.no_grad():
        policy.policy[-1].bias.add_(1)
        policy.preprocess.obs_mean.add_(1)
    for back in (PolicyWeights.load(weights.save(tmp_path / "w.safetensors")), pickle.loads(pickle.dumps(weights))):
        assert back.version == 12 and back.arrays.keys() == weights.arrays.keys()
        fresh = made(seed=1)
        fresh.load(back)
        np.testing.assert_array_equal(fresh.act(obs, None)[0], before)
        assert fresh.version == 12 and "version=12" in repr(fresh)
    assert "version=12" in repr(weights) and weights.nbytes == sum(a.nbytes for a in weights.arrays.values())


def test_read_only_memory_can_be_loaded():
    weights = made().weights()
    for array in weights.arrays.values():
        array.setflags(write=False)
    made(seed=1).load(weights)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        made().load(made(6).weights())


def test_the_old_name_says_the_new_one():
    with pytest.raises(ConfigError, match="is called PolicyWeights now"):
        from rlinf_lab.policies import Weights  # noqa: F401
