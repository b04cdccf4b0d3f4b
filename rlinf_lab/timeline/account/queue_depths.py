"""How many items wait in each channel, exactly: from the puts and gets among the spans.

A put's items are there at its end, a get's are taken at its end: by the clock under the lock of the channel's host, so
within one host a depth is never above the capacity. What is left of an iteration when it is over (of a channel with
``discard_unread``, or of one that failed) goes with it. `rlinf_lab/widgets/static/depths.js` is the same for a browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd


def depths(store: SpanStore) -> pd.DataFrame:
    """One row whenever the depth of a channel changes: channel, time_ns, seconds (since the timeline's start), depth
    (items). By time, then channel. Channels into which nothing was put are left out.
    """
    import pandas as pd

    moves = _movements(store)
    steps = moves.groupby(["time_ns", "channel"], as_index=False)["items"].sum()
    # of several hosts' clocks the taker's may be ahead
    steps["depth"] = steps.groupby("channel")["items"].cumsum().clip(lower=0)
    steps = steps[steps["depth"] != steps.groupby("channel")["depth"].shift()].reset_index(drop=True)
    names = pd.Categorical.from_codes(steps["channel"].to_numpy(), pd.Index(store.names, dtype=object))
    return pd.DataFrame(
        {
            "channel": names.remove_unused_categories(),
            "time_ns": steps["time_ns"],
            "seconds": (steps["time_ns"] - store.start_ns) / 1e9,
            "depth": steps["depth"],
        }
    )


def _movements(store: SpanStore) -> pd.DataFrame:
    """channel (its number), time_ns, items that come (negative: go), in any order."""
    import pandas as pd

    spans = store.spans
    puts, gets = spans["kind"] == SpanKind.PUT, spans["kind"] == SpanKind.GET
    counts = (spans["channel"] >= 0) & (spans["items"] > 0)
    own = spans[counts & (puts | gets) & np.isin(spans["channel"], spans["channel"][counts & puts])]
    moves = pd.DataFrame({field: own[field].astype(np.int64) for field in ("channel", "iteration", "items")})
    moves["time_ns"] = own["end"]
    moves.loc[own["kind"] == SpanKind.GET, "items"] *= -1
    marks = store.marks()
    # of two of the same number the later one counts
    ends = pd.Series(marks["end"], marks["iteration"]).groupby(level=0).max()
    rest = -moves.groupby(["channel", "iteration"])["items"].sum().reset_index()
    rest[["channel", "iteration"]] *= -1
    rest["time_ns"] = rest["iteration"].map(ends)
    rest = rest[rest["time_ns"].notna() & (rest["items"] != 0)].astype(np.int64)
    return pd.concat([moves, rest], ignore_index=True)
