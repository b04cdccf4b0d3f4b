"""What comparisons look at: a run's name, settings and metrics. Of a run that lives or of one in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.experiments.storage.folder import RunFolder, to_plain
from rlinf_lab.experiments.training import TrainingRun
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.observed_session import ObservedSession
from rlinf_lab.runtime.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as it was found."""

    name: str
    settings: Mapping[str, Any]
    """every field of its configuration, and ``algorithm``; of a workflow's run what its plan says of places"""
    metrics: pd.DataFrame
    state: str

    @classmethod
    def of(cls, run: TrainingRun | Run | ObservedSession | str | os.PathLike[str]) -> RunRecord:
        """Of a `TrainingRun`, a workflow's `Run` or session, or the folder of one. `ConfigError` for anything else."""
        if isinstance(run, TrainingRun):
            return cls(run.name, {"algorithm": run.recipe.name, **to_plain(run.config)}, run.metrics, run.state)
        if isinstance(run, (Run, ObservedSession)):
            return cls(run.flow.name, _placed(run.plan), run.metrics, run.state)
        if not isinstance(run, (str, os.PathLike)):
            raise ConfigError(
                f"{shown(run)} is no run. Next: what lab.train or lab.run gave, or the path of a run's folder."
            )
        folder = RunFolder(run)
        if folder.is_of_a_workflow():
            return cls(Path(run).name, _placed(folder.plan()), folder.metrics(), "saved")
        about = folder.read_json("run.json")
        settings = {"algorithm": about.get("algorithm"), **folder.read_json("config.json")}
        return cls(Path(run).name, settings, folder.metrics(), str(about.get("state", "")))


def _placed(plan: ExecutionPlan) -> dict[str, Any]:
    """A plan as settings: where each worker is, and what else makes one plan another."""
    found: dict[str, Any] = {"plan": plan.name}
    for worker, ranks in plan.placements.items():
        found[f"{worker} on"] = ", ".join(dict.fromkeys(plan.devices[index] for rank in ranks for index in rank))
    for field, value in plan.to_dict().items():
        if field not in ("name", "devices", "placements", "origin"):
            each = value.items() if isinstance(value, dict) else ()
            found |= {f"{field} of {name}": entry for name, entry in each} or {field: value}
    return found


def grouped(runs: Sequence[Any]) -> dict[str, list[RunRecord]]:
    """Groups by label, of what `compare` was given.

    A run by itself, a list of runs (seeds), a dict of either.

    Where no labels were given they say how the settings differ.
    """
    labelled: dict[str, list[RunRecord]] = {}
    nameless: list[list[RunRecord]] = []
    for given in runs:
        if isinstance(given, Mapping):
            labelled |= {str(label): _records(some) for label, some in given.items()}
        else:
            nameless.append(_records(given))
    if not labelled and not nameless:
        raise ConfigError(
            "compare() takes runs: lab.compare(run, other), or {'label': [runs with different seeds]}; in a shell "
            "rlinf-lab compare runs/one runs/other. "
            "Next: lab.runs() lists those that are here."
        )
    for label, records in zip(_labels(nameless), nameless, strict=True):
        labelled[_free(label, labelled)] = records
    return labelled


def _records(given: Any) -> list[RunRecord]:
    if isinstance(given, Iterable) and not isinstance(given, (str, os.PathLike)):
        found = [RunRecord.of(run) for run in given]
        if not found:
            raise ConfigError("compare(): an empty list of runs. Next: leave it out.")
        return found
    return [RunRecord.of(given)]


def differing(groups: Iterable[list[RunRecord]]) -> list[str]:
    """Settings that are not the same in all groups, the seed left out."""
    records = [record for group in groups for record in group]
    names = list(dict.fromkeys(name for record in records for name in record.settings))
    first = records[0].settings
    return [
        name
        for name in names
        if name != "seed" and any(record.settings.get(name) != first.get(name) for record in records)
    ]


def _labels(groups: list[list[RunRecord]]) -> list[str]:
    if len(groups) < 2:
        return [group[0].name for group in groups]
    names = differing(groups)
    if not names or len(names) > 3:
        return [group[0].name for group in groups]
    return [", ".join(f"{name}={brief(group[0].settings.get(name))}" for name in names) for group in groups]


def brief(value: Any) -> str:
    """A setting in a legend."""
    if isinstance(value, Mapping) and set(value) == {"linear"}:
        return f"linear({value['linear'][0]:g}, {value['linear'][1]:g})"
    if isinstance(value, Mapping) and "object" in value:
        return str(value["object"])
    return f"{value:g}" if isinstance(value, float) else str(value)


def _free(label: str, taken: Mapping[str, Any]) -> str:
    number, found = 2, label
    while found in taken:
        found, number = f"{label} ({number})", number + 1
    return found
