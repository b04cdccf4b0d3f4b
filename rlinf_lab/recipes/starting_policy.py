"""A policy that another run has learnt, as what a new run goes on from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rlinf_lab.errors import ConfigError, counted
from rlinf_lab.policies import PolicyWeights


@dataclass(frozen=True, eq=False)
class StartingPolicy:
    """How the module is made, and its weights. The front door makes it of a run, a loaded policy or a folder."""

    algorithm: str
    """that has learnt it"""
    config: Any
    """its settings; ``config.make_policy()`` constructs the module"""
    weights: PolicyWeights | None = None
    """None: those of the run that is read again from its folder"""

    @property
    def chunk(self) -> int | None:
        """Actions that it chooses at once; None: one."""
        found: int | None = getattr(self.config, "chunk", None)
        return found

    def constructor(self, observation_space: Any, action_space: Any) -> partial[nn.Module]:
        """The constructor that policy and learner share. `ConfigError` where it was learnt for other spaces."""
        spec = self.config.spec
        for kind, has, wanted in (("observation", spec.observation_space, observation_space), ("action", spec.action_space, action_space)):
            if has != wanted:
                raise ConfigError(
                    f"policy={self!r} was learnt for the {kind} space {has}, and the environment's is {wanted}. Next: a policy that was learnt there."
                )
        return partial(_loaded, self.config.make_policy(), self.weights)

    def __repr__(self) -> str:
        after = "" if self.weights is None else f" after {counted(self.weights.version, 'update')}"
        return f"StartingPolicy({self.algorithm} on {self.config.factory.id}{after})"


def _loaded(make: partial[nn.Module], weights: PolicyWeights | None) -> nn.Module:
    """The module with its weights. As one that has had no update in the new run."""
    module: Any = make()
    if weights is not None:
        module.load(dataclasses.replace(weights, version=0))
    return module
