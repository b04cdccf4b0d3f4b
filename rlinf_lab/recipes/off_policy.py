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

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from torch import nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies import make_actor, make_q_ensemble
from rlinf_lab.recipes.config import SimulatedConfig, answering, real, whole
from rlinf_lab.recipes.fusing import as_rollout
from rlinf_lab.replay import ReplayBuffer
from rlinf_lab.trees import leaves
from rlinf_lab.vecenv.spaces import empty
from rlinf_lab.workers import SimulatorWorker
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.off_policy import ExploringPolicyWorker, ExploringRolloutWorker, OffPolicyLearner
from rlinf_lab.workers.off_policy.stepping import GradientStep
from rlinf_lab.workflow.workflow import WorkerHandle, Workflow

REWARD_AND_END = 5  # bytes of a transition besides observations and action
ROOM = 0.9  # of the free memory, for a buffer that is recommended


@dataclass(frozen=True)
class OffPolicyConfig(SimulatedConfig):
    """Settings that SAC, TD3 and RLPD have in common, besides those of `SimulatedConfig`. Names are Stable-Baselines3's."""

    num_envs: int = 1
    """environments, over all ranks and sub-batches together"""
    train_freq: int = 8
    """environment steps of each environment in an iteration, between two updates of the policy that acts"""
    gradient_steps: int = -1
    """of an iteration; -1: as many as environment steps, -20: twenty for each of them"""
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
    n_steps: int = 1
    """environment steps whose rewards are summed, discounted, before the critics' value of what they led to, demonstrations included; fewer before an episode's end. Try both: with 3
    Pendulum was learnt faster, Reacher worse (`docs/design/replay.md`)"""
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
    """whether numbers of observations are normalised by their running mean and deviation, demonstrations included; images and categories never are"""
    std_floor: float = 0.0
    """added to the standard deviations by which observations are divided, so that what hardly varies is not blown up to noise"""
    reward_scale: float = 1.0
    """factor on rewards before learning; returns are reported without it"""
    prioritized_replay: bool = False
    """draw transitions by their temporal difference (Schaul et al., arXiv 1511.05952) instead of uniformly"""
    encoder: Callable[..., nn.Module] | None = None
    """makes the module from prepared observations to features, see `make_actor`; None: a convolutional net for images, all else as it is"""
    staleness: int = 0
    """updates that the acting policy may be behind, so that a plan lets it collect while the learner learns; 0: in turns"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_whole("train_freq", "buffer_size", "batch_size", "policy_delay", "n_critics", "n_steps")
        self._require_whole("learning_starts", "staleness", least=0)
        self._require("gradient_steps", whole(self.gradient_steps, -1000) and self.gradient_steps != 0, "a whole number of at least 1, or -1 and below")
        self._require_number("learning_rate", lambda value: value > 0, "a number greater than 0", last=lambda value: value >= 0)
        for name in ("tau", "gamma"):
            self._require_number(name, lambda value: 0 <= value <= 1, "a number between 0 and 1")
        several = f"a number where n_steps = {self.n_steps}: discounts are kept with what was summed"
        self._require("gamma", self.n_steps == 1 or not callable(self.gamma), several)
        self._require("reward_scale", real(self.reward_scale) and self.reward_scale > 0, "a number greater than 0")
        self._require("std_floor", real(self.std_floor) and self.std_floor >= 0, "a number of at least 0")
        self._require_units("(256, 256)")
        self._require_flags("layer_norm", "normalize_obs", "prioritized_replay")
        maker = self.encoder is None or (callable(self.encoder) and not isinstance(self.encoder, nn.Module))
        self._require("encoder", maker, "a function that makes a torch module, or None")

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.train_freq

    @property
    def updates(self) -> int:
        """Iterations of the whole run; 100,000 environment steps where nothing is said."""
        return self._updates(-(-100_000 // self.env_steps))

    @property
    def transition_bytes(self) -> int:
        """Of each row of the replay buffer."""
        discount = 4 if self.n_steps > 1 else 0
        return 2 * sum(_bytes(self.spec.observation_space)) + sum(_bytes(self.spec.action_space)) + REWARD_AND_END + discount

    def require_memory(self, elsewhere: bool = False) -> None:
        """`ConfigError` for a replay buffer beyond this machine's memory, a warning beyond what is free.

        ``elsewhere``: the learner may live on another machine, so that it is a warning in both cases.
        """
        import psutil

        memory, steps, row = psutil.virtual_memory(), self.updates * self.env_steps, self.transition_bytes
        needed = min(self.buffer_size, steps) * row
        # Memory is taken as transitions come, but no array is given that is larger than all there is.
        largest = self.buffer_size * max(_bytes(self.spec.observation_space), default=0)
        impossible = max(needed, largest) > memory.total
        if needed <= memory.available and not impossible:
            return
        told = (
            f"{type(self).__name__}.buffer_size={self.buffer_size:,}: of {row:,} bytes a transition of {self.factory.id} that is "
            f"{self.buffer_size * row / 2**30:,.1f} GiB, {needed / 2**30:,.1f} GiB of it filled by the {steps:,} steps of this run. This machine has "
            f"{memory.total / 2**30:,.1f} GiB of memory, {memory.available / 2**30:,.1f} GiB of it free. "
            f"Next: buffer_size={max(1, min(steps, int(ROOM * memory.available / row))):_}, which fits."
        )
        if impossible and not elsewhere:
            raise ConfigError(told)
        warnings.warn(told, stacklevel=4)

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


def _bytes(space: Space) -> list[int]:
    """Of each leaf of one value in a buffer. Numbers are in single precision at most there."""
    return [leaf.nbytes // (2 if leaf.dtype == np.float64 else 1) for leaf in leaves(empty(space))]


def build(name: str, config: OffPolicyConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner (`OffPolicyLearner.state_dict`), to go on where another run stopped.

    An iteration does what its argument says, see `answering`. Raises what `make_actor` raises for a space in which the algorithm cannot act.
    """
    flow = Workflow(name)
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    published = flow.weights("policy_weights")
    simulating, exploring = _collecting(config, state)
    simulator = flow.worker(SimulatorWorker, name="simulator", **simulating)
    policy = flow.worker(ExploringPolicyWorker, config.make_policy(), name="policy", **exploring)
    learner = _learner(flow, config, state)

    @flow.iteration
    @answering(learner, simulator=simulator)
    def iteration() -> Any:
        simulator.collect(act, obs, traj)
        policy.act(obs, act, published)
        return learner.train(traj, published).metrics

    return flow


def fuse(
    name: str, config: OffPolicyConfig, plan: ExecutionPlan, state: dict[str, Any] | None = None
) -> tuple[Workflow, ExecutionPlan] | None:
    """The same training with simulator and policy as one worker.

    An `ExploringRolloutWorker`, where ``plan`` allows it: see `as_rollout`.
    """

    def rollout(flow: Workflow) -> WorkerHandle:
        simulating, exploring = _collecting(config, state)
        return flow.worker(ExploringRolloutWorker, policy=config.make_policy(), name="rollout", **{**simulating, **exploring})

    return as_rollout(name, plan, rollout, partial(_learner, config=config, state=state))


def _collecting(config: OffPolicyConfig, state: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of simulator and policy."""
    weights, taken = (None, 0) if state is None else (state["weights"], state["weights"].version * config.train_freq)
    config.make_policy()()  # refuses a space here, not in a worker after the launch
    random_steps = -(-config.learning_starts // config.num_envs)
    return config.simulating(config.train_freq, taken, state), {"random_steps": random_steps, "seed": config.seed, "weights": weights}


def _learner(flow: Workflow, config: OffPolicyConfig, state: dict[str, Any] | None) -> WorkerHandle:
    offline, share = config.demonstrations()
    if state is not None:
        _check_steps(config, state.get("n_step"))
    return flow.worker(
        OffPolicyLearner, config.make_step(), name="learner",
        settings=config.step_settings(), buffer_size=config.buffer_size, batch_size=config.batch_size, gradient_steps=config.gradient_steps,
        learning_starts=config.learning_starts, reward_scale=config.reward_scale, std_floor=config.std_floor, prioritised=config.prioritized_replay,
        offline=offline, offline_share=share, n_steps=config.n_steps, updates=config.updates, seed=config.seed, save_to=config.save_to, state=state,
    )  # fmt: skip


def _check_steps(config: OffPolicyConfig, held: dict[str, Any] | None) -> None:
    """`ConfigError` where a state's buffer has rows over other steps than those to come."""
    n, gamma = (1, config.gamma) if held is None else (held["n"], held["gamma"])
    if (n, gamma) != (config.n_steps, config.gamma):
        kind, now = type(config).__name__, f"n_steps={config.n_steps}, gamma={shown(config.gamma)}"
        was = f"n_steps={n}, gamma={shown(gamma)}"
        raise ConfigError(f"{kind}: {now}; the replay buffer to go on with was filled with {was}. Next: {was}.")


shares = SimulatedConfig.shares
