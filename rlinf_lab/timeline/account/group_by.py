"""What tables are grouped by: one column's name, or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlinf_lab.errors import TimelineError, UnknownNameError, shown


def grouped_by(who: str, what: str, by: object, columns: Sequence[str]) -> list[str]:
    """The columns that ``by`` names, in its order; ``who`` asks, ``what`` is grouped.

    Raises `UnknownNameError` for a name that is none of ``columns``, `TimelineError` for no name, one that comes twice,
    or what is no name at all.
    """
    step = f"Next: {who}(by={columns[0]!r}), or a list of {', '.join(columns)}."
    if isinstance(by, bytes) or not isinstance(by, Iterable):
        raise TimelineError(
            f"{who}(by={shown(by)}): the name of a column to group {what} by, or a list of names. {step}"
        )
    keys = [by] if isinstance(by, str) else list(by)
    for key in keys:
        if not isinstance(key, str) or key not in columns:
            raise UnknownNameError.of(f"column to group {what} by", key, columns)
    if not keys or len(set(keys)) < len(keys):
        raise TimelineError(f"{who}(by={shown(by)}): {'a name comes twice' if keys else 'no name of a column'}. {step}")
    return keys
