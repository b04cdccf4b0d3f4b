"""The policy worker by hand: batching, slots, noise by environment, weights."""

from __future__ import annotations

from functools import partial

import numpy as np

from rlinf_lab.policies import GaussianMLP
from rlinf_lab.records import Observation
from rlinf_lab.workers import PolicyWorker
from rlinf_lab.workflow.worker import Collected, Scripted

MAKE = partial(GaussianMLP, 3, 2, log_std=-1.0, seed=1)
OBS = np.random.default_rng(0).normal(size=(4, 3))


def worker(seed=5):
    made = PolicyWorker(MAKE, seed=seed)
    made.setup()
    return made


def act(policy, tokens, chunk=None, **kwargs):
    out = Collected()
    policy.act(Scripted(tokens, chunk), out, **kwargs)
    return out


def tokens(groups):
    size = 4 // groups
    return [Observation(k, k * size, OBS[k * size : (k + 1) * size]) for k in range(groups)]


def test_each_token_is_answered_under_its_slot():
    answers = act(worker(), tokens(2))
    assert answers.keys == [0, 1] and [a.slot for a in answers] == [0, 1]
    assert answers[0].action_NA.shape == (2, 2) and answers[0].log_prob_N.shape == (2,) and answers[0].policy_version == 0


def test_exploration_does_not_depend_on_grouping_batching_or_order():
    whole = act(worker(), tokens(1))[0]
    for chunk, order in ((1, 1), (2, 1), (4, 1), (1, -1), (4, -1)):
        answers = sorted(act(worker(), tokens(4)[::order], chunk), key=lambda a: a.slot)
        np.testing.assert_allclose(np.concatenate([a.action_NA for a in answers]), whole.action_NA, atol=1e-6)
        np.testing.assert_allclose(np.concatenate([a.log_prob_N for a in answers]), whole.log_prob_N, atol=1e-6)
    assert (act(worker(seed=6), tokens(1))[0].action_NA != whole.action_NA).all()


def test_noise_moves_on_except_in_greedy_calls():
    policy = worker()
    greedy = act(policy, tokens(1), deterministic=True)[0]
    np.testing.assert_array_equal(greedy.action_NA, act(policy, tokens(1), deterministic=True)[0].action_NA)
    first, second = (act(policy, tokens(1))[0] for _ in range(2))
    assert (first.action_NA != second.action_NA).all()
    np.testing.assert_array_equal(first.action_NA, act(worker(), tokens(1))[0].action_NA)


def test_new_weights_carry_their_version():
    policy, other = worker(), GaussianMLP(3, 2, seed=9)
    other.version = 4
    policy.load_weights(other.weights())
    answer = act(policy, tokens(1), deterministic=True)[0]
    assert answer.policy_version == 4
    np.testing.assert_array_equal(answer.action_NA, other.act(OBS, None)[0])


def test_switching_out_and_in_changes_nothing():
    policy = worker()
    before = act(policy, tokens(1), deterministic=True)[0].action_NA
    policy.offload()
    policy.onload()
    np.testing.assert_array_equal(act(policy, tokens(1), deterministic=True)[0].action_NA, before)
