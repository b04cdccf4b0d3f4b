"""Spans that nobody fetched in time, on disk: Arrow files, each readable alone, so that a crash leaves something to look at.

A file holds the columns of `SPAN_DTYPE` and, as metadata of its schema, all tracks and names its recorder knew.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline.batch import SPAN_DTYPE, SpanArray, SpanBatch
from rlinf_lab.timeline.span import Track

_KEY = b"rlinf_lab.spill"


class Spill:
    """The files of one recorder, first in, first out. False when there are none. Not thread-safe.

    ``folder`` None: one under the system's temporary folder, made when needed and removed with the process (unless it is
    killed). ``problem``: why nothing more can be written, "" while it can. ``unread``: what became of a file that could not be read.
    """

    def __init__(self, source: str, folder: str | Path | None = None) -> None:
        self.problem = self.unread = ""
        self._source = source
        self._folder = None if folder is None else Path(folder)
        self._files: deque[tuple[Path, int]] = deque()
        self._written = 0
        self.lost = 0  # spans in files that could not be read again
        self._removal: weakref.finalize[..., Spill] | None = None

    def write(self, spans: SpanArray, tracks: list[Track], names: list[str]) -> bool:
        """Append a file with these spans. False, with ``problem`` set, when the disk does not take it."""
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="rlinf-lab-spans-"))
                self._removal = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self._source.replace('/', '-')}-{self._written:06}.arrow"
            write_arrow(path, spans, self._source, tracks, names)
        except Exception as error:  # whatever it is: what waits stays in memory, and what comes beyond the limit is counted
            self.problem = f"cannot write spans to {str(self._folder)!r}: {error}"
            return False
        self._files.append((path, len(spans)))
        self._written += 1
        return True

    def fetch(self) -> SpanArray:
        """The spans of the oldest file, which is removed; none, counted in ``lost``, where somebody has removed or damaged it."""
        path, count = self._files.popleft()
        try:
            spans, _ = read_arrow(path)
        except (OSError, TimelineError) as error:
            self.lost += count
            self.unread = f"{count:,} spans that waited in {str(path)!r} are lost: {error}"
            return np.empty(0, SPAN_DTYPE)
        with contextlib.suppress(OSError):
            path.unlink()
        return spans

    def leave(self) -> None:
        """The files are somebody else's: they stay when this is gone."""
        if self._removal is not None:
            self._removal.detach()

    @property
    def files(self) -> int:
        """How many files wait."""
        return len(self._files)

    def __len__(self) -> int:
        """How many spans are on disk."""
        return sum(count for _, count in self._files)

    def __bool__(self) -> bool:
        return bool(self._files)


def write_arrow(path: Path, spans: SpanArray, source: str, tracks: Iterable[Track], names: Iterable[str]) -> None:
    """One Arrow file (IPC, LZ4): a column for each field of `SPAN_DTYPE`."""
    import pyarrow as pa

    about = {"version": 1, "source": source, "tracks": [[t.worker, t.rank, list(t.devices), t.host] for t in tracks], "names": list(names)}
    arrays = {name: pa.array(np.ascontiguousarray(spans[name])) for name in SPAN_DTYPE.names or ()}
    table = pa.table(arrays).replace_schema_metadata({_KEY: json.dumps(about)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)


def read_arrow(path: str | Path) -> tuple[SpanArray, dict[str, Any]]:
    """(spans, what `write_arrow` knew: source, tracks, names). Raises `TimelineError` for another file."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid as error:
        raise TimelineError(f"{str(path)!r} is no Arrow file, or was not written to its end: {error}. Next: leave it out.") from error
    about = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    if about.get("version") != 1:
        raise TimelineError(f"{str(path)!r} holds no spans of a recorder. Next: read it with pyarrow.")
    spans = np.zeros(table.num_rows, SPAN_DTYPE)
    for name in SPAN_DTYPE.names or ():
        spans[name] = table.column(name).to_numpy()
    about["tracks"] = [Track(worker, rank, tuple(devices), host) for worker, rank, devices, host in about["tracks"]]
    return spans, about


def read_folder(folder: str | Path) -> Iterator[SpanBatch]:
    """The files of a folder as batches, each of a source of its own. Raises `TimelineError` where there are none."""
    paths = [Path(folder)] if Path(folder).is_file() else sorted(Path(folder).glob("*.arrow"))
    if not paths:
        raise TimelineError(f"There are no Arrow files in {str(folder)!r}. Next: name the folder that a Recorder's spill= named.")
    for path in paths:
        spans, about = read_arrow(path)
        host = about["source"].split("/")[0]
        yield SpanBatch(host, path.name, 0, spans, tuple(about["tracks"]), tuple(about["names"]))
