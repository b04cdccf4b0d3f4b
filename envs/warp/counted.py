"""Random numbers that belong to an environment and an episode.

The same on every device, however environments are grouped, without a state.

Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (OOPSLA 2014), the mixing function of SplitMix64. Legend: N environments, K numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GAMMA, _ONE, _TWO = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # as int64 has them


def uniform(seed_N: Tensor, episode_N: Tensor, count: int) -> Tensor:
    """``count`` numbers in [0, 1) for each environment, float32 (N, count). ``seed_N``, ``episode_N``: int64."""
    place_K = torch.arange(1, count + 1, device=seed_N.device)
    key_N = _mixed(_mixed(seed_N * _GAMMA) + episode_N * _GAMMA)
    bits_NK = _mixed(key_N[:, None] + place_K * _GAMMA)
    return _shifted(bits_NK, 40).to(torch.float32) * 2.0**-24


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _ONE
    x = (x ^ _shifted(x, 27)) * _TWO
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in: int64 would bring its sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
