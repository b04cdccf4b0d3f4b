"""From JSON to frozen dataclasses, with errors that name the field. The dataclass is the schema: types, bounds, units,
texts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rlinf_lab.errors import ConfigError, RlinfLabError, UnknownNameError, article, shown

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def rule(
    default: Any = dataclasses.MISSING,
    *,
    doc: str = "",
    unit: str = "",
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Collection[str] = (),
) -> Any:
    """A dataclass field with its bounds. They are ``low`` <= value <= ``high``, value > ``above``, one of ``choices``.
    """
    metadata = {"doc": doc, "unit": unit, "low": low, "above": above, "high": high, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata=metadata)


def known(what: str, name: str, names: Iterable[str], where: str) -> None:
    """Raise `UnknownNameError` with the nearest name and the field it stands in."""
    names = list(names)
    if name not in names:
        raise UnknownNameError.of(what, name, names, f"It stands in {where}.")


def listing(names: Collection[str]) -> str:
    return ", ".join(map(str, names)) or "none"


def distinct(what: str, error: type[RlinfLabError]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """For ``json.loads(object_pairs_hook=...)``: refuse a name that is given twice. Raises ``error`` for such an object
    of ``what``: one of the two would count for nothing.
    """

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise error(
                f"The {what} gives {shown(twice)} twice in one object: {listing([shown(n) for n in names[:8]])}. Next: "
                "one of the two."
            )
        return found

    return made


def read(cls: type, data: Any, where: str) -> Any:
    """An instance of ``cls`` from plain values; their types and bounds `check` compares."""
    if not isinstance(data, Mapping):
        names = listing([f.name for f in dataclasses.fields(cls)])
        raise ConfigError(f"{where} is {shown(data)}; it must be an object with the fields {names}. Next: {{...}}.")
    hints, fields = _hints(cls), {f.name: f for f in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            raise UnknownNameError.of("field", key, fields, f"It stands in {where}.")
    values = {}
    for name, f in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], f"{where}.{name}")
        elif f.default is dataclasses.MISSING:
            unit = f" [{f.metadata['unit']}]" if f.metadata.get("unit") else ""
            raise ConfigError(
                f"{where}.{name} is missing: "
                f"{f.metadata.get('doc', '')}{unit}.{_next(hints[name], f.metadata, f'{name!r}: ')}"
            )
    return cls(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """As the type has it, of what JSON writes in another way. What is of no such type stays, and `check` refuses it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(_inner(arguments), value, where)
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = itertools.chain(arguments[:-1], itertools.repeat(arguments[-2 if arguments[-1] is Ellipsis else -1]))
        return tuple(_value(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(kinds, value, strict=False)))
    if origin not in (None, tuple) and isinstance(value, Mapping):  # Mapping[str, X]
        return {str(k): _value(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return read(typing.cast(type, kind), value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _float(value, where)
    # JSON and its schemas know numbers only: 64.0 is a whole one
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def _inner(arguments: tuple[Any, ...]) -> Any:
    """The type of what may be null."""
    return next(a for a in arguments if a is not type(None))


def _example(kinds: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(_such, kinds))}]"


def _such(kind: Any) -> str:
    """A value of a type, for advice."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _such(_inner(arguments))
    if origin is tuple:
        return f"[{_such(arguments[0])}]"
    return {float: "0.5", int: "1", str: "'a name'", bool: "true"}.get(kind, "{...}")


def _nearby(kind: Any, value: Any) -> str:
    """What was meant, perhaps. It is the number in a text, the whole number beside a fraction; else any value of the
    type.
    """
    try:
        meant = float(value) if kind in (int, float) and isinstance(value, (str, float)) else math.nan
    except ValueError:
        meant = math.nan
    if not 0 < meant < 1e15:
        return f"such as {_such(kind)}"
    return f"{max(1, round(meant))}" if kind is int else f"{meant:.12g}"


def _float(value: Any, where: str) -> float:
    """A whole number can be beyond all floats."""
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(
            f"{where} is {shown(value)}; it must be a number below {sys.float_info.max:.1e}. Next: a smaller one."
        ) from None


def check(value: Any, where: str) -> None:
    """Compare every value of a dataclass made of `rule` fields with its type and bounds. Whoever made it."""
    if dataclasses.is_dataclass(value):
        hints = _hints(typing.cast(type, type(value)))
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            _typed(hints[f.name], item, f"{where}.{f.name}")
            if item is not None:
                _bounded(item, f"{where}.{f.name}", f.metadata)
                check(item, f"{where}.{f.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check(item, f"{where}.{key}")
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            check(item, f"{where}[{i}]")


def _typed(kind: Any, value: Any, where: str) -> None:
    """Raise `ConfigError` for a value of another type. What lies deeper is seen when `check` comes there."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            _typed(_inner(arguments), value, where)
    elif origin is tuple:
        if not isinstance(value, tuple):
            such = _such(arguments[0])
            word, advice = ("tuple", f"({such},)") if isinstance(value, list) else ("list", f"[{such}]")
            raise ConfigError(f"{where} is {shown(value)}; it must be a {word}. Next: {advice}.")
        kinds = itertools.repeat(arguments[0]) if arguments[-1] is Ellipsis else arguments
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ConfigError(
                f"{where} is {shown(list(value))}; it must have {len(arguments)} entries. Next: such as "
                f"{_example(arguments)}."
            )
        for i, (one, item) in enumerate(zip(kinds, value, strict=False)):
            _typed(one, item, f"{where}[{i}]")
    elif origin is not None:
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{where} is {shown(value)}; it must be an object, by name. Next: {{'a name': {_such(arguments[1])}}}."
            )
        for key, item in value.items():
            if not isinstance(key, str) or not key:
                raise ConfigError(
                    f"{where} has the name {shown(key)}; names are texts of at least one letter. Next: another name."
                )
            _writable(key, f"a name in {where}")
            _typed(arguments[1], item, f"{where}.{key}")
    elif dataclasses.is_dataclass(kind):
        if not isinstance(value, typing.cast(type, kind)):
            raise ConfigError(
                f"{where} is {shown(value)}; it must be {article(getattr(kind, '__name__', str(kind)))}. Next: "
                f"{getattr(kind, '__name__', kind)}(...)."
            )
    else:
        of = {int: numbers.Integral, float: numbers.Real}.get(kind, kind)
        if not isinstance(value, of) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"{where} is {shown(value)}; it must be {_NAMES[kind]}. Next: {_nearby(kind, value)}.")
        if kind is float and not math.isfinite(_float(value, where)):
            raise ConfigError(f"{where} is {value}; it must be finite. Next: such as {_such(kind)}.")
        if kind is str:
            _writable(value, where)


def _writable(text: str, where: str) -> None:
    """Half of a surrogate pair is no character: no file and no terminal takes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{where} is {shown(text)}, whose character {error.start} is no character. Next: write it in full, or "
            "leave it out."
        ) from None


def _bounded(value: Any, where: str, bounds: Mapping[str, Any]) -> None:
    unit = f" {bounds['unit']}" if bounds.get("unit") else ""
    limits = []
    if bounds.get("low") is not None and value < bounds["low"]:
        limits.append(f"at least {bounds['low']:g}{unit}")
    if bounds.get("above") is not None and value <= bounds["above"]:
        limits.append(f"above {bounds['above']:g}{unit}")
    if bounds.get("high") is not None and value > bounds["high"]:
        limits.append(f"at most {bounds['high']:g}{unit}")
    if limits:
        number = f"{value:g}" if isinstance(value, float) else shown(value)
        raise ConfigError(f"{where} is {number}{unit}; it must be {limits[0]}. Next: {nearest(value, bounds)}.")
    if bounds.get("choices") and value not in bounds["choices"]:
        raise UnknownNameError.of("value", value, bounds["choices"], f"It stands in {where}.")


def nearest(value: float, bounds: Mapping[str, Any]) -> str:
    """A number within the bounds of a field. It loses a sign that was not meant, or is the bound."""
    low, above, high = bounds.get("low"), bounds.get("above"), bounds.get("high")
    least = low if low is not None else above + 1 if above is not None else -math.inf
    good = [n for n in (-value, least) if n >= least and (high is None or n <= high)]
    return f"{high if high is not None and value > high else good[0]:.12g}"


def _next(kind: Any, bounds: Mapping[str, Any], before: str) -> str:
    """A sentence with a value that a field may have."""
    return f" Next: {before}{nearest(-1, bounds) if kind in (int, float) else _such(kind)}."


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


# --- the same as JSON schema -------------------------------------------------------------------------------
_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


def schema(cls: type) -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of a dataclass that is made of `rule` fields."""
    hints = _hints(cls)
    properties = {}
    for f in dataclasses.fields(cls):
        entry = _schema_of(hints[f.name])
        unit = f" [{f.metadata['unit']}]" if f.metadata.get("unit") else ""
        entry["description"] = f.metadata.get("doc", "") + unit
        for ours, theirs in (("low", "minimum"), ("above", "exclusiveMinimum"), ("high", "maximum")):
            if f.metadata.get(ours) is not None:
                entry[theirs] = f.metadata[ours]
        if f.metadata.get("choices"):
            entry["enum"] = list(f.metadata["choices"])
        properties[f.name] = entry
    required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema_of(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _schema_of(_inner(arguments))
        return {**inner, "type": [inner["type"], "null"]}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": _schema_of(arguments[0])}
        return {
            "type": "array",
            "prefixItems": [_schema_of(a) for a in arguments],
            "minItems": len(arguments),
            "maxItems": len(arguments),
        }
    if origin is not None:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    if dataclasses.is_dataclass(kind):
        return schema(typing.cast(type, kind))
    return {"type": _JSON[kind]}
