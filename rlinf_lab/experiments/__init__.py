"""The front door: train by name, evaluate, keep, resume and compare runs."""

from rlinf_lab.experiments.evaluation import Evaluation
from rlinf_lab.experiments.recipe import Recipe
from rlinf_lab.experiments.starting import load_policy, resume, train
from rlinf_lab.experiments.training import TrainingRun

__all__ = ["Evaluation", "Recipe", "TrainingRun", "load_policy", "resume", "train"]
