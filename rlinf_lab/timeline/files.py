"""Reading and writing files: what goes wrong is said with the file's name and the next step."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf_lab.errors import TimelineError, shown

#: What readers raise for bytes that are not what they should be: also numbers beyond 64 bits, lists in lists without end, sizes beyond all memory.
DAMAGE = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError, struct.error, zlib.error,
)  # fmt: skip


def path_of(who: str, path: object) -> Path:
    """Raises `TimelineError` for what is no path."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TimelineError(f"{who}({shown(path)}): the path of a file. Next: {who}('timeline').")
    if "\0" in str(path):  # no system's file can be called so
        raise TimelineError(f"{who}({shown(path)}): a path has no null character. Next: {who}('timeline').")
    return Path(path)


def holds(question: Callable[[], bool]) -> bool:
    """The answer of ``Path.exists`` or ``Path.is_dir``, which raise for a name that is too long: nothing is called so."""
    try:
        return question()
    except OSError:
        return False


@contextmanager
def writing(who: str, path: object) -> Iterator[Path]:
    """The path to write to. Raises `TimelineError` where it cannot be written."""
    target = path_of(who, path)
    try:
        yield target
    except OSError as error:
        folder = target.parent
        missing = not holds(folder.is_dir) and error.errno != errno.ENAMETOOLONG
        why = f"there is no folder {str(folder)!r}" if missing else "that is a folder" if holds(target.is_dir) else error.strerror or str(error)
        step = f"mkdir -p {str(folder)!r}" if missing else "name a file that can be written"
        raise TimelineError(f"{who}({shown(str(target), 300)}): {why}. Next: {step}.") from error


@contextmanager
def reading(who: str, path: object) -> Iterator[Path]:
    """The path to read from. Raises `TimelineError` where it cannot be read, or what is in it is damaged."""
    source = path_of(who, path)
    try:
        yield source
    except TimelineError:
        raise
    except FileNotFoundError as error:
        raise TimelineError(f"{who}({str(source)!r}): there is no such file. Next: look at {str(source.parent)!r}.") from error
    except DAMAGE as error:
        text = str(error).split("\n", 1)[0][:200]
        raise TimelineError(
            f"{who}({shown(str(source), 300)}): the file is damaged, cut off, or of something else: {type(error).__name__}: {text}."
            " Next: write or export it again."
        ) from error
