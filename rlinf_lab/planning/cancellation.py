"""Long searches and forecasts end early when nobody waits for them any more. Between two steps of theirs they look
whether they are wanted.

>>> with as_long_as(lambda: newest == mine):
...     question.answer(profile, simulate=True)  # raises `Abandoned` a few milliseconds after ``newest`` has changed

What they look at belongs to the context (thread) that began them; without it they go on to their end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WANTED: ContextVar[Callable[[], bool] | None] = ContextVar("wanted", default=None)


class Abandoned(BaseException):
    """Nobody waits for this any more. No error: like ``asyncio.CancelledError`` it passes whoever catches errors."""


@contextmanager
def as_long_as(wanted: Callable[[], bool]) -> Iterator[None]:
    """What is searched or simulated inside goes on while ``wanted()`` is true. It is called thousands of times a
    second.
    """
    token = _WANTED.set(wanted)
    try:
        yield
    finally:
        _WANTED.reset(token)


def wanted_now() -> Callable[[], bool] | None:
    """For inner loops, which ask it themselves; None: to the end."""
    return _WANTED.get()


def check() -> None:
    """Raises `Abandoned` when nobody wants the result any more."""
    wanted = _WANTED.get()
    if wanted is not None and not wanted():
        raise Abandoned
