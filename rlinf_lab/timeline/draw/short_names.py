"""Names that fit into a column of a terminal: a GPU's kernels are called by hundreds of characters, and any name may
hold a line break.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, get_character_cell_size

_HEAD, _BEFORE = 16, 8  # columns that are kept of the beginning, and before what tells names apart


def narrow(names: Sequence[str], most: int = 56) -> list[str]:
    """The names, each on one line of ``most`` columns of a terminal. By their beginning and end; where these do not
    tell two apart, by what does, or by a number.
    """
    plain = [_on_a_line(name) for name in names]
    cut = {name: _middle(name, most) for name in plain}
    for ordered in _alike(cut):
        cut |= {
            name: _around(name, max(_common(name, other) for other in _beside(ordered, i)), most)
            for i, name in enumerate(ordered)
        }
    for ordered in _alike(cut):  # of several that differ here and there
        for number, name in enumerate(ordered, 1):
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
    """What no terminal prints as it is (line breaks, escapes that colour or erase) as Python writes it."""
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


def _beside(ordered: Sequence[str], i: int) -> list[str]:
    """Of sorted names those beside one: no other begins with more of it."""
    return [*ordered[max(0, i - 1) : i], *ordered[i + 1 : i + 2]]
