"""A replay buffer's rows on disk, each written once.

Segments of equally many rows, beside the states that name them.

    all rows that ever came   ┊ 0 … S │ S … 2S │ 2S … 3S │ 3S … 4S │ 4S …
    the buffer                              ╰──────────────────────────╯
    where they are                          state  segment   segment   state

A segment is named after its first row and its contents, so one that is there need not be written, and a run that went
on from an earlier state never finds another one's rows under the same name. What fills no segment lies in the state
itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.replay.history import History
from rlinf_lab.timeline.record.files import whole

BYTES = 8 * 2**20
"""of a segment, about"""


def rows_of_a_segment(columns: dict[str, NDArray], size: int = BYTES) -> int:
    """How many rows have about ``size`` bytes."""
    return max(1, size // max(1, sum(column.nbytes // max(1, len(column)) for column in columns.values())))


def write(history: History, folder: Path, size: int = BYTES) -> tuple[dict[str, Any], History]:
    """Write what fills segments. Returns what a state must say of them, and the rows that it must hold itself: those
    before, and those after.
    """
    each, first, end = rows_of_a_segment(history, size), history.first, history.first + history.count
    begin, stop = -(-first // each) * each, end // each * each
    if begin >= stop:
        return {"first": first, "before": history.count, "names": []}, history
    folder.mkdir(exist_ok=True)
    names = []
    for at in range(begin, stop, each):
        columns = {
            name: np.ascontiguousarray(column[at - first : at - first + each]) for name, column in history.items()
        }
        name = f"rows-{at:012d}-{_digest(columns)}.safetensors"
        if not (folder / name).exists():
            _save(columns, folder / name)
        names.append(name)
    rest = {name: np.concatenate([column[: begin - first], column[stop - first :]]) for name, column in history.items()}
    return {"first": first, "before": begin - first, "names": names}, History(rest, first)


def read(about: dict[str, Any], rest: dict[str, NDArray], folder: Path) -> History:
    """What `write` was given. `ValueError` for a segment that is missing or another one."""
    from safetensors.numpy import load_file

    parts: list[dict[str, NDArray]] = []
    for name in about["names"]:
        path = folder / Path(name).name
        if not path.exists():
            raise ValueError(f"its rows {path.name} are missing")
        columns = load_file(str(path))
        if _digest(columns) not in path.name:
            raise ValueError(f"its rows {path.name} are damaged")
        parts.append(columns)
    before = about["before"]
    joined = {
        name: np.concatenate([column[:before], *(part[name] for part in parts), column[before:]])
        for name, column in rest.items()
    }
    return History(joined, about["first"])


def forget_others(folder: Path, named: Iterable[str]) -> None:
    """Delete segments that no state names, and what a killed process left."""
    known = set(named)
    for path in folder.glob("*"):
        if path.name not in known and (path.name.startswith("rows-") or path.name.endswith(".part")):
            path.unlink(missing_ok=True)


def _save(columns: dict[str, NDArray], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with whole(path) as part:
        try:
            save_file(columns, part)
        except SafetensorError as error:  # a full disk, in words of its own
            raise OSError(f"{str(path)!r}: {error}") from error


def _digest(columns: dict[str, NDArray]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(columns):
        column = columns[name]
        found.update(f"{name} {column.dtype} {column.shape}".encode())
        found.update(column.data if column.size else b"")
    return found.hexdigest()
