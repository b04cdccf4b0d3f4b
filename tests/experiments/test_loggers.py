from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.experiments.loggers import Loggers


class Memory:
    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.closed = False
        MADE.append(self)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self.rows.append((step, numbers))

    def close(self) -> None:
        self.closed = True


class Broken(Memory):
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        super().log(step, numbers)
        raise ConnectionError("down")


MADE: list[Memory] = []


def test_a_logger_that_dies_is_said_once_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    MADE.clear()
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        loggers = Loggers(["good", "bad"], "run", {}, tmp_path, {"good": Memory, "bad": Broken})
        for i in (1, 2, 3):
            loggers.log({"iteration": i, "env_steps": 10.0 * i, "return": float(i), "kl": math.nan})
        loggers.close()
    good, bad = MADE
    assert good.rows == [(10, {"return": 1.0}), (20, {"return": 2.0}), (30, {"return": 3.0})] and good.closed
    assert len(bad.rows) == 1 and not bad.closed
    assert [r.message for r in caplog.records if "'bad' ended: ConnectionError: down" in r.message] == [r.message for r in caplog.records]


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = Loggers(["tensorboard"], "run", {"gamma": 0.9}, tmp_path)
    loggers.log({"iteration": 1, "env_steps": 100.0, "return": 3.5})
    loggers.close()
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars("return")] == [(100, 3.5)]


def test_wandb_keeps_a_run_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    loggers = Loggers(["wandb"], "run", {"gamma": 0.9}, tmp_path)
    loggers.log({"iteration": 1, "env_steps": 100.0, "return_of_mine": 3.5})
    loggers.close()
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"return_of_mine" in kept.read_bytes() and b"gamma" in kept.read_bytes()


def test_mlflow_reads_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    loggers = Loggers(["mlflow"], "run", {"gamma": 0.9}, tmp_path)
    loggers.log({"iteration": 1, "env_steps": 100.0, "return": 3.5})
    loggers.close()
    client = tracking.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("rlinf-lab").experiment_id])
    assert found.data.params == {"gamma": "0.9"} and found.info.status == "FINISHED"
    assert [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "return")] == [(100, 3.5)]


def test_unknown_loggers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'tensorboard'"):
        Loggers(["tensorbord"], "run", {}, tmp_path)
