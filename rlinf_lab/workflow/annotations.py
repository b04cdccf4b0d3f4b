"""Which parameters of a worker's method are channels, and which end of them: decided by their annotations."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.specs import READ, WRITE
from rlinf_lab.workflow.worker import Inbox, Outbox

_ENDS = {Inbox: READ, Outbox: WRITE}
_ENDS_BY_NAME = {kind.__name__: end for kind, end in _ENDS.items()}
_NAMED = re.compile(r"\b(Inbox|Outbox)\b(?!\.)")


@functools.lru_cache(1024)
def channel_ends(function: Callable[..., Any]) -> Mapping[str, str]:
    """The parameters that are channels: ``"read"`` for an `Inbox`, ``"write"`` for an `Outbox`. Every call asks, so it
    is remembered.

    Text (postponed evaluation) is evaluated where the function was written. Where that fails (a name that only a type
    checker imports) the names in it decide: one of them must be ``Inbox`` or ``Outbox``, alone or after a dot.
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
        # of an object that holds texts its repr has them
        yield from (_ENDS_BY_NAME[found] for found in _NAMED.findall(str(annotation)))
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
