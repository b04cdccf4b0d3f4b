"""A policy for the spaces of an environment."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import nn

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.encoders import CombinedEncoder
from rlinf_lab.policies.flow import Flow, FlowHead, VelocityMLP
from rlinf_lab.policies.heads import Head, check_box, make_head
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
    chunk: int | None = None,
    per_action: bool = False,
    flow: Flow | None = None,
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
    ``chunk``: so many actions of a Box are chosen at once, (B, chunk, *shape). ``per_action``: their log-probabilities
    and entropies are those of each action, (B, chunk), and not of the chunk (B).
    ``flow``: actions come of a flow-matching head with these settings; see `rlinf_lab.policies.flow`.
    ``seed`` fixes the initial weights whatever the global random state is, so two workers construct equal policies.
    Raises `ConfigError` naming the argument, or the leaf of a space which no policy can handle.
    """
    check_arguments(net_arch, activation, log_std_init, seed)
    preprocess = Preprocess(observation_space, normalize_obs)
    if per_action and chunk is None:
        raise ConfigError(
            "make_policy(per_action=True) is about the actions of a chunk. Next: chunk=5, or leave it out."
        )
    chosen_space = action_space if chunk is None else chunked(action_space, chunk)
    first = encoder_of(observation_space, encoder, seed, 0)
    second = first if share_encoder else encoder_of(observation_space, encoder, seed, 1)
    generator = torch.Generator().manual_seed(seed)
    features: int = first.features_dim  # type: ignore[assignment]
    head: Head
    if flow is None:
        head = make_head(chosen_space, log_std_init=log_std_init, squash=squash, per_action=per_action)
        actor = mlp([features, *net_arch, head.size], activation, 0.01, generator)
    else:
        box = flow_space(chosen_space, squash)
        velocity = VelocityMLP(int(np.prod(box.shape)), features, tuple(net_arch), activation, generator)
        head, actor = FlowHead(box, velocity, flow, per_action), nn.Sequential()
    critic = mlp([second.features_dim, *net_arch, 1], activation, 1.0, generator)  # type: ignore[list-item]
    return ActorCritic(preprocess, (first, second), actor, critic, head, activation)


def chunked(space: Space, chunk: int) -> spaces.Box:
    """The space of ``chunk`` actions of a Box, one after another along the first axis. Raises `ConfigError`."""
    if not whole_number(chunk, 1):
        raise ConfigError(f"chunk={shown(chunk)}: it must be a whole number of at least 1.")
    if not isinstance(space, spaces.Box):
        raise ConfigError(
            f"action_space is {shown(space)}: chunks are made of actions in a Box. Next: leave chunk out, or wrap the "
            f"environment with gymnasium.wrappers.TransformAction."
        )
    low, high = (np.repeat(bound[None], chunk, axis=0) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype)


def flow_space(space: Space, squash: bool) -> spaces.Box:
    """The space, if a flow can give actions in it. Raises `ConfigError`."""
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"action_space is {shown(space)}: a flow gives actions in a Box only. Next: leave flow out.")
    check_box(space, "action_space", bounded=False)
    if squash:
        raise ConfigError("make_policy(flow=..., squash=True): a flow is not squashed. Next: leave squash out.")
    return space


def encoder_of(space: Space, factory: Encoder | None, seed: int, number: int) -> nn.Module:
    """``number`` tells the encoders of one policy apart, so that their weights differ."""
    own_seed = derived_seed(seed, number)
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
    if not isinstance(module, nn.Module) or not whole_number(features, 1):
        raise ConfigError(
            f"make_policy(encoder=...) made {shown(module)} with features_dim={shown(features)}: it must be a torch "
            "module whose features_dim is the number of "
            f"features in the rows that it returns. Next: set self.features_dim in its __init__."
        )
    return module


def derived_seed(seed: int, number: int) -> int:
    """A seed for part ``number`` of a policy, so that equal parts have different weights."""
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])


def check_arguments(net_arch: Any, activation: Any, log_std_init: Any, seed: Any) -> None:
    """Raise `ConfigError` or `UnknownNameError` naming the argument of `make_policy` that cannot work."""
    if not isinstance(net_arch, (tuple, list)) or not all(whole_number(units, 1) for units in net_arch):
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
    if not whole_number(seed, 0):
        raise ConfigError(f"make_policy(seed={shown(seed)}): it must be a whole number of at least 0.")


def whole_number(value: object, least: int) -> bool:
    """Whether it is an integer of at least ``least``, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
