"""Actors and critics of SAC and TD3: gradients through actions, ensembles against single nets, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import make_actor, make_q_ensemble

OBS = spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (4,)), "mode": spaces.Discrete(3)})
ARM = spaces.Box(np.array([-1, 0, -3], np.float32), np.array([1, 2, 5], np.float32))


def observed(n=6, seed=0):
    rng = np.random.default_rng(seed)
    return {"mode": rng.integers(0, 3, n), "state": rng.normal(size=(n, 4)).astype(np.float32)}


def tensors(tree):
    return {key: torch.from_numpy(value) for key, value in tree.items()}


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_actor_acts_in_numpy_as_it_samples_in_torch(deterministic):
    actor, obs = make_actor(OBS, ARM, net_arch=(32,), deterministic=deterministic), observed()
    noise = actor.draw_noise(np.random.default_rng(1), 6)
    (action, log_prob), (sampled, learned) = actor.act(obs, noise), actor(tensors(obs), torch.from_numpy(noise))
    np.testing.assert_allclose(action, sampled.detach(), atol=1e-5)
    np.testing.assert_allclose(log_prob, learned.detach(), atol=1e-3)
    greedy, _ = actor.act(obs, None)
    np.testing.assert_allclose(greedy, actor.as_deployable()(tensors(obs)), atol=1e-5)
    assert (action >= ARM.low).all() and (action <= ARM.high).all() and np.abs(action - greedy).max() > 1e-3


def test_the_density_of_a_sample_is_that_of_the_head_and_of_torch_distributions():
    """Each row has a standard deviation of its own."""
    actor, obs = make_actor(OBS, ARM, net_arch=(32,)), tensors(observed())
    action, log_prob = actor(obs, torch.from_numpy(actor.draw_noise(np.random.default_rng(2), 6)))
    params = actor.policy(actor.encoder(actor.preprocess(obs)))
    mean, log_std = params.chunk(2, 1)
    normal = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    low, high = torch.from_numpy(ARM.low), torch.from_numpy(ARM.high)
    steps = [
        torch.distributions.TanhTransform(cache_size=1),
        torch.distributions.AffineTransform((low + high) / 2, (high - low) / 2, event_dim=1),
    ]
    expected = torch.distributions.TransformedDistribution(normal, steps).log_prob(action)
    torch.testing.assert_close(log_prob, expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(actor.head.log_prob(params, action), expected, atol=1e-3, rtol=1e-4)
    assert log_std.std() > 0


def test_the_gradient_through_an_action_is_the_difference_quotient():
    actor = make_actor(OBS, ARM, net_arch=(8,), activation="tanh").double()
    obs = {
        "mode": torch.tensor([0, 2]),
        "state": torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).double(),
    }
    actor.preprocess.forward = lambda tree: {
        k: v.double() for k, v in type(actor.preprocess).forward(actor.preprocess, tree).items()
    }
    noise = torch.tensor([[0.3, -1.0, 2.0], [0.1, 0.2, -0.4]], dtype=torch.float64)
    bias = actor.policy[-1].bias

    def value():
        action, log_prob = actor(obs, noise)
        return action.square().sum() - 0.2 * log_prob.sum()

    value().backward()
    for i in range(6):
        with torch.no_grad():
            bias[i] += 1e-5
            above = value()
            bias[i] -= 2e-5
            below = value()
            bias[i] += 1e-5
        assert bias.grad[i].item() == pytest.approx((above - below).item() / 2e-5, rel=1e-4)


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_an_ensemble_is_its_critics_one_by_one(norm):
    q, n = make_q_ensemble(OBS, ARM, critics=3, net_arch=(16, 8), norm=norm), 10
    obs, rng = tensors(observed(n)), np.random.default_rng(3)
    action = torch.from_numpy(rng.uniform(ARM.low, ARM.high, (n, 3)).astype(np.float32))
    with torch.no_grad():
        for parameter in q.net.parameters():  # also the normalisations' own
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    scaled = (action - torch.tensor([0.0, 1.0, 1.0])) / torch.tensor([1.0, 1.0, 4.0])
    inputs = torch.cat([torch.eye(3)[obs["mode"]], obs["state"], scaled], 1)
    values = q(obs, action)
    assert values.shape == (3, n)
    for k in range(3):
        x = inputs
        for layer in q.net:
            own = {name: parameter[k] for name, parameter in layer.named_parameters()}
            if type(layer).__name__ == "LinearEnsemble":
                x = x @ own["weight"] + own["bias"]
            elif own:
                x = (
                    torch.nn.functional.layer_norm(x, x.shape[1:])
                    if norm == "layer"
                    else (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
                )
                x = x * own["weight"] + own["bias"]
            else:
                x = layer(x)
        torch.testing.assert_close(values[k], x[:, 0], atol=1e-4, rtol=1e-4)
    assert (values[0] != values[1]).all()


def test_batch_normalisation_keeps_statistics_for_acting():
    q, obs = make_q_ensemble(OBS, ARM, norm="batch", net_arch=(8,)), tensors(observed(64))
    action = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(800):
        trained = q(obs, action)
    torch.testing.assert_close(q.eval()(obs, action), trained, atol=0.03, rtol=0.03)
    one = {key: value[:1] for key, value in obs.items()}
    torch.testing.assert_close(q(one, action[:1]), q(obs, action)[:, :1])


def test_construction_depends_on_the_seed_only():
    def weights(seed):
        made = make_actor(OBS, ARM, seed=seed), make_q_ensemble(OBS, ARM, seed=seed)
        return [parameter for module in made for parameter in module.parameters()]

    state = torch.get_rng_state()
    torch.manual_seed(4)
    a, b, c = weights(1), weights(1), weights(2)
    torch.set_rng_state(state)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: make_actor(OBS, spaces.Discrete(3)), "SAC and TD3 act in a Box"),
        (lambda: make_actor(OBS, spaces.Box(-np.inf, np.inf, (2,))), "finite bounds"),
        (lambda: make_actor(OBS, ARM, deterministic=True, exploration_std=0), "exploration_std=0"),
        (lambda: make_q_ensemble(OBS, spaces.Discrete(3)), "actions in a Box only"),
        (lambda: make_q_ensemble(OBS, ARM, critics=0), "critics=0"),
        (lambda: make_q_ensemble(OBS, ARM, norm="weight"), "'layer', 'batch' or None"),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
