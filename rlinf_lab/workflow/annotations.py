"""Which parameters of a worker's method are channels, and which end of them. Their annotations decide."""

from __future__ import annotations

import ast
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.specs import READ, WRITE
from rlinf_lab.workflow.worker import Inbox, Outbox

_ENDS = {Inbox: READ, Outbox: WRITE}


@functools.lru_cache(1024)
def channel_ends(function: Callable[..., Any]) -> Mapping[str, str]:
    """The parameters that are channels: ``"read"`` for an `Inbox`, ``"write"`` for an `Outbox`. Every call asks, so it
    is remembered.

    Text (postponed evaluation) is evaluated where the function was written. Where that fails (a name that only a type
    checker imports) its dotted names decide: the last part must be ``Inbox`` or ``Outbox``.
    """
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        ends = set(_ends(parameter.annotation, scope))
        if len(ends) > 1:
            raise WorkflowError(
                f"{function.__qualname__}: {name!r} is annotated {parameter.annotation!r}, which reads and writes. "
                "Next: one parameter for each end."
            )
        if ends:
            found[name] = ends.pop()
    return types.MappingProxyType(found)


def _ends(annotation: Any, scope: Mapping[str, Any]) -> Iterator[str]:
    if annotation is inspect.Parameter.empty:
        return
    try:
        box = types.SimpleNamespace(__annotations__={"it": annotation})
        hint = typing.get_type_hints(box, dict(scope))["it"]
    except Exception:  # whatever evaluating somebody's text may raise
        for text in _texts(annotation):
            yield from (end for kind, end in _ENDS.items() if kind.__name__ in text)
        return
    for part in _parts(hint):
        # not issubclass: a protocol's asks for equal methods only
        kinds = getattr(typing.get_origin(part) or part, "__mro__", ())
        yield from (end for kind, end in _ENDS.items() if kind in kinds)


def _parts(hint: Any) -> list[Any]:
    """What a union consists of."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [part for inner in typing.get_args(hint) for part in _parts(inner)]
    return [hint]


def _texts(annotation: Any) -> Iterator[set[str]]:
    """The last parts of the dotted names in an annotation that cannot be evaluated."""
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", None)
    if isinstance(written, str):
        try:
            yield set(_names(ast.parse(written, mode="eval").body))
        except SyntaxError:
            return
    else:
        for inner in typing.get_args(annotation) or (annotation,):
            if inner is not annotation:
                yield from _texts(inner)
            else:
                yield {getattr(inner, "__name__", "")} if inner in _ENDS else set()


def _names(node: ast.expr) -> Iterator[str]:
    """``a.b.Inbox[int] | None`` names Inbox."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.BinOp):
        yield from (*_names(node.left), *_names(node.right))
    elif isinstance(node, ast.Subscript):
        outer = list(_names(node.value))
        if outer and outer[0] in ("Optional", "Union", "Annotated"):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            yield from (name for part in parts[: 1 if outer[0] == "Annotated" else None] for name in _names(part))
        else:
            yield from outer
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _names(ast.parse(node.value, mode="eval").body)
