"""Several timelines laid side by side as one, each with a name of its own before its devices and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_lab.timeline.record.batch import COUNTER_DTYPE, SPAN_DTYPE
from rlinf_lab.timeline.record.span import Track

Content = dict[str, Any]


def joined(parts: Sequence[tuple[str, Content]]) -> Content:
    """Of (name, arguments of ``SpanStore._restore``) the arguments for all together. Marks of iterations keep their
    names: they are of all.
    """
    tracks: dict[Track, int] = {}
    names: dict[str, int] = {}
    spans, counters = [np.zeros(0, SPAN_DTYPE)], [np.zeros(0, COUNTER_DTYPE)]
    for name, content in parts:
        own = [
            Track(f"{name} {t.worker}", t.rank, tuple(f"{name}/{d}" for d in t.devices), t.host)
            for t in content["tracks"]
        ]
        of_track = np.array([tracks.setdefault(t, len(tracks)) for t in own], np.int64)
        of_name = np.array([names.setdefault(n, len(names)) for n in content["names"]], np.int64)
        rows, samples = content["spans"].copy(), content["counters"].copy()
        rows["track"], rows["name"] = of_track[rows["track"]], of_name[rows["name"]]
        rows["channel"] = np.where(rows["channel"] >= 0, of_name[np.maximum(rows["channel"], 0)], -1)
        if len(samples):
            told = [f"{name} {n}" for n in content["names"]]
            samples["name"] = np.array([names.setdefault(n, len(names)) for n in told], np.int64)[samples["name"]]
        spans.append(rows)
        counters.append(samples)
    return {
        "spans": np.concatenate(spans), "tracks": list(tracks), "names": list(names),
        "counters": np.concatenate(counters),
        "dropped": 0, "foreign_arrows": sum(content["foreign_arrows"] for _, content in parts),
    }  # fmt: skip
