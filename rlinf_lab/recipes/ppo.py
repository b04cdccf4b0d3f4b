"""PPO on one environment, as a workflow of three workers.

                 act (keyed by slot)
          ┌───────────────────────────┐
          ▼                           │
      simulator ──── obs ────────▶ policy ◀── weights ──┐
          │                                             │
          └────────── traj (whole iteration) ─────▶ learner

One iteration: ``num_envs × n_steps`` environment steps, one update, new weights. Simulator and policy form the cell. The weights are a store:
the learner publishes, the policy pulls the newest, so a plan with staleness collects with a policy that is some updates behind (metric
``staleness``). Left out, because no setting here needs them: recurrent policies, value clipping.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from torch import nn

from rlinf_lab.algorithms import advantage as advantages
from rlinf_lab.algorithms import loss as losses
from rlinf_lab.algorithms.trial import tried_advantage_of_steps, tried_loss
from rlinf_lab.errors import ConfigError, shown, with_old_names
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies import PolicyWeights, make_policy
from rlinf_lab.policies.heads import Head
from rlinf_lab.policies.leaves import Kind, leaves_of
from rlinf_lab.recipes.config import SimulatedConfig, answering, greedily, real, trains_only, whole
from rlinf_lab.recipes.described import described
from rlinf_lab.recipes.fusing import as_rollout
from rlinf_lab.recipes.schedules import linear
from rlinf_lab.recipes.starting_policy import StartingPolicy
from rlinf_lab.vecenv import environment
from rlinf_lab.workers import LearnerWorker, PolicyWorker, RolloutWorker, SimulatorWorker
from rlinf_lab.workers.learner import Number
from rlinf_lab.workflow.workflow import WorkerHandle, Workflow

OLD_NAMES = {
    "env_id": "env", "obs_size": "leave it out, spaces are read from the environment",
    "action_size": "leave it out, spaces are read from the environment", "horizon": "max_episode_steps",
    "steps": "n_steps", "lam": "gae_lambda", "epochs": "n_epochs", "minibatch": "batch_size", "clip": "clip_range", "value_coefficient": "vf_coef",
    "entropy_coefficient": "ent_coef", "log_std": "log_std_init", "hidden": "net_arch", "anneal": "learning_rate=lab.linear(1e-3, 1e-4)",
}  # fmt: skip
POLICY_METHODS = ("act", "draw_noise", "values", "numbers", "set_normaliser", "weights", "load", "normalised_size", "version")


@described
@with_old_names(OLD_NAMES)
@dataclass(frozen=True)
class PPOConfig(SimulatedConfig):
    """Every number of the experiment, see `SimulatedConfig`. `preset` knows settings that learn; the defaults are those for few choices, such as CartPole."""

    n_steps: int = 128
    """environment steps of each environment in an iteration"""
    gamma: Number = 0.98
    """discount per environment step"""
    gae_lambda: Number = 0.9
    """decay of generalised advantage estimation per decision: an action, or a chunk of them"""
    learning_rate: Number = dataclasses.field(default_factory=lambda: linear(1e-3, 1e-4))
    """of Adam"""
    n_epochs: Number = 8
    """passes over the samples of an iteration"""
    batch_size: Number = 256
    """samples of a gradient step"""
    clip_range: Number = 0.2
    """how far the probability ratio may leave 1"""
    advantage: str | Callable[..., Any] = dataclasses.field(default="gae", metadata=trains_only(advantages))
    """of steps, by the name under which it was registered with ``lab.algorithms.advantage(name, of="steps")``"""
    loss: str | Callable[..., Any] = dataclasses.field(default="ppo", metadata=trains_only(losses))
    """of the policy: "ppo", "reinforce", "decoupled_ppo", or the name of one that was registered with ``lab.algorithms.loss(name)``; one that takes
    ``proximal_log_prob`` gets what the weights before the update say"""
    vf_coef: Number = 0.5
    """weight of the value loss"""
    ent_coef: Number = 0.0
    """weight of the entropy bonus, per nat"""
    max_grad_norm: Number = 0.5
    """Euclidean norm to which the gradient is cut"""
    normalize_obs: bool = True
    """whether numbers of observations are normalised by their running mean and deviation; images and categories never are"""
    normalize_reward: bool = False
    """whether rewards are divided by the running standard deviation of the discounted return; returns are reported without it"""
    reward_scale: float = 1.0
    """factor on rewards before learning; returns are reported without it"""
    net_arch: tuple[int, ...] = (64, 64)
    """units of each hidden layer, of the policy and of the value net"""
    activation: str = "tanh"
    """between the layers: "tanh", "relu", "elu" or "silu\""""
    log_std_init: float = -0.7
    """initial log standard deviation of continuous actions, in units of the action's range [-1, 1]"""
    squash: bool = False
    """whether continuous actions pass through tanh, instead of being clipped"""
    encoder: Callable[..., nn.Module] | None = None
    """makes the module from prepared observations to features, see `make_policy`; None: a convolutional net for images, all else as it is"""
    share_encoder: bool | None = None
    """whether policy and value net have one encoder; None: of images, which take most of the time, and else each its own"""
    policy: Callable[..., nn.Module] | StartingPolicy | None = None
    """what to go on from: a run, a loaded policy, a run's folder, network and normalisation with it; or what makes the whole module instead,
    of (observation_space, action_space), with the methods of `ActorCritic`"""
    chunk_size: int | None = None
    """so many actions are chosen at once, and a sample is such a chunk; `gamma` is per environment step still, `gae_lambda` per chunk.
    None: as the policy that is gone on from has it, else single actions"""
    per_action: bool = False
    """whether the probability ratio is clipped for each action of a chunk by itself, and not for the whole chunk"""
    critic_warmup: int = 0
    """updates at first that teach the value net alone: one that knows nothing would spoil a policy that is gone on from"""
    target_kl: float | None = None
    """above 1.5 times this divergence (nats) the rest of an update teaches the value net alone; None: no limit"""
    parallel: str = "ddp"
    """how several learner ranks share the work: "ddp" (gradients) or "fsdp" (also weights and Adam's moments)"""

    elsewhere: ClassVar[tuple[str, ...]] = tuple(OLD_NAMES)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_whole("n_steps")
        self._require("n_epochs", callable(self.n_epochs) or whole(self.n_epochs, 1), "a whole number of at least 1, or a schedule")
        self._require("batch_size", callable(self.batch_size) or whole(self.batch_size, 2), "a whole number of at least 2: advantages are normalised within")
        for name in ("gamma", "gae_lambda"):
            self._require_number(name, lambda value: 0 <= value <= 1, "a number between 0 and 1")
        for name in ("learning_rate", "clip_range", "max_grad_norm"):
            self._require_number(name, lambda value: value > 0, "a number greater than 0", last=lambda value: value >= 0)
        for name in ("vf_coef", "ent_coef"):
            self._require_number(name, lambda value: value >= 0, "a number of at least 0")
        self._require("reward_scale", real(self.reward_scale) and self.reward_scale > 0, "a number greater than 0")
        self._require("chunk_size", self.chunk_size is None or whole(self.chunk_size, 1), "a whole number of at least 1, or None")
        chunk = self.chunk
        self._require("chunk_size", self.chunk_size in (None, chunk), f"{chunk}, as the policy that is gone on from has it, or None")
        self._require("n_steps", self.n_steps % (chunk or 1) == 0, f"a multiple of the chunk's size, {chunk}")
        samples = self.env_steps // (chunk or 1)
        what = "num_envs × n_steps" + (" / chunk_size" if chunk else "")
        self._require("n_steps", samples >= 2, f"such that {what}, which is {samples}, is at least 2: advantages are normalised over them")
        self._require("batch_size", callable(self.batch_size) or self.batch_size <= samples, f"at most {what} = {samples}. Next: batch_size={samples}")
        self._require("per_action", not self.per_action or chunk is not None, "False where single actions are chosen")
        self._require_whole("critic_warmup", least=0)
        self._require("target_kl", self.target_kl is None or (real(self.target_kl) and self.target_kl > 0), "a number greater than 0, or None")
        self._require("log_std_init", real(self.log_std_init) and -5 <= self.log_std_init <= 2, "a number between -5 and 2")
        self._require_units("(64, 64)")
        self._require_flags("normalize_obs", "normalize_reward", "squash")
        self._require("share_encoder", self.share_encoder is None or isinstance(self.share_encoder, bool), "True, False, or None")
        for name in ("encoder", "policy"):
            value = getattr(self, name)
            fits = value is None or isinstance(value, StartingPolicy) or (callable(value) and not isinstance(value, nn.Module))
            self._require(name, fits, "a function that makes a torch module, or None")
        advantages.get(self.advantage, of="steps")
        losses.get(self.loss)

    @property
    def chunk(self) -> int | None:
        """How many actions are chosen at once; None: one."""
        started = self.policy.chunk if isinstance(self.policy, StartingPolicy) else None
        return self.chunk_size if started is None else started

    def _shares_encoder(self) -> bool:
        if self.share_encoder is not None:
            return self.share_encoder
        return self.encoder is None and any(leaf.kind is Kind.IMAGE for leaf in leaves_of(self.spec.observation_space))

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.n_steps

    @property
    def decisions(self) -> int:
        """How often the policy is asked for each environment in an iteration."""
        return self.n_steps // (self.chunk or 1)

    @property
    def updates(self) -> int:
        """Iterations of the whole run; 100,000 environment steps where nothing is said."""
        return self._updates(-(-100_000 // self.env_steps))

    @classmethod
    def preset(cls, env: Any, **overrides: Any) -> Self:
        """Settings known to learn ``env``, else those for its kind of actions.

        Some fields may be changed. `UnknownNameError` for an unknown field.
        """
        cls.check_names(overrides)
        started = overrides.get("policy")
        goes_on = isinstance(started, StartingPolicy)
        if goes_on and (fixed := next((name for name in OF_THE_NETWORK if name in overrides), None)):
            raise ConfigError(f"{fixed}={shown(overrides[fixed])}: the network is that of policy={started!r}. Next: leave {fixed} out.")
        usual = GOING_ON if goes_on else _settings(env)
        settings = {**usual, **({"normalize_reward": False} if overrides.get("reward") == "success" else {}), **overrides}
        if usual is GOING_ON and "n_steps" not in overrides and (limit := settings.get("max_episode_steps")):
            chunk = overrides["policy"].chunk or 1
            settings["n_steps"] = -(-limit // chunk) * chunk  # an episode of each environment
        if "batch_size" not in overrides:
            settings["batch_size"] = cls._batch_within(settings)
        for one, other in (("iterations", "total_timesteps"), ("total_timesteps", "iterations")):
            if overrides.get(one) is not None and other not in overrides:
                settings.pop(other, None)
        return cls(env=env, **settings)

    @classmethod
    def _batch_within(cls, settings: dict[str, Any]) -> Any:
        """The usual batch size, or all samples where they are fewer. Of few environments, or few steps."""
        usual, started = settings.get("batch_size", cls.batch_size), settings.get("policy")
        num_envs, n_steps = settings.get("num_envs", cls.num_envs), settings.get("n_steps", cls.n_steps)
        chunk = (started.chunk if isinstance(started, StartingPolicy) else None) or settings.get("chunk_size") or 1
        if not all(whole(value, 1) for value in (num_envs, n_steps, chunk)):  # which is said when they are checked
            return usual
        return max(2, min(usual, num_envs * n_steps // chunk))

    def make_policy(self) -> partial[Any]:
        """The constructor that policy and learner share: equal arguments, equal initial weights."""
        return self._module() if self.chunk is None else partial(_told_by_action, self._module())

    def _module(self) -> partial[Any]:
        spaces = self.spec.observation_space, self.spec.action_space
        if isinstance(self.policy, StartingPolicy):
            if hasattr(self.policy.config, "make_critics"):
                raise ConfigError(
                    f"policy={self.policy!r}: an actor whose critics value actions, and here observations are valued. "
                    "Next: a run of 'ppo', 'clone' or 'dagger', or leave policy out."
                )
            return self.policy.constructor(*spaces)
        if self.policy is not None:
            return partial(seeded, self.policy, *spaces, self.seed)
        return partial(
            make_policy, *spaces, net_arch=tuple(self.net_arch), activation=self.activation, log_std_init=self.log_std_init, squash=self.squash,
            normalize_obs=self.normalize_obs, encoder=self.encoder, share_encoder=self._shares_encoder(), seed=self.seed, chunk=self.chunk_size,
        )  # fmt: skip


def _told_by_action(make: Callable[[], nn.Module]) -> nn.Module:
    """A policy of chunks: what no environment got can be left out of its ratio."""
    module = make()
    head = getattr(module, "head", None)
    if isinstance(head, Head):
        head.tell_by_action()
    return module


def seeded(make: Callable[..., nn.Module], observation_space: Any, action_space: Any, seed: int) -> nn.Module:
    """A module of the user's, the same wherever it is made. `ConfigError` where it is none that can act."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make(observation_space, action_space)
    missing = [name for name in POLICY_METHODS if not hasattr(module, name)]
    if not isinstance(module, nn.Module) or missing:
        raise ConfigError(
            f"PPOConfig.policy made {shown(module)}, which lacks {', '.join(missing) or 'what a torch module has'}. Next: rlinf_lab.policies.make_policy(..., "
            f"encoder=...) with your module as the encoder, or a subclass of rlinf_lab.policies.ActorCritic."
        )
    return module


_ANNEALED = linear(1e-3, 1e-4)
# gamma 0.95 learns faster on most seeds but leaves some pressing the button not quite far enough (docs/history.md).
_METAWORLD: dict[str, Any] = {
    "max_episode_steps": 100, "num_envs": 8, "n_steps": 100, "reward_scale": 0.1, "gamma": 0.9, "gae_lambda": 0.9, "iterations": 120, "batch_size": 200,
    "learning_rate": _ANNEALED,
}  # fmt: skip

# What a bare PPO learnt reach and push with on one H200; this recipe has not been measured on a GPU. It lets the learning rate fall by a schedule, where
# that one followed the divergence.
_ON_GPU: dict[str, Any] = {
    "num_envs": 4096, "n_steps": 16, "batch_size": 8192, "n_epochs": 4, "gamma": 0.97, "gae_lambda": 0.95, "learning_rate": linear(1e-3, 3e-4),
    "ent_coef": 0.002, "max_grad_norm": 1.0, "log_std_init": -0.5, "net_arch": (256, 256, 128), "activation": "elu",
}  # fmt: skip
_ON_CORES: dict[str, Any] = {
    "num_envs": 32, "n_steps": 25, "batch_size": 400, "n_epochs": 6, "gamma": 0.95, "gae_lambda": 0.95, "learning_rate": linear(1.5e-3, 3e-4),
    "log_std_init": -0.7,
}  # fmt: skip
#: Of simulators that step on a GPU, or on cores where there is none: thousands of environments there, few here.
BY_DEVICE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "warp/ArmReach-v0": ({**_ON_GPU, "iterations": 40}, {**_ON_CORES, "iterations": 250}),
    "warp/ArmPush-v0": ({**_ON_GPU, "iterations": 100}, {**_ON_CORES, "iterations": 700}),
    "warp/ArmLift-v0": ({**_ON_GPU, "iterations": 1000}, {**_ON_CORES, "iterations": 2000}),
}

PRESETS: dict[str, dict[str, Any]] = {
    "gymnasium/Pendulum-v1": {
        "n_steps": 256, "batch_size": 256, "n_epochs": 10, "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": linear(2e-3, 2e-4), "normalize_reward": True, "log_std_init": 0.0,
    },
    "numpy/ReachArm-v0": {
        "max_episode_steps": 60, "num_envs": 32, "n_steps": 60, "iterations": 110, "batch_size": 320,
        "gamma": 0.9, "learning_rate": linear(3e-3, 3e-4), "log_std_init": 0.0,
    },
    "metaworld/button-press-v3": _METAWORLD,
    "metaworld/drawer-close-v3": _METAWORLD,
    "metaworld/reach-v3": _METAWORLD,
    "maniskill/PushCube-v1": {
        "max_episode_steps": 50, "num_envs": 16, "n_steps": 50, "iterations": 200, "batch_size": 200,
        "gamma": 0.9, "learning_rate": linear(7e-4, 7e-5), "ent_coef": 0.001,
    },
}  # fmt: skip

# For environments that nobody has tuned, by what their actions are.
DISCRETE: dict[str, Any] = {}
CONTINUOUS: dict[str, Any] = {
    "n_steps": 256, "batch_size": 128, "n_epochs": 10, "gamma": 0.98, "gae_lambda": 0.95, "learning_rate": linear(1e-3, 1e-4), "normalize_reward": True,
}  # fmt: skip

# Fields that say how a policy is made, and nothing of one that is there.
OF_THE_NETWORK = ("net_arch", "activation", "encoder", "share_encoder")

# For what goes on from a clone of chunks, on success alone: Meta-World's push and pick-place, see benchmarks/clone_then_rl.py.
GOING_ON: dict[str, Any] = {
    "num_envs": 64, "n_steps": 100, "batch_size": 320, "n_epochs": 8, "gamma": 0.996, "gae_lambda": 0.95, "learning_rate": 3e-4,
    "critic_warmup": 1, "target_kl": 0.05,
}  # fmt: skip


def _settings(env: Any) -> dict[str, Any]:
    """Of the environment itself if there are, else of its kind."""
    from gymnasium.spaces import Box

    factory = environment(env)
    if factory.id in PRESETS and factory.given is None:
        return PRESETS[factory.id]
    if factory.id in BY_DEVICE and factory.given is None:
        return BY_DEVICE[factory.id][factory.spec().device is None]
    return CONTINUOUS if isinstance(factory.spec().action_space, Box) else DISCRETE


def build(config: PPOConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner (`LearnerWorker.state_dict`), to go on where another run stopped.

    An iteration does what its argument says, see `answering`; ``"evaluate"``: the greedy policy on fresh seeds.
    Raises what `make_policy` raises for a space that no policy can handle.
    """
    flow = Workflow("ppo")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    published = flow.weights("policy_weights")
    weights, taken = (None, 0) if state is None else (state["weights"], state["weights"].version * config.decisions)
    simulator, policy = cell(flow, config, weights, taken, state)
    learner = _learner(flow, config, state)

    @flow.iteration
    @answering(learner, greedily(simulator, policy, act, obs, published), simulator)
    def iteration() -> Any:
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        return learner.train(traj, published).metrics

    return flow


def fuse(config: PPOConfig, plan: ExecutionPlan, state: dict[str, Any] | None = None) -> tuple[Workflow, ExecutionPlan] | None:
    """The same training with a `RolloutWorker` for simulator and policy. Where ``plan`` allows it: see `as_rollout`."""

    def rollout(flow: Workflow) -> WorkerHandle:
        weights, taken = (None, 0) if state is None else (state["weights"], state["weights"].version * config.decisions)
        make = config.make_policy()
        make()  # refuses a space here, not in a worker after the launch
        simulating = config.simulating(config.n_steps, taken, state)
        return flow.worker(RolloutWorker, policy=make, weights=weights, name="rollout", **simulating, chunk_size=config.chunk)

    return as_rollout("ppo", plan, rollout, partial(_learner, config=config, state=state))


def _learner(flow: Workflow, config: PPOConfig, state: dict[str, Any] | None) -> WorkerHandle:
    return flow.worker(
        LearnerWorker, config.make_policy(), name="learner",
        gamma=config.gamma, gae_lambda=config.gae_lambda, learning_rate=config.learning_rate, n_epochs=config.n_epochs,
        batch_size=config.batch_size, clip_range=config.clip_range, vf_coef=config.vf_coef, ent_coef=config.ent_coef,
        max_grad_norm=config.max_grad_norm, reward_scale=config.reward_scale, normalize_reward=config.normalize_reward,
        updates=config.updates, seed=config.seed, save_to=config.save_to, state=state, parallel=config.parallel, **config.learning(),
        advantage_of_steps=tried_advantage_of_steps(config.advantage).function, loss_of_policy=tried_loss(config.loss).function,
        per_action=config.per_action, critic_warmup=config.critic_warmup, target_kl=config.target_kl, moves_normaliser=not isinstance(config.policy, StartingPolicy),
    )  # fmt: skip


shares = SimulatedConfig.shares


def cell(flow: Workflow, config: PPOConfig, weights: PolicyWeights | None, taken: int = 0, state: Any = None) -> tuple[WorkerHandle, WorkerHandle]:
    make = config.make_policy()
    make()  # refuses a space here, not in a worker after the launch
    simulator = flow.worker(SimulatorWorker, name="simulator", **config.simulating(config.n_steps, taken, state), chunk_size=config.chunk)
    return simulator, flow.worker(PolicyWorker, make, name="policy", seed=config.seed, weights=weights)
