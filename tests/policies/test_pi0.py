"""π0 from a folder: transformers' own sampling and loss are the oracle, on a small model of the same architecture."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import Flow
from rlinf_lab.policies.pretrained import load_pi0

transformers = pytest.importorskip("transformers")

OBS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (28, 28, 3), np.uint8),
        "joints": spaces.Box(-np.inf, np.inf, (3,)),
        "text": spaces.MultiDiscrete([60] * 5),
        "wrist": spaces.Box(0, 255, (28, 28, 3), np.uint8),
    }
)
ARM = spaces.Box(-1, 1, (4,))
MEAN, STD = np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.array([1, 2, 3, 4], np.float32)
GEMMA = {
    "model_type": "gemma",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": 28,
        "vision_use_head": False,
    }
    words = {**GEMMA, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    config = transformers.PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": words,
            "vision_config": vision,
            "projection_dim": 32,
            "image_token_id": 64,
        },
        dit_config={**GEMMA, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 8},
        chunk_size=4,
        max_state_dim=6,
        max_action_dim=5,
        num_inference_steps=3,
    )
    path = tmp_path_factory.mktemp("pi0")
    model = transformers.PI0ForConditionalGeneration(config)
    with torch.no_grad():
        model.action_out_proj.weight.mul_(20)  # as initialised every velocity is about 0 and proves little
    model.save_pretrained(path)
    return path


@pytest.fixture
def policy(folder):
    loaded = load_pi0(folder, OBS, ARM, action_mean=MEAN, action_std=STD)
    loaded.set_normaliser(np.array([0.5, 0, -0.5]), np.array([2, 1, 1]))
    return loaded


def observed(n=3):
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8) for name in ("camera", "wrist")}
    text = rng.integers(1, 60, (n, 5))
    text[0, 3:] = 0  # padded
    return {**images, "joints": rng.normal(size=(n, 3)).astype(np.float32), "text": text}


def inputs(obs):
    """What transformers' processor hands to the model."""
    n, text = len(obs["text"]), torch.from_numpy(obs["text"])
    pixels = np.stack([obs["camera"], obs["wrist"]], 1).transpose(0, 1, 4, 2, 3) / 127.5 - 1
    state = np.pad((obs["joints"] - [0.5, 0, -0.5]) / [2, 1, 1], ((0, 0), (0, 3)))
    return {
        "input_ids": torch.cat([torch.full((n, 8), 64), text], 1),
        "attention_mask": torch.cat([torch.ones(n, 8, dtype=torch.long), (text != 0).long()], 1),
        "pixel_values": torch.from_numpy(pixels).float(),
        "pixel_attention_mask": torch.ones(n, 2, dtype=torch.bool),
        "state": torch.from_numpy(state).float(),
    }


def test_without_injected_noise_the_chain_ends_where_transformers_does(policy):
    obs = observed()
    noise = policy.draw_noise(np.random.default_rng(1), 3)
    noise[:, 20:] = 0
    chain, _ = policy.act(obs, noise)
    start = torch.from_numpy(noise[:, :20].reshape(3, 4, 5))
    expected = policy.encoder.model.sample_actions(**inputs(obs), noise=start)[..., :4].numpy() * STD + MEAN
    np.testing.assert_allclose(policy.executed(chain), expected, atol=1e-3)
    assert np.abs(expected - (start[..., :4].numpy() * STD + MEAN)).max() > 0.1
    greedy = policy.as_deployable()({key: torch.from_numpy(value) for key, value in obs.items()})
    np.testing.assert_allclose(greedy, policy.executed(policy.act(obs, None)[0]), atol=1e-4)


def test_cloning_has_the_loss_of_transformers(policy):
    obs, rng = observed(), np.random.default_rng(2)
    expert = (MEAN + STD * rng.normal(size=(3, 4, 4))).astype(np.float32)
    noise = torch.from_numpy(policy.draw_clone_noise(rng, 3))
    loss, _, _ = policy(policy._tensors(OBS, obs), torch.from_numpy(expert), noise)
    padded = torch.nn.functional.pad(torch.from_numpy((expert - MEAN) / STD), (0, 1))
    expected = policy.encoder.model(
        **inputs(obs), actions=padded, noise=noise[:, :-1].reshape(3, 4, 5), timestep=1 - noise[:, -1]
    ).loss
    torch.testing.assert_close(loss.mean(), expected, atol=1e-4, rtol=1e-4)
    loss.mean().backward()
    vision = next(p for name, p in policy.named_parameters() if "vision" in name)
    assert vision.grad.abs().sum() > 0  # through keys and values to the images


def test_acting_and_learning_agree_and_weights_travel(policy, folder):
    obs = observed()
    chain, log_prob = policy.act(obs, policy.draw_noise(np.random.default_rng(3), 3))
    learned, entropy, value = policy.evaluate_actions(obs, chain)
    np.testing.assert_allclose(log_prob, learned.detach(), atol=2e-3, rtol=1e-4)
    np.testing.assert_allclose(policy.values(obs), value.detach(), atol=1e-5)
    assert chain.shape == (3, 2, 4, 5) and entropy.shape == (3,)
    other = load_pi0(folder, OBS, ARM, seed=1)
    other.load(policy.weights())
    np.testing.assert_array_equal(other.act(obs, None)[0], policy.act(obs, None)[0])
    np.testing.assert_array_equal(other.executed(chain), policy.executed(chain))


def test_it_is_cloned_through_the_front_door(folder):
    """Its own chunks are padded, what the expert did is not."""
    obs, done = observed(6), np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(np.float32)
    episode = lab.datasets.Episode(obs, done, np.zeros(6, np.float32), terminated=True, truncated=False)
    data = lab.datasets.EpisodeList(lab.datasets.DataSpec(OBS, ARM), [episode])
    options = {"chunk_size": 4, "gradient_steps": 1, "batch_size": 2, "plan": None, "folder": False, "progress": False}
    clone = lab.train("clone", data=data, policy=partial(load_pi0, folder, action_mean=MEAN, action_std=STD), **options).wait()
    assert clone.policy().act({key: leaf[0] for key, leaf in obs.items()}).shape == (4, 4)
    with pytest.raises(ConfigError, match=r"actions of the shape \(4, 4\), and chunk_size=3"):
        lab.train("clone", data=data, policy=partial(load_pi0, folder), **{**options, "chunk_size": 3})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: ("nowhere", OBS, ARM), "no config.json"),
        (lambda f: (f, spaces.Dict({"joints": OBS["joints"]}), ARM), "must have images, numbers and an instruction"),
        (lambda f: (f, spaces.Dict({**OBS.spaces, "joints": spaces.Box(-1, 1, (7,))}), ARM), "7 numbers.*takes 6"),
        (lambda f: (f, spaces.Dict({**OBS.spaces, "wrist": spaces.Box(0, 255, (28, 20, 3), np.uint8)}), ARM), "square"),
        (lambda f: (f, OBS, spaces.Box(-1, 1, (6,))), "gives 5 numbers"),
        (lambda f: (f, OBS, spaces.Discrete(2)), "acts in a Box"),
    ],
)
def test_what_does_not_fit_is_refused(folder, change, said):
    with pytest.raises(ConfigError, match=said):
        load_pi0(*change(folder))


def test_a_folder_without_weights_is_named(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ConfigError, match="no weights"):
        load_pi0(tmp_path, OBS, ARM, flow=Flow(steps=2))
