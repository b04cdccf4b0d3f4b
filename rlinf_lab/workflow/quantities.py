"""What may be logged, and what is said of samples. Numbers have names that the run does not use itself."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf_lab.errors import WorkflowError, said, shown

#: Columns of the run's own in every table of metrics.
RESERVED = ("iteration", "seconds")
SAMPLE_COLUMNS = ("id", "worker", "rank", "iteration", "start_ns", "end_ns")
"""the run's own"""
_OWN, _PLAIN = frozenset(SAMPLE_COLUMNS), frozenset((int, float, bool, str))
LONGEST_TEXT = 400
"""characters of a sample's text that are kept"""


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
    return float(value) if isinstance(value, (float, numbers.Real)) else None  # asking the abstract class takes long


def logged(who: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """What ``who`` logs, as floats. Raises `WorkflowError` for a reserved name and for what is no number."""
    return {refuse_reserved(who, name): _required(who, name, value) for name, value in metrics.items()}


def returned(who: str, result: Any) -> dict[str, float]:
    """The numbers among what a loop returned. They are the value itself (as ``result``), or those of its dict."""
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


Plain = float | bool | str


@dataclass(frozen=True)
class SampleFields:
    """What is said of samples, by their ids; see `SampleLog.log`."""

    ids: tuple[str, ...]
    fields: dict[str, Plain]
    """of all of them"""
    columns: dict[str, list[Plain]] = field(default_factory=dict)
    """of each"""
    makes_rows: bool = True
    """False: says something only of those that somebody else tells of"""

    @classmethod
    def of(cls, who: str, ids: tuple[str, ...], fields: Mapping[str, Any], makes_rows: bool = True) -> SampleFields:
        """Checked, and texts cut at `LONGEST_TEXT`. A list has one value for each id. Raises `WorkflowError` for what
        is no number, text or bool.
        """
        for one in ids:
            if not isinstance(one, str):
                raise WorkflowError(
                    f"{who}: sample_log.log({shown(one)}): an id is a text. Next: sample_log.log('7', reward=1.0)."
                )
        columns = {name: value for name, value in fields.items() if type(value) is list}
        for name, values in columns.items():
            if len(values) != len(ids):
                raise WorkflowError(
                    f"{who}: sample_log.log({name}=...) has {len(values)} values for {len(ids)} samples. Next: one for "
                    "each id, or one for all."
                )
        shared = {name: value for name, value in fields.items() if name not in columns}
        plain = _plain(who, tuple(shared), list(shared.values()))
        return cls(
            ids,
            dict(zip(shared, plain, strict=True)),
            {name: _plain(who, (name,), values) for name, values in columns.items()},
            makes_rows,
        )

    def part(self, places: Sequence[int]) -> SampleFields:
        """The same of some of the samples, by their places in ``ids``."""
        columns = {name: [values[i] for i in places] for name, values in self.columns.items()}
        return SampleFields(tuple(self.ids[i] for i in places), dict(self.fields), columns, self.makes_rows)


def _plain(who: str, names: Sequence[str], values: list[Any]) -> list[Plain]:
    """``values`` under ``names``, or all of them under the only name."""
    if not _PLAIN.issuperset(map(type, values)) or not _OWN.isdisjoint(names):
        values = [_field(who, names[i % len(names)], value) for i, value in enumerate(values)]
    return [
        value[: LONGEST_TEXT - 1] + "…" if type(value) is str and len(value) > LONGEST_TEXT else value
        for value in values
    ]


def _field(who: str, name: str, value: Any) -> Plain:
    if name in SAMPLE_COLUMNS:
        raise WorkflowError(
            f"{who}: sample_log.log({name}=...) is a column of the run's own. Next: another name, such as 'my_{name}'."
        )
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    number = as_number(value)
    if number is None:
        raise WorkflowError(
            f"{who}: sample_log.log({name}={shown(value)}) is no number, text or bool. Next: a number or a text of it."
        )
    return number


class _Context(Protocol):
    def begin_sample(self, id: str) -> None: ...
    def end_sample(self, sample: SampleFields, label: str) -> None: ...
    def log_sample(self, sample: SampleFields) -> None: ...


class SampleLog:
    """Of one worker rank; `Worker.sample_log`."""

    def __init__(self, who: str, context: _Context) -> None:
        self._who, self._context = who, context

    def begin(self, id: str) -> None:
        """Work on this sample begins; a second time nothing happens. It may run beside others, and across calls."""
        self._context.begin_sample(id)

    def end(self, ids: str | Sequence[str], label: str = "sample", **fields: Plain | list[Plain]) -> None:
        """Work on one or several samples is over. This logs as `log` does, and draws a bar named ``label`` since
        `begin`, as a label of the timeline.

        Of each rank up to sixteen bars lie side by side, beside those of the last four that run: the long tail.
        """
        every = (ids,) if isinstance(ids, str) else tuple(ids)
        self._context.end_sample(SampleFields.of(self._who, every, fields), label)

    def log(self, *ids: str, **fields: Plain | list[Plain]) -> None:
        """Log numbers, bools and texts about samples, in the run's table ``samples``. Of a text, 400 characters are
        kept.

        A list has one value for each id: together they cost a fraction of what they cost one by one. One row an id,
        whoever speaks of it and when; what is said later wins. Raises `WorkflowError` for other values.
        """
        self._context.log_sample(SampleFields.of(self._who, ids, fields))

    def amend(self, *ids: str, **fields: Plain | list[Plain]) -> None:
        """Log as `log` does, about samples that others log sooner or later. An id that nobody logs gets no row."""
        self._context.log_sample(SampleFields.of(self._who, ids, fields, makes_rows=False))

    def __repr__(self) -> str:
        return f"SampleLog({self._who})"
