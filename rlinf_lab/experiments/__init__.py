"""The front door: train by name, evaluate, keep, resume and compare runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_lab.experiments.collecting import collect as collect
    from rlinf_lab.experiments.evaluation import Evaluation as Evaluation
    from rlinf_lab.experiments.recipe import Recipe as Recipe
    from rlinf_lab.experiments.starting import load_policy as load_policy
    from rlinf_lab.experiments.starting import resume as resume
    from rlinf_lab.experiments.starting import train as train
    from rlinf_lab.experiments.storage.shelf import runs as runs
    from rlinf_lab.experiments.studies.comparison import compare as compare
    from rlinf_lab.experiments.studies.sweeps import sweep as sweep
    from rlinf_lab.experiments.teleoperation import teleoperate as teleoperate
    from rlinf_lab.experiments.training import TrainingRun as TrainingRun

# Each when it is asked for: who trains need not wait for what compares.
_HOME = {
    "Evaluation": "evaluation",
    "Recipe": "recipe",
    "TrainingRun": "training",
    "collect": "collecting",
    "compare": "studies.comparison",
    "load_policy": "starting",
    "resume": "starting",
    "runs": "storage.shelf",
    "sweep": "studies.sweeps",
    "teleoperate": "teleoperation",
    "train": "starting",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
