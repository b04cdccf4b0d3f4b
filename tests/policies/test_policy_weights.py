"""Weights on their way: copies with a version, through a file, a pickle and read-only memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import PolicyWeights, make_policy
from rlinf_lab.policies.views import StateViews

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


class Extra(nn.Module):
    """With a buffer that is no part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("aside", torch.ones(1), persistent=False)


class ExtraState(Extra):
    def get_extra_state(self):
        return 3


def test_views_of_a_module_are_its_state_dict_and_write_what_fits():
    policy, other = made(), made(seed=1)
    policy.set_normaliser(np.arange(5), np.arange(5) + 1)
    for module in (policy, nn.Sequential(Extra(), nn.Linear(3, 2))):
        views, state = StateViews(module), module.state_dict()
        assert list(views()) == list(state)
        for key, array in views().items():
            np.testing.assert_array_equal(array, state[key].numpy())
            assert np.shares_memory(array, state[key].numpy())
    fixed = PolicyWeights.fixed(StateViews(policy)(), 4)
    obs = np.random.default_rng(0).normal(size=(4, 5))
    before = policy.act(obs, None)[0]
    with torch.no_grad():
        policy.policy[-1].bias.add_(1)
    assert StateViews(other).write(fixed.arrays) and fixed.version == 4
    np.testing.assert_array_equal(other.act(obs, None)[0], before)
    with pytest.raises(ValueError, match="read-only|WRITEABLE"):
        next(iter(fixed.arrays.values())).setflags(write=True)
    with pytest.raises(TypeError, match="item assignment"):
        fixed.arrays["policy.0.bias"] = np.zeros(8)
    again = pickle.loads(pickle.dumps(fixed))
    assert again.version == 4 and StateViews(made(seed=2)).write(again.arrays)
    views = StateViews(other)
    other.load_state_dict({key: value + 1 for key, value in other.state_dict().items()})
    for parameter in other.parameters():
        parameter.data = parameter.data * 2  # other memory, as after a switch
    for key, array in views().items():
        np.testing.assert_array_equal(array, other.state_dict()[key].numpy())


def test_views_leave_to_torch_what_is_more_than_tensors_in_memory_or_does_not_fit():
    policy, weights = made(), made(6).weights()
    before = policy.weights()
    assert not StateViews(policy).write(weights.arrays)  # of other shapes
    assert not StateViews(policy).write({**before.arrays, "more": np.zeros(1)})
    assert not StateViews(policy).write({key: array.astype(np.float64) for key, array in before.arrays.items()})
    for key, array in policy.weights().arrays.items():
        np.testing.assert_array_equal(array, before.arrays[key])
    hooked = nn.Linear(2, 2)
    hooked.register_load_state_dict_pre_hook(lambda *_: None)
    for module in (ExtraState(), hooked, nn.Linear(2, 2).to(torch.bfloat16), nn.Linear(2, 2, device="meta")):
        assert StateViews(module)() is None
