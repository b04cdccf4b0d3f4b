"""What a profile was measured of. It is the arguments of the iteration and of every worker, and their code. A profile
of something else is stale.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from rlinf_lab.workflow.declaration import Declaration
from rlinf_lab.workflow.worker import FunctionWorker, Worker
from rlinf_lab.workflow.workflow import Workflow

MOST = 80  # characters of an argument; of longer ones the digest tells


def subject(flow: Workflow, inputs: tuple[Any, ...] | None) -> tuple[str, ...]:
    """A line for the iteration and each worker, ending in a digest of their code. What they call is not looked at."""
    iteration = f"iteration: ({_listed(inputs or (), {})}) {_digest(_code_of(flow.body))}"
    return iteration, *(f"{name}: {_of_worker(declaration)}" for name, declaration in flow.workers.items())


def changed(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """What differs between two subjects of one workflow, in words."""
    was, found = dict(line.partition(": ")[::2] for line in before), []
    for name, here in (line.partition(": ")[::2] for line in now):
        there = was.get(name, here)
        (said_there, _, digest_there), (said_here, _, digest_here) = there.rpartition(" #"), here.rpartition(" #")
        if said_there != said_here:
            found.append(f"{name} was measured with {said_there}, is {said_here}")
        elif digest_there != digest_here:
            found.append(f"the code of {name} has changed")
    return found


def _of_worker(made: Declaration) -> str:
    if made.cls is FunctionWorker:
        return f"{made.class_name} {_digest(_code_of(made.args[0]))}"
    parts = [
        part
        for cls in made.cls.__mro__
        if issubclass(cls, Worker) and cls is not Worker
        for part in _code_of_class(cls)
    ]
    return f"{made.class_name}({_listed(made.args, made.kwargs)}) {_digest(iter(parts))}"


def _listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_said, args), *(f"{name}={_said(value)}" for name, value in kwargs.items())])


def _said(value: Any) -> str:
    """As it shows itself, without addresses."""
    if isinstance(value, FunctionType):
        return f"{value.__name__} {_digest(_code_of(value))}"
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    except Exception:  # somebody's __repr__
        text = type(value).__qualname__
    return text if len(text) <= MOST else f"{text[:MOST]}... {_digest(iter([text]))}"


def _code_of_class(cls: type) -> Iterator[str]:
    for name, value in sorted(vars(cls).items()):
        function = (
            value.__func__
            if isinstance(value, staticmethod | classmethod)
            else value.fget
            if isinstance(value, property)
            else value
        )
        if isinstance(function, FunctionType):
            yield name
            yield from _code_of(function)
        elif not name.startswith("__") and isinstance(value, int | float | str | bool | tuple):
            yield f"{name}={value!r}"


def _code_of(function: Callable[..., Any] | None) -> Iterator[str]:
    """A function's code, defaults and what it has from outside. Anything else gives its name."""
    if not isinstance(function, FunctionType):
        yield getattr(function, "__qualname__", type(function).__qualname__)
        return
    yield from _parts(function.__code__)
    yield _listed(function.__defaults__ or (), function.__kwdefaults__ or {})
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            inside = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(inside, int | float | str | bool | tuple | None):
            yield f"{name}={inside!r}"


def _parts(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif not isinstance(constant, frozenset):  # their order is not always the same
            yield repr(constant)


def _digest(parts: Iterator[str]) -> str:
    return "#" + hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
