"""The learning curve: success and return over environment steps. A dotted line stands where the plan changes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

if TYPE_CHECKING:
    import pandas as pd

BLUE, OCHRE, INK = "#2f7fd0", "#a9822c", "#7c8591"  # they read on a light page and on a dark one


class Chart(Figure):
    """A matplotlib figure that shows itself in any notebook. Without pyplot and its choice of a backend. Its
    background is transparent.
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def learning_curve(metrics: pd.DataFrame, title: str = "") -> Chart:
    """A row of ``metrics`` for each update, with the columns ``env_steps``, ``success_rate``, ``return`` and ``plan``.

    Thin: as measured; thick: mean of three updates. ``savefig(path, facecolor="white")`` stores it.
    """
    chart = Chart(figsize=(9.6, 3.4), layout="constrained", facecolor="none")
    changes = metrics[metrics["plan"] != metrics["plan"].shift()].iloc[1:]
    places = list(zip(changes["env_steps"].tolist(), changes["plan"].tolist(), strict=True))
    for axis, column, label in zip(
        chart.subplots(1, 2),
        ("success_rate", "return"),
        ("success rate (with exploration)", "return of an episode"),
        strict=True,
    ):
        axis.plot(metrics["env_steps"], metrics[column], color=BLUE, alpha=0.35, linewidth=1)
        axis.plot(metrics["env_steps"], metrics[column].rolling(3, min_periods=1).mean(), color=BLUE, linewidth=2)
        for place, (steps, plan) in enumerate(places):
            axis.axvline(steps, color=OCHRE, linestyle=":", linewidth=1.2)
            axis.annotate(
                f"plan {plan}",
                (steps, 1.0),
                (3, 2 + 10 * (len(places) - 1 - place)),  # one above the other: changes may follow each other closely
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=8,
                color=OCHRE,
            )
        axis.set_xlabel("environment steps", color=INK)
        axis.set_ylabel(label, color=INK)
        axis.set_facecolor("none")
        axis.tick_params(colors=INK)
        axis.xaxis.set_major_formatter(EngFormatter())  # 40 k: whole numbers run into each other
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(INK)
        axis.grid(alpha=0.25)
    chart.axes[0].set_ylim(-0.03, 1.03)
    if title:
        chart.suptitle(title, fontsize=11, color=INK)
    return chart
