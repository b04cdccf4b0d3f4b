"""OpenVLA-OFT from its own folder.

Its chunk becomes the mean of a Gaussian, so it can be cloned and improved by reinforcement learning.

    images, state, instruction ──Prismatic──> a hidden state for each number ──residual MLP──> chunk in [-1, 1] ──q01, q99──> chunk for the environment

Source: Kim, Finn and Liang, Fine-Tuning Vision-Language-Action Models: Optimizing Speed and Success (arXiv 2502.19645): parallel decoding of a chunk,
continuous actions by L1 regression, proprioception as one more token (sections IV and appendix A). The value reads the hidden state of the chunk's first
number and moves nothing but itself.

Legend: B batch, N images, K actions of a chunk, A numbers of an action, H numbers of a hidden state, L tokens.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.heads import GaussianHead, check_box
from rlinf_lab.policies.leaves import Kind, Leaf, choices, flatten, leaves_of
from rlinf_lab.policies.mlp import mlp
from rlinf_lab.policies.preprocess import Preprocess
from rlinf_lab.policies.pretrained.prismatic import (
    Prismatic,
    finite,
    fitted,
    load_prismatic,
    read_json,
    tokens,
    understood,
)

EPSILON = 1e-8  # theirs, of a range
BLOCKS = 2  # theirs, of the head of actions


class Range(nn.Module):
    """Numbers of the data as numbers in [-1, 1], and back. Those that ``mask`` leaves out stay as they are."""

    low: Tensor
    span: Tensor
    mask: Tensor

    def __init__(self, low: NDArray, high: NDArray, mask: NDArray) -> None:
        super().__init__()
        for name, value in (("low", low), ("span", high - low + EPSILON), ("mask", mask)):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.bool if name == "mask" else torch.float32))

    def normal(self, x: Tensor) -> Tensor:
        """(…, A) of the data, clipped to [-1, 1] as in training."""
        return torch.where(self.mask, 2.0 * (x - self.low) / self.span - 1.0, x).clamp(-1.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """(…, A) in the units of the data; not clipped."""
        return torch.where(self.mask, 0.5 * (x + 1.0) * self.span + self.low, x)


class ResidualMLP(nn.Module):
    """The head of actions. From the A hidden states of an action (…, A·H) to its A numbers."""

    def __init__(self, inputs: int, hidden: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.layer_norm1, self.fc1 = nn.LayerNorm(inputs), nn.Linear(inputs, hidden)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.ReLU()) for _ in range(blocks))
        self.layer_norm2, self.fc2 = nn.LayerNorm(hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(self.layer_norm1(x)).relu()
        for block in self.blocks:
            x = x + block(x)
        return self.fc2(self.layer_norm2(x))


class OFTEncoder(nn.Module):
    """A prepared observation as the row (B, K·A + H). The normalised chunk, and what the value reads."""

    words: Tensor

    def __init__(
        self, model: Prismatic, head: ResidualMLP, state: tuple[nn.Module, Range] | None, space: Space, chunk: tuple[int, int],
        words: list[int], pad_id: int, crop: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.head = model, head
        self.state: nn.Module | None = None if state is None else state[0]
        self.range: Range | None = None if state is None else state[1]
        self.space, self.chunk, self.pad_id, self.crop = space, chunk, pad_id, crop
        self.kinds = [leaf.kind for leaf in leaves_of(space)]
        self.register_buffer("words", torch.tensor([words], dtype=torch.long), persistent=False)
        self.features_dim = chunk[0] * chunk[1] + model.hidden_size

    def forward(self, prepared: Any) -> Tensor:
        leaves = list(zip(self.kinds, flatten(self.space, prepared), strict=True))
        numbers, images, words = ([x for kind, x in leaves if kind is wanted] for wanted in (Kind.NUMBERS, Kind.IMAGE, Kind.CATEGORIES))
        seen = torch.stack([fitted(x, self.model.side, self.crop) for x in images], dim=1)
        text = torch.cat(words, dim=1) if words else self.words.expand(len(seen), -1)
        state = None
        if self.state is not None and self.range is not None:
            state = self.state(self.range.normal(torch.cat([x.flatten(1) for x in numbers], dim=1)).to(self.model.dtype))
        K, A = self.chunk
        hidden_BSH = self.model(text, text != self.pad_id, seen.to(self.model.dtype), state, K * A)
        chunk_BKA = self.head(hidden_BSH.reshape(len(seen), K, -1))
        return torch.cat([chunk_BKA.flatten(1), hidden_BSH[:, 0]], dim=1).float()


class Part(nn.Module):
    """Some columns of a row, without their gradient if ``detached``."""

    def __init__(self, start: int, stop: int, detached: bool) -> None:
        super().__init__()
        self.start, self.stop, self.detached = start, stop, detached

    def forward(self, row: Tensor) -> Tensor:
        part = row[:, self.start : self.stop]
        return part.detach() if self.detached else part


class L1Head(GaussianHead):
    """A Gaussian around the normalised chunk. What is executed is scaled back; cloning is L1 regression, as in training.

    ``std``: of the Gaussian, in units of half the range between the quantiles. The action of record is (B, K, A), normalised.
    """

    def __init__(self, space: spaces.Box, scale: Range, chunk: tuple[int, int], std: float) -> None:
        super().__init__(spaces.Box(-np.inf, np.inf, chunk), math.log(std))
        self.scale, self.action_shape = scale, tuple(space.shape)

    @property
    def executed_shape(self) -> tuple[int, ...]:
        return (self.shape[0], *self.action_shape)

    def _scaled(self, chunk: Tensor) -> Tensor:
        return self.scale(chunk).reshape(*chunk.shape[:2], *self.action_shape)

    def executed(self, action: Any) -> Any:
        """(B, K, *shape) in the units of the data; an array of an array."""
        if isinstance(action, Tensor):
            return self._scaled(action.to(self.scale.low.device))
        with torch.inference_mode():
            return self._scaled(torch.as_tensor(np.asarray(action), device=self.scale.low.device)).cpu().numpy()

    def greedy(self, params_BP: Tensor) -> Tensor:
        return self._scaled(super().greedy(params_BP))

    def clone_loss(self, params_BP: Tensor, executed: Tensor, noise: Tensor) -> Tensor:
        wanted_BKA = self.scale.normal(executed.flatten(2))
        return (params_BP - wanted_BKA.flatten(1)).abs().mean(1)


def load_openvla_oft(
    path: str | Path,
    observation_space: Space,
    action_space: Space,
    *,
    chunk: int = 8,
    instruction: str | None = None,
    data: str | None = None,
    bounds: Literal["q99", "extremes"] = "q99",
    center_crop: bool = True,
    std: float = 0.1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ActorCritic:
    """OpenVLA-OFT with its L1 head from the folder of a released checkpoint.

    As a policy that answers with chunks.

    The folder holds config.json, preprocessor_config.json, merged weights (*.safetensors), dataset_statistics.json, ``action_head--*_checkpoint.pt`` and,
    for a model that is told the state, ``proprio_projector--*_checkpoint.pt``. transformers builds the network; code in the folder is not executed.

    ``observation_space``: RGB images (cameras, in its order: the main one first), the state as Boxes of numbers if the model takes it, and, without
    ``instruction``, token ids of the prompt, ``MultiDiscrete([vocabulary] * length)``, BOS first, padded on the right with the checkpoint's ``pad_token_id``.
    ``chunk``: K, which no file tells: 8 of LIBERO, 25 of ALOHA, 5 of Bridge. ``data``: whose statistics; None: the only ones there. ``bounds``: the numbers
    that -1 and 1 stand for, the quantiles ("extremes": least and largest, as of ALOHA). ``center_crop``: for a model trained on crops, as released ones are.
    ``std``: see `L1Head`. ``seed``: of the value net, which is new. `act` returns normalised chunks (B, K, A), `executed` those for the environment
    (B, K, *shape). Released models of LIBERO were trained on pictures turned by 180°, on a state of end effector position, axis times angle and both finger
    joints, and on a gripper from 0 (closed) to 1 (open): where an environment has others, a wrapper turns them. Raises `ConfigError`
    naming what does not fit or which file is missing, `MissingDependencyError` without transformers.
    """
    folder = Path(path)
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ConfigError(f"load_openvla_oft(chunk={shown(chunk)}): it must be a whole number of actions from 1. Next: 8, as of LIBERO.")
    if not std > 0:
        raise ConfigError(f"load_openvla_oft(std={shown(std)}): a standard deviation must be greater than 0.")
    if bounds not in ("q99", "extremes"):
        raise ConfigError(f"load_openvla_oft(bounds={shown(bounds)}): it must be 'q99' or 'extremes'.")
    model, config = load_prismatic(folder, dtype)
    leaves = leaves_of(observation_space)
    head = _action_head(folder, model.hidden_size, dtype)
    size = int(head.fc2.out_features)
    words = [] if instruction is None else tokens(folder, instruction)
    _check(folder, leaves, action_space, size, instruction, model)
    statistics = _statistics(folder, data)
    numbers = sum(leaf.size for leaf in leaves if leaf.kind is Kind.NUMBERS)
    state = _state(folder, numbers, statistics, bounds, model.hidden_size, dtype)
    pair = (chunk, size)
    pad_id = config.get("pad_token_id", 32000)
    if isinstance(pad_id, bool) or not isinstance(pad_id, int):
        raise _bad(folder, f"pad_token_id of config.json is {shown(pad_id)}, and no token id. Next: 32000, as of OpenVLA")
    encoder = OFTEncoder(model, head, state, observation_space, pair, words, pad_id, center_crop)
    policy_head = L1Head(action_space, _range(folder, statistics, "action", bounds, size), pair, std)  # type: ignore[arg-type]
    actor = Part(0, chunk * size, detached=False)
    value = mlp([model.hidden_size, 256, 256, 1], "tanh", 1.0, torch.Generator().manual_seed(seed))
    critic = nn.Sequential(Part(chunk * size, encoder.features_dim, detached=True), value)
    return ActorCritic(Preprocess(observation_space, normalise=False, one_hot=False), (encoder, encoder), actor, critic, policy_head)


def _bad(folder: Path, what: str) -> ConfigError:
    return ConfigError(f"load_openvla_oft({str(folder)!r}): {what}.")


def _part(folder: Path, name: str, dtype: torch.dtype) -> dict[str, Tensor] | None:
    """The tensors of ``NAME--STEP_checkpoint.pt``; None where there is none. Nothing in it is executed."""
    files = sorted(folder.glob(f"{name}--*checkpoint.pt"))
    if len(files) > 1:
        raise _bad(folder, f"there are {len(files)} files {name}--*_checkpoint.pt: {', '.join(file.name for file in files)}. Next: leave one")
    if not files:
        return None
    file = files[0].name
    try:
        found = torch.load(files[0], map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, AttributeError, ValueError, LookupError, TypeError, pickle.UnpicklingError) as error:
        raise _bad(folder, f"{file} cannot be read: {str(error)[:200]}") from error
    with understood(folder, file):
        return {key.removeprefix("module."): finite(folder, file, key, tensor, dtype) for key, tensor in found.items()}


def _action_head(folder: Path, hidden: int, dtype: torch.dtype) -> ResidualMLP:
    if _part(folder, "noisy_action_projector", dtype) is not None:
        raise _bad(folder, "it was trained by diffusion, and heads of L1 regression are read here")
    if list(folder.glob("vision_backbone--*checkpoint.pt")):
        raise _bad(folder, "its vision backbone was trained with FiLM, which is not read here")
    found = _part(folder, "action_head", dtype)
    if found is None:
        raise _bad(folder, "there is no action_head--*_checkpoint.pt in it. Next: download it, too: it lies beside the weights of a model with an L1 head")
    state = {key.removeprefix("model.").replace("mlp_resnet_blocks", "blocks").replace(".ffn.", "."): tensor for key, tensor in found.items()}
    first, last = state.get("fc1.weight"), state.get("fc2.weight")
    if first is None or last is None or first.ndim != 2 or last.ndim != 2 or first.shape[1] != hidden * last.shape[0]:
        shapes = {key: tuple(tensor.shape) for key, tensor in state.items() if key.startswith("fc")}
        raise _bad(folder, f"its action head has {shapes}, which is no L1 head over hidden states of {hidden} numbers")
    blocks = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    if blocks != BLOCKS:
        raise _bad(folder, f"its action head has {blocks} blocks, and {BLOCKS} are needed. Next: download it again")
    head = ResidualMLP(first.shape[1], first.shape[0], last.shape[0], blocks).to(dtype)
    _fill(folder, head, state, "action head")
    return head


def _fill(folder: Path, module: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        raise _bad(folder, f"its {what} does not fit: {str(error)[:300]}") from error


def _state(
    folder: Path, numbers: int, statistics: Mapping[str, Any], bounds: str, hidden: int, dtype: torch.dtype
) -> tuple[nn.Module, Range] | None:
    """The state's way in: its projector and its range."""
    found = _part(folder, "proprio_projector", dtype)
    if found is None and not numbers:
        return None
    if found is None:
        raise _bad(folder, f"the observation has a state of {numbers} numbers, and there is no proprio_projector--*_checkpoint.pt. Next: drop them, or fetch it")
    taken = found["fc1.weight"].shape[-1] if "fc1.weight" in found and found["fc1.weight"].ndim == 2 else None
    if taken != numbers:
        raise _bad(folder, f"the observation has a state of {numbers} numbers, and this model takes {taken}")
    projector = nn.Sequential(nn.Linear(numbers, hidden), nn.GELU(), nn.Linear(hidden, hidden)).to(dtype)
    _fill(folder, projector, {key.replace("fc1.", "0.").replace("fc2.", "2."): tensor for key, tensor in found.items()}, "proprio projector")
    return projector, _range(folder, statistics, "proprio", bounds, numbers)


def _statistics(folder: Path, data: str | None) -> Mapping[str, Any]:
    """Of one data set, out of dataset_statistics.json."""
    known = read_json(folder, "dataset_statistics.json", "Next: download it, too")
    if data is None and len(known) != 1:
        raise _bad(folder, f"dataset_statistics.json has {sorted(known)}. Next: data= one of them")
    found = known.get(next(iter(known)) if data is None else data)
    if not isinstance(found, dict):
        raise _bad(folder, f"dataset_statistics.json has {sorted(known)}, and no {data!r}. Next: data= one of them")
    return found


def _range(folder: Path, statistics: Mapping[str, Any], name: str, bounds: str, size: int) -> Range:
    keys = ("q01", "q99") if bounds == "q99" else ("min", "max")
    try:
        low, high = (np.asarray(statistics[name][key], dtype=np.float64).reshape(-1) for key in keys)
        mask = np.asarray(statistics[name].get("mask", [True] * size), dtype=bool).reshape(-1)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _bad(folder, f"dataset_statistics.json has no numbers {keys[0]} and {keys[1]} of {name!r}") from error
    if not len(low) == len(high) == len(mask) == size or not np.isfinite([low, high]).all() or (high < low).any():
        raise _bad(folder, f"dataset_statistics.json: {keys[0]} and {keys[1]} of {name!r} are {shown(low)} and {shown(high)}; {size} ranges are needed")
    return Range(low, high, mask)


def _check(folder: Path, leaves: tuple[Leaf, ...], action_space: Space, size: int, instruction: str | None, model: Prismatic) -> None:
    kinds = [leaf.kind for leaf in leaves]
    told = instruction is not None
    if Kind.IMAGE not in kinds or Kind.BINARY in kinds or (Kind.CATEGORIES in kinds) == told:
        need = "no token ids, for instruction= is given" if told else "an instruction as token ids, or instruction= must be given"
        raise _bad(folder, f"the observation has {'; '.join(map(str, leaves))}. It must have images, numbers if the model takes a state, and {need}")
    for leaf in leaves:
        if leaf.kind is Kind.IMAGE and leaf.prepared_shape[0] != 3:
            raise _bad(folder, f"observation{leaf.name} is {leaf.space}; images must be RGB")
        if leaf.kind is Kind.CATEGORIES and choices(leaf.space).max() > model.language.config.vocab_size:
            raise _bad(folder, f"observation{leaf.name} has token ids up to {choices(leaf.space).max() - 1}; the model knows {model.language.config.vocab_size}")
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_space is {shown(action_space)}: OpenVLA-OFT acts in a Box.")
    check_box(action_space, "action_space", bounded=False)
    if int(np.prod(action_space.shape)) != size:
        raise _bad(folder, f"action_space is {shown(action_space)}, and this checkpoint gives {size} numbers")
