"""Behaviour cloning, a policy that does what recorded episodes did.

A workflow of two workers.

      data ──── minibatches (whole iteration) ────▶ learner

One iteration: `steps_per_iteration` gradient steps. The data may be larger than memory: the data worker holds a window of episodes, reads the next ones from
disk, and draws while the learner computes where a plan gives them devices of their own. What is learnt is a policy with a value net that knows nothing
yet; ``lab.train("ppo", env, policy=run)`` goes on from it. Left out, because a mean square suffices for what is cloned here: mixtures, masks for the end of an
episode (actions beyond it repeat the last one).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rlinf_lab.datasets.sampling import MEMORY
from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import Flow, make_policy
from rlinf_lab.recipes.config import RecordedConfig, answering, real, whole
from rlinf_lab.recipes.described import described
from rlinf_lab.recipes.ppo import seeded
from rlinf_lab.recipes.starting_policy import StartingPolicy
from rlinf_lab.workers.imitation.cloning import CloneLearner, DataWorker, first_weights
from rlinf_lab.workers.learner import Number
from rlinf_lab.workflow.workflow import Workflow


@described
@dataclass(frozen=True)
class CloneConfig(RecordedConfig):
    """Every number of the experiment, see `RecordedConfig`."""

    learning_rate: Number = 1e-3
    """of Adam"""
    max_grad_norm: float | None = None
    """Euclidean norm to which the gradient is cut; None: it is not"""
    chunk_size: int | None = None
    """so many actions are chosen at once; None: single actions"""
    net_arch: tuple[int, ...] = (128, 128)
    """units of each hidden layer, of the policy and of the value net"""
    activation: str = "tanh"
    """between the layers: "tanh", "relu", "elu" or "silu\""""
    std: float = 0.25
    """standard deviation of continuous actions, in units of the action's range [-1, 1]; cloning does not change it, and what goes on explores with it"""
    std_floor: float = 0.02
    """added to the standard deviations by which observations are divided"""
    normalize_obs: bool = True
    """whether numbers of observations are normalised, by the data's mean and deviation"""
    flow: Flow | None = None
    """a flow-matching head with these settings instead of a Gaussian"""
    encoder: Callable[..., nn.Module] | None = None
    """makes the module from prepared observations to features, see `make_policy`"""
    policy: Callable[..., nn.Module] | StartingPolicy | None = None
    """what to go on from (a run, a loaded policy, a run's folder); or what makes the whole module, of (observation_space, action_space), such as
    ``partial(make_chunk_transformer, chunk=5)`` beside ``chunk_size=5``"""
    memory: int = MEMORY
    """bytes of episodes that are held at once; more data than that is streamed"""
    parallel: str = "ddp"
    """how several learner ranks share the work: "ddp" (gradients) or "fsdp" (also weights and Adam's moments)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_whole("memory")
        self._require("chunk_size", self.chunk_size is None or whole(self.chunk_size, 1), "a whole number of at least 1, or None")
        self._require_number("learning_rate", lambda value: value > 0, "a number greater than 0", last=lambda value: value >= 0)
        self._require("max_grad_norm", self.max_grad_norm is None or (real(self.max_grad_norm) and self.max_grad_norm > 0), "a number greater than 0, or None")
        self._require("std", real(self.std) and 0 < self.std <= 10, "a number greater than 0 and at most 10")
        self._require("std_floor", real(self.std_floor) and self.std_floor >= 0, "a number of at least 0")
        self._require_units("(128, 128)")
        self._require("flow", self.flow is None or isinstance(self.flow, Flow), "a Flow(...), or None")
        started = self.policy.chunk if isinstance(self.policy, StartingPolicy) else self.chunk_size
        self._require("chunk_size", self.chunk_size in (None, started), f"{started}, as the policy that is gone on from has it, or None")

    @property
    def chunk(self) -> int | None:
        """How many actions are chosen at once; None: one."""
        return self.policy.chunk if isinstance(self.policy, StartingPolicy) else self.chunk_size

    def make_policy(self) -> partial[Any]:
        """The constructor; equal arguments, equal initial weights."""
        spaces = self.spec.observation_space, self.spec.action_space
        if isinstance(self.policy, StartingPolicy):
            return self.policy.constructor(*spaces)
        if self.policy is not None:
            return partial(seeded, self.policy, *spaces, self.seed)
        return partial(
            make_policy, *spaces, net_arch=tuple(self.net_arch), activation=self.activation, log_std_init=math.log(self.std), flow=self.flow,
            normalize_obs=self.normalize_obs, encoder=self.encoder, seed=self.seed, chunk=self.chunk_size,
        )  # fmt: skip


def build(config: CloneConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The workflow of cloning. ``state``: of a learner, to go on where another run stopped.

    An iteration does what its argument says, see `answering`.
    `ConfigError` for data that does not fit the environment, or none.
    """
    episodes = config.episodes("clone")
    make = config.make_policy()
    _check_chunks(config, make())
    flow = Workflow("clone")
    minibatches = flow.channel("minibatches", whole=True)
    _, taken = first_weights(state)
    data = flow.worker(
        DataWorker, episodes, name="data", rows=config.batch_size * config.steps_per_iteration, chunk_size=config.chunk, memory=config.memory,
        seed=config.seed, taken=taken,
    )  # fmt: skip
    learner = flow.worker(
        CloneLearner, make, name="learner", learning_rate=config.learning_rate, batch_size=config.batch_size, max_grad_norm=config.max_grad_norm,
        std_floor=config.std_floor, updates=config.updates, seed=config.seed, save_to=config.save_to, state=state, parallel=config.parallel,
        moves_normaliser=not isinstance(config.policy, StartingPolicy), **config.learning(),
    )  # fmt: skip

    @flow.iteration
    @answering(learner)
    def iteration() -> Any:
        data.draw(minibatches)
        return learner.learn(minibatches).metrics

    return flow


def shares(config: CloneConfig) -> dict[str, int]:
    """The learner may have as many ranks as the settings say."""
    return {"learner": config.learners}


def _check_chunks(config: CloneConfig, module: Any) -> None:
    shape = getattr(getattr(module, "head", None), "executed_shape", None)
    action = config.spec.action_space.shape
    wanted = action if config.chunk is None or action is None else (config.chunk, *action)
    if shape is not None and shape != wanted:
        raise ConfigError(f"CloneConfig.policy makes a policy of actions of the shape {shape}, and chunk_size={config.chunk} asks for {wanted}.")
