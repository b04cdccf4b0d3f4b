"""What a worker's method does first: whether it reads from an inbox, or computes. Told from its source.

A method that comes to a get with nothing before it but names, literals, empty containers, clocks, prints and blocks
that cost nothing takes its device with its first input. Doubt counts as computing: then it takes its device at once,
which costs time and never correctness.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Any

from rlinf_lab.workflow.annotations import channel_ends
from rlinf_lab.workflow.specs import READ
from rlinf_lab.workflow.worker import Worker

GETS = ("get", "get_all", "get_weight", "take")
BLOCKS = (  # cost nothing but to be entered
    "contextlib.nullcontext", "contextlib.suppress", "nullcontext", "self.span", "suppress", "torch.enable_grad",
    "torch.inference_mode", "torch.no_grad",
)  # fmt: skip
# calls that need no device, with plain values as arguments
FREE = (
    *BLOCKS, "Counter", "collections.Counter", "collections.defaultdict", "collections.deque", "defaultdict", "deque",
    "dict", "isinstance", "len", "list", "print", "range", "self.log", "set", "time.monotonic", "time.perf_counter",
    "time.time",
)  # fmt: skip
# read what they are given at once, or when they are asked for the first item
EAGER = ("all", "any", "dict", "frozenset", "list", "max", "min", "next", "set", "sorted", "sum", "tuple")
LAZY = ("enumerate", "iter", "zip")
IDLE = (ast.Pass, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.FunctionDef)


class First(IntEnum):
    """``PERHAPS``: reads in one case, does nothing in the other."""

    NOTHING = 0
    PERHAPS = 1
    READS = 2
    WORKS = 3


def computes_first(function: Callable[..., Any], cls: type) -> bool:
    """Whether a method computes, or may compute, before it first reads an inbox. True for one that never reads."""
    definition = _definition(function)
    if definition is None:
        return True
    stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    reader = _Reader(_inboxes(function) - stored, inspect.unwrap(function).__code__.co_varnames, cls)
    return reader.block(definition.body) in (First.NOTHING, First.WORKS)


@functools.lru_cache(1024)  # every call in a traced loop asks
def batched(function: Callable[..., Any]) -> frozenset[str]:
    """Inboxes that a method uses for nothing but to get the plan's batches. It does so by ``for batch in inbox`` or
    ``inbox.get()``.
    """
    definition = _definition(function)
    nodes = [] if definition is None else [n for statement in definition.body for n in ast.walk(statement)]
    asked: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, (ast.For, ast.comprehension)):
            counted = isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) == "enumerate"
            asked += node.iter.args[:1] if counted and isinstance(node.iter, ast.Call) else [node.iter]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            asked += [] if node.args or node.keywords else [node.func.value]
    others = {n.id for n in nodes if isinstance(n, ast.Name) and not any(n is e for e in asked)}
    return frozenset(e.id for e in asked if isinstance(e, ast.Name) and e.id in _inboxes(function)) - others


def _inboxes(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(name for name, end in channel_ends(function).items() if end == READ)


@functools.lru_cache(1024)
def _definition(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """The definition of a function; None where its source cannot be told. That is where there is none, another function
    stands before this one, or the file has changed since.
    """
    function = inspect.unwrap(function)
    code = function.__code__
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(found, ast.FunctionDef) or found.name != code.co_name:
        return None
    quiet = all(isinstance(d, ast.Call) and ast.unparse(d.func) in BLOCKS for d in found.decorator_list)
    text = ast.unparse(found)
    return found if quiet and all(n in text for n in (*code.co_names, *code.co_varnames) if n.isidentifier()) else None


class _Reader:
    """``own``: all names of the method; ``cls``: whose attributes ``self`` has."""

    def __init__(self, inboxes: frozenset[str], own: Collection[str], cls: type) -> None:
        self._inboxes, self._own, self._cls = inboxes, own, cls

    def block(self, statements: Iterable[ast.stmt]) -> First:
        return self._sequence(map(self._statement, statements))

    def _sequence(self, parts: Iterable[First]) -> First:
        """Of what is done one after the other."""
        found = First.NOTHING
        for part in parts:
            if part in (First.READS, First.WORKS):
                return part
            found = max(found, part)
        return found

    def _statement(self, s: ast.stmt) -> First:
        match s:
            case ast.Expr() | ast.Return() | ast.AnnAssign():
                return First.NOTHING if s.value is None else self._value(s.value)
            case ast.Assign():
                plain = all(self._is_target(t) for t in s.targets)
                return self._sequence([self._value(s.value), First.NOTHING if plain else First.WORKS])
            case ast.AugAssign():
                counts = isinstance(s.value, ast.Constant) and self._is_target(s.target)
                return First.NOTHING if counts else self._reads_or_works(s.value)
            case ast.For():
                return self._for(s)
            case ast.While():
                return self._while(s)
            case ast.If():
                return self._sequence([self._value(s.test), _either(self.block(s.body), self.block(s.orelse))])
            case ast.With():
                entered = (
                    self._value(i.context_expr) if _called(i.context_expr) in BLOCKS else First.WORKS for i in s.items
                )
                return self._sequence([*entered, self.block(s.body)])
            case ast.Assert():
                return self._value(s.test) if self._value(s.test) is First.NOTHING else First.WORKS  # python -O
            case ast.Try(handlers=[]):
                return self.block([*s.body, *s.finalbody])
        return First.NOTHING if isinstance(s, IDLE) and not getattr(s, "decorator_list", ()) else First.WORKS

    def _for(self, s: ast.For) -> First:
        if self._begins(s.iter):
            return First.READS
        counts = _called(s.iter) == "range" or isinstance(s.iter, (ast.Tuple, ast.List))
        before = self._value(s.iter) if counts else First.WORKS
        return self._sequence([before, _either(self.block(s.body), First.NOTHING), self.block(s.orelse)])

    def _while(self, s: ast.While) -> First:
        """Only ``while True``, with no way out before its first get, surely comes to it."""
        asked, before = self._value(s.test), list[ast.stmt]()
        for statement in s.body if asked is First.NOTHING else ():
            if self._statement(statement) in (First.READS, First.WORKS):
                break
            before.append(statement)
        leaves = any(isinstance(n, (ast.Break, ast.Return)) for b in before for n in ast.walk(b))
        surely = isinstance(s.test, ast.Constant) and bool(s.test.value) and not leaves
        body = self._sequence([asked, self.block(s.body)])
        return self._sequence([body if surely else _either(body, asked), self.block(s.orelse)])

    # --- expressions, in the order in which they are evaluated ---------------------------------------------
    def _value(self, e: ast.expr) -> First:
        match e:
            case ast.Constant() | ast.Name() | ast.Lambda():
                return First.NOTHING
            case ast.Attribute():
                return First.NOTHING if self._is_plain(e) else self._reads_or_works(e.value)
            case ast.NamedExpr() | ast.FormattedValue() | ast.Starred():
                return First.READS if self._begins(e.value) and isinstance(e, ast.Starred) else self._value(e.value)
            case ast.Subscript():  # ``inbox.get()[0]``: what comes after the read does not matter
                return self._reads_or_works(e.value)
            case ast.Call():
                return self._call(e)
            case ast.UnaryOp(operand=operand):
                quiet = isinstance(e.op, ast.Not) or isinstance(operand, ast.Constant)
                return self._sequence([self._value(operand), First.NOTHING if quiet else First.WORKS])
            case ast.BinOp():
                numbers = self._is_number(e.left) and self._is_number(e.right)
                return First.NOTHING if numbers else self._reads_or_works(e.left)
            case ast.Compare(comparators=[right]):
                harmless = isinstance(e.ops[0], (ast.Is, ast.IsNot)) or any(map(self._is_number, (e.left, right)))
                return self._sequence(
                    [self._value(e.left), self._value(right), First.NOTHING if harmless else First.WORKS]
                )
            case ast.BoolOp(values=[first, *rest]):
                return self._sequence([self._value(first), *(_either(self._value(v), First.NOTHING) for v in rest)])
            case ast.IfExp():
                return self._sequence([self._value(e.test), _either(self._value(e.body), self._value(e.orelse))])
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                source = e.generators[0].iter
                return First.READS if self._begins(source) else self._reads_or_works(source)
        parts = [n for n in ast.iter_child_nodes(e) if isinstance(n, ast.expr)]
        plain = isinstance(e, (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.JoinedStr))
        return self._sequence(map(self._value, parts)) if plain else First.WORKS

    def _reads_or_works(self, e: ast.expr) -> First:
        """Of something that is computed with, once it is there."""
        return First.READS if self._value(e) is First.READS else First.WORKS

    def _call(self, e: ast.Call) -> First:
        called, arguments = _called(e), [*e.args, *(k.value for k in e.keywords)]
        if called in EAGER and e.args and self._begins(e.args[0]):
            return First.READS
        owner = self._value(e.func.value) if isinstance(e.func, ast.Attribute) else First.NOTHING
        given = self._sequence([owner, *map(self._value, arguments)])
        if isinstance(e.func, ast.Attribute) and e.func.attr in GETS and self._is_inbox(e.func.value):
            return self._sequence([given, First.READS])
        free = called in FREE and called not in self._own
        return self._sequence([given, First.NOTHING if free else First.WORKS])

    def _begins(self, e: ast.expr) -> bool:
        """Whether the first item of this is one of an inbox: ``enumerate(inbox)``."""
        if isinstance(e, ast.GeneratorExp):
            return self._begins(e.generators[0].iter)
        if isinstance(e, ast.Call) and e.args:
            others = [*e.args[1:], *(k.value for k in e.keywords)]
            plain = all(self._begins(o) or self._value(o) is First.NOTHING for o in others)
            return _called(e) in LAZY and plain and self._begins(e.args[0])
        return self._is_inbox(e)

    def _is_inbox(self, e: ast.expr) -> bool:
        return isinstance(e, ast.Name) and e.id in self._inboxes

    def _is_target(self, e: ast.expr) -> bool:
        """A name or an attribute. Writing into a container may be a copy to a device."""
        if isinstance(e, (ast.Tuple, ast.List)):
            return all(map(self._is_target, e.elts))
        return isinstance(e, ast.Name) or self._is_plain(e)

    def _is_plain(self, e: ast.expr) -> bool:
        """An attribute that is only looked up. It is no property of the worker's class, or of what it holds."""
        if not isinstance(e, ast.Attribute) or not isinstance(e.value, ast.Name):
            return isinstance(e, ast.Attribute) and self._is_plain(e.value)
        made = inspect.getattr_static(self._cls, e.attr, None) if e.value.id == "self" else None
        known = isinstance(made, types.FunctionType) or (made is not None and made is vars(Worker).get(e.attr))
        return known or not (hasattr(type(made), "__get__") or hasattr(self._cls, "__getattr__"))

    def _is_number(self, e: ast.expr) -> bool:
        """A literal, `rank`, `ranks`, `iteration` and so on of a worker; arithmetic with these."""
        if isinstance(e, ast.BinOp):
            return self._is_number(e.left) and self._is_number(e.right)
        return isinstance(e, ast.Constant) or (
            isinstance(e, ast.Attribute)
            and ast.unparse(e.value) == "self"
            and isinstance(getattr(Worker, e.attr, None), property)
        )


def _called(e: ast.expr) -> str:
    return ast.unparse(e.func) if isinstance(e, ast.Call) else ""


def _either(a: First, b: First) -> First:
    """Of two branches."""
    if First.WORKS in (a, b):
        return First.WORKS
    return a if a is b else First.PERHAPS
