"""Heads against torch.distributions, against exact shares of their noise, and numpy against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as D

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies.heads import make_head

BOX = spaces.Box(np.array([-2, -1, 0], np.float32), np.array([2, 3, 1], np.float32))
MULTI = spaces.MultiDiscrete([3, 2], start=[-1, 5])


def params(head, rows=64, scale=2.0):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(rows, head.size)).astype(np.float32) * scale)


def acted(head, p, seed=1):
    return head.act(p.numpy(), head.draw_noise(np.random.default_rng(seed), len(p)))


def gaussian(head, p):
    return D.Independent(D.Normal(p, head.log_std.detach().exp()), 1)


def squashed(head, p):
    low, high = torch.from_numpy(BOX.low), torch.from_numpy(BOX.high)
    to_range = D.AffineTransform((low + high) / 2, (high - low) / 2, event_dim=1)
    return D.TransformedDistribution(gaussian(head, p), [D.TanhTransform(cache_size=1), to_range])


CASES = {
    "gaussian": (make_head(BOX), gaussian),
    "squashed": (make_head(BOX, squash=True, log_std_init=-1.0), squashed),
    "discrete": (make_head(spaces.Discrete(4, start=2)), lambda h, p: D.Categorical(logits=p)),
    "multi": (make_head(MULTI), lambda h, p: [D.Categorical(logits=part) for part in p.split([3, 2], 1)]),
    "binary": (make_head(spaces.MultiBinary(5)), lambda h, p: D.Independent(D.Bernoulli(logits=p), 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_density_is_that_of_torch_distributions_and_the_same_in_numpy(name):
    head, oracle = CASES[name]
    p = params(head, scale=1.0)
    action, log_prob = acted(head, p)
    mine = head.log_prob(p, torch.from_numpy(action))
    given = torch.from_numpy(action)
    if name == "multi":
        expected = sum(d.log_prob(given[:, i] - int(MULTI.start[i])) for i, d in enumerate(oracle(head, p)))
    else:
        expected = oracle(head, p).log_prob(given - 2 if name == "discrete" else given.float())
    torch.testing.assert_close(mine, expected, atol=2e-4 if name == "squashed" else 1e-5, rtol=1e-5)
    np.testing.assert_allclose(log_prob, mine.detach(), atol=1e-5, rtol=1e-5)
    assert log_prob.dtype == np.float32


@pytest.mark.parametrize("name", [n for n in CASES if n != "squashed"])
def test_entropy_is_that_of_torch_distributions(name):
    head, oracle = CASES[name]
    p = params(head)
    expected = sum(d.entropy() for d in oracle(head, p)) if name == "multi" else oracle(head, p).entropy()
    torch.testing.assert_close(head.entropy(p), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, -0.5), (1.5, -1.0), (-3.0, 0.3)])
def test_squashed_density_integrates_to_one_and_to_its_entropy(mean, log_std):
    """Integrated over the action itself, which the head's quadrature never sees."""
    head = make_head(spaces.Box(-1, 4, (1,)), squash=True, log_std_init=log_std)
    u = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    action = 1.5 + 2.5 * torch.tanh(u)
    inside = (torch.tanh(u).abs() < 1 - 2.0**-22)[:, None]
    density = head.double().log_prob(torch.full((len(u), 1), mean, dtype=torch.float64), action[:, None]).detach()
    mass = torch.where(inside[:, 0], density.exp(), 0.0)
    assert torch.trapezoid(mass, action).item() == pytest.approx(1.0, abs=2e-3)
    expected = torch.trapezoid(torch.where(mass > 0, -mass * density, 0.0), action)
    assert head.entropy(torch.tensor([[mean]], dtype=torch.float64)).item() == pytest.approx(expected.item(), abs=1e-2)


def test_a_saturated_action_has_the_same_finite_density_for_actor_and_learner():
    head = make_head(BOX, squash=True)
    p = torch.tensor([[30.0, -30.0, 8.0], [4.0, -4.0, 0.0]], requires_grad=True)
    action, log_prob = head.act(p.detach().numpy(), np.full((2, 3), 3.0, np.float32))
    learner = head.log_prob(p, torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, learner.detach(), rtol=1e-5)
    learner.sum().backward()
    assert torch.isfinite(p.grad).all() and all(BOX.contains(a) for a in action)
    assert torch.isfinite(head.entropy(p)).all()


@pytest.mark.parametrize("logits", [[0.3, -1.0, 2.0], [-np.inf, 0.0, 0.0, -np.inf], [80.0, 0.0]])
def test_a_category_gets_exactly_its_share_of_the_noise(logits):
    head, n = make_head(spaces.Discrete(len(logits))), 10_000
    noise = ((np.arange(n) + 0.5) / n).astype(np.float32)[:, None]
    noise[0], noise[-1] = 0.0, np.nextafter(np.float32(1), np.float32(0))  # the ends of what a generator may draw
    action, _ = head.act(np.tile(np.array(logits, np.float32), (n, 1)), noise)
    share = np.bincount(action, minlength=len(logits)) / n
    expected = torch.softmax(torch.tensor(logits), 0).numpy()
    np.testing.assert_allclose(share, expected, atol=2 / n)
    assert (share[expected == 0] == 0).all()


def test_a_bit_gets_exactly_its_share_of_the_noise():
    head, n = make_head(spaces.MultiBinary(2)), 10_000
    noise = np.repeat(((np.arange(n) + 0.5) / n).astype(np.float32)[:, None], 2, 1)
    action, _ = head.act(np.tile(np.array([[1.2, -3.0]], np.float32), (n, 1)), noise)
    np.testing.assert_allclose(action.mean(0), torch.sigmoid(torch.tensor([1.2, -3.0])), atol=2 / n)


def test_a_mixed_head_is_the_sum_of_its_parts():
    space = spaces.Dict({"arm": BOX, "rest": spaces.Tuple([MULTI, spaces.MultiBinary([2, 2])])})
    head, parts = make_head(space), [make_head(s) for s in (BOX, MULTI, spaces.MultiBinary([2, 2]))]
    p = params(head)
    action, log_prob = acted(head, p)
    pieces = p.split([part.size for part in parts], 1)
    leaves = [action["arm"], *action["rest"]]
    tensors = [torch.from_numpy(leaf) for leaf in leaves]
    mine = head.log_prob(p, {"arm": tensors[0], "rest": tuple(tensors[1:])})
    torch.testing.assert_close(mine, sum(h.log_prob(q, a) for h, q, a in zip(parts, pieces, tensors, strict=True)))
    torch.testing.assert_close(head.entropy(p), sum(h.entropy(q) for h, q in zip(parts, pieces, strict=True)))
    np.testing.assert_allclose(log_prob, mine.detach(), rtol=1e-5, atol=1e-5)
    assert all(
        space.contains({"arm": np.clip(a, BOX.low, BOX.high), "rest": (m, b)}) for a, m, b in zip(*leaves, strict=True)
    )


@pytest.mark.parametrize(
    ("space", "squash", "said"),
    [
        (spaces.Dict({"say": spaces.Text(5)}), False, r"action_space\['say'\] is Text.*TransformAction"),
        (spaces.Box(0, 9, (2,), dtype=np.int32), False, "MultiDiscrete"),
        (spaces.Box(-np.inf, 1, (2,)), True, "finite bounds"),
        (spaces.Tuple([]), False, "nothing can be chosen"),
        (spaces.Box(-1, 1, (0,)), False, "nothing can be chosen"),
        ((2,), False, "tuple and no gymnasium space"),
    ],
)
def test_what_no_head_fits_is_refused_by_name(space, squash, said):
    with pytest.raises(ConfigError, match=said):
        make_head(space, squash=squash)
