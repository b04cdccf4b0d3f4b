"""A lower bound: seconds between iterations that no plan can beat under the profile's cost models, whatever it shares and streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.setting import Setting
from rlinf_lab.planning.tables import APART, SINGLE, TOGETHER, Forms


@dataclass(frozen=True)
class Bound:
    """``seconds`` and what they come from, for people."""

    seconds: float
    why: str


def lower_bound(setting: Setting, known: float = np.inf) -> Bound:
    """The largest of three bounds. ``known``: seconds of a plan; only device counts that could beat it count as work."""
    busy = [busy_seconds(setting, unit) for unit in range(len(setting.units))]
    totals = setting.totals
    # A plan of ``known`` seconds may be a little above what the search says of it: never leave a worker out.
    quick = [np.isfinite(b) & (b <= max(known, b.min())) for b in busy]
    work = sum(float((b[q] * totals[q]).min()) for b, q in zip(busy, quick, strict=True))
    slowest = max(range(len(busy)), key=lambda i: busy[i].min())
    found = [
        Bound(work / totals[-1], f"all workers together need {work:.4g} device seconds"),
        Bound(float(busy[slowest].min()), f"{setting.units[slowest].name} alone takes as long on the devices that suit it best"),
        _chain(setting, busy),
    ]
    return max(found, key=lambda b: b.seconds)


def busy_seconds(setting: Setting, unit: int) -> np.ndarray:
    """Least seconds of an iteration on each number of devices, with the best chunks and alone there."""
    forms = [TOGETHER, APART] if len(setting.units[unit].members) > 1 else [SINGLE]
    rows = [setting.tables.of(unit, 0, Forms(tuple(f if i == unit else SINGLE for i in range(len(setting.units))))) for f in forms]
    chunks = 2.0 ** np.arange(setting.granularities)[:, None]
    found = np.min([np.min(r * chunks, axis=0) for r in rows], axis=0)
    return np.asarray(found)


def _chain(setting: Setting, busy: list[np.ndarray]) -> Bound:
    """Workers that wait for the whole batch of the one before come one after another, even if each had all devices."""
    ends: list[float] = []
    paths: list[tuple[int, ...]] = []
    for unit in range(len(setting.units)):
        own = float(busy[unit].min())
        before = [p for (p, c), finest in setting.edges.items() if c == unit and finest == 0]
        last = max(before, key=lambda p: ends[p], default=None)
        ends.append(own + (ends[last] if last is not None else 0.0))
        paths.append(((*paths[last], unit)) if last is not None else (unit,))
    end = max(range(len(ends)), key=ends.__getitem__)
    path = " then ".join(setting.units[u].name for u in paths[end])
    return Bound(ends[end] / (1 + setting.staleness), f"{path}, each waiting for the whole batch")
