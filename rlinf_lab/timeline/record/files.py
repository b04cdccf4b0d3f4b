"""Reading and writing files. What goes wrong is said with the file's name and the next step."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlinf_lab.errors import TimelineError, shown

#: What readers raise for bytes that are not what they should be: also numbers beyond 64 bits, lists in lists without
#: end, sizes beyond all memory.
DAMAGE = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError,
    struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def path_of(who: str, path: object) -> Path:
    """Raises `TimelineError` for what is no path."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TimelineError(f"{who}({shown(path)}): the path of a file. Next: {who}('timeline').")
    try:
        Path(path).stat()
    except ValueError as error:  # a null character, half of a character
        raise TimelineError(
            f"{who}({shown(path)}): no file of this system can be called so. Next: {who}('timeline')."
        ) from error
    except OSError:
        pass  # there is none yet, or it may not be looked at: whoever opens it tells
    return Path(path)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what shall be at ``path`` whole or not at all. It is a name beside it, which becomes ``path`` when
    the block ends without an error.

    What was at ``path`` before stays until then, and for good when the block fails or is interrupted. A link stays a
    link, a file keeps its mode, and what is no ordinary file (a pipe, ``/dev/stdout``) is written to as it is. Raises
    `OSError`; a process that is killed leaves a ``.….part``.
    """
    target = Path(os.path.realpath(path))
    there = target.exists()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if there and not target.is_file():
        yield path
        return
    if there and not os.access(target, os.W_OK):  # replacing it asks the folder only
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    part = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        yield part
        if there:
            shutil.copymode(target, part)
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # it would take the room that is missing
            part.unlink()
        raise


@contextmanager
def writing(who: str, path: object) -> Iterator[Path]:
    """Where to write a file, which is there `whole` or not at all. Raises `TimelineError` where it cannot
    be written.
    """
    target = path_of(who, path)
    try:
        with whole(target) as part:
            yield part
    except OSError as error:
        folder = target.parent
        # not Path.is_dir, which raises for a name that is too long
        missing = not os.path.isdir(folder) and error.errno != errno.ENAMETOOLONG  # noqa: PTH112
        why = (
            f"there is no folder {str(folder)!r}"
            if missing
            else "that is a folder"
            if os.path.isdir(target)  # noqa: PTH112
            else error.strerror or str(error)
        )
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
        raise TimelineError(
            f"{who}({str(source)!r}): there is no such file. Next: look at {str(source.parent)!r}."
        ) from error
    except DAMAGE as error:
        text = str(error).split("\n", 1)[0][:200]
        raise TimelineError(
            f"{who}({shown(str(source), 300)}): the file is damaged, cut off, or of something else: "
            f"{type(error).__name__}: {text}."
            " Next: write or export it again."
        ) from error
