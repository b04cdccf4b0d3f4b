"""What may be logged: numbers under names that the run does not use itself."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_lab.errors import WorkflowError, said, shown

#: Columns of the run's own in every table of metrics.
RESERVED = ("iteration", "seconds")


@dataclass(frozen=True)
class FailedSample:
    """A sample that could not be worked on, while its run goes on; see `Worker.log_failure`."""

    error: str
    """class and message"""
    sample: str
    """which, in short"""

    @classmethod
    def of(cls, error: BaseException | str, sample: Any) -> FailedSample:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {said(error)}"
        return cls(text, "" if sample is None else sample if isinstance(sample, str) else shown(sample))


def plain(value: Any) -> Any:
    """What an array or tensor without dimensions (a loss) holds; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def as_number(value: Any) -> float | None:
    """A real number, or an array or tensor without dimensions, as a float. None for anything else, `OverflowError`
    beyond a float.
    """
    value = plain(value)
    return float(value) if isinstance(value, numbers.Real) else None


def logged(who: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """What ``who`` logs, as floats. Raises `WorkflowError` for a reserved name and for what is no number."""
    return {refuse_reserved(who, name): _required(who, name, value) for name, value in metrics.items()}


def returned(who: str, result: Any) -> dict[str, float]:
    """The numbers among what a loop returned: the value itself (as ``result``), or those of its dict."""
    if not isinstance(result, dict):
        value = _number(who, "result", result)
        return {} if value is None else {"result": value}
    found = {str(name): _number(who, str(name), value) for name, value in result.items()}
    return {refuse_reserved(who, name): value for name, value in found.items() if value is not None}


def refuse_reserved(who: str, name: str) -> str:
    if name in RESERVED:
        raise WorkflowError(
            f"{who} gives a metric the name {name!r}, which is a column of the run's own. Next: another name, such as "
            f"'my_{name}'."
        )
    return name


def _required(who: str, name: str, value: Any) -> float:
    found = _number(who, name, value)
    if found is None:
        raise WorkflowError(
            f"{who} logs {name}={shown(value)}, which is no number. Next: log a float, an int or a tensor of one value "
            "(`loss.mean()`)."
        )
    return found


def _number(who: str, name: str, value: Any) -> float | None:
    try:
        return as_number(value)
    except OverflowError:
        raise WorkflowError(
            f"{who} gives the metric {name!r} a value beyond the largest float. Next: log its logarithm."
        ) from None
