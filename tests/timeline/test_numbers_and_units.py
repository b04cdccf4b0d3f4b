"""What a timeline tells depends on no number that a recorder hands out, on no clock's zero, and on no unit of time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from built import random_rows, recorder_of
from test_gains import TAILED, ran

from rlinf_lab.timeline import Recorder, Timeline
from rlinf_lab.timeline.account import stretch


def told(rows: list[tuple[Any, ...]], first: Recorder, zero: int = 0, unit: int = 1) -> list[Any]:
    """All answers, in the unit and from the zero of the rows."""
    timeline = Timeline(["cpu:0", "cpu:1"])
    timeline.extend(recorder_of([(*row[:4], zero + unit * row[4], zero + unit * row[5], *row[6:]) for row in rows], first).drain())
    frames = [timeline.bubbles(None), timeline.busy(), timeline.critical_path(None), timeline.gains(2.0, ["worker", "rank", "name"]), timeline.iterations(),
              timeline.depths(), timeline.to_pandas(), timeline.critical_path(["name", "worker"])]  # fmt: skip
    assert timeline.bubble_sum_error_ns() == 0
    found = []
    for frame in frames:
        for column in frame.columns:
            if column.endswith("_ns"):
                frame[column] -= zero
            if column in ("ns", "seconds", "run_seconds") or column.endswith("_ns"):
                frame[column] /= unit
        found.append(Counter(str([round(v, 12) if isinstance(v, float) else v for v in row]) for row in frame.astype(object).itertuples(index=False)))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_numbers_zeros_and_units_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it matter how many lanes are looked at side by side."""
    rows = random_rows(seed, 40)
    if not seed:
        rows = [(s.track.worker, s.track.rank, s.track.devices, s.kind, s.start_ns, s.end_ns, s.iteration, s.channel, s.flow, s.items, s.name) for s in ran(TAILED, ranks=2, iterations=1).rows()]
    usual, later = told(rows, Recorder()), Recorder()
    for text in ("none", "y", "x", "first", "step", "iteration"):
        later.name(text), later.track(text, 0)
    assert told(rows, later) == usual
    for zero, unit in ((10**18, 1), (-777, 1), (0, 7), (5, 1000)):
        assert told(rows, Recorder(), zero, unit) == usual
    monkeypatch.setattr(stretch, "_LONGEST_NS", 1)
    assert told(rows, Recorder()) == usual
