"""A small model that has learnt from worked examples. The same for every worker that constructs it."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from rlinf_lab.errors import Cancelled, ConfigError
from rlinf_lab.generation import LanguageModel, warm_up
from rlinf_lab.tasks import Task
from rlinf_lab.workflow.worker import Worker


@dataclass(frozen=True)
class WarmUp:
    """Supervised training on worked examples of a task."""

    task: Task
    steps: int
    """gradient steps"""
    batch_size: int
    """examples of a step"""
    learning_rate: float
    """largest, reached after a tenth of the steps"""
    level: int | None
    """of the examples; None: all"""
    seed: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"WarmUp(steps={self.steps}): at least 1; without a warm-up give the model itself.")

    def __call__(self, model: LanguageModel, cancelled: Callable[[], bool] = lambda: False) -> list[float]:
        """Train ``model`` in place; the loss of each step, in nats per token. `Cancelled` once ``cancelled()``."""
        examples = self._examples(cancelled)
        return warm_up(model, examples, steps=self.steps, batch_size=self.batch_size, learning_rate=self.learning_rate)

    def _examples(self, cancelled: Callable[[], bool]) -> Iterator[tuple[str, str]]:
        for example in self.task.examples(np.random.default_rng([self.seed, 2]), self.level):
            if cancelled():
                raise Cancelled("The run was stopped during the warm-up.")
            yield example


class WarmModel:
    """Constructs a model and warms it up.

    Once on each machine, whoever of its workers comes first.

    The others wait and read the weights from a temporary folder, which goes with this object.
    """

    def __init__(self, model: Callable[[], LanguageModel], warm_up: WarmUp) -> None:
        self.model, self.warm_up = model, warm_up
        self._folder = tempfile.mkdtemp(prefix="rlinf_warm_")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __call__(self, cancelled: Callable[[], bool] = lambda: False) -> LanguageModel:
        model, folder = self.model(), Path(self._folder)
        folder.mkdir(parents=True, exist_ok=True)  # on another machine than the one that made it
        weights = folder / "weights.safetensors"
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not weights.exists():
                self.warm_up(model, cancelled)
                parts = {name: t.detach().clone().contiguous() for name, t in model.module.state_dict().items()}
                save_file(parts, folder / "writing")
                (folder / "writing").rename(weights)
        model.module.load_state_dict(load_file(weights))
        return model

    def __getstate__(self) -> dict[str, object]:
        return {"model": self.model, "warm_up": self.warm_up, "_folder": self._folder}

    def __repr__(self) -> str:
        return f"WarmModel({self.warm_up.steps} steps on {self.warm_up.task!r})"


def made(make: Callable[[], LanguageModel], worker: Worker) -> LanguageModel:
    """A worker's model. A warm-up, which takes long, ends as soon as the run is asked to stop."""
    return make(lambda: worker.cancelled) if isinstance(make, WarmModel) else make()
