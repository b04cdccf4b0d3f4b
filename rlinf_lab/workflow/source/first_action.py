"""What a worker's method does first: whether it reads from an inbox, or computes. Told from its source, without calling
it.

Nothing is done by imports, texts, names, attributes of the worker that are no properties, literals, empty containers,
clocks, prints and logs, comparisons with literals, and by blocks whose only cost is to be entered
(``torch.no_grad()``): they are passed over. All else counts as computing, calls of the worker's own and arithmetic
included: an attribute may be a tensor. Here doubt counts as work; what is certain enough to refuse a workflow is told
by `sure_reads`.
"""

from __future__ import annotations

import ast
import builtins
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from rlinf_lab.workflow.source.statements import GETS, QUIET_BLOCKS, Method, is_of, is_plain, method_of
from rlinf_lab.workflow.worker import Worker

# Builtins that read what they are given at once, or later.
_EAGER = ("all", "any", "dict", "frozenset", "list", "max", "min", "next", "set", "sorted", "sum", "tuple")
_LAZY = ("enumerate", "iter", "zip")
# Calls that need no device, by the module and the name of what is called: with any plain value, or with literals only,
# for what is made of a name may be made of a tensor.
_FREE = {
    "builtins": {"isinstance", "len", "print", "range"},
    "collections": {"defaultdict"},
    "contextlib": {"suppress"},
    "functools": {"partial"},
    "itertools": {"count"},
    "logging": {"critical", "debug", "error", "info", "warning"},
    "ray.experimental.tqdm_ray": {"safe_print"},  # which Ray puts in the place of `print`
}
_FREE_OF_LITERALS = {
    "builtins": {
        "bool",
        "bytearray",
        "bytes",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "object",
        "set",
        "str",
        "tuple",
    },
    "collections": {"Counter", "OrderedDict", "deque"},
    "contextlib": {"ExitStack"},
    "time": {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"},
}
_IDLE_STATEMENTS = (ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal, ast.Break, ast.Continue)


class First(Enum):
    """``PERHAPS``: reads in one case, does nothing in the other."""

    NOTHING = 0
    PERHAPS = 1
    READS = 2
    WORKS = 3


def computes_first(function: Callable[..., Any], cls: type | None = None) -> bool:
    """Whether a method of a class computes before it first reads from an inbox, or never reads at all: then it needs
    its devices before its input is there.

    ``cls``: whose attributes ``self`` has, by default the class in which the method was written. Where there is no
    source (a class typed into a bare prompt), or another function stands before the method (a decorator), the safe
    answer is True.
    """
    method = method_of(function, cls)
    return method is None or _Reader(method).block(method.body) in (First.NOTHING, First.WORKS)


class _Reader:
    def __init__(self, method: Method) -> None:
        self._method = method

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
        match s:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return First.WORKS if s.decorator_list else self._defaults(s.args)
            case ast.Raise():
                return First.NOTHING if s.exc is None else self._value(s.exc)
            case ast.Expr() | ast.Return():
                return First.NOTHING if s.value is None else self._value(s.value)
            case ast.Assign() | ast.AnnAssign():
                return self._assignment(s.targets if isinstance(s, ast.Assign) else [s.target], s.value)
            case ast.AugAssign():
                value = self._value(s.value)
                counted = (
                    isinstance(s.value, ast.Constant)
                    and self._is_plain(s.target)
                    and self._is_plain(s.target, written=False)
                )
                return First.NOTHING if counted else value if value is First.READS else First.WORKS
            case ast.For():
                return self._for(s)
            case ast.While():
                return self._while(s)
            case ast.If():
                return _either(
                    self._sequence([self._true(s.test), self.block(s.body)]),
                    self._sequence([self._value(s.test), self.block(s.orelse)]),
                )
            case ast.With():
                return self._sequence([*(self._entered(item.context_expr) for item in s.items), self.block(s.body)])
            case ast.Assert():
                return _either(self._value(s.test), First.NOTHING)  # python -O leaves it out
            case ast.Try():
                return self._try(s)
        return First.NOTHING if isinstance(s, _IDLE_STATEMENTS) else First.WORKS

    def _defaults(self, arguments: ast.arguments) -> First:
        """Of an inner function: they are evaluated where it is written."""
        return self._sequence(self._value(d) for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None)

    def _assignment(self, targets: Sequence[ast.expr], value: ast.expr | None) -> First:
        if value is None:
            return First.NOTHING
        plain = all(self._is_plain(t) for t in targets)
        return self._sequence([self._value(value), First.NOTHING if plain else First.WORKS])

    def _is_plain(self, target: ast.expr, written: bool = True) -> bool:
        """A name, or an attribute of the worker that is no property: writing into a container may be a copy to a
        device.
        """
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(self._is_plain(t, written) for t in target.elts)
        if isinstance(target, ast.Starred):
            return self._is_plain(target.value, written)
        if isinstance(target, ast.Attribute):
            return self._is_me(target.value) and self._method.is_plain(target.attr, written)
        return isinstance(target, ast.Name)

    def _try(self, s: ast.Try) -> First:
        """A handler may come before whatever is behind the first read of the body."""
        body = self._sequence([self.block(s.body), self.block(s.orelse)])
        handled = [self.block(handler.body) for handler in s.handlers]
        if First.WORKS in handled and self._statement(s.body[0]) is not First.READS:
            return First.WORKS
        return self._sequence([body, self.block(s.finalbody)])

    def _for(self, s: ast.For) -> First:
        if (found := self._begun(s.iter)) is not None:
            return found
        literal = isinstance(s.iter, (ast.Tuple, ast.List)) and bool(s.iter.elts)
        # what else gives its next item may compute it
        counts = literal or (isinstance(s.iter, ast.Call) and self._is_builtin(s.iter.func, ("range",)))
        body = self.block(s.body)
        return self._sequence(
            [
                self._value(s.iter) if counts else First.WORKS,
                body if literal else _either(body, First.NOTHING),
                self.block(s.orelse),
            ]
        )

    def _entered(self, e: ast.expr) -> First:
        """Of a `with`: a call is known by its name, anything else does what its class says."""
        if isinstance(e, ast.Call) and self._method.is_quiet_block(e):
            return self._arguments(e)
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
        taken = self._sequence([self._true(s.test), body])
        return self._sequence(
            [taken if endless and not left else _either(taken, self._value(s.test)), self.block(s.orelse)]
        )

    def _true(self, e: ast.expr) -> First:
        """Of a condition that turned out true: of ``a and b`` both were asked."""
        return (
            self._sequence(map(self._true, e.values))
            if isinstance(e, ast.BoolOp) and isinstance(e.op, ast.And)
            else self._value(e)
        )

    # --- expressions, in the order in which they are evaluated ---------------------------------------------
    def _value(self, e: ast.expr) -> First:
        match e:
            case ast.Constant() | ast.Name():
                return First.NOTHING
            case ast.Lambda():
                return self._defaults(e.args)
            case ast.NamedExpr() | ast.FormattedValue():
                return self._value(e.value)
            case ast.Starred():
                return First.READS if self._method.is_inbox(e.value) else self._value(e.value)
            case ast.Attribute():
                return self._attribute(e)
            case ast.Tuple() | ast.List() | ast.Set():
                return self._sequence(map(self._value, e.elts))
            case ast.JoinedStr():
                return self._sequence(map(self._value, e.values))
            case ast.Dict():
                return self._sequence(
                    self._value(part)
                    for pair in zip(e.keys, e.values, strict=True)
                    for part in pair
                    if part is not None
                )
            case ast.UnaryOp():
                harmless = isinstance(e.op, ast.Not) or isinstance(e.operand, ast.Constant)
                return self._sequence([self._value(e.operand), First.NOTHING if harmless else First.WORKS])
            case ast.BinOp():
                literals = self._is_number(e)
                text = isinstance(e.left, ast.Constant) and isinstance(e.left.value, str)
                return self._sequence(
                    [self._value(e.left), self._value(e.right), First.NOTHING if literals or text else First.WORKS]
                )
            case ast.BoolOp():
                first, *rest = map(self._value, e.values)
                return self._sequence([first, *(_either(part, First.NOTHING) for part in rest)])
            case ast.IfExp():
                return self._sequence([self._value(e.test), _either(self._value(e.body), self._value(e.orelse))])
            case ast.Compare():
                return self._comparison(e)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                source = e.generators[0].iter
                if not isinstance(e, ast.GeneratorExp) and (begun := self._begun(source)) is not None:
                    return begun
                return First.READS if self._value(source) is First.READS else First.WORKS
            case ast.Subscript():  # ``inbox.get()[0]``: what comes after the read does not matter
                return First.READS if self._value(e.value) is First.READS else First.WORKS
        return self._call(e) if isinstance(e, ast.Call) else First.WORKS

    def _attribute(self, e: ast.Attribute) -> First:
        """Of what is not known to be a worker, a module, a class, an inbox or of a class with such an attribute, it may
        be a property that computes.
        """
        if self._is_me(e.value):
            return First.NOTHING if self._method.is_plain(e.attr) else First.WORKS
        if self._method.is_inbox(e.value) or self._method.known(e) is not None:
            return First.NOTHING
        owner, value = self._method.class_of(e.value), self._value(e.value)
        return value if value is First.READS or (owner is not None and is_plain(owner, e.attr)) else First.WORKS

    def _comparison(self, e: ast.Compare) -> First:
        """With a literal or a number that every worker has: of two tensors it would be work."""
        sides = [e.left, *e.comparators]
        same = all(isinstance(op, (ast.Is, ast.IsNot)) for op in e.ops)
        harmless = same or sum(not self._is_number(side) for side in sides) <= 1
        first, second, *rest = map(self._value, sides)
        return self._sequence(
            [
                first,
                second,
                *(_either(part, First.NOTHING) for part in rest),
                First.NOTHING if harmless else First.WORKS,
            ]
        )

    def _is_number(self, e: ast.expr) -> bool:
        """A literal, a constant of the module, or one of `rank`, `ranks`, `iteration` and so on; arithmetic
        with these.
        """
        if isinstance(e, ast.BinOp):
            return self._is_number(e.left) and self._is_number(e.right)
        if isinstance(e, (ast.Tuple, ast.List, ast.Set)):
            return all(map(self._is_number, e.elts))
        if isinstance(e, ast.UnaryOp):
            return self._is_number(e.operand)
        if isinstance(e, ast.Attribute) and self._is_me(e.value):
            given = vars(Worker).get(e.attr)
            return isinstance(given, property) and self._method.known(e) is given
        return isinstance(e, ast.Constant) or isinstance(self._method.known(e), (int, float, str))

    def _call(self, e: ast.Call) -> First:
        known = self._method.known(e.func)
        called = self._called(e, known)
        if called in (First.READS, First.WORKS):
            return called
        begun = self._begun(e.args[0]) if e.args and self._is_builtin(e.func, _EAGER) else None
        if begun is not None:
            return begun
        if self._is_builtin(e.func, _LAZY):
            return First.NOTHING if self._begun(e) is First.READS else First.WORKS
        if (arguments := self._arguments(e)) is not First.NOTHING:
            return arguments
        if isinstance(e.func, ast.Attribute) and self._method.is_inbox(e.func.value):
            return First.READS if e.func.attr in GETS else First.WORKS
        return First.NOTHING if self._is_free(e, known) else First.WORKS

    def _called(self, e: ast.Call, known: Any) -> First:
        """Of evaluating what is called, which comes before its arguments."""
        if isinstance(e.func, ast.Attribute) and isinstance(self._method.known(e.func.value), logging.Logger):
            return First.NOTHING
        return First.NOTHING if known is not None else self._value(e.func)

    def _arguments(self, e: ast.Call) -> First:
        return self._sequence(self._value(a) for a in (*e.args, *(k.value for k in e.keywords)))

    def _is_free(self, e: ast.Call, called: Any) -> bool:
        """Of a call whose arguments do nothing."""
        if isinstance(e.func, ast.Attribute) and isinstance(self._method.known(e.func.value), logging.Logger):
            return e.func.attr in (*_FREE["logging"], "exception", "log")
        if isinstance(called, type) and issubclass(called, BaseException) and called.__module__ == "builtins":
            return True
        literals = all(
            isinstance(a, (ast.Constant, ast.Tuple, ast.List)) for a in (*e.args, *(k.value for k in e.keywords))
        )
        free = is_of(called, _FREE) or is_of(called, QUIET_BLOCKS) or called is Worker.log or called is Worker.span
        return free or (literals and is_of(called, _FREE_OF_LITERALS))

    def _begun(self, e: ast.expr) -> First | None:
        """Of asking for the first item, where that is one of an inbox: ``enumerate(inbox)``. None where it is not."""
        if self._method.is_inbox(e):
            return First.READS
        if isinstance(e, ast.GeneratorExp):
            return self._begun(e.generators[0].iter)
        if not (isinstance(e, ast.Call) and e.args):
            return None
        through = is_of(self._method.known(e.func), {"itertools": {"chain", "islice"}})
        if self._is_builtin(e.func, _LAZY) or through:
            asked, others = (e.args, []) if self._is_builtin(e.func, ("zip",)) else (e.args[:1], e.args[1:])
        elif self._is_builtin(e.func, ("map",)):
            asked, others = e.args[1:2], [e.args[0], *e.args[2:]]
        else:
            return None
        if any(self._value(a) is not First.NOTHING for a in (*others, *(k.value for k in e.keywords))):
            return None
        return self._begun_in_turn(asked)

    def _begun_in_turn(self, asked: Sequence[ast.expr]) -> First | None:
        """Of asking one after the other: numbers may come before an inbox."""
        for i, e in enumerate(asked):
            if (found := self._begun(e)) is not None:
                return found if all(self._begun(x) is not None or self._counts(x) for x in asked[i + 1 :]) else None
            if not self._counts(e):
                return None
        return None

    def _counts(self, e: ast.expr) -> bool:
        """``range(n)``, ``itertools.count()``."""
        if not isinstance(e, ast.Call) or self._arguments(e) is not First.NOTHING:
            return False
        return self._is_builtin(e.func, ("range",)) or is_of(self._method.known(e.func), {"itertools": {"count"}})

    def _is_me(self, e: ast.expr) -> bool:
        return isinstance(e, ast.Name) and e.id == self._method.me

    def _is_builtin(self, e: ast.expr, names: Sequence[str]) -> bool:
        known = self._method.known(e)
        return known is not None and any(known is getattr(builtins, name) for name in names)


def _either(a: First, b: First) -> First:
    """Of two branches."""
    if First.WORKS in (a, b):
        return First.WORKS
    return a if a is b else First.PERHAPS
