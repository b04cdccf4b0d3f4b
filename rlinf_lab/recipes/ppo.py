"""PPO on one simulator, as a workflow of three workers.

                 act (keyed by slot)
          ┌───────────────────────────┐
          ▼                           │
      simulator ──── obs ────────▶ policy ◀── weights ──┐
          │                                             │
          └────────── traj (whole iteration) ─────▶ learner

One iteration: ``num_envs × steps`` environment steps, one update, new weights. Simulator and policy form the cell. The weights are a store:
the learner publishes, the policy pulls the newest, so a plan with staleness collects with a policy that is some updates behind (metric
``staleness``). Left out, because no setting here needs them: pixels, recurrent policies, value clipping.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.policies import GaussianMLP, Weights
from rlinf_lab.workers import LearnerWorker, PolicyWorker, SimulatorWorker
from rlinf_lab.workers.learner import GROUPS
from rlinf_lab.workflow.workflow import WorkerHandle, Workflow


@dataclass(frozen=True)
class PPOConfig:
    """Every number of the experiment. Construct one with `preset`, which knows settings that learn.

    Raises `ConfigError` naming the field, its value and the limit.
    """

    env_id: str | Callable[..., Any]
    """an id ("simulator/task"), or what constructs a `VecEnv` from ``num_envs`` and ``horizon``"""
    obs_size: int
    """numbers in an observation"""
    action_size: int
    """numbers in an action"""
    horizon: int | None = None
    """environment steps after which an episode is cut; None: the environment's own limit"""
    num_envs: int = 8
    """environments, over all ranks and sub-batches together"""
    steps: int = 100
    """environment steps of each environment in an iteration"""
    iterations: int = 75
    """updates; the learning rate is annealed over so many"""
    seed: int = 0
    """of environments, weights, exploration and minibatches"""
    gamma: float = 0.95
    """discount per environment step"""
    lam: float = 0.9
    """decay of generalised advantage estimation per environment step"""
    learning_rate: float = 1e-3
    """of Adam, in the first update"""
    anneal: float = 0.9
    """share of the learning rate that is gone, linearly, in the last update"""
    epochs: int = 8
    """passes over the samples of an iteration"""
    minibatch: int = 200
    """samples of a gradient step"""
    clip: float = 0.2
    """how far the probability ratio may leave 1"""
    value_coefficient: float = 0.5
    """weight of the value loss"""
    entropy_coefficient: float = 0.0
    """weight of the entropy bonus, per nat"""
    max_grad_norm: float = 0.5
    """Euclidean norm to which the gradient is cut"""
    reward_scale: float = 1.0
    """factor on rewards before learning; returns are reported without it"""
    log_std: float = -0.7
    """initial log standard deviation of the actions, in units of the action's range [-1, 1]"""
    hidden: tuple[int, ...] = (64, 64)
    """units of each hidden layer, of the policy and of the value net"""
    save_to: str | None = None
    """safetensors file that the learner writes when the run ends"""
    parallel: str = "ddp"
    """how several learner ranks share the work: "ddp" (gradients) or "fsdp" (also weights and Adam's moments)"""

    def __post_init__(self) -> None:
        self._require("env_id", isinstance(self.env_id, str) or callable(self.env_id), "an id, 'simulator/task', or what constructs a VecEnv")
        for name in ("obs_size", "action_size", "num_envs", "steps", "iterations", "epochs"):
            self._require(name, _whole(getattr(self, name), 1), "a whole number of at least 1")
        self._require("minibatch", _whole(self.minibatch, 2), "a whole number of at least 2: advantages are normalised within a minibatch")
        self._require("seed", _whole(self.seed, 0), "a whole number of at least 0")
        self._require("horizon", self.horizon is None or _whole(self.horizon, 1), "a whole number of at least 1, or None")
        for name in ("gamma", "lam", "anneal"):
            self._require(name, _real(value := getattr(self, name)) and 0 <= value <= 1, "a number between 0 and 1")
        for name in ("learning_rate", "clip", "max_grad_norm", "reward_scale"):
            self._require(name, _real(value := getattr(self, name)) and value > 0, "a number greater than 0")
        for name in ("value_coefficient", "entropy_coefficient"):
            self._require(name, _real(value := getattr(self, name)) and value >= 0, "a number of at least 0")
        self._require("minibatch", self.minibatch <= self.env_steps, f"at most num_envs × steps = {self.env_steps}")
        self._require("log_std", _real(self.log_std) and -5 <= self.log_std <= 2, "a number between -5 and 2")
        units = isinstance(self.hidden, (tuple, list)) and all(_whole(n, 1) for n in self.hidden)
        self._require("hidden", units, "a tuple of whole numbers of at least 1, such as (64, 64)")
        self._require("parallel", self.parallel in GROUPS, " or ".join(map(repr, GROUPS)))
        self._require("save_to", self.save_to is None or isinstance(self.save_to, (str, os.PathLike)), "a path, or None")

    def _require(self, field: str, holds: bool, limit: str) -> None:
        if not holds:
            raise ConfigError(f"PPOConfig.{field} is {shown(getattr(self, field))}; it must be {limit}.")

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.steps

    @classmethod
    def preset(cls, env_id: str, **overrides: Any) -> PPOConfig:
        """Settings known to learn ``env_id``, some fields changed. `UnknownNameError` for an unknown environment or field."""
        if env_id not in PRESETS:
            hint = "For another environment construct PPOConfig(env_id=..., obs_size=..., action_size=...) yourself."
            raise UnknownNameError.of("preset", env_id, PRESETS, hint)
        known = [f.name for f in dataclasses.fields(cls)]
        for name in overrides:
            if name not in known:
                raise UnknownNameError.of("field of PPOConfig", name, known)
        return cls(**{"env_id": env_id, **PRESETS[env_id], **overrides})

    def policy(self) -> partial[GaussianMLP]:
        """The constructor that policy and learner share: equal arguments, equal initial weights."""
        return partial(
            GaussianMLP, self.obs_size, self.action_size, hidden=self.hidden, log_std=self.log_std, seed=self.seed
        )  # fmt: skip


def _whole(value: object, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def _real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


# gamma 0.95 learns faster on most seeds but leaves some pressing the button not quite far enough (docs/history.md).
_METAWORLD: dict[str, Any] = {
    "obs_size": 39, "action_size": 4, "horizon": 100, "reward_scale": 0.1, "gamma": 0.9, "iterations": 120,
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "numpy/ReachArm-v0": {
        "obs_size": 8, "action_size": 2, "horizon": 60, "num_envs": 32, "steps": 60, "iterations": 110, "minibatch": 320,
        "gamma": 0.9, "learning_rate": 3e-3, "log_std": 0.0,
    },
    "metaworld/button-press-v3": _METAWORLD,
    "metaworld/drawer-close-v3": _METAWORLD,
    "metaworld/reach-v3": _METAWORLD,
    "maniskill/PushCube-v1": {
        "obs_size": 35, "action_size": 8, "horizon": 50, "num_envs": 16, "steps": 50, "iterations": 200,
        "gamma": 0.9, "learning_rate": 7e-4, "entropy_coefficient": 0.001,
    },
}  # fmt: skip


def build(config: PPOConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner (`LearnerWorker.state_dict`), to go on where another run stopped.

    An iteration does what its argument says: ``"train"`` (the default), ``"checkpoint"`` (the same; returns ``metrics`` and ``state``),
    ``"evaluate"`` (the greedy policy on fresh seeds) or ``"state"`` (returns the learner's state).
    """
    flow = Workflow("ppo")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    published = flow.weights("policy_weights")
    weights, taken = (None, 0) if state is None else (state["weights"], state["env_steps"] // config.num_envs)
    simulator, policy = _cell(flow, config, weights, taken)
    learner = flow.worker(
        LearnerWorker, config.policy(), name="learner",
        gamma=config.gamma, lam=config.lam, learning_rate=config.learning_rate, epochs=config.epochs,
        minibatch=config.minibatch, clip=config.clip, value_coefficient=config.value_coefficient,
        entropy_coefficient=config.entropy_coefficient, max_grad_norm=config.max_grad_norm, reward_scale=config.reward_scale,
        anneal=config.anneal, anneal_updates=config.iterations, seed=config.seed, save_to=config.save_to,
        state=state, parallel=config.parallel,
    )  # fmt: skip

    @flow.iteration
    def iteration(request: str = "train") -> Any:
        if request == "state":
            return first(learner.state_dict().wait())
        if request == "evaluate":
            result = simulator.evaluate(act, obs)
            policy.act(obs, act, published, deterministic=True)
            return pooled(result.wait())
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        metrics = learner.train(traj, published).metrics
        return {"metrics": metrics, "state": learner.state_dict()} if request == "checkpoint" else metrics

    return flow


def shares(config: PPOConfig) -> dict[str, int]:
    """The simulator may have as many ranks as there are environments."""
    return {"simulator": config.num_envs}


def build_evaluation(config: PPOConfig, weights: Weights | None = None, episodes: int = 50) -> Workflow:
    """A workflow of its own that evaluates a policy greedily, ``episodes`` each iteration. Without weights: the initial policy."""
    flow = Workflow("ppo_evaluation")
    obs, act = flow.channel("obs"), flow.channel("act", keyed=True)
    simulator, policy = _cell(flow, config, weights)

    @flow.iteration
    def iteration() -> Any:
        result = simulator.evaluate(act, obs, episodes=episodes)
        policy.act(obs, act, deterministic=True)
        return pooled(result.wait())

    return flow


def first(per_rank: Any) -> Any:
    """What rank 0 returned; learner ranks are equal."""
    return per_rank[0] if isinstance(per_rank, list) else per_rank


def pooled(per_rank: dict[str, float] | list[dict[str, float]]) -> dict[str, float]:
    """Join what the simulator's ranks found in an evaluation: means weighted by their episodes."""
    if not isinstance(per_rank, list):
        return per_rank
    episodes = sum(r["episodes"] for r in per_rank)
    means = {k: sum(r[k] * r["episodes"] for r in per_rank) / episodes for k in per_rank[0] if k != "episodes"}
    return {"episodes": episodes, **means}


def _cell(flow: Workflow, config: PPOConfig, weights: Weights | None, taken: int = 0) -> tuple[WorkerHandle, WorkerHandle]:
    simulator = flow.worker(
        SimulatorWorker, config.env_id, name="simulator",
        num_envs=config.num_envs, steps=config.steps, horizon=config.horizon, seed=config.seed, taken=taken,
        sizes=(config.obs_size, config.action_size),
    )  # fmt: skip
    return simulator, flow.worker(PolicyWorker, config.policy(), name="policy", seed=config.seed, weights=weights)
