"""TD3 on one environment.

The workflow of `rlinf_lab.recipes.off_policy` with a deterministic actor that is updated less often than its critics.

Source: Fujimoto et al., Addressing Function Approximation Error in Actor-Critic Methods (arXiv 1802.09477).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes import off_policy
from rlinf_lab.recipes.config import real
from rlinf_lab.recipes.described import described
from rlinf_lab.recipes.off_policy import OffPolicyConfig, shares
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.off_policy import TD3Step
from rlinf_lab.workflow.workflow import Workflow

__all__ = ["TD3Config", "build", "fuse", "shares"]


@described
@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Every number of the experiment. See `OffPolicyConfig`."""

    learning_rate: Number = 1e-3
    """of Adam, for all nets"""
    policy_delay: int = 2
    """gradient steps of the critics for one of the actor"""
    action_noise: float = 0.1
    """standard deviation of exploration, in units of half the action's range"""
    target_policy_noise: Number = 0.2
    """standard deviation of the noise on the target's actions, in the same units"""
    target_noise_clip: Number = 0.5
    """where that noise is cut"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("action_noise", real(self.action_noise) and self.action_noise > 0, "a number greater than 0")
        for name in ("target_policy_noise", "target_noise_clip"):
            self._require_number(name, lambda value: value >= 0, "a number of at least 0")

    def make_policy(self) -> partial[Any]:
        return self.make_actor(deterministic=True, exploration_std=self.action_noise)

    def make_step(self) -> partial[TD3Step]:
        return partial(
            TD3Step, self.make_policy(), self.make_critics(), policy_delay=self.policy_delay, **self.learning()
        )

    def step_settings(self) -> dict[str, Number]:
        return {**super().step_settings(), "target_policy_noise": self.target_policy_noise, "target_noise_clip": self.target_noise_clip}


def build(config: TD3Config, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow, see `off_policy.build`."""
    return off_policy.build("td3", config, state)


def fuse(config: TD3Config, plan: ExecutionPlan, state: dict[str, Any] | None = None) -> tuple[Workflow, ExecutionPlan] | None:
    """The same with fewer workers, see `off_policy.fuse`."""
    return off_policy.fuse("td3", config, plan, state)
