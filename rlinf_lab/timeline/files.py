"""Reading and writing files: what goes wrong is said with the file's name and the next step."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf_lab.errors import TimelineError, shown


def path_of(who: str, path: object) -> Path:
    """Raises `TimelineError` for what is no path."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TimelineError(f"{who}({shown(path)}): the path of a file. Next: {who}('timeline').")
    return Path(path)


@contextmanager
def writing(who: str, path: object) -> Iterator[Path]:
    """The path to write to. Raises `TimelineError` where it cannot be written."""
    target = path_of(who, path)
    try:
        yield target
    except OSError as error:
        folder = target.parent
        why = f"there is no folder {str(folder)!r}" if not folder.is_dir() else "that is a folder" if target.is_dir() else error.strerror or str(error)
        step = f"mkdir -p {str(folder)!r}" if not folder.is_dir() else "name a file that can be written"
        raise TimelineError(f"{who}({str(target)!r}): {why}. Next: {step}.") from error


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
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, struct.error, zlib.error) as error:
        text = str(error).split("\n", 1)[0][:200]
        raise TimelineError(
            f"{who}({str(source)!r}): the file is damaged, cut off, or of something else: {type(error).__name__}: {text}. Next: write or export it again."
        ) from error
