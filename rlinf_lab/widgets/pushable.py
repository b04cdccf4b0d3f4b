"""What a dashboard can be told. Anything else is refused where it is pushed, for a page cannot say whose mistake it is.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.timeline import Timeline
from rlinf_lab.workflow.quantities import plain

STATE_FIELDS = (
    "state",
    "iteration",
    "iterations",
    "elapsed_seconds",
    "eta_seconds",
    "message",
    "standstill",
    "waits",
    "load_note",
    "plan_note",
)
_KINDS = {
    "state": str, "message": str, "load_note": str, "plan_note": str, "iteration": Integral, "iterations": Integral,
    "elapsed_seconds": Real, "eta_seconds": Real,
}  # fmt: skip
_USUAL = {str: str, Integral: int, Real: float}
_OPTIONAL = ("iterations", "elapsed_seconds", "eta_seconds")
# what None says of them
_NOTHING: dict[str, Any] = {"message": "", "load_note": "", "plan_note": "", "standstill": [], "waits": {}}
# nearly all values are of these: what they are is asked before what they are like
_AS_IT_IS = frozenset({str, int, float, bool, type(None), list, dict})
_NUMBER, _SIMPLE, _TABLE = (float, int, Real), (str, float, int, Real, type(None)), (dict, Mapping)
_NAMED = {str: "a text", Integral: "a whole number", Real: "a number"}


def tidy(value: Any) -> Any:
    """A number of torch, numpy or JAX without dimensions as Python's. A decimal one is a float, pandas' NA is None;
    anything else is as it was.
    """
    if type(value) in _AS_IT_IS:
        return value
    value = plain(value)
    if isinstance(value, Decimal):
        return float(value)
    pandas = sys.modules.get("pandas")  # who has not loaded it has none of its values
    return None if pandas is not None and value is getattr(pandas, "NA", pandas) else value


def tidy_state(state: Any) -> Any:
    """Fields of a state with `tidy` values. Whole numbers are made whole again (a table has 3.0); None is an empty text
    or list where one is meant.
    """
    if not isinstance(state, _TABLE):
        return state
    told = {name: _whole(value) if _KINDS.get(name) is Integral else tidy(value) for name, value in state.items()}
    told |= {name: None for name in _OPTIONAL if isinstance(told.get(name), float) and not math.isfinite(told[name])}
    told |= {name: nothing for name, nothing in _NOTHING.items() if name in told and told[name] is None}
    lines = told.get("standstill", [])
    if type(lines) is list:
        return told
    return (
        told | {"standstill": list(lines)}
        if isinstance(lines, Iterable) and not isinstance(lines, str | list)
        else told
    )


def tidy_row(row: Any) -> Any:
    """A row of metrics with `tidy` values, its iteration a whole number."""
    return (
        {key: _whole(value) if key == "iteration" else tidy(value) for key, value in row.items()}
        if isinstance(row, _TABLE)
        else row
    )


def _whole(value: Any) -> Any:
    value = tidy(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_config(title: object, plan: object, devices: object, iterations: object, charts: object) -> None:
    """Raises `ConfigError` for arguments of `Dashboard` that make no sense."""
    for name, text in (("title", title), ("plan", plan)):
        if not isinstance(text, str):
            raise ConfigError(f"Dashboard({name}={shown(text)}): a text. Next: {name}='mine'.")
    for name, texts, example in (("devices", devices, "['cpu:0']"), ("charts", charts, "('loss',)")):
        if (
            isinstance(texts, str)
            or not isinstance(texts, Iterable)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise ConfigError(f"Dashboard({name}={shown(texts)}): names. Next: {name}={example}.")
    if iterations is not None and (
        isinstance(iterations, bool) or not isinstance(iterations, Integral) or iterations < 0
    ):
        raise ConfigError(
            f"Dashboard(iterations={shown(iterations)}): how many there will be. Next: iterations=50, or None."
        )


def check_push(
    state: object, rows: list[Any], timeline: object, counters: object, frame: object, now_ns: object
) -> None:
    """Raises `ConfigError` for what `Dashboard.push` cannot show. `UnknownNameError` for a field of the state that
    there is not.
    """
    if state is not None:
        _check_state(state)
    for row in rows:
        if not isinstance(row, _TABLE) or not isinstance(row.get("iteration"), (int, Integral)):
            raise ConfigError(
                f"push(metrics=[{shown(row)}, ...]): rows with their iteration. Next: metrics=[{{'iteration': 0, "
                f"'loss': 0.5}}]."
            )
        for key, value in row.items():
            if not isinstance(key, str) or not _holds(value):
                raise ConfigError(
                    f"push(metrics=[{{{shown(key)}: {shown(value)}}}, ...]): a name and one value. Next: "
                    f"{{'iteration': 0, 'loss': 0.5}}."
                )
    if timeline is not None and not isinstance(timeline, Timeline):
        raise ConfigError(f"push(timeline={shown(timeline)}): a Timeline. Next: timeline=run.timeline.")
    if counters is not None and not (
        isinstance(counters, _TABLE) and all(value is None or isinstance(value, _NUMBER) for value in counters.values())
    ):
        raise ConfigError(
            f"push(counters={shown(counters)}): utilisation from 0 to 1 by device. Next: counters={{'cpu:0': 0.5}}."
        )
    if frame is not None and not isinstance(frame, bytes | bytearray | memoryview):
        raise ConfigError(
            f"push(frame={shown(frame)}): the bytes of a PNG or JPEG file. Next: frame=path.read_bytes()."
        )
    if now_ns is not None and not isinstance(now_ns, (int, Integral)):
        raise ConfigError(
            f"push(now_ns={shown(now_ns)}): whole ns of the timeline's clock. Next: now_ns=time.monotonic_ns()."
        )


def _check_state(state: object) -> None:
    if not isinstance(state, _TABLE):
        raise ConfigError(
            f"push({shown(state)}): fields of a run's state. Next: push({{'state': 'running', 'iteration': 3}})."
        )
    for name, value in state.items():
        if name not in STATE_FIELDS:
            raise UnknownNameError.of("field of a run's state", name, STATE_FIELDS)
        kind = _KINDS.get(name)
        if (
            kind is not None
            and type(value) is not _USUAL[kind]
            and not isinstance(value, kind)
            and not (value is None and name in _OPTIONAL)
        ):
            raise ConfigError(
                f"push({{{name!r}: {shown(value)}}}): {_NAMED[kind]}. Next: push({{'state': 'running', 'iteration': "
                f"3}})."
            )
        if name == "standstill" and not (isinstance(value, list) and all(isinstance(line, str) for line in value)):
            raise ConfigError(
                f"push({{{name!r}: {shown(value)}}}): lines. Next: push({{'standstill': ['learner waits for "
                f"things']}})."
            )
        if name == "waits" and not (isinstance(value, _TABLE) and (not value or _holds(value))):
            raise ConfigError(f"push({{{name!r}: {shown(value)}}}): nodes, edges and cycles. Next: leave it out.")


def _holds(value: Any) -> bool:
    """Whether JSON can hold it. If not, each page that connects would get nothing at all any more."""
    if isinstance(value, _SIMPLE):
        return True
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
