"""`compare`: runs beside one another.

Curves with a band over the seeds, what they came to, and how their settings differ.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments.studies.records import RunRecord, brief, differing, grouped

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# they read on a light page and on a dark one
COLOURS = ("#2f7fd0", "#d0662f", "#3f9c5a", "#9b5fc0", "#c0487f", "#7a7f2a", "#2a8f98", "#8c6d50")
POINTS = 200  # of a curve on the axis that the seeds share
USUAL = ("eval_return", "return", "reward", "eval_success_rate", "success_rate")
BOOKKEEPING = ("iteration", "env_steps", "staleness", "version")  # what says nothing of how good a run is
AXES = {"env_steps": "environment steps", "iteration": "iterations"}
LATEST = 0.1  # share of a curve that "final" is the mean of


class Comparison:
    """Groups of runs, a group for a label, its runs the seeds; made by `compare`. Shows itself in a notebook.

    ``metric``: what the curves show; one of `metrics`. ``axis``: over what, ``env_steps`` where all count them, else
    ``iteration``.
    """

    def __init__(self, groups: Mapping[str, list[RunRecord]], metric: str | None = None) -> None:
        self.groups = dict(groups)
        tables = [record.metrics for group in self.groups.values() for record in group if len(record.metrics)]
        self.axis = "env_steps" if all("env_steps" in table for table in tables) else "iteration"
        known, some = self.metrics, dict.fromkeys(name for group in self.groups.values() for name in _columns(group))
        if metric is None:
            said = (name for name in known if name not in BOOKKEEPING and "seconds" not in name)
            best = (*(name for name in USUAL if name in known), *(name for name in USUAL if name in some), *said)
            best += ("seconds",) * (self.axis == "iteration")  # of a workflow that tells nothing else
            metric = next(iter(best), "return")
        elif metric not in some:
            raise UnknownNameError.of("metric", metric, known)
        self.metric = metric

    @property
    def metrics(self) -> list[str]:
        """What can be compared: columns that every group has."""
        columns = [set(_columns(group)) for group in self.groups.values()]
        first = next(iter(self.groups.values()))[0].metrics.columns
        return [
            name for name in first if all(name in have for have in columns) and name not in ("iteration", "env_steps")
        ]

    # --- numbers ----------------------------------------------------------------------------------------
    def curves(self) -> pd.DataFrame:
        """The curves of each group, on an axis that its seeds share.

        Columns: ``label``, the `axis`, ``mean``, ``low``, ``high`` (lowest and highest seed), ``seeds``.
        """
        parts = []
        for label, group in self.groups.items():
            known = [xy for record in group if len((xy := self._xy(record))[0])]
            if not known:
                continue
            end = min(x[-1] for x, _ in known)
            start = max(x[0] for x, _ in known)
            axis = (
                known[0][0]
                if len(known) == 1
                else np.linspace(min(start, end), end, min(POINTS, max(len(x) for x, _ in known)))
            )
            rows_SP = np.stack([np.interp(axis, x, y) for x, y in known])
            parts.append(pd.DataFrame({
                "label": label, self.axis: axis, "mean": rows_SP.mean(0), "low": rows_SP.min(0),
                "high": rows_SP.max(0), "seeds": len(known),
            }))  # fmt: skip
        return (
            pd.concat(parts, ignore_index=True)
            if parts
            else pd.DataFrame(columns=["label", self.axis, "mean", "low", "high", "seeds"])
        )

    @property
    def table(self) -> pd.DataFrame:
        """A row for each label.

        Seeds, the metric at its end (mean over the last tenth, lowest and highest seed), its best, steps, seconds,
        states.
        """
        rows = []
        for label, group in self.groups.items():
            finals = np.array([_final(y) for record in group if len(y := self._xy(record)[1])])
            bests = [y.max() for record in group if len(y := self._xy(record)[1])]
            steps = [record.metrics[self.axis].max() for record in group if self.axis in record.metrics]
            seconds = [record.metrics["seconds"].sum() for record in group if "seconds" in record.metrics]
            rows.append({
                "label": label, "seeds": len(group), f"final {self.metric}": finals.mean() if len(finals) else np.nan,
                "lowest": finals.min() if len(finals) else np.nan, "highest": finals.max() if len(finals) else np.nan,
                "best": max(bests, default=np.nan), self.axis: max(steps, default=np.nan),
                "seconds": np.mean(seconds) if seconds else np.nan,
                "state": ", ".join(sorted({record.state for record in group})),
            })  # fmt: skip
        return pd.DataFrame(rows).set_index("label")

    def statistics(self, over: str | None = None) -> pd.DataFrame:
        """A row for each label, over its runs.

        Interquartile mean of what the metric came to, and the probability of improvement.

        The last is that a run of the label beats one of ``over`` (None: the first label), ties counting one half. With
        95 % intervals of a stratified bootstrap over seeds, nan of a single one; runs on several environments are
        tasks, each with as many seeds, and have no common mean: their returns have scales of their own. Sources:
        rliable's definitions, `rlinf_lab.algorithms.statistics`. Raises `UnknownNameError` for a label that is not
        there, `ConfigError` where a group has no value so far, more seeds on one environment than on another, or others
        than the group it is compared with.
        """
        from rlinf_lab.algorithms.statistics import (
            bootstrap_interval,
            interquartile_mean,
            probability_of_improvement,
        )

        over = next(iter(self.groups)) if over is None else over
        if over not in self.groups:
            raise UnknownNameError.of("label", over, self.groups)
        known, scores = self._scores(over)[0], {}
        for label in self.groups:
            environments, scores[label] = self._scores(label)
            if environments != known:
                raise ConfigError(f"{label!r} ran on {environments}, {over!r} on {known}. Next: the same of both.")
        rows: dict[str, dict[str, float]] = {}
        for label, score_RM in scores.items():
            rows[label] = {"seeds": len(score_RM)}
            pooled = len(known) == 1
            iqm = _interval(bootstrap_interval, interquartile_mean, score_RM) if pooled else (np.nan,) * 3
            rows[label] |= dict(zip(("iqm", "iqm_low", "iqm_high"), iqm, strict=True))
            beats = _interval(bootstrap_interval, probability_of_improvement, score_RM, scores[over])
            beats = (np.nan,) * 3 if label == over else beats
            rows[label] |= dict(zip(("beats", "beats_low", "beats_high"), beats, strict=True))
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("label")

    def _scores(self, label: str) -> tuple[list[str], np.ndarray]:
        """Environments of a label's runs, and what these came to, seeds × environments."""
        by_env: dict[str, list[float]] = {}
        for record in self.groups[label]:
            if len(y := self._xy(record)[1]):
                by_env.setdefault(str(record.settings.get("env")), []).append(_final(y))
        if not by_env:
            raise ConfigError(f"{label!r} has no {self.metric} so far. Next: leave it out, or wait for its first.")
        if len({len(found) for found in by_env.values()}) > 1:
            counts = ", ".join(f"{env}: {len(found)}" for env, found in by_env.items())
            raise ConfigError(f"{label!r} has other numbers of seeds by environment ({counts}). Next: as many of each.")
        known = sorted(by_env)
        return known, np.array([by_env[env] for env in known]).reshape(len(known), -1).T

    @property
    def differences(self) -> pd.DataFrame:
        """A row for each setting that differs between groups, a column for each label. Several values of one group
        stand side by side.
        """
        names = differing(self.groups.values())
        columns = {
            label: [
                ", ".join(dict.fromkeys(brief(record.settings.get(name, "–")) for record in group)) for name in names
            ]
            for label, group in self.groups.items()
        }
        return pd.DataFrame(columns, index=pd.Index(names, name="setting"))

    def _xy(self, record: RunRecord) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values where there are some."""
        if self.metric not in record.metrics or self.axis not in record.metrics:
            return np.zeros(0), np.zeros(0)
        found = record.metrics[[self.axis, self.metric]].dropna()
        return found[self.axis].to_numpy(float), found[self.metric].to_numpy(float)

    # --- pictures ---------------------------------------------------------------------------------------
    def figure(self) -> Figure:
        """The curves over one another, a band over the seeds of each."""
        import plotly.graph_objects as go

        figure, curves = go.Figure(), self.curves()
        for number, (label, curve) in enumerate(curves.groupby("label", sort=False)):
            colour = COLOURS[number % len(COLOURS)]
            if curve["seeds"].iloc[0] > 1:
                both = pd.concat([curve[self.axis], curve[self.axis][::-1]])
                edge = pd.concat([curve["high"], curve["low"][::-1]])
                figure.add_scatter(
                    x=both, y=edge, fill="toself", line={"width": 0}, fillcolor=colour, opacity=0.2, hoverinfo="skip",
                    showlegend=False, legendgroup=str(label),
                )  # fmt: skip
            named = {"name": _with_seeds(label, curve), "legendgroup": str(label)}
            figure.add_scatter(x=curve[self.axis], y=curve["mean"], line={"color": colour, "width": 2}, **named)
        margin = {"t": 24, "b": 48, "l": 64, "r": 16}
        figure.update_layout(
            xaxis_title=AXES[self.axis], yaxis_title=self.metric, template="plotly_white", height=360, margin=margin
        )
        return figure

    def picture(self) -> bytes:
        """The same as a PNG, for pages without script."""
        from rlinf_lab.widgets.curves import INK, Chart

        chart = Chart(figsize=(9.0, 3.6), layout="constrained", facecolor="none")
        axis, curves = chart.subplots(), self.curves()
        for number, (label, curve) in enumerate(curves.groupby("label", sort=False)):
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(curve[self.axis], curve["mean"], color=colour, linewidth=2, label=_with_seeds(label, curve))
            if curve["seeds"].iloc[0] > 1:
                axis.fill_between(curve[self.axis], curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel(AXES[self.axis], color=INK)
        axis.set_ylabel(self.metric, color=INK)
        axis.set_facecolor("none")
        axis.tick_params(colors=INK)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["bottom", "left"]].set_color(INK)
        axis.grid(alpha=0.25)
        if self.groups:
            axis.legend(frameon=False, labelcolor=INK)
        buffer = io.BytesIO()
        chart.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()

    def __repr__(self) -> str:
        same = "all settings are the same" if not len(self.differences) else self.differences.to_string()
        statistics = "" if (found := self._shown_statistics()) is None else f"{found.to_string()}\n\n"
        lacking = f"{self._lacking()}\n\n" if self._lacking() else ""
        return f"{self.table.round(3).to_string()}\n\n{lacking}{statistics}{same}"

    def _lacking(self) -> str:
        """Which groups have no value of the metric; "" where all have some."""
        without = [label for label, group in self.groups.items() if not any(len(self._xy(run)[1]) for run in group)]
        return f"No {self.metric} so far: {', '.join(without)}. Next: metric=, one of .metrics." if without else ""

    def _repr_html_(self) -> str:
        differences = self.differences
        rest = "<p>All settings are the same.</p>" if not len(differences) else differences.to_html(border=0)
        statistics = "" if (found := self._shown_statistics()) is None else found.to_html(border=0)
        lacking = f"<p>{html.escape(self._lacking())}</p>" if self._lacking() else ""
        return f"{self.table.round(3).to_html(border=0)}{lacking}{statistics}{rest}"

    def _shown_statistics(self) -> pd.DataFrame | None:
        """`statistics` where some group has several seeds; intervals beside their values."""
        try:
            found = self.statistics()
        except ConfigError:  # runs that are no seeds of one another: the table says what there is
            return None
        if not (found["seeds"] > 1).any():
            return None
        named = {"iqm": f"interquartile mean of {self.metric}", "beats": f"beats {found.index[0]}"}
        columns = {
            title: [_told(*row) for row in found[[name, f"{name}_low", f"{name}_high"]].to_numpy()]
            for name, title in named.items()
        }
        return pd.DataFrame(columns, index=found.index)

    def _ipython_display_(self) -> None:
        import json

        from IPython.display import display, publish_display_data

        publish_display_data({
            "application/vnd.plotly.v1+json": json.loads(self.figure().to_json()), "image/png": self.picture(),
            "text/plain": f"curves of {self.metric}",
        })  # fmt: skip
        display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)


def _interval(bootstrap: Any, statistic: Any, *scores: np.ndarray) -> tuple[float, float, float]:
    """The statistic and its interval: nan where nothing was measured, no interval of single runs."""
    if not all(score_RM.size for score_RM in scores):
        return np.nan, np.nan, np.nan
    if not all(len(score_RM) > 1 for score_RM in scores):
        return float(statistic(*scores)), np.nan, np.nan
    return bootstrap(statistic, *scores)


def _told(value: float, low: float, high: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{value:.4g}" if np.isnan(low) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _with_seeds(label: object, curve: pd.DataFrame) -> str:
    seeds = curve["seeds"].iloc[0]
    return f"{label} ({seeds} seeds)" if seeds > 1 else str(label)


def _columns(group: list[RunRecord]) -> list[str]:
    """That some run of a group has."""
    return list(dict.fromkeys(str(name) for record in group for name in record.metrics.columns))


def _final(values: np.ndarray) -> float:
    return float(values[-max(1, round(LATEST * len(values))) :].mean())


def compare(*runs: Any, metric: str | None = None) -> Comparison:
    """Put runs beside one another: curves, a table, the settings that differ.

    ``runs``: what `train`, `resume`, `sweep` or `run` gave, paths of runs' folders, lists of those (the seeds of one
    setting, drawn as a band), dicts of label and either. ``metric``: of the curves; None: the return of evaluations
    where all have it, else of training; what has none so far is named. Raises `ConfigError` for what is no run,
    `UnknownNameError` for a metric that none has.
    """
    return Comparison(grouped(runs), metric)
