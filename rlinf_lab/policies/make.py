"""A policy for the spaces of an environment."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import nn

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.encoders import CombinedEncoder
from rlinf_lab.policies.heads import make_head
from rlinf_lab.policies.mlp import ACTIVATIONS, mlp
from rlinf_lab.policies.preprocess import Preprocess

Encoder = Callable[[Space], nn.Module]


def make_policy(
    observation_space: Space,
    action_space: Space,
    *,
    net_arch: Sequence[int] = (64, 64),
    activation: str = "tanh",
    log_std_init: float = -0.5,
    squash: bool = False,
    normalize_obs: bool = True,
    encoder: Encoder | None = None,
    share_encoder: bool = False,
    seed: int = 0,
) -> ActorCritic:
    """A policy and a value net for these spaces, of one environment.

    ``net_arch``: units of each hidden layer behind the encoder, of the policy and of the value net.
    ``activation``: "tanh", "relu", "elu" or "silu".
    ``log_std_init``: initial log standard deviation of every Gaussian.
    ``squash``: actions of a Box pass through tanh into its bounds.
    ``normalize_obs``: numbers of observations are normalised by what `ActorCritic.set_normaliser` is given; images and
    categories never are.
    ``encoder``: takes the observation space and returns a module from a prepared observation (B, ...) to rows
    (B, ``features_dim``), an attribute of it. Prepared: float32, images in [0, 1] with channels first, categories
    one-hot. Without one images get a convolutional net, and everything is joined in one row.
    ``share_encoder``: policy and value net have one encoder, not one each.
    ``seed`` fixes the initial weights whatever the global random state is, so two workers construct equal policies.
    Raises `ConfigError` naming the argument, or the leaf of a space which no policy can handle.
    """
    _check(net_arch, activation, log_std_init, seed)
    preprocess = Preprocess(observation_space, normalize_obs)
    head = make_head(action_space, log_std_init=log_std_init, squash=squash)
    first = _encoder(observation_space, encoder, seed, 0)
    second = first if share_encoder else _encoder(observation_space, encoder, seed, 1)
    generator = torch.Generator().manual_seed(seed)
    actor = mlp([first.features_dim, *net_arch, head.size], activation, 0.01, generator)  # type: ignore[list-item]
    critic = mlp([second.features_dim, *net_arch, 1], activation, 1.0, generator)  # type: ignore[list-item]
    return ActorCritic(preprocess, (first, second), actor, critic, head, activation)


def _encoder(space: Space, factory: Encoder | None, seed: int, number: int) -> nn.Module:
    """``number`` tells the encoders of one policy apart, so that their weights differ."""
    own_seed = int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])
    if factory is None:
        return CombinedEncoder(space, torch.Generator().manual_seed(own_seed))
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ConfigError(
            f"make_policy(encoder={shown(factory)}): it must be what makes a module, for policy and value net have one "
            "each. "
            f"Next: encoder=lambda observation_space: YourModule(...)."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own_seed)
        module = factory(space)
    features = getattr(module, "features_dim", None)
    if not isinstance(module, nn.Module) or not _whole(features, 1):
        raise ConfigError(
            f"make_policy(encoder=...) made {shown(module)} with features_dim={shown(features)}: it must be a torch "
            "module whose features_dim is the number of "
            f"features in the rows that it returns. Next: set self.features_dim in its __init__."
        )
    return module


def _check(net_arch: Any, activation: Any, log_std_init: Any, seed: Any) -> None:
    if not isinstance(net_arch, (tuple, list)) or not all(_whole(units, 1) for units in net_arch):
        raise ConfigError(
            f"make_policy(net_arch={shown(net_arch)}): it must be a tuple of whole numbers of at least 1, such as (64, "
            "64)."
        )
    if activation not in ACTIVATIONS:
        raise UnknownNameError.of("activation", activation, ACTIVATIONS)
    if not isinstance(log_std_init, numbers.Real) or not math.isfinite(log_std_init):
        raise ConfigError(
            f"make_policy(log_std_init={shown(log_std_init)}): it must be a finite number; -0.5 is a standard "
            "deviation of 0.6."
        )
    if not _whole(seed, 0):
        raise ConfigError(f"make_policy(seed={shown(seed)}): it must be a whole number of at least 0.")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
