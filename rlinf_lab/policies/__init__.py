"""Torch modules from observation to action, and the form in which their weights travel."""

from typing import NoReturn

from rlinf_lab.errors import ConfigError
from rlinf_lab.policies.actor_critic import Actor, ActorCritic
from rlinf_lab.policies.flow import Flow
from rlinf_lab.policies.make import make_policy
from rlinf_lab.policies.off_policy import QEnsemble, make_actor, make_q_ensemble
from rlinf_lab.policies.recurrent import RecurrentActorCritic, make_recurrent_policy
from rlinf_lab.policies.transformer import make_chunk_transformer
from rlinf_lab.policies.weights import PolicyWeights

__all__ = [
    "Actor",
    "ActorCritic",
    "Flow",
    "PolicyWeights",
    "QEnsemble",
    "RecurrentActorCritic",
    "make_actor",
    "make_chunk_transformer",
    "make_policy",
    "make_q_ensemble",
    "make_recurrent_policy",
]


def __getattr__(name: str) -> NoReturn:
    if name == "Weights":
        # no AttributeError: `from rlinf_lab.policies import Weights` would lose what it says
        raise ConfigError(f"{__name__}.Weights is called PolicyWeights now. Next: that; lab.Weights is the store of versions.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
