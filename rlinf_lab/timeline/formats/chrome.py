"""Chrome trace JSON: opens at ui.perfetto.dev, in chrome://tracing and in many other tools.

A process for each set of devices of a host, a thread for each worker rank, arrows from puts to gets, counters.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlinf_lab.timeline.critical.flows import arrows
from rlinf_lab.timeline.formats.nesting import nested
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

LEVEL = 4  # of compression: a tenth of the size for a third more time
COUNTERS = "counters"  # the process that holds the counter tracks


def write_chrome(store: SpanStore, path: Path, compressed: bool) -> None:
    """Write the trace. Times are µs (with three decimals, so whole ns) since the timeline's start.

    Labels of lanes are for people; for `Timeline.from_chrome` each lane has its track, too, and ``otherData`` the
    devices, what was dropped, and what is told of clocks. Exact within 25 days: a double, which readers make of a
    time, tells no more ns apart.
    """
    with gzip.open(path, "wt", LEVEL, encoding="utf-8") if compressed else path.open("w", encoding="utf-8") as file:
        other = {
            "start_ns": store.start_ns, "devices": store.devices, "dropped_spans": store.dropped,
            "dropped_samples": store.dropped_samples,
            "clock_errors": store.clock_errors, "clock_jumps": store.clock_jumps,
        }  # fmt: skip
        file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(other) + ',"traceEvents":[\n')
        separator = ""
        for event in _events(store):
            file.write(separator + event)
            separator = ",\n"
        file.write("\n]}\n")


def _events(store: SpanStore) -> Iterator[str]:
    tracks, zero = store.tracks, store.start_ns
    places = [f"{track.host}: {', '.join(track.devices) or 'no device'}" for track in tracks]  # groups of lanes
    labels = list(dict.fromkeys(places))
    pids = [labels.index(place) + 1 for place in places]
    for pid, label in enumerate(labels, 1):
        yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": label}})
        yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})
    order, lanes = nested(store.spans)
    tids = store.spans["track"] + 1  # of each span; further lanes of a track come after all first ones
    tids[order] += lanes * len(tracks)
    for tid in sorted({*range(1, len(tracks) + 1), *np.unique(tids).tolist()}):
        lane, number = divmod(tid - 1, len(tracks))
        track = tracks[number]
        shown = f"{track.worker}[{track.rank}]" + (f" ({lane + 1})" if lane else "")
        name = {"name": shown, "track": track.as_json()}
        yield json.dumps({"ph": "M", "name": "thread_name", "pid": pids[number], "tid": tid, "args": name})
    yield from _spans(store, pids, order, tids)
    yield from _arrows(store, pids, tids)
    texts = [json.dumps(name) for name in store.names]
    pid = len(labels) + 1
    if len(store.counter_samples):
        yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": COUNTERS}})
    for name, time, value in store.counter_samples.tolist():
        # JSON has no number for the others: a gap for viewers, and what it was for `Timeline.from_chrome`.
        args = f'{{"value":{json.dumps(value)}}}' if np.isfinite(value) else f'{{"value":null}},"not_finite":"{value}"'
        yield f'{{"ph":"C","name":{texts[name]},"pid":{pid},"tid":0,"ts":{_us(time - zero)},"args":{args}}}'


def _spans(store: SpanStore, pids: list[int], order: np.ndarray, tids: np.ndarray) -> Iterator[str]:
    spans, zero = store.spans, store.start_ns
    texts = [*(json.dumps(name) for name in store.names), '""']
    kinds = [kind.name.lower() for kind in SpanKind]
    for row, tid in zip(spans[order].tolist(), tids[order].tolist(), strict=True):
        start, end, nbytes, flow, track, name, channel, iteration, items, kind = row
        title = texts[name] if kind in (SpanKind.RUN, SpanKind.LABEL, SpanKind.MARK) else f'"{kinds[kind]}"'
        yield (
            f'{{"ph":"X","name":{title},"cat":"{kinds[kind]}","pid":{pids[track]},"tid":{tid},'
            f'"ts":{_us(start - zero)},"dur":{_us(end - start)},"args":{{"call":{texts[name]},"iteration":{iteration},'
            f'"items":{items},"bytes":{nbytes},"channel":{texts[channel]},"flow":{flow}}}}}'
        )


def _arrows(store: SpanStore, pids: list[int], tids: np.ndarray) -> Iterator[str]:
    spans, zero = store.spans, store.start_ns
    texts = [json.dumps(name) for name in store.names]
    which = arrows(spans)
    puts, gets = (spans[index] for index in which)
    leaving, arriving = (tids[index].tolist() for index in which)
    # The arrow arrives inside the get, not before the put: a get has often waited for long.
    arrival = np.clip(puts["end"], gets["start"], np.maximum(gets["end"] - 1, gets["start"]))
    for number, (put, get, at, on, to) in enumerate(
        zip(puts.tolist(), gets.tolist(), arrival.tolist(), leaving, arriving, strict=True), 1
    ):
        common = f'"name":{texts[put[6]]},"cat":"channel","id":{number}'
        yield f'{{"ph":"s",{common},"pid":{pids[put[4]]},"tid":{on},"ts":{_us(put[0] - zero)}}}'
        yield f'{{"ph":"f","bp":"e",{common},"pid":{pids[get[4]]},"tid":{to},"ts":{_us(at - zero)}}}'


def _us(ns: int) -> str:
    """Nanoseconds as a decimal number of microseconds, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
