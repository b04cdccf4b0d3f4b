"""The learning curve: what it draws."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pandas as pd
from PIL import Image

from rlinf_lab.widgets.curves import learning_curve


def metrics(plans: list[str]) -> pd.DataFrame:
    n = len(plans)
    return pd.DataFrame({"env_steps": 800.0 * np.arange(1, n + 1), "success_rate": np.linspace(0, 1, n), "return": np.linspace(5, 50, n), "plan": plans})


def test_curves_and_the_changes_of_plan() -> None:
    chart = learning_curve(metrics(["temporal"] * 4 + ["fused"] * 6), "a task")
    left, right = chart.axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), np.linspace(0, 1, 10))
    assert left.lines[1].get_ydata()[5] == np.mean(np.linspace(0, 1, 10)[3:6]), "mean of three"
    assert [text.get_text() for text in right.texts] == ["plan fused"]
    assert right.lines[2].get_xdata() == [4000.0, 4000.0]
    assert not learning_curve(metrics(["temporal"] * 3)).axes[0].texts


def test_it_is_a_picture_with_a_transparent_background() -> None:
    image = np.asarray(Image.open(io.BytesIO(learning_curve(metrics(["temporal"] * 5))._repr_png_())))
    assert image.shape[2] == 4 and image[0, 0, 3] == 0
    assert (image[..., 3] > 0).mean() > 0.01


def test_gaps_where_no_episode_ended_are_allowed() -> None:
    rows = metrics(["temporal"] * 5)
    rows.loc[1, ["success_rate", "return"]] = np.nan
    assert learning_curve(rows)._repr_png_()


def test_the_numbers_of_steps_do_not_run_into_each_other() -> None:
    rows = metrics(["temporal"] * 40)
    rows["env_steps"] *= 1250  # to 40 million
    for many in (rows, rows.assign(env_steps=rows["env_steps"] / 1000)):
        chart = learning_curve(many)
        chart.draw_without_rendering()
        for axis in chart.axes:
            labels = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
            assert len(labels) >= 4 and all(a.x1 + 3 < b.x0 for a, b in itertools.pairwise(labels))
