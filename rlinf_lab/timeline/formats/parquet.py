"""A timeline as one Parquet file. Pandas, DuckDB or Polars read it as it is; read back it is exact."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline.account.tables import KIND_LABELS, to_pandas
from rlinf_lab.timeline.record.batch import COUNTER_DTYPE, SPAN_DTYPE, SpanArray
from rlinf_lab.timeline.record.span import Track
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"rlinf_lab.timeline"


def to_parquet(store: SpanStore, path: str | Path) -> Path:
    """One row per span (columns of `Timeline.to_pandas` and ``track``). Tracks, names and counters in the metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(to_pandas(store).assign(track=store.spans["track"]), preserve_index=False)
    extra = {
        "version": 1,
        "devices": store.devices,
        "tracks": [track.as_json() for track in store.tracks],
        "names": store.names,
        "dropped": store.dropped,
        "clock_errors": store.clock_errors,
        "dropped_samples": store.dropped_samples,
        "clock_jumps": store.clock_jumps,
        "counters": base64.b64encode(zlib.compress(store.counter_samples.tobytes())).decode(),
    }
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: json.dumps(extra).encode()})
    with Path(path).open("wb") as file:  # by its name pyarrow would take "~" for the home folder
        pq.write_table(table, file, compression="zstd")
    return Path(path)


def read_parquet(path: str | Path) -> tuple[list[str], dict[str, Any]]:
    """(devices, arguments of ``SpanStore._restore``). Raises `TimelineError` for a file that is no timeline."""
    import pyarrow.parquet as pq

    with Path(path).open("rb") as file:
        table = pq.read_table(file)
    extra = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    if extra.get("version") != 1:
        raise TimelineError(
            f"{str(path)!r} is no timeline of this version: its metadata {_KEY.decode()!r} says "
            f"{extra.get('version')!r}."
            " Next: read it with pandas.read_parquet, or write it with Timeline.to_parquet."
        )
    return extra["devices"], {
        "spans": _spans(table, extra["names"]),
        "tracks": [Track.from_json(said) for said in extra["tracks"]],
        "names": extra["names"],
        "counters": np.frombuffer(zlib.decompress(base64.b64decode(extra["counters"])), COUNTER_DTYPE),
        "dropped": extra["dropped"],
        "clock_errors": extra.get("clock_errors"),
        "dropped_samples": extra.get("dropped_samples", 0),
        "clock_jumps": extra.get("clock_jumps"),
    }


def _spans(table: pa.Table, names: list[str]) -> SpanArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    spans = np.zeros(table.num_rows, SPAN_DTYPE)
    columns = {"start": "start_ns", "end": "end_ns"}
    for field in ("start", "end", "nbytes", "flow", "track", "iteration", "items"):
        spans[field] = table.column(columns.get(field, field)).to_numpy()
    for field, labels in (("kind", KIND_LABELS), ("name", names), ("channel", names)):
        codes = pc.index_in(table.column(field).cast(pa.string()), value_set=pa.array(labels, pa.string()))
        spans[field] = codes.fill_null(-1).to_numpy()
    return spans
