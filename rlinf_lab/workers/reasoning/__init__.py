"""The stations of reinforcement learning on language: prompts, generation, reward, learning."""

from rlinf_lab.workers.reasoning.generator import GeneratorWorker
from rlinf_lab.workers.reasoning.groups import Gatherer, Group
from rlinf_lab.workers.reasoning.learner import GroupLearner
from rlinf_lab.workers.reasoning.prompts import PromptWorker
from rlinf_lab.workers.reasoning.records import Asked, ModelWeights, Response
from rlinf_lab.workers.reasoning.reward import RewardWorker
from rlinf_lab.workers.reasoning.settings import UpdateSettings
from rlinf_lab.workers.reasoning.start import WarmModel, WarmUp
from rlinf_lab.workers.reasoning.update import GradientAccumulator

__all__ = [
    "Asked",
    "Gatherer",
    "GeneratorWorker",
    "GradientAccumulator",
    "Group",
    "GroupLearner",
    "ModelWeights",
    "PromptWorker",
    "Response",
    "RewardWorker",
    "UpdateSettings",
    "WarmModel",
    "WarmUp",
]
