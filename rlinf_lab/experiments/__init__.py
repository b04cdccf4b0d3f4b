"""The front door: train by name, evaluate, keep, resume and compare runs."""

from rlinf_lab.experiments.evaluation import Evaluation
from rlinf_lab.experiments.recipe import Recipe
from rlinf_lab.experiments.starting import load_policy, resume, train
from rlinf_lab.experiments.storage.shelf import runs
from rlinf_lab.experiments.studies.comparison import compare
from rlinf_lab.experiments.studies.sweeps import sweep
from rlinf_lab.experiments.training import TrainingRun

__all__ = ["Evaluation", "Recipe", "TrainingRun", "compare", "load_policy", "resume", "runs", "sweep", "train"]
