"""TD3+BC, reinforcement learning from recorded episodes alone.

A workflow of one worker, which holds all transitions:

      learner ⟲ data

One iteration: `steps_per_iteration` gradient steps, of TD3's critics and of an actor that climbs them without leaving what was recorded. Nothing is
simulated but evaluations. Where data is of experts alone, cloning does as well; this is for data of mixed quality. What is learnt goes on online with
``lab.train("rlpd", env, data=...)``, which begins anew and learns from the same data.

Source: Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning (arXiv 2106.06860); numbers are the paper's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rlinf_lab.policies import make_actor, make_q_ensemble
from rlinf_lab.recipes.config import REWARDS, RecordedConfig, answering, real
from rlinf_lab.recipes.described import described
from rlinf_lab.replay import ReplayBuffer, demonstrations
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.off_policy import OfflineLearner, TD3BCStep
from rlinf_lab.workflow.workflow import Workflow


@described
@dataclass(frozen=True)
class TD3BCConfig(RecordedConfig):
    """Every number of the experiment, see `RecordedConfig`."""

    gradient_steps: int = 100_000
    """of the whole run"""
    steps_per_iteration: int = 1_000
    """gradient steps between two looks at the run, at most `gradient_steps`, which are rounded up to whole iterations"""
    reward: str = "environment"
    """"environment": as recorded; or "success": 1 in the step in which the task first succeeds, which ends the episode, and 0 before"""
    alpha: float = 2.5
    """how much the critics count against staying near the recorded actions; 0 clones"""
    learning_rate: Number = 3e-4
    """of Adam, for all nets"""
    gamma: Number = 0.99
    """discount per environment step"""
    tau: Number = 0.005
    """share of the new weights in each step of the targets' moving average"""
    policy_delay: int = 2
    """gradient steps of the critics for one of the actor"""
    target_policy_noise: Number = 0.2
    """standard deviation of the noise on the target's actions, in units of half the action's range"""
    target_noise_clip: Number = 0.5
    """where that noise is cut"""
    n_critics: int = 2
    """critics, of whose values the least counts"""
    net_arch: tuple[int, ...] = (256, 256)
    """units of each hidden layer, of actor and critics"""
    activation: str = "relu"
    """between the layers: "tanh", "relu", "elu" or "silu\""""
    normalize_obs: bool = True
    """whether numbers of observations are normalised, by the data's mean and deviation"""
    std_floor: float = 1e-3
    """added to the standard deviations by which observations are divided"""
    encoder: Callable[..., nn.Module] | None = None
    """makes the module from prepared observations to features, see `make_actor`"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("reward", self.reward in REWARDS, " or ".join(map(repr, REWARDS)))
        self._require("alpha", real(self.alpha) and self.alpha >= 0, "a number of at least 0")
        self._require_number("learning_rate", lambda value: value > 0, "a number greater than 0", last=lambda value: value >= 0)
        for name in ("tau", "gamma"):
            self._require_number(name, lambda value: 0 <= value <= 1, "a number between 0 and 1")
        for name in ("target_policy_noise", "target_noise_clip"):
            self._require_number(name, lambda value: value >= 0, "a number of at least 0")
        self._require_whole("policy_delay", "n_critics")
        self._require_units("(256, 256)")
        self._require("std_floor", real(self.std_floor) and self.std_floor >= 0, "a number of at least 0")

    def make_policy(self) -> partial[Any]:
        """The constructor; equal arguments, equal initial weights."""
        return partial(make_actor, **self._nets(), deterministic=True)

    def make_step(self) -> partial[TD3BCStep]:
        """``step(learning_rate=..., device=...)`` of the learner."""
        critics = partial(make_q_ensemble, **self._nets(), critics=self.n_critics)
        return partial(TD3BCStep, self.make_policy(), critics, policy_delay=self.policy_delay, alpha=self.alpha, **self.learning())

    def _nets(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "observation_space": spec.observation_space, "action_space": spec.action_space, "net_arch": tuple(self.net_arch),
            "activation": self.activation, "normalize_obs": self.normalize_obs, "encoder": self.encoder, "seed": self.seed,
        }  # fmt: skip

    @functools.cached_property
    def transitions(self) -> ReplayBuffer:
        """Those of the data. `ConfigError` where it is of another environment, or holds none."""
        return demonstrations(self.episodes("td3_bc"), reward=self.reward)


def build(config: TD3BCConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The workflow of learning from data. ``state``: of a learner, to go on where another run stopped.

    An iteration does what its argument says, see `answering`. `ConfigError` for data that does not fit the environment, or none, and for a space in which
    the algorithm cannot act.
    """
    config.make_policy()()  # refuses a space here, not in a worker after the launch
    settings = {name: getattr(config, name) for name in ("learning_rate", "gamma", "tau", "target_policy_noise", "target_noise_clip")}
    flow = Workflow("td3_bc")
    learner = flow.worker(
        OfflineLearner, config.make_step(), name="learner", settings=settings, buffer_size=1, batch_size=config.batch_size,
        gradient_steps=config.steps_per_iteration, std_floor=config.std_floor, offline=config.transitions, offline_share=1.0, updates=config.updates,
        seed=config.seed, save_to=config.save_to, state=state,
    )  # fmt: skip

    @flow.iteration
    @answering(learner)
    def iteration() -> Any:
        return learner.learn().metrics

    return flow


def shares(config: TD3BCConfig) -> dict[str, int]:
    """The learner may have as many ranks as the settings say."""
    return {"learner": config.learners}
