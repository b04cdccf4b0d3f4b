"""Measurements in rounds. Sessions that are open together work by turns, and give numbers when they have closed.

A machine that others use, too, may be faster in one second than in the next by more than what is measured. So what is
compared lies in the same round, and rounds lie between other measurements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rlinf_lab.errors import PlanError


class Rounds(ABC):
    """``with`` opens the sessions. In it `round`, at least twice, for the first one warms up; the numbers after it,
    when all that was recorded has come.
    """

    def __init__(self) -> None:
        self._rounds = 0  # that were done to their end
        self._is_open = self._is_over = False
        self._sessions_to_close = ExitStack()

    @abstractmethod
    def _open(self, opening: ExitStack) -> None:
        """Open the sessions, each on ``opening``."""

    @abstractmethod
    def _do_round(self) -> None: ...

    def __enter__(self) -> Self:
        with ExitStack() as opening:  # whoever fails closes those before it
            self._open(opening)
            self._sessions_to_close = opening.pop_all()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open, self._is_over = False, True
        self._sessions_to_close.__exit__(kind, error, trace)

    def round(self) -> None:
        """Everything that is compared, once. One that fails does not count. Raises `PlanError` outside of the block,
        and what the workers raise.
        """
        if not self._is_open:
            raise PlanError(
                f"{self!r}: its sessions are not open. Next: round() in the with block of {type(self).__name__}(...)."
            )
        self._do_round()
        self._rounds += 1

    def _refuse_early(self, question: str) -> None:
        """``question``: the method that was called."""
        if not self._is_over:
            raise PlanError(
                f"{self!r} is open: what was recorded is still coming. Next: {question}() after the with block."
            )
        if self._rounds < 2:
            raise PlanError(
                f"{self!r}: the first round warms up, and {self._rounds} were done. Next: round() at least twice."
            )
