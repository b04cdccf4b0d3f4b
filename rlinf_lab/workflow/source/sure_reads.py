"""Which inboxes a worker's method reads whatever happens, and which of them before it can put anything: what a refusal
may rest on.

Only what is certain counts. Nothing can be put before the name of an outbox occurs, so whatever else is called in front
of a get does no harm; a get that stands in a branch, behind a possible `return`, in a `try` that has handlers or in a
block that might swallow an error, is not certain.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlinf_lab.workflow.source.statements import GETS, Method, method_of

_NONE: frozenset[str] = frozenset()
_LOOKS = ("eval", "exec", "locals", "vars")  # builtins that get at a name which they are not given
# builtins that begin to read what they are given
_EAGER = ("all", "any", "dict", "frozenset", "list", "max", "min", "next", "set", "sorted", "sum", "tuple")


class Reads(NamedTuple):
    """Names of parameters: ``first`` are read before anything can be put, ``all`` before the method ends without an
    error; ``batched`` are used for nothing but to get the plan's batches, one after the other."""

    first: frozenset[str] = _NONE
    all: frozenset[str] = _NONE
    batched: frozenset[str] = _NONE


@dataclass(frozen=True)
class _Part:
    """Of some statements or expressions in their order. ``puts``, ``leaves``: may put; may not come to its end without
    an error.
    """

    first: frozenset[str] = _NONE
    all: frozenset[str] = _NONE
    puts: bool = False
    leaves: bool = False

    def then(self, other: _Part) -> _Part:
        if self.leaves:
            return _Part(self.first, self.all, self.puts or other.puts, True)
        first = self.first if self.puts else self.first | other.first
        return _Part(first, self.all | other.all, self.puts or other.puts, other.leaves)

    def either(self, other: _Part) -> _Part:
        return _Part(
            self.first & other.first, self.all & other.all, self.puts or other.puts, self.leaves or other.leaves
        )


_IDLE = _Part()
_DOUBT = _Part(puts=True, leaves=True)


def sure_reads(function: Callable[..., Any], cls: type | None = None) -> Reads:
    """Of a method of a class. Nothing where its source is not what runs: a decorator, a file that changed since."""
    method = method_of(function, cls)
    if method is None or not method.exact:
        return Reads()
    found = _Certain(method).block(method.body)
    return Reads(found.first, found.all, _batched(method))


def _batched(method: Method) -> frozenset[str]:
    """Inboxes that occur in ``for batch in inbox`` and in ``inbox.get()`` only."""
    nodes = [node for statement in method.body for node in ast.walk(statement)]
    asked: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, (ast.For, ast.comprehension)):
            counted = (
                isinstance(node.iter, ast.Call)
                and method.known(node.iter.func) is enumerate
                and len(node.iter.args) == 1
            )
            asked.append(node.iter.args[0] if counted and isinstance(node.iter, ast.Call) else node.iter)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and not node.args
            and not node.keywords
        ):
            asked.append(node.func.value)
    known = {id(e) for e in asked}
    others = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in known}
    return frozenset(e.id for e in asked if isinstance(e, ast.Name) and e.id in method.inboxes) - others


class _Certain:
    def __init__(self, method: Method) -> None:
        self._method = method

    # --- statements --------------------------------------------------------------------------------------
    def block(self, statements: Sequence[ast.stmt]) -> _Part:
        found = _IDLE
        for statement in statements:
            found = found.then(self._statement(statement))
            if found.leaves:
                rest = [self._anything(s) for s in statements]
                return found.then(_Part(puts=any(part.puts for part in rest)))
        return found

    def _statement(self, s: ast.stmt) -> _Part:
        match s:
            case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal():
                return _IDLE
            case ast.Expr() | ast.Return() | ast.Raise():
                value = s.exc if isinstance(s, ast.Raise) else s.value
                return self._value(value).then(_IDLE if isinstance(s, ast.Expr) else _Part(leaves=True))
            case ast.Assign() | ast.AnnAssign():
                targets = s.targets if isinstance(s, ast.Assign) else [s.target]
                noted = s.annotation if isinstance(s, ast.AnnAssign) else ast.Pass()  # evaluated or not
                return self._sequence([s.value, *targets]).then(self._anything(noted))
            case ast.AugAssign():
                return self._sequence([s.target, s.value])
            case ast.Assert():
                # python -O leaves it out
                return self._perhaps(self._value(s.test).then(self._perhaps(self._value(s.msg))))
            case ast.If():
                return self._value(s.test).then(self.block(s.body).either(self.block(s.orelse)))
            case ast.For():
                return self._for(s)
            case ast.While():
                return self._while(s)
            case ast.With():
                return self._with(s)
            # `return` there swallows an error
            case ast.Try(handlers=[]) if not any(self._anything(final).leaves for final in s.finalbody):
                return self.block(s.body).then(self.block(s.orelse)).then(self.block(s.finalbody))
        return self._anything(s)

    def _for(self, s: ast.For) -> _Part:
        asked = self._value(s.iter).then(self._begun(s.iter))
        body = self._of_loop(self._value(s.target).then(self.block(s.body)), s.body)
        literal = (
            isinstance(s.iter, (ast.Tuple, ast.List))
            and bool(s.iter.elts)
            and not any(isinstance(e, ast.Starred) for e in s.iter.elts)
        )
        return asked.then(body if literal else self._perhaps(body)).then(self._perhaps(self.block(s.orelse)))

    def _while(self, s: ast.While) -> _Part:
        endless = isinstance(s.test, ast.Constant) and bool(s.test.value)
        body = self._of_loop(self.block(s.body), s.body)
        return (
            self._value(s.test).then(body if endless else self._perhaps(body)).then(self._perhaps(self.block(s.orelse)))
        )

    def _of_loop(self, body: _Part, statements: Sequence[ast.stmt]) -> _Part:
        """A `break` leaves the loop only; what else leaves it leaves the method."""
        return _Part(
            body.first,
            body.all,
            body.puts,
            any(isinstance(node, (ast.Return, ast.Raise)) for s in statements for node in ast.walk(s)),
        )

    def _with(self, s: ast.With) -> _Part:
        if not all(self._method.is_quiet_block(item.context_expr) for item in s.items):
            return self._anything(s)
        entered = [e for item in s.items for e in (item.context_expr, item.optional_vars)]
        return self._sequence(entered).then(self.block(s.body))

    def _perhaps(self, part: _Part) -> _Part:
        return part.either(_IDLE)

    def _anything(self, node: ast.AST) -> _Part:
        """Of what is not followed: it may put if it names an outbox, and may leave if it can."""
        leaves = isinstance(node, ast.stmt) and any(
            isinstance(n, (ast.Return, ast.Raise, ast.Break, ast.Continue)) for n in ast.walk(node)
        )
        own = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        return _Part(puts=any(self._is_way_out(n) for n in ast.walk(node)), leaves=leaves and not own)

    def _is_way_out(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and (node.id in self._method.outboxes or node.id in _LOOKS)

    # --- expressions, in the order in which they are evaluated ---------------------------------------------
    def _sequence(self, parts: Iterable[ast.expr | None]) -> _Part:
        found = _IDLE
        for e in parts:
            found = found.then(self._value(e))
        return found

    def _value(self, e: ast.expr | None) -> _Part:
        match e:
            case None | ast.Constant():
                return _IDLE
            case ast.Name():
                return _Part(puts=self._is_way_out(e))
            case ast.Call():
                return self._call(e)
            case ast.Attribute() | ast.NamedExpr() | ast.FormattedValue():
                return self._value(e.value)
            case ast.Starred():
                return self._value(e.value).then(self._begun(e.value) if isinstance(e.ctx, ast.Load) else _IDLE)
            case ast.Tuple() | ast.List() | ast.Set():
                return self._sequence(e.elts)
            case ast.JoinedStr():
                return self._sequence(e.values)
            case ast.Dict():
                return self._sequence(part for pair in zip(e.keys, e.values, strict=True) for part in pair)
            case ast.BinOp():
                return self._sequence([e.left, e.right])
            case ast.UnaryOp():
                return self._value(e.operand)
            case ast.Subscript():
                return self._sequence([e.value, e.slice])
            case ast.Compare():
                first, *rest = e.comparators
                return self._sequence([e.left, first]).then(self._perhaps(self._sequence(rest)))
            case ast.BoolOp():
                first, *rest = e.values
                return self._value(first).then(self._perhaps(self._sequence(rest)))
            case ast.IfExp():
                return self._value(e.test).then(self._value(e.body).either(self._value(e.orelse)))
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                source = e.generators[0].iter
                return self._value(source).then(self._begun(source)).then(self._anything(e))
        return self._anything(e)

    def _call(self, e: ast.Call) -> _Part:
        given = self._sequence([e.func, *e.args, *(k.value for k in e.keywords)])
        if isinstance(e.func, ast.Attribute) and self._method.is_inbox(e.func.value) and e.func.attr in GETS:
            return given.then(_read(e.func.value))
        if self._is_builtin(e.func, _EAGER) and e.args:
            return given.then(self._begun(e.args[0]))
        return given

    def _begun(self, e: ast.expr) -> _Part:
        """Of asking something for its first item."""
        if self._method.is_inbox(e):
            return _read(e)
        if isinstance(e, ast.Call) and e.args and self._is_builtin(e.func, ("enumerate", "iter", "zip")):
            return self._begun(e.args[0])
        return self._begun(e.generators[0].iter) if isinstance(e, ast.GeneratorExp) else _IDLE

    def _is_builtin(self, e: ast.expr, names: Sequence[str]) -> bool:
        return any(self._method.known(e) is getattr(builtins, name) for name in names)


def _read(e: ast.expr) -> _Part:
    name = frozenset({e.id}) if isinstance(e, ast.Name) else _NONE
    return _Part(name, name)
