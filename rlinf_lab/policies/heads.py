"""Distributions over actions: from the parameters that a net gives to actions, log-probabilities and entropies.

Each head says everything twice, with one formula: in numpy for acting, and in torch for learning. Randomness comes from
outside, as one row of noise for each action, so that whoever calls can give each environment a stream of its own:
normal numbers for Gaussians, uniform ones for the inverse of a categorical's distribution function. Log-probabilities
and entropies are in nats, summed over the components of an action.

Legend: B batch, P parameters of the distribution, K numbers of noise, A components of an action, Q points of a
quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, article, shown
from rlinf_lab.policies.fused import squashed_sample
from rlinf_lab.policies.leaves import choices, first_choice
from rlinf_lab.policies.views import HostViews
from rlinf_lab.trees import map_tree

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
STATE_LOG_STD = (-20.0, 2.0)  # bounds of a log standard deviation that the net gives
_LARGEST = (
    1.0 - 2.0**-22
)  # of a squashed action, in units of its range: beyond, single precision knows no argument of tanh


class Head(nn.Module):
    """A distribution over the actions of a space."""

    space: Any
    """of the actions, gymnasium's"""
    size: int
    """P: numbers that the net gives for each action"""
    noise_size: int
    """K: numbers of noise that an action takes"""
    acts_in_numpy: bool = True
    """`act` computes in numpy; where it does not, `choose` is the shorter way"""

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """Noise for ``n`` actions, (n, K)."""
        raise NotImplementedError

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[Any, NDArray[np.float32]]:
        """Actions (B, ...) and their log-probabilities (B). Without noise the most likely ones (of a squashed Gaussian
        the squashed mean).
        """
        raise NotImplementedError

    def choose(self, params_BP: Tensor, noise_BK: NDArray | None) -> tuple[Any, NDArray[np.float32]]:
        """`act`, for parameters that lie in tensors, on whatever device. Called without gradients."""
        return self.act(params_BP.float().cpu().numpy(), noise_BK)

    def choose_there(self, params_BP: Tensor, noise_BK: Any) -> tuple[Any, Tensor]:
        """`act`, of tensors and in tensors, where the parameters are. ``noise_BK``: an array or a tensor."""
        host = noise_BK.cpu().numpy() if isinstance(noise_BK, Tensor) else noise_BK
        action, log_prob_B = self.choose(params_BP, host)
        device = params_BP.device
        return map_tree(lambda leaf: torch.as_tensor(leaf, device=device), action), torch.as_tensor(log_prob_B, device=device)

    def greedy(self, params_BP: Tensor) -> Any:
        """What an environment gets of `act` without noise."""
        raise NotImplementedError

    def executed(self, action: Any) -> Any:
        """The part of what `act` returned that an environment gets. All of it, unless the head says otherwise."""
        return action

    @property
    def executed_shape(self) -> tuple[int, ...] | None:
        """The shape of what an environment gets of one action.

        Of a chunk with its actions first; None: a tree of several.
        """
        return self.space.shape

    def sample(self, params_BP: Tensor, noise_BK: Tensor) -> tuple[Any, Tensor]:
        """What `act` gives, with gradients through the action (reparametrised); Gaussians can."""
        raise NotImplementedError(f"{type(self).__name__}: its actions have no gradient. Next: a Box of actions.")

    def tell_by_action(self) -> None:
        """Log-probabilities and entropies of a chunk are those of each action from now on.

        (B, K): they add up without those that no environment got. Where actions depend on one another nothing changes.
        """

    def log_prob(self, params_BP: Tensor, action: Any) -> Tensor:
        """Of each action, (B)."""
        raise NotImplementedError

    def entropy(self, params_BP: Tensor) -> Tensor:
        """Of the distribution over each action, (B)."""
        raise NotImplementedError

    def draw_clone_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """What `clone_loss` of ``n`` actions takes: nothing (n, 0), where the loss is a log-probability."""
        return np.zeros((n, 0), np.float32)

    def clone_loss(self, params_BP: Tensor, executed: Any, noise: Tensor) -> Tensor:
        """How far the policy is from having chosen what an expert did, (B)."""
        log_prob = self.log_prob(params_BP, executed)
        return -(log_prob if log_prob.dim() == 1 else log_prob.sum(1))


class GaussianHead(Head):
    """``action ~ Normal(mean, exp(log_std))``, the standard deviation a parameter of its own.

    Not squashed: an environment clips what leaves its range. The density is that of the action before it is clipped.
    ``per_action``: the space is one of chunks, whose first axis counts actions; log-probabilities and entropies are
    those of each of them, (B, that many). ``state_std``: the net gives the log standard deviations too, behind the
    means; they are kept within `STATE_LOG_STD`.
    """

    def __init__(
        self, space: spaces.Box, log_std_init: float, per_action: bool = False, state_std: bool = False
    ) -> None:
        super().__init__()
        self.space = space
        self.shape = tuple(space.shape)
        self.per_action, self.state_std = per_action, state_std
        self.noise_size = int(np.prod(self.shape))
        self.size = self.noise_size * (2 if state_std else 1)
        if not state_std:
            self.log_std = nn.Parameter(torch.full((self.noise_size,), float(log_std_init)))
            self._views = HostViews((self, "log_std"))

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        return rng.standard_normal((n, self.noise_size), dtype=np.float32)

    def tell_by_action(self) -> None:
        self.per_action = True

    def _numpy(self, params_BP: NDArray) -> tuple[NDArray, NDArray]:
        """Means (B, A) and log standard deviations (A or B, A)."""
        if self.state_std:
            mean_BA, log_std_BA = np.split(params_BP, 2, axis=1)
            return mean_BA, np.clip(log_std_BA, *STATE_LOG_STD)
        return params_BP, self._views()[0]

    def _torch(self, params_BP: Tensor) -> tuple[Tensor, Tensor]:
        if self.state_std:
            mean_BA, log_std_BA = params_BP.chunk(2, dim=1)
            return mean_BA, log_std_BA.clamp(*STATE_LOG_STD)
        return params_BP, self.log_std

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        mean_BA, log_std = self._numpy(params_BP)
        if noise_BK is None:
            return self._shaped(mean_BA), self._summed(np.broadcast_to(-(log_std + LOG_SQRT_2PI), mean_BA.shape))
        log_prob = self._summed(-0.5 * noise_BK * noise_BK - log_std - LOG_SQRT_2PI)
        return self._shaped(mean_BA + np.exp(log_std) * noise_BK), log_prob

    def choose_there(self, params_BP: Tensor, noise_BK: Any) -> tuple[Any, Tensor]:
        """Nothing goes to the host and back."""
        mean_BA = self._torch(params_BP)[0]
        noise = torch.zeros_like(mean_BA) if noise_BK is None else torch.as_tensor(noise_BK, device=mean_BA.device)
        action = self.sample(params_BP.float(), noise)[0]
        return action, self.log_prob(params_BP.float(), action)  # of what is returned, as the learner has it

    def _shaped(self, action_BA: Any) -> Any:
        return action_BA if len(self.shape) == 1 else action_BA.reshape(action_BA.shape[0], *self.shape)

    def _summed(self, each_BA: Any) -> Any:
        """Over the components of an action, or of a chunk."""
        return (each_BA.reshape(each_BA.shape[0], self.shape[0], -1) if self.per_action else each_BA).sum(-1)

    def greedy(self, params_BP: Tensor) -> Tensor:
        return self._shaped(self._torch(params_BP)[0])

    def sample(self, params_BP: Tensor, noise_BK: Tensor) -> tuple[Any, Tensor]:
        mean_BA, log_std = self._torch(params_BP)
        log_prob = self._summed(-0.5 * noise_BK.square() - log_std - LOG_SQRT_2PI)
        return self._shaped(mean_BA + log_std.exp() * noise_BK), log_prob

    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        mean_BA, log_std = self._torch(params_BP)
        z_BA = (action.reshape(mean_BA.shape) - mean_BA) * (-log_std).exp()
        return self._summed(-0.5 * z_BA.square() - log_std - LOG_SQRT_2PI)

    def entropy(self, params_BP: Tensor) -> Tensor:
        mean_BA, log_std = self._torch(params_BP)
        return self._summed(log_std + 0.5 + LOG_SQRT_2PI + torch.zeros_like(mean_BA))

    def extra_repr(self) -> str:
        return f"action {self.shape}"


class SquashedGaussianHead(GaussianHead):
    """A Gaussian that is squashed into the space's range.

    ``action = centre + reach · tanh(u)``, ``u ~ Normal(mean, exp(log_std))``: never outside.

    The log-density is exactly that of the action as it is returned, in single precision, so that acting and learning
    agree to rounding also where tanh saturates. Source: Haarnoja et al., Soft Actor-Critic (arXiv 1801.01290), appendix
    C. The entropy has no closed form: its only integral, over one dimension, is taken by Gauss-Hermite quadrature.
    """

    centre: Tensor
    reach: Tensor
    points: Tensor
    mass: Tensor
    _log_reach: Tensor

    def __init__(
        self, space: spaces.Box, log_std_init: float, per_action: bool = False, state_std: bool = False
    ) -> None:
        super().__init__(space, log_std_init, per_action, state_std)
        self._centre, self._reach = centre_and_reach(space)
        self.register_buffer("centre", torch.from_numpy(self._centre), persistent=False)
        self.register_buffer("reach", torch.from_numpy(self._reach), persistent=False)
        self.register_buffer("_log_reach", torch.from_numpy(np.log(self._reach)), persistent=False)
        points, mass = np.polynomial.hermite_e.hermegauss(32)
        self.register_buffer("points", torch.from_numpy(points).float(), persistent=False)
        self.register_buffer("mass", torch.from_numpy(mass / mass.sum()).float(), persistent=False)

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        mean_BA, log_std = self._numpy(params_BP)
        u_BA = mean_BA if noise_BK is None else mean_BA + np.exp(log_std) * noise_BK
        action_BA = self._centre + self._reach * np.tanh(u_BA)
        # Of what is returned: u itself is lost in rounding, and whoever learns has the action only.
        squashed_BA = np.clip((action_BA - self._centre) / self._reach, -_LARGEST, _LARGEST)
        above, below = np.log1p(squashed_BA), np.log1p(-squashed_BA)
        z_BA = (0.5 * (above - below) - mean_BA) * np.exp(-log_std)
        log_prob = -0.5 * z_BA * z_BA - log_std - LOG_SQRT_2PI - above - below - np.log(self._reach)
        return self._shaped(action_BA), self._summed(log_prob)

    def greedy(self, params_BP: Tensor) -> Tensor:
        return self._shaped(self.centre + self.reach * torch.tanh(self._torch(params_BP)[0]))

    def sample(self, params_BP: Tensor, noise_BK: Tensor) -> tuple[Any, Tensor]:
        if self.state_std:
            mean_BA, log_std_BA = params_BP.chunk(2, dim=1)
        else:
            mean_BA, log_std_BA = params_BP, self.log_std.expand_as(params_BP)
        bounds = STATE_LOG_STD if self.state_std else (-math.inf, math.inf)
        if params_BP.dtype != noise_BK.dtype:  # under autocast
            mean_BA, log_std_BA = mean_BA.to(noise_BK.dtype), log_std_BA.to(noise_BK.dtype)
        squashed_BA, log_prob_BA = squashed_sample(mean_BA, log_std_BA, noise_BK, bounds)
        return self._shaped(self.centre + self.reach * squashed_BA), self._summed(log_prob_BA - self._log_reach)

    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        mean_BA, log_std = self._torch(params_BP)
        squashed_BA = ((action.reshape(mean_BA.shape) - self.centre) / self.reach).clamp(-_LARGEST, _LARGEST)
        above, below = torch.log1p(squashed_BA), torch.log1p(-squashed_BA)
        z_BA = (0.5 * (above - below) - mean_BA) * (-log_std).exp()
        log_prob = -0.5 * z_BA.square() - log_std - LOG_SQRT_2PI - above - below - self.reach.log()
        return self._summed(log_prob)

    def entropy(self, params_BP: Tensor) -> Tensor:
        mean_BA, log_std = self._torch(params_BP)
        u_BAQ = mean_BA.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self.points
        return super().entropy(params_BP) + self._summed((_log_slope(u_BAQ) * self.mass).sum(-1) + self.reach.log())


class DeterministicHead(GaussianHead):
    """``centre + reach · tanh(params)``. Exploring adds Gaussian noise of a fixed size and clips, as TD3 does.

    ``std``: of the noise, in units of half the range. Log-probabilities are those before clipping. Source: Fujimoto et
    al., Addressing Function Approximation Error in Actor-Critic Methods (arXiv 1802.09477), algorithm 1.
    """

    centre: Tensor
    reach: Tensor

    def __init__(self, space: spaces.Box, std: float) -> None:
        super().__init__(space, math.log(std))
        self._centre, self._reach = centre_and_reach(space)
        self.register_buffer("centre", torch.from_numpy(self._centre), persistent=False)
        self.register_buffer("reach", torch.from_numpy(self._reach), persistent=False)
        self.log_std.requires_grad_(False)

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        squashed_BA, log_std_A = np.tanh(params_BP), self._views()[0]
        noise_BA = np.zeros_like(squashed_BA) if noise_BK is None else noise_BK
        explored_BA = np.clip(squashed_BA + np.exp(log_std_A) * noise_BA, -1.0, 1.0)
        log_prob = -0.5 * noise_BA * noise_BA - log_std_A - np.log(self._reach) - LOG_SQRT_2PI
        return self._shaped(self._centre + self._reach * explored_BA), self._summed(log_prob)

    def greedy(self, params_BP: Tensor) -> Tensor:
        return self._shaped(self.centre + self.reach * torch.tanh(params_BP))

    def sample(self, params_BP: Tensor, noise_BK: Tensor) -> tuple[Any, Tensor]:
        explored_BA = (torch.tanh(params_BP) + self.log_std.exp() * noise_BK).clamp(-1.0, 1.0)
        log_prob = -0.5 * noise_BK.square() - self.log_std - self.reach.log() - LOG_SQRT_2PI
        return self._shaped(self.centre + self.reach * explored_BA), self._summed(log_prob)

    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        away_BA = (action.reshape(params_BP.shape) - self.centre) / self.reach - torch.tanh(params_BP)
        z_BA = away_BA * (-self.log_std).exp()
        return self._summed(-0.5 * z_BA.square() - self.log_std - self.reach.log() - LOG_SQRT_2PI)

    def entropy(self, params_BP: Tensor) -> Tensor:
        return super().entropy(params_BP) + self._summed(self.reach.log() + torch.zeros_like(params_BP))


def centre_and_reach(space: spaces.Box) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The middle of a bounded Box and half its range, in one row each."""
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def _log_slope(u: Tensor) -> Tensor:
    """log(1 − tanh²u), stable for any u."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


class CategoricalHead(Head):
    """One of n values for each component of a Discrete or MultiDiscrete space. The net gives the logits."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        self.space = space
        self.counts = [int(n) for n in choices(space)]
        self.noise_size, self.size = len(self.counts), sum(self.counts)
        self._start = first_choice(space).copy()
        self.register_buffer("start", torch.from_numpy(self._start), persistent=False)

    start: Tensor

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        return rng.random((n, self.noise_size), dtype=np.float32)

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        chosen, log_prob_B, start = [], np.zeros(len(params_BP), np.float32), 0
        for i, count in enumerate(self.counts):
            logits = params_BP[:, start : start + count]
            start += count
            logits = logits - logits.max(1, keepdims=True)
            weights = np.exp(logits)
            if noise_BK is None:
                index = logits.argmax(1)
            else:
                below = weights.cumsum(1)
                index = (below <= noise_BK[:, i, None] * below[:, -1:]).sum(1)
                # a uniform number next to 1 may be rounded up to it
                index = np.minimum(index, count - 1 - (weights[:, ::-1] > 0).argmax(1))
            log_prob_B += logits[np.arange(len(index)), index] - np.log(weights.sum(1))
            chosen.append(index)
        return self._shaped(np.stack(chosen, 1) + self._start), log_prob_B

    def _shaped(self, action_BA: Any) -> Any:
        if isinstance(self.space, spaces.Discrete):
            return action_BA[:, 0]
        return action_BA if len(self.space.shape) == 1 else action_BA.reshape(action_BA.shape[0], *self.space.shape)

    def greedy(self, params_BP: Tensor) -> Tensor:
        return self._shaped(
            torch.stack([logits.argmax(1) for logits in params_BP.split(self.counts, 1)], 1) + self.start
        )

    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        index_BA = action.reshape(len(params_BP), -1).long() - self.start
        parts = params_BP.split(self.counts, 1)
        each = [F.log_softmax(logits, 1).gather(1, index_BA[:, i : i + 1]) for i, logits in enumerate(parts)]
        return torch.cat(each, 1).sum(1)

    def entropy(self, params_BP: Tensor) -> Tensor:
        logs = [F.log_softmax(logits, 1) for logits in params_BP.split(self.counts, 1)]
        return torch.cat([-(log.exp() * log).sum(1, keepdim=True) for log in logs], 1).sum(1)

    def extra_repr(self) -> str:
        return f"choices {self.counts}"


class BernoulliHead(Head):
    """Each component of a MultiBinary space is 1 with the probability ``sigmoid(logit)``."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.space = space
        self.shape = tuple(space.shape)
        self.size = self.noise_size = int(np.prod(self.shape))

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        return rng.random((n, self.size), dtype=np.float32)

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        if noise_BK is None:
            action_BA = params_BP > 0
        else:
            action_BA = noise_BK < 0.5 * (1.0 + np.tanh(0.5 * params_BP))
        log_prob_B = -np.logaddexp(0, np.where(action_BA, -params_BP, params_BP)).sum(1)
        return action_BA.astype(np.int8).reshape(len(action_BA), *self.shape), log_prob_B

    def greedy(self, params_BP: Tensor) -> Tensor:
        return (params_BP > 0).to(torch.int8).reshape(-1, *self.shape)

    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        is_one = action.reshape(params_BP.shape) > 0
        return -F.softplus(torch.where(is_one, -params_BP, params_BP)).sum(1)

    def entropy(self, params_BP: Tensor) -> Tensor:
        return (F.softplus(params_BP) - params_BP * torch.sigmoid(params_BP)).sum(1)

    def extra_repr(self) -> str:
        return f"action {self.shape}"


class MixedHead(Head):
    """A head for each entry of a Dict or Tuple of actions. Log-probabilities and entropies add up."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, heads: Sequence[Head]) -> None:
        super().__init__()
        self.space = space
        self.heads = nn.ModuleList(heads)
        self._keys: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(heads)))
        self._sizes, self._noise_sizes = [head.size for head in heads], [head.noise_size for head in heads]
        self.size, self.noise_size = sum(self._sizes), sum(self._noise_sizes)

    def _each(self, params_BP: Tensor) -> list[tuple[Any, Any, Tensor]]:
        """The key, head and parameters of every entry."""
        return list(zip(self._keys, self.heads, params_BP.split(self._sizes, 1), strict=True))

    def _joined(self, actions: Sequence[Any]) -> Any:
        return dict(zip(self._keys, actions, strict=True)) if isinstance(self.space, spaces.Dict) else tuple(actions)

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        heads: list[Any] = list(self.heads)
        return np.concatenate([head.draw_noise(rng, n) for head in heads], axis=1)

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[Any, NDArray[np.float32]]:
        params = np.split(params_BP, np.cumsum(self._sizes)[:-1], axis=1)
        noise = (
            [None] * len(params) if noise_BK is None else np.split(noise_BK, np.cumsum(self._noise_sizes)[:-1], axis=1)
        )
        heads: list[Any] = list(self.heads)
        actions, log_probs = zip(
            *(head.act(p, k) for head, p, k in zip(heads, params, noise, strict=True)), strict=True
        )
        return self._joined(actions), np.sum(log_probs, axis=0, dtype=np.float32)

    def greedy(self, params_BP: Tensor) -> Any:
        return self._joined([head.greedy(p) for _, head, p in self._each(params_BP)])

    def log_prob(self, params_BP: Tensor, action: Any) -> Tensor:
        return torch.stack([head.log_prob(p, action[key]) for key, head, p in self._each(params_BP)]).sum(0)

    def entropy(self, params_BP: Tensor) -> Tensor:
        return torch.stack([head.entropy(p) for _, head, p in self._each(params_BP)]).sum(0)


def make_head(
    space: Space,
    *,
    log_std_init: float = -0.5,
    squash: bool = False,
    per_action: bool = False,
    name: str = "action_space",
) -> Head:
    """The head for a space of actions. Raises `ConfigError` naming a leaf for which there is none, and what to do."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        heads = [
            make_head(part, log_std_init=log_std_init, squash=squash, name=f"{name}[{key!r}]") for key, part in parts
        ]
        if not heads:
            raise ConfigError(
                f"{name} is {shown(space)}: nothing can be chosen. Next: give the environment at least one action."
            )
        return MixedHead(space, heads)
    if isinstance(space, spaces.Box):
        check_box(space, name, squash)
        return (SquashedGaussianHead if squash else GaussianHead)(space, log_std_init, per_action)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    what = "" if isinstance(space, Space) else f", {article(type(space).__name__)} and no gymnasium space"
    raise ConfigError(
        f"{name} is {shown(space)}{what}: policies act in Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of "
        f"those. Next: gymnasium.wrappers.TransformAction to one of them."
    )


def check_box(space: spaces.Box, name: str, bounded: bool) -> None:
    """Raise `ConfigError` unless a Box can hold actions, with bounds where needed."""
    if not np.prod(space.shape):
        raise ConfigError(
            f"{name} is {shown(space)}: nothing can be chosen. Next: give the environment at least one action."
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"{name} is {shown(space)}, a Box of {space.dtype}: a Gaussian is not made for whole numbers. Next: "
            "declare "
            f"it as MultiDiscrete, or wrap it with gymnasium.wrappers.TransformAction."
        )
    if bounded and not (space.is_bounded() and (space.low < space.high).all()):
        raise ConfigError(
            f"{name} is {shown(space)}: squash=True needs finite bounds, the lower below the upper one. Next: "
            f"squash=False, or bounds by gymnasium.wrappers.RescaleAction or ClipAction."
        )
