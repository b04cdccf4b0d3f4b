"""π0 through transformers, its flow as a `FlowHead`.

So it can be cloned and improved by reinforcement learning.

    images, instruction ──PaliGemma──> keys and values ─┐
    state ──────────────────────────────────────────────┴─> action expert ──> velocity of the noised chunk

Source: Black et al., π0 (arXiv 2410.24164); the model is transformers' `PI0ForConditionalGeneration`. There the time
goes from 1 (noise) to 0 (action) and the velocity from action to noise; here both are turned round. The images and
words of an observation are read once for all steps of the flow.

Legend: B batch, K actions of a chunk, D numbers of a padded chunk, L tokens, P numbers of what the expert reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, MissingDependencyError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.flow import Flow, FlowHead
from rlinf_lab.policies.heads import check_box
from rlinf_lab.policies.leaves import Kind, Leaf, flatten, leaves_of
from rlinf_lab.policies.mlp import mlp
from rlinf_lab.policies.preprocess import Preprocess
from rlinf_lab.policies.pretrained.saved import without_bars


class Prefix(nn.Module):
    """What the action expert reads of a prepared observation. One row (B, P): state, mask, keys and values."""

    def __init__(self, model: Any, space: Space, leaves: Sequence[Leaf], pad_id: int) -> None:
        super().__init__()
        self.model, self.space, self.leaves, self.pad_id = model, space, list(leaves), pad_id
        vision = model.config.vlm_config.vision_config
        self.pixels: int = vision.image_size
        self.cameras = sum(leaf.kind is Kind.IMAGE for leaf in leaves)
        self.image_tokens = self.cameras * (vision.image_size // vision.patch_size) ** 2
        self.words = sum(int(np.prod(leaf.shape)) for leaf in leaves if leaf.kind is Kind.CATEGORIES)

    @property
    def length(self) -> int:
        """L: tokens of images and words."""
        return self.image_tokens + self.words

    def forward(self, prepared: Any) -> Tensor:
        parts: dict[Kind, list[Tensor]] = {kind: [] for kind in Kind}
        for leaf, x in zip(self.leaves, flatten(self.space, prepared), strict=True):
            parts[leaf.kind].append(x)
        state = torch.cat([x.flatten(1) for x in parts[Kind.NUMBERS]], dim=1)
        state = F.pad(state, (0, self.model.config.max_state_dim - state.shape[1]))
        words = torch.cat(parts[Kind.CATEGORIES], dim=1)
        image_id = self.model.config.vlm_config.image_token_id
        input_ids = torch.cat([words.new_full((len(words), self.image_tokens), image_id), words], dim=1)
        mask = torch.cat([torch.ones_like(input_ids[:, : self.image_tokens]), (words != self.pad_id).long()], dim=1)
        images = torch.stack([self._fitted(x) for x in parts[Kind.IMAGE]], dim=1)
        seen = torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
        inner = self.model.model
        embedded = inner.embed_prefix(input_ids, images, seen)
        cache = inner.vlm(
            inputs_embeds=embedded,
            attention_mask=mask,
            position_ids=mask.cumsum(-1) - 1,
            token_type_ids=torch.zeros_like(mask),
            use_cache=True,
        ).past_key_values
        rows = [tensor.flatten(1) for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return torch.cat([state, mask.to(state.dtype), *rows], dim=1)

    def _fitted(self, image_BCHW: Tensor) -> Tensor:
        """To the size and the range [-1, 1] that the model was trained on."""
        if image_BCHW.shape[-1] != self.pixels:
            size = (self.pixels, self.pixels)
            image_BCHW = F.interpolate(image_BCHW, size, mode="bicubic", antialias=True).clamp(0.0, 1.0)
        return 2.0 * image_BCHW - 1.0


class Expert(nn.Module):
    """The action expert as a velocity from noise to action: ``v(x, t, row of Prefix)``."""

    def __init__(self, prefix: Prefix) -> None:
        super().__init__()
        self.prefix = [prefix]  # in a list: its parameters are counted once, where the encoder is
        config = prefix.model.config
        text = config.vlm_config.text_config
        self.state_size, self.length = config.max_state_dim, prefix.length
        self.shape = text.num_key_value_heads, prefix.length, text.head_dim
        self.layers = text.num_hidden_layers
        self.features = self.state_size + self.length + 2 * self.layers * int(np.prod(self.shape))
        self.chunk = config.chunk_size

    def forward(self, x_BD: Tensor, t_B: Tensor, row_BP: Tensor) -> Tensor:
        from transformers import DynamicCache

        state, mask, memory = row_BP.split(
            [self.state_size, self.length, self.features - self.state_size - self.length], dim=1
        )
        pairs = memory.unflatten(1, (self.layers, 2, *self.shape))
        cache = DynamicCache([(pairs[:, i, 0], pairs[:, i, 1]) for i in range(self.layers)])
        output = self.prefix[0].model(
            state=state,
            noise=x_BD.unflatten(1, (self.chunk, -1)),
            timestep=(1.0 - t_B).float(),
            attention_mask=mask.long(),
            past_key_values=cache,
        )
        return -output.logits.flatten(1)


class PaddedFlowHead(FlowHead):
    """A `FlowHead` over the model's own, padded and normalised actions. What is executed is cut and scaled back."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, padded: spaces.Box, action_space: spaces.Box, velocity: Expert, flow: Flow, statistics: Any
    ) -> None:
        super().__init__(padded, velocity, flow)
        self.action_shape = tuple(action_space.shape)
        mean, std = statistics
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("std", torch.from_numpy(std))

    @property
    def executed_shape(self) -> tuple[int, ...]:
        return (self.shape[0], *self.action_shape)

    def executed(self, action: NDArray) -> NDArray[np.float32]:
        last, size = super().executed(action), self.mean.numel()
        scaled: NDArray[np.float32] = last[..., :size] * self.std.cpu().numpy() + self.mean.cpu().numpy()
        return scaled.reshape(*scaled.shape[:2], *self.action_shape)

    def greedy(self, params_BP: Tensor) -> Tensor:
        last = super().greedy(params_BP)[..., : self.mean.numel()]
        return (last * self.std + self.mean).reshape(*last.shape[:2], *self.action_shape)

    def clone_loss(self, params_BP: Tensor, executed: Tensor, noise: Tensor) -> Tensor:
        normal = (executed.flatten(2) - self.mean) / self.std
        padded = F.pad(normal, (0, self.shape[-1] - normal.shape[-1]))
        return super().clone_loss(params_BP, padded, noise)


class ValueOfState(nn.Module):
    """A value net over the state's part of the row (B, P). It is new, π0 has none."""

    def __init__(self, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.net = size, mlp([size, 256, 256, 1], "tanh", 1.0, generator)

    def forward(self, row_BP: Tensor) -> Tensor:
        return self.net(row_BP[:, : self.size].float())


def load_pi0(
    path: str | Path,
    observation_space: Space,
    action_space: Space,
    *,
    action_mean: Any = 0.0,
    action_std: Any = 1.0,
    flow: Flow | None = None,
    pad_id: int = 0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ActorCritic:
    """π0 from a folder that ``PI0ForConditionalGeneration.save_pretrained`` wrote, as a policy that answers with
    chunks.

    ``observation_space``: a Dict of square images (cameras, in its order), Boxes of numbers (the state) and an
    instruction, ``MultiDiscrete([vocabulary] * length)`` of token ids as the checkpoint's tokenizer gives them, padded
    on the right with ``pad_id``. The state is normalised by `Policy.set_normaliser`, actions by ``action_mean`` and
    ``action_std``: give those of the data the model was trained on. ``flow``: steps and injected noise; by default as
    many steps as the checkpoint says. ``seed``: of the value net, which is new and sees the state only.
    `act` returns chains of padded actions, `executed` chunks (B, K, *shape) for the environment.
    Raises `ConfigError` naming what does not fit or which file is missing, `MissingDependencyError` without
    transformers.
    """
    model = _model(Path(path), dtype)
    config = model.config
    leaves = leaves_of(observation_space)
    _check(config, leaves, action_space)
    box = cast(spaces.Box, action_space)
    size = int(np.prod(box.shape))
    statistics = [
        np.broadcast_to(np.asarray(x, np.float32).reshape(-1), (size,)).copy() for x in (action_mean, action_std)
    ]
    if not (statistics[1] > 0).all():
        raise ConfigError(f"load_pi0(action_std={shown(action_std)}): every standard deviation must be greater than 0.")
    prefix = Prefix(model, observation_space, leaves, pad_id)
    padded = spaces.Box(-np.inf, np.inf, (config.chunk_size, config.max_action_dim))
    settings = Flow(steps=config.num_inference_steps) if flow is None else flow
    head = PaddedFlowHead(padded, box, Expert(prefix), settings, statistics)
    critic = ValueOfState(config.max_state_dim, torch.Generator().manual_seed(seed))
    preprocess = Preprocess(observation_space, one_hot=False)
    return ActorCritic(preprocess, (prefix, prefix), nn.Identity(), critic, head)


def _model(path: Path, dtype: torch.dtype) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError.of("transformers", "reasoning", "load_pi0") from error
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"load_pi0({str(path)!r}): there is no config.json in it. Next: the folder of a downloaded checkpoint of "
            f"transformers' PI0, such as `hf download lerobot/pi0_base --local-dir DIR`."
        )
    if not any(path.glob("*.safetensors")):
        raise ConfigError(
            f"load_pi0({str(path)!r}): there are no weights (*.safetensors) in it. Next: download it again."
        )
    kind: Any = transformers.PI0ForConditionalGeneration
    with without_bars(transformers):
        model, report = kind.from_pretrained(path, dtype=dtype, output_loading_info=True)
    if report["missing_keys"] or report["mismatched_keys"]:
        lost = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        raise ConfigError(
            f"load_pi0({str(path)!r}): its weights lack {len(lost)} tensors of the model, such as {lost[0]}. Next: a "
            f"checkpoint in transformers' format."
        )
    return model


def _check(config: Any, leaves: Sequence[Leaf], action_space: Space) -> None:
    kinds = [leaf.kind for leaf in leaves]
    if Kind.BINARY in kinds or any(kind not in kinds for kind in (Kind.IMAGE, Kind.NUMBERS, Kind.CATEGORIES)):
        raise ConfigError(
            f"load_pi0: the observation has {'; '.join(map(str, leaves))}. It must have images, numbers and an "
            f"instruction, and nothing else. Next: a wrapper that adds or drops entries."
        )
    for leaf in leaves:
        if leaf.kind is not Kind.IMAGE:
            continue
        channels, height, width = leaf.prepared_shape
        if height != width or channels != 3:
            raise ConfigError(f"load_pi0: observation{leaf.name} is {leaf.space}; images must be square and RGB.")
    state = sum(leaf.size for leaf in leaves if leaf.kind is Kind.NUMBERS)
    if state > config.max_state_dim:
        raise ConfigError(
            f"load_pi0: a state of {state} numbers; this checkpoint takes {config.max_state_dim} at most."
        )
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_space is {shown(action_space)}: π0 acts in a Box.")
    check_box(action_space, "action_space", bounded=False)
    if np.prod(action_space.shape) > config.max_action_dim:
        raise ConfigError(
            f"action_space is {shown(action_space)}: this checkpoint gives {config.max_action_dim} numbers at most."
        )
