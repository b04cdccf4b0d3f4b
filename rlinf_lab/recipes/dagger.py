"""DAgger: the learner acts, an expert says what it would have done.

A workflow of three workers.

                 act (keyed by slot)
          ┌───────────────────────────┐
          ▼                           │
      simulator ──── obs ────────▶ policy (+ expert) ◀── weights ──┐
          │                                                        │
          └────────── traj (whole iteration) ─────▶ learner (+ expert, all data so far)

One iteration: ``num_envs × n_steps`` environment steps, the expert's labels of what was seen, gradient steps on the labels of all iterations. In the first
iteration the expert acts, later the learner, or a mixture. Source: Ross et al., A Reduction of Imitation Learning (arXiv 1011.0686), algorithm 3.1.
Experimental. Left out, because an expert of single steps cannot say what would follow: chunks of actions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlinf_lab.algorithms import dagger_beta
from rlinf_lab.recipes.clone import CloneConfig
from rlinf_lab.recipes.config import SimulatedConfig, answering, greedily
from rlinf_lab.recipes.described import described
from rlinf_lab.vecenv import environment
from rlinf_lab.workers import SimulatorWorker
from rlinf_lab.workers.imitation.dagger import DAggerLearner, DAggerPolicy
from rlinf_lab.workers.learner import Number
from rlinf_lab.workflow.workflow import Workflow


@described
@dataclass(frozen=True)
class DAggerConfig(SimulatedConfig):
    """Every number of the experiment, see `SimulatedConfig`. An error about what it shares with cloning names `CloneConfig`."""

    expert: str | Callable[[Any], Any] = "expert"
    """who says what to do: "expert" (the task's scripted policy), or a function from observations of several environments to actions"""
    n_steps: int = 100
    """environment steps of each environment in an iteration"""
    decay: float = 0.0
    """in iteration i the expert takes a step with probability decay^i; 0: in the first iteration alone"""
    steps_per_iteration: int = 200
    """gradient steps after each iteration"""
    batch_size: int = 256
    """rows of a gradient step"""
    learning_rate: Number = 1e-3
    """of Adam"""
    max_grad_norm: float | None = None
    """Euclidean norm to which the gradient is cut; None: it is not"""
    net_arch: tuple[int, ...] = (128, 128)
    """units of each hidden layer"""
    activation: str = "tanh"
    """between the layers: "tanh", "relu", "elu" or "silu\""""
    std: float = 0.25
    """standard deviation of continuous actions, in units of the action's range [-1, 1]; it is not learnt"""
    std_floor: float = 0.02
    """added to the standard deviations by which observations are divided"""
    normalize_obs: bool = True
    """whether numbers of observations are normalised, by what the expert saw in the first iteration"""
    parallel: str = "ddp"
    """how several learner ranks share the work: "ddp" or "fsdp\""""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("expert", self.expert == "expert" or callable(self.expert), "'expert', or a function from observations to actions")
        self._require_whole("n_steps")
        dagger_beta(0, decay=self.decay)
        _ = self.clone

    @functools.cached_property
    def clone(self) -> CloneConfig:
        """What both recipes share, as the other one takes it."""
        shared = ({f.name for f in dataclasses.fields(CloneConfig)} & {f.name for f in dataclasses.fields(self)}) - {"total_timesteps", "iterations"}
        return CloneConfig(**{name: getattr(self, name) for name in shared})

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.n_steps

    @property
    def updates(self) -> int:
        """Iterations of the whole run; 20 where nothing is said."""
        return self._updates(20)

    def make_policy(self) -> partial[Any]:
        """The constructor that policy and learner share."""
        return self.clone.make_policy()


def build(config: DAggerConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner, to go on where another run stopped; its data is with it. Requests as in `recipes.ppo.build`.

    `ConfigError` for an environment without a scripted expert, where that is asked for.
    """
    expert = environment(config.env).expert() if config.expert == "expert" else config.expert
    flow = Workflow("dagger")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    published = flow.weights("policy_weights")
    weights, taken = (None, 0) if state is None else (state["weights"], state["weights"].version * config.n_steps)
    make = config.make_policy()
    simulator = flow.worker(SimulatorWorker, name="simulator", **config.simulating(config.n_steps, taken, state))
    policy = flow.worker(DAggerPolicy, make, name="policy", expert=expert, decay=config.decay, seed=config.seed, weights=weights)
    learner = flow.worker(
        DAggerLearner, make, name="learner", expert=expert, steps=config.steps_per_iteration, learning_rate=config.learning_rate,
        batch_size=config.batch_size, max_grad_norm=config.max_grad_norm, std_floor=config.std_floor, updates=config.updates, seed=config.seed,
        save_to=config.save_to, state=state, parallel=config.parallel, **config.learning(),
    )  # fmt: skip

    @flow.iteration
    @answering(learner, greedily(simulator, policy, act, obs, published), simulator)
    def iteration() -> Any:
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        return learner.imitate(traj, published).metrics

    return flow


shares = SimulatedConfig.shares
