"""Device time as the browser reads it. Rows have 24 bytes, little-endian; times are relative to an origin so that a
double is exact.

Spans travel as `rlinf_lab.timeline.formats.packed` lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlinf_lab.timeline.record.span import Cause
from rlinf_lab.timeline.record.store import SpanStore

#: One bubble of a device, 24 bytes: ``device``, ``cause``, ``kind`` (of the wait that explains it, 255: none),
#: ``track`` (who waited, -1: nobody) and ``channel`` (-1: none) are numbers in the tables.
IDLE_WIRE = np.dtype(
    {
        "names": ["start", "dur", "device", "cause", "kind", "track", "channel"],
        "formats": ["<f8", "<f4", "<u2", "u1", "u1", "<i4", "<i4"],
        "offsets": [0, 8, 12, 14, 15, 16, 20],
        "itemsize": 24,
    }
)
#: One sample of a counter, 24 bytes: ``name`` is a number in the tables.
SAMPLE_WIRE = np.dtype(
    {"names": ["time", "value", "name"], "formats": ["<f8", "<f8", "<i4"], "offsets": [0, 8, 16], "itemsize": 24}
)
#: Order of causes on the wire and in every legend.
CAUSES = tuple(c.value for c in Cause)
BUSY = len(CAUSES)


def pack_idle(bubbles: np.ndarray, origin_ns: int, devices: int, from_ns: int, until_ns: int) -> bytes:
    """Bubbles within [from_ns, until_ns), and the busy time between them, as wire rows. Those of an `Accounting` are by
    device and start.

    Busy plus bubbles fill the interval exactly on each of the ``devices``, so busy is what the bubbles leave.
    """
    if until_ns <= from_ns:
        return b""
    own = bubbles[(bubbles["end"] > from_ns) & (bubbles["start"] < until_ns)]
    count, device = len(own), own["device"]
    start, end = np.maximum(own["start"], from_ns), np.minimum(own["end"], until_ns)
    # Of a device a busy time, a bubble, a busy time and so on, to a busy time at the end; those of no length are left
    # out.
    bubble = 2 * np.arange(count) + device + 1
    last = 2 * device.searchsorted(np.arange(1, devices + 1)) + np.arange(devices)
    wire = np.zeros(2 * count + devices, IDLE_WIRE)
    begin, until = np.full(len(wire), from_ns), np.full(len(wire), until_ns)
    begin[bubble], until[bubble], until[bubble - 1] = start, end, start
    after = bubble + 1
    begin[after] = end
    wire["start"], wire["dur"] = begin - origin_ns, until - begin
    wire["track"] = wire["channel"] = -1
    wire["kind"], wire["cause"] = 255, BUSY
    wire["device"] = np.arange(devices).repeat(np.diff(last, prepend=-1))
    for field in ("cause", "track", "channel", "kind"):
        wire[field][bubble] = own[field]  # a kind of -1 wraps to 255
    return wire[until > begin].tobytes()


def pack_samples(samples: np.ndarray, origin_ns: int) -> bytes:
    """Samples of counters as wire rows."""
    wire = np.zeros(len(samples), SAMPLE_WIRE)
    wire["time"], wire["value"], wire["name"] = samples["time"] - origin_ns, samples["value"], samples["name"]
    return wire.tobytes()


def make_tables(origin_ns: int, store: SpanStore) -> Mapping[str, Any]:
    """What the numbers in the rows mean, and how far to trust them. As plain JSON values."""
    return {
        "origin": origin_ns,
        "devices": store.devices,
        "tracks": [[t.worker, t.rank, list(t.devices), t.host] for t in store.tracks],
        "names": store.names,
        "dropped": store.dropped,
        "dropped_samples": store.dropped_samples,
        "clock_errors": store.clock_errors,
        "clock_jumps": store.clock_jumps,
        "foreign_arrows": store.foreign_arrows,
    }
