"""Settings that say what they are.

The string under each field of a dataclass, in ``help``, in a notebook, in a shell.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import textwrap
from collections.abc import Mapping
from typing import Any, TypeVar

from rlinf_lab.errors import shown

_C = TypeVar("_C", bound=type)


def described(cls: _C) -> _C:
    """Decorator of a dataclass: ``help`` and notebooks tell its fields. Each with its default and meaning."""
    cls.__doc__ = _WithFields(cls.__doc__ or "")  # type: ignore[assignment]
    cls._repr_html_ = _table  # type: ignore[attr-defined]
    return cls


def summary(cls: type[Any]) -> str:
    """What the class itself says, without its fields."""
    written = vars(cls).get("__doc__")
    return inspect.cleandoc(written.text if isinstance(written, _WithFields) else written or "")


_READ: dict[type[Any], Mapping[str, str]] = {}


def field_docs(cls: type[Any]) -> Mapping[str, str]:
    """The string under each field of a dataclass, those of its bases, too."""
    if cls not in _READ:
        _READ[cls] = _read(cls)
    return _READ[cls]


def _read(cls: type[Any]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(part):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        except (OSError, TypeError, SyntaxError):  # made without a file
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def default_of(field: dataclasses.Field[Any]) -> str:
    """In words; "none" where it must be given."""
    if field.default is not dataclasses.MISSING:
        return shown(field.default)
    return shown(field.default_factory()) if field.default_factory is not dataclasses.MISSING else "none"


class _WithFields:
    """A docstring whose fields are read when somebody asks: parsing the source takes some milliseconds."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: Any, owner: type[Any]) -> str:
        docs = field_docs(owner)
        lines = [f"{f.name} ({default_of(f)}): {docs.get(f.name, '')}" for f in dataclasses.fields(owner)]
        wrapped = [textwrap.fill(line, 100, initial_indent="    ", subsequent_indent="        ") for line in lines]
        return "\n".join([summary(owner), "", "Fields (default):", *wrapped])


def _table(config: Any) -> str:
    """A row for each field; what is not the default is bold."""
    docs, rows = field_docs(type(config)), []
    for field in dataclasses.fields(config):
        value, default = shown(getattr(config, field.name)), default_of(field)
        cells = [f"<b>{html.escape(value)}</b>" if value != default else html.escape(value), html.escape(default)]
        told = [f"<code>{field.name}</code>", *cells, html.escape(docs.get(field.name, ""))]
        rows.append("<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in told) + "</tr>")
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("field", "value", "default", "meaning"))
    return f"<div><b>{type(config).__name__}</b><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
