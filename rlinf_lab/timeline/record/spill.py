"""Spans that nobody fetched in time, on disk: Arrow files, each readable alone, so that a crash leaves something to
look at.

A file that has its name is whole; while it is written it is called ``….part``. It holds the columns of `SPAN_DTYPE`
and, as metadata of its schema, all tracks and names its recorder knew, and a checksum of the columns: without it
flipped bits may be read as other numbers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SpanArray, SpanBatch
from rlinf_lab.timeline.record.files import DAMAGE
from rlinf_lab.timeline.record.span import Track

_KEY = b"rlinf_lab.spill"
_PART = ".part"
RETRY_SECONDS = 1.0  # a disk that took nothing is asked again after this long


class Spill:
    """The files of one recorder, first in, first out. False when there are none. Not thread-safe.

    ``folder`` None: one under the system's temporary folder, made when needed and removed with the process (unless it
    is killed). ``problem``: why the last write that failed did, "" before. ``unread``: what became of a file that could
    not be read.
    """

    def __init__(self, source: str, folder: str | Path | None = None) -> None:
        self.problem = self.unread = ""
        self._source = source
        self._folder = None if folder is None else Path(folder)
        self._files: deque[tuple[Path, int]] = deque()
        self._written = 0
        self._again = 0.0  # when to ask the disk again, on the monotonic clock
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
        except (
            Exception
        ) as error:  # whatever it is: what waits stays in memory, and what comes beyond the limit is counted
            self.refuse(f"cannot write spans to {str(self._folder)!r}: {error}")
            return False
        self._again = 0.0
        self._files.append((path, len(spans)))
        self._written += 1
        return True

    def refuse(self, problem: str) -> None:
        """Nothing was written, for that reason: not again at once."""
        self.problem = problem
        self._again = time.monotonic() + RETRY_SECONDS

    @property
    def may_write(self) -> bool:
        """Whether the disk is to be asked: not at once after it took nothing."""
        return not self._again or time.monotonic() >= self._again

    def fetch(self) -> SpanArray:
        """The spans of the oldest file, which is removed. None, counted in ``lost``, where somebody has removed or
        damaged it.
        """
        path, count = self._files.popleft()
        try:
            spans, _ = read_arrow(path)
            if len(spans) != count:
                raise TimelineError(f"it holds {len(spans):,} spans")
        except (TimelineError, *DAMAGE) as error:
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
    """One Arrow file (IPC, LZ4): a column for each field of `SPAN_DTYPE`. It is there when it is whole, or
    not at all.
    """
    import pyarrow as pa

    about = {
        "version": 1,
        "source": source,
        "tracks": [track.as_json() for track in tracks],
        "names": list(names),
    }
    about["crc32"] = _checksum(spans)
    arrays = {name: pa.array(np.ascontiguousarray(spans[name])) for name in SPAN_DTYPE.names or ()}
    table = pa.table(arrays).replace_schema_metadata({_KEY: json.dumps(about)})
    part = path.with_name(path.name + _PART)
    try:
        with (
            pa.OSFile(str(part), "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer,
        ):
            writer.write_table(table)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # it would take the room that is missing
            part.unlink()
        raise


def read_arrow(path: str | Path) -> tuple[SpanArray, dict[str, Any]]:
    """(spans, what `write_arrow` knew: source, tracks, names). Raises `TimelineError` for another file."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    except pa.ArrowException as error:
        raise TimelineError(
            f"{str(path)!r} is no Arrow file, or was not written to its end: {error}. Next: leave it out."
        ) from error
    about = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    if about.get("version") != 1:
        raise TimelineError(f"{str(path)!r} holds no spans of a recorder. Next: read it with pyarrow.")
    spans = np.zeros(table.num_rows, SPAN_DTYPE)
    columns = [(name, table.column(name)) for name in SPAN_DTYPE.names or ()]
    are_ours = all(
        column.type == pa.from_numpy_dtype(SPAN_DTYPE[name]) and not column.null_count for name, column in columns
    )
    if are_ours:
        for name, column in columns:
            spans[name] = column.to_numpy()
    if not are_ours or about.get("crc32", (found := _checksum(spans))) != found:
        raise TimelineError(f"{str(path)!r} is damaged: its spans are not those that were written. Next: leave it out.")
    about["tracks"] = [Track.from_json(said) for said in about["tracks"]]
    return spans, about


def _checksum(spans: SpanArray) -> int:
    """Of the columns, one after the other (CRC-32): not of the padding between fields."""
    found = 0
    for name in SPAN_DTYPE.names or ():
        found = zlib.crc32(spans[name].tobytes(), found)
    return found


def read_folder(folder: str | Path) -> Iterator[SpanBatch]:
    """The files of a folder as batches, each of a source of its own.

    Those that cannot be read are left out, and a warning says how many. Raises `TimelineError` where there are none, or
    only such.
    """
    if Path(folder).is_file():
        yield _as_batch(Path(folder))
        return
    paths, cut = sorted(Path(folder).glob("*.arrow")), len(list(Path(folder).glob(f"*.arrow{_PART}")))
    if not paths:
        parts = f" ({cut} not written to their end)" if cut else ""
        raise TimelineError(
            f"There are no Arrow files in {str(folder)!r}{parts}. Next: name the folder that a Recorder's spill= named."
        )
    problems = []
    for path in paths:
        try:
            batch = _as_batch(path)
        except (TimelineError, *DAMAGE) as error:
            problems.append(
                error
                if isinstance(error, TimelineError)
                else TimelineError(f"{str(path)!r} is damaged: {error}. Next: leave it out.")
            )
            if len(problems) == len(paths):
                raise problems[0] from error
            continue
        yield batch
    if problems or cut:
        first = (
            f" The first: {problems[0]}"
            if problems
            else f" They are called *{_PART}: their processes were killed while writing, or are writing still."
        )
        told = (
            f"{len(problems) + cut} of {len(paths) + cut} files in {str(folder)!r} are cut or damaged: their spans are "
            "missing."
        )
        warnings.warn(told + first, stacklevel=3)


def _as_batch(path: Path) -> SpanBatch:
    spans, about = read_arrow(path)
    return SpanBatch(about["source"].split("/")[0], path.name, 0, spans, tuple(about["tracks"]), tuple(about["names"]))
