"""The policy: seeded construction, numpy against torch, normalisation, weights and their file."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from rlinf_lab.algorithms import log_prob
from rlinf_lab.policies import GaussianMLP, Weights


def made(seed=0, **kwargs):
    policy = GaussianMLP(5, 3, seed=seed, **kwargs)
    with torch.no_grad():
        policy.policy[-1].weight.mul_(100)  # otherwise all means are about 0 and prove little
    policy.set_normaliser(np.linspace(-1, 1, 5), np.array([0.5, 1, 2, 0, 4]))
    return policy


OBS = np.random.default_rng(0).normal(size=(16, 5)) * 5


def test_construction_depends_on_the_seed_only():
    torch.manual_seed(1)
    a = GaussianMLP(5, 3, seed=7).weights()
    state = torch.get_rng_state()
    b = GaussianMLP(5, 3, seed=7).weights()
    assert torch.equal(state, torch.get_rng_state())
    assert all((a.arrays[k] == b.arrays[k]).all() for k in a.arrays)
    assert (GaussianMLP(5, 3, seed=8).weights().arrays["policy.0.weight"] != a.arrays["policy.0.weight"]).any()


def test_layers_are_orthogonal_and_the_last_policy_layer_is_small():
    policy = GaussianMLP(5, 3, log_std=-1.0)
    w = policy.policy[2].weight.detach()
    torch.testing.assert_close(w @ w.T, 2 * torch.eye(64), atol=1e-4, rtol=0)
    assert policy.policy[-1].weight.norm() < 0.02 and (policy.log_std == -1.0).all()


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_numpy_and_torch_give_the_same_numbers(batch):
    policy = made()
    noise = np.random.default_rng(3).standard_normal((batch, 3), dtype=np.float32)
    action, logp = policy.act(OBS[:batch], noise)
    with torch.no_grad():
        mean, value = policy(torch.as_tensor(OBS[:batch], dtype=torch.float32))
        expected = mean + policy.log_std.exp() * torch.from_numpy(noise)
    np.testing.assert_allclose(action, expected, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(logp, log_prob(expected, mean, policy.log_std).detach(), atol=2e-6)
    greedy, _ = policy.act(OBS[:batch], None)
    np.testing.assert_allclose(greedy, mean, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(policy.values(OBS[:batch]), value, atol=1e-6, rtol=1e-6)
    assert action.dtype == logp.dtype == greedy.dtype == np.float32


def test_greedy_density_is_the_density_at_the_mean():
    policy = made()
    mean, logp = policy.act(OBS, None)
    mean = torch.from_numpy(mean)
    np.testing.assert_allclose(logp, log_prob(mean, mean, policy.log_std).detach(), rtol=1e-6)


def test_a_constant_feature_is_centred_and_outliers_are_clipped():
    policy = made()
    normal = policy.normalise(torch.tensor([[1e9, 0, 0, 0.5, 0]]))
    assert normal[0, 0] == 10 and normal[0, 3] == 0


def test_act_sees_new_weights_after_load_optimiser_step_and_copy():
    policy, other = made(0), made(1)
    policy.act(OBS, None)
    twin = copy.deepcopy(policy)
    policy.load(other.weights())
    np.testing.assert_array_equal(policy.act(OBS, None)[0], other.act(OBS, None)[0])
    assert (twin.act(OBS, None)[0] != other.act(OBS, None)[0]).any()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    policy(torch.as_tensor(OBS, dtype=torch.float32))[0].sum().backward()
    optimizer.step()
    with torch.no_grad():
        np.testing.assert_allclose(policy.act(OBS, None)[0], policy(torch.as_tensor(OBS).float())[0], rtol=1e-5, atol=1e-5)


def test_weights_are_a_copy_survive_a_file_and_a_pickle(tmp_path):
    policy = made()
    policy.version = 12
    weights = policy.weights()
    with torch.no_grad():
        policy.log_std.add_(1)
    assert (weights.arrays["log_std"] != policy.log_std.detach().numpy()).all()
    for back in (Weights.load(weights.save(tmp_path / "w.safetensors")), pickle.loads(pickle.dumps(weights))):
        assert back.version == 12 and back.arrays.keys() == weights.arrays.keys()
        assert all((back.arrays[k] == weights.arrays[k]).all() for k in back.arrays)
    assert "version=12" in repr(weights)
    fresh = GaussianMLP(5, 3)
    fresh.load(back)
    assert fresh.version == 12 and "version=12" in repr(fresh)


def test_read_only_memory_can_be_loaded():
    weights = made().weights()
    for array in weights.arrays.values():
        array.setflags(write=False)
    GaussianMLP(5, 3).load(weights)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        made().load(GaussianMLP(6, 3).weights())
