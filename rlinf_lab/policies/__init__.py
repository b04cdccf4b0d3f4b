"""Torch modules from observation to action, and the form in which their weights travel."""

from rlinf_lab.policies.actor_critic import Actor, ActorCritic
from rlinf_lab.policies.flow import Flow
from rlinf_lab.policies.make import make_policy
from rlinf_lab.policies.off_policy import QEnsemble, make_actor, make_q_ensemble
from rlinf_lab.policies.recurrent import RecurrentActorCritic, make_recurrent_policy
from rlinf_lab.policies.transformer import make_chunk_transformer
from rlinf_lab.policies.weights import Weights

__all__ = [
    "Actor",
    "ActorCritic",
    "Flow",
    "QEnsemble",
    "RecurrentActorCritic",
    "Weights",
    "make_actor",
    "make_chunk_transformer",
    "make_policy",
    "make_q_ensemble",
    "make_recurrent_policy",
]
