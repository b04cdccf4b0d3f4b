"""A policy with memory: GRU or LSTM between encoder and perceptrons, its state explicit.

    observation ──preprocess, encoder──> features ──core──> memory ──actor──> parameters ──head──> action
                                            ▲         │
                                        state before  state after

The state goes in and comes out as one array, a row for each environment, so it can travel and lie in records like an
observation. Policy and value net have a core each. Legend: T time, N environments, X features, M memory, S state.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.policies.actor_critic import Policy
from rlinf_lab.policies.heads import Head, make_head
from rlinf_lab.policies.leaves import flatten, unflatten
from rlinf_lab.policies.make import Encoder, check_arguments, derived_seed, encoder_of, whole_number
from rlinf_lab.policies.mlp import mlp
from rlinf_lab.policies.preprocess import Preprocess

CORES: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}


class Core(nn.Module):
    """A recurrent layer over sequences in which episodes begin. Its state is one row (h, and c of an LSTM)."""

    def __init__(self, kind: str, features: int, size: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from the global state
            torch.manual_seed(seed)
            self.layer = CORES[kind](features, size)
        for name, parameter in self.layer.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
        self.size, self.parts = size, 2 if kind == "lstm" else 1
        self.state_size = size * self.parts

    def forward(self, x_TNX: Tensor, state_NS: Tensor, starts_TN: Tensor) -> tuple[Tensor, Tensor]:
        """Memory (T, N, M), and the state after the last step (N, S). Where an episode starts the state is zero."""
        begins = starts_TN.any(1).tolist()
        cuts = [0, *(t for t in range(1, len(begins)) if begins[t]), len(begins)]
        outputs = []
        for first, end in pairwise(cuts):
            state_NS = state_NS * (~starts_TN[first]).unsqueeze(-1)
            pieces = [piece.unsqueeze(0).contiguous() for piece in state_NS.split(self.size, dim=-1)]
            output, after = self.layer(x_TNX[first:end], tuple(pieces) if self.parts == 2 else pieces[0])
            state_NS = torch.cat(after, dim=-1)[0] if self.parts == 2 else after[0]
            outputs.append(output)
        return torch.cat(outputs), state_NS


class RecurrentActorCritic(Policy):
    """Chooses actions with memory, and learns from sequences. Made by `make_recurrent_policy`.

    ``state_size``: S, numbers of one environment's state; zeros where an episode begins (`initial_state`).
    Sequences are trees with leaves (T, N, *shape); ``starts_TN`` says before which steps an episode begins, and
    ``state_NS`` is the state before the first step. Called as a module it does what `evaluate_actions` does.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        encoders: tuple[nn.Module, nn.Module],
        cores: tuple[Core, Core],
        actor: nn.Module,
        critic: nn.Module,
        head: Head,
    ) -> None:
        super().__init__(preprocess, head)
        self.encoder, self.core, self.policy = encoders[0], cores[0], actor
        self.shares_encoder = encoders[0] is encoders[1]
        if not self.shares_encoder:
            self.value_encoder = encoders[1]
        self.value_core, self.critic = cores[1], critic
        self.state_size = cores[0].state_size + cores[1].state_size

    def initial_state(self, n: int) -> NDArray[np.float32]:
        """The state of ``n`` environments before their first step, (n, S): zeros."""
        return np.zeros((n, self.state_size), np.float32)

    # --- acting: one step -----------------------------------------------------------------------------------
    def act(
        self, obs: Any, noise_NK: NDArray | None, state_NS: NDArray
    ) -> tuple[Any, NDArray[np.float32], NDArray[np.float32]]:
        """Actions, their log-probabilities (N) and the state after this step (N, S). ``state_NS`` stays as it was.

        Put zeros into the rows of environments whose episode begins. ``noise_NK``: of `draw_noise`; None: greedy.
        Raises `ValueError` naming the leaf of an observation, or the state, that does not fit.
        """
        with torch.inference_mode():
            tensors = self._checked(obs)
            rows = len(flatten(self.preprocess.space, tensors)[0])
            self._check_noise(noise_NK, rows)
            state = self._state(state_NS, rows)
            starts_TN = torch.zeros(1, rows, dtype=torch.bool, device=self.device)
            memory_TNM, _, state = self._run(tensors, state, starts_TN)
            action, log_prob_N = self.head.choose(self.policy(memory_TNM[0]), noise_NK)
            return action, log_prob_N, state.cpu().numpy()

    # --- learning: sequences --------------------------------------------------------------------------------
    def forward(
        self, obs: Any, action: Any, state_NS: Tensor, starts_TN: Tensor, clone_noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `evaluate_actions` gives, for tensors on the module's device; ``clone_noise`` as of `ActorCritic`."""
        shape = starts_TN.shape
        memory_TNM, value_memory_TNM, _ = self._run(self._rows(self.preprocess.space, obs), state_NS, starts_TN)
        params_BP, value_B1 = self.policy(memory_TNM.flatten(0, 1)), self.critic(value_memory_TNM.flatten(0, 1))
        rows, entropy = self._rows(self.head.space, action), self.head.entropy(params_BP)
        if clone_noise is None:
            first = self.head.log_prob(params_BP, rows)
        else:  # a gradient for every parameter: see ActorCritic
            first = self.head.clone_loss(params_BP, rows, clone_noise) + 0.0 * (entropy.sum() + value_B1.sum())
        # No views: FSDP's hooks stand on what is returned.
        first, entropy = (torch.clone(x.unflatten(0, shape)) for x in (first, entropy))
        return first, entropy, torch.clone(value_B1.reshape(shape))

    def evaluate_actions(self, obs: Any, action: Any, state_NS: Any, starts_TN: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy (nats) and value, each (T, N), with gradients through time.

        They end where an episode starts.
        """
        starts = torch.as_tensor(starts_TN, dtype=torch.bool, device=self.device)
        trees = self._tensors(self.preprocess.space, obs), self._tensors(self.head.space, action)
        log_prob_TN, entropy_TN, value_TN = self(*trees, self._state(state_NS, starts.shape[1]), starts)
        return log_prob_TN, entropy_TN, value_TN

    def clone_loss(self, obs: Any, executed: Any, state_NS: Any, starts_TN: Any, rng: np.random.Generator) -> Tensor:
        """How far the policy is from what an expert did, (T, N)."""
        starts = torch.as_tensor(starts_TN, dtype=torch.bool, device=self.device)
        noise = torch.from_numpy(self.draw_clone_noise(rng, starts.numel())).to(self.device)
        trees = self._tensors(self.preprocess.space, obs), self._tensors(self.head.space, executed)
        loss_TN: Tensor = self(*trees, self._state(state_NS, starts.shape[1]), starts, noise)[0]
        return loss_TN

    def values(self, obs: Any, state_NS: Any, starts_TN: Any) -> NDArray[np.float32]:
        """Values of sequences, float32 (T, N)."""
        with torch.inference_mode():
            starts = torch.as_tensor(starts_TN, dtype=torch.bool, device=self.device)
            tensors = self._rows(self.preprocess.space, self._tensors(self.preprocess.space, obs))
            _, memory_TNM, _ = self._run(tensors, self._state(state_NS, starts.shape[1]), starts)
            values: NDArray[np.float32] = self.critic(memory_TNM).squeeze(-1).cpu().numpy()
            return values

    # --- both -----------------------------------------------------------------------------------------------
    def _run(self, obs: Any, state_NS: Tensor, starts_TN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Memory of policy and value net, and the last state, of rows (T·N, ...)."""
        prepared = self.preprocess(obs)
        features_BX = self.encoder(prepared)
        value_features_BX = features_BX if self.shares_encoder else self.value_encoder(prepared)
        first, second = state_NS.split([self.core.state_size, self.value_core.state_size], dim=-1)
        memory_TNM, first = self.core(features_BX.unflatten(0, starts_TN.shape), first, starts_TN)
        value_memory_TNM, second = self.value_core(value_features_BX.unflatten(0, starts_TN.shape), second, starts_TN)
        return memory_TNM, value_memory_TNM, torch.cat([first, second], dim=-1)

    @staticmethod
    def _rows(space: Any, tree: Any) -> Any:
        return unflatten(space, [x.flatten(0, 1) for x in flatten(space, tree)])

    def _state(self, state_NS: Any, rows: int) -> Tensor:
        state = torch.as_tensor(state_NS, dtype=torch.float32, device=self.device)
        if state.shape != (rows, self.state_size):
            raise ValueError(
                f"the state has the shape {tuple(state.shape)}; {rows} environments need {(rows, self.state_size)}. "
                f"Next: policy.initial_state({rows}) where episodes begin."
            )
        return state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, state_size={self.state_size}"


def make_recurrent_policy(
    observation_space: Space,
    action_space: Space,
    *,
    core: str = "gru",
    core_size: int = 64,
    net_arch: Sequence[int] = (64,),
    activation: str = "tanh",
    log_std_init: float = -0.5,
    squash: bool = False,
    normalize_obs: bool = True,
    encoder: Encoder | None = None,
    share_encoder: bool = False,
    seed: int = 0,
) -> RecurrentActorCritic:
    """A policy with memory for these spaces, of one environment.

    ``core``: "gru" or "lstm"; ``core_size``: units of its state, of policy and value net each. Flat observations go
    into the core as they are, images through a convolutional net. All else as in `make_policy`, with ``net_arch``
    behind the core. Raises `ConfigError` naming the argument, or the leaf of a space which no policy can handle.
    """
    check_arguments(net_arch, activation, log_std_init, seed)
    if core not in CORES:
        raise UnknownNameError.of("core", core, CORES)
    if not whole_number(core_size, 1):
        raise ConfigError(
            f"make_recurrent_policy(core_size={shown(core_size)}): it must be a whole number of at least 1."
        )
    preprocess = Preprocess(observation_space, normalize_obs)
    head = make_head(action_space, log_std_init=log_std_init, squash=squash)
    first = encoder_of(observation_space, encoder, seed, 0)
    second = first if share_encoder else encoder_of(observation_space, encoder, seed, 1)
    cores = [
        Core(core, each.features_dim, core_size, derived_seed(seed, 2 + i))  # type: ignore[arg-type]
        for i, each in enumerate((first, second))
    ]
    generator = torch.Generator().manual_seed(seed)
    actor = mlp([core_size, *net_arch, head.size], activation, 0.01, generator)
    critic = mlp([core_size, *net_arch, 1], activation, 1.0, generator)
    return RecurrentActorCritic(preprocess, (first, second), (cores[0], cores[1]), actor, critic, head)
