"""Metrics to TensorBoard, Weights & Biases or MLflow, by name. A thread of their own writes them: one that hangs or
dies stops nothing.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlinf_lab.errors import MissingDependencyError, UnknownNameError, said

END_SECONDS = 15.0  # for what is still to be written when the run has ended


class Logger(Protocol):
    """What writes rows somewhere."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """``step``: environment steps so far."""
        ...

    def close(self) -> None: ...


Make = Callable[[str, Mapping[str, Any], Path], Logger]


class _TensorBoard:
    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError.of("tensorboard", "tensorboard", "loggers=['tensorboard']") from error
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {k} = {v!r}" for k, v in config.items()))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingDependencyError.of("wandb", "wandb", "loggers=['wandb']") from error
        self._run: Any = wandb.init(project="rlinf-lab", name=name, config=dict(config), dir=str(folder))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise MissingDependencyError.of("mlflow", "mlflow", "loggers=['mlflow']") from error
        self._client: Any = MlflowClient()
        found = self._client.get_experiment_by_name("rlinf-lab")
        experiment = found.experiment_id if found is not None else self._client.create_experiment("rlinf-lab")
        self._id = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in config.items():
            self._client.log_param(self._id, key, str(value)[:500])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


KINDS: dict[str, Make] = {"tensorboard": _TensorBoard, "wandb": _WandB, "mlflow": _MLflow}


class Loggers:
    """All loggers of a run. Constructing raises `UnknownNameError` or `MissingDependencyError`; later nothing does."""

    def __init__(
        self,
        names: Sequence[str],
        name: str,
        config: Mapping[str, Any],
        folder: Path,
        kinds: Mapping[str, Make] | None = None,
    ) -> None:
        known = KINDS if kinds is None else kinds
        for given in names:
            if given not in known:
                raise UnknownNameError.of("logger", given, known)
        self._all = {given: known[given](name, config, folder) for given in names}
        self._rows: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="loggers", daemon=True)
        if self._all:
            self._thread.start()

    def log(self, row: Mapping[str, float]) -> None:
        """Metrics of an iteration; returns at once. What is not finite is left out."""
        if self._all:
            numbers = {k: float(v) for k, v in row.items() if k not in ("iteration", "env_steps") and math.isfinite(v)}
            self._rows.put((int(row.get("env_steps", row.get("iteration", 0))), numbers))

    def close(self) -> None:
        """Write what is left. A logger that takes longer than a quarter of a minute is left behind."""
        if self._all:
            self._rows.put(None)
            self._thread.join(END_SECONDS)

    def _write(self) -> None:
        while (item := self._rows.get()) is not None:
            for name, logger in list(self._all.items()):
                self._try(name, lambda logger=logger, item=item: logger.log(*item))  # type: ignore[misc]
        for name, logger in list(self._all.items()):
            self._try(name, logger.close)

    def _try(self, name: str, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._all.pop(name, None)
            logging.getLogger("rlinf_lab").warning(
                "Logger %r ended: %s: %s. The run goes on without it; run.metrics has all.",
                name,
                type(error).__name__,
                said(error),
            )
