"""Actions by flow matching: a velocity field carries noise to actions.

For cloning and for reinforcement learning.

    x_0 ~ N(0, 1) ──v(x_0, 0)──> x_1 ──v(x_1, 1/S)──> ... ──> x_S: the action (or chunk of actions) that is executed

*Cloning* fits the field: Lipman et al., Flow Matching for Generative Modeling (arXiv 2210.02747), equation 23 with the
optimal-transport path of equation 22 at σ_min = 0: ``x_t = (1 − t) x_0 + t·action``, loss ``|v(x_t, t) − (action −
x_0)|²``. Times are drawn from 0 to ``1 − 1/S``, the last at which S steps ask for a velocity: beyond it the target is hardest, and nobody goes there
(as π0, Black et al., arXiv 2410.24164, appendix B). The nets made here say where the flow ends, see `towards`.

*Reinforcement learning* needs a log-density, and the one of an ordinary differential equation has no cheap form. With
Gaussian noise in every step the chain is a Markov process whose joint density is exact, as in ReinFlow (Zhang et al.,
arXiv 2505.22094): ``x_{k+1} ~ N(x_k + v(x_k, k/S)/S, σ_k²)``. Here the last N steps have noise and those before have
none, as in the mixture of both of Li et al., MixGRPO (arXiv 2507.21802): they are a function of x_0, through which
gradients pass. So ``(x_0, x_{S−N+1}, ..., x_S)`` has an exact density as well, and its log-ratio under two policies is
a valid importance ratio for whatever is done with x_S. Therefore this chain is what `act` returns and what is learned
from. σ_k does not depend on the observation, so the chain's entropy is exact too.

Legend: B batch, D numbers in an action or chunk, S steps, N of them with noise, C chain of N + 1 points, X features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.policies.heads import Head
from rlinf_lab.policies.mlp import NumpyMLP, mlp
from rlinf_lab.policies.views import HostViews

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
FREQUENCIES = 4  # of the time, as the velocity sees it: sin and cos of π/2, π, 2π, 4π times t


@dataclass(frozen=True)
class Flow:
    """Settings of a flow-matching head. Raises `ConfigError` naming the field."""

    steps: int = 4
    """S, Euler steps from noise to action"""
    std: float = 0.1
    """initial standard deviation of the noise injected in a step, in units of the action's range [-1, 1]"""
    least_std: float = 0.02
    """below which it cannot be learned"""
    most_std: float = 0.5
    """above which it cannot be learned"""
    noisy_steps: int = 1
    """N, the last steps, into which noise is injected; ``steps``: all of them, as ReinFlow does"""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ConfigError(f"Flow(steps={shown(self.steps)}): it must be a whole number of at least 1.")
        if not isinstance(self.noisy_steps, int) or not 1 <= self.noisy_steps <= self.steps:
            raise ConfigError(f"Flow(noisy_steps={shown(self.noisy_steps)}): a whole number from 1 to steps={self.steps}.")
        if not 0 < self.least_std < self.std < self.most_std:
            raise ConfigError(
                f"Flow(least_std={self.least_std}, std={self.std}, most_std={self.most_std}): they must be positive "
                "and "
                f"in this order, none equal to another."
            )


def towards(end_BD: Any, x_BD: Any, t: Any) -> Any:
    """The velocity from x at time t < 1 to ``end_BD`` at time 1.

    A net that gives the velocity itself must first learn to subtract its input, most exactly near the end; one that
    gives the end need not (Li and He, Back to Basics: Let Denoising Generative Models Denoise, arXiv 2511.13720).
    Policies of before, whose nets gave the velocity, are refused by the names of their weights: ``end`` was ``net``.
    """
    return (end_BD - x_BD) / (1.0 - t)


class VelocityMLP(nn.Module):
    """``v(x, t, features)`` `towards` what a multilayer perceptron says.

    It reads all of them in one row. Runs in numpy too.
    """

    def __init__(
        self, size: int, features: int, net_arch: tuple[int, ...], activation: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.features = features
        self.end = mlp([size + 2 * FREQUENCIES + features, *net_arch, size], activation, 0.01, generator)
        self._numpy_end = NumpyMLP(self.end, activation)

    def forward(self, x_BD: Tensor, t_B: Tensor, features_BX: Tensor) -> Tensor:
        angle = t_B.unsqueeze(-1) * x_BD.new_tensor(_angles())
        end_BD = self.end(torch.cat([x_BD, angle.sin(), angle.cos(), features_BX], dim=-1))
        return towards(end_BD, x_BD, t_B.unsqueeze(-1))

    def numpy(self, x_BD: NDArray, t: float, features_BX: NDArray) -> NDArray:
        """The same for one time, without gradients."""
        angle = np.float32(t) * np.array(_angles(), np.float32)
        time = np.concatenate([np.sin(angle), np.cos(angle)])
        row_BI = np.concatenate([x_BD, np.broadcast_to(time, (len(x_BD), time.size)), features_BX], axis=1)
        velocity_BD: NDArray = towards(self._numpy_end(row_BI), x_BD, np.float32(t))
        return velocity_BD


def _angles() -> list[float]:
    return [math.pi / 2 * 2**i for i in range(FREQUENCIES)]


class FlowHead(Head):
    """See the module's docstring. Its parameters are the features on which the velocity is conditioned.

    `act` returns the chain (B, N + 1, *shape), whose last point `executed` takes out; `log_prob` is of the chain.
    Greedy: from x_0 = 0 without noise in between; its log-probability is that of this chain, the likeliest but for the
    drift. ``per_action``: as for Gaussians, the chain's log-probability by actions of the chunk.
    """

    def __init__(self, space: spaces.Box, velocity: nn.Module, flow: Flow, per_action: bool = False) -> None:
        super().__init__()
        self.space, self.flow, self.per_action = space, flow, per_action
        self.shape = tuple(space.shape)
        self.dimensions = int(np.prod(self.shape))
        self.size: int = velocity.features  # type: ignore[assignment]
        self.quiet_steps = flow.steps - flow.noisy_steps
        self.noise_size = (flow.noisy_steps + 1) * self.dimensions
        self.velocity = velocity
        position = math.log(flow.std / flow.least_std) / math.log(flow.most_std / flow.least_std)
        logit = math.log(position / (1.0 - position))
        self.std_logit = nn.Parameter(torch.full((flow.noisy_steps, self.dimensions), logit))
        self._views = HostViews((self, "std_logit"))
        self.acts_in_numpy = isinstance(velocity, VelocityMLP)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """As torch has it, but `ConfigError` for weights of another flow.

        Of an earlier version, or of one with other steps.
        """
        if any(name.startswith(f"{prefix}velocity.net.") for name in state_dict):
            raise ConfigError(
                "These weights are of a flow policy that an earlier version kept: its net gave the velocity, and nets give the end of the flow now. "
                "Next: train or clone it anew."
            )
        kept, mine = state_dict.get(f"{prefix}std_logit"), self.std_logit
        if kept is not None and kept.shape[1:] == mine.shape[1:] and len(kept) != len(mine):
            raise ConfigError(
                f"These weights are of a flow policy with noise in {counted(len(kept), 'step')}, and this one has it in {len(mine)}. "
                f"Policies of before Flow.noisy_steps have it in all. Next: Flow(steps=..., noisy_steps={len(kept)})."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        return rng.standard_normal((n, self.noise_size), dtype=np.float32)

    def log_std(self) -> Tensor:
        """Of the noise in each step that has some, (N, D). Between the bounds, on a logarithmic scale."""
        low, high = math.log(self.flow.least_std), math.log(self.flow.most_std)
        return low + (high - low) * torch.sigmoid(self.std_logit)

    def tell_by_action(self) -> None:
        """With noise in the last step only, where actions do not depend on one another."""
        self.per_action = self.per_action or self.flow.noisy_steps == 1

    # --- acting ---------------------------------------------------------------------------------------------
    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        if not self.acts_in_numpy:
            with torch.inference_mode():
                return self.choose(torch.from_numpy(params_BP).to(self.std_logit.device), noise_BK)
        low, high = math.log(self.flow.least_std), math.log(self.flow.most_std)
        log_std_ND = low + (high - low) * (0.5 + 0.5 * np.tanh(0.5 * self._views()[0]))
        noise_BCD = self._noise(len(params_BP), noise_BK)
        steps, std_ND, velocity = self.flow.steps, np.exp(log_std_ND), self.velocity
        chain_BCD = np.empty_like(noise_BCD)
        x_BD = chain_BCD[:, 0] = noise_BCD[:, 0]
        for k in range(steps):
            x_BD = x_BD + velocity.numpy(x_BD, k / steps, params_BP) / steps  # type: ignore[operator]
            if (n := k - self.quiet_steps) >= 0:
                x_BD = chain_BCD[:, n + 1] = x_BD + std_ND[n] * noise_BCD[:, n + 1]
        return self._shaped(chain_BCD), self._numpy_log_prob(noise_BCD, log_std_ND)

    def choose(self, params_BP: Tensor, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        log_std_ND = self.log_std()
        noise_BCD = self._noise(len(params_BP), noise_BK)
        noise = torch.from_numpy(noise_BCD).to(params_BP.device)
        chain_BCD = self._chain(params_BP, noise, log_std_ND.exp())
        log_prob = self._numpy_log_prob(noise_BCD, log_std_ND.cpu().numpy())
        return self._shaped(chain_BCD).cpu().numpy(), log_prob

    def _noise(self, rows: int, noise_BK: NDArray | None) -> NDArray[np.float32]:
        noise = np.zeros((rows, self.noise_size), np.float32) if noise_BK is None else noise_BK
        return noise.reshape(rows, self.flow.noisy_steps + 1, self.dimensions)

    def _numpy_log_prob(self, noise_BCD: NDArray, log_std_ND: NDArray) -> NDArray[np.float32]:
        log_std_CD = np.concatenate([np.zeros((1, self.dimensions), np.float32), log_std_ND])
        log_prob: NDArray[np.float32] = self._summed(-0.5 * noise_BCD * noise_BCD - log_std_CD - _LOG_SQRT_2PI)
        return log_prob

    def _chain(self, params_BP: Tensor, noise_BCD: Tensor | None, std_ND: Tensor | None) -> Tensor:
        """x_0 and the points behind noise; without noise the same from x_0 = 0."""
        x_BD = params_BP.new_zeros(params_BP.shape[0], self.dimensions) if noise_BCD is None else noise_BCD[:, 0]
        points = [x_BD]
        for k in range(self.flow.steps):
            x_BD = self._stepped(x_BD, k, params_BP)
            if (n := k - self.quiet_steps) >= 0:
                if noise_BCD is not None and std_ND is not None:
                    x_BD = x_BD + std_ND[n] * noise_BCD[:, n + 1]
                points.append(x_BD)
        return torch.stack(points, dim=1)

    def _stepped(self, x_BD: Tensor, k: int, params_BP: Tensor) -> Tensor:
        """One Euler step without noise. Shapes, not lengths: an exported module takes any number of rows."""
        steps = self.flow.steps
        found: Tensor = x_BD + self.velocity(x_BD, params_BP.new_full((x_BD.shape[0],), k / steps), params_BP) / steps
        return found

    def _shaped(self, chain_BCD: Any) -> Any:
        return chain_BCD.reshape(chain_BCD.shape[0], -1, *self.shape)

    def _summed(self, each_BCD: Any) -> Any:
        if self.per_action:
            rows, points = each_BCD.shape[:2]
            return each_BCD.reshape(rows, points, self.shape[0], -1).sum(-1).sum(1)
        return each_BCD.sum(-1).sum(-1)

    def greedy(self, params_BP: Tensor) -> Tensor:
        return self._shaped(self._chain(params_BP, None, None))[:, -1]

    def executed(self, action: Any) -> Any:
        return action[:, -1]

    # --- learning -------------------------------------------------------------------------------------------
    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        rows, steps, noisy = action.shape[0], self.flow.steps, self.flow.noisy_steps
        chain_BCD, log_std_ND = action.reshape(rows, noisy + 1, self.dimensions), self.log_std()
        x_BD = chain_BCD[:, 0]
        for k in range(self.quiet_steps):
            x_BD = self._stepped(x_BD, k, params_BP)
        start_BND = torch.cat([x_BD.unsqueeze(1), chain_BCD[:, 1:-1]], dim=1)
        # All steps with noise in one pass of the net.
        t_N = torch.arange(self.quiet_steps, steps, device=chain_BCD.device, dtype=chain_BCD.dtype).div(steps)
        params = params_BP.repeat_interleave(noisy, dim=0)
        velocity_BND = self.velocity(start_BND.flatten(0, 1), t_N.repeat(rows), params).reshape(start_BND.shape)
        z_BND = (chain_BCD[:, 1:] - start_BND - velocity_BND / steps) * (-log_std_ND).exp()
        steps_BND = -0.5 * z_BND.square() - log_std_ND - _LOG_SQRT_2PI
        first_B1D = -0.5 * chain_BCD[:, :1].square() - _LOG_SQRT_2PI
        return self._summed(torch.cat([first_B1D, steps_BND], dim=1))

    def entropy(self, params_BP: Tensor) -> Tensor:
        """Of the whole chain: each step adds that of its noise."""
        log_std_CD = torch.cat([torch.zeros_like(self.std_logit[:1]), self.log_std()])
        each_CD = log_std_CD + 0.5 + _LOG_SQRT_2PI
        return self._summed(each_CD.repeat(params_BP.shape[0], 1, 1))

    def draw_clone_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """x_0 and the time of each row, (n, D + 1). No time is later than the last at which S steps ask for a velocity."""
        start = rng.standard_normal((n, self.dimensions), dtype=np.float32)
        last = np.float32(1.0 - 1.0 / self.flow.steps)
        return np.concatenate([start, last * rng.random((n, 1), dtype=np.float32)], axis=1)

    def clone_loss(self, params_BP: Tensor, executed: Tensor, noise: Tensor) -> Tensor:
        """Squared error of the velocity, the mean over D: equation 23 of the paper."""
        expert_BD, start_BD, t_B1 = executed.reshape(len(executed), -1), noise[:, :-1], noise[:, -1:]
        x_BD = (1.0 - t_B1) * start_BD + t_B1 * expert_BD
        velocity_BD = self.velocity(x_BD, t_B1[:, 0], params_BP)
        return (velocity_BD - (expert_BD - start_BD)).square().mean(-1)

    def extra_repr(self) -> str:
        return f"action {self.shape}, {self.flow}"
