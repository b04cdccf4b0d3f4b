"""`Timeline`: what a run or a simulation returns. A thin front: each answer is computed in a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_lab.timeline.span import Span
from rlinf_lab.timeline.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd


class Timeline(SpanStore):
    """What happened when: the spans of every worker rank, from all hosts, in integer nanoseconds.

    ``devices`` names all devices of the plan, so that one with nothing placed on it is accounted for too. Built up by
    `extend` while a run is going on, from any thread; every method may be called meanwhile.
    """

    # --- tables -----------------------------------------------------------------------------------------
    def rows(self) -> list[Span]:
        """Every span as a `Span`, by start, end and track. For tests and small timelines."""
        from rlinf_lab.timeline import tables

        return tables.rows(self.snapshot())

    def to_pandas(self) -> pd.DataFrame:
        """One row per span, in order of arrival: worker, rank, devices, host, kind, name, start_ns, end_ns, …"""
        from rlinf_lab.timeline import tables

        return tables.to_pandas(self.snapshot())

    def counters(self) -> pd.DataFrame:
        """One row per counter sample: name, time_ns, value."""
        from rlinf_lab.timeline import tables

        return tables.counters(self.snapshot())

    def iterations(self) -> pd.DataFrame:
        """One row per finished iteration: iteration, start_ns, end_ns, seconds."""
        from rlinf_lab.timeline import tables

        return tables.iterations(self.snapshot())

    def diff(self, other: SpanStore, limit: int = 5) -> str:
        """How this timeline differs from another, readable; ``""`` when they hold the same spans in any order."""
        from rlinf_lab.timeline import tables

        return tables.diff(self.snapshot(), other.snapshot(), limit)

    def __repr__(self) -> str:
        devices = len(self.devices)
        text = f"Timeline: {devices} device{'s' * (devices != 1)}, {len(self):,} spans, {self.elapsed_ns / 1e9:.3g} s"
        return text + (f", {self.dropped:,} spans DROPPED" if self.dropped else "")
