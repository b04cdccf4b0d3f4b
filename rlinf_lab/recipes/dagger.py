"""DAgger: the learner acts, an expert says what it would have done, as a workflow of three workers.

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
from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.recipes.clone import CloneConfig
from rlinf_lab.recipes.ppo import pooled
from rlinf_lab.vecenv import EnvFactory, EnvSpec, environment
from rlinf_lab.workers import SimulatorWorker
from rlinf_lab.workers.dagger import DAggerLearner, DAggerPolicy
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.standing import stood
from rlinf_lab.workflow.workflow import Workflow


@dataclass(frozen=True)
class DAggerConfig:
    """Every number of the experiment; where `Number` stands a schedule may stand, too.

    Raises `ConfigError` naming the field (what it shares with cloning as `CloneConfig` names it), its value and the limit.
    """

    env: Any
    """an id ("metaworld/push-v3"), a gymnasium.Env class, a function that makes one or a vector, a gymnasium VectorEnv"""
    expert: str | Callable[[Any], Any] = "expert"
    """who says what to do: "expert" (the task's scripted policy), or a function from observations of several environments to actions"""
    max_episode_steps: int | None = None
    """environment steps after which an episode is cut; None: the environment's own limit"""
    num_envs: int = 8
    """environments, over all ranks and sub-batches together"""
    n_steps: int = 100
    """environment steps of each environment in an iteration"""
    total_timesteps: int | None = None
    """environment steps of the run, over all environments; None: as `iterations` says, else 20 iterations"""
    iterations: int | None = None
    """rounds of acting and learning, instead of `total_timesteps`"""
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
    seed: int = 0
    """of environments, weights, exploration and minibatches"""
    render: bool = True
    """whether the simulator draws a picture now and then, for a dashboard"""
    save_to: str | None = None
    """safetensors file that the learner writes when the run ends"""
    parallel: str = "ddp"
    """how several learner ranks share the work: "ddp" or "fsdp\""""

    def __post_init__(self) -> None:
        if self.expert != "expert" and not callable(self.expert):
            raise ConfigError(f"DAggerConfig.expert is {shown(self.expert)}; it must be 'expert', or a function from observations to actions.")
        for name in ("num_envs", "n_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"DAggerConfig.{name} is {shown(value)}; it must be a whole number of at least 1.")
        dagger_beta(0, decay=self.decay)
        _ = self.clone

    @classmethod
    def preset(cls, env: Any, **overrides: Any) -> DAggerConfig:
        """The defaults with some fields changed. `UnknownNameError` for an unknown field."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in overrides:
            if name not in known:
                raise UnknownNameError.of("field of DAggerConfig", name, known)
        return cls(env=env, **overrides)

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
        """Iterations of the whole run."""
        return self.iterations or (20 if self.total_timesteps is None else -(-self.total_timesteps // self.env_steps))

    @property
    def factory(self) -> EnvFactory:
        """What makes the environments, in any process."""
        return self.clone.factory

    @property
    def spec(self) -> EnvSpec:
        """Read from the environment."""
        return self.clone.spec

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
    make, spec = config.make_policy(), config.spec
    simulator = flow.worker(
        SimulatorWorker, config.factory.for_run(config.num_envs, config.max_episode_steps), name="simulator", num_envs=config.num_envs,
        n_steps=config.n_steps, max_episode_steps=config.max_episode_steps, seed=config.seed, taken=taken,
        spaces=(spec.observation_space, spec.action_space), render=config.render, standing=None if state is None else state.get("standing"),
    )  # fmt: skip
    policy = flow.worker(DAggerPolicy, make, name="policy", expert=expert, decay=config.decay, seed=config.seed, weights=weights)
    learner = flow.worker(
        DAggerLearner, make, name="learner", expert=expert, steps=config.steps_per_iteration, learning_rate=config.learning_rate,
        batch_size=config.batch_size, max_grad_norm=config.max_grad_norm, std_floor=config.std_floor, updates=config.updates, seed=config.seed,
        save_to=config.save_to, state=state, parallel=config.parallel,
    )  # fmt: skip

    @flow.iteration
    def iteration(request: str = "train") -> Any:
        if request not in ("train", "checkpoint", "evaluate", "state"):
            raise UnknownNameError.of("request of an iteration", request, ("train", "checkpoint", "evaluate", "state"))
        if request == "state":
            return stood(learner.state_dict().wait(), simulator.where_they_stand().wait())
        if request == "evaluate":
            result = simulator.evaluate(act, obs)
            policy.act(obs, act, published, deterministic=True)
            return pooled(result.wait())
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        metrics = learner.imitate(traj, published).metrics
        return {"metrics": metrics, "state": learner.state_dict(), "standing": simulator.where_they_stand()} if request == "checkpoint" else metrics

    return flow


def shares(config: DAggerConfig) -> dict[str, int]:
    """The simulator may have as many ranks as there are environments."""
    return {"simulator": config.num_envs}
