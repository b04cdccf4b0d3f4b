"""Learning from a replay buffer. Transitions in, gradient steps of SAC or TD3, weights of the actor out."""

from rlinf_lab.workers.off_policy.exploring import ExploringPolicyWorker, ExploringRolloutWorker
from rlinf_lab.workers.off_policy.learner import OffPolicyLearner
from rlinf_lab.workers.off_policy.minibatches import Minibatch, Minibatches
from rlinf_lab.workers.off_policy.offline import OfflineLearner, TD3BCStep
from rlinf_lab.workers.off_policy.sac import SACStep
from rlinf_lab.workers.off_policy.td3 import TD3Step

__all__ = [
    "ExploringPolicyWorker",
    "ExploringRolloutWorker",
    "Minibatch",
    "Minibatches",
    "OffPolicyLearner",
    "OfflineLearner",
    "SACStep",
    "TD3BCStep",
    "TD3Step",
]
