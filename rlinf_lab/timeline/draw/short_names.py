"""Names that fit into a column of a terminal. A GPU's kernels are called by hundreds of characters, and any name may
hold a line break.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, get_character_cell_size

_HEAD, _BEFORE = 16, 8  # columns that are kept of the beginning, and before what tells names apart


def narrow(names: Sequence[str], most: int = 56) -> list[str]:
    """The names, each on one line of ``most`` columns of a terminal. Each is its beginning and end. Several that begin
    and end alike are told apart by what follows the longest beginning that two of them have, or by a number.
    """
    plain = [_on_a_line(name) for name in names]
    cut = {name: _middle(name, most) for name in plain}
    for alike in _alike(cut):
        same = max(itertools.starmap(_common, itertools.pairwise(alike)))
        cut |= {name: _around(name, same, most) for name in alike}
    for alike in _alike(cut):  # of several that differ here and there
        for number, name in enumerate(alike, 1):
            mark = f" #{number}"
            cut[name] = _first(cut[name], most - len(mark)) + mark
    return [cut[name] for name in plain]


def _first(text: str, most: int) -> str:
    """As much of the beginning as ``most`` columns hold."""
    return text[: _fitting(text, most)]


def _last(text: str, most: int) -> str:
    return text[len(text) - _fitting(text[::-1], most) :]


def _fitting(text: str, most: int) -> int:
    """How many characters."""
    ends = itertools.accumulate(map(get_character_cell_size, text))
    return sum(1 for _ in itertools.takewhile(lambda end: end <= most, ends))


def _alike(cut: Mapping[str, str]) -> list[list[str]]:
    """Names that are shown as the same text, each group sorted."""
    groups = defaultdict(list)
    for name, shown in cut.items():
        groups[shown].append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _on_a_line(name: str) -> str:
    """What no terminal prints as it is, as Python writes it. These are line breaks and escapes that colour or erase."""
    return (
        name
        if name.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)
    )


def _middle(name: str, most: int) -> str:
    tail = most // 3
    return name if cell_len(name) <= most else f"{_first(name, most - tail - 1)}…{_last(name, tail)}"


def _around(name: str, place: int, most: int) -> str:
    """The beginning, and what lies around ``place``, where it differs from another."""
    head = _first(name, _HEAD)
    rest = name[max(len(head), place - _BEFORE) :]
    seen = _first(rest, most - _HEAD - 2)
    return f"{head}…{seen}{'…' if len(seen) < len(rest) else ''}"


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
