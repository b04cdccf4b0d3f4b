"""The stations of reinforcement learning. Each is a plain class that also runs by hand, without any runtime."""

from rlinf_lab.workers.group import RankGroup
from rlinf_lab.workers.learner import LearnerWorker, Update
from rlinf_lab.workers.policy import PolicyWorker
from rlinf_lab.workers.residence import Residence, TorchWorker
from rlinf_lab.workers.rollout import RolloutWorker
from rlinf_lab.workers.shards import ShardGroup
from rlinf_lab.workers.simulator import SimulatorWorker

__all__ = [
    "LearnerWorker",
    "PolicyWorker",
    "RankGroup",
    "Residence",
    "RolloutWorker",
    "ShardGroup",
    "SimulatorWorker",
    "TorchWorker",
    "Update",
]
