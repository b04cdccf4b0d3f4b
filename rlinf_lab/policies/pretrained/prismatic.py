"""OpenVLA's network from its own files, of transformers' parts: vision transformers, a projector and Llama.

    image ──towers──> patches ──projector──┐
    [BOS] ─────────────────────────────────┴─ [patches] [state] [instruction] [0 … 0] [EOS] ──Llama, both ways──> hidden states

Sources: Karamcheti et al., Prismatic VLMs (arXiv 2402.07865); Kim et al., OpenVLA (arXiv 2406.09246); for zeros in place of action tokens and attention
both ways Kim et al., OpenVLA-OFT (arXiv 2502.19645), section IV and appendix A. A checkpoint names the weights of its towers as timm does; they are put into
transformers' DINOv2 and SigLIP. The last block and the last norm of a tower are never read, so they are not made.

Legend: B batch, N images, L tokens of an instruction, V numbers of a patch, H numbers of a hidden state, S slots for numbers of actions.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, MissingDependencyError, shown
from rlinf_lab.policies.pretrained.saved import without_bars

START_ID, STOP_ID = 1, 2  # Llama's <s> and </s>
WHOLE = {192: ("tiny", 12), 384: ("small", 12), 768: ("base", 12), 1024: ("large", 24), 1152: ("so400m", 27)}  # blocks, by timm's width and size
HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "so400m": 16}  # of attention, by the size in timm's name
ACTIVATIONS = {None: "gelu", "gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_tanh": "gelu_pytorch_tanh"}
CROPPED = 0.9**0.5  # of a side: training crops nine tenths of the area


class Tower(nn.Module):
    """A vision transformer up to its last block but one. Images (B, 3, side, side) in [0, 1] to patches (B, P, V)."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, prefix: int, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.model, self.prefix = model, prefix
        self.width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.model((images - self.mean) / self.std).last_hidden_state
        return patches[:, self.prefix :]


class Projector(nn.Module):
    """From patches to the embeddings of words, (…, V) to (…, H). Two layers for one tower, three for two."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(F.gelu(x) if i else x)
        return x


class Prismatic(nn.Module):
    """The network. ``side``: of its square images, in pixels."""

    def __init__(self, towers: list[Tower], projector: Projector, language: Any, side: int) -> None:
        super().__init__()
        self.towers, self.projector, self.language, self.side = nn.ModuleList(towers), projector, language, side

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.language.config.hidden_size)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.language.embed_tokens.weight.dtype

    def patches(self, images_BNCHW: Tensor) -> Tensor:
        """Images in [0, 1], of the right size, as embeddings (B, N·P, H)."""
        flat = images_BNCHW.flatten(0, 1)
        seen = torch.cat([tower(flat).to(self.dtype) for tower in self.towers], dim=-1)
        return self.projector(seen).unflatten(0, images_BNCHW.shape[:2]).flatten(1, 2)

    def forward(self, words_BL: Tensor, valid_BL: Tensor, images_BNCHW: Tensor, state_BH: Tensor | None, slots: int) -> Tensor:
        """Hidden states (B, S, H), from which S numbers of actions are decoded.

        All in one pass.

        ``words_BL``: token ids, the first BOS; ``valid_BL``: which are no padding. As in training each number is decoded one token before its slot.
        """
        embed = self.language.embed_tokens
        text = embed(words_BL)
        seen = self.patches(images_BNCHW)
        if state_BH is not None:
            seen = torch.cat([seen, state_BH.unsqueeze(1)], dim=1)
        B, stop = len(text), embed(words_BL.new_full((len(text), 1), STOP_ID))
        parts = [text[:, :1], seen, text[:, 1:], text.new_zeros(B, slots, text.shape[-1]), stop]
        there = valid_BL.new_ones((B, 1))
        valid = torch.cat([there, there.expand(B, seen.shape[1]), valid_BL[:, 1:], there.expand(B, slots + 1)], dim=1)
        # Padding goes to the end: an instruction has the same positions whatever stands beside it in the batch.
        order = valid.logical_not().int().argsort(dim=1, stable=True)
        sequence = torch.cat(parts, dim=1).gather(1, order.unsqueeze(-1).expand(-1, -1, text.shape[-1]))
        valid = valid.gather(1, order)
        mask = valid[:, None, None, :].expand(B, 1, valid.shape[1], valid.shape[1])  # all see all that is no padding
        hidden: Tensor = self.language(inputs_embeds=sequence, attention_mask=mask, use_cache=False).last_hidden_state
        first_B1 = seen.shape[1] + valid_BL.long().sum(1, keepdim=True) - 1
        index = first_B1 + torch.arange(slots, device=hidden.device)
        return hidden.gather(1, index.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def fitted(images: Tensor, side: int, crop: bool) -> Tensor:
    """Images (…, 3, height, width) in [0, 1] at the model's size.

    Where it was trained on crops, their middle.

    Rounded to 256 steps after each change, as the pictures of training were. The original resizes by Lanczos; this is bicubic with antialiasing.
    """
    shape, images = images.shape, images.flatten(0, -4)
    if images.shape[-2:] != (side, side):
        images = F.interpolate(images, (side, side), mode="bicubic", antialias=True).mul(255.0).round().clamp(0.0, 255.0) / 255.0
    if crop:
        line = torch.linspace(-CROPPED, CROPPED, side, device=images.device)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).expand(len(images), -1, -1, -1)
        images = F.grid_sample(images, grid, mode="bilinear", align_corners=True).mul(255.5).floor().clamp(0.0, 255.0) / 255.0
    return images.unflatten(0, shape[:-3])


def tokens(folder: Path, instruction: str) -> list[int]:
    """An instruction in OpenVLA's prompt as token ids, of the tokenizer in ``folder``."""
    from transformers import PreTrainedTokenizerFast

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise _bad(folder, "there is no tokenizer.json in it, which instruction= needs. Next: download it again, or give token ids in the observation")
    try:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file))
    except Exception as error:  # tokenizers has no class of its own for it
        raise _bad(folder, f"tokenizer.json cannot be read: {error}") from error
    # In training a lone blank stands between the prompt and the actions.
    blank = tokenizer.convert_tokens_to_ids("▁")
    ids = tokenizer.encode(f"In: What action should the robot take to {instruction.strip().lower()}?\nOut:")
    if blank is None or not ids or ids[0] != START_ID:
        raise _bad(folder, f"its tokenizer begins with {shown(ids[:3])} and has {blank!r} for '▁', and Llama 2's is needed. Next: OpenVLA's own")
    return [*ids, blank]


# --- reading a folder ---------------------------------------------------------------------------------------
def load_prismatic(folder: Path, dtype: torch.dtype) -> tuple[Prismatic, dict[str, Any]]:
    """The network and what config.json says. `ConfigError` naming the file that is missing, or the tensor that does not fit."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError.of("transformers", "reasoning", "load_openvla_oft") from error
    config = read_json(folder, "config.json", "Next: the folder of a downloaded checkpoint, such as `hf download moojink/openvla-7b-oft-… --local-dir DIR`")
    pixels = read_json(folder, "preprocessor_config.json", "Next: download it again")
    told = [config.get("timm_model_ids"), config.get("image_sizes"), config.get("timm_override_act_layers"), pixels.get("tvf_normalize_params")]
    ids, sides, acts, scales = lists = [x if isinstance(x, list) else [] for x in told]
    if {len(x) for x in lists} not in ({1}, {2}) or any(side != sides[0] for side in sides) or type(sides[0]) is not int or sides[0] < 1:
        raise _bad(folder, f"config.json and preprocessor_config.json do not describe one or two towers of one size: {shown(told, 200)}")
    text = config.get("text_config")
    text = dict(text) if isinstance(text, dict) else {}
    if text.pop("model_type", None) != "llama":
        raise _bad(folder, f"its language model is {shown(config.get('text_config'))}, and Llama is read here")
    weights = _weights(folder, dtype)
    names = ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.")
    layers, prefix = _below(weights, "projector."), "language_model.model."
    layers_there = {name.split(".")[1] for name in _below(weights, prefix) if name.startswith("layers.")}
    if isinstance(deep := text.get("num_hidden_layers"), int) and deep > len(layers_there):  # before they are made
        raise _bad(folder, f"its weights at {prefix} do not fit config.json, such as layers.{len(layers_there)}: num_hidden_layers is {deep}")
    projector = Projector([_linear(folder, layers, f"fc{i}", "projector.") for i in range(1, 2 + len(ids))])
    with without_bars(transformers):
        towers = []
        for model_id, side, act, scale, name in zip(ids, sides, acts, scales, names, strict=False):
            with understood(folder, f"its tower {shown(model_id)} of config.json, preprocessor_config.json and the weights at {name}"):
                towers.append(_tower(transformers, folder, model_id, side, act, scale, _below(weights, name), dtype))
        with understood(folder, f"text_config of config.json with the weights at {prefix}"):
            language = _filled(transformers.LlamaModel, transformers.LlamaConfig(**text), _below(weights, prefix), dtype, folder, prefix)
    widths = [sum(tower.width for tower in towers), *(layer.out_features for layer in projector.layers)]
    if [layer.in_features for layer in projector.layers] != widths[:-1] or widths[-1] != language.config.hidden_size:
        sizes = [(layer.in_features, layer.out_features) for layer in projector.layers]
        raise _bad(folder, f"its weights at projector. go {sizes}, and {widths[0]} → {language.config.hidden_size} is needed")
    return Prismatic(towers, projector, language, sides[0]), config


def read_json(folder: Path, name: str, advice: str) -> dict[str, Any]:
    """A file of the folder. `ConfigError` where it is not there, or holds no object."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _bad(folder, f"there is no {name} in it. {advice}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _bad(folder, f"{name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise _bad(folder, f"{name} is {shown(found)}, and no object")
    return found


def _bad(folder: Path, what: str) -> ConfigError:
    return ConfigError(f"load_openvla_oft({str(folder)!r}): {what}.")


@contextlib.contextmanager
def understood(folder: Path, what: str) -> Iterator[None]:
    """What odd contents of a file raise, as the `ConfigError` that names it."""
    try:
        yield
    except (ConfigError, MissingDependencyError, MemoryError):
        raise
    except Exception as error:  # strict configs of transformers raise classes of their own
        raise _bad(folder, f"{what} cannot be used: {type(error).__name__}: {str(error)[:200]}. Next: download it again") from error


def finite(folder: Path, file: str, name: str, tensor: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of a file in that type. `ConfigError` where it is none, or holds what is no finite number."""
    if not isinstance(tensor, Tensor):
        raise _bad(folder, f"{file}: {name} is {shown(tensor)}, and no tensor")
    found = tensor.to(dtype)
    if not bool(found.isfinite().all()):
        raise _bad(folder, f"{file}: {name} holds numbers that are not finite as {str(dtype).removeprefix('torch.')}. Next: download it again")
    return found


Lazy = Mapping[str, Callable[[], Tensor]]


def _weights(folder: Path, dtype: torch.dtype) -> Lazy:
    """All tensors of the folder by name, each read when it is called."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    placed = read_json(folder, index.name, "").get("weight_map", {}) if index.is_file() else {}
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise _bad(folder, f"weight_map of {index.name} is {shown(placed)}, and no files by tensors. Next: download it again")
    wanted = sorted(set(placed.values()))
    if lost := [name for name in wanted if not (folder / name).is_file()]:
        raise _bad(folder, f"there is no {lost[0]} in it, which {index.name} names. Next: download it again")
    if not files:
        raise _bad(folder, "there are no weights (*.safetensors) in it. Next: download it again, or merge lora_adapter into its base model first")
    found: dict[str, Callable[[], Tensor]] = {}
    for path in files:
        try:
            file = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118 - no mapping
                found[name] = lambda file=file, name=name, where=path.name: finite(folder, where, name, file.get_tensor(name), dtype)  # type: ignore[misc]
        except (OSError, SafetensorError) as error:
            raise _bad(folder, f"{path.name} cannot be read: {error}") from error
    if gone := sorted(placed.keys() - found.keys()):
        raise _bad(folder, f"its weights lack {gone[0]}, which {index.name} has in {placed[gone[0]]}. Next: download it again")
    return found


def _below(weights: Lazy, prefix: str) -> Lazy:
    return {name.removeprefix(prefix): read for name, read in weights.items() if name.startswith(prefix)}


def _linear(folder: Path, weights: Lazy, name: str, where: str) -> nn.Linear:
    if f"{name}.weight" not in weights or f"{name}.bias" not in weights:
        raise _bad(folder, f"its weights lack {where}{name}")
    weight, bias = weights[f"{name}.weight"](), weights[f"{name}.bias"]()
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise _bad(folder, f"its weights at {where}{name} have the shapes {tuple(weight.shape)} and {tuple(bias.shape)}, and a matrix and its rows are needed")
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def _filled(kind: Any, config: Any, weights: Lazy, dtype: torch.dtype, folder: Path, where: str) -> Any:
    """transformers' module with these weights and no others."""
    state = {name: read() for name, read in weights.items()}
    try:
        model, report = kind.from_pretrained(None, config=config, state_dict=state, dtype=dtype, attn_implementation="sdpa", output_loading_info=True)
    except RuntimeError as error:
        raise _bad(folder, f"its weights at {where} do not fit config.json: {str(error)[:300]}") from error
    wrong = [str(name) for kind_of in ("missing_keys", "mismatched_keys", "unexpected_keys") for name in report[kind_of]]
    if wrong:
        raise _bad(folder, f"{len(wrong)} of its weights at {where} do not fit config.json, such as {wrong[0]}")
    return model


def _tower(transformers: Any, folder: Path, model_id: Any, side: Any, act: Any, scale: Any, weights: Lazy, dtype: torch.dtype) -> Tower:
    """A tower by timm's name of it; its sizes are those of its weights."""
    size = re.match(r"vit_([a-z0-9]+)_patch(\d+)_", str(model_id))
    is_dino, is_siglip = "_reg4_dinov2" in str(model_id), "_siglip_" in str(model_id)
    if size is None or size[1] not in HEADS or act not in ACTIVATIONS or is_dino == is_siglip:
        raise _bad(folder, f"its tower is {shown(model_id)} with the activation {shown(act)}; DINOv2 with registers and SigLIP are read here")
    blocks = {int(name.split(".")[1]) for name in weights if name.startswith("blocks.")}
    missing = [name for name in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "norm.weight") if name not in weights]
    if missing or blocks != set(range(len(blocks))) or len(blocks) < 2:
        raise _bad(folder, f"its weights of {model_id} lack {missing[0] if missing else 'blocks'}")
    hidden, _, patch, _ = weights["patch_embed.proj.weight"]().shape
    if WHOLE.get(hidden, ("", 0))[0] == size[1] and len(blocks) != WHOLE[hidden][1]:
        raise _bad(folder, f"its weights of {model_id} have {len(blocks)} blocks of {WHOLE[hidden][1]}. Next: download it again")
    inner = weights["blocks.0.mlp.fc1.weight"]().shape[0]
    common = {
        "hidden_size": hidden, "num_hidden_layers": len(blocks) - 1, "num_attention_heads": HEADS[size[1]], "image_size": side, "patch_size": patch,
        "hidden_act": ACTIVATIONS[act], "layer_norm_eps": 1e-6,
    }  # fmt: skip
    named = _dino_name if is_dino else _siglip_name
    state = dict(_renamed(weights, named, len(blocks) - 1))
    where = f"vision_backbone ({model_id}) "
    try:
        mean, std = ([float(x) for x in scale[name]] for name in ("mean", "std"))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise _bad(folder, f"preprocessor_config.json: tvf_normalize_params has {shown(scale)}, and no mean and std") from error
    if not len(mean) == len(std) == 3 or not all(map(math.isfinite, mean)) or not all(0 < x < math.inf for x in std):
        raise _bad(folder, f"preprocessor_config.json: tvf_normalize_params has {shown(scale)}; three means and three std greater than 0 are needed")
    if is_dino:
        state["embeddings.mask_token"] = lambda: torch.zeros(1, hidden, dtype=dtype)  # never used
        registers = weights["reg_token"]().shape[1] if "reg_token" in weights else 0
        config = transformers.Dinov2WithRegistersConfig(**common, mlp_ratio=inner // hidden, num_register_tokens=registers)
        model = _filled(transformers.Dinov2WithRegistersModel, config, state, dtype, folder, where)
        model.layernorm = nn.Identity()
        model.embeddings.mask_token.requires_grad_(False)
        return Tower(model, 1 + registers, mean, std)
    config = transformers.SiglipVisionConfig(**common, intermediate_size=inner, vision_use_head=False)
    model = _filled(transformers.SiglipVisionModel, config, state, dtype, folder, where)
    model.post_layernorm = nn.Identity()
    return Tower(model, 0, mean, std)


def _renamed(weights: Lazy, named: Callable[[str], str], blocks: int) -> Any:
    """timm's tensors by transformers' names. Queries, keys and values apart, positions with a place for CLS."""
    for name, read in weights.items():
        if name.startswith(("attn_pool.", "head.", "fc_norm.")) or re.match(rf"blocks\.{blocks}\.", name):
            continue
        for i, letter in enumerate("qkv") if ".qkv." in name else ():
            yield named(name.replace(".qkv.", f".{letter}_proj.")), lambda read=read, i=i: read().chunk(3)[i].clone()
        if ".qkv." in name:
            continue
        if name == "pos_embed":
            yield named(name), (lambda read=read: F.pad(read(), (0, 0, 1, 0))) if named is _dino_name else (lambda read=read: read()[0])
        else:
            yield named(name), read


def _dino_name(name: str) -> str:
    """timm's name of a tensor of DINOv2 as transformers has it."""
    for old, new in (
        ("patch_embed.proj", "embeddings.patch_embeddings.projection"), ("cls_token", "embeddings.cls_token"), ("reg_token", "embeddings.register_tokens"),
        ("pos_embed", "embeddings.position_embeddings"), ("blocks.", "encoder.layer."), (".attn.proj.", ".attention.o_proj."), (".attn.", ".attention."),
        (".ls1.scale_factor", ".layer_scale1.lambda1"), (".ls2.scale_factor", ".layer_scale2.lambda1"),
        (".ls1.gamma", ".layer_scale1.lambda1"), (".ls2.gamma", ".layer_scale2.lambda1"),
    ):  # fmt: skip
        name = name.replace(old, new)
    return re.sub(r"^norm\.", "layernorm.", name)


def _siglip_name(name: str) -> str:
    """timm's name of a tensor of SigLIP as transformers has it."""
    for old, new in (
        ("patch_embed.proj", "embeddings.patch_embedding"), ("pos_embed", "embeddings.position_embedding.weight"), ("blocks.", "encoder.layers."),
        (".norm1.", ".layer_norm1."), (".norm2.", ".layer_norm2."), (".attn.proj.", ".self_attn.out_proj."), (".attn.", ".self_attn."),
    ):  # fmt: skip
        name = name.replace(old, new)
    return re.sub(r"^norm\.", "post_layernorm.", name)
