"""Diffusion Policy through lerobot, on a small model of the same architecture made here: make test-lerobot. Its own sampling is the oracle."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies.pretrained import load_diffusion

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))
import lerobot_library

pytestmark = pytest.mark.lerobot
ACTION = spaces.Box(-1, 1, (3,), np.float32)
PICTURE = spaces.Box(0, 255, (32, 32, 3), np.uint8)
SPACE = spaces.Dict({"joints": spaces.Box(-np.inf, np.inf, (2, 5), np.float32), "top_0": PICTURE, "top_1": PICTURE})


def saved(folder, scheduler):
    """(lerobot's policy, its processors)."""
    lerobot_library.imported()
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    rng = np.random.default_rng(0)
    inputs = {"observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 32, 32)), "observation.state": PolicyFeature(FeatureType.STATE, (5,))}
    config = DiffusionConfig(
        input_features=inputs, output_features={"action": PolicyFeature(FeatureType.ACTION, (3,))}, device="cpu", n_obs_steps=2, horizon=8, n_action_steps=4,
        down_dims=(8, 16), n_groups=4, diffusion_step_embed_dim=8, spatial_softmax_num_keypoints=4, num_train_timesteps=20, num_inference_steps=5,
        noise_scheduler_type=scheduler, crop_shape=None,
    )  # fmt: skip
    torch.manual_seed(0)
    policy = DiffusionPolicy(config).eval()
    stats = {}
    for name, shape in {"observation.images.top": (3, 1, 1), "observation.state": (5,), "action": (3,)}.items():
        low = torch.as_tensor(rng.uniform(-2, -1, shape), dtype=torch.float32)
        stats[name] = {"min": low, "max": low + 3, "mean": low + 1, "std": torch.full_like(low, 0.7)}
    before, after = make_diffusion_pre_post_processors(config, stats)
    for part in (policy, before, after):
        part.save_pretrained(folder)
    return policy, (before, after)


def observations(rows):
    rng = np.random.default_rng(1)
    pictures = {f"top_{i}": rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8) for i in (0, 1)}
    return {"joints": rng.normal(size=(rows, 2, 5)).astype(np.float32), **pictures}


def theirs_of(policy, processors, obs, noise):
    before, after = processors
    seen = torch.from_numpy(np.stack([obs["top_0"], obs["top_1"]], 1)).permute(0, 1, 4, 2, 3).float() / 255
    batch = before({"observation.state": torch.from_numpy(obs["joints"]), "observation.images.top": seen})
    with torch.no_grad():
        images = torch.stack([batch["observation.images.top"]], dim=2)
        return after(policy.diffusion.generate_actions({"observation.state": batch["observation.state"], "observation.images": images}, noise=noise)).numpy()


@pytest.mark.parametrize("scheduler", ["DDIM", "DDPM"])
def test_it_acts_as_lerobot_s_does(tmp_path, scheduler, monkeypatch):
    policy, processors = saved(tmp_path, scheduler)
    ours, obs = load_diffusion(tmp_path, SPACE, ACTION), observations(3)
    # Greedy is without noise in between: the scheduler's own is taken away, too.
    monkeypatch.setattr("diffusers.schedulers.scheduling_ddpm.randn_tensor", lambda shape, **_: torch.zeros(shape))
    chain, _ = ours.act(obs, None)
    assert chain.shape == (3, 6, 8, 3)
    np.testing.assert_allclose(ours.executed(chain), theirs_of(policy, processors, obs, torch.zeros(3, 8, 3)), rtol=1e-4, atol=1e-4)
    noise = ours.draw_noise(np.random.default_rng(3), 3)
    noise[:, 24:] = 0
    start = torch.from_numpy(noise[:, :24].reshape(3, 8, 3))
    np.testing.assert_allclose(ours.executed(ours.act(obs, noise)[0]), theirs_of(policy, processors, obs, start), rtol=1e-4, atol=1e-4)


def test_the_chain_s_density_is_that_of_its_steps(tmp_path):
    saved(tmp_path, "DDPM")
    ours, obs = load_diffusion(tmp_path, SPACE, ACTION, std=0.2), observations(4)
    noise = ours.draw_noise(np.random.default_rng(0), 4)
    chain, log_prob = ours.act(obs, noise)
    found, entropy, _ = ours.evaluate_actions(obs, chain)
    torch.testing.assert_close(found.detach(), torch.from_numpy(log_prob), rtol=1e-3, atol=1e-2)
    z = 0.5 * (noise**2).sum(1) - 0.5 * noise.shape[1]  # the entropy is the mean of minus the density: what differs is the noise
    np.testing.assert_allclose(entropy.detach() + torch.from_numpy(z), -log_prob, rtol=1e-4, atol=1e-2)
    found.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for name, p in ours.named_parameters() if "unet" in name)


def test_it_is_cloned_and_its_weights_travel(tmp_path):
    saved(tmp_path, "DDIM")
    ours, obs = load_diffusion(tmp_path, SPACE, ACTION), observations(8)
    wanted = np.random.default_rng(2).uniform(-1, 1, (8, 4, 3)).astype(np.float32)
    optimizer = torch.optim.Adam([p for n, p in ours.named_parameters() if "critic" not in n], 3e-3)
    losses = []
    for _ in range(60):
        loss = ours.clone_loss(obs, wanted, np.random.default_rng(0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    other = load_diffusion(tmp_path, SPACE, ACTION, seed=1)
    other.load(ours.weights())
    np.testing.assert_array_equal(other.act(obs, None)[0], ours.act(obs, None)[0])


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config.json in it"):
        load_diffusion(tmp_path, SPACE, ACTION)
    saved(tmp_path, "DDIM")
    with pytest.raises(ConfigError, match=r"pictures .* and 5 numbers, and this checkpoint, which sees 2 steps, takes .* and 10"):
        load_diffusion(tmp_path, spaces.Dict({"joints": spaces.Box(-1, 1, (5,)), "top": PICTURE}), ACTION)
    with pytest.raises(ConfigError, match=r"this checkpoint gives 3 numbers"):
        load_diffusion(tmp_path, SPACE, spaces.Box(-1, 1, (2,)))
    with pytest.raises(ConfigError, match=r"'observation.state' is normalised by MIN_MAX"):
        load_diffusion(tmp_path, SPACE, ACTION, statistics={})
    with pytest.raises(ConfigError, match=r"std=0"):
        load_diffusion(tmp_path, SPACE, ACTION, std=0)
