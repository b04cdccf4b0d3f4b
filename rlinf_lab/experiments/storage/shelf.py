"""`runs`: those that are kept in a folder. Which of them live, and which died."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pandas as pd

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.experiments.storage.folder import RunFolder

COLUMNS = (
    "name", "state", "algorithm", "env", "iteration", "iterations", "return", "best_return", "began", "minutes",
    "folder",
)  # fmt: skip
GOING_ON = ("running", "starting", "paused")


class Runs(pd.DataFrame):
    """A table of runs, a row each: filter it as any DataFrame, ``lab.runs().query("state == 'died'").delete()``."""

    @property
    def _constructor(self) -> Any:
        return Runs

    def __repr__(self) -> str:
        """Every column: pandas' own leaves out those in the middle."""
        return self.to_string(max_rows=pd.get_option("display.max_rows"))

    def delete(self) -> list[Path]:
        """Delete the folders of these runs. `ConfigError`, and nothing is deleted, where one of them goes on."""
        going_on = [row.folder for row in self.itertuples() if row.state in GOING_ON]
        if going_on:
            raise ConfigError(
                f"{', '.join(map(str, going_on))}: the run goes on. Next: stop it, or lab.runs().query(\"state != "
                "'running'\").delete()."
            )
        gone = [Path(folder) for folder in self["folder"]]
        for folder in gone:
            if (folder / "run.json").exists():
                shutil.rmtree(folder)
        return gone


def runs(root: str | os.PathLike[str] = "runs") -> Runs:
    """The runs below ``root``, the newest first.

    ``state``: running, finished, stopped, failed, or died: its process is not there any more and left no word. What
    runs on another machine is "running" as long as its files say so. ``return``: of the last iteration that was kept
    (of a language task its reward); ``best_return``: of the best evaluation, where some were asked for.
    """
    if not isinstance(root, (str, os.PathLike)):
        raise ConfigError(f"runs({shown(root)}): the folder in which runs are kept. Next: lab.runs('runs').")
    found = [_row(path.parent) for path in sorted(Path(root).glob("**/run.json"))]
    table = Runs(found, columns=list(COLUMNS)).astype({"return": float, "best_return": float})
    return table.sort_values("began", ascending=False, ignore_index=True)


def _row(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"name": path.name, "folder": str(path)}
    try:
        return row | _told(path, RunFolder(path).read_json("run.json"))
    except (ConfigError, AttributeError, TypeError, ValueError):  # one that was changed by hand hides no other
        return row | {"state": "damaged", "began": pd.NaT, "minutes": 0.0}


def _told(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    began, state, metrics = float(about.get("began", about.get("saved", 0.0))), state_of(about), _metrics(path)
    best = RunFolder(path).best_return()
    return {
        "algorithm": about.get("algorithm"), "env": about.get("env"), "state": state,
        "iteration": about.get("iteration", 0), "iterations": about.get("iterations"),
        "return": next((metrics[name].iloc[-1] for name in ("return", "reward") if name in metrics), None),
        "best_return": best,
        "began": pd.Timestamp(round(began), unit="s"),
        "minutes": round(_seconds(path, about, state, metrics) / 60, 2),
    }  # fmt: skip


def _metrics(path: Path) -> pd.DataFrame:
    """As they were kept last. Empty where there are none, or none that can be read."""
    try:
        return RunFolder(path).metrics()
    except ConfigError:
        return pd.DataFrame()


def _seconds(path: Path, about: dict[str, Any], state: str, metrics: pd.DataFrame) -> float:
    """From the beginning to the end, or to now. Of a copy that `TrainingRun.save` made those of its iterations."""
    if "began" not in about:
        return float(metrics["seconds"].sum()) if "seconds" in metrics else 0.0
    if state in GOING_ON:
        end = time.time()
    elif state == "died":  # it left no word: when it wrote last
        end = max(file.stat().st_mtime for file in path.iterdir())
    else:
        end = float(about.get("ended", about["began"]))
    return max(0.0, end - float(about["began"]))


def state_of(about: dict[str, Any]) -> str:
    """What run.json says, or "died" where the process that it names is gone."""
    import psutil

    state = str(about.get("state", "died"))
    if state in ("finished", "stopped", "failed") or about.get("host") != socket.gethostname():
        return state
    if "saved" in about and "began" not in about:
        return "saved"
    try:
        process = psutil.Process(int(about["pid"]))
        alive = abs(process.create_time() - float(about["process_began"])) < 1
        alive = alive and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError, TypeError, ValueError):
        alive = False
    return state if alive else "died"
