"""What SAC and TD3 share: settings, checks, and the workflow of three workers.

                 act (keyed by slot)
          ┌───────────────────────────┐
          ▼                           │
      simulator ──── obs ────────▶ policy ◀── weights ──┐
          │                                             │
          └────────── traj (whole iteration) ─────▶ learner ⟲ replay

One iteration: ``num_envs × train_freq`` environment steps into the replay buffer, ``gradient_steps`` gradient steps, new weights. A plan with
staleness lets simulator and policy go on with the next iteration while the learner trains on the last: the metric ``staleness`` says how many
updates the policy was behind.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from torch import nn

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.policies import make_actor, make_q_ensemble
from rlinf_lab.replay import ReplayBuffer
from rlinf_lab.vecenv import EnvFactory, EnvSpec, environment
from rlinf_lab.workers import SimulatorWorker
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.off_policy import ExploringPolicyWorker, OffPolicyLearner
from rlinf_lab.workers.off_policy.stepping import PRECISIONS, GradientStep
from rlinf_lab.workers.standing import stood
from rlinf_lab.workflow.workflow import Workflow


@dataclass(frozen=True)
class OffPolicyConfig:
    """Settings that SAC, TD3 and RLPD have in common; names are Stable-Baselines3's.

    Where `Number` stands a schedule may stand, too: ``lab.linear(3e-4)``, or a function of the share of the run that is done.
    Raises `ConfigError` naming the field, its value and the limit.
    """

    env: Any
    """an id ("Pendulum-v1", "simulator/task"), a gymnasium.Env class, a function that makes one or a vector, a gymnasium VectorEnv"""
    max_episode_steps: int | None = None
    """environment steps after which an episode is cut; None: the environment's own limit"""
    num_envs: int = 1
    """environments, over all ranks and sub-batches together"""
    runner: str = "auto"
    """what steps the environments, the same everywhere in the run: "auto" measures those that the simulator has, see `make_vec`; `train` writes down which"""
    train_freq: int = 8
    """environment steps of each environment in an iteration, between two updates of the policy that acts"""
    gradient_steps: int = -1
    """of an iteration; -1: as many as environment steps, -20: twenty for each of them"""
    total_timesteps: int | None = None
    """environment steps of the run, over all environments, rounded up to whole iterations; None: as `iterations` says, else 100,000"""
    iterations: int | None = None
    """iterations of the run, instead of `total_timesteps`"""
    seed: int = 0
    """of environments, weights, exploration and minibatches"""
    learning_rate: Number = 3e-4
    """of Adam, for all nets"""
    buffer_size: int = 1_000_000
    """transitions that are kept, the newest ones; memory is taken as they come"""
    learning_starts: int = 100
    """environment steps with actions drawn uniformly, before anything is learnt"""
    batch_size: int = 256
    """transitions of a gradient step"""
    tau: Number = 0.005
    """share of the new weights in each step of the target's moving average"""
    gamma: Number = 0.99
    """discount per environment step"""
    policy_delay: int = 1
    """gradient steps of the critics for one of the actor"""
    n_critics: int = 2
    """critics, of whose values the least counts"""
    net_arch: tuple[int, ...] = (256, 256)
    """units of each hidden layer, of actor and critics"""
    activation: str = "relu"
    """between the layers: "tanh", "relu", "elu" or "silu\""""
    layer_norm: bool = False
    """whether the critics normalise each hidden layer"""
    normalize_obs: bool = False
    """whether numbers of observations are normalised by their running mean and deviation; images and categories never are"""
    reward_scale: float = 1.0
    """factor on rewards before learning; returns are reported without it"""
    prioritized_replay: bool = False
    """draw transitions by their temporal difference (Schaul et al., arXiv 1511.05952) instead of uniformly"""
    encoder: Callable[..., nn.Module] | None = None
    """makes the module from prepared observations to features, see `make_actor`; None: a convolutional net for images, all else as it is"""
    precision: str = "float32"
    """of forward and backward passes: "float32" or "bfloat16"; weights and Adam's moments stay in single precision"""
    compile: bool = False
    """pass the losses through torch.compile: a minute at the beginning, then faster steps on a GPU"""
    learners: int = 1
    """ranks of the learner at most, which share the rows of each minibatch"""
    staleness: int = 0
    """updates that the acting policy may be behind, so that a plan lets it collect while the learner learns; 0: in turns"""
    render: bool = True
    """whether the simulator draws a picture now and then, for a dashboard; `train` wants them in a notebook only"""
    save_to: str | None = None
    """safetensors file that the learner writes when the run ends"""

    def __post_init__(self) -> None:
        self._require("runner", isinstance(self.runner, str), "'auto', or the name of a runner")
        for name in ("num_envs", "train_freq", "buffer_size", "batch_size", "policy_delay", "n_critics", "learners"):
            self._require(name, _whole(getattr(self, name), 1), "a whole number of at least 1")
        for name in ("seed", "learning_starts", "staleness"):
            self._require(name, _whole(getattr(self, name), 0), "a whole number of at least 0")
        for name in ("max_episode_steps", "total_timesteps", "iterations"):
            self._require(name, (value := getattr(self, name)) is None or _whole(value, 1), "a whole number of at least 1, or None")
        self._require("iterations", self.iterations is None or self.total_timesteps is None, "None where total_timesteps is given: one of both")
        self._require("gradient_steps", _whole(self.gradient_steps, -1000) and self.gradient_steps != 0, "a whole number of at least 1, or -1 and below")
        self._require("learners", self.learners <= self.batch_size, f"at most batch_size = {self.batch_size}")
        self._require_number("learning_rate", lambda value: value > 0, "a number greater than 0", last=lambda value: value >= 0)
        for name in ("tau", "gamma"):
            self._require_number(name, lambda value: 0 <= value <= 1, "a number between 0 and 1")
        self._require("reward_scale", _real(self.reward_scale) and self.reward_scale > 0, "a number greater than 0")
        units = isinstance(self.net_arch, (tuple, list)) and all(_whole(n, 1) for n in self.net_arch)
        self._require("net_arch", units, "a tuple of whole numbers of at least 1, such as (256, 256)")
        for name in ("layer_norm", "normalize_obs", "prioritized_replay", "compile", "render"):
            self._require(name, isinstance(getattr(self, name), bool), "True or False")
        maker = self.encoder is None or (callable(self.encoder) and not isinstance(self.encoder, nn.Module))
        self._require("encoder", maker, "a function that makes a torch module, or None")
        self._require("precision", self.precision in PRECISIONS, " or ".join(map(repr, PRECISIONS)))
        self._require("save_to", self.save_to is None or isinstance(self.save_to, (str, os.PathLike)), "a path, or None")

    def _require(self, field: str, holds: bool, limit: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}.{field} is {shown(getattr(self, field))}; it must be {limit}.")

    def _require_number(self, field: str, holds: Callable[[float], bool], limit: str, last: Callable[[float], bool] | None = None) -> None:
        """``last``: what a schedule must fulfil at its end, where that is less."""
        value = getattr(self, field)
        if not callable(value):
            return self._require(field, _real(value) and holds(value), f"{limit}, or a schedule such as lab.linear(3e-4)")
        for progress in (0.0, 0.5, 1.0):
            there, test = value(progress), holds if progress < 1 or last is None else last
            self._require(field, _real(there) and test(there), f"{limit} everywhere, and gives {shown(there)} at {progress}")

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.train_freq

    @property
    def updates(self) -> int:
        """Iterations of the whole run."""
        return self.iterations or -(-(self.total_timesteps or 100_000) // self.env_steps)

    @functools.cached_property
    def factory(self) -> EnvFactory:
        """What makes the environments, in any process."""
        factory = environment(self.env)
        return factory if self.runner == "auto" else factory.for_run(self.num_envs, self.max_episode_steps, runner=self.runner)

    @functools.cached_property
    def spec(self) -> EnvSpec:
        """Read from the environment; one is made for it, once."""
        return self.factory.spec(self.max_episode_steps)

    @classmethod
    def preset(cls, env: Any, **overrides: Any) -> Self:
        """The settings for ``env``, with some fields changed. `UnknownNameError` for an unknown field."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in overrides:
            if name not in known:
                raise UnknownNameError.of(f"field of {cls.__name__}", name, known)
        return cls(env=env, **overrides)

    # --- what an algorithm says -----------------------------------------------------------------------------
    def make_policy(self) -> partial[Any]:
        """The constructor of the actor that policy and learner share: equal arguments, equal initial weights."""
        raise NotImplementedError

    def make_step(self) -> Callable[..., GradientStep]:
        """``step(learning_rate=..., device=...)`` of the learner."""
        raise NotImplementedError

    def step_settings(self) -> dict[str, Number]:
        """Numbers and schedules that a gradient step asks for."""
        return {name: getattr(self, name) for name in ("learning_rate", "gamma", "tau")}

    def demonstrations(self) -> tuple[ReplayBuffer | None, float]:
        """Transitions to learn from besides one's own, and their share of each minibatch."""
        return None, 0.0

    def make_actor(self, **special: Any) -> partial[Any]:
        """An actor of these settings, ``special`` ones of the algorithm."""
        return partial(make_actor, **self._nets(), **special)

    def make_critics(self) -> partial[Any]:
        """The critics."""
        return partial(make_q_ensemble, **self._nets(), critics=self.n_critics, norm="layer" if self.layer_norm else None)

    def _nets(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "observation_space": spec.observation_space, "action_space": spec.action_space,
            "net_arch": tuple(self.net_arch), "activation": self.activation, "normalize_obs": self.normalize_obs, "encoder": self.encoder, "seed": self.seed,
        }  # fmt: skip


def build(name: str, config: OffPolicyConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner (`OffPolicyLearner.state_dict`), to go on where another run stopped.

    An iteration does what its argument says: ``"train"`` (the default), ``"checkpoint"`` (the same; returns ``metrics`` and ``state``), or
    ``"state"`` (returns the learner's state). Raises what `make_actor` raises for a space in which the algorithm cannot act.
    """
    flow = Workflow(name)
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    published = flow.weights("policy_weights")
    weights, taken = (None, 0) if state is None else (state["weights"], state["env_steps"] // config.num_envs)
    make = config.make_policy()
    make()  # refuses a space here, not in a worker after the launch
    spec = config.spec
    simulator = flow.worker(
        SimulatorWorker, config.factory.for_run(config.num_envs, config.max_episode_steps), name="simulator",
        num_envs=config.num_envs, n_steps=config.train_freq, max_episode_steps=config.max_episode_steps, seed=config.seed, taken=taken,
        spaces=(spec.observation_space, spec.action_space), render=config.render, standing=None if state is None else state.get("standing"),
    )  # fmt: skip
    policy = flow.worker(
        ExploringPolicyWorker, make, name="policy", random_steps=-(-config.learning_starts // config.num_envs), seed=config.seed, weights=weights
    )
    offline, share = config.demonstrations()
    learner = flow.worker(
        OffPolicyLearner, config.make_step(), name="learner",
        settings=config.step_settings(), buffer_size=config.buffer_size, batch_size=config.batch_size, gradient_steps=config.gradient_steps,
        learning_starts=config.learning_starts, reward_scale=config.reward_scale, prioritised=config.prioritized_replay, offline=offline,
        offline_share=share, updates=config.updates, seed=config.seed, save_to=config.save_to, state=state,
    )  # fmt: skip

    @flow.iteration
    def iteration(request: str = "train") -> Any:
        if request not in ("train", "checkpoint", "state"):
            raise UnknownNameError.of("request of an iteration", request, ("train", "checkpoint", "state"))
        if request == "state":
            return stood(learner.state_dict().wait(), simulator.where_they_stand().wait())
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        metrics = learner.train(traj, published).metrics
        return {"metrics": metrics, "state": learner.state_dict(), "standing": simulator.where_they_stand()} if request == "checkpoint" else metrics

    return flow


def shares(config: OffPolicyConfig) -> dict[str, int]:
    """The simulator may have as many ranks as there are environments, the learner as many as the settings say."""
    return {"simulator": config.num_envs, "learner": config.learners}


def _whole(value: object, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def _real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
