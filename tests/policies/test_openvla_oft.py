"""OpenVLA-OFT from a folder made here in the form of a released one: timm's arithmetic and the original's order of tokens, written out, are the oracle."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from safetensors.torch import load_file, save_file

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, MissingDependencyError
from rlinf_lab.policies.pretrained import load_openvla_oft, prismatic
from rlinf_lab.vecenv import environment
from rlinf_lab.vecenv.stepping import step_chunk

transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")

SIDE, K, A, STATE, H, VOCABULARY, PAD = 28, 3, 2, 5, 32, 70, 64
OBS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
        "joints": spaces.Box(-np.inf, np.inf, (STATE,), np.float32),
        "text": spaces.MultiDiscrete([VOCABULARY] * 6),
        "wrist": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
    }
)
ARM = spaces.Box(-1, 1, (A,), np.float32)
TOWERS = {"featurizer": ("vit_small_patch14_reg4_dinov2.lvd142m", 6, 24, 4), "fused_featurizer": ("vit_base_patch14_siglip_224", 12, 48, 0)}
SCALES = [{"mean": [0.48, 0.46, 0.41], "std": [0.23, 0.22, 0.22]}, {"mean": [0.5] * 3, "std": [0.5] * 3}]
LLAMA = {"hidden_size": H, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY, "pad_token_id": PAD}
RANGES = {
    "proprio": {"q01": [-1.0, -2.0, 0.0, 0.0, -0.5], "q99": [1.0, 2.0, 0.5, 1.0, 0.5]},
    "action": {"q01": [-0.4, 0.0], "q99": [0.8, 1.0], "min": [-1.0, 0.0], "max": [1.0, 1.0], "mask": [True, False]},
}


def tower_weights(width, registers, blocks=3):
    """As timm names them, of a vision transformer with ``blocks`` blocks."""
    found = {"patch_embed.proj.weight": (width, 3, 14, 14), "patch_embed.proj.bias": (width,), "pos_embed": (1, 4, width)}
    found |= {"norm.weight": (width,), "norm.bias": (width,)}
    found |= {"cls_token": (1, 1, width), "reg_token": (1, registers, width)} if registers else {"attn_pool.latent": (1, 1, width)}
    for i in range(blocks):
        for name, shape in {"attn.qkv": (3 * width, width), "attn.proj": (width, width), "mlp.fc1": (2 * width, width), "mlp.fc2": (width, 2 * width)}.items():
            found |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            found |= {f"blocks.{i}.{name}.weight": (width,), f"blocks.{i}.{name}.bias": (width,)}
        if registers:
            found |= {f"blocks.{i}.{name}.scale_factor": (width,) for name in ("ls1", "ls2")}
    return found


def drawn(shapes, rng):
    return {name: torch.as_tensor(rng.normal(0, 0.3, shape) + (len(shape) == 1), dtype=torch.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def weights():
    """Of the network, of the head and of the projector of the state."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    net = {}
    for name, (_, _, width, registers) in TOWERS.items():
        net |= {f"vision_backbone.{name}.{key}": value for key, value in drawn(tower_weights(width, registers), rng).items()}
    sizes = [72, 288, H, H]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes), start=1):
        net |= drawn({f"projector.fc{i}.weight": (outputs, inputs), f"projector.fc{i}.bias": (outputs,)}, rng)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, initializer_range=0.3))
    net |= {f"language_model.{key}": value.clone() for key, value in llama.state_dict().items()}
    head = {"layer_norm1.weight": (A * H,), "layer_norm1.bias": (A * H,), "fc1.weight": (H, A * H), "fc1.bias": (H,), "layer_norm2.weight": (H,)}
    head |= {"layer_norm2.bias": (H,), "fc2.weight": (A, H), "fc2.bias": (A,)}
    for i in (0, 1):
        head |= {f"mlp_resnet_blocks.{i}.ffn.{name}": shape for name, shape in {"0.weight": (H,), "0.bias": (H,), "1.weight": (H, H), "1.bias": (H,)}.items()}
    state = {"fc1.weight": (H, STATE), "fc1.bias": (H,), "fc2.weight": (H, H), "fc2.bias": (H,)}
    return net, drawn(head, rng), drawn(state, rng)


@pytest.fixture(scope="module")
def folder(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("oft")
    net, head, state = weights
    names, half = sorted(net), len(net) // 2
    parts = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, inside in parts.items():
        save_file({name: net[name].contiguous() for name in inside}, path / file)
    written = {
        "model.safetensors.index.json": {"weight_map": {name: file for file, inside in parts.items() for name in inside}},
        "config.json": {
            "model_type": "openvla", "timm_model_ids": [tower[0] for tower in TOWERS.values()], "image_sizes": [SIDE, SIDE],
            "timm_override_act_layers": [None, None], "text_config": {"model_type": "llama", **LLAMA}, "pad_token_id": PAD,
        },
        "preprocessor_config.json": {"tvf_normalize_params": SCALES},
        "dataset_statistics.json": {"libero_spatial_no_noops": RANGES},
    }  # fmt: skip
    for file, content in written.items():
        (path / file).write_text(json.dumps(content))
    known = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "▁", "lift", "cube?", "something", "take", "In:"])}
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    letters.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    letters.save(str(path / "tokenizer.json"))
    torch.save({f"module.model.{key}": value for key, value in head.items()}, path / "action_head--150000_checkpoint.pt")
    torch.save({f"module.{key}": value for key, value in state.items()}, path / "proprio_projector--150000_checkpoint.pt")
    return path


def changed(folder, to, **files):
    """A copy of the folder with other contents of some files; None deletes one."""
    shutil.copytree(folder, to)
    for name, content in files.items():
        place = next(to.glob(f"{name}*"))
        if content is None:
            place.unlink()
        else:
            place.write_text(json.dumps({**json.loads(place.read_text()), **content}))
    return to


def observed(n=4):
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8) for name in ("camera", "wrist")}
    text = np.concatenate([np.ones((n, 1), int), rng.integers(3, 60, (n, 5))], axis=1)
    text[0, 3:] = text[2, 5:] = PAD
    return {**images, "joints": rng.normal(size=(n, STATE)).astype(np.float32), "text": text}


# --- the oracle: one observation at a time ------------------------------------------------------------------
def timm_patches(net, name, x):
    """A vision transformer as timm computes it, up to its last block but one."""
    _, heads, width, registers = TOWERS[name]
    w = {key.removeprefix(f"vision_backbone.{name}."): value for key, value in net.items() if key.startswith(f"vision_backbone.{name}.")}
    x = F.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=14).flatten(2).transpose(1, 2) + w["pos_embed"]
    if registers:
        x = torch.cat([w["cls_token"], w["reg_token"], x], dim=1)
    for i in (0, 1):
        b = {key.removeprefix(f"blocks.{i}."): value for key, value in w.items() if key.startswith(f"blocks.{i}.")}
        y = F.layer_norm(x, (width,), b["norm1.weight"], b["norm1.bias"], 1e-6)
        q, k, v = (y @ b["attn.qkv.weight"].T + b["attn.qkv.bias"]).reshape(1, -1, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-1, -2) / (width // heads) ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + (y @ b["attn.proj.weight"].T + b["attn.proj.bias"]) * b.get("ls1.scale_factor", 1.0)
        y = F.layer_norm(x, (width,), b["norm2.weight"], b["norm2.bias"], 1e-6)
        y = F.gelu(y @ b["mlp.fc1.weight"].T + b["mlp.fc1.bias"]) @ b["mlp.fc2.weight"].T + b["mlp.fc2.bias"]
        x = x + y * b.get("ls2.scale_factor", 1.0)
    return x[:, 1 + registers :] if registers else x


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def cropped(image):
    """The middle nine tenths of an image's area, as TensorFlow's crop_and_resize takes it, in steps of 1/255."""
    edge = (1 - 0.9**0.5) / 2
    at = edge * (SIDE - 1) + np.arange(SIDE) * (1 - 2 * edge)
    low = np.floor(at).astype(int)
    high, part = np.minimum(low + 1, SIDE - 1), (at - low)
    x = image.astype(np.float64) / 255
    x = x[low] * (1 - part)[:, None, None] + x[high] * part[:, None, None]
    x = x[:, low] * (1 - part)[None, :, None] + x[:, high] * part[None, :, None]
    return np.floor(x * 255.5) / 255


def original(weights, obs, row, crop):
    """The normalised chunk (K, A) of one observation."""
    net, head, state = weights
    seen = []
    for name in ("camera", "wrist"):
        image = cropped(obs[name][row]) if crop else obs[name][row] / 255.0
        both = []
        for tower, scale in zip(TOWERS, SCALES, strict=True):
            x = (torch.as_tensor(image, dtype=torch.float32) - torch.tensor(scale["mean"])) / torch.tensor(scale["std"])
            both.append(timm_patches(net, tower, x.permute(2, 0, 1)[None]))
        x = linear(net, "projector.fc1", torch.cat(both, dim=2))
        seen.append(linear(net, "projector.fc3", F.gelu(linear(net, "projector.fc2", F.gelu(x)))))
    low, high = (torch.tensor(RANGES["proprio"][key]) for key in ("q01", "q99"))
    joints = (2 * (torch.from_numpy(obs["joints"][row]) - low) / (high - low + 1e-8) - 1).clamp(-1, 1)
    seen.append(linear(state, "fc2", F.gelu(linear(state, "fc1", joints)))[None, None])
    words = torch.from_numpy(obs["text"][row][obs["text"][row] != PAD])
    embed = net["language_model.model.embed_tokens.weight"]
    rest = [embed[words[:1]][None], *seen, embed[words[1:]][None], torch.zeros(1, K * A, H), embed[2][None, None]]
    sequence = torch.cat(rest, dim=1)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, attn_implementation="eager"))
    llama.load_state_dict({key.removeprefix("language_model."): value for key, value in net.items() if key.startswith("language_model.")})
    nothing_hidden = torch.zeros(1, 1, sequence.shape[1], sequence.shape[1])
    hidden = llama(inputs_embeds=sequence, attention_mask=nothing_hidden, output_hidden_states=True).hidden_states[-1]
    patches, prompt = sum(x.shape[1] for x in seen), len(words) - 1
    x = hidden[:, patches + prompt : patches + prompt + K * A].reshape(K, A * H)
    x = linear(head, "fc1", F.layer_norm(x, (A * H,), head["layer_norm1.weight"], head["layer_norm1.bias"])).relu()
    for i in (0, 1):
        name = f"mlp_resnet_blocks.{i}.ffn"
        x = x + linear(head, f"{name}.1", F.layer_norm(x, (H,), head[f"{name}.0.weight"], head[f"{name}.0.bias"])).relu()
    return linear(head, "fc2", F.layer_norm(x, (H,), head["layer_norm2.weight"], head["layer_norm2.bias"])).detach().numpy()


def in_data(normal):
    """The chunk in the units of the data: the gripper is not scaled."""
    return np.stack([(normal[..., 0] + 1) / 2 * 1.2 - 0.4, normal[..., 1]], axis=-1)


@pytest.mark.parametrize("crop", [True, False])
def test_it_acts_as_the_original_does(folder, weights, crop):
    policy, obs = load_openvla_oft(folder, OBS, ARM, chunk=K, center_crop=crop), observed()
    expected = np.stack([original(weights, obs, row, crop) for row in range(4)])
    chunk, log_prob = policy.act(obs, None)
    np.testing.assert_allclose(chunk, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(policy.executed(chunk), in_data(expected), rtol=2e-3, atol=2e-3)
    assert np.ptp(expected, axis=0).min() > 1e-2 and policy.executed(chunk).shape == (4, K, A) and log_prob.shape == (4,)
    greedy = policy.as_deployable()({key: torch.from_numpy(value) for key, value in obs.items()})
    np.testing.assert_allclose(greedy, policy.executed(chunk), atol=1e-4)


def test_cloning_is_l1_regression_and_reaches_every_part(folder, weights):
    policy, obs = load_openvla_oft(folder, OBS, ARM, chunk=K), observed()
    expert = np.random.default_rng(2).uniform(-0.6, 1.0, (4, K, A)).astype(np.float32)
    wanted = np.stack([np.clip((expert[..., 0] + 0.4) / 1.2 * 2 - 1, -1, 1), expert[..., 1]], axis=-1)
    expected = np.abs(np.stack([original(weights, obs, row, True) for row in range(4)]) - wanted).mean((1, 2))
    before = policy.clone_loss(obs, expert, np.random.default_rng(0))
    np.testing.assert_allclose(before.detach(), expected, rtol=2e-3, atol=2e-3)
    before.mean().backward()
    still = {name for name, p in policy.named_parameters() if p.requires_grad and not p.grad.abs().sum()}  # None would be an error: DDP waits for it
    assert {name for name in still if not name.startswith("critic.")} == {"head.log_std"}
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    for _ in range(15):
        optimizer.zero_grad()
        loss = policy.clone_loss(obs, expert, np.random.default_rng(0)).mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5 * float(before.detach().mean())
    other = load_openvla_oft(folder, OBS, ARM, chunk=K, seed=1)
    other.load(policy.weights())
    np.testing.assert_array_equal(other.act(obs, None)[0], policy.act(obs, None)[0])


def test_acting_and_learning_agree_and_the_value_moves_itself_only(folder):
    policy, obs = load_openvla_oft(folder, OBS, ARM, chunk=K), observed()
    chunk, log_prob = policy.act(obs, policy.draw_noise(np.random.default_rng(3), 4))
    learned, entropy, value = policy.evaluate_actions(obs, chunk)
    np.testing.assert_allclose(log_prob, learned.detach(), atol=2e-3, rtol=1e-3)
    np.testing.assert_allclose(policy.values(obs), value.detach(), atol=1e-4)
    assert entropy.shape == (4,)
    value.sum().backward()
    assert all(not p.grad.abs().sum() for name, p in policy.named_parameters() if p.grad is not None and not name.startswith("critic."))


SEEN = spaces.Dict({key: part for key, part in OBS.spaces.items() if key != "text"})


class Arm(gymnasium.Env):
    """Shows noise; the reward is the first number of the action."""

    observation_space, action_space = SEEN, ARM

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def seen(self):
        images = {name: self.np_random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) for name in ("camera", "wrist")}
        return {**images, "joints": self.np_random.normal(size=STATE).astype(np.float32)}

    def step(self, action):
        self.t += 1
        return self.seen(), float(action[0]), False, self.t == 2 * K, {}


def test_its_chunks_go_through_the_socket(folder):
    """Instruction as text, half precision, a chunk for each environment."""
    policy = load_openvla_oft(folder, SEEN, ARM, chunk=K, instruction="Lift the Cube", dtype=torch.bfloat16)
    env = environment(Arm)(3)
    obs = env.reset(seed=0)
    action, _ = policy.act(obs, policy.draw_noise(np.random.default_rng(0), 3))
    chunk = step_chunk(env, policy.executed(action))
    np.testing.assert_array_equal(chunk.steps_N, K)
    np.testing.assert_allclose(chunk.reward_NK, np.clip(policy.executed(action)[..., 0], -1, 1), rtol=1e-5)
    other = load_openvla_oft(folder, SEEN, ARM, chunk=K, instruction="something else", dtype=torch.bfloat16)
    other.load(policy.weights())
    assert np.abs(other.act(obs, None)[0] - policy.act(obs, None)[0]).max() > 1e-3  # the words are heard
    ids = np.tile(policy.encoder.words.numpy(), (3, 1))
    told = spaces.Dict({**SEEN.spaces, "text": spaces.MultiDiscrete([VOCABULARY] * ids.shape[1])})
    by_ids = load_openvla_oft(folder, told, ARM, chunk=K, dtype=torch.bfloat16)
    np.testing.assert_array_equal(by_ids.act({**obs, "text": ids}, None)[0], policy.act(obs, None)[0])


def test_it_is_cloned_and_improved_through_the_front_door(folder):
    data = lab.collect(Arm, lambda obs: np.tanh(obs["joints"][..., :A]), episodes=2, seed=0)
    make = partial(load_openvla_oft, folder, chunk=K, instruction="lift the cube")
    options = {"chunk_size": K, "batch_size": 4, "plan": None, "folder": False, "progress": False}
    clone = lab.train("clone", Arm, data=data, policy=make, gradient_steps=2, **options).wait()
    ppo = lab.train("ppo", Arm, policy=clone, num_envs=2, n_steps=2 * K, n_epochs=1, iterations=2, **options).wait()
    start, cloned, improved = (module.weights().arrays["encoder.head.fc1.weight"] for module in (make(SEEN, ARM), clone.policy().module, ppo.policy().module))
    assert np.abs(cloned - start).max() > 0 and np.abs(improved - cloned).max() > 0
    assert ppo.policy().act({key: leaf[0] for key, leaf in data[0].obs_T.items()}).shape == (K, A)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config": None}, "there is no config.json in it"),
        ({"preprocessor_config": None}, "there is no preprocessor_config.json"),
        ({"dataset_statistics": None}, "there is no dataset_statistics.json"),
        ({"action_head": None}, "there is no action_head--"),
        ({"proprio_projector": None}, "a state of 5 numbers, and there is no proprio_projector--"),
        ({"model-00002": None}, "no model-00002-of-00002.safetensors in it, which model.safetensors.index.json names"),
        ({"config": {"timm_model_ids": ["vit_large_patch14_clip_336.openai"] * 2}}, "DINOv2 with registers and SigLIP"),
        ({"config": {"text_config": {"model_type": "mistral"}}}, "Llama is read here"),
        ({"config": {"text_config": {"model_type": "llama", **LLAMA, "num_hidden_layers": 3}}}, "language_model.model. do not fit config.json, such as layers.2"),
        ({"config": {"text_config": {"model_type": "llama", **LLAMA, "intermediate_size": 64}}}, "weights at language_model.model. do not fit config.json"),
        ({"config": {"text_config": ["llama"]}}, "Llama is read here"),
        ({"config": {"text_config": {"model_type": "llama", **LLAMA, "hidden_size": "a"}}}, "text_config of config.json .* cannot be used"),
        ({"config": {"text_config": {"model_type": "llama", **LLAMA, "hidden_act": "none"}}}, "text_config of config.json .* cannot be used"),
        ({"config": {"pad_token_id": None}}, "pad_token_id of config.json is None"),
        ({"config": {"timm_override_act_layers": [[], []]}}, "of config.json, .* cannot be used: TypeError"),
        ({"model.safetensors.index": {"weight_map": ["a"]}}, r"weight_map of model.safetensors.index.json is \['a'\]"),
        ({"preprocessor_config": {"tvf_normalize_params": [{"mean": [0.5] * 3, "std": [0.5, 0, 0.5]}] * 2}}, "three std greater than 0 are needed"),
        ({"dataset_statistics": {"another": RANGES}}, r"\['another', 'libero_spatial_no_noops'\]. Next: data="),
        ({"dataset_statistics": {"libero_spatial_no_noops": {"proprio": RANGES["proprio"], "action": {"q01": [0], "q99": [1]}}}}, "2 ranges are needed"),
    ],
)  # fmt: skip
def test_a_folder_that_lacks_something_is_refused(folder, tmp_path, files, said):
    with pytest.raises(ConfigError, match=said):
        load_openvla_oft(changed(folder, tmp_path / "copy", **files), OBS, ARM, chunk=K)


def put(folder, **tensors):
    """Other tensors in the files of that folder; None takes one out."""
    for file in [*folder.glob("*.safetensors"), *folder.glob("action_head*")]:
        old = load_file(file) if file.suffix == ".safetensors" else torch.load(file)
        new = {name: tensors.get(name, tensor) for name, tensor in old.items()}
        save = save_file if file.suffix == ".safetensors" else torch.save
        save({name: tensor for name, tensor in new.items() if tensor is not None}, file)


BLOCK = "vision_backbone.featurizer.blocks.2."
DROPPED = {name.replace("blocks.0.", BLOCK): None for name in tower_weights(24, 4, 1) if name.startswith("blocks.0.")}


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"projector.fc1.weight": torch.tensor(1.0)}, r"weights at projector.fc1 have the shapes \(\)"),
        ({"projector.fc2.weight": torch.ones(H, 287)}, r"weights at projector. go .* and 72 → 32 is needed"),
        ({"vision_backbone.featurizer.patch_embed.proj.weight": torch.ones(24)}, "the weights at vision_backbone.featurizer. cannot be used"),
        ({"language_model.model.norm.weight": torch.full((H,), torch.nan)}, "language_model.model.norm.weight holds numbers that are not finite"),
        ({"module.model.fc1.weight": torch.tensor(1.0)}, "which is no L1 head"),
        ({"module.model.fc2.bias": torch.full((A,), torch.inf)}, "action_head--150000_checkpoint.pt: module.model.fc2.bias holds numbers that are not finite"),
        ({"module.model.fc2.bias": 3}, "module.model.fc2.bias is 3, and no tensor"),
        ({f"module.model.mlp_resnet_blocks.1.ffn.{name}": None for name in ("0.weight", "0.bias", "1.weight", "1.bias")}, "has 1 blocks, and 2 are needed"),
        (DROPPED, "its weights lack vision_backbone.featurizer.blocks.2.*which model.safetensors.index.json has in"),
    ],
)  # fmt: skip
def test_odd_weights_are_named(folder, tmp_path, tensors, said):
    put(changed(folder, tmp_path / "copy"), **tensors)
    with pytest.raises(ConfigError, match=said):
        load_openvla_oft(tmp_path / "copy", OBS, ARM, chunk=K)


def test_a_tower_of_timms_width_has_timms_depth(folder, tmp_path, monkeypatch):
    put(changed(folder, tmp_path / "copy", **{"model.safetensors.index": None}), **DROPPED)
    load_openvla_oft(tmp_path / "copy", OBS, ARM, chunk=K)  # a small one may have two blocks
    monkeypatch.setitem(prismatic.WHOLE, 24, ("small", 3))
    with pytest.raises(ConfigError, match="have 2 blocks of 3"):
        load_openvla_oft(tmp_path / "copy", OBS, ARM, chunk=K)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "action_head--150000_checkpoint.pt", "tokenizer.json", "config.json"])
def test_a_file_that_was_cut_off_is_named(folder, tmp_path, name):
    shutil.copytree(folder, tmp_path / "cut")
    file = tmp_path / "cut" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ConfigError, match=f"{name} cannot be read"):
        load_openvla_oft(tmp_path / "cut", SEEN, ARM, chunk=K, instruction="lift it")


def test_without_transformers_it_is_said_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"load_openvla_oft needs .*transformers"):
        load_openvla_oft(folder, OBS, ARM, chunk=K)


@pytest.mark.parametrize(
    ("spaces_", "options", "said"),
    [
        (({**OBS.spaces, "joints": spaces.Box(-1, 1, (4,))}, ARM), {}, "a state of 4 numbers, and this model takes 5"),
        (({"joints": OBS["joints"], "text": OBS["text"]}, ARM), {}, "It must have images"),
        ((OBS.spaces, ARM), {"instruction": "lift it"}, "no token ids, for instruction= is given"),
        (({**OBS.spaces, "text": spaces.MultiDiscrete([99] * 6)}, ARM), {}, "token ids up to 98; the model knows 70"),
        ((OBS.spaces, spaces.Box(-1, 1, (3,))), {}, "this checkpoint gives 2 numbers"),
        ((OBS.spaces, spaces.Discrete(2)), {}, "acts in a Box"),
        ((OBS.spaces, ARM), {"data": "bridge_orig"}, "no 'bridge_orig'"),
        ((OBS.spaces, ARM), {"chunk": 0}, "whole number of actions"),
        ((OBS.spaces, ARM), {"std": 0.0}, "greater than 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(folder, spaces_, options, said):
    with pytest.raises(ConfigError, match=said):
        load_openvla_oft(folder, spaces.Dict(spaces_[0]), spaces_[1], **{"chunk": K, **options})
