"""Actors and ensembles of critics for SAC, TD3, CrossQ and RLPD.

    observation ──Actor──> action (reparametrised) ──┐
    observation ─────────────────────────────────────┴─QEnsemble──> K values

The critics of an ensemble are one net whose weights have a leading axis: a batched product costs little more than one
critic alone. Legend: K critics, B batch, I inputs, U outputs of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies import fused
from rlinf_lab.policies.actor_critic import Actor
from rlinf_lab.policies.heads import DeterministicHead, Head, SquashedGaussianHead, centre_and_reach, check_box
from rlinf_lab.policies.leaves import in_rows
from rlinf_lab.policies.make import Encoder, check_arguments, derived_seed, encoder_of, whole_number
from rlinf_lab.policies.mlp import ACTIVATIONS, blank
from rlinf_lab.policies.preprocess import Preprocess

NORMS = ("layer", "batch")


class LinearEnsemble(nn.Module):
    """K linear layers side by side. (K, B, I) or (B, I) to (K, B, U)."""

    def __init__(self, critics: int, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)  # as torch's own linear layers begin
        self.weight = nn.Parameter(torch.empty(critics, inputs, outputs).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(critics, 1, outputs).uniform_(-bound, bound, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            x = x.expand(self.weight.shape[0], -1, -1)
        return torch.baddbmm(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        critics, inputs, outputs = self.weight.shape
        return f"{critics} critics, {inputs} -> {outputs}"


class NormEnsemble(nn.Module):
    """K normalisations side by side of (K, B, U). Over the features of a row, or over the rows of a batch."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, kind: str, critics: int, features: int) -> None:
        super().__init__()
        self.kind, self.features = kind, features
        self.weight = nn.Parameter(torch.ones(critics, 1, features))
        self.bias = nn.Parameter(torch.zeros(critics, 1, features))
        if kind == "batch":
            self.register_buffer("running_mean", torch.zeros(critics * features))
            self.register_buffer("running_var", torch.ones(critics * features))

    def forward(self, x_KBU: Tensor) -> Tensor:
        if self.kind == "layer":
            return torch.addcmul(self.bias, F.layer_norm(x_KBU, (self.features,)), self.weight)
        rows = x_KBU.transpose(0, 1)
        flat = F.batch_norm(rows.flatten(1), self.running_mean, self.running_var, training=self.training, momentum=0.01)
        return torch.addcmul(self.bias, flat.unflatten(1, rows.shape[1:]).transpose(0, 1), self.weight)

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.features}"


class QEnsemble(nn.Module):
    """K values of observations and actions.

    ``q(obs, action)`` is (K, B), of trees of tensors (B, ...).

    Actions enter in units of their range where they have bounds. A target is ``copy.deepcopy(q)``, moved by
    `rlinf_lab.algorithms.polyak_update`. With batch normalisation ``train()`` uses the batch's statistics, ``eval()``
    those that ran along.
    """

    def __init__(
        self, preprocess: Preprocess, encoder: nn.Module, nets: Sequence[nn.Module], action_space: spaces.Box
    ) -> None:
        super().__init__()
        self.preprocess, self.encoder, self.net = preprocess, encoder, nn.Sequential(*nets)
        self.action_space = action_space
        kinds = {type(net) for net in nets}
        self._is_plain = kinds <= {LinearEnsemble, nn.ReLU}
        centre, reach = np.zeros(1, np.float32), np.ones(1, np.float32)
        if action_space.is_bounded():
            centre, reach = centre_and_reach(action_space)
        self.register_buffer("centre", torch.from_numpy(centre), persistent=False)
        self.register_buffer("reach", torch.from_numpy(reach), persistent=False)

    centre: Tensor
    reach: Tensor

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        scaled_BA = (in_rows(action) - self.centre) / self.reach
        features_BX = self.encoder(self.preprocess(obs))
        x_BI = torch.cat([features_BX, scaled_BA], dim=1)
        if self._is_plain and fused.applies(x_BI):
            return fused.relu_perceptron(x_BI, [(net.weight, net.bias) for net in self.net if isinstance(net, LinearEnsemble)]).squeeze(-1)
        # No view: FSDP's hooks stand on what is returned.
        return torch.squeeze_copy(self.net(x_BI), -1)

    def set_normaliser(self, mean: Any, std: Any) -> None:
        """As of `Policy`, where it was made with ``normalize_obs=True``."""
        self.preprocess.set(mean, std)


def make_actor(
    observation_space: Space,
    action_space: Space,
    *,
    deterministic: bool = False,
    exploration_std: float = 0.1,
    net_arch: Sequence[int] = (256, 256),
    activation: str = "relu",
    normalize_obs: bool = False,
    encoder: Encoder | None = None,
    seed: int = 0,
) -> Actor:
    """An actor without a value net, as SAC and TD3 train it.

    Its actions are in a bounded Box.

    A squashed Gaussian whose mean and standard deviation depend on the observation (SAC), or ``deterministic`` with
    ``exploration_std`` of noise, in units of half the range (TD3). All else as in `make_policy`. Called as a module,
    ``actor(obs, noise)`` gives actions and log-probabilities with gradients. Raises `ConfigError`.
    """
    check_arguments(net_arch, activation, 0.0, seed)
    space = _bounded(action_space)
    if not isinstance(exploration_std, (int, float)) or not 0 < exploration_std < math.inf:
        raise ConfigError(f"make_actor(exploration_std={shown(exploration_std)}): it must be a number greater than 0.")
    head: Head
    if deterministic:
        head = DeterministicHead(space, float(exploration_std))
    else:
        head = SquashedGaussianHead(space, 0.0, state_std=True)
    module = encoder_of(observation_space, encoder, seed, 0)
    net = _net(int(module.features_dim), net_arch, head.size, activation, derived_seed(seed, 1))  # type: ignore[arg-type]
    return Actor(Preprocess(observation_space, normalize_obs), module, net, head, activation)


def make_q_ensemble(
    observation_space: Space,
    action_space: Space,
    *,
    critics: int = 2,
    net_arch: Sequence[int] = (256, 256),
    activation: str = "relu",
    norm: str | None = None,
    normalize_obs: bool = False,
    encoder: Encoder | None = None,
    seed: int = 0,
) -> QEnsemble:
    """``critics`` nets from observation and action to a value, with weights of their own.

    ``norm``: "layer" behind each hidden layer, which RLPD needs (Ball et al., arXiv 2302.02948, section 4.2), or
    "batch" before each, as CrossQ's critics have no targets (Bhatt et al., arXiv 1902.05605). Raises `ConfigError`.
    """
    check_arguments(net_arch, activation, 0.0, seed)
    if not whole_number(critics, 1):
        raise ConfigError(f"make_q_ensemble(critics={shown(critics)}): it must be a whole number of at least 1.")
    if norm is not None and norm not in NORMS:
        raise ConfigError(f"make_q_ensemble(norm={shown(norm)}): it must be 'layer', 'batch' or None.")
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_space is {shown(action_space)}: these critics value actions in a Box only.")
    check_box(action_space, "action_space", bounded=False)
    module = encoder_of(observation_space, encoder, seed, 2)
    generator = torch.Generator().manual_seed(derived_seed(seed, 3))
    inputs = int(module.features_dim) + int(np.prod(action_space.shape))  # type: ignore[arg-type]
    sizes = [inputs, *net_arch, 1]
    nets: list[nn.Module] = [NormInput(critics, inputs)] if norm == "batch" else []
    for index, (before, after) in enumerate(pairwise(sizes)):
        nets.append(LinearEnsemble(critics, before, after, generator))
        if index < len(sizes) - 2:
            if norm == "layer":
                nets.append(NormEnsemble(norm, critics, after))
            nets.append(ACTIVATIONS[activation][0]())
            if norm == "batch":
                nets.append(NormEnsemble(norm, critics, after))
    return QEnsemble(Preprocess(observation_space, normalize_obs), module, nets, action_space)


class NormInput(NormEnsemble):
    """Batch normalisation of what all critics read: (B, I) to (K, B, I)."""

    def __init__(self, critics: int, features: int) -> None:
        super().__init__("batch", critics, features)

    def forward(self, x_BI: Tensor) -> Tensor:
        return super().forward(x_BI.expand(self.weight.shape[0], -1, -1))


def _bounded(space: Space) -> spaces.Box:
    if not isinstance(space, spaces.Box):
        raise ConfigError(
            f"action_space is {shown(space)}: SAC and TD3 act in a Box. Next: lab.train('ppo', ...), which acts in "
            "every space."
        )
    check_box(space, "action_space", bounded=False)
    if not space.is_bounded() or not (space.low < space.high).all():
        raise ConfigError(
            f"action_space is {shown(space)}: it needs finite bounds, the lower below the upper one. Next: "
            f"gymnasium.wrappers.RescaleAction or ClipAction."
        )
    return space


def _net(inputs: int, net_arch: Sequence[int], outputs: int, activation: str, seed: int) -> nn.Sequential:
    """A perceptron that begins as torch's linear layers do, which SAC's and TD3's authors used."""
    generator, layers = torch.Generator().manual_seed(seed), list[nn.Module]()
    for before, after in pairwise([inputs, *net_arch, outputs]):
        linear = blank(nn.Linear, before, after)
        bound = 1.0 / math.sqrt(before)
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.uniform_(-bound, bound, generator=generator)
        layers += [linear, ACTIVATIONS[activation][0]()]
    return nn.Sequential(*layers[:-1])
