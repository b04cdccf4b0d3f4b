"""The worker that learns: trajectories in, weights out.

    trajectories ──get_all──> values ──gae──> TrainBatch ──epochs × minibatches──> Adam ──> Update(weights, metrics)

On-policy: it waits for all trajectories of the iteration and uses them once. The observation statistics move *after* the gradient
steps, so that the ratio of the first step is exactly one. Legend: T time, N environments, B samples, O observation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_lab.algorithms import Moments, entropy, gae, log_prob, ppo_loss
from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies import GaussianMLP, Weights
from rlinf_lab.records import TrainBatch, Trajectory
from rlinf_lab.workers.group import RankGroup
from rlinf_lab.workers.residence import TorchWorker
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workers.shards import ShardGroup
from rlinf_lab.workflow.weights import Weights as WeightStore
from rlinf_lab.workflow.worker import Inbox

GROUPS: dict[str, type[RankGroup]] = {"ddp": RankGroup, "fsdp": ShardGroup}


@dataclass(frozen=True)
class Update:
    """What one call of `LearnerWorker.train` returns. Metric ``staleness``: by how many updates the oldest record's policy was behind."""

    weights: Weights
    metrics: dict[str, float]


class LearnerWorker(TorchWorker):
    """Proximal policy optimisation. Several ranks share the samples of each minibatch; up to rounding they learn what one rank learns.

    ``parallel``: how they share the work. ``"ddp"``: each has all weights, torch's DistributedDataParallel averages the gradients. ``"fsdp"``: each keeps
    its part of weights, gradients and Adam's moments (torch's `fully_shard`). Ranks may join and leave between updates.
    ``policy`` constructs the module, as in `PolicyWorker`. ``gamma``, ``lam``: discount and GAE decay per environment step.
    ``minibatch``: samples of a gradient step at most, at least 2; a pass is divided evenly.
    ``reward_scale`` multiplies rewards before anything else. ``anneal``: share of the learning rate that has gone, linearly, after
    ``anneal_updates`` updates. ``save_to``: safetensors file written when the run ends. ``state``: of another learner (`state_dict`), to go on from.
    """

    def __init__(
        self,
        policy: Callable[[], GaussianMLP],
        *,
        gamma: float,
        lam: float,
        learning_rate: float,
        epochs: int = 8,
        minibatch: int = 200,
        clip: float = 0.2,
        value_coefficient: float = 0.5,
        entropy_coefficient: float = 0.0,
        max_grad_norm: float = 0.5,
        reward_scale: float = 1.0,
        anneal: float = 0.0,
        anneal_updates: int = 1,
        seed: int = 0,
        save_to: str | None = None,
        state: dict[str, Any] | None = None,
        parallel: str = "ddp",
    ) -> None:
        if minibatch < 2:
            raise ConfigError(f"LearnerWorker(minibatch={minibatch}): at least 2, for advantages are normalised within a minibatch.")
        if parallel not in GROUPS:
            raise ConfigError(f"LearnerWorker(parallel={shown(parallel)}): {' or '.join(map(repr, GROUPS))}.")
        self.parallel = parallel
        self._make, self._save_to, self._state = policy, save_to, state
        self.gamma, self.lam, self.reward_scale = gamma, lam, reward_scale
        self.learning_rate, self.anneal, self.anneal_updates = learning_rate, anneal, anneal_updates
        self.epochs, self.minibatch, self.max_grad_norm = epochs, minibatch, max_grad_norm
        self._loss = partial(
            ppo_loss, clip=clip, value_coefficient=value_coefficient, entropy_coefficient=entropy_coefficient
        )
        self._rng = np.random.default_rng(stream(seed, Purpose.MINIBATCHES))
        self.env_steps = 0
        self._made: Weights | None = None  # of the latest update

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.group = GROUPS[self.parallel](self)
        self._begin()
        self.moments = Moments.empty(self.policy.obs_mean.shape[0])
        if self._state is not None:
            self.load_state_dict(self._state)

    def _begin(self) -> None:
        """A policy as constructed, and its optimiser."""
        self.policy = self._make().to(self.device)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.learning_rate, eps=1e-5)

    # --- the update -----------------------------------------------------------------------------------
    def train(self, trajectories: Inbox[Trajectory], weights: WeightStore | None = None) -> Update:
        """One update from everything of this iteration, published to ``weights``. Raises `ValueError` if nothing came."""
        received = [t for part in self.exchange(trajectories.get_all()) for t in part]
        with self._together():
            with self.group.gathered(self.policy):
                # Order of arrival and grouping into slots are the plan's; the result must not depend on them.
                batch = self._batch(sorted(received, key=lambda t: t.first_env))
            with self.span("update"):
                losses = self._optimise(batch)
            self.moments = self.moments.update(batch.obs_BO)
            self.policy.set_normaliser(self.moments.mean, self.moments.std)
            staleness = self.policy.version - min(int(t.version_T.min()) for t in received)
            self.policy.version += 1
            self._made = self.weights()
        self.env_steps += len(batch)
        metrics = {"env_steps": float(self.env_steps), "staleness": float(staleness), **episode_metrics(received), **losses}
        if weights is not None and self.rank == 0:
            weights.publish(self._made)
        return Update(self._made, metrics)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """All ranks know the same, newcomers too."""
        with self.group:
            if self.group.formed_now:
                self._keep(self.group.handed_over(self._kept()))
            self.group.parallel(self.policy, self.optimizer)
            yield

    def _kept(self) -> dict[str, Any]:
        """What makes an update, besides weights and optimiser."""
        return {"version": self.policy.version, "moments": self.moments, "rng": self._rng.bit_generator.state, "env_steps": self.env_steps}

    def _keep(self, kept: dict[str, Any]) -> None:
        self.policy.version, self.moments, self.env_steps = kept["version"], kept["moments"], kept["env_steps"]
        self._rng.bit_generator.state = kept["rng"]

    def weights(self) -> Weights:
        """A copy of the current weights. With several ranks and ``parallel="fsdp"`` all must ask."""
        return self.policy.weights(self.group.whole(self.policy))

    def _batch(self, trajectories: list[Trajectory]) -> TrainBatch:
        if not trajectories:
            raise ValueError("LearnerWorker.train got no trajectory. Next: does the simulator put one before its call returns?")
        samples = sum(t.reward_TN.size for t in trajectories)
        if samples < max(2, self.ranks):
            raise ValueError(
                f"LearnerWorker.train got {samples} samples for {self.ranks} ranks: each needs one, and a single advantage has nothing to be compared "
                f"with. Next: more environments or steps, or fewer ranks."
            )
        advantages, returns = zip(*map(self._advantages, trajectories), strict=True)
        return TrainBatch(
            obs_BO=_flat([t.obs_TNO for t in trajectories]),
            action_BA=_flat([t.action_TNA for t in trajectories]),
            log_prob_B=_flat([t.log_prob_TN for t in trajectories]),
            advantage_B=_flat(advantages),
            return_B=_flat(returns),
        )

    def _advantages(self, t: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        value_TN = self.policy.values(t.obs_TNO)
        next_TN = t.next_values(value_TN, self.policy.values(t.last_obs_NO), self.policy.values(t.end_obs_EO))
        reward_TN = (self.reward_scale * t.reward_TN).astype(np.float32)
        return gae(reward_TN, value_TN, next_TN, t.terminated_TN, t.truncated_TN, gamma=self.gamma, lam=self.lam)

    def _optimise(self, batch: TrainBatch) -> dict[str, float]:
        self.optimizer.param_groups[0]["lr"] = self._learning_rate()
        model = self.group.parallel(self.policy, self.optimizer)
        device = self.policy.log_std.device
        names = ("obs_BO", "action_BA", "log_prob_B", "advantage_B", "return_B")
        columns = [torch.as_tensor(getattr(batch, n), dtype=torch.float32, device=device) for n in names]
        parts = number_of_minibatches(len(batch), self.minibatch, self.ranks)
        sums: dict[str, Any] = defaultdict(float)  # tensors: reading a number would wait for the GPU after every step
        count = 0
        for _ in range(self.epochs):
            order = torch.from_numpy(self._rng.permutation(len(batch))).to(device)
            for rows in order.tensor_split(parts):
                for name, value in self._step(model, *(c[rows] for c in columns)).items():
                    sums[name] += value
                count += 1
        return self.group.mean({name: float(value) / count for name, value in sums.items()})

    def _step(
        self, model: nn.Module, obs: torch.Tensor, action: torch.Tensor, old: torch.Tensor, adv: torch.Tensor, ret: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """One gradient step on this rank's part of a minibatch. Returns its share of the minibatch's means."""
        rows = len(obs)
        adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)  # of the whole minibatch, on however many ranks
        obs, action, old, adv, ret = self._part(obs, action, old, adv, ret)
        share = self.ranks * len(obs) / rows  # relative to a fair one: the mean over the ranks is the mean over all rows
        mean, value = model(obs)
        log_std = self.policy.log_std
        loss = self._loss(log_prob(action, mean, log_std), old, adv, value, ret, entropy(log_std))
        self.optimizer.zero_grad()
        (share * loss.total).backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.optimizer.step()
        means = {"policy_loss": loss.policy, "value_loss": loss.value, "entropy": loss.entropy,
                 "kl": loss.kl, "clip_fraction": loss.clip_fraction}  # fmt: skip
        return {name: share * value.detach() for name, value in means.items()}

    def _part(self, *columns: torch.Tensor) -> list[torch.Tensor]:
        """This rank's rows of a minibatch."""
        return [column.tensor_split(self.ranks)[self.group.position] for column in columns]

    def _learning_rate(self) -> float:
        return self.learning_rate * (1.0 - self.anneal * min(1.0, self.policy.version / self.anneal_updates))

    def offload(self) -> None:
        self.group.offload()
        super().offload()

    # --- checkpoints ----------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on exactly here, on any number of ranks. In host memory; training on does not change it."""
        with self._together():
            weights, optimizer = self.weights(), _copied(self.group.whole_state(self.optimizer))
        return {
            "weights": weights, "optimizer": optimizer, "moments": self.moments, "rng": self._rng.bit_generator.state, "env_steps": self.env_steps,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; ``state`` stays as it is, for others that go on from it too."""
        if self.group.forget():
            self._begin()  # whole again; the next update shares it out
        self.policy.load(state["weights"])
        self.optimizer.load_state_dict(_copied(state["optimizer"]))  # torch would go on with the very tensors
        self.moments, self.env_steps = state["moments"], state["env_steps"]
        self._rng.bit_generator.state = state["rng"]
        self._made = state["weights"]

    def close(self) -> None:
        if hasattr(self, "group"):
            self.group.leave()  # a run that is kept would keep its connections
        if self._save_to and self.rank == 0 and hasattr(self, "policy"):
            (self._made or self.policy.weights()).save(self._save_to)


def _copied(state: Any) -> Any:
    """A state of nested dicts and lists, its tensors in host memory, none of them the same as there."""
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copied(value) for value in state]
    return state.detach().to("cpu", copy=True) if isinstance(state, torch.Tensor) else state


def number_of_minibatches(samples: int, minibatch: int, ranks: int = 1) -> int:
    """How many nearly equal parts: none exceeds ``minibatch``, unless it were of one sample (its normalised advantage is zero: no gradient)
    or had none for some rank."""
    return min(-(-samples // minibatch), samples // max(2, ranks))


def _flat(parts: Sequence[np.ndarray]) -> np.ndarray:
    """T×N×… arrays, joined over the environments, as rows: the same order of rows however they were grouped."""
    joined = np.concatenate(parts, axis=1)
    return joined.reshape(-1, *joined.shape[2:])


def episode_metrics(trajectories: list[Trajectory]) -> dict[str, float]:
    """Means over the episodes that ended: ``success_rate`` (at the end), ``success_once``, ``return`` (unscaled, undiscounted).

    Empty when no episode ended: a rate of nothing is not zero.
    """
    success = np.concatenate([t.end_success_E for t in trajectories])
    if not len(success):
        return {"episodes": 0.0}
    return {
        "episodes": float(len(success)),
        "success_rate": float(success.mean()),
        "success_once": float(np.concatenate([t.end_success_once_E for t in trajectories]).mean()),
        "return": float(np.concatenate([t.end_return_E for t in trajectories]).mean()),
    }
