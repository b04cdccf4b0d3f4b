"""A phase of a training as a dashboard is told of it.

Iterations of training, evaluations and metrics of one's own, whatever the runtime was asked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_lab.experiments.between import Between
    from rlinf_lab.runtime.run.run import Run

CHARTS = ("success_rate", "return", "eval_return", "value_loss|loss")
OF_ANSWERS = ("reward", "eval_return", "value_loss|loss", "response_tokens_p50", "response_tokens_p95")
"""of a language model: how long answers are in the middle, and in the long tail"""


def charts_of(config: Any) -> tuple[str, ...]:
    """What is plotted while a training goes on."""
    return OF_ANSWERS if hasattr(config, "max_tokens") else CHARTS


class Watched:
    """What a dashboard reads of a run; everything else is the run's own.

    The runtime counts what it was asked, the training what was trained: an iteration is one update, in every phase, and
    its row has all that is known of it. ``training``: a `TrainingRun`; ``run``: of this phase.
    """

    def __init__(self, training: Any, run: Run, between: Between, began: float) -> None:
        self._training, self._run, self._between, self._began = training, run, between, began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    @property
    def state(self) -> str:
        """Of the training; of a phase that another one has followed: over."""
        return str(self._training.state) if self._training.run is self._run else "finished"

    @property
    def iteration(self) -> int:
        """Updates so far."""
        return int(self._training.iteration)

    @property
    def iterations(self) -> int:
        """Updates of the whole run."""
        return int(self._training.config.updates)

    @property
    def elapsed_seconds(self) -> float:
        """Since the training began."""
        return time.monotonic() - self._began

    @property
    def error(self) -> BaseException | None:
        """Of the training. Also of an evaluation, or of what the user has called after each iteration."""
        found: BaseException | None = self._training.error or self._run.error
        return found

    @property
    def plan_note(self) -> str:
        """Old, predicted, measured, gain."""
        return "" if self._training.auto is None else str(self._training.auto.note)

    def metrics_since(self, version: int) -> tuple[list[dict[str, float]], int]:
        """Rows that are new or have changed."""
        return self._between.rows_since(version)
