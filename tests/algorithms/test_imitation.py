"""Cloning losses where the best policy is known; DAgger's coin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf_lab.algorithms import clone_loss, dagger_beta, dagger_mix, log_prob
from rlinf_lab.errors import ConfigError


def test_maximum_likelihood_is_the_experts_mean_and_deviation():
    action = torch.tensor([[1.0], [3.0], [8.0]], dtype=torch.float64)
    mean, log_std = action.mean(0).requires_grad_(), action.std(0, correction=0).log().requires_grad_()
    loss = clone_loss(log_prob(action, mean.expand(3, 1), log_std))
    for gradient in torch.autograd.grad(loss, [mean, log_std]):
        assert gradient.item() == pytest.approx(0.0, abs=1e-9)


def test_dagger_begins_with_the_expert():
    assert [dagger_beta(i) for i in range(3)] == [1, 0, 0] and dagger_beta(2, decay=0.5) == 0.25
    learner, expert = np.zeros((1000, 2, 3)), np.ones((1000, 2, 3))
    coin = np.arange(1000) / 1000
    assert (dagger_mix(learner, expert, 0.3, coin) == (np.arange(1000) < 300)[:, None, None]).all()
    assert dagger_mix(learner[:, 0, 0], expert[:, 0, 0], 0.3, coin).sum() == 300  # of a choice, without an axis of its own
    with pytest.raises(ConfigError, match="decay=2"):
        dagger_beta(1, decay=2)
