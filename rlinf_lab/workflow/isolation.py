"""The iteration function with variables of its own: a dry run must leave no trace in the notebook's lists and counters.

``history.append(loss)``, ``state["step"] += 1`` or ``nonlocal best`` in the loop would otherwise collect symbols before the first
iteration has run, and ``print(loss)`` would print them. What the function's globals and closure hold in plain containers is copied, and it
shows nothing; everything else (workers, channels, models) is shared, so methods of the user's own objects that change those do run on them.
"""

from __future__ import annotations

import collections
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

_CONTAINERS = (list, dict, set, bytearray, collections.deque, collections.defaultdict, collections.Counter, collections.OrderedDict)
_SHOWN = ("print", "display")
_LARGEST = 10_000  # a data set is not copied, nor is what it holds


def isolated(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The function on copies of its variables, and whether one call of it could leave something for the next."""
    if not isinstance(function, types.FunctionType):
        return function, False
    code = function.__code__
    names = [n for n in dict.fromkeys(_names(code)) if n in function.__globals__]
    held = {n: function.__globals__[n] for n in names}
    cells = [_content(c) for c in function.__closure__ or ()]
    memo: dict[int, Any] = {}
    mine = {n: _copied(v, memo) for n, v in held.items()}
    inside = [(_copied(c[0], memo),) if c else () for c in cells]
    closure = tuple(types.CellType(*c) for c in inside)
    quiet = dict.fromkeys((n for n in _SHOWN if n not in function.__globals__), _nothing)
    made = types.FunctionType(code, {**function.__globals__, **mine, **quiet}, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made, bool(memo) or _rebinds(code)


def _nothing(*_: Any, **__: Any) -> None:
    """What print and display do in a dry run."""


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing was assigned yet
        return ()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of those that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _rebinds(code: types.CodeType) -> bool:
    """Whether it assigns to a variable outside itself (``global``, ``nonlocal``)."""
    import dis

    free = set(code.co_freevars)
    return any(
        i.opname == "STORE_GLOBAL" or (i.opname == "STORE_DEREF" and i.argval in free) for each in _codes(code) for i in dis.get_instructions(each)
    )


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of plain containers, also of those inside; the same one for the same container."""
    if type(value) not in _CONTAINERS or len(value) > _LARGEST:
        return value
    if id(value) in memo:
        return memo[id(value)]
    made = memo[id(value)] = copy.copy(value)
    if isinstance(made, dict):
        for key, item in list(made.items()):
            made[key] = _copied(item, memo)
    elif isinstance(made, list | collections.deque):
        for i, item in enumerate(made):
            made[i] = _copied(item, memo)
    return made
