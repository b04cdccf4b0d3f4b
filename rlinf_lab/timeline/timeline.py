"""`Timeline`: what a run or a simulation returns. A thin front: each answer is computed in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlinf_lab.errors import TimelineError, shown, with_old_names
from rlinf_lab.timeline.account import bubbles, tables
from rlinf_lab.timeline.account import query as queries
from rlinf_lab.timeline.account import queue_depths as depths
from rlinf_lab.timeline.account.accounting import FARTHEST_NS, Accounting, Ledger, shares
from rlinf_lab.timeline.critical import critical_path as critical
from rlinf_lab.timeline.critical import gains
from rlinf_lab.timeline.draw.picture import Scene, scene
from rlinf_lab.timeline.draw.svg import shown_html, shown_svg, to_svg
from rlinf_lab.timeline.formats import chrome, chrome_import, parquet
from rlinf_lab.timeline.record.clock import seconds_shown
from rlinf_lab.timeline.record.files import path_of, reading, writing
from rlinf_lab.timeline.record.span import Span
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

    from rlinf_lab.timeline.draw.summary import Summary

OF_A_RUN = "timeline.parquet"  # in the folder of a training run


@with_old_names({"to_chrome": "to_perfetto"})
class Timeline(SpanStore):
    """What happened when: the spans of every worker rank, from all hosts, in integer nanoseconds.

    ``devices`` names all devices of the plan, so that one with nothing placed on it is accounted for too. Built up by
    `extend` while a run is going on, from any thread; every method may be called meanwhile.
    """

    def __init__(self, devices: Sequence[str] = ()) -> None:
        super().__init__(devices)
        self._ledger = Ledger()

    # --- tables -----------------------------------------------------------------------------------------
    def rows(self) -> list[Span]:
        """Every span as a `Span`, by start, end and track. For tests and small timelines."""
        return tables.rows_of(self.snapshot())

    def to_pandas(self) -> pd.DataFrame:
        """One row per span, in order of arrival. Columns: worker, rank, devices, host, kind, name, start_ns, end_ns, …
        """
        return tables.to_pandas(self.snapshot())

    def sql(self, query: str) -> pd.DataFrame:
        """A DuckDB query over the timeline's tables. These are ``spans`` (as `to_pandas`), ``bubbles`` (every single
        one), ``iterations``, ``counters`` and ``depths``.

        ``timeline.sql("select worker, sum(seconds) from spans where kind = 'run' group by all")``. Raises
        `TimelineError` for a query that DuckDB refuses, `MissingDependencyError` without DuckDB.
        """
        now = self.snapshot()
        frames = {
            "spans": now.to_pandas, "bubbles": lambda: bubbles.bubbles(now, now.accounting(), None),
            "iterations": now.iterations,
            "counters": lambda: tables.counters(now), "depths": now.depths,
        }  # fmt: skip
        return queries.sql(frames, query)

    def counters(self) -> pd.DataFrame:
        """One row per counter sample: name, time_ns, value. "<channel> items" is a sample of two a second; `depths` has
        every change.
        """
        return tables.counters(self.snapshot())

    def depths(self) -> pd.DataFrame:
        """How many items wait in each channel. There is one row whenever that changes, with channel, time_ns, seconds
        (since the start) and depth (items).

        Exact, from the spans: put until then less taken until then, 0 at least (clocks of several hosts differ a
        little); what an iteration leaves goes with its end. A depth holds until the channel's next row. Where spans
        were dropped (``dropped``), those items are missing until the iteration ends.
        """
        return depths.depths(self.snapshot())

    def iterations(self) -> pd.DataFrame:
        """One row per finished iteration: iteration, start_ns, end_ns, seconds, failed. Where iterations overlap,
        seconds from the end of those before.
        """
        return tables.iterations(self.snapshot())

    def diff(self, other: SpanStore, limit: int = 5) -> str:
        """How this timeline differs from another, readable. ``""`` when they hold the same spans in any order."""
        if not isinstance(other, SpanStore) or isinstance(limit, bool) or not isinstance(limit, int):
            raise TimelineError(
                f"diff({shown(other)}, limit={shown(limit)}): another Timeline, and how many lines. Next: "
                "run.timeline.diff(predicted)."
            )
        return tables.diff(self.snapshot(), other.snapshot(), limit)

    # --- where the time went ----------------------------------------------------------------------------
    def accounting(self) -> Accounting:
        """Busy time and bubbles of every device as arrays; see `rlinf_lab.timeline.account.accounting` for the rule."""
        return self._ledger.account(self.snapshot())

    def busy(self) -> pd.DataFrame:
        """One row per device. Columns: device, ns, seconds, share of the elapsed time that a RUN span covers."""
        return bubbles.busy(self.accounting())

    def utilisation(self) -> pd.Series[float]:
        """Share of the elapsed time that each device was busy, by device name."""
        return self.busy().set_index("device")["share"]

    def bubbles(self, by: str | Sequence[str] | None = "cause") -> pd.DataFrame:
        """Idle time by cause, device, worker, rank, iteration, channel, waiting_for, or a list of those. Largest first.

        ``by=None`` gives every single bubble with its times. Columns: those of ``by``, ns, seconds, share (of the
        elapsed time of all devices). Causes are explained at `Cause`, the rule in
        `rlinf_lab.timeline.account.accounting`.
        """
        return bubbles.bubbles(self, self.accounting(), by)

    def critical_path(self, by: str | Sequence[str] | None = ("worker", "name", "kind")) -> pd.DataFrame:
        """What the run's length consisted of, largest first. Found by walking back from its end over every wait to who
        was waited for.

        ``by``: worker, rank, kind, name, iteration or a list of those; ``None``: every step in order, with its times.
        All ns sum to the elapsed time. The rule is in `rlinf_lab.timeline.critical.critical_path`.
        """
        return critical.critical_path(self.snapshot(), by)

    def gains(self, times: float = 2.0, by: str | Sequence[str] = "worker") -> pd.DataFrame:
        """What would be gained if each worker were ``times`` as fast, largest first. It is given in seconds and as a
        share of the elapsed time.

        ``by``: worker, rank, name or a list of those. The recorded spans are replayed with those of one row shortened,
        waiting for each other as they did, in their orders; the rule, and what it leaves out, is in
        `rlinf_lab.timeline.critical.gains`. Of a long timeline the last iterations count, and what they would gain is
        taken for the whole: ``attrs["note"]`` says so.
        """
        return gains.gains(self.snapshot(), times, by)

    def summary(self) -> Summary:
        """The timeline in numbers, printable and as JSON. Lanes, busy devices, bubbles by cause, the critical path
        and what faster workers would gain.
        """
        from rlinf_lab.timeline.draw.summary import summary

        now = self.snapshot()  # one moment of a run that goes on
        return summary(now, now.accounting(), now.gains())

    def bubble_sum_error_ns(self) -> int:
        """The largest ``|busy + bubbles - elapsed|`` of any device. Always 0."""
        return self.accounting().sum_error_ns()

    # --- files and pictures -----------------------------------------------------------------------------
    def to_perfetto(self, path: str | Path) -> Path:
        """A trace for ui.perfetto.dev, with lanes, arrows and counters. Returns the path.

        Chrome trace JSON, which other viewers open, too; compressed where the name ends in ``.gz``. `open` reads it as
        far as Perfetto shows it; `to_parquet` keeps everything.
        """
        with writing("to_perfetto", path) as target:
            chrome.write_chrome(self.snapshot(), target, Path(path).suffix == ".gz")
        return Path(path)

    def to_parquet(self, path: str | Path) -> Path:
        """One row per span, readable as it is, and exact through `from_parquet`. Returns the path."""
        with writing("to_parquet", path) as target:
            parquet.to_parquet(self.snapshot(), target)
        return Path(path)

    @classmethod
    def open(cls, path: str | Path | Sequence[str | Path]) -> Self:
        """Open a timeline from a file or a folder. These are files of `to_parquet`, Chrome trace JSON of any tool
        (`to_perfetto`), or the folder of a training run.

        Several files are Chrome traces of the ranks of one run, and become one timeline.
        Raises `TimelineError` for a file that is not there, damaged, cut off, or of something else.
        """
        if isinstance(path, Sequence) and not isinstance(path, str):
            return cls._of_ranks(path)
        path = path_of("open", path)
        if not os.path.exists(path):  # noqa: PTH110  (Path.exists raises for a name that is too long)
            raise TimelineError(f"There is no {shown(str(path), 300)}. Next: look at {shown(str(path.parent), 300)}.")
        if (path / OF_A_RUN).is_file():
            path = path / OF_A_RUN
        if path.is_dir() or path.is_char_device():  # /dev/zero has no end
            what = "folder" if path.is_dir() else "device"
            raise TimelineError(
                f"{shown(str(path), 300)} is a {what} and no file. Next: name the file that the trace was written to."
            )
        with reading("open", path), path.open("rb") as file:
            begins = file.read(6)
        if begins[:4] == b"PAR1":
            return cls.from_parquet(path)
        # protobuf: field 1, of 128 bytes and more, so a length that goes on; no text has such a second character
        if begins[:1] == b"\n" and begins[1:2] >= b"\x80":
            raise TimelineError(
                f"{shown(str(path), 300)} is in Perfetto's protobuf, which is not read here. Next: open it at "
                "ui.perfetto.dev, or convert it with Perfetto's `traceconv json`."
            )
        return cls.from_chrome(path)

    @classmethod
    def _of_ranks(cls, paths: Sequence[str | Path]) -> Self:

        if not paths:
            raise TimelineError("open([]): no file. Next: open(sorted(folder.glob('*.pt.trace.json'))).")
        with ExitStack() as reads:
            files = [reads.enter_context(reading("open", path)) for path in paths]
            devices, batches, arrows = chrome_import.read_ranks(files)
        timeline = cls(devices)
        for batch in batches:
            timeline.extend(batch)
        timeline.foreign_arrows = arrows
        return timeline

    @classmethod
    def from_parquet(cls, path: str | Path) -> Self:
        """A timeline equal to the one that `to_parquet` wrote. Raises `TimelineError` for another file."""
        with reading("from_parquet", path) as source:
            return cls._of(*parquet.read_parquet(source))

    @classmethod
    def _of(cls, devices: list[str], content: dict[str, Any]) -> Self:
        timeline = cls(devices)
        timeline._restore(**content)
        return timeline

    @classmethod
    def from_chrome(cls, path: str | Path) -> Self:
        """Chrome trace JSON, also gzipped, or one event a line. Of torch's profiler, Ray, RLinf's tracer, ours.

        Arrows of other tools, from any span to any other one, are left out; ``foreign_arrows`` says how many.
        Raises `TimelineError` for a file that holds no trace.
        """
        with reading("from_chrome", path) as source:
            return cls._of(*chrome_import.read_chrome(source))

    def to_svg(
        self, path: str | Path | None = None, width: int = 960, *, lanes: str = "device", theme: str = "auto"
    ) -> str:
        """The static picture as SVG text; also written to ``path`` if there is one.

        ``lanes``: "device" or "worker" (a lane for each rank); ``theme``: "light" or "dark" for a paper or slides,
        "auto" for a page.
        """
        text = to_svg(self._scene(width, lanes), theme)
        if path is not None:
            with writing("to_svg", path) as target:
                target.write_text(text, encoding="utf-8")
        return text

    def to_png(
        self, path: str | Path, width: int = 960, *, lanes: str = "device", theme: str = "light", scale: float = 3.0
    ) -> Path:
        """The static picture as PNG, ``width * scale`` pixels wide; arguments as of `to_svg`. Returns the path."""
        from rlinf_lab.timeline.draw.png import to_png

        with writing("to_png", path) as target:
            to_png(self._scene(width, lanes), target, theme, scale)
        return Path(path)

    def _scene(self, width: int, lanes: str) -> Scene:

        if isinstance(width, bool) or not isinstance(width, int) or not 100 <= width <= 20_000:
            raise TimelineError(f"A picture of width={shown(width)}: CSS pixels, from 100 to 20,000. Next: width=960.")
        return scene(self.snapshot(), self.accounting(), width, lanes)

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:

        frozen = self.snapshot()
        plain, drawn = repr(frozen), frozen._scene(960, "device")
        picture = shown_svg(drawn)
        html = f"<div>{shown_html(drawn, picture)}<div><small>{escape(plain)}</small></div></div>"
        return {"text/plain": plain, "text/html": html, "image/svg+xml": picture}

    def __repr__(self) -> str:
        if not self._is_snapshot:
            return repr(self.snapshot())  # one moment of a run that goes on
        devices = len(self.devices)
        text = (
            f"Timeline: {devices} device{'s' * (devices != 1)}, {len(self):,} span{'s' * (len(self) != 1)}, "
            f"{seconds_shown(self.elapsed_ns / 1e9)}"
        )
        if self.elapsed_ns > FARTHEST_NS:
            text += ", which is of no clock: no device time"
        elif devices and self.elapsed_ns:
            accounting = self.accounting()
            busy, by_cause = shares(accounting)
            text += f", busy {100 * busy:.1f} %"
            parts = [f"{cause} {100 * share:.1f} %" for cause, share in by_cause if share >= 0.0005]
            text += f", bubbles: {', '.join(parts)}" if parts else "" if by_cause else ", no bubbles"
        if self.clock_errors:
            text += f", clocks of other nodes aligned to ± {max(self.clock_errors.values()) / 1e3:,.0f} µs"
        if self.clock_jumps:
            text += f", clocks that JUMPED: {', '.join(self.clock_jumps)}"
        text += (
            f", {self.foreign_arrows:,} arrow{'s' * (self.foreign_arrows != 1)} of that tool left out"
            if self.foreign_arrows
            else ""
        )
        text += f", {self.dropped:,} spans DROPPED" if self.dropped else ""
        return text + (f", {self.dropped_samples:,} counter samples DROPPED" if self.dropped_samples else "")
