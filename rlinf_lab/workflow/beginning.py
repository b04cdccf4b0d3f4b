"""What a worker's method does first: whether it reads from an inbox, or computes. Told from its source, without calling it.

Nothing is done by imports, texts, names, attributes, literals, empty containers, clocks, and by blocks whose only cost is to be entered (``torch.no_grad()``):
they are passed over. All else counts as computing, calls of the worker's own and arithmetic included: an attribute may be a tensor.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from rlinf_lab.workflow.annotations import READ, channel_ends

_GETS = ("get", "get_all", "get_weight", "take")
_EAGER, _LAZY = ("list", "next", "set", "sorted", "tuple"), ("enumerate", "iter", "zip")  # builtins that read what they are given at once, or later
# Calls that need no device, by the module and the name of what is called.
_FREE = {
    "builtins": {"bool", "bytearray", "bytes", "dict", "float", "frozenset", "int", "list", "object", "range", "set", "str", "tuple"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "contextlib": {"ExitStack", "nullcontext", "suppress"},
    "time": {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"},
    "torch.autograd.grad_mode": {"enable_grad", "inference_mode", "no_grad", "set_grad_enabled"},
}
_IDLE_STATEMENTS = (
    ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal, ast.Break, ast.Continue, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip


class First(Enum):
    """``PERHAPS``: reads in one case, does nothing in the other."""

    NOTHING = 0
    PERHAPS = 1
    READS = 2
    WORKS = 3


def computes_first(function: Callable[..., Any]) -> bool:
    """Whether a method computes before it first reads from an inbox, or never reads at all: then it needs its devices before its input is there.

    Where there is no source (a class typed into a bare prompt) the safe answer is True.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return True
    inboxes = {name for name, end in channel_ends(function).items() if end == READ}
    return _Reader(inboxes, _scope(inspect.unwrap(function))).block(definition.body) in (First.NOTHING, First.WORKS)


def _scope(function: Any) -> Mapping[str, Any]:
    """What names mean in a function before it has done anything: builtins and its module's names, without those that are its own."""
    code = getattr(function, "__code__", None)
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if code is not None else set()
    return {name: value for name, value in {**vars(builtins), **getattr(function, "__globals__", {})}.items() if name not in own}


class _Reader:
    def __init__(self, inboxes: set[str], scope: Mapping[str, Any]) -> None:
        self.inboxes, self.scope = inboxes, scope

    # --- statements --------------------------------------------------------------------------------------
    def block(self, statements: Sequence[ast.stmt]) -> First:
        return self._sequence(self._statement(s) for s in statements)

    def _sequence(self, parts: Iterable[First]) -> First:
        """Of what is done one after the other."""
        found = First.NOTHING
        for part in parts:
            if part in (First.READS, First.WORKS):
                return part
            found = max(found, part, key=lambda p: p.value)
        return found

    def _statement(self, s: ast.stmt) -> First:
        if isinstance(s, _IDLE_STATEMENTS):
            return First.WORKS if getattr(s, "decorator_list", ()) else First.NOTHING
        if isinstance(s, (ast.Expr, ast.Return)):
            return First.NOTHING if s.value is None else self._value(s.value)
        if isinstance(s, (ast.Assign, ast.AnnAssign)):
            return self._assignment(s.targets if isinstance(s, ast.Assign) else [s.target], s.value)
        if isinstance(s, ast.For):
            return self._for(s)
        if isinstance(s, ast.While):
            return self._while(s)
        if isinstance(s, ast.If):
            return self._sequence([self._condition(s.test), _either(self.block(s.body), self.block(s.orelse))])
        if isinstance(s, ast.With):
            return self._sequence([*(self._entered(item.context_expr) for item in s.items), self.block(s.body)])
        if isinstance(s, ast.Assert):
            return self._condition(s.test)
        if isinstance(s, ast.Try):
            return self._sequence([self.block(s.body), self.block(s.orelse), self.block(s.finalbody)])
        return First.WORKS

    def _assignment(self, targets: Sequence[ast.expr], value: ast.expr | None) -> First:
        if value is None:
            return First.NOTHING
        plain = all(_is_plain(t) for t in targets)
        return self._sequence([self._value(value), First.NOTHING if plain else First.WORKS])

    def _for(self, s: ast.For) -> First:
        if self._is_inbox(s.iter):
            return First.READS
        counts = isinstance(s.iter, ast.Call) and self._known(s.iter.func) is range  # what else gives its next item may compute it
        return self._sequence([self._value(s.iter) if counts else First.WORKS, _either(self.block(s.body), First.NOTHING), self.block(s.orelse)])

    def _entered(self, e: ast.expr) -> First:
        """Of a `with`: a call is known by its name, anything else does what its class says."""
        return self._value(e) if isinstance(e, ast.Call) else First.WORKS

    def _while(self, s: ast.While) -> First:
        body, before = First.NOTHING, []
        for statement in s.body:
            body = self._sequence([body, self._statement(statement)])
            if body in (First.READS, First.WORKS):
                break
            before.append(statement)
        # Only `while True`, with no way out in front of its first get, surely comes to it.
        endless = isinstance(s.test, ast.Constant) and bool(s.test.value)
        left = any(isinstance(node, (ast.Break, ast.Return)) for statement in before for node in ast.walk(statement))
        return self._sequence([self._condition(s.test), body if endless and not left else _either(body, First.NOTHING), self.block(s.orelse)])

    # --- expressions -------------------------------------------------------------------------------------
    def _condition(self, e: ast.expr) -> First:
        """``x``, ``not x``, ``x is None`` and their combinations ask a name only."""
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Not):
            return self._condition(e.operand)
        if isinstance(e, ast.BoolOp):
            first, *rest = map(self._condition, e.values)
            return self._sequence([first, *(_either(part, First.NOTHING) for part in rest)])
        if isinstance(e, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in e.ops):
            return self._sequence(map(self._value, (e.left, *e.comparators)))
        return self._value(e)

    def _value(self, e: ast.expr) -> First:
        if isinstance(e, (ast.Constant, ast.Name, ast.Lambda)):
            return First.NOTHING
        if isinstance(e, ast.NamedExpr):
            return self._value(e.value)
        if isinstance(e, (ast.Attribute, ast.Starred)):
            return self._value(e.value)
        if isinstance(e, (ast.Tuple, ast.List, ast.Set)):
            return self._sequence(map(self._value, e.elts))
        if isinstance(e, ast.Dict):
            return self._sequence(self._value(part) for pair in zip(e.keys, e.values, strict=True) for part in pair if part is not None)
        if isinstance(e, (ast.UnaryOp, ast.BinOp)):
            return First.NOTHING if all(isinstance(n, (ast.Constant, ast.operator, ast.unaryop, ast.BinOp, ast.UnaryOp)) for n in ast.walk(e)) else First.WORKS
        if isinstance(e, (ast.ListComp, ast.SetComp, ast.DictComp)):
            return First.READS if self._is_inbox(e.generators[0].iter) else First.WORKS
        if isinstance(e, ast.Subscript):  # ``inbox.get()[0]``: what comes after the read does not matter
            return First.READS if self._value(e.value) is First.READS else First.WORKS
        return self._call(e) if isinstance(e, ast.Call) else First.WORKS

    def _call(self, e: ast.Call) -> First:
        arguments = self._sequence(self._value(a) for a in (*e.args, *(k.value for k in e.keywords)))
        if arguments is not First.NOTHING:
            return arguments
        if isinstance(e.func, ast.Attribute):
            if self._is_inbox(e.func.value):
                return First.READS if e.func.attr in _GETS else First.WORKS
            if self._value(e.func.value) is First.READS:  # ``inbox.get().sort()``
                return First.READS
        called = self._known(e.func)
        if _is_one(called, _EAGER) and any(map(self._is_inbox, e.args)):
            return First.READS
        if _is_one(called, _LAZY):
            return First.NOTHING if self._is_inbox(e) else First.WORKS
        return First.NOTHING if self._is_free(called, e.args) else First.WORKS

    def _is_free(self, called: Any, arguments: Sequence[ast.expr]) -> bool:
        if not isinstance(called, (type, types.BuiltinFunctionType, types.FunctionType)) or called.__name__ not in _FREE.get(str(called.__module__), ()):
            return False
        # What is made of a name may be made of a tensor.
        return called.__name__ in ("range", "defaultdict", "suppress") or all(isinstance(a, (ast.Constant, ast.Tuple, ast.List)) for a in arguments)

    def _known(self, e: ast.expr) -> Any:
        """What a name, or a name in a module, means where the method was written; None where that is not known."""
        if isinstance(e, ast.Name):
            return self.scope.get(e.id)
        if isinstance(e, ast.Attribute):
            return vars(module).get(e.attr) if isinstance(module := self._known(e.value), types.ModuleType) else None
        return None

    def _is_inbox(self, e: ast.expr) -> bool:
        """An inbox, or a builtin's way through one: ``enumerate(inbox)``."""
        if isinstance(e, ast.Call) and e.args and _is_one(self._known(e.func), _LAZY):
            return self._is_inbox(e.args[0]) and all(self._value(a) is First.NOTHING for a in e.args[1:])
        return isinstance(e, ast.Name) and e.id in self.inboxes


def _is_one(called: Any, names: Sequence[str]) -> bool:
    """Whether it is one of these builtins."""
    return any(called is getattr(builtins, name) for name in names)


def _is_plain(target: ast.expr) -> bool:
    """A name, or an attribute of one: writing into a container may be a copy to a device."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(_is_plain, target.elts))
    return isinstance(target, (ast.Name, ast.Attribute, ast.Starred))


def _either(a: First, b: First) -> First:
    """Of two branches."""
    if First.WORKS in (a, b):
        return First.WORKS
    return a if a is b else First.PERHAPS
