"""The iteration function with variables of its own. A dry run must leave no trace in the notebook's lists and counters.

``history.append(loss)``, ``state["step"] += 1`` or ``nonlocal best`` in the loop would otherwise collect symbols before
the first iteration has run, and ``print(loss)`` would print them. What the function's globals and closure hold in plain
containers is copied, and it shows nothing; everything else (workers, channels, models) is shared, so methods of the
user's own objects that change those do run on them.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_CONTAINERS = (
    list,
    dict,
    set,
    bytearray,
    collections.deque,
    collections.defaultdict,
    collections.Counter,
    collections.OrderedDict,
)
_SHOWN = ("print", "display")
_MAX_ITEMS = 10_000  # a data set is not copied, nor is what it holds


def isolated(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The function on copies of its variables. And whether one call of it could leave something for the next."""
    if not isinstance(function, types.FunctionType):
        return function, False
    made = _Isolation(function.__globals__)
    return made.function(function), made.leaves_something


class _Isolation:
    """A module's (a notebook's) functions as they see each other. They share one set of copies of the variables that
    they use.
    """

    def __init__(self, module: dict[str, Any]) -> None:
        self._module = module
        self._globals = {**module, **dict.fromkeys((n for n in _SHOWN if n not in module), lambda *_, **__: None)}
        self._containers: dict[int, Any] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._cells: dict[int, types.CellType] = {}
        self._rebinds = False

    @property
    def leaves_something(self) -> bool:
        return bool(self._containers) or self._rebinds

    def function(self, original: types.FunctionType) -> types.FunctionType:
        """The same function on the copies. So are the functions of its module that it names, and those that
        these name.
        """
        if id(original) in self._functions:
            return self._functions[id(original)]
        code = original.__code__
        closure = tuple(self._cell(c) for c in original.__closure__ or ())
        made = types.FunctionType(code, self._globals, original.__name__, None, closure)
        self._functions[id(original)] = made
        self._rebinds |= _rebinds(code)
        made.__defaults__ = original.__defaults__ and tuple(map(self._value, original.__defaults__))
        made.__kwdefaults__ = original.__kwdefaults__ and {
            k: self._value(v) for k, v in original.__kwdefaults__.items()
        }
        made.__dict__.update(original.__dict__)
        for name in _names(code):
            if name in self._module and self._globals[name] is self._module[name]:
                self._globals[name] = self._value(self._module[name])
        return made

    def _cell(self, original: types.CellType) -> types.CellType:
        """Functions that share a variable share its copy."""
        made = self._cells.get(id(original))
        if made is None:
            made = self._cells[id(original)] = types.CellType()
            with contextlib.suppress(ValueError):  # nothing was assigned yet
                made.cell_contents = self._value(original.cell_contents)
        return made

    def _value(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType) and value.__globals__ is self._module:
            return self.function(value)
        return _copied(value, self._containers)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of those that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


@functools.lru_cache(1024)  # each run of the loop in a trace asks
def _rebinds(code: types.CodeType) -> bool:
    """Whether it assigns to a variable outside itself (``global``, ``nonlocal``)."""
    import dis

    free = set(code.co_freevars)
    return any(
        i.opname == "STORE_GLOBAL" or (i.opname == "STORE_DEREF" and i.argval in free)
        for each in _codes(code)
        for i in dis.get_instructions(each)
    )


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of plain containers, also of those inside. The same one for the same container."""
    if type(value) not in _CONTAINERS or len(value) > _MAX_ITEMS:
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
