"""A timeline's content as rows and frames, and how two timelines differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.record.store import FAILED, SpanStore

if TYPE_CHECKING:
    import pandas as pd

KIND_LABELS = [kind.name.lower() for kind in SpanKind]


def rows_of(store: SpanStore, chosen: NDArray[np.bool_] | slice = slice(None)) -> list[Span]:
    """Every span as an object, by start, end and track. ``chosen`` [spans]: only those for which it is true. For tests
    and small timelines: 1 µs and 200 bytes each.
    """
    spans, tracks, names = store.spans[chosen], store.tracks, [*store.names, ""]
    order = np.lexsort((spans["track"], spans["end"], spans["start"]))
    return [
        Span(tracks[track], SpanKind(kind), names[name], start, end, iteration, items, nbytes, names[channel], flow)
        for start, end, nbytes, flow, track, name, channel, iteration, items, kind in spans[order].tolist()
    ]


def to_pandas(store: SpanStore) -> pd.DataFrame:
    """One row per span, in order of arrival; texts are categories. ``devices`` joins several names with a comma."""
    import pandas as pd

    spans, tracks, names = store.spans, store.tracks, store.names

    def of_track(labels: list[str]) -> pd.Categorical:
        categories = list(dict.fromkeys(labels))
        codes = np.array([categories.index(label) for label in labels] or [0], np.int32)
        return pd.Categorical.from_codes(codes[spans["track"]], pd.Index(categories, dtype=object))

    def text(field: str) -> pd.Categorical:
        return pd.Categorical.from_codes(spans[field], pd.Index(names, dtype=object))

    return pd.DataFrame(
        {
            "worker": of_track([t.worker for t in tracks]),
            "rank": np.array([t.rank for t in tracks] or [0], np.int64)[spans["track"]],
            "devices": of_track([",".join(t.devices) for t in tracks]),
            "host": of_track([t.host for t in tracks]),
            "kind": pd.Categorical.from_codes(spans["kind"], pd.Index(KIND_LABELS)),
            "name": text("name"),
            "start_ns": spans["start"].copy(),
            "end_ns": spans["end"].copy(),
            "seconds": (spans["end"] - spans["start"]) / 1e9,
            "iteration": spans["iteration"].copy(),
            "items": spans["items"].copy(),
            "nbytes": spans["nbytes"].copy(),
            "channel": text("channel"),
            "flow": spans["flow"].copy(),
        }
    )


def counters(store: SpanStore) -> pd.DataFrame:
    """One row per counter sample: name, time_ns, value."""
    import pandas as pd

    samples = store.counter_samples
    return pd.DataFrame(
        {
            "name": pd.Categorical.from_codes(samples["name"], pd.Index(store.names, dtype=object)),
            "time_ns": samples["time"].copy(),
            "value": samples["value"].copy(),
        }
    )


def iterations(store: SpanStore) -> pd.DataFrame:
    """One row per finished iteration: iteration, start_ns, end_ns, seconds, failed. Where iterations overlap, seconds
    from the end of those before.
    """
    import pandas as pd

    marks = store.marks()
    over = np.maximum.accumulate(marks["end"])  # when it and all before it had ended
    begins = np.maximum(marks["start"], np.append(marks["start"][:1], over[:-1]))
    return pd.DataFrame(
        {
            "iteration": marks["iteration"].copy(),
            "start_ns": marks["start"].copy(),
            "end_ns": marks["end"].copy(),
            "seconds": np.maximum(marks["end"] - begins, 0) / 1e9,
            "failed": _failed(store, marks),
        }
    )


def whole_iterations(store: SpanStore) -> set[int] | None:
    """Those that came to their end, and of which everything is there. None where nothing says so (traces without
    marks). The others hold a part of their work: they are going on, or failed, or what other hosts recorded of them is
    still to come."""
    marks = store.marks()
    return set(marks["iteration"][~_failed(store, marks)].tolist()) - store.arriving if len(marks) else None


def _failed(store: SpanStore, marks: NDArray) -> NDArray[np.bool_]:
    return marks["channel"] == (store.names.index(FAILED) if FAILED in store.names else -2)


@dataclass(frozen=True)
class Standing:
    """Iterations that are not whole. These are ``failed`` ones (or given up because another one did), ``open`` ones, of
    which there are spans, but no mark, and those that have ended with spans still ``arriving`` from other hosts.
    """

    failed: tuple[int, ...]
    open: tuple[int, ...]
    arriving: tuple[int, ...]

    @classmethod
    def of(cls, store: SpanStore) -> Standing:
        """``store``: a snapshot."""
        marks, held = store.marks(), store.spans["iteration"]
        held = np.unique(held[np.append(True, held[1:] != held[:-1])[: len(held)]])  # mostly one after the other
        ended, failed = marks["iteration"], marks["iteration"][_failed(store, marks)]
        unended, arriving = (
            np.setdiff1d(held[held >= 0], ended),
            np.setdiff1d(np.intersect1d(sorted(store.arriving), ended), failed),
        )
        return cls(*(tuple(np.intersect1d(some, held).astype(int).tolist()) for some in (failed, unended, arriving)))

    @property
    def words(self) -> str:
        """ "" where all that began is whole."""
        failed = (
            f"{_listed(self.failed)} failed or {'was' if len(self.failed) == 1 else 'were'} given up"
            if self.failed
            else ""
        )
        unended = f"{_listed(self.open)} {'has' if len(self.open) == 1 else 'have'} not ended" if self.open else ""
        arriving = f"spans of {_listed(self.arriving)} are still to come" if self.arriving else ""
        return ", ".join(filter(None, [failed, unended, arriving]))


def _listed(numbers: tuple[int, ...]) -> str:
    """ "iteration 4", "iterations 4, 5 and 6", "iterations 4 to 9 (6)"."""
    if len(numbers) == 1:
        return f"iteration {numbers[0]}"
    if len(numbers) > 4:
        return f"{len(numbers)} iterations ({numbers[0]} to {numbers[-1]})"
    return f"iterations {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def diff(ours: SpanStore, theirs: SpanStore, limit: int = 5) -> str:
    """How two timelines differ, first differences first. The empty text when they hold the same spans.

    Compared are worker, rank, devices, kind, name, start, end, iteration, items, channel and flow; not the host, not
    the bytes (a simulation moves none) and not the order in which spans arrived. Equal spans are counted.
    """
    a, b = _comparable(ours), _comparable(theirs)
    lost, extra = a - b, b - a
    if not lost and not extra:
        return ""
    lines = [f"{sum(lost.values())} spans only here, {sum(extra.values())} only in the other, {(a & b).total()} equal:"]
    marked = [(key, "-", n) for key, n in lost.items()] + [(key, "+", n) for key, n in extra.items()]
    marked.sort(key=lambda entry: (entry[0], entry[1]))
    for (start, end, worker, rank, devices, kind, name, *rest), sign, n in marked[: 2 * limit]:
        iteration, items, channel, flow = rest
        on = f" channel {channel!r} flow {flow}" if channel else ""
        lines.append(
            f"{sign} {start}–{end} ns {worker}[{rank}] on {','.join(devices) or 'no device'}: {SpanKind(kind).name}"
            f" {name!r} iteration {iteration} items {items}{on}{f' ({n} times)' if n > 1 else ''}"
        )
    if len(marked) > 2 * limit:
        lines.append(f"… and {len(marked) - 2 * limit} more")
    return "\n".join(lines)


def _comparable(store: SpanStore) -> Counter[tuple]:
    tracks, names = store.tracks, [*store.names, ""]
    return Counter(
        (
            start,
            end,
            (t := tracks[track]).worker,
            t.rank,
            t.devices,
            kind,
            names[name],
            iteration,
            items,
            names[ch],
            flow,
        )
        for start, end, _, flow, track, name, ch, iteration, items, kind in store.spans.tolist()
    )
