"""One's own losses and advantages are tried before a run begins: what is wrong is said of them, by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_lab.algorithms import PolicyLoss, advantage, decoupled_policy_loss, gae, loss, policy_loss
from rlinf_lab.algorithms.trial import tried_advantage_of_groups, tried_advantage_of_steps, tried_loss
from rlinf_lab.errors import ConfigError

ZERO = torch.zeros(())
TOKENS: dict[str, Any] = {"weight": None, "aggregation": "token_mean", "constant": 1.0, "denominator": 1.0}
LOSSES: list[tuple[Callable[..., Any], str]] = [
    (lambda log_prob, old, adv: ZERO, "raises TypeError: .*unexpected keyword argument.* Next: f\\(log_prob"),
    (lambda log_prob, old, adv, mask=None, **_: -(log_prob * adv).mean(), "gives tensor\\(.*PolicyLoss\\(total, kl, clip_fraction, reference_kl\\)"),
    (lambda log_prob, old, adv, mask=None, **_: PolicyLoss(-(log_prob * adv).mean(), 0.0, ZERO, ZERO), "gives kl=0.0; "),
    (lambda log_prob, old, adv, mask=None, **_: PolicyLoss(-log_prob * adv, ZERO, ZERO, ZERO), "gives total=tensor"),
    (lambda log_prob, old, adv, mask=None, **_: PolicyLoss(-(log_prob.detach() * adv).mean(), ZERO, ZERO, ZERO), "gives a total without a gradient"),
]


@pytest.mark.parametrize("options", [{}, TOKENS], ids=["steps", "tokens"])
@pytest.mark.parametrize(("function", "why"), LOSSES)
def test_a_loss_that_cannot_teach_is_refused(function: Callable[..., Any], why: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^loss '<lambda>', tried on a few numbers, {why}"):
        tried_loss(function, **options)


@pytest.mark.parametrize("options", [{}, TOKENS], ids=["steps", "tokens"])
def test_a_loss_of_the_usual_form_passes_as_it_is(options: dict[str, Any]) -> None:
    def mine(log_prob: Any, old: Any, adv: Any, mask: Any = None, **more: Any) -> PolicyLoss:
        return policy_loss(log_prob, old, adv, mask, **more)

    assert tried_loss(mine, **options).function is mine


def test_a_loss_around_the_weights_before_the_update_is_of_environments() -> None:
    """Updates of tokens do not compute what it takes, and have a setting for the same."""
    def mine(log_prob: Any, old: Any, adv: Any, mask: Any = None, *, proximal_log_prob: Any, **more: Any) -> PolicyLoss:
        return decoupled_policy_loss(log_prob, old, adv, mask, proximal_log_prob=proximal_log_prob, **more)

    assert tried_loss("decoupled_ppo").name == "decoupled_ppo" and tried_loss(mine).function is mine
    for loss_of_policy in ("decoupled_ppo", mine):
        with pytest.raises(ConfigError, match="takes proximal_log_prob.*Next: loss='ppo' with correction='decoupled'"):
            tried_loss(loss_of_policy, **TOKENS)


def test_advantages_give_a_number_for_each() -> None:
    with pytest.raises(ConfigError, match=r"of \(3, 2\) for rewards \(3, 2\); \(advantage, target\) of that shape"):
        tried_advantage_of_steps(lambda reward, *rest, gamma, lam: reward)
    with pytest.raises(ConfigError, match="raises TypeError.*Next: f\\(reward_TN"):
        tried_advantage_of_steps(lambda reward: reward)
    with pytest.raises(ConfigError, match=r"gives \(2,\) for rewards \(2, 16\)"):
        tried_advantage_of_groups(lambda reward: reward.mean(1), 16)
    assert tried_advantage_of_steps(lambda *arrays, gamma, lam: gae(*arrays, gamma=gamma, lam=lam)).of == "steps"
    assert tried_advantage_of_groups(lambda reward: reward - np.median(reward, 1, keepdims=True), 3).of == "group"


def test_who_takes_a_name_of_ours_is_told() -> None:
    ours = loss.get("reinforce").function
    try:
        with pytest.warns(UserWarning, match="loss 'reinforce' of rlinf_lab is replaced by yours"):
            loss("reinforce")(lambda *given: None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss("reinforce")(ours)
            advantage("of a test")(lambda reward: reward)
            advantage("of a test")(lambda reward: reward + 1)  # as running a cell again does
    finally:
        loss("reinforce")(ours)
        advantage._entries.pop("of a test", None)
