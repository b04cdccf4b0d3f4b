"""A stretch of all rows that ever came, as a state holds it.

Whoever writes it can tell which rows were written before.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import NDArray


class History(dict[str, NDArray]):
    """Columns of rows, oldest first. ``first``: how many rows had come before the oldest of them."""

    def __init__(self, columns: Mapping[str, NDArray] = {}, first: int = 0) -> None:
        super().__init__(columns)
        self.first = first

    @property
    def count(self) -> int:
        """Of rows."""
        return len(next(iter(self.values()))) if self else 0

    def __reduce__(self) -> tuple[type[History], tuple[dict[str, NDArray], int]]:
        return History, (dict(self), self.first)

    def __repr__(self) -> str:
        return f"History(rows {self.first} to {self.first + self.count}; {', '.join(self)})"
