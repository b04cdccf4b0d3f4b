"""Numbers and names that somebody gives. They are checked where they come in, so that no error of numpy or of the
standard library comes out.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_lab.errors import PlanError, shown
from rlinf_lab.planning.schema.json_schema import known, nearest

MAX_DEVICES = 8192
MAX_STALENESS = 64  # iterations
MAX_MICRO_BATCHES = 8192
MAX_ITERATIONS = 10_000  # of a simulation
_NO_NAMES = (
    "devices is {}; give a number, a number of each kind, or names (of each kind: {{'H': ['cuda:0'], 'R': "
    "['cuda:1']}}). Next: ['cuda:0', 'cuda:1']."
)


def whole(what: str, value: Any, low: int, high: int, why: str = "", of: str = "") -> int:
    """A whole number (``of`` devices) from ``low`` to ``high``. Raises `PlanError` with the nearest one that works."""
    wanted, why = f"a whole number of {of}" if of else "a whole number", f" ({why})" if why else ""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        near = _nearest(value, low, high) if isinstance(value, numbers.Real) and math.isfinite(value) else low
        raise PlanError(f"{what} is {shown(value)}; give {wanted} from {low} to {high}{why}. Next: {near}.")
    found = int(value)
    if not low <= found <= high:
        limit, nearest = (f"at least {low}", low) if found < low else (f"at most {high}", high)
        raise PlanError(f"{what} is {shown(value)}; give {wanted}, {limit}{why}. Next: {nearest}.")
    return found


def number(what: str, value: Any, low: float = 0.0, high: float = math.inf, above: bool = False) -> float:
    """A finite number from ``low`` (``above``: and not ``low`` itself) to ``high``."""
    limits = f"{'above' if above else 'at least'} {low:g}" + (f", at most {high:g}" if math.isfinite(high) else "")
    try:
        found = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        found = math.inf
    if not math.isfinite(found) or not low <= found <= high or (above and found == low):
        near = nearest(-1.0 if math.isnan(found) else found, {"above" if above else "low": low, "high": high})
        raise PlanError(f"{what} is {shown(value)}; give a number, {limits}. Next: {near}.")
    return found


def ranks_by_worker(who: str, value: Any, workers: Sequence[str], most: int, why: str = "") -> dict[str, list[int]]:
    """Numbers of ranks for some workers, ``{"simulator": [1, 2]}``. Raises `PlanError` or `UnknownNameError` naming the
    entry that cannot be.
    """
    if value is not None and not isinstance(value, Mapping):
        raise PlanError(
            f"{who}: ranks is {shown(value)}; for each worker the numbers that it may have. Next: "
            f"ranks={{{workers[0]!r}: [1, 2]}}."
        )
    for worker, counts in (value or {}).items():
        known("worker", worker, workers, "ranks")
        if not _is_list(counts) or not counts:
            raise PlanError(
                f"{who}: ranks[{worker!r}] is {shown(counts)}; the numbers that it may have. Next: "
                f"ranks={{{worker!r}: {[1, 2][:most]}}}."
            )
    return {
        worker: [whole(f"{who}: one of ranks[{worker!r}]", count, 1, most, why) for count in counts]
        for worker, counts in (value or {}).items()
    }


def _nearest(value: Any, low: int, high: int) -> int:
    return int(min(max(round(value), low), high))


def names_and_counts(devices: Any) -> tuple[tuple[str, ...], Any]:
    """Read devices that are given by number or by name, perhaps kind by kind. Returns (names, or none; how many, or how
    many of each kind: not checked).
    """
    if isinstance(devices, Mapping):
        listed = [kind for kind, some in devices.items() if _is_list(some)]
        if listed and len(listed) < len(devices):
            raise PlanError(
                f"devices is {shown(devices)}; give a number of each kind, or names of each kind. Next: "
                f"{{{listed[0]!r}: ['cuda:0'], ...}}."
            )
        names = tuple(itertools.chain.from_iterable(_names(devices[kind]) for kind in listed))
        return names, {kind: len(devices[kind]) for kind in listed} if listed else devices
    if not _is_list(devices):
        return (), devices  # checked by the setting
    names = _names(devices)
    if not names:
        raise PlanError(_NO_NAMES.format(shown(devices)))
    return names, len(names)


def _is_list(some: Any) -> bool:
    return isinstance(some, Sequence) and not isinstance(some, str | bytes)


def _names(given: Sequence[Any]) -> tuple[str, ...]:
    if not all(isinstance(n, str) for n in given):
        raise PlanError(_NO_NAMES.format(shown(given)))
    return tuple(given)
