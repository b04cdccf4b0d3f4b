"""Soft actor-critic on one environment.

The workflow of `rlinf_lab.recipes.off_policy` with twin critics and a temperature that is learnt.

Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905). Left out: gSDE.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes import off_policy
from rlinf_lab.recipes.config import real
from rlinf_lab.recipes.described import described
from rlinf_lab.recipes.off_policy import OffPolicyConfig, shares
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.off_policy import SACStep
from rlinf_lab.workflow.workflow import Workflow

__all__ = ["SACConfig", "build", "fuse", "shares"]
AUTO = "auto"


@described
@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Every number of the experiment. See `OffPolicyConfig`."""

    ent_coef: Number | str = AUTO
    """weight of the policy's entropy, per nat; "auto": learnt, beginning with 1, or "auto_0.1" with 0.1"""
    target_entropy: float | str = AUTO
    """to which the entropy is steered, in nats; "auto": minus the number of action dimensions, in units of half their range"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.ent_coef, str):
            limit = "'auto', 'auto_' and a number greater than 0, a number of at least 0, or a schedule"
            self._require("ent_coef", self._first_temperature() is not None, limit)
        else:
            self._require_number("ent_coef", lambda value: value >= 0, "a number of at least 0")
        self._require("target_entropy", self.target_entropy == AUTO or real(self.target_entropy), "a number, or 'auto'")

    def _first_temperature(self) -> float | None:
        """With which a temperature that is learnt begins; None where the text says none."""
        head, _, tail = str(self.ent_coef).partition("_")
        try:
            first = float(tail) if tail else 1.0
        except ValueError:
            return None
        return first if head == AUTO and first > 0 and np.isfinite(first) else None

    def make_policy(self) -> partial[Any]:
        return self.make_actor()

    def make_step(self) -> partial[SACStep]:
        learns = isinstance(self.ent_coef, str)
        return partial(
            SACStep, self.make_policy(), self.make_critics(), target_entropy=self._target_entropy(), ent_coef=self._first_temperature() or 1.0,
            learns_temperature=learns, policy_delay=self.policy_delay, seed=self.seed, **self.learning(),
        )  # fmt: skip

    def step_settings(self) -> dict[str, Number]:
        fixed: dict[str, Number] = {} if isinstance(self.ent_coef, str) else {"ent_coef": self.ent_coef}
        return {**super().step_settings(), **fixed}

    def _target_entropy(self) -> float:
        if not isinstance(self.target_entropy, str):
            return float(self.target_entropy)
        space: Any = self.spec.action_space
        half_range = (np.asarray(space.high, np.float64) - space.low) / 2
        return float(np.log(half_range).sum() - half_range.size)


def build(config: SACConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow, see `off_policy.build`."""
    return off_policy.build("sac", config, state)


def fuse(config: SACConfig, plan: ExecutionPlan, state: dict[str, Any] | None = None) -> tuple[Workflow, ExecutionPlan] | None:
    """The same with fewer workers, see `off_policy.fuse`."""
    return off_policy.fuse("sac", config, plan, state)
