"""The policy worker by hand: batching, slots, noise by environment, weights."""

from __future__ import annotations

from functools import partial

import numpy as np
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.policies import make_policy
from rlinf_lab.records import Observation
from rlinf_lab.workers import PolicyWorker
from rlinf_lab.workers.seeds import RANGE, ROOM, Purpose, environment_seed, stream
from rlinf_lab.workflow.worker import Collected, Scripted

SPACES = Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,))
MAKE = partial(make_policy, *SPACES, log_std_init=-1.0, seed=1)
OBS = np.random.default_rng(0).normal(size=(4, 3))


def worker(seed=5):
    made = PolicyWorker(MAKE, seed=seed)
    made.setup()
    return made


def act(policy, tokens, chunk=None, **kwargs):
    out = Collected()
    policy.act(Scripted(tokens, chunk), out, **kwargs)
    return out


def tokens(groups, step=0):
    size = 4 // groups
    return [Observation(k, k * size, step, OBS[k * size : (k + 1) * size]) for k in range(groups)]


def test_each_token_is_answered_under_its_slot():
    answers = act(worker(), tokens(2))
    assert answers.keys == [0, 1] and [a.slot for a in answers] == [0, 1]
    assert answers[0].action_N.shape == (2, 2) and answers[0].log_prob_N.shape == (2,) and answers[0].policy_version == 0


def test_exploration_does_not_depend_on_grouping_batching_or_order():
    whole = act(worker(), tokens(1))[0]
    for chunk, order in ((1, 1), (2, 1), (4, 1), (1, -1), (4, -1)):
        answers = sorted(act(worker(), tokens(4)[::order], chunk), key=lambda a: a.slot)
        np.testing.assert_allclose(np.concatenate([a.action_N for a in answers]), whole.action_N, atol=1e-6)
        np.testing.assert_allclose(np.concatenate([a.log_prob_N for a in answers]), whole.log_prob_N, atol=1e-6)
    assert (act(worker(seed=6), tokens(1))[0].action_N != whole.action_N).all()


def test_noise_moves_on_except_in_greedy_calls():
    policy = worker()
    greedy = act(policy, tokens(1), deterministic=True)[0]
    np.testing.assert_array_equal(greedy.action_N, act(policy, tokens(1), deterministic=True)[0].action_N)
    first, second = (act(policy, tokens(1, step))[0] for step in range(2))
    assert (first.action_N != second.action_N).all()
    np.testing.assert_array_equal(first.action_N, act(worker(), tokens(1))[0].action_N)


def test_new_weights_carry_their_version():
    policy, other = worker(), make_policy(*SPACES, seed=9)
    other.version = 4
    policy.load_weights(other.weights())
    answer = act(policy, tokens(1), deterministic=True)[0]
    assert answer.policy_version == 4
    np.testing.assert_array_equal(answer.action_N, other.act(OBS, None)[0])


def test_switching_out_and_in_changes_nothing():
    policy = worker()
    before = act(policy, tokens(1), deterministic=True)[0].action_N
    policy.offload()
    policy.onload()
    np.testing.assert_array_equal(act(policy, tokens(1), deterministic=True)[0].action_N, before)


def test_ranks_that_share_a_queue_explore_differently():
    """Two unfused ranks answer the same environments in turn; all their noise is distinct, and is what one rank would have drawn."""
    first, second, alone = worker(), worker(), worker()
    answers = [act(first if step % 2 else second, tokens(1, step), deterministic=False)[0] for step in range(200)]
    greedy = act(alone, tokens(1), deterministic=True)[0].action_N
    noise = np.stack([a.action_N - greedy for a in answers]).reshape(-1, 2)
    assert len(np.unique(noise.round(6), axis=0)) == len(noise) == 800
    expected = [act(alone, tokens(1, step))[0].action_N for step in range(200)]
    np.testing.assert_array_equal([a.action_N for a in answers], expected)
    assert abs(noise.mean() / noise.std()) < 0.1 and abs(np.corrcoef(noise[:-4, 0], noise[4:, 0])[0, 1]) < 0.1


def test_noise_is_not_that_of_an_environment():
    """numpy pads keys with zeros: default_rng(5) and default_rng((5, 0)) are the same generator, an environment's and a policy's."""
    drawn = np.random.default_rng(stream(5, Purpose.EXPLORATION, 0, 0)).random(4)
    others = [np.random.default_rng(k).random(4) for k in (5, (5, 0), environment_seed(5, Purpose.TRAINING, 0), stream(5, Purpose.MINIBATCHES))]
    assert not any(np.array_equal(drawn, o) for o in others)


@given(seed=st.integers(0, 2**40), key=st.integers(0, 2**40))
def test_purposes_never_share_a_seed(seed, key):
    for purpose in (Purpose.TRAINING, Purpose.EVALUATION, Purpose.FILM):
        base = environment_seed(seed, purpose, key)
        assert purpose * RANGE <= base and base + ROOM <= (purpose + 1) * RANGE < 2**31
