"""A few seeds of a property each day, all of them in `make test-all`."""

from __future__ import annotations

import pytest


def sweep(daily: int, every: int, first: int = 0) -> pytest.MarkDecorator:
    """The test is given ``seeds``: so many from the first one, and, marked `slow`, the rest of ``every``."""
    rest = pytest.param(range(first + daily, first + every), marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [range(first, first + daily), rest], ids=str)
