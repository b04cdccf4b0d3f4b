"""An accounting as tables: busy time, utilisation, and bubbles by whatever one asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlinf_lab.timeline.account.accounting import CAUSES, Accounting
from rlinf_lab.timeline.account.group_by import grouped_by
from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

Rows = SpanArray | dict[str, np.ndarray]

#: What `bubbles` can group by.
COLUMNS = ("cause", "device", "worker", "rank", "iteration", "channel", "waiting_for")
#: Which fields of a bubble each is read from.
_FIELDS = {key: (key,) for key in COLUMNS} | {
    "worker": ("track",),
    "rank": ("track",),
    "waiting_for": ("kind", "channel"),
}


#: By the kind of the explaining span: what it waited for, and the same of a channel, before its name.
_WAITED_FOR: dict[int, tuple[str, str]] = {
    SpanKind.GET: ("input", "channel"), SpanKind.PUT: ("room", "room in channel"),
    SpanKind.TRANSFER: ("bytes", "bytes of channel"), SpanKind.LOCK: ("the device", ""), SpanKind.SETUP: ("setup", ""),
    SpanKind.ONLOAD: ("onload", ""), SpanKind.OFFLOAD: ("offload", ""), SpanKind.WAIT: ("the value of a call", ""),
}  # fmt: skip


def busy(accounting: Accounting) -> pd.DataFrame:
    """One row per device: device, ns, seconds, share of the elapsed time."""
    import pandas as pd

    elapsed = accounting.end_ns - accounting.start_ns
    ns = accounting.busy_ns
    return pd.DataFrame(
        {"device": accounting.devices, "ns": ns, "seconds": ns / 1e9, "share": ns / elapsed if elapsed else 0.0 * ns}
    )


def bubbles(store: SpanStore, accounting: Accounting, by: str | Sequence[str] | None = "cause") -> pd.DataFrame:
    """Idle time summed by one or several of `COLUMNS`, largest first. ``None``: every bubble, with its times.

    Columns after those of ``by``: ns (exact), seconds, share (of elapsed time × devices, so that all shares and the
    mean utilisation add up to 1). Where no call was waiting ``worker`` is "(nobody)", ``waiting_for`` "(no call)",
    ``channel`` "(none)" and ``rank`` -1.
    """
    import pandas as pd

    keys = list(COLUMNS) if by is None else grouped_by("bubbles", "bubbles", by, COLUMNS)
    fields = {field for key in keys for field in _FIELDS[key]}
    rows = accounting.bubbles if by is None else accounting.columns("start", "end", *fields)
    ns = rows["end"] - rows["start"]
    frame = pd.DataFrame({key: _column(store, accounting.devices, rows, key) for key in keys})
    if by is None:
        frame["start_ns"], frame["end_ns"], frame["ns"] = rows["start"].copy(), rows["end"].copy(), ns
    else:
        frame["ns"] = ns
        frame = frame.groupby(keys, sort=True, observed=True)["ns"].sum().reset_index()
        frame = frame.sort_values("ns", ascending=False, kind="stable", ignore_index=True)
    total = (accounting.end_ns - accounting.start_ns) * len(accounting.devices)
    frame["seconds"] = frame["ns"] / 1e9
    frame["share"] = frame["ns"] / total if total else 0.0
    return frame


def _column(store: SpanStore, devices: list[str], rows: Rows, key: str) -> pd.Categorical | np.ndarray:
    tracks, names = store.tracks, store.names
    labels = {
        "cause": [str(cause) for cause in CAUSES],
        "device": devices,
        "worker": [*(t.worker for t in tracks), "(nobody)"],
        "channel": [*names, "(none)"],
    }
    if key in labels:
        return _category(labels[key], rows[_FIELDS[key][0]])
    if key == "rank":
        return np.array([*(t.rank for t in tracks), -1], np.int64)[rows["track"]]
    if key == "waiting_for":
        return _waiting_for(rows, names)
    return rows["iteration"].copy()


def _category(labels: list[str], codes: np.ndarray) -> pd.Categorical:
    """Labels by number; a label may occur twice, and -1 is the last one."""
    import pandas as pd

    number: dict[str, int] = {}
    merged = np.array([number.setdefault(label, len(number)) for label in labels] or [0], np.int32)
    return pd.Categorical.from_codes(merged[codes] if len(codes) else codes, pd.Index(list(number), dtype=object))


def _waiting_for(rows: Rows, names: list[str]) -> pd.Categorical:
    """What the explaining span was waiting for. "channel act", "room in channel act", "the device", …"""
    code = (rows["kind"].astype(np.int64) + 1) * (len(names) + 1) + rows["channel"] + 1
    distinct, inverse = np.unique(code, return_inverse=True)
    labels = []
    for number in distinct.tolist():
        kind, channel = divmod(number, len(names) + 1)
        what, whose = _WAITED_FOR.get(kind - 1, ("(no call)", ""))
        labels.append(f"{whose} {names[channel - 1]}" if whose and channel else what)
    return _category(labels, inverse)
