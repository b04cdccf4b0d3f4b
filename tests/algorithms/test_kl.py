"""KL estimates against the divergence that they estimate, summed over a distribution; what is done with one."""

from __future__ import annotations

import pytest
import torch

from rlinf_lab.algorithms import (
    adapted_kl_coefficient,
    exceeds_target_kl,
    kl_estimate,
    kl_penalised_returns,
    mismatch,
)
from rlinf_lab.errors import UnknownNameError

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
KL = float((P * (P.log() - Q.log())).sum())


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased(estimator):
    each = kl_estimate(P.log(), Q.log(), estimator)
    assert float((P * each).sum()) == pytest.approx(KL)
    assert estimator == "k1" or (each >= 0).all()


def test_the_gradient_of_k2_is_that_of_the_divergence():
    logits = P.log().requires_grad_()
    log_p = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - Q.log())).sum(), logits, retain_graph=True)
    (got,) = torch.autograd.grad((P * kl_estimate(log_p, Q.log(), "k2")).sum(), logits)
    torch.testing.assert_close(got, exact)
    with pytest.raises(UnknownNameError, match="k3"):
        kl_estimate(P, Q, "k4")


def test_penalties_count_from_their_token_on():
    kl = torch.tensor([[1.0, 2.0, 4.0, 9.0]])
    got = kl_penalised_returns(torch.tensor([10.0]), kl, torch.tensor([[1.0, 1.0, 1.0, 0.0]]), coefficient=0.5)
    assert got.tolist() == [[6.5, 7.0, 8.0, 0.0]]


def test_targets():
    assert not exceeds_target_kl(9.0, None) and not exceeds_target_kl(0.014, 0.01) and exceeds_target_kl(0.016, 0.01)
    assert [adapted_kl_coefficient(1.0, kl, 0.03) for kl in (0.01, 0.03, 0.05)] == [0.5, 1.0, 2.0]


def test_mismatch_is_the_divergence_of_sampler_and_trainer():
    drawn = torch.repeat_interleave(torch.arange(3), (P * 10).round().long())
    told = mismatch(Q.log()[drawn], P.log()[drawn], cap=1.2)
    assert float(told["mismatch_kl"]) == pytest.approx(KL)
    assert float(told["mismatch_max"]) == pytest.approx(float((P.log() - Q.log()).abs().max()))
    assert float(told["mismatch_truncated"]) == pytest.approx(0.3)
