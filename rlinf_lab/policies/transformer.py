"""A chunk of actions from images, proprioception and an instruction.

The shape of a vision-language-action model.

    images ──convolutions──> patches ─┐
    proprioception ──linear──> token ─┼─> encoder ──> memory ──> decoder, a query for each action ──> means or
    velocities instruction ──embedding──> tokens ┤                 └──> value, from a token of its own value token
    ──────────────────────┘

The decoder that gives all actions of a chunk at once is that of ACT (Zhao et al., arXiv 2304.13705, section IV-C). With
a flow it reads the noised chunk and the time beside its queries, as the action expert of π0 does (Black et al., arXiv
2410.24164, section IV). Encoder and decoder are torch's, without dropout.

Legend: B batch, K actions of a chunk, A numbers of an action, L tokens, W width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.flow import Flow, FlowHead, towards
from rlinf_lab.policies.heads import GaussianHead, Head, check_box
from rlinf_lab.policies.leaves import Kind, Leaf, choices, flatten, in_rows, leaves_of
from rlinf_lab.policies.make import check_arguments, chunked, derived_seed, whole_number
from rlinf_lab.policies.preprocess import Preprocess

PATCHES = 8  # along the shorter side of an image, about


class ImageTokens(nn.Module):
    """An image (B, C, H, W) as tokens (B, L, W). Convolutions of stride 2 until about 8 × 8 patches are left."""

    def __init__(self, leaf: Leaf, width: int) -> None:
        super().__init__()
        channels, height, tall = leaf.prepared_shape
        halvings = max(1, round(math.log2(min(height, tall) / PATCHES)))
        layers: list[nn.Module] = []
        for _ in range(halvings):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU()]
            channels, height, tall = width, (height + 1) // 2, (tall + 1) // 2
        self.net = nn.Sequential(*layers, nn.Conv2d(width, width, 1))
        self.tokens = height * tall

    def forward(self, image_BCHW: Tensor) -> Tensor:
        return self.net(image_BCHW).flatten(2).transpose(1, 2)


class CategoryTokens(nn.Module):
    """Indices (B, L), the words of an instruction, as tokens (B, L, W)."""

    offsets: Tensor

    def __init__(self, leaf: Leaf, width: int) -> None:
        super().__init__()
        counts = choices(leaf.space)
        alike = bool((counts == counts[0]).all())  # one vocabulary for all places
        self.embedding = nn.Embedding(int(counts[0] if alike else counts.sum()), width)
        offsets = np.zeros_like(counts) if alike else np.concatenate([[0], counts.cumsum()[:-1]])
        self.register_buffer("offsets", torch.from_numpy(offsets), persistent=False)
        self.tokens = len(counts)

    def forward(self, index_BL: Tensor) -> Tensor:
        return self.embedding(index_BL + self.offsets)


class RowToken(nn.Module):
    """Numbers or bits (B, ...) as one token (B, 1, W)."""

    tokens = 1

    def __init__(self, leaf: Leaf, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(leaf.size, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(in_rows(x).float()).unsqueeze(1)


TOKENS: dict[Kind, type[nn.Module]] = {
    Kind.IMAGE: ImageTokens,
    Kind.CATEGORIES: CategoryTokens,
    Kind.NUMBERS: RowToken,
    Kind.BINARY: RowToken,
}


class ObservationTransformer(nn.Module):
    """A prepared observation as memory (B, L, W). A token for the value, and those of every leaf."""

    def __init__(self, space: Space, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.space = space
        self.leaves = nn.ModuleList(TOKENS[leaf.kind](leaf, width) for leaf in leaves_of(space))
        count = 1 + sum(part.tokens for part in self.leaves)  # type: ignore[misc]
        self.value_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, count, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, prepared: Any) -> Tensor:
        leaves = flatten(self.space, prepared)
        tokens = [part(leaf) for part, leaf in zip(self.leaves, leaves, strict=True)]
        value_token = self.value_token.expand(tokens[0].shape[0], -1, -1)
        memory: Tensor = self.encoder(torch.cat([value_token, *tokens], dim=1) + self.position)
        return memory


class ChunkDecoder(nn.Module):
    """Queries for K actions that attend to each other and to the memory. (B, K, W) and (B, L, W) to (B, K·A)."""

    def __init__(self, chunk: int, action_size: int, width: int, heads: int, depth: int, last_gain: float) -> None:
        super().__init__()
        self.query = nn.Parameter(0.02 * torch.randn(1, chunk, width))
        layer = nn.TransformerDecoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, depth, nn.LayerNorm(width))
        self.last = nn.Linear(width, action_size)
        with torch.no_grad():
            self.last.weight.mul_(last_gain)
            self.last.bias.zero_()

    def forward(self, memory_BLW: Tensor, added_BKW: Tensor | None = None) -> Tensor:
        query_BKW = self.query.expand(memory_BLW.shape[0], -1, -1)
        if added_BKW is not None:
            query_BKW = query_BKW + added_BKW
        return self.last(self.decoder(query_BKW, memory_BLW)).flatten(1)


class ChunkVelocity(nn.Module):
    """The velocity of a chunk, `towards` what a `ChunkDecoder` says.

    The decoder also reads the noised actions and the time.
    """

    def __init__(self, chunk: int, action_size: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.chunk, self.width = chunk, width
        self.features = width
        self.actions = nn.Linear(action_size, width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.end = ChunkDecoder(chunk, action_size, width, heads, depth, 1.0)

    def forward(self, x_BD: Tensor, t_B: Tensor, memory_BLW: Tensor) -> Tensor:
        rate = torch.arange(self.width // 2, device=x_BD.device, dtype=x_BD.dtype) / (self.width // 2)
        angle = t_B.unsqueeze(-1) * 2 * math.pi * 32.0**rate  # periods from one to a thirty-second of the way
        time_B1W = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1)).unsqueeze(1)
        end_BD = self.end(memory_BLW, self.actions(x_BD.unflatten(1, (self.chunk, -1))) + time_B1W)
        velocity_BD: Tensor = towards(end_BD, x_BD, t_B.unsqueeze(-1))
        return velocity_BD


class ValueReadout(nn.Module):
    """The value (B, 1), from the memory's first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, memory_BLW: Tensor) -> Tensor:
        return self.net(memory_BLW[:, 0])


def make_chunk_transformer(
    observation_space: Space,
    action_space: Space,
    *,
    chunk: int = 8,
    width: int = 128,
    heads: int = 4,
    depth: int = 2,
    flow: Flow | None = None,
    per_action: bool = False,
    log_std_init: float = -1.0,
    normalize_obs: bool = True,
    seed: int = 0,
) -> ActorCritic:
    """A policy from images, numbers and words to chunks of actions (B, chunk, *shape).

    Any observation space: images are cut into patches, a Box of numbers is a token, each component of a Discrete or
    MultiDiscrete a word (give instructions as ``MultiDiscrete([vocabulary] * length)``). Actions: a Box.
    ``width``, ``heads``, ``depth``: of encoder and decoder. Policy and value net share the encoder.
    ``flow``: the actions come of flow matching, else they are Gaussian with ``log_std_init``. ``per_action``:
    log-probabilities and entropies by action (B, chunk) and not by chunk (B). ``seed`` fixes the initial weights.
    Raises `ConfigError` naming the argument, or the leaf of a space which does not fit.
    """
    check_arguments((), "tanh", log_std_init, seed)
    for name, value in (("chunk", chunk), ("width", width), ("heads", heads), ("depth", depth)):
        if not whole_number(value, 1):
            raise ConfigError(
                f"make_chunk_transformer({name}={shown(value)}): it must be a whole number of at least 1."
            )
    if width % heads or width % 2:
        raise ConfigError(
            f"make_chunk_transformer(width={width}, heads={heads}): the width must be even and a multiple of the heads."
        )
    space = chunked(action_space, chunk)
    check_box(space, "action_space", bounded=False)
    action_size = int(np.prod(space.shape[1:]))
    preprocess = Preprocess(observation_space, normalize_obs, one_hot=False)
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from the global state
        torch.manual_seed(derived_seed(seed, 0))
        encoder = ObservationTransformer(observation_space, width, heads, depth)
        head: Head
        actor: nn.Module
        if flow is None:
            actor = ChunkDecoder(chunk, action_size, width, heads, depth, 0.01)
            head = GaussianHead(space, log_std_init, per_action)
        else:
            actor = nn.Identity()
            head = FlowHead(space, ChunkVelocity(chunk, action_size, width, heads, depth), flow, per_action)
        critic = ValueReadout(width)
    return ActorCritic(preprocess, (encoder, encoder), actor, critic, head)
