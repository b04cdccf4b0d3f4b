"""`sweep`: every combination of some settings, several seeds each. One that fails stops no other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from rlinf_lab.errors import ConfigError, counted, said, shown
from rlinf_lab.experiments.recipe import Recipe, find
from rlinf_lab.experiments.settings import check_names, configured
from rlinf_lab.experiments.starting import train
from rlinf_lab.experiments.studies.records import brief
from rlinf_lab.experiments.training import TrainingRun


class Sweep(Mapping[str, list[TrainingRun]]):
    """The runs of a sweep by label, as `compare` takes them. They go on one after another in the background.

    ``failures``: what went wrong, by label and seed.
    """

    def __init__(
        self,
        algorithm: str | Recipe,
        env: Any,
        points: Mapping[str, dict[str, Any]],
        seeds: Sequence[int],
        settings: Mapping[str, Any],
    ) -> None:
        self.failures: dict[tuple[str, int], BaseException] = {}
        self._algorithm, self._env, self._points, self._seeds, self._settings = algorithm, env, points, seeds, settings
        self._runs: dict[str, list[TrainingRun]] = {label: [] for label in points}
        self._stop, self._over = threading.Event(), threading.Event()
        self._current: TrainingRun | None = None
        threading.Thread(target=self._all, name="sweep", daemon=True).start()

    def _all(self) -> None:
        try:
            for seed in self._seeds:  # a seed of every setting first: there is something to compare soon
                for label, point in self._points.items():
                    if self._stop.is_set():
                        return
                    self._one(label, point, seed)
        finally:
            self._over.set()

    def _one(self, label: str, point: Mapping[str, Any], seed: int) -> None:
        try:
            self._current = train(
                self._algorithm, self._env, **{"progress": False, **self._settings, **point, "seed": seed}
            )
            self._runs[label].append(self._current)
            self._current.wait()
        except BaseException as error:
            self.failures[label, seed] = error

    def wait(self) -> Sweep:
        """Block until all runs have ended. Ctrl+C stops the one that goes on, and those after it."""
        try:
            while not self._over.wait(0.1):
                pass
        except KeyboardInterrupt:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the run that goes on, and begin no other."""
        self._stop.set()
        if self._current is not None:
            self._current.stop()
        self._over.wait()

    @property
    def table(self) -> pd.DataFrame:
        """A row for each run: label, seed, state, iteration, return."""
        rows = []
        for label, seed in itertools.product(self._points, self._seeds):
            run = next((r for r in self._runs[label] if r.config.seed == seed), None)
            error = self.failures.get((label, seed))
            state = "failed" if error is not None else "waiting" if run is None else run.state
            last = run.metrics.tail(1).to_dict("records") if run is not None else []
            rows.append({"label": label, "seed": seed, "state": state, "iteration": 0 if run is None else run.iteration,
                         "return": last[0].get("return") if last else None,
                         "error": "" if error is None else said(error).split("\n", 1)[0]})  # fmt: skip
        return pd.DataFrame(rows)

    def __getitem__(self, label: str) -> list[TrainingRun]:
        return self._runs[label]

    def __iter__(self) -> Iterator[str]:
        return iter(label for label, runs in self._runs.items() if runs)

    def __len__(self) -> int:
        return sum(bool(runs) for runs in self._runs.values())

    def __repr__(self) -> str:
        table = self.table
        count = len(table)
        done = int(table["state"].isin(["finished", "stopped"]).sum())
        failed = f", {len(self.failures)} failed" if self.failures else ""
        tried = f"{counted(len(self._points), 'setting')} × {counted(len(self._seeds), 'seed')}"
        return f"Sweep({tried}: {done} of {counted(count, 'run')} done{failed})"

    def _repr_html_(self) -> str:
        return str(self.table.round(3).to_html(border=0, index=False))


def sweep(
    algorithm: str | Recipe,
    env: Any,
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int] = 3,
    **settings: Any,
) -> Sweep:
    """Train every combination of ``grid`` with every seed, one after another in the background. Returns at once.

    ``grid``: values by setting, ``{"learning_rate": [1e-3, 3e-4]}``. ``seeds``: how many (0, 1, …), or which.
    ``settings``: as `train` takes them. ``lab.compare(sweep)`` at any time. Raises `ConfigError` or `UnknownNameError`
    for a setting or value that cannot work, before anything starts.
    """
    recipe = find(algorithm, env)
    if (
        not isinstance(grid, Mapping)
        or not grid
        or not all(isinstance(v, Sequence) and not isinstance(v, str) and len(v) for v in grid.values())
    ):
        raise ConfigError(
            f"sweep(grid={shown(grid)}): lists of values by setting. Next: grid={{'learning_rate': [1e-3, 3e-4]}}."
        )
    chosen = range(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1 else seeds
    if (
        not isinstance(chosen, Sequence)
        or isinstance(chosen, str)
        or not chosen
        or not all(isinstance(s, int) and s >= 0 for s in chosen)
    ):
        raise ConfigError(f"sweep(seeds={shown(seeds)}): how many, or a list of whole numbers. Next: seeds=3.")
    check_names(recipe, grid)
    points = {}
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        configured(recipe, env, None, {k: v for k, v in {**settings, **point}.items() if k in recipe.fields})
        points[", ".join(f"{name}={_brief(value)}" for name, value in point.items())] = point
    return Sweep(recipe, env, points, list(chosen), settings)


def _brief(value: Any) -> str:
    return brief(value) if isinstance(value, (int, float, str)) else shown(value, 40)
