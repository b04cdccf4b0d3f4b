"""The stations of reinforcement learning on language: prompts, generation, reward, learning."""

from rlinf_lab.workers.reasoning.agent import AgentGenerator
from rlinf_lab.workers.reasoning.generator import ContinuingGenerator, GeneratorWorker
from rlinf_lab.workers.reasoning.groups import Group, InTurn
from rlinf_lab.workers.reasoning.learner import GroupLearner
from rlinf_lab.workers.reasoning.lengths import LengthPredictor
from rlinf_lab.workers.reasoning.making import GroupsInTheMaking
from rlinf_lab.workers.reasoning.prompts import PromptWorker
from rlinf_lab.workers.reasoning.records import Asked, ModelWeights, Response
from rlinf_lab.workers.reasoning.reward import RewardWorker
from rlinf_lab.workers.reasoning.settings import UpdateSettings
from rlinf_lab.workers.reasoning.start import WarmModel, WarmUp
from rlinf_lab.workers.reasoning.tool_worker import ToolAnswers, ToolDesk, ToolTurn, ToolWorker
from rlinf_lab.workers.reasoning.update import GradientAccumulator

__all__ = [
    "AgentGenerator",
    "Asked",
    "ContinuingGenerator",
    "GeneratorWorker",
    "GradientAccumulator",
    "Group",
    "GroupLearner",
    "GroupsInTheMaking",
    "InTurn",
    "LengthPredictor",
    "ModelWeights",
    "PromptWorker",
    "Response",
    "RewardWorker",
    "ToolAnswers",
    "ToolDesk",
    "ToolTurn",
    "ToolWorker",
    "UpdateSettings",
    "WarmModel",
    "WarmUp",
]
