"""The events of a file of Chrome trace JSON, whatever is wrong with some.

Plain, gzipped or zipped; an array, an object with ``traceEvents``, or one event a line. Profilers write what is no
JSON: raw control characters, ``inf`` and ``nan`` as they are, quotes that are not escaped (pytorch/kineto 105 and 1459,
google/perfetto 598). Control characters and bare numbers are read as they are meant; an event that cannot be read is
left out, and the ones after it are read. A file that was cut off gives what is before.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from rlinf_lab.errors import TimelineError, shown

Event = dict[str, Any]

_GAP = re.compile(r"[\s,]*")
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BEGINS = ('{"traceEvents"', '{"schemaVersion"', '{"displayTimeUnit"', '{"otherData"', '[{"')
_NEXT_EVENT = re.compile(r"\}\s*,?\s*(\{)")
_BARE = re.compile(r'("(?:[^"\\]|\\.)*")|-?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
_MOST_BYTES = 1 << 33  # of what is in a zip


class Loaded(NamedTuple):
    """What a file holds."""

    events: list[Event]
    other: Event
    """``otherData``: what the file says beside its events"""
    is_cut: bool = False
    """whether its end is missing"""
    odd: tuple[str, ...] = ()
    """of each event that could not be read: its line, and how it begins"""
    rank: int | None = None
    """of the process that was recorded, where a distributed run says it (torch's ``distributedInfo``)"""


def load(path: Path) -> Loaded:
    """What a trace's file holds. Raises `TimelineError` where that is none, or too little to be sure."""
    text = _text_of(path)
    found = _whole(text) or _by_event(text)
    if found is None and text.startswith(_BEGINS):
        raise TimelineError(
            f"{str(path)!r} is a Chrome trace that was cut off, or changed by hand: its {len(text)} characters end "
            f"with {text[-40:]!r}. Next: let the program that writes it end, or copy it again."
        )
    if found is None:
        raise TimelineError(
            f"{str(path)!r} holds no Chrome trace: it begins with {text[:40]!r}."
            " Next: export with torch's prof.export_chrome_trace, `ray timeline` or Timeline.to_perfetto."
        )
    return found


def _text_of(path: Path) -> str:
    data = path.read_bytes()
    if data[:4] == b"PK\x03\x04":
        data = _unzipped(path, data)
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig", errors="replace").strip()


def _unzipped(path: Path, data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
        if len(files) != 1:
            some = ", ".join(repr(info.filename) for info in files[:4])
            raise TimelineError(
                f"{str(path)!r} is a zip of {len(files)} files ({some}); one trace is needed. Next: unpack it, then "
                "Timeline.open([file, file, ...])."
            )
        if files[0].file_size > _MOST_BYTES:
            raise TimelineError(
                f"{str(path)!r} is a zip of {files[0].file_size / 2**30:.0f} GiB of text. Next: unpack it, and cut the "
                "trace."
            )
        return archive.read(files[0])


def _whole(text: str) -> Loaded | None:
    """A file that is JSON, but perhaps for raw control characters."""
    try:
        parsed = json.loads(text, strict=False)
    except ValueError:
        return None
    events = parsed.get("traceEvents") if isinstance(parsed, dict) else parsed
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        return None
    return Loaded(events, _other(parsed), rank=_rank(parsed)) if isinstance(parsed, dict) else Loaded(events, {})


def _other(parsed: Event) -> Event:
    said = parsed.get("otherData")
    return said if isinstance(said, dict) else {}


def _rank(parsed: Event) -> int | None:
    said = parsed.get("distributedInfo")
    rank = said.get("rank") if isinstance(said, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None


def _by_event(text: str) -> Loaded | None:
    """Read event by event, in whatever holds them, or one a line. An odd one is left out, and so is one that was cut
    off. An array may lack its end, and is not cut off for that.
    """
    events_of = _EVENTS.search(text) if text.startswith("{") else None
    if not text.startswith("[") and events_of is None and not _is_event(text, 0):
        return None
    decode, events, odd = json.JSONDecoder(strict=False).raw_decode, list[Event](), list[str]()
    at = events_of.end() if events_of else int(text.startswith("["))
    while (at := _next(text, at)) < len(text) and text[at] != "]":
        try:
            event, at = decode(text, at)
        except ValueError:
            mended, after = _mended(text, at)
            if after is None and mended is None:
                break
            if mended is None:
                odd.append(f"line {text.count(chr(10), 0, at) + 1}: {shown(text[at : at + 80])}")
            else:
                events.append(mended)
            at = len(text) if after is None else after
            continue
        if not isinstance(event, dict):
            return None
        events.append(event)
    is_whole = at >= len(text)
    if not events or not (is_whole or text[at] in "{]"):
        return None
    ended = at < len(text) and text[at] == "]" and (events_of is None or text.endswith("}"))
    head = _head(text[: events_of.start()]) if events_of else {}
    return Loaded(events, _other(head), not ended and (bool(events_of) or not is_whole), tuple(odd), _rank(head))


def _mended(text: str, at: int) -> tuple[Event | None, int | None]:
    """An event that is no JSON, mended, and where the next one begins. Its bare numbers are named as JSON's reader
    names them. None for what is not there.
    """
    begin = at
    while (found := _NEXT_EVENT.search(text, begin)) is not None:
        begin = found.start(1)
        if _is_event(text, begin):
            break
    end = len(text) if found is None else begin
    try:
        event, _ = json.JSONDecoder(strict=False).raw_decode(
            _BARE.sub(lambda m: m[1] or _NUMBERS[m[0].lower()[:4]], text[at:end])
        )
    except (ValueError, KeyError):
        event = None
    return event if isinstance(event, dict) and "ph" in event else None, None if found is None else begin


_NUMBERS = {"inf": "Infinity", "infi": "Infinity", "-inf": "-Infinity", "nan": "NaN", "-nan": "NaN"}


def _is_event(text: str, at: int) -> bool:
    """Whether an event begins there, and not a table within one. It can be read, or begins as one does."""
    try:
        event, _ = json.JSONDecoder(strict=False).raw_decode(text, at)
    except ValueError:
        return re.match(r'\{\s*"ph"', text[at : at + 40]) is not None
    return isinstance(event, dict) and "ph" in event


def _head(before: str) -> Event:
    """What an object says beside its events, where it says so before them. Nothing where that cannot be read."""
    try:
        found = json.loads(before.rstrip().rstrip(",") + "}", strict=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _next(text: str, at: int) -> int:
    """Where the next event begins."""
    gap = _GAP.match(text, at)
    return gap.end() if gap else at
