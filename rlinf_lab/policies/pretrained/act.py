"""ACT through lerobot, with its chunk as the mean of a Gaussian.

So it can be cloned and improved by reinforcement learning.

    state, images ──normalised──> lerobot's ACT ──chunk, in the units of the data──> GaussianHead

Source: Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware (arXiv 2304.13705); the model is lerobot's `ACTPolicy` and the
statistics are those of its own processors. It acts with the latent at zero, as lerobot does.

Legend: B batch, K actions of a chunk, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.heads import GaussianHead, check_box
from rlinf_lab.policies.leaves import Kind, flatten, leaves_of
from rlinf_lab.policies.make import chunked
from rlinf_lab.policies.mlp import mlp
from rlinf_lab.policies.preprocess import Preprocess
from rlinf_lab.policies.pretrained.saved import saved_policy

EPSILON = 1e-8  # lerobot's, of a standard deviation
STATE, IMAGES, ACTION = "observation.state", "observation.images.", "action"


class ACTChunk(nn.Module):
    """A prepared observation as the chunk that ACT gives, (B, K·A). In the units of the data."""

    def __init__(self, model: nn.Module, space: Space, columns: list[str], statistics: Mapping[str, tuple[Tensor, Tensor]], size: int) -> None:
        super().__init__()
        self.model, self.space, self.columns, self.features_dim = model.eval(), space, columns, size
        for name, (mean, std) in statistics.items():
            self.register_buffer(f"mean_{name.replace('.', '_')}", mean)
            self.register_buffer(f"std_{name.replace('.', '_')}", std)

    def _statistics(self, name: str) -> tuple[Tensor, Tensor]:
        name = name.replace(".", "_")
        return self.get_buffer(f"mean_{name}"), self.get_buffer(f"std_{name}")

    def train(self, mode: bool = True) -> ACTChunk:
        """Without dropout and without the encoder of the latent.

        Probabilities of what was done must be those of acting.
        """
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, prepared: Any) -> Tensor:
        parts: dict[str, list[Tensor]] = {}
        for name, leaf in zip(self.columns, flatten(self.space, prepared), strict=True):
            parts.setdefault(name, []).append(leaf if name.startswith(IMAGES) else leaf.flatten(1))
        batch = {}
        for name, leaves in parts.items():
            mean, std = self._statistics(name)
            batch[name] = (torch.cat(leaves, dim=1) - mean) / (std + EPSILON)
        pictures = [batch[name] for name in batch if name.startswith(IMAGES)]
        if pictures:
            batch["observation.images"] = pictures  # type: ignore[assignment]
        mean, std = self._statistics(ACTION)
        chunk_BKA = self.model(batch)[0]
        return cast(Tensor, (chunk_BKA * std + mean).flatten(1))


class ValueOfNumbers(nn.Module):
    """A new value net over the numbers of an observation; ACT has none."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space
        self.numbers = [leaf.kind is Kind.NUMBERS for leaf in leaves_of(space)]
        self.features_dim = sum(leaf.size for leaf in leaves_of(space) if leaf.kind is Kind.NUMBERS)

    def forward(self, prepared: Any) -> Tensor:
        leaves = flatten(self.space, prepared)
        return torch.cat([leaf.flatten(1) for leaf, is_number in zip(leaves, self.numbers, strict=True) if is_number], dim=1)


def load_act(
    path: str | Path, observation_space: Space, action_space: Space, *, std: float = 0.1, statistics: Mapping[str, Any] | None = None, seed: int = 0
) -> ActorCritic:
    """ACT from a folder that lerobot's ``save_pretrained`` wrote.

    Policy and processors, as a policy that answers with chunks (B, K, *shape).

    ``observation_space``: a Box of numbers, or a Dict of them and of RGB pictures: pictures are the checkpoint's ``observation.images.KEY`` in their order,
    numbers joined are its ``observation.state``. ``statistics``: means and deviations by column, as ``meta.stats`` of a LeRobotDataset; None: those that
    were saved with the policy. ``std``: of the Gaussian around the chunk, in the units of actions. ``seed``: of the value net, which is new and sees the
    numbers only. Raises `ConfigError` naming what does not fit, `MissingDependencyError` without lerobot.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"load_act({str(folder)!r}): there is no config.json in it. Next: the folder of lerobot's ACTPolicy.save_pretrained.")
    policy = saved_policy(folder, "lerobot.policies.act.modeling_act", "ACTPolicy", "load_act")
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_space is {shown(action_space)}: ACT acts in a Box.")
    check_box(action_space, "action_space", bounded=False)
    leaves = leaves_of(observation_space)
    config = policy.config
    pictures = [name for name in config.input_features if name.startswith(IMAGES)]
    columns, left = [], iter(pictures)
    for leaf in leaves:
        if leaf.kind not in (Kind.IMAGE, Kind.NUMBERS):
            raise ConfigError(f"load_act: observation{leaf.name} is {leaf.space}; ACT sees numbers and pictures.")
        columns.append(next(left, "") if leaf.kind is Kind.IMAGE else STATE)
    wanted = {name: tuple(feature.shape) for name, feature in config.input_features.items()}
    found = {name: tuple(leaf.prepared_shape) for name, leaf in zip(columns, leaves, strict=True) if name != STATE}
    found[STATE] = (sum(leaf.size for leaf in leaves if leaf.kind is Kind.NUMBERS),)
    if found != wanted:
        raise ConfigError(f"load_act({str(folder)!r}): the observation gives {found}, and this checkpoint takes {wanted}.")
    size, given = int(np.prod(action_space.shape)), int(config.output_features[ACTION].shape[0])
    if size != given:
        raise ConfigError(f"load_act({str(folder)!r}): action_space is {shown(action_space)}, and this checkpoint gives {given} numbers.")
    known = _statistics(folder, [*wanted, ACTION], statistics)
    chunk = chunked(action_space, config.chunk_size)
    encoder = ACTChunk(policy.model, observation_space, columns, known, int(np.prod(chunk.shape)))
    value = ValueOfNumbers(observation_space)
    critic = mlp([value.features_dim, 256, 256, 1], "tanh", 1.0, torch.Generator().manual_seed(seed))
    head = GaussianHead(chunk, float(np.log(std)))
    return ActorCritic(Preprocess(observation_space, normalise=False), (encoder, value), nn.Identity(), critic, head)


def _statistics(folder: Path, columns: list[str], given: Mapping[str, Any] | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and deviation of each column."""
    stats: Mapping[str, Any]
    if given is not None:
        stats = given
    else:
        from lerobot.processor import PolicyProcessorPipeline

        pipeline = PolicyProcessorPipeline.from_pretrained(folder, config_filename="policy_preprocessor.json")
        stats = next((step.stats for step in pipeline.steps if getattr(step, "stats", None)), {})
    found = {}
    for name in columns:
        if name not in stats or not {"mean", "std"} <= set(stats[name]):
            raise ConfigError(f"load_act({str(folder)!r}): there are no mean and std of {name!r}. Next: statistics=, as meta.stats of the data set.")
        found[name] = (torch.as_tensor(stats[name]["mean"], dtype=torch.float32), torch.as_tensor(stats[name]["std"], dtype=torch.float32))
    return found
