"""A small Gaussian policy with its own value net: the usual one for control from state.

Two separate nets (sharing layers couples the losses), tanh, orthogonal initialisation with a small last policy layer, a log standard
deviation that does not depend on the state, observations normalised inside: these choices are what mattered in Andrychowicz et al.,
What Matters In On-Policy Reinforcement Learning? (arXiv 2006.05990), sections 3.1 to 3.3.

Legend: B batch, O observation, A action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.policies.weights import Weights

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_CLIP = 10.0  # standard deviations: one strange observation must not saturate the net


class _Views(NamedTuple):
    """Numpy arrays over the memory of the policy's tensors."""

    mean_O: NDArray
    std_O: NDArray
    layers: list[tuple[NDArray, NDArray]]
    """(weight, bias) of each linear layer, weight as inputs × outputs"""
    address: int
    """of ``obs_mean`` when they were made; they keep its memory alive, so another address means that the tensors have moved"""


class GaussianMLP(nn.Module):
    """``mean = net((obs − obs_mean) / obs_std)``, ``action ~ Normal(mean, exp(log_std))``.

    ``seed`` fixes the initial weights whatever the global random state is, so that two workers can construct equal policies.
    Actions are not squashed: the environment clips them. The density is that of the unclipped action.
    """

    obs_mean: Tensor
    obs_std: Tensor

    def __init__(
        self, obs_size: int, action_size: int, *, hidden: Sequence[int] = (64, 64), log_std: float = -0.5, seed: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.policy = _mlp([obs_size, *hidden, action_size], 0.01, generator)
        self.critic = _mlp([obs_size, *hidden, 1], 1.0, generator)
        self.log_std = nn.Parameter(torch.full((action_size,), float(log_std)))
        self.register_buffer("obs_mean", torch.zeros(obs_size))
        self.register_buffer("obs_std", torch.ones(obs_size))
        self.version = 0
        self._views: _Views | None = None

    # --- torch: with gradients ------------------------------------------------------------------------
    def normalise(self, obs_BO: Tensor) -> Tensor:
        return ((obs_BO - self.obs_mean) / self.obs_std).clamp(-_CLIP, _CLIP)

    def forward(self, obs_BO: Tensor) -> tuple[Tensor, Tensor]:
        """Mean action (B×A) and value (B)."""
        normal_BO = self.normalise(obs_BO)
        return self.policy(normal_BO), torch.squeeze_copy(self.critic(normal_BO), -1)  # no view: FSDP's hooks stand on what is returned

    # --- numpy in, numpy out: without gradients ---------------------------------------------------------
    def act(self, obs_BO: NDArray, noise_BA: NDArray | None) -> tuple[NDArray, NDArray]:
        """Actions (B×A) and their log-densities in nats (B), float32. ``noise_BA`` is standard normal; None: the greedy action.

        The noise comes from outside so that whoever calls can give each environment a stream of its own. On a CPU
        this runs in numpy on the module's own memory: at the batch sizes of one robot group torch's dispatch costs several
        times the arithmetic (``benchmarks/policy_inference.py``). The numbers agree to 1e-6.
        """
        mean_BA = self._mean(np.asarray(obs_BO, dtype=np.float32))
        log_std_A = self.log_std.detach().cpu().numpy()
        if noise_BA is None:
            return mean_BA, np.full(len(mean_BA), -(log_std_A + _LOG_SQRT_2PI).sum(), np.float32)
        log_prob_B = (-0.5 * noise_BA * noise_BA - log_std_A - _LOG_SQRT_2PI).sum(-1)
        return mean_BA + np.exp(log_std_A) * noise_BA, log_prob_B

    def values(self, obs: NDArray) -> NDArray:
        """Values of observations of shape (..., O), float32, shape (...). One pass of torch: meant for whole trajectories."""
        with torch.inference_mode():
            tensor = torch.as_tensor(obs, dtype=torch.float32, device=self.log_std.device)
            return self.critic(self.normalise(tensor)).squeeze(-1).cpu().numpy()

    def _mean(self, obs_BO: NDArray) -> NDArray:
        if self.log_std.device.type != "cpu":
            with torch.inference_mode():
                return self.policy(self.normalise(torch.from_numpy(obs_BO).to(self.log_std.device))).cpu().numpy()
        views = self._views
        if views is None or views.address != self.obs_mean.data_ptr():
            views = self._make_views()
        mean_O, std_O, layers, _ = views
        x = np.minimum(np.maximum((obs_BO - mean_O) / std_O, -_CLIP), _CLIP)
        for weight, bias in layers[:-1]:
            x = np.tanh(x @ weight + bias)
        weight, bias = layers[-1]
        return x @ weight + bias

    def _make_views(self) -> _Views:
        # Shared memory, so `load` and an optimiser step change both sides.
        linear = [m for m in self.policy if isinstance(m, nn.Linear)]
        layers = [(m.weight.detach().numpy().T, m.bias.detach().numpy()) for m in linear]
        self._views = _Views(self.obs_mean.numpy(), self.obs_std.numpy(), layers, self.obs_mean.data_ptr())
        return self._views

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> GaussianMLP:
        self._views = None  # the tensors may move to other memory
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": None}  # a copy must not write through views of the original

    # --- weights ------------------------------------------------------------------------------------------
    def set_normaliser(self, mean_O: NDArray, std_O: NDArray) -> None:
        """Replace the normalisation. A feature that never varied (std 0) is only centred."""
        std = np.where(np.asarray(std_O) > 1e-6, std_O, 1.0)
        self.obs_mean.copy_(torch.as_tensor(np.asarray(mean_O), dtype=torch.float32))
        self.obs_std.copy_(torch.as_tensor(std, dtype=torch.float32))

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Weights:
        """A copy of all parameters and of the normalisation, in host memory. ``state``: they, where the module's own are sharded."""
        arrays = {key: tensor.detach().cpu().numpy().copy() for key, tensor in (state or self.state_dict()).items()}
        return Weights(arrays, self.version)

    def load(self, weights: Weights) -> None:
        """Take over ``weights``, in place. Raises `RuntimeError` (torch's, naming the keys) if they do not fit."""
        # np.array: a transport may hand out read-only memory, which torch warns about
        self.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in weights.arrays.items()})
        self.version = weights.version

    def extra_repr(self) -> str:
        return f"version={self.version}, parameters={sum(p.numel() for p in self.parameters())}"


def _mlp(sizes: Sequence[int], last_gain: float, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = index == len(sizes) - 2
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # default init would draw from the global state
        nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)
