"""GRPO in a simulator: whole episodes are compared with one another.

On success alone, without a critic.

                 act (keyed by slot)
          ┌───────────────────────────┐
          ▼                           │
      simulator ──── obs ────────▶ policy ◀── weights ──┐
          │                                             │
          └────────── traj (whole iteration) ─────▶ learner

One iteration: an episode in each environment; all of them are one group, for they are of one task. What an episode came to, compared with the group by an
advantage of `lab.algorithms`, is the advantage of each of its decisions. Episodes that did not end within the iteration teach nothing. Sources: Shao et al.,
DeepSeekMath (arXiv 2402.03300), section 4.1; for action chunks in simulators RLinf-VLA (arXiv 2510.06710). Left out, because a vector is seeded as a whole:
groups that begin in one and the same state.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from rlinf_lab.algorithms import advantage as advantages
from rlinf_lab.algorithms import loss as losses
from rlinf_lab.algorithms.trial import tried_advantage_of_groups, tried_loss
from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.recipes.config import SimulatedConfig, answering, greedily, real, trains_only
from rlinf_lab.recipes.described import described
from rlinf_lab.recipes.ppo import PPOConfig, cell
from rlinf_lab.recipes.starting_policy import StartingPolicy
from rlinf_lab.workers.group_learner import GroupLearner
from rlinf_lab.workers.learner import Number
from rlinf_lab.workflow.workflow import Workflow


@described
@dataclass(frozen=True)
class EmbodiedGRPOConfig(SimulatedConfig):
    """Every number of the experiment, see `SimulatedConfig`. The defaults are those that learn from a clone on Meta-World.

    An error about what both recipes have names `PPOConfig`.
    """

    policy: Callable[..., nn.Module] | StartingPolicy | None = None
    """what to go on from: a run, a loaded policy, a run's folder; success alone teaches nothing to a policy that never succeeds. Or what makes the module"""
    num_envs: int = 64
    """episodes of an iteration, over all ranks and sub-batches together: the group"""
    reward: str = "success"
    """"success": 1 in the step in which the task first succeeds, which ends the episode; "environment": its own rewards, summed"""
    advantage: str | Callable[..., Any] = dataclasses.field(default="grpo", metadata=trains_only(advantages))
    """of whole episodes: "grpo", "dr_grpo", "rloo", "reinforce++", or one that was registered with ``lab.algorithms.advantage``"""
    loss: str | Callable[..., Any] = dataclasses.field(default="ppo", metadata=trains_only(losses))
    """of the policy: "ppo", "reinforce", "decoupled_ppo", or the name of one that was registered with ``lab.algorithms.loss(name)``"""
    learning_rate: Number = 3e-4
    """of Adam"""
    n_epochs: Number = 8
    """passes over the samples of an iteration"""
    batch_size: Number = 320
    """samples of a gradient step, at most all of an iteration: decisions, each of an action or of a chunk"""
    clip_range: Number = 0.2
    """how far the probability ratio may leave 1"""
    ent_coef: Number = 0.0
    """weight of the entropy bonus, per nat"""
    max_grad_norm: Number = 0.5
    """Euclidean norm to which the gradient is cut"""
    target_kl: float | None = 0.05
    """above 1.5 times this divergence (nats) an update ends; None: no limit"""
    chunk_size: int | None = None
    """so many actions are chosen at once; None: as the policy that is gone on from has it, else single actions"""
    per_action: bool = False
    """whether the probability ratio is clipped for each action of a chunk by itself"""
    net_arch: tuple[int, ...] = (64, 64)
    """units of each hidden layer"""
    normalize_obs: bool = True
    """whether numbers of observations are normalised; a policy that is gone on from keeps its own normalisation"""
    parallel: str = "ddp"
    """how several learner ranks share the work: "ddp" (gradients) or "fsdp" (also weights and Adam's moments)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("target_kl", self.target_kl is None or (real(self.target_kl) and self.target_kl > 0), "a number greater than 0, or None")
        self._require("num_envs", self.num_envs >= 2, "a whole number of at least 2: episodes are compared")
        advantages.get(self.advantage, of=("group", "batch"))

    @functools.cached_property
    def ppo(self) -> PPOConfig:
        """What both recipes share, as the other one takes it."""
        shared = {f.name for f in dataclasses.fields(PPOConfig)} & {f.name for f in dataclasses.fields(self)}
        settings = {name: getattr(self, name) for name in shared - {"advantage"}}
        if self.iterations is None and self.total_timesteps is None:
            settings["iterations"] = 50
        limit = PPOConfig(self.env, max_episode_steps=self.max_episode_steps).spec.max_episode_steps
        if limit is None:
            raise ConfigError(f"{shown(self.env)} limits no episode, and whole episodes are compared. Next: max_episode_steps=100.")
        settings |= {"max_episode_steps": limit, "n_steps": limit}
        if isinstance(self.batch_size, int):  # the default is of many episodes
            chunk = PPOConfig(self.env, policy=self.policy, chunk_size=self.chunk_size, n_steps=limit, batch_size=2).chunk or 1
            settings["batch_size"] = max(2, min(self.batch_size, self.num_envs * (limit // chunk)))
        return PPOConfig(**settings)

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.ppo.env_steps

    @property
    def updates(self) -> int:
        """Iterations of the whole run."""
        return self.ppo.updates

    @property
    def chunk(self) -> int | None:
        """How many actions are chosen at once; None: one."""
        return self.ppo.chunk

    def make_policy(self) -> Callable[[], Any]:
        """The constructor that policy and learner share."""
        return self.ppo.make_policy()


def build(config: EmbodiedGRPOConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner, to go on where another run stopped. Requests of an iteration as in `recipes.ppo.build`."""
    ppo = config.ppo
    flow = Workflow("embodied_grpo")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    published = flow.weights("policy_weights")
    weights, taken = (None, 0) if state is None else (state["weights"], state["weights"].version * ppo.decisions)
    simulator, policy = cell(flow, ppo, weights, taken, state)
    learner = flow.worker(
        GroupLearner, config.make_policy(), name="learner", advantage=tried_advantage_of_groups(config.advantage, config.num_envs).function,
        loss_of_policy=tried_loss(config.loss).function, learning_rate=config.learning_rate, n_epochs=config.n_epochs, batch_size=ppo.batch_size, clip_range=config.clip_range,
        ent_coef=config.ent_coef, max_grad_norm=config.max_grad_norm, per_action=config.per_action, target_kl=config.target_kl, updates=config.updates, seed=config.seed,
        save_to=config.save_to, state=state, parallel=config.parallel, moves_normaliser=not isinstance(config.policy, StartingPolicy),
        **config.learning(),
    )  # fmt: skip

    @flow.iteration
    @answering(learner, greedily(simulator, policy, act, obs, published), simulator)
    def iteration() -> Any:
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        return learner.train(traj, published).metrics

    return flow


shares = SimulatedConfig.shares
