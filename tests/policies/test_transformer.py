"""The chunk transformer: every input counts, both heads agree with themselves, export, and words that change a task."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import Flow, make_chunk_transformer

VOCABULARY, WORDS, CHUNK = 11, 4, 3
OBS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (16, 20, 3), np.uint8),
        "joints": spaces.Box(-np.inf, np.inf, (5,)),
        "instruction": spaces.MultiDiscrete([VOCABULARY] * WORDS),
    }
)
ARM = spaces.Box(-1, 1, (2,))


def made(flow=None, **kwargs):
    policy = make_chunk_transformer(OBS, ARM, chunk=CHUNK, width=16, heads=2, depth=1, flow=flow, **kwargs)
    if flow is None:
        with torch.no_grad():
            policy.policy.last.weight.mul_(100)
    return policy


def observed(n=4, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "camera": rng.integers(0, 256, (n, 16, 20, 3), dtype=np.uint8),
        "joints": rng.normal(size=(n, 5)).astype(np.float32),
        "instruction": rng.integers(0, VOCABULARY, (n, WORDS)),
    }


@pytest.mark.parametrize("flow", [None, Flow(steps=3)])
@pytest.mark.parametrize("per_action", [False, True])
def test_acting_and_learning_agree(flow, per_action):
    policy, obs = made(flow, per_action=per_action), observed()
    for noise in (policy.draw_noise(np.random.default_rng(1), 4), None):
        action, log_prob = policy.act(obs, noise)
        learned, entropy, value = policy.evaluate_actions(obs, action)
        np.testing.assert_allclose(log_prob, learned.detach(), atol=1e-4, rtol=1e-5)
        assert policy.executed(action).shape == (4, CHUNK, 2) and action.dtype == np.float32
    assert log_prob.shape == entropy.shape == ((4, CHUNK) if per_action else (4,)) and value.shape == (4,)
    np.testing.assert_allclose(policy.values(obs), value.detach(), atol=1e-5)
    (learned.sum() + entropy.sum() + value.sum()).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in policy.parameters())


@pytest.mark.parametrize("flow", [None, Flow(steps=3)])
def test_every_input_counts_and_so_does_the_order_of_words(flow):
    policy, obs = made(flow), observed()
    obs["instruction"][0] = [1, 2, 3, 4]
    changed = [
        {**obs, "camera": np.where(np.arange(16)[:, None, None] < 4, 255 - obs["camera"], obs["camera"])},
        {**obs, "joints": obs["joints"] + 0.5},
        {**obs, "instruction": obs["instruction"][:, ::-1].copy()},
    ]
    greedy, value = policy.executed(policy.act(obs, None)[0]), policy.values(obs)
    for other in changed:
        moved = np.abs(policy.executed(policy.act(other, None)[0]) - greedy)[0]
        assert (moved > 1e-5).all() and abs(policy.values(other) - value)[0] > 1e-6


def test_rows_do_not_see_each_other_and_words_may_start_anywhere():
    policy, obs = made(), observed()
    one, _ = policy.act({k: v[2:3] for k, v in obs.items()}, None)
    np.testing.assert_allclose(policy.act(obs, None)[0][2:3], one, atol=1e-5)
    shifted = make_chunk_transformer(
        spaces.Dict(
            {
                "instruction": spaces.MultiDiscrete([VOCABULARY] * WORDS, start=[7] * WORDS),
                "mode": spaces.MultiDiscrete([2, 3]),
            }
        ),
        ARM,
        chunk=1,
        width=8,
        heads=1,
        depth=1,
    )
    assert [part.embedding.num_embeddings for part in shifted.encoder.leaves] == [VOCABULARY, 5]
    last = {"instruction": np.full((1, WORDS), 7 + VOCABULARY - 1), "mode": np.array([[1, 2]])}
    assert np.isfinite(shifted.act(last, None)[0]).all()


def test_construction_depends_on_the_seed_only():
    torch.manual_seed(1)
    a, state = made(seed=3).weights().arrays, torch.get_rng_state()
    b, c = made(seed=3).weights().arrays, made(seed=4).weights().arrays
    assert torch.equal(state, torch.get_rng_state()) and all((a[k] == b[k]).all() for k in a)
    assert (a["encoder.position"] != c["encoder.position"]).any()


@pytest.mark.long
def test_an_exported_transformer_gives_the_greedy_chunk():
    policy, obs = made(Flow(steps=2)), observed()
    tensors = {key: torch.from_numpy(value) for key, value in obs.items()}
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = ({key: {0: batch} for key in tensors},)
    example = {key: value[:2] for key, value in tensors.items()}
    exported = torch.export.export(policy.as_deployable(), (example,), dynamic_shapes=shapes).module()
    np.testing.assert_allclose(exported(tensors), policy.executed(policy.act(obs, None)[0]), atol=1e-5)


def test_cloning_learns_to_do_what_the_words_say_about_the_image():
    """The second word is the direction, the side of the bright spot says how far: neither alone tells the action."""
    space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "words": spaces.MultiDiscrete([4, 4])})
    policy = make_chunk_transformer(
        space, spaces.Box(-1, 1, (1,)), chunk=2, width=32, heads=2, depth=1, flow=Flow(steps=4), seed=1
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    rng = np.random.default_rng(0)
    for _ in range(260):
        obs, expert = spots(rng, 64)
        loss = policy.clone_loss(obs, expert, rng).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    obs, expert = spots(rng, 200)
    error = np.abs(policy.executed(policy.act(obs, None)[0]) - expert)
    assert (error < 0.2).mean() > 0.95


def spots(rng, n):
    right, back = rng.integers(0, 2, n), rng.integers(0, 2, n)
    camera = rng.integers(0, 60, (n, 8, 8, 1), dtype=np.uint8)
    camera[np.arange(n), rng.integers(1, 7, n), 1 + 5 * right] = 255
    way = ((1 - 2 * back) * np.where(right, 0.9, 0.3)).astype(np.float32)
    words = np.stack([np.full(n, 2), back], 1)
    return {"camera": camera, "words": words}, way[:, None, None] * np.array([[0.5], [1.0]], np.float32)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"chunk": 0}, "chunk=0"),
        ({"width": 30, "heads": 4}, "multiple of the heads"),
        ({"action_space": spaces.Discrete(3)}, "chunks are made of actions in a Box"),
        ({"observation_space": spaces.Dict({"say": spaces.Text(9)})}, r"observation_space\['say'\] is Text"),
    ],
)
def test_what_cannot_work_is_refused(named, said):
    with pytest.raises(ConfigError, match=said):
        make_chunk_transformer(**{"observation_space": OBS, "action_space": ARM, **named})
