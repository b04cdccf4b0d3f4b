"""Flow matching against closed forms: the field of a Gaussian, the density of the chain, its score as a gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlinf_lab.errors import ConfigError
from rlinf_lab.experiments.storage.folder import from_plain
from rlinf_lab.policies import Flow, make_policy
from rlinf_lab.policies.flow import FlowHead
from rlinf_lab.policies.weights import PolicyWeights

LINE, OBS = spaces.Box(-1, 1, (1,)), spaces.Box(-np.inf, np.inf, (3,))
MEAN, STD = 0.4, 0.25


class GaussianField(nn.Module):
    """The velocity E[x_1 − x_0 | x_t] where x_0 ~ N(0, 1) and x_1 ~ N(MEAN, STD²), jointly Gaussian with x_t."""

    features = 1

    def forward(self, x_BD, t_B, features):
        t = t_B[:, None]
        variance = t**2 * STD**2 + (1 - t) ** 2
        return MEAN + (t * STD**2 - (1 - t)) / variance * (x_BD - t * MEAN)


class Constant(nn.Module):
    """The same velocity everywhere."""

    features = 1

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.3))

    def forward(self, x_BD, t_B, features):
        return self.value.expand_as(x_BD)


def test_the_true_field_of_a_gaussian_carries_noise_to_it():
    """The flow's map of one Gaussian to another is x_1 = MEAN + STD · x_0, whatever the steps in between."""
    head = FlowHead(LINE, GaussianField(), Flow(steps=1000, std=2e-5, least_std=1e-5, most_std=1e-4, noisy_steps=1000))
    noise = np.zeros((5, head.noise_size), np.float32)
    noise[:, 0] = np.linspace(-2, 2, 5)
    chain, _ = head.act(np.zeros((5, 1), np.float32), noise)
    np.testing.assert_allclose(head.executed(chain)[:, 0], MEAN + STD * noise[:, 0], atol=3e-3)
    np.testing.assert_allclose(head.greedy(torch.zeros(1, 1)), [[MEAN]], atol=3e-3)


def test_the_loss_of_the_true_field_is_the_variance_it_cannot_explain():
    rng = np.random.default_rng(0)
    head, n = FlowHead(LINE, GaussianField(), Flow()), 400_000
    noise = torch.from_numpy(head.draw_clone_noise(rng, n))
    expert = torch.from_numpy((MEAN + STD * rng.standard_normal((n, 1))).astype(np.float32))
    last = 1 - 1 / head.flow.steps  # no later time is ever asked for
    t = np.linspace(0, last, 10_001)
    left = STD**2 + 1 - (t * STD**2 - (1 - t)) ** 2 / (t**2 * STD**2 + (1 - t) ** 2)
    loss = head.clone_loss(torch.zeros(n, 1), expert, noise)
    assert loss.shape == (n,)
    assert loss.mean().item() == pytest.approx(np.trapezoid(left, t) / last, rel=0.01)


@pytest.mark.parametrize(("noisy", "per_action"), [(5, False), (5, True), (2, True), (1, False)])
def test_the_chain_has_the_density_of_its_steps(noisy, per_action):
    """Brute force: one torch Normal for each step with noise; in numpy, in torch, and the ratio of a fresh policy is one."""
    flow = Flow(steps=5, noisy_steps=noisy)
    policy = make_policy(OBS, spaces.Box(-1, 1, (2,)), chunk=3, flow=flow, per_action=per_action)
    with torch.no_grad():
        policy.head.std_logit.add_(torch.linspace(-1, 1, 6 * noisy).reshape(noisy, 6))
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    chain, log_prob = policy.act(obs, policy.draw_noise(np.random.default_rng(1), 4))
    assert chain.shape == (4, noisy + 1, 3, 2) and policy.executed(chain).shape == (4, 3, 2)
    x = torch.from_numpy(chain).reshape(4, noisy + 1, 6)
    features = policy.preprocess(torch.from_numpy(obs))
    each = [torch.distributions.Normal(0, 1).log_prob(x[:, 0])]
    std = policy.head.log_std().exp()
    assert ((std > 0.02) & (std < 0.5)).all()
    now = x[:, 0]
    for k in range(5):
        mean = now + policy.head.velocity(now, torch.full((4,), k / 5), features) / 5
        if (n := k - 5 + noisy) < 0:
            now = mean
            continue
        now = x[:, n + 1]
        each.append(torch.distributions.Normal(mean, std[n]).log_prob(now))
    expected = sum(each).reshape(4, 3, 2).sum(-1) if per_action else sum(each).sum(-1)
    learned, entropy, value = policy.evaluate_actions(obs, chain)
    torch.testing.assert_close(learned, expected, atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(log_prob, learned.detach(), atol=2e-4, rtol=1e-5)
    assert entropy.shape == log_prob.shape and value.shape == (4,)
    by_hand = torch.autograd.grad(expected.sum(), policy.head.velocity.end[0].weight, retain_graph=True)
    of_head = torch.autograd.grad(learned.sum(), policy.head.velocity.end[0].weight, retain_graph=True)
    torch.testing.assert_close(of_head, by_hand, atol=1e-3, rtol=1e-4)
    (learned.sum() + value.sum()).backward()
    assert all(p.grad is not None for p in policy.parameters())


def test_the_entropy_is_the_mean_of_minus_the_log_density():
    policy = make_policy(OBS, LINE, flow=Flow(steps=3, noisy_steps=2))
    obs = np.zeros((50_000, 3), np.float32)
    _, log_prob = policy.act(obs, policy.draw_noise(np.random.default_rng(2), len(obs)))
    assert policy.head.entropy(torch.zeros(1, 3)).item() == pytest.approx(-log_prob.mean(), abs=0.02)


@pytest.mark.parametrize("noisy", [1, 4])
def test_the_score_of_the_chain_is_the_gradient_of_what_is_executed(noisy):
    """E[∇ log p(chain) · f(x_S)] is ∇ E[f(x_S)]; for a constant velocity v and f = x² that is 2v, wherever noise is."""
    head = FlowHead(LINE, Constant(), Flow(steps=4, std=0.3, noisy_steps=noisy))
    n = 400_000
    chain, _ = head.act(np.zeros((n, 1), np.float32), head.draw_noise(np.random.default_rng(3), n))
    action = torch.from_numpy(head.executed(chain)[:, 0])
    reward = action.square() - action.square().mean()
    (head.log_prob(torch.zeros(n, 1), torch.from_numpy(chain)) * reward).mean().backward()
    assert head.velocity.value.grad.item() == pytest.approx(0.6, abs=0.05)


def test_numpy_and_torch_walk_the_same_chain_and_greedy_is_exported():
    policy = make_policy(OBS, spaces.Box(-1, 1, (2,)), chunk=4, flow=Flow(), activation="relu")
    obs = np.random.default_rng(4).normal(size=(6, 3)).astype(np.float32)
    noise = policy.draw_noise(np.random.default_rng(5), 6)
    with torch.inference_mode():
        by_torch = policy.head.choose(torch.from_numpy(policy.preprocess.numpy(obs)), noise)
    for mine, theirs in zip(policy.act(obs, noise), by_torch, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5, rtol=1e-5)
    greedy = policy.executed(policy.act(obs, None)[0])
    exported = torch.export.export(policy.as_deployable(), (torch.from_numpy(obs),)).module()
    np.testing.assert_allclose(exported(torch.from_numpy(obs)), greedy, atol=1e-5)


def test_cloning_finds_both_ways_of_an_expert():
    """A Gaussian would end between them. The way is a coin's; the first number of the observation scales it."""
    rng = np.random.default_rng(6)
    policy = make_policy(OBS, LINE, flow=Flow(steps=10), activation="relu")
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(400):
        obs = rng.uniform(0.5, 1.0, size=(256, 3)).astype(np.float32)
        expert = obs[:, :1] * rng.choice([-1, 1], size=(256, 1)) * np.float32(0.8)
        loss = policy.clone_loss(obs, expert, rng)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    obs = rng.uniform(0.5, 1.0, size=(500, 3)).astype(np.float32)
    noise = policy.draw_noise(rng, 500)
    noise[:, 1:] = 0
    action = policy.executed(policy.act(obs, noise)[0])[:, 0]
    near = np.abs(np.abs(action) - 0.8 * obs[:, 0]) < 0.2
    assert near.mean() > 0.85 and 0.35 < (action > 0).mean() < 0.65


def test_cloning_passes_a_wrapper_that_waits_for_every_gradient(tmp_path):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    policy, rng = make_policy(OBS, LINE, flow=Flow(steps=2), net_arch=(8,)), np.random.default_rng(8)
    obs, expert = torch.zeros(4, 3), torch.rand(4, 1)
    noise = torch.from_numpy(policy.draw_clone_noise(rng, 4))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(policy)
        for _ in range(2):  # the second call raises where the first left a gradient out
            model(obs, expert, noise)[0].mean().backward()
    finally:
        dist.destroy_process_group()
    assert policy.head.velocity.end[0].weight.grad.abs().sum() > 0
    assert (policy.head.std_logit.grad == 0).all() and (policy.critic[0].weight.grad == 0).all()


def test_weights_of_an_earlier_version_or_another_flow_are_told_apart():
    before = make_policy(OBS, LINE, flow=Flow(steps=4, noisy_steps=4), net_arch=(8,)).weights()
    with pytest.raises(ConfigError, match=r"noise in 4 steps, and this one has it in 1\..*Next: Flow\(steps=\.\.\., noisy_steps=4\)"):
        make_policy(OBS, LINE, flow=Flow(steps=4), net_arch=(8,)).load(before)
    older = PolicyWeights({name.replace("velocity.end.", "velocity.net."): array for name, array in before.arrays.items()})
    with pytest.raises(ConfigError, match="an earlier version kept"):
        make_policy(OBS, LINE, flow=Flow(steps=4), net_arch=(8,)).load(older)
    kept = {"steps": 4, "std": 0.1, "least_std": 0.02, "most_std": 0.5}  # as a file of that version has it
    make_policy(OBS, LINE, flow=from_plain({"flow": kept}), net_arch=(8,)).load(before)


def test_the_initial_noise_is_what_was_asked_for():
    head = FlowHead(LINE, Constant(), Flow(std=0.07))
    assert head.log_std().exp().mean().item() == pytest.approx(0.07, rel=1e-5)
    assert math.isclose(head.log_std().exp().min().item(), 0.07, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Flow(steps=0), "steps=0"),
        (lambda: Flow(steps=4, noisy_steps=5), "noisy_steps=5.*steps=4"),
        (lambda: Flow(std=0.6), r"least_std=0.02, std=0.6, most_std=0.5"),
        (lambda: make_policy(OBS, spaces.Discrete(2), flow=Flow()), "a flow gives actions in a Box only"),
        (lambda: make_policy(OBS, LINE, flow=Flow(), squash=True), "not squashed"),
        (lambda: make_policy(OBS, spaces.Discrete(2), chunk=3), "chunks are made of actions in a Box"),
        (lambda: make_policy(OBS, LINE, chunk=0), "chunk=0"),
        (lambda: make_policy(OBS, LINE, per_action=True), "chunk=5"),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_chunk_of_gaussians_splits_into_its_actions():
    whole, each = (make_policy(OBS, spaces.Box(-1, 1, (2,)), chunk=3, per_action=by) for by in (False, True))
    obs, noise = np.ones((4, 3), np.float32), whole.draw_noise(np.random.default_rng(7), 4)
    (action, log_prob), (same, parts) = whole.act(obs, noise), each.act(obs, noise)
    np.testing.assert_array_equal(action, same)
    assert action.shape == (4, 3, 2) and parts.shape == (4, 3)
    np.testing.assert_allclose(parts.sum(1), log_prob, rtol=1e-5)
    learned, entropy, _ = each.evaluate_actions(obs, action)
    np.testing.assert_allclose(learned.detach(), parts, atol=1e-5)
    torch.testing.assert_close(entropy.sum(1), whole.evaluate_actions(obs, action)[1])
