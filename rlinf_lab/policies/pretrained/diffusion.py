"""Diffusion Policy through lerobot: denoising as a chain with exact density.

So it can be cloned and improved by reinforcement learning.

    state, images ──normalised──> lerobot's encoders ──row──> x_0 ~ N(0, 1) ──denoise──> x_1 ──denoise──> … x_S ──its middle, in the data's units──> chunk

Sources: Chi et al., Diffusion Policy (arXiv 2303.04137), the model and its scheduler are lerobot's `DiffusionPolicy`; that the chain of denoised points is
the action of record, with a least noise in every step, is Ren et al., DPPO (arXiv 2409.00588), section 4.

Legend: B batch, H points of the horizon, A numbers of an action, D = H·A, S denoising steps, C chain of S + 1 points, X features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.heads import Head, check_box
from rlinf_lab.policies.leaves import Kind, flatten, leaves_of
from rlinf_lab.policies.make import chunked
from rlinf_lab.policies.mlp import mlp
from rlinf_lab.policies.preprocess import Preprocess
from rlinf_lab.policies.pretrained.act import ACTION, EPSILON, STATE, ValueOfNumbers
from rlinf_lab.policies.pretrained.saved import saved_policy

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
Affine = tuple[Tensor, Tensor]
"""shift and scale: what is normalised is ``(x - shift) / scale``"""


class Condition(nn.Module):
    """A prepared observation as the row (B, X) that lerobot's denoiser is conditioned on."""

    def __init__(self, model: Any, space: Space, cameras: list[str], affine: Mapping[str, Affine]) -> None:
        super().__init__()
        self.model, self.space, self.cameras = model, space, cameras
        self.kinds = [leaf.kind for leaf in leaves_of(space)]
        for name, (shift, scale) in affine.items():
            self.register_buffer(f"shift_{name.replace('.', '_')}", shift)
            self.register_buffer(f"scale_{name.replace('.', '_')}", scale)

    def train(self, mode: bool = True) -> Condition:
        """Without random crops: probabilities of what was done must be those of acting."""
        super().train(mode)
        self.model.eval()
        return self

    def _normal(self, x: Tensor, name: str) -> Tensor:
        name = name.replace(".", "_")
        return (x - self.get_buffer(f"shift_{name}")) / self.get_buffer(f"scale_{name}")

    def forward(self, prepared: Any) -> Tensor:
        steps = self.model.config.n_obs_steps
        leaves = list(zip(self.kinds, flatten(self.space, prepared), strict=True))
        state = torch.cat([leaf.flatten(1) for kind, leaf in leaves if kind is Kind.NUMBERS], dim=1).unflatten(1, (steps, -1))
        pictures = iter([leaf for kind, leaf in leaves if kind is Kind.IMAGE])
        seen = [torch.stack([self._normal(next(pictures), name) for _ in range(steps)], dim=1) for name in self.cameras]
        batch = {STATE: self._normal(state, STATE), "observation.images": torch.stack(seen, dim=2)}
        return cast(Tensor, self.model._prepare_global_conditioning(batch))


class DiffusionHead(Head):
    """`act` returns the whole chain (B, S + 1, H, A), normalised. `executed` takes its last point's chunk; `log_prob` is of the chain.

    Greedy: from x_0 = 0 without noise in between. ``std``: least standard deviation of a step's noise, in normalised units; it is not learnt.
    """

    acts_in_numpy = False
    action_shift: Tensor
    action_scale: Tensor
    std_S: Tensor

    def __init__(self, condition: Condition, chunk: spaces.Box, action: Affine, std: float) -> None:
        super().__init__()
        model = condition.model
        self.condition = [condition]  # in a list: its parameters are counted once, where the encoder is
        self.space, self.config = chunk, model.config
        self.horizon, self.numbers = int(model.config.horizon), int(model.config.action_feature.shape[0])
        self.dimensions = self.horizon * self.numbers
        self.scheduler = model.noise_scheduler
        self.scheduler.set_timesteps(model.num_inference_steps)
        self.steps = len(self.scheduler.timesteps)
        self.noise_size = (self.steps + 1) * self.dimensions
        self.first = int(model.config.n_obs_steps) - 1
        self.register_buffer("action_shift", action[0])
        self.register_buffer("action_scale", action[1])
        self.register_buffer("std_S", torch.tensor([max(std, self._own_std(int(t))) for t in self.scheduler.timesteps]))

    # --- the scheduler ------------------------------------------------------------------------------------------
    def _own_std(self, t: int) -> float:
        """Of the noise that the scheduler itself adds after time t."""
        if self.config.noise_scheduler_type != "DDPM" or t == 0:
            return 0.0
        return math.sqrt(float(self.scheduler._get_variance(t)))

    def _denoised(self, x_BHA: Tensor, t: int, params_BX: Tensor) -> Tensor:
        """The next point without its noise."""
        times_B = torch.full((len(x_BHA),), t, dtype=torch.long, device=x_BHA.device)
        output = self.condition[0].model.unet(x_BHA, times_B, global_cond=params_BX)
        if self.config.noise_scheduler_type == "DDIM":
            return cast(Tensor, self.scheduler.step(output, t, x_BHA).prev_sample)
        # Equations 6 and 7 of Ho et al. (arXiv 2006.11239), for steps that leave times out.
        before = int(self.scheduler.previous_timestep(t))
        kept = float(self.scheduler.alphas_cumprod[t])
        kept_before = float(self.scheduler.alphas_cumprod[before]) if before >= 0 else 1.0
        alpha = kept / kept_before
        clean = output if self.config.prediction_type == "sample" else (x_BHA - math.sqrt(1 - kept) * output) / math.sqrt(kept)
        if self.config.clip_sample:
            clean = clean.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)
        return (math.sqrt(kept_before) * (1 - alpha) * clean + math.sqrt(alpha) * (1 - kept_before) * x_BHA) / (1 - kept)

    # --- acting ---------------------------------------------------------------------------------------------------
    def draw_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        return rng.standard_normal((n, self.noise_size), dtype=np.float32)

    def act(self, params_BP: NDArray, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        with torch.inference_mode():
            return self.choose(torch.from_numpy(params_BP).to(self.std_S.device), noise_BK)

    def choose(self, params_BP: Tensor, noise_BK: NDArray | None) -> tuple[NDArray, NDArray[np.float32]]:
        rows = len(params_BP)
        noise = params_BP.new_zeros(rows, self.noise_size) if noise_BK is None else torch.as_tensor(noise_BK, device=params_BP.device)
        noise_BCHA = noise.reshape(rows, self.steps + 1, self.horizon, self.numbers)
        chain_BCHA = self._chain(params_BP, noise_BCHA)
        log_std_C = torch.cat([self.std_S.new_zeros(1), self.std_S.log()])
        log_prob_B = (-0.5 * noise_BCHA.square() - log_std_C[:, None, None] - _LOG_SQRT_2PI).sum((1, 2, 3))
        return chain_BCHA.cpu().numpy(), log_prob_B.cpu().numpy()

    def _chain(self, params_BX: Tensor, noise_BCHA: Tensor) -> Tensor:
        points = [noise_BCHA[:, 0]]
        for k, t in enumerate(self.scheduler.timesteps):
            points.append(self._denoised(points[-1], int(t), params_BX) + self.std_S[k] * noise_BCHA[:, k + 1])
        return torch.stack(points, dim=1)

    def executed(self, action: Any) -> Any:
        part = action[:, -1, self.first : self.first + self.config.n_action_steps]
        if isinstance(part, Tensor):
            return (part * self.action_scale + self.action_shift).reshape(len(part), *self.space.shape)
        return (part * self.action_scale.cpu().numpy() + self.action_shift.cpu().numpy()).reshape(len(part), *self.space.shape)

    def greedy(self, params_BP: Tensor) -> Tensor:
        noise = params_BP.new_zeros(len(params_BP), self.steps + 1, self.horizon, self.numbers)
        return cast(Tensor, self.executed(self._chain(params_BP, noise)))

    # --- learning -------------------------------------------------------------------------------------------------
    def log_prob(self, params_BP: Tensor, action: Tensor) -> Tensor:
        total_B = (-0.5 * action[:, 0].square() - _LOG_SQRT_2PI).sum((1, 2))
        for k, t in enumerate(self.scheduler.timesteps):
            z_BHA = (action[:, k + 1] - self._denoised(action[:, k], int(t), params_BP)) / self.std_S[k]
            total_B = total_B + (-0.5 * z_BHA.square() - self.std_S[k].log() - _LOG_SQRT_2PI).sum((1, 2))
        return total_B

    def entropy(self, params_BP: Tensor) -> Tensor:
        """Of the whole chain: each step adds that of its noise."""
        log_std_C = torch.cat([self.std_S.new_zeros(1), self.std_S.log()])
        return (self.dimensions * (log_std_C + 0.5 + _LOG_SQRT_2PI).sum()).expand(len(params_BP))

    def draw_clone_noise(self, rng: np.random.Generator, n: int) -> NDArray[np.float32]:
        """The noise and the time of each row, (n, D + 1)."""
        return np.concatenate([rng.standard_normal((n, self.dimensions), dtype=np.float32), rng.random((n, 1), dtype=np.float32)], axis=1)

    def clone_loss(self, params_BP: Tensor, executed: Tensor, noise: Tensor) -> Tensor:
        """Squared error of what the denoiser predicts.

        Over the actions that are executed: equation 5 of Diffusion Policy.
        """
        known = slice(self.first, self.first + self.config.n_action_steps)
        normal_BKA = (executed.reshape(len(executed), -1, self.numbers) - self.action_shift) / self.action_scale
        after = self.horizon - known.stop
        clean_BHA = torch.cat([normal_BKA[:, :1].expand(-1, known.start, -1), normal_BKA, normal_BKA[:, -1:].expand(-1, after, -1)], dim=1)
        noise_BHA = noise[:, :-1].reshape(clean_BHA.shape)
        times_B = (noise[:, -1] * self.config.num_train_timesteps).long().clamp(max=self.config.num_train_timesteps - 1)
        found = self.condition[0].model.unet(self.scheduler.add_noise(clean_BHA, noise_BHA, times_B), times_B, global_cond=params_BP)
        wanted = clean_BHA if self.config.prediction_type == "sample" else noise_BHA
        return (found - wanted)[:, known].square().mean((1, 2))

    def extra_repr(self) -> str:
        return f"chunk {self.space.shape}, {self.config.noise_scheduler_type} in {self.steps} steps"


def load_diffusion(
    path: str | Path, observation_space: Space, action_space: Space, *, std: float = 0.1, statistics: Mapping[str, Any] | None = None, seed: int = 0
) -> ActorCritic:
    """Diffusion Policy from a folder that lerobot's ``save_pretrained`` wrote.

    Policy and processors, as a policy of chunks (B, K, *shape).

    ``observation_space``: a Dict of numbers and RGB pictures. Numbers joined are the checkpoint's ``observation.state``, pictures its cameras in their
    order; a checkpoint that sees several steps takes each of them as often, the oldest first. ``statistics``: by column, as ``meta.stats`` of a
    LeRobotDataset; None: those that were saved with the policy. ``std``: least noise of a denoising step, in normalised units. ``seed``: of the value net,
    which is new and sees the numbers only. Raises `ConfigError` naming what does not fit, `MissingDependencyError` without lerobot.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"load_diffusion({str(folder)!r}): there is no config.json in it. Next: the folder of lerobot's DiffusionPolicy.save_pretrained.")
    policy = saved_policy(folder, "lerobot.policies.diffusion.modeling_diffusion", "DiffusionPolicy", "load_diffusion")
    config = policy.config
    if not std > 0:
        raise ConfigError(f"load_diffusion(std={shown(std)}): it must be greater than 0.")
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_space is {shown(action_space)}: Diffusion Policy acts in a Box.")
    check_box(action_space, "action_space", bounded=False)
    cameras = list(config.image_features)
    _check(folder, config, cameras, observation_space, action_space)
    affine = _affine(folder, config, [STATE, *cameras, ACTION], statistics)
    chunk = chunked(action_space, config.n_action_steps)
    encoder = Condition(policy.diffusion.eval(), observation_space, cameras, {name: affine[name] for name in (STATE, *cameras)})
    value = ValueOfNumbers(observation_space)
    critic = mlp([value.features_dim, 256, 256, 1], "tanh", 1.0, torch.Generator().manual_seed(seed))
    head = DiffusionHead(encoder, chunk, affine[ACTION], std)
    return ActorCritic(Preprocess(observation_space, normalise=False), (encoder, value), nn.Identity(), critic, head)


def _check(folder: Path, config: Any, cameras: list[str], observation_space: Space, action_space: spaces.Box) -> None:
    leaves = leaves_of(observation_space)
    if strange := [leaf for leaf in leaves if leaf.kind not in (Kind.IMAGE, Kind.NUMBERS)]:
        raise ConfigError(f"load_diffusion: observation{strange[0].name} is {strange[0].space}; Diffusion Policy sees numbers and pictures.")
    if others := sorted(set(config.input_features) - {STATE, *cameras}):
        raise ConfigError(f"load_diffusion({str(folder)!r}): this checkpoint also takes {', '.join(others)}, which has no place in an observation here.")
    steps = config.n_obs_steps
    wanted = [tuple(config.input_features[name].shape) for name in cameras for _ in range(steps)], steps * int(config.input_features[STATE].shape[0])
    found = [tuple(leaf.prepared_shape) for leaf in leaves if leaf.kind is Kind.IMAGE], sum(leaf.size for leaf in leaves if leaf.kind is Kind.NUMBERS)
    if found != wanted:
        raise ConfigError(
            f"load_diffusion({str(folder)!r}): the observation gives pictures {found[0]} and {found[1]} numbers, and this checkpoint, which sees "
            f"{steps} steps, takes {wanted[0]} and {wanted[1]}."
        )
    size, given = int(np.prod(action_space.shape)), int(config.output_features[ACTION].shape[0])
    if size != given:
        raise ConfigError(f"load_diffusion({str(folder)!r}): action_space is {shown(action_space)}, and this checkpoint gives {given} numbers.")


def _affine(folder: Path, config: Any, columns: list[str], given: Mapping[str, Any] | None) -> dict[str, Affine]:
    """Shift and scale of each column, as its kind is normalised."""
    stats: Mapping[str, Any]
    if given is not None:
        stats = given
    else:
        from lerobot.processor import PolicyProcessorPipeline

        pipeline = PolicyProcessorPipeline.from_pretrained(folder, config_filename="policy_preprocessor.json")
        stats = next((step.stats for step in pipeline.steps if getattr(step, "stats", None)), {})
    found: dict[str, Affine] = {}
    for name in columns:
        kind = "ACTION" if name == ACTION else "STATE" if name == STATE else "VISUAL"
        mode = str(getattr(config.normalization_mapping[kind], "value", config.normalization_mapping[kind]))
        if mode == "IDENTITY":
            found[name] = torch.zeros(()), torch.ones(())
            continue
        wanted = {"MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max")}.get(mode)
        if wanted is None or name not in stats or not set(wanted) <= set(stats[name]):
            raise ConfigError(
                f"load_diffusion({str(folder)!r}): {name!r} is normalised by {mode}, and there are no such statistics of it. Next: statistics=, as meta.stats."
            )
        one, other = (torch.as_tensor(stats[name][key], dtype=torch.float32) for key in wanted)
        span = torch.where(other == one, torch.full_like(one, EPSILON), other - one)
        found[name] = (one, other + EPSILON) if mode == "MEAN_STD" else (one + span / 2, span / 2)
    return found
