"""A policy with a value net for any space: encoder, two multilayer perceptrons, a head of actions.

    observation ──preprocess──> float32 ──encoder──> features ──actor──> parameters ──head──> action, log-probability
                                        ──encoder──> features ──critic─> value

Two separate nets (sharing layers couples the losses), tanh, orthogonal initialisation with a small last policy layer, a
log standard deviation that does not depend on the state, observations normalised inside: these choices are what
mattered in Andrychowicz et al., What Matters In On-Policy Reinforcement Learning? (arXiv 2006.05990), sections 3.1 to
3.3.

Legend: B batch, P parameters of the head, K numbers of noise, F numbers that are normalised, X features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import shown
from rlinf_lab.policies.deployable import Deployable
from rlinf_lab.policies.encoders import CombinedEncoder
from rlinf_lab.policies.heads import Head
from rlinf_lab.policies.leaves import flatten, unflatten
from rlinf_lab.policies.mlp import NumpyMLP
from rlinf_lab.policies.preprocess import Preprocess, fitting
from rlinf_lab.policies.weights import Weights

ROWS = 1024  # of images that pass the net at once where many are asked for: memory for all would be unbounded


class ActorCritic(nn.Module):
    """Chooses actions and values observations, both given as trees of arrays. Made by `make_policy`.

    Called as a module it evaluates actions with gradients; that is what DistributedDataParallel and `fully_shard` have
    their hooks on. `act` and `values` take and give numpy arrays, without gradients. On a CPU, without images and with
    the default encoder, `act` is numpy on the module's own memory.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        encoders: tuple[nn.Module, nn.Module],
        actor: nn.Sequential,
        critic: nn.Sequential,
        head: Head,
        activation: str,
    ) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.policy, self.critic, self.head = actor, critic, head
        self.encoder = encoders[0]
        self.shares_encoder = encoders[0] is encoders[1]
        if not self.shares_encoder:
            self.value_encoder = encoders[1]
        self.version = 0
        self._is_plain = preprocess.is_flat and isinstance(encoders[0], CombinedEncoder)
        self._numpy_actor = NumpyMLP(actor, activation)
        self._parts = preprocess, head  # the same again: a module looks its parts up slowly

    # --- torch: with gradients ------------------------------------------------------------------------
    def forward(self, obs: Any, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """What `evaluate_actions` gives, for trees of tensors on the module's device."""
        params_BP, value_B = self._both(self.preprocess(obs))
        return self.head.log_prob(params_BP, action), self.head.entropy(params_BP), value_B

    def evaluate_actions(self, obs: Any, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy (nats) and value, each (B), of trees of arrays or tensors. Call the wrapped module
        instead where there is one.
        """
        to = [self._tensors(space, tree) for space, tree in ((self.preprocess.space, obs), (self.head.space, action))]
        log_prob_B, entropy_B, value_B = self(*to)
        return log_prob_B, entropy_B, value_B

    def _both(self, prepared: Any) -> tuple[Tensor, Tensor]:
        features_BX = self.encoder(prepared)
        value_features_BX = features_BX if self.shares_encoder else self.value_encoder(prepared)
        return self.policy(features_BX), torch.squeeze_copy(
            self.critic(value_features_BX), -1
        )  # no view: FSDP's hooks stand on what is returned

    def _tensors(self, space: Any, tree: Any) -> Any:
        return unflatten(space, [torch.as_tensor(x, device=self.device) for x in flatten(space, tree)])

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.preprocess.obs_mean.device

    # --- numpy in, numpy out: without gradients ---------------------------------------------------------
    def act(self, obs: Any, noise_BK: NDArray | None) -> tuple[Any, NDArray[np.float32]]:
        """Actions, a tree with leaves (B, ...), and their log-probabilities in nats (B). ``noise_BK``: of `draw_noise`;
        None: the greedy action.

        The noise comes from outside so that whoever calls can give each environment a stream of its own.
        Raises `ValueError` that names the leaf of an observation that does not fit.
        """
        preprocess, head = self._parts
        if self._is_plain and preprocess.obs_mean.is_cpu:
            params_BP = self._numpy_actor(preprocess.numpy(obs))
        else:
            params_BP = self._params(obs)
        if noise_BK is not None and noise_BK.shape != (rows := (len(params_BP), head.noise_size)):
            raise ValueError(
                f"act: the noise has the shape {noise_BK.shape}; it must be {rows}. Next: policy.draw_noise(rng, "
                f"{rows[0]})."
            )
        return head.act(params_BP, noise_BK)

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """Noise for ``n`` actions, (n, K): what `act` takes."""
        return self.head.draw_noise(rng, n)

    def _params(self, obs: Any) -> NDArray:
        with torch.inference_mode():
            params: NDArray = self.policy(self.encoder(self.preprocess(self._checked(obs)))).float().cpu().numpy()
            return params

    def _checked(self, obs: Any) -> Any:
        space = self.preprocess.space
        arrays = [
            fitting(leaf, x) for leaf, x in zip(self.preprocess.leaves, flatten(space, obs, "observation"), strict=True)
        ]
        return self._tensors(space, unflatten(space, arrays))

    def values(self, obs: Any) -> NDArray[np.float32]:
        """Values of observations whose leaves are (..., *shape), float32, shape (...): whole trajectories at once."""
        space, leaves = self.preprocess.space, self.preprocess.leaves
        arrays = [np.asarray(x) for x in flatten(space, obs, "observation")]
        batch = arrays[0].shape[: arrays[0].ndim - len(leaves[0].shape)]
        arrays = [fitting(leaf, x.reshape(-1, *x.shape[len(batch) :])) for leaf, x in zip(leaves, arrays, strict=True)]
        rows = len(arrays[0])
        step = max(1, rows) if self._is_plain else ROWS
        with torch.inference_mode():
            parts = [
                self._values(unflatten(space, [x[i : i + step] for x in arrays])) for i in range(0, max(1, rows), step)
            ]
        return np.concatenate(parts).reshape(batch)

    def _values(self, obs: Any) -> NDArray[np.float32]:
        encoder = self.encoder if self.shares_encoder else self.value_encoder
        values: NDArray[np.float32] = (
            self.critic(encoder(self.preprocess(self._tensors(self.preprocess.space, obs))))
            .squeeze(-1)
            .float()
            .cpu()
            .numpy()
        )
        return values

    # --- normalisation ------------------------------------------------------------------------------------
    @property
    def normalised_size(self) -> int:
        """F: how many numbers of an observation are normalised; 0 with images and categories only."""
        return self.preprocess.obs_mean.numel()

    def numbers(self, obs: Any) -> NDArray:
        """The numbers of observations that are normalised, (..., F), for leaves of shape (..., *shape). Statistics are
        made of these rows.
        """
        return self.preprocess.numbers(obs)

    def set_normaliser(self, mean: Any, std: Any) -> None:
        """Replace the normalisation: rows (F) in the order of `numbers`, or trees like one observation, whose other
        leaves are not looked at.

        A number that never varied (std 0) is only centred. Nothing else changes it.
        """
        self.preprocess.set(mean, std)

    # --- weights ------------------------------------------------------------------------------------------
    def weights(self, state: Mapping[str, Tensor] | None = None) -> Weights:
        """A copy of all parameters and of the normalisation, in host memory. ``state``: they, where the module's own
        are sharded.
        """
        arrays = {key: tensor.detach().cpu().numpy().copy() for key, tensor in (state or self.state_dict()).items()}
        return Weights(arrays, self.version)

    def load(self, weights: Weights) -> None:
        """Take over ``weights``, in place. Raises `RuntimeError` (torch's, naming the keys) if they do not fit."""
        # np.array: a transport may hand out read-only memory, which torch warns about
        self.load_state_dict({key: torch.from_numpy(np.array(array)) for key, array in weights.arrays.items()})
        self.version = weights.version

    def as_deployable(self) -> nn.Module:
        """A module of its own from observations to greedy actions, trees of tensors (B, ...), normalisation inside: for
        `torch.export` and ONNX.
        """
        return Deployable(self.preprocess, self.encoder, self.policy, self.head)

    def extra_repr(self) -> str:
        parameters = sum(p.numel() for p in self.parameters())
        return f"version={self.version}, parameters={parameters}, action_space={shown(self.head.space)}"
