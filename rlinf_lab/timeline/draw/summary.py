"""A timeline in a screenful, for people and for scripts. It has its lanes, how busy the devices were, bubbles by cause,
the critical path.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from rlinf_lab.timeline.account import bubbles
from rlinf_lab.timeline.account.accounting import Accounting
from rlinf_lab.timeline.account.tables import Standing
from rlinf_lab.timeline.critical import critical_path as critical
from rlinf_lab.timeline.draw.short_names import narrow
from rlinf_lab.timeline.record.clock import seconds_shown
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

_SHOWN_ROWS = 12  # rows of a table in the text
_UNTIL_THEN = "; what is idle there counts as fill, tail or drain until more comes"


@dataclass(frozen=True)
class Summary:
    """Tables of `Timeline.busy`, `Timeline.bubbles`, `Timeline.critical_path` and `Timeline.gains`, and ``lanes``. The
    last has one row per worker rank.

    Printing it gives text, `to_json` everything.
    """

    about: dict[str, Any]
    lanes: pd.DataFrame
    devices: pd.DataFrame
    bubbles: pd.DataFrame
    critical_path: pd.DataFrame
    gains: pd.DataFrame

    def to_dict(self) -> dict[str, Any]:
        """``about`` and a list of rows for each table. Times in ns and seconds, shares of the elapsed time (of all
        devices: bubbles).

        ``notes``: by table, what has to be known of its numbers: that they rest on a part of the timeline, say.
        """
        frames = {
            "lanes": self.lanes,
            "devices": self.devices,
            "bubbles": self.bubbles,
            "critical_path": self.critical_path,
            "gains": self.gains,
        }
        notes = {name: frame.attrs["note"] for name, frame in frames.items() if frame.attrs.get("note")}
        return self.about | {name: frame.to_dict("records") for name, frame in frames.items()} | {"notes": notes}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, default=str)

    def __repr__(self) -> str:
        a = self.about
        whose = (
            f"{_counted(a['spans'], 'span')} of {_counted(a['lanes_count'], 'lane')} on "
            f"{_counted(a['devices_count'], 'device')}"
        )
        lines = [f"{whose}, {seconds_shown(a['seconds'])}, {_counted(a['iterations'], 'iteration')}"]
        lines += [f"PART: {a['standing']}{_UNTIL_THEN * bool(a['open_iterations'])}."] if a["standing"] else []
        if a["dropped"]:
            lines.append(f"{a['dropped']:,} spans were DROPPED while recording")
        if a["dropped_samples"]:
            lines.append(f"{a['dropped_samples']:,} samples of counters were DROPPED while recording")
        if a["foreign_arrows"]:
            lines.append(
                f"{_counted(a['foreign_arrows'], 'arrow')} of the tool that wrote this left out: here they lead from "
                "puts to gets"
            )
        lines += [
            f"clock of {host}: aligned to ± {error / 1e3:,.0f} µs" for host, error in a["clock_errors_ns"].items()
        ]
        lines += [
            f"clock of {host}: was set or stood still {jumps} times; times around that are not comparable"
            for host, jumps in a["clock_jumps"].items()
        ]
        for title, frame, columns in (
            ("Devices", self.devices, ["device"]), ("Bubbles, share of all devices' time", self.bubbles, ["cause"]),
            ("Lanes, share of time in RUN spans", self.lanes, ["lane", "devices", "spans"]),
            ("Critical path", self.critical_path, ["worker", "name", "kind"]),
            ("Gained if twice as fast", self.gains, ["worker"]),
        ):  # fmt: skip
            if len(frame):
                lines += [
                    "",
                    title,
                    *_aligned(frame, columns),
                    *(f"  {note}" for note in [frame.attrs.get("note")] if note),
                ]
        return "\n".join(lines)


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _aligned(frame: pd.DataFrame, columns: list[str]) -> list[str]:
    top = frame.head(_SHOWN_ROWS)
    texts = [
        [_counted(n, "span") for n in top[c]] if c == "spans" else narrow([str(v) for v in top[c]]) for c in columns
    ]
    numbers = [
        [seconds_shown(seconds), f"{100 * share:.1f} %"]
        for seconds, share in zip(top["seconds"], top["share"], strict=True)
    ]
    rows = [[*words, *pair] for *words, pair in zip(*texts, numbers, strict=True)]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = len(columns) - ("spans" in columns)
    lines = ["  " + "  ".join(_padded(text, widths[i], i < left) for i, text in enumerate(row)) for row in rows]
    return lines + ([f"  … and {len(frame) - _SHOWN_ROWS} more"] if len(frame) > _SHOWN_ROWS else [])


def _padded(text: str, columns: int, left: bool) -> str:
    room = " " * (columns - cell_len(text))
    return text + room if left else room + text


def summary(store: SpanStore, accounting: Accounting, gains: pd.DataFrame) -> Summary:
    standing = Standing.of(store)
    about = {
        "spans": len(store), "seconds": store.elapsed_ns / 1e9, "lanes_count": len(store.tracks),
        "devices_count": len(store.devices),
        "iterations": len(store.marks()), "failed_iterations": standing.failed, "open_iterations": standing.open,
        "arriving_iterations": standing.arriving, "standing": standing.words, "dropped": store.dropped,
        "clock_errors_ns": store.clock_errors,
        "dropped_samples": store.dropped_samples, "clock_jumps": store.clock_jumps,
        "foreign_arrows": store.foreign_arrows,
    }  # fmt: skip
    busy = bubbles.busy(accounting).sort_values("share", ascending=False, kind="stable", ignore_index=True)
    return Summary(about, lanes(store), busy, bubbles.bubbles(store, accounting), critical.critical_path(store), gains)


def lanes(store: SpanStore) -> pd.DataFrame:
    """One row per track, busiest first. Columns: lane, devices, host, spans, ns and seconds in which a RUN span covered
    it, share.
    """
    import pandas as pd

    spans = store.spans
    counts = (
        np.bincount(spans["track"], minlength=len(store.tracks))
        if len(spans)
        else np.zeros(len(store.tracks), np.int64)
    )
    runs = spans[spans["kind"] == SpanKind.RUN]
    ns = [_covered(runs[runs["track"] == number]) for number in range(len(store.tracks))]
    frame = pd.DataFrame(
        {
            "lane": [f"{t.worker}[{t.rank}]" for t in store.tracks],
            "devices": [", ".join(t.devices) for t in store.tracks],
            "host": [t.host for t in store.tracks],
            "spans": counts,
            "ns": np.array(ns, np.int64),
        }
    )
    frame["seconds"], frame["share"] = frame["ns"] / 1e9, frame["ns"] / max(store.elapsed_ns, 1)
    return frame.sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def _covered(rows: np.ndarray) -> int:
    """Nanoseconds that the rows cover together."""
    if not len(rows):
        return 0
    rows = rows[np.argsort(rows["start"], kind="stable")]
    reach = np.maximum.accumulate(rows["end"])
    return int(np.sum(np.maximum(0, reach - np.maximum(rows["start"], np.append(rows["start"][:1], reach[:-1])))))
