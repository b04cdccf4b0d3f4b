"""RLPD on one environment: soft actor-critic with demonstrations.

It learns from them and from its own transitions in equal parts.

The workflow is that of `rlinf_lab.recipes.off_policy`; half of each minibatch are transitions of ``data``. Critics normalise their layers, so that
they do not overestimate what nobody has tried; many of them, of which a target takes the least of two drawn anew and the actor climbs the mean, bear
many gradient steps for each environment step. Source: Ball et al., Efficient Online Reinforcement Learning with Offline Data (arXiv 2302.02948), algorithm 1.
"""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from rlinf_lab.datasets import EpisodeSource
from rlinf_lab.datasets.given import recorded
from rlinf_lab.datasets.presenting import presented
from rlinf_lab.datasets.space_json import at, leaf_spaces
from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes import off_policy
from rlinf_lab.recipes.config import real, whole
from rlinf_lab.recipes.described import described
from rlinf_lab.recipes.off_policy import shares
from rlinf_lab.recipes.sac import SACConfig
from rlinf_lab.replay import ReplayBuffer, demonstrations
from rlinf_lab.replay.flat import flat
from rlinf_lab.vecenv.spaces import sampled
from rlinf_lab.workers.off_policy import SACStep
from rlinf_lab.workflow.workflow import Workflow

__all__ = ["RLPDConfig", "build", "fuse", "shares"]


@described
@dataclass(frozen=True)
class RLPDConfig(SACConfig):
    """Every number of the experiment. See `OffPolicyConfig`; those here are the paper's, a smaller ``n_critics`` and fewer gradient steps are cheaper.

    But ``target_entropy`` is SAC's: the authors' code steers to half of that, minus half the number of action dimensions.
    """

    data: Any = None
    """demonstrations: episodes of `collect` or of `datasets`, or the folder of a LeRobotDataset, whose rewards become those of ``reward`` where they tell of
    success; or a `replay.ReplayBuffer`, or the file of one, whose rewards stay as they are. Actions of a buffer, or of a plain list of episodes, are taken as a policy acts
    (of a bounded Box in [-1, 1]); a data set says its own range"""
    offline_share: float = 0.5
    """of each minibatch, drawn from them"""
    train_freq: int = 1
    """environment steps of each environment in an iteration, between two updates of the policy that acts"""
    gradient_steps: int = -20
    """of an iteration; -20: twenty for each environment step"""
    policy_delay: int = 20
    """gradient steps of the critics for one of the actor"""
    n_critics: int = 10
    """critics; a target takes the least of ``target_critics`` of them, the actor climbs their mean"""
    target_critics: int = 2
    """critics, drawn anew for each step, of which a target takes the least"""
    layer_norm: bool = True
    """whether the critics normalise each hidden layer"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("data", self.data is not None, "demonstrations: episodes, such as data=lab.collect(env, 'expert', episodes=10), the folder of a LeRobotDataset, or a ReplayBuffer")
        self._require("prioritized_replay", not self.prioritized_replay, "False: demonstrations are drawn uniformly beside one's own transitions, as the paper has it")
        self._require("offline_share", real(self.offline_share) and 0 <= self.offline_share <= 1, "a number between 0 and 1")
        within = whole(self.target_critics, 1) and self.target_critics <= self.n_critics
        self._require("target_critics", within, f"a whole number between 1 and n_critics = {self.n_critics}")

    def make_step(self) -> partial[SACStep]:
        return partial(super().make_step(), target_critics=self.target_critics)

    def demonstrations(self) -> tuple[ReplayBuffer | None, float]:
        return self._offline, self.offline_share

    @functools.cached_property
    def _offline(self) -> ReplayBuffer:
        """The transitions of ``data``, with draws of their own. `ConfigError` where they are of another environment."""
        data = recorded(self.data)
        gamma: Any = self.gamma  # a number where there are several steps
        over = None if self.n_steps == 1 else (self.n_steps, gamma)
        found = demonstrations(presented(data, self.spec) if isinstance(data, EpisodeSource) else data, reward=self.reward, over=over)
        buffer = ReplayBuffer(len(found), seed=self.seed)
        transitions, spec = found.rows(found.order), self.spec
        buffer.add(transitions)
        row, one = buffer.rows(np.zeros(1, np.int64)), np.random.default_rng(0)
        if "discount" in row and over is None:
            raise ConfigError("RLPDConfig.data holds a discount, as transitions over several steps do; here each is over one. Next: add them without replay.NStep.")
        if "discount" not in row and over is not None:
            raise ConfigError(
                f"RLPDConfig.data is a buffer of single steps, and n_steps is {self.n_steps}. Next: episodes, transitions of replay.NStep{over}, or n_steps=1."
            )
        for part, space in (("obs", spec.observation_space), ("action", spec.action_space)):
            wanted = {name: leaf.shape[1:] for name, leaf in flat(sampled(space, one, 1)).items()}
            given = {name: leaf.shape[1:] for name, leaf in flat(row[part]).items()}
            if wanted != given:
                raise ConfigError(f"RLPDConfig.data has {part} of shapes {given}; {self.factory.id} has {wanted}. Next: demonstrations of this environment.")
        self._check_units(transitions["action"])
        return buffer

    def _check_units(self, action_B: Any) -> None:
        """Whether actions are as a policy acts, as far as can be seen. A data set says it; a list of its episodes does not."""
        id, wanted, native = self.factory.id, self.spec.action_space, self.spec.native_action_space
        for path, space in leaf_spaces(wanted):
            leaf = at(action_B, path)
            if isinstance(space, Box) and ((leaf < space.low - 1e-5).any() or (leaf > space.high + 1e-5).any()):
                raise ConfigError(
                    f"RLPDConfig.data has actions from {leaf.min():.4g} to {leaf.max():.4g}, and a policy of {id} acts in {wanted}. Next: a data set "
                    "whose spec says the range of its actions, such as read_minari(...), not a list of its episodes."
                )
        is_list = not isinstance(self.data, (EpisodeSource, ReplayBuffer, str, os.PathLike))
        if is_list and native is not None and native != wanted:
            warnings.warn(
                f"RLPDConfig.data is a list, which says nothing of its actions' range: they are taken as a policy of {id} acts, in {wanted} (the simulator's "
                f"own: {native}). Next: the data set itself.", stacklevel=2,
            )  # fmt: skip


def build(config: RLPDConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow, see `off_policy.build`."""
    return off_policy.build("rlpd", config, state)


def fuse(config: RLPDConfig, plan: ExecutionPlan, state: dict[str, Any] | None = None) -> tuple[Workflow, ExecutionPlan] | None:
    """The same with fewer workers, see `off_policy.fuse`."""
    return off_policy.fuse("rlpd", config, plan, state)
