"""A policy with a value net, for any space.

Encoder, two multilayer perceptrons, a head of actions.

    observation ──preprocess──> float32 ──encoder──> features ──actor──> parameters ──head──> action, log-probability
                                        ──encoder──> features ──critic─> value

Two separate nets (sharing layers couples the losses), tanh, orthogonal initialisation with a small last policy layer, a
log standard deviation that does not depend on the state, observations normalised inside: these choices are what
mattered in Andrychowicz et al., What Matters In On-Policy Reinforcement Learning? (arXiv 2006.05990), sections 3.1 to
3.3.

Legend: B batch, P parameters of the head, K numbers of noise, F numbers that are normalised, X features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import shown
from rlinf_lab.policies import fused
from rlinf_lab.policies.encoders import CombinedEncoder
from rlinf_lab.policies.heads import Head
from rlinf_lab.policies.leaves import flatten, unflatten
from rlinf_lab.policies.mlp import NumpyMLP
from rlinf_lab.policies.preprocess import Preprocess, as_given, fitting
from rlinf_lab.policies.weights import PolicyWeights

ROWS = 1024  # of images that pass the net at once where many are asked for: memory for all would be unbounded


class Policy(nn.Module):
    """What every policy has: preprocessing with its statistics, a head of actions, weights that travel."""

    def __init__(self, preprocess: Preprocess, head: Head) -> None:
        super().__init__()
        self.preprocess, self.head = preprocess, head
        self.version = 0

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.preprocess.obs_mean.device

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """Noise for ``n`` actions, (n, K): what `act` takes."""
        return self.head.draw_noise(rng, n)

    def draw_clone_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """What the loss of cloning of ``n`` samples takes as ``clone_noise``."""
        return self.head.draw_clone_noise(rng, n)

    def executed(self, action: Any) -> Any:
        """The part of what `act` returned that environments get.

        All of it, but of a flow's chain the last point.

        What is learned from is what `act` returned.
        """
        return self.head.executed(action)

    # --- normalisation ------------------------------------------------------------------------------------
    @property
    def normalised_size(self) -> int:
        """F: how many numbers of an observation are normalised; 0 with images and categories only."""
        return self.preprocess.obs_mean.numel()

    def numbers(self, obs: Any) -> Any:
        """The numbers of observations that are normalised, (..., F), for leaves of shape (..., *shape).

        Statistics are made of these rows.
        """
        return self.preprocess.numbers(obs)

    def set_normaliser(self, mean: Any, std: Any) -> None:
        """Replace the normalisation: rows (F) in the order of `numbers`, or trees like one observation.

        Leaves that are not normalised are not looked at. A number that never varied (std 0) is only centred. Nothing
        else changes the normalisation.
        """
        self.preprocess.set(mean, std)

    # --- weights ------------------------------------------------------------------------------------------
    def weights(self, state: Mapping[str, Tensor] | None = None) -> PolicyWeights:
        """A copy of all parameters and of the normalisation, in host memory.

        ``state``: they, where the module's own are sharded. bfloat16, which numpy has not, travels as float32.
        """
        arrays = {key: _array(tensor) for key, tensor in (state or self.state_dict()).items()}
        return PolicyWeights(arrays, self.version)

    def load(self, weights: PolicyWeights) -> None:
        """Take over ``weights``, in place. Raises `RuntimeError` (torch's, naming the keys) if they do not fit."""
        # a transport may hand out read-only memory, which torch warns about
        arrays = {key: a if a.flags.writeable else np.array(a) for key, a in weights.arrays.items()}
        self.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        self.version = weights.version

    def extra_repr(self) -> str:
        parameters = sum(p.numel() for p in self.parameters())
        return f"version={self.version}, parameters={parameters}, action_space={shown(self.head.space)}"

    # --- for those that derive from it ----------------------------------------------------------------------
    def _tensors(self, space: Any, tree: Any) -> Any:
        tensors = [torch.as_tensor(x, device=self.device) for x in flatten(space, tree)]
        single = self.preprocess.obs_mean.dtype
        return unflatten(space, [x.to(single) if x.is_floating_point() else x for x in tensors])

    def _checked(self, obs: Any) -> Any:
        """Tensors of one batch of observations. Raises `ValueError` that names the leaf which does not fit."""
        space = self.preprocess.space
        leaves = zip(self.preprocess.leaves, flatten(space, obs, "observation"), strict=True)
        return self._tensors(space, unflatten(space, [fitting(leaf, x) for leaf, x in leaves]))

    def _check_noise(self, noise_BK: NDArray | None, rows: int) -> None:
        if noise_BK is not None and noise_BK.shape != (rows, self.head.noise_size):
            raise ValueError(
                f"act: the noise has the shape {noise_BK.shape}; it must be {(rows, self.head.noise_size)}. "
                f"Next: policy.draw_noise(rng, {rows})."
            )


def _array(tensor: Tensor) -> NDArray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()


def in_tensor(tree: Any) -> bool:
    """Whether the leaves of a tree are tensors: the first one tells."""
    while isinstance(tree, (dict, tuple)):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return isinstance(tree, Tensor)


class Deployable(nn.Module):
    """From observations, a tree of tensors (B, *shape), to greedy actions.

    Observations are as environments give them. Preprocessing and its statistics are inside. A copy: training on does not change it.
    """

    def __init__(self, preprocess: nn.Module, encoder: nn.Module, actor: nn.Module, head: Head) -> None:
        super().__init__()
        self.preprocess, self.encoder, self.actor, self.head = copy.deepcopy((preprocess, encoder, actor, head))
        self.eval().requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        return self.head.greedy(self.actor(self.encoder(self.preprocess(obs))))


class Actor(Policy):
    """Chooses actions, observations and actions given as trees of arrays, and nothing else. Made by `make_actor`.

    `act` takes and gives numpy arrays, without gradients; of observations in tensors, as simulators on a GPU hand them
    over, it gives tensors. On a CPU, without images and with the default encoder, it is numpy on the module's own
    memory.
    """

    def __init__(
        self, preprocess: Preprocess, encoder: nn.Module, actor: nn.Module, head: Head, activation: str = "tanh"
    ) -> None:
        super().__init__(preprocess, head)
        self.policy, self.encoder = actor, encoder
        self._is_plain = isinstance(actor, nn.Sequential) and len(actor) > 0 and {type(net) for net in actor} <= {nn.Linear, nn.ReLU}
        self._parts = preprocess, head  # the same again: a module looks its parts up slowly
        self._numpy_actor: NumpyMLP | None = None
        if preprocess.is_flat and isinstance(encoder, CombinedEncoder) and isinstance(actor, nn.Sequential):
            self._numpy_actor = NumpyMLP(actor, activation) if head.acts_in_numpy else None

    def forward(self, obs: Any, noise_BK: Tensor) -> Any:
        """Actions (B, ...) and log-probabilities (B), with gradients through both.

        Of tensors on the module's device. Reparametrised: SAC's and TD3's actors are trained through the action.
        """
        return self.head.sample(self.parameters_of(obs), noise_BK)

    def greedy(self, obs: Any) -> Any:
        """The most likely actions (B, ...) of tensors on the module's device, with gradients."""
        return self.head.greedy(self.parameters_of(obs))

    def parameters_of(self, obs: Any) -> Tensor:
        """Of the distribution over actions, (B, P), with gradients."""
        features_BX = self.encoder(self.preprocess(obs))
        if self._is_plain and fused.applies(features_BX):
            return fused.relu_perceptron(features_BX, [(net.weight, net.bias) for net in self.policy.children() if isinstance(net, nn.Linear)])
        params_BP: Tensor = self.policy(features_BX)
        return params_BP

    def act(self, obs: Any, noise_BK: Any) -> tuple[Any, Any]:
        """Actions, a tree with leaves (B, ...), and their log-probabilities in nats (B).

        ``noise_BK``: of `draw_noise`; None: the greedy action. The noise comes from outside so that whoever calls can
        give each environment a stream of its own. Raises `ValueError` naming the leaf of an observation that does not
        fit.
        """
        preprocess, head = self._parts
        in_tensors = in_tensor(obs)
        if self._numpy_actor is not None and preprocess.obs_mean.is_cpu and not in_tensors:
            params_BP = self._numpy_actor(preprocess.numpy(obs))
            if noise_BK is not None and noise_BK.shape != (len(params_BP), head.noise_size):
                self._check_noise(noise_BK, len(params_BP))
            return head.act(params_BP, noise_BK)
        with torch.inference_mode():
            tensors = self._checked(obs)
            self._check_noise(noise_BK, len(flatten(preprocess.space, tensors)[0]))
            params_BP = self.policy(self.encoder(self.preprocess(tensors)))
            return head.choose_there(params_BP, noise_BK) if in_tensors else head.choose(params_BP, noise_BK)

    def as_deployable(self) -> nn.Module:
        """A module of its own from observations to greedy actions, trees of tensors (B, ...).

        Normalisation is inside; made for `torch.export` and ONNX.
        """
        return Deployable(self.preprocess, self.encoder, self.policy, self.head)


class ActorCritic(Actor):
    """Chooses actions and values observations, both given as trees of arrays. Made by `make_policy`.

    Called as a module it evaluates actions with gradients; that is what DistributedDataParallel and `fully_shard` have
    their hooks on. `act` and `values` take and give numpy arrays, without gradients.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        encoders: tuple[nn.Module, nn.Module],
        actor: nn.Module,
        critic: nn.Module,
        head: Head,
        activation: str = "tanh",
    ) -> None:
        super().__init__(preprocess, encoders[0], actor, head, activation)
        self.critic = critic
        self.shares_encoder = encoders[0] is encoders[1]
        if not self.shares_encoder:
            self.value_encoder = encoders[1]

    # --- torch: with gradients ------------------------------------------------------------------------
    def forward(self, obs: Any, action: Any, clone_noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What `evaluate_actions` gives, for trees of tensors on the module's device.

        With ``clone_noise`` (of `draw_clone_noise`) the first is the loss of cloning instead of a log-probability, and
        ``action`` is what an expert executed.
        """
        prepared = self.preprocess(obs)
        features_BX = self.encoder(prepared)
        value_features_BX = features_BX if self.shares_encoder else self.value_encoder(prepared)
        params_BP, value_B1 = self.policy(features_BX), self.critic(value_features_BX)
        entropy = self.head.entropy(params_BP)
        if clone_noise is None:
            first = self.head.log_prob(params_BP, action)
        else:
            # DistributedDataParallel waits for a gradient of every parameter, those that cloning does not move too.
            first = self.head.clone_loss(params_BP, action, clone_noise) + 0.0 * (entropy.sum() + value_B1.sum())
        # No view: FSDP's hooks stand on what is returned.
        return first, entropy, torch.squeeze_copy(value_B1, -1)

    def evaluate_actions(self, obs: Any, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy (nats) and value, each (B), of trees of arrays or tensors.

        ``action``: what `act` returned. Call the wrapped module instead where there is one.
        """
        log_prob_B, entropy_B, value_B = self(
            self._tensors(self.preprocess.space, obs), self._tensors(self.head.space, action)
        )
        return log_prob_B, entropy_B, value_B

    def clone_loss(self, obs: Any, executed: Any, rng: np.random.Generator) -> Tensor:
        """How far the policy is from what an expert did, (B). Minus a log-probability, or the error of a flow."""
        noise = self.draw_clone_noise(rng, len(flatten(self.head.space, executed)[0]))
        trees = self._tensors(self.preprocess.space, obs), self._tensors(self.head.space, executed)
        loss_B: Tensor = self(*trees, torch.from_numpy(noise).to(self.device))[0]
        return loss_B

    def values(self, obs: Any) -> NDArray[np.float32]:
        """Values of observations whose leaves are (..., *shape), float32, shape (...): whole trajectories at once."""
        space, leaves = self.preprocess.space, self.preprocess.leaves
        arrays = [as_given(x) for x in flatten(space, obs, "observation")]
        batch = arrays[0].shape[: arrays[0].ndim - len(leaves[0].shape)]
        arrays = [fitting(leaf, x.reshape(-1, *x.shape[len(batch) :])) for leaf, x in zip(leaves, arrays, strict=True)]
        rows = len(arrays[0])
        step = max(1, rows) if self._numpy_actor is not None else ROWS
        with torch.inference_mode():
            blocks = [unflatten(space, [x[i : i + step] for x in arrays]) for i in range(0, max(1, rows), step)]
            return np.concatenate([self._values(block) for block in blocks]).reshape(batch)

    def _values(self, obs: Any) -> NDArray[np.float32]:
        encoder = self.encoder if self.shares_encoder else self.value_encoder
        value_B1 = self.critic(encoder(self.preprocess(self._tensors(self.preprocess.space, obs))))
        values: NDArray[np.float32] = value_B1.squeeze(-1).float().cpu().numpy()
        return values
