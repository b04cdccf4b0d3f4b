"""The worker that learns: trajectories in, weights out.

    trajectories ──get_all──> values ──gae──> TrainBatch ──epochs × minibatches──> Adam ──> Update(weights, metrics)

On-policy: it waits for all trajectories of the iteration and uses them once. The observation statistics move *after*
the gradient steps, so that the ratio of the first step is exactly one. Legend: leading axes; T time, N environments, B
samples.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_lab.algorithms import (
    Moments,
    PPOLoss,
    asks_for_proximal,
    exceeds_target_kl,
    gae,
    policy_loss,
    ppo_loss,
    value_loss,
)
from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies import ActorCritic, PolicyWeights
from rlinf_lab.policies.ppo_by_hand import PPOByHand
from rlinf_lab.records import TrainBatch, Trajectory, success_rates
from rlinf_lab.trees import Tree, map_tree, rows
from rlinf_lab.workers.adam import Adam, copied
from rlinf_lab.workers.computing import Computing
from rlinf_lab.workers.group import RankGroup
from rlinf_lab.workers.residence import TorchWorker
from rlinf_lab.workers.returns import DiscountedReturns
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workers.shards import ShardGroup
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox

# What a state consists of: torch.load opens no other classes by default.
_SAFE: list[Any] = [
    PolicyWeights, (PolicyWeights, "rlinf_lab.policies.weights.Weights"),  # its name in older files
    Moments, DiscountedReturns, bytes, codecs.encode, np.ndarray, np.dtype, np.zeros(1).__reduce__()[0],
    np.float64(0).__reduce__()[0],
    *(type(np.dtype(kind)) for kind in (np.float32, np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_)),
]  # fmt: skip
torch.serialization.add_safe_globals(_SAFE)
GROUPS: dict[str, type[RankGroup]] = {"ddp": RankGroup, "fsdp": ShardGroup}


@dataclass(frozen=True)
class Update:
    """What one call of `LearnerWorker.train` returns. Metric ``staleness``: by how many updates the oldest record's
    policy was behind.
    """

    weights: PolicyWeights
    metrics: dict[str, float]


Number = float | Callable[[float], float]
"""or a schedule: called with the share of all updates that is done, from 0 to 1"""


class LearnerWorker(TorchWorker):
    """Proximal policy optimisation. Several ranks share the samples of each minibatch; up to rounding they learn what
    one rank learns.

    ``parallel``: how they share the work. ``"ddp"``: each has all weights, torch's DistributedDataParallel averages the
    gradients. ``"fsdp"``: each keeps its part of weights, gradients and Adam's moments (torch's `fully_shard`). Ranks
    may join and leave between updates. ``policy`` constructs the module, as in `PolicyWorker`. ``gamma``: discount per
    environment step. ``gae_lambda``: GAE's decay per row, an action or a chunk of them. ``batch_size``: samples of a
    gradient step at most, at least 2; a pass is divided evenly. ``reward_scale`` multiplies rewards before anything
    else. ``normalize_reward``: they are also divided by the running standard deviation of the discounted return (as
    VecNormalize of stable-baselines3). ``updates``: how many are planned; a number may be a schedule over them
    (`Number`). ``save_to``: safetensors file written when the run ends. ``state``: of another learner (`state_dict`),
    to go on from.
    ``per_action``: whether each action of a chunk has a probability ratio of its own, and not the chunk.
    ``critic_warmup``: so many updates at first teach the value net alone. ``target_kl``: above 1.5 times that the rest
    of an update does, too; with ``vf_coef`` 0 the update ends. ``advantage_of_steps``, ``loss_of_policy``: of the forms
    of `lab.algorithms.advantage` and `loss`. ``normalizes_advantage``: whether advantages have mean 0 and deviation 1
    within a minibatch. ``moves_normaliser``: whether the statistics of observations go on moving; a policy that was
    cloned is for those that it has. ``precision``, ``compile``: of forward and backward passes, see `Computing`.
    """

    def __init__(
        self,
        policy: Callable[[], ActorCritic],
        *,
        gamma: Number,
        gae_lambda: Number,
        learning_rate: Number,
        n_epochs: Number = 8,
        batch_size: Number = 200,
        clip_range: Number = 0.2,
        vf_coef: Number = 0.5,
        ent_coef: Number = 0.0,
        max_grad_norm: Number = 0.5,
        reward_scale: float = 1.0,
        normalize_reward: bool = False,
        updates: int = 1,
        seed: int = 0,
        save_to: str | None = None,
        state: dict[str, Any] | None = None,
        parallel: str = "ddp",
        per_action: bool = False,
        critic_warmup: int = 0,
        target_kl: float | None = None,
        moves_normaliser: bool = True,
        normalizes_advantage: bool = True,
        advantage_of_steps: Callable[..., Any] = gae,
        loss_of_policy: Callable[..., Any] = policy_loss,
        precision: str = "float32",
        compile: bool = False,
    ) -> None:
        if not callable(batch_size) and batch_size < 2:
            raise ConfigError(
                f"LearnerWorker(batch_size={batch_size}): at least 2, for advantages are normalised within a minibatch."
            )
        if parallel not in GROUPS:
            raise ConfigError(f"LearnerWorker(parallel={shown(parallel)}): {' or '.join(map(repr, GROUPS))}.")
        self.parallel, self.computing = parallel, Computing(precision, compile)
        self._make, self._save_to, self._state = policy, save_to, state
        self.settings: dict[str, Number] = {
            "gamma": gamma, "gae_lambda": gae_lambda, "learning_rate": learning_rate, "n_epochs": n_epochs,
            "batch_size": batch_size,
            "clip_range": clip_range, "vf_coef": vf_coef, "ent_coef": ent_coef, "max_grad_norm": max_grad_norm,
        }  # fmt: skip
        self.reward_scale, self.normalize_reward, self.updates = reward_scale, normalize_reward, updates
        self._rng = np.random.default_rng(stream(seed, Purpose.MINIBATCHES))
        self.env_steps = 0
        self.returns = DiscountedReturns()
        self._made: PolicyWeights | None = None  # of the latest update
        self.critic_warmup, self.target_kl, self.moves_normaliser = critic_warmup, target_kl, moves_normaliser
        self.normalizes_advantage, self.per_action = normalizes_advantage, per_action
        self.advantage_of_steps, self.loss_of_policy = advantage_of_steps, loss_of_policy
        # parameters that a step which teaches the value net alone leaves as they are, by name
        self._of_actor: list[str] | None = None

    def now(self, name: str) -> float:
        """A setting as it is in the next update."""
        value = self.settings[name]
        return value(min(1.0, self.policy.version / self.updates)) if callable(value) else value

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.group = GROUPS[self.parallel](self)
        self._begin()
        self.moments = Moments.empty(self.policy.normalised_size)
        if self._state is not None:
            self.load_state_dict(self._state)

    def _begin(self) -> None:
        """A policy as constructed, and its optimiser."""
        self.policy = self._make().to(self.device)
        self._of_actor = None
        self.optimizer = Adam(self.policy.parameters(), lr=self.now("learning_rate"), eps=1e-5)

    # --- the update -----------------------------------------------------------------------------------
    def train(self, trajectories: Inbox[Trajectory], weights: Weights | None = None) -> Update:
        """One update from everything of this iteration, published to ``weights``. Raises `ValueError` if nothing came.
        """
        received = [t for part in self.exchange(trajectories.get_all()) for t in part]
        with self._together():
            with self.group.gathered(self.policy):
                # Order of arrival and grouping into slots are the plan's; the result must not depend on them.
                batch = self._batch(sorted(received, key=lambda t: t.first_env))
            with self.span("update"):
                losses = self._optimise(batch)
            if self.policy.normalised_size and self.moves_normaliser:
                self.moments = self.moments.update(self.policy.numbers(batch.obs_B))
                self.policy.set_normaliser(self.moments.mean, self.moments.std)
            staleness = self.policy.version - min(int(t.version_T.min()) for t in received)
            self.policy.version += 1
            self._made = _finite(self.weights(), losses)
        self.env_steps += sum(t.steps for t in received)
        metrics = {"env_steps": float(self.env_steps), "staleness": float(staleness)}
        metrics |= episode_metrics(received) | losses
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
        return {
            "version": self.policy.version, "moments": self.moments, "returns": self.returns,
            "rng": self._rng.bit_generator.state, "env_steps": self.env_steps,
        }  # fmt: skip

    def _keep(self, kept: dict[str, Any]) -> None:
        self.policy.version, self.moments = kept["version"], kept["moments"]
        self.returns, self.env_steps = kept["returns"], kept["env_steps"]
        self._rng.bit_generator.state = kept["rng"]

    def weights(self) -> PolicyWeights:
        """A copy of the current weights. With several ranks and ``parallel="fsdp"`` all must ask."""
        return self.policy.weights(self.group.whole(self.policy))

    def _batch(self, trajectories: list[Trajectory]) -> TrainBatch:
        if not trajectories:
            raise ValueError(
                "LearnerWorker.train got no trajectory. Next: does the simulator put one before its call returns?"
            )
        samples = sum(t.rows for t in trajectories)
        if samples < max(2, self.ranks):
            raise ValueError(
                f"LearnerWorker.train got {samples} samples for {self.ranks} ranks: each needs one, and a single "
                "advantage has nothing to be compared "
                f"with. Next: more environments or steps, or fewer ranks."
            )
        scale = self._reward_scale(trajectories)
        advantages, returns = zip(*(self._advantages(t, scale) for t in trajectories), strict=True)
        batch = TrainBatch(
            obs_B=flat([t.obs_TN for t in trajectories]),
            action_B=flat([t.action_TN for t in trajectories]),
            log_prob_B=flat([t.log_prob_TN for t in trajectories]),
            advantage_B=flat(advantages),
            return_B=flat(returns),
            steps_B=None if trajectories[0].chunk_steps_TN is None else flat([t.chunk_steps_TN for t in trajectories]),
        )
        return batch if samples == len(batch) else _without_resets(batch, trajectories)

    def _reward_scale(self, trajectories: list[Trajectory]) -> float:
        if not self.normalize_reward:
            return self.reward_scale
        self.returns = self.returns.update(trajectories, self.now("gamma"))
        return self.reward_scale / self.returns.std

    def _advantages(self, t: Trajectory, scale: float) -> tuple[np.ndarray, np.ndarray]:
        value_TN = self.policy.values(t.obs_TN)
        next_TN = t.next_values(value_TN, self.policy.values(t.last_obs_N), _end_values(self.policy, t))
        reward_TN, gamma = t.discounted(self.now("gamma"))
        reward_TN = (scale * reward_TN).astype(np.float32)
        lam = self.now("gae_lambda")
        advantage_TN, return_TN = self.advantage_of_steps(
            reward_TN, value_TN, next_TN, t.terminated_TN, t.truncated_TN, gamma=gamma, lam=lam
        )
        return advantage_TN.astype(np.float32, copy=False), return_TN.astype(np.float32, copy=False)

    def _optimise(self, batch: TrainBatch) -> dict[str, float]:
        self.optimizer.param_groups[0]["lr"] = self.now("learning_rate")
        names = {"clip": "clip_range", "value_coefficient": "vf_coef", "entropy_coefficient": "ent_coef"}
        factors: dict[str, Any] = {name: self.now(setting) for name, setting in names.items()}
        loss = partial(ppo_loss, **factors, of_policy=self.loss_of_policy)
        device = next(self.policy.parameters()).device
        model = self.computing(self.group.parallel(self.policy, self.optimizer), device)
        trees = [map_tree(lambda leaf: _tensor(leaf).to(device), tree) for tree in (batch.obs_B, batch.action_B)]
        size = round(self.now("batch_size"))
        numbers = _numbers(batch, self.per_action, device)
        if asks_for_proximal(self.loss_of_policy):
            numbers["proximal_B"] = _log_probs(model, trees, len(batch), size)
        by_hand = None
        if self._is_written_out():
            by_hand = PPOByHand(self.policy).of_rows(trees, numbers, self._prepared, **factors)
        parts = number_of_minibatches(len(batch), size, self.ranks)
        told: list[dict[str, torch.Tensor]] = []  # reading a number would wait for the GPU after every step
        values_only = self.policy.version < self.critic_warmup
        of_values, of_entropy = factors["value_coefficient"], factors["entropy_coefficient"]
        idle = not of_values and (values_only or not (of_entropy or np.any(batch.advantage_B)))
        orders = (self._rng.permutation(len(batch)) for _ in range(round(self.now("n_epochs"))))
        minibatches = (part for order in orders for part in torch.from_numpy(order).to(device).tensor_split(parts))
        for rows_B in minibatches:
            if by_hand is None or values_only:
                found = self._gradients(model, loss, rows_B, trees, numbers, values_only)
            else:
                found = by_hand(rows_B)
            if not idle:
                self.optimizer.clip(self.now("max_grad_norm"))
                self.optimizer.step()
            told.append(found)
            if self.target_kl is not None and not values_only:
                values_only = exceeds_target_kl(self.group.mean({"kl": float(found["kl"])})["kl"], self.target_kl)
            if idle or (values_only and not of_values):
                break  # nothing is left to teach, and Adam's momentum alone would move the policy on
        return self.group.mean({name: float(torch.stack([each[name] for each in told]).mean()) for name in told[0]})

    def _prepared(self, adv: torch.Tensor) -> torch.Tensor:
        return (adv - adv.mean()) / (adv.std(correction=0) + 1e-8) if self.normalizes_advantage else adv

    def _is_written_out(self) -> bool:
        """Whether gradients are those of `PPOByHand`: a rank alone, with the usual loss."""
        usual = self.loss_of_policy is policy_loss and self.computing.is_plain and not self.per_action
        return usual and self.ranks == 1 and self.parallel == "ddp" and PPOByHand.works_for(self.policy)

    def _gradients(
        self, model: Callable[..., Any], loss: Callable[..., PPOLoss], rows_B: torch.Tensor, trees: list[Tree],
        numbers: dict[str, torch.Tensor], values_only: bool,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        """Those of this rank's part of a minibatch, or of the value net alone. Returns its share of the means."""
        columns = {name: column[rows_B] for name, column in numbers.items()}
        columns["advantage_B"] = self._prepared(columns["advantage_B"])  # of all its rows, on however many ranks
        mine, *parts = self._part(rows_B, *columns.values())
        of = dict(zip(columns, parts, strict=True))
        # relative to a fair one: the mean over the ranks is the mean over all rows
        share = self.ranks * len(mine) / len(rows_B)
        log_prob, entropy, value = model(*(_selected(tree, mine) for tree in trees))
        entropy, log_prob, old, *proximal = _carried_out(entropy, log_prob, of, self.per_action)
        if proximal:
            loss = partial(loss, of_policy=partial(self.loss_of_policy, proximal_log_prob=proximal[0]))
        adv = of["advantage_B"].unsqueeze(1) if log_prob.dim() == 2 else of["advantage_B"]  # a chunk's for its actions
        found = loss(log_prob, old, adv, value, of["return_B"], entropy)
        total = found.total
        if values_only:  # every parameter gets a gradient all the same: DistributedDataParallel waits for it
            total = self.now("vf_coef") * value_loss(value, of["return_B"]) + 0.0 * (log_prob.sum() + entropy.sum())
        self.optimizer.zero_grad()
        if values_only and self._of_actor is None:
            self._of_actor = _moving_actions(self.policy, [_selected(tree, mine[:2]) for tree in trees])
        (share * total).backward()
        for name in self._of_actor or () if values_only else ():
            # a gradient of zero would let Adam's momentum move it on
            self.policy.get_parameter(name).grad = None
        means = {"policy_loss": found.policy, "value_loss": found.value, "entropy": found.entropy,
                 "kl": found.kl, "clip_fraction": found.clip_fraction}  # fmt: skip
        return {name: share * value.detach() for name, value in means.items()}

    def _part(self, *columns: torch.Tensor) -> list[torch.Tensor]:
        """This rank's rows of a minibatch."""
        if self.ranks == 1:
            return list(columns)
        return [column.tensor_split(self.ranks)[self.group.position] for column in columns]

    def offload(self) -> None:
        self.group.offload()
        super().offload()

    # --- checkpoints ----------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on exactly here, on any number of ranks. In host memory;
        training on does not change it.
        """
        with self._together():
            weights, optimizer = self.weights(), copied(self.group.whole_state(self.optimizer))
        return {
            "weights": weights, "optimizer": optimizer, "moments": self.moments, "returns": self.returns,
            "rng": self._rng.bit_generator.state,
            "env_steps": self.env_steps,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. ``state`` stays as it is, for others that go on from it too."""
        if self.group.forget():
            self._begin()  # whole again; the next update shares it out
        self.policy.load(state["weights"])
        self.optimizer.load_state_dict(copied(state["optimizer"]))  # torch would go on with the very tensors
        self.moments, self.returns, self.env_steps = state["moments"], state["returns"], state["env_steps"]
        self._rng.bit_generator.state = state["rng"]
        self._made = state["weights"]

    def close(self) -> None:
        if hasattr(self, "group"):
            self.group.leave()  # a run that is kept would keep its connections
        # before the first update a file of another run stays
        if self._save_to and self.rank == 0 and self._made is not None:
            self._made.save(self._save_to)


def _numbers(batch: TrainBatch, per_action: bool, device: torch.device) -> dict[str, torch.Tensor]:
    """What a loss needs of each row, by its name in `Minibatch` of `policies.ppo_by_hand`.

    ``carried_BK``, where log-probabilities are of each action of a chunk: 1 for those that an environment got, else 0.
    """
    columns: dict[str, Any] = {name: getattr(batch, name) for name in ("log_prob_B", "advantage_B", "return_B")}
    if batch.log_prob_B.ndim == 2:
        actions = batch.log_prob_B.shape[1]
        steps_B = np.full(len(batch), actions) if batch.steps_B is None else batch.steps_B
        columns["carried_BK"] = np.arange(actions) < steps_B[:, None]
    elif per_action:
        raise ConfigError(
            "LearnerWorker(per_action=True): this policy gives one log-probability for a whole chunk. Next: leave "
            "per_action out."
        )
    return {n: torch.as_tensor(x, dtype=torch.float32, device=device) for n, x in columns.items()}


@torch.no_grad()
def _log_probs(model: Callable[..., Any], trees: list[Tree], rows: int, at_once: int) -> torch.Tensor:
    """Of what was done, under the weights as they are now."""
    parts = [slice(start, start + at_once) for start in range(0, rows, at_once)]
    return torch.cat([model(*(map_tree(lambda leaf, p=part: leaf[p], t) for t in trees))[0] for part in parts])


def _carried_out(
    entropy: torch.Tensor, log_prob: torch.Tensor, of: Mapping[str, torch.Tensor], per_action: bool
) -> list[torch.Tensor]:
    """Entropies; log-probabilities now, when it was done, and before the update if asked for.

    Of chunks without the actions that no environment got, and summed unless ``per_action``.
    """
    told = [log_prob, *(of[name] for name in ("log_prob_B", "proximal_B") if name in of)]
    if "carried_BK" not in of:
        return [entropy, *told]
    told = [entropy, *(each * of["carried_BK"] for each in told)]
    return told if per_action else [each.sum(1) for each in told]


def _moving_actions(policy: nn.Module, trees: list[Tree]) -> list[str]:
    """Names of the parameters on which what is chosen depends.

    The actor's, and of those that it shares with the value net. Asked of the module itself: through a compiled one
    everything depends on everything.
    """
    log_prob, entropy, _ = policy(*trees)
    learned = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(log_prob.sum() + entropy.sum(), list(learned.values()), allow_unused=True)
    return [name for name, gradient in zip(learned, gradients, strict=True) if gradient is not None]


def _selected(tree: Tree, rows_B: torch.Tensor) -> Tree:
    """These rows of each leaf. Of pictures indexing takes several times as long."""
    return map_tree(lambda leaf: leaf.index_select(0, rows_B), tree)


def _end_values(policy: ActorCritic, t: Trajectory) -> np.ndarray:
    """Values of the observations with which episodes ended. 0 where the task was over: nobody looks at what follows."""
    value_E = np.zeros(len(t.end_E2), np.float32)
    cut_E = np.flatnonzero(~t.terminated_TN[t.end_E2[:, 0], t.end_E2[:, 1]])
    if len(cut_E):
        value_E[cut_E] = policy.values(rows(t.end_obs_E, cut_E))
    return value_E


def number_of_minibatches(samples: int, minibatch: int, ranks: int = 1) -> int:
    """Into how many nearly equal parts samples are divided.

    None exceeds ``minibatch``, unless it were of one sample (its normalised advantage is zero: no gradient) or had none
    for some rank.
    """
    return min(-(-samples // minibatch), samples // max(2, ranks))


def flat(parts: Sequence[Tree]) -> Tree:
    """Trees with leaves T×N×…, joined over the environments, as rows.

    The same order of rows however they were grouped.
    """

    def joined(*leaves: Any) -> Any:
        join: Any = torch.cat if isinstance(leaves[0], torch.Tensor) else np.concatenate
        whole = leaves[0] if len(leaves) == 1 else join(leaves, 1)
        return whole.reshape(-1, *whole.shape[2:])

    return map_tree(joined, *parts)


def _without_resets(batch: TrainBatch, trajectories: list[Trajectory]) -> TrainBatch:
    """Rows that were no steps teach nothing."""
    masks = [np.zeros(t.reward_TN.shape, bool) if t.reset_only_TN is None else t.reset_only_TN for t in trajectories]
    kept_B = ~flat(masks)
    columns: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    kept: dict[str, Any] = {name: None if column is None else rows(column, kept_B) for name, column in columns.items()}
    return TrainBatch(**kept)


def _tensor(leaf: np.ndarray | torch.Tensor) -> torch.Tensor:
    """The memory of an array, as torch wants it: writable. A transport may hand out what is read-only."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())


def _finite(weights: PolicyWeights, losses: dict[str, float]) -> PolicyWeights:
    """`ArithmeticError` for weights that an update has made useless: they are neither published nor saved."""
    for name, array in weights.arrays.items():
        if not np.isfinite(array).all():
            told = ", ".join(f"{name} {value:.3g}" for name, value in losses.items())
            raise FloatingPointError(
                f"update {weights.version} made weights that are not finite ({name}); the last good ones are kept. "
                f"{told}. "
                f"Next: a smaller learning_rate or max_grad_norm, normalize_reward=True."
            )
    return weights


def episode_metrics(trajectories: list[Trajectory]) -> dict[str, float]:
    """Means over the episodes that ended.

    ``return`` (unscaled, undiscounted), ``length``; ``success_rate`` (at the end) and ``success_once`` where the task
    has a signal.

    Empty but for ``episodes`` when none ended: a rate of nothing is not zero.
    """
    count = sum(len(t.end_return_E) for t in trajectories)
    if not count:
        return {"episodes": 0.0}
    returns, lengths, at_end, once = (
        np.concatenate([getattr(t, name) for t in trajectories])
        for name in ("end_return_E", "end_length_E", "end_success_E", "end_success_once_E")
    )  # fmt: skip
    return {
        "episodes": float(count),
        **success_rates(at_end, once),
        "return": float(returns.mean()),
        "length": float(lengths.mean()),
    }
