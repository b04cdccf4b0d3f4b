"""Profiles and plans as files of JSON. What goes wrong with a file is said in words, with the files that are there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlinf_lab.errors import RlinfLabError, shown
from rlinf_lab.planning.schema.json_schema import distinct, listing
from rlinf_lab.timeline.record.files import whole


def read_text(path: Any, what: str, error: type[RlinfLabError]) -> str:
    """The text of a file of ``what``: "profile", "plan". Raises ``error``."""
    file = as_path(path, what, error)
    try:
        if file.is_dir() or not file.exists():  # a pipe is as good as a file
            folder = file if file.is_dir() else file.parent
            near = sorted(p.name for p in folder.glob("*.json") if p.is_file())[:5] if folder.is_dir() else []
            advice = "one of these" if near else f"a file that {what}.save(path) wrote"
            raise error(
                f"No {what} at {str(path)!r}{' (a folder)' * file.is_dir()}. JSON files there: {listing(near)}. Next: "
                f"{advice}."
            )
        return file.read_text(encoding="utf-8-sig")  # some editors begin with a mark of the encoding
    except UnicodeDecodeError as problem:
        raise error(
            f"{str(path)!r} is no JSON: byte {problem.start} is no text. Next: a file that {what}.save(path) wrote."
        ) from problem
    except (OSError, ValueError) as problem:
        if isinstance(problem, error):
            raise
        raise error(
            f"The {what} {str(path)!r} cannot be read: {problem}. Next: a file that {what}.save(path) wrote."
        ) from problem


def write_text(path: Any, text: str, what: str, error: type[RlinfLabError]) -> None:
    """All of it or nothing. Raises ``error``."""
    file = as_path(path, what, error)
    try:
        with whole(file) as target:
            target.write_text(text + "\n", encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise error(
            f"The {what} cannot be written to {str(path)!r}: {problem}. Next: a name in a folder that exists."
        ) from problem


def json_in(text: Any, it: str, what: str, error: type[RlinfLabError], advice: str) -> Any:
    """The value of a text of JSON. ``it``: what to call the text, of a ``what``; ``advice``: for what is no JSON."""
    if not isinstance(text, str):
        raise error(
            f"from_json({shown(text)}): JSON of a {what} as text is needed. Next: load(path) reads a file, from_dict a "
            "mapping."
        )
    try:
        # some editors begin with a mark of the encoding
        return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=distinct(what, error))
    except error:
        raise
    except json.JSONDecodeError as problem:
        found = f"{problem.msg} at line {problem.lineno}, column {problem.colno}" if text.strip() else "it is empty"
        raise error(f"{it} is not JSON: {found}. Next: {advice}.") from problem
    except (ValueError, RecursionError) as problem:  # a number of thousands of digits, a thousand brackets
        raise error(f"{it} is not JSON that can be read: {problem}. Next: {what}.to_json() writes one.") from problem


def as_path(path: Any, what: str, error: type[RlinfLabError]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise error(f"{shown(path)} is no path. Next: a text such as '{what}.json'.")
    return Path(path)
