"""ACT through lerobot, on a small model of the same architecture made here: make test-lerobot. Its own processors and prediction are the oracle."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies.pretrained import load_act

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))
import lerobot_library

pytestmark = pytest.mark.lerobot
STATE, ACTION = spaces.Box(-np.inf, np.inf, (5,), np.float32), spaces.Box(-1, 1, (3,), np.float32)
SPACE = spaces.Dict({"top": spaces.Box(0, 255, (64, 64, 3), np.uint8), "joints": STATE})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder, observation space, lerobot's policy, its processors)."""
    lerobot_library.imported()
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.act.processor_act import make_act_pre_post_processors

    rng = np.random.default_rng(0)
    inputs = {"observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 64, 64)), "observation.state": PolicyFeature(FeatureType.STATE, (5,))}
    shapes = {"observation.images.top": (3, 1, 1), "observation.state": (5,), "action": (3,)}
    config = ACTConfig(
        input_features=inputs, output_features={"action": PolicyFeature(FeatureType.ACTION, (3,))}, device="cpu", pretrained_backbone_weights=None,
        chunk_size=4, n_action_steps=4, dim_model=32, n_heads=2, dim_feedforward=64, n_encoder_layers=1, n_vae_encoder_layers=1, latent_dim=4,
    )  # fmt: skip
    torch.manual_seed(0)
    policy = ACTPolicy(config).eval()
    stats = {name: {"mean": torch.as_tensor(rng.normal(size=s), dtype=torch.float32), "std": torch.as_tensor(rng.uniform(0.5, 2, s), dtype=torch.float32)}
             for name, s in shapes.items()}  # fmt: skip
    before, after = make_act_pre_post_processors(config, stats)
    folder = tmp_path_factory.mktemp("act")
    for part in (policy, before, after):
        part.save_pretrained(folder)
    return folder, SPACE, policy, (before, after)


def observations(rows):
    rng = np.random.default_rng(1)
    return {"top": rng.integers(0, 256, (rows, 64, 64, 3), dtype=np.uint8), "joints": rng.normal(size=(rows, 5)).astype(np.float32)}


def test_it_acts_as_lerobot_s_does(saved):
    folder, space, policy, (before, after) = saved
    ours = load_act(folder, space, ACTION)
    obs = observations(6)
    action, log_prob = ours.act(obs, None)
    batch = {
        "observation.state": torch.from_numpy(obs["joints"]),
        "observation.images.top": torch.from_numpy(obs["top"]).permute(0, 3, 1, 2).float() / 255,
    }  # fmt: skip
    theirs = after(policy.predict_action_chunk(before(batch)))
    np.testing.assert_allclose(action, theirs.numpy(), rtol=1e-4, atol=1e-5)
    assert action.shape == (6, 4, 3) and log_prob.shape == (6,)
    torch.testing.assert_close(ours.evaluate_actions(obs, action)[0].detach(), torch.from_numpy(log_prob), rtol=1e-4, atol=1e-3)


def test_it_is_cloned_and_its_weights_travel(saved):
    folder, space, *_ = saved
    ours = load_act(folder, space, ACTION)
    obs, wanted = observations(8), np.random.default_rng(2).uniform(-1, 1, (8, 4, 3)).astype(np.float32)
    optimizer = torch.optim.Adam([p for n, p in ours.named_parameters() if n != "head.log_std"], 3e-3)
    losses = []
    for _ in range(30):
        loss = ours.clone_loss(obs, wanted, np.random.default_rng(0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    other = load_act(folder, space, ACTION, seed=1)
    other.load(ours.weights())
    np.testing.assert_array_equal(other.act(obs, None)[0], ours.act(obs, None)[0])


def test_what_does_not_fit_is_named(saved, tmp_path):
    folder, space, *_ = saved
    with pytest.raises(ConfigError, match="there is no config.json in it"):
        load_act(tmp_path, space, ACTION)
    with pytest.raises(ConfigError, match="the observation gives .* and this checkpoint takes"):
        load_act(folder, STATE, ACTION)
    with pytest.raises(ConfigError, match="this checkpoint gives 3 numbers"):
        load_act(folder, space, STATE)
    with pytest.raises(ConfigError, match=r"there are no mean and std of 'observation.images.top'"):
        load_act(folder, space, ACTION, statistics={})
