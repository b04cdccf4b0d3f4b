"""A worker's method as it is written: its statements, which of its names are channels, and what the other
names mean.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import functools
import inspect
import linecache
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_lab.workflow.annotations import channel_ends
from rlinf_lab.workflow.specs import READ, WRITE
from rlinf_lab.workflow.worker import Worker

GETS = ("get", "get_all", "get_weight", "take")
# Blocks that cost nothing but to be entered, and let every error pass.
QUIET_BLOCKS = {
    "contextlib": {"nullcontext"},
    "torch.autograd.grad_mode": {"enable_grad", "inference_mode", "no_grad", "set_grad_enabled"},
}
_NOTHING = object()
_READ: dict[tuple[str, types.CodeType], tuple[list[str], _Text | None]] = {}


@dataclass(frozen=True)
class Method:
    """``inboxes``, ``outboxes``: parameters that stay what they are (another value under such a name is no channel that
    is known). ``me``: the name of the worker itself, "" where it is rebound. ``scope``: what names mean that are not
    the method's own. ``exact``: the text was compared with what runs.
    ``classes``: of parameters, by their annotations."""

    body: list[ast.stmt]
    inboxes: frozenset[str]
    outboxes: frozenset[str]
    me: str
    cls: type | None
    scope: Mapping[str, Any]
    exact: bool
    classes: Mapping[str, type]

    def is_inbox(self, e: ast.expr) -> bool:
        return isinstance(e, ast.Name) and e.id in self.inboxes

    def known(self, e: ast.expr) -> Any:
        """What a name, or a name in a module or class, means where the method was written; None where that is not
        known.
        """
        if isinstance(e, ast.Name):
            return self.scope.get(e.id)
        if isinstance(e, ast.Attribute):
            if isinstance(e.value, ast.Name) and e.value.id == self.me and self.cls is not None:
                return inspect.getattr_static(self.cls, e.attr, None) if self.is_plain(e.attr) else None
            owner = self.known(e.value)
            return vars(owner).get(e.attr) if isinstance(owner, (types.ModuleType, type)) else None
        return None

    def is_plain(self, name: str, written: bool = False) -> bool:
        """Whether ``self.name`` is only looked up (or stored), so that no code of the class runs: no property, no
        ``__getattr__``.
        """
        return self.cls is not None and is_plain(self.cls, name, written)

    def class_of(self, e: ast.expr) -> type | None:
        """Of the worker itself, a parameter, or an attribute of these, by annotations and constructors; None where that
        is not known.
        """
        if isinstance(e, ast.Name):
            return self.cls if e.id == self.me else self.classes.get(e.id)
        owner = self.class_of(e.value) if isinstance(e, ast.Attribute) else None
        return None if owner is None or not isinstance(e, ast.Attribute) else _attributes(owner).get(e.attr)

    def is_quiet_block(self, e: ast.expr) -> bool:
        """``torch.no_grad()``, ``nullcontext()``, ``self.span("name")``: whatever it is called with."""
        if not isinstance(e, ast.Call):
            return False
        called = self.known(e.func)
        return called is Worker.span or is_of(called, QUIET_BLOCKS)


def is_plain(cls: type, name: str, written: bool = False) -> bool:
    """`Method.is_plain` of any class."""
    if name.startswith("__") and not name.endswith("__"):
        return False
    static = inspect.getattr_static(cls, name, _NOTHING)
    if written:
        return cls.__setattr__ is object.__setattr__ and not hasattr(type(static), "__set__")
    if cls.__getattribute__ is not object.__getattribute__:
        return False
    if static is _NOTHING:
        return not hasattr(cls, "__getattr__")
    plain = (types.FunctionType, types.MemberDescriptorType, staticmethod, classmethod)
    return vars(Worker).get(name) is static or isinstance(static, plain) or not hasattr(type(static), "__get__")


@functools.lru_cache(1024)
def _attributes(cls: type) -> Mapping[str, type]:
    """Classes of the attributes of an instance: those that the class declares, and those that its constructor gets or
    makes.
    """
    found = dict(_hinted(cls))
    constructor = inspect.getattr_static(cls, "__init__", None)
    definition = _definition(constructor.__code__) if isinstance(constructor, types.FunctionType) else None
    if definition is None or not isinstance(constructor, types.FunctionType):
        return found
    given, scope = _hinted(constructor), constructor.__globals__
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for t, v in _assigned(node.targets[0], node.value):
                made = scope.get(v.func.id) if isinstance(v, ast.Call) and isinstance(v.func, ast.Name) else None
                kind = given.get(v.id) if isinstance(v, ast.Name) else made
                if isinstance(t, ast.Attribute) and isinstance(kind, type):
                    found.setdefault(t.attr, kind)
    return found


def _hinted(what: Any) -> Mapping[str, type]:
    """What the annotations of a class or function say that are one class, or that or None."""
    try:
        hints = typing.get_type_hints(what)
    except Exception:  # whatever evaluating somebody's text may raise
        return {}
    kinds = {
        name: [k for k in (typing.get_args(hint) or (hint,)) if k is not type(None)] for name, hint in hints.items()
    }
    plain = (None, typing.Union, types.UnionType)
    known = {n: k[0] for n, k in kinds.items() if len(k) == 1 and typing.get_origin(hints[n]) in plain}
    return {name: kind for name, kind in known.items() if isinstance(kind, type) and kind not in (Any, object)}


def is_of(called: Any, table: Mapping[str, set[str]]) -> bool:
    """Whether a class or function is one of those in a table of names by module."""
    return isinstance(called, (type, types.BuiltinFunctionType, types.FunctionType)) and called.__name__ in table.get(
        str(called.__module__), ()
    )


def method_of(function: Callable[..., Any], cls: type | None) -> Method | None:
    """None where there is no source (a class typed into a bare prompt), or where another function stands before the one
    that is written.
    """
    if hasattr(function, "__wrapped__"):
        return method_of(function.__wrapped__, cls) if _is_quiet_wrapper(function) else None
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return None
    text = _as_it_stands(code)
    if text is None:
        return None
    definition = text.definition
    if cls is not None and _is_shadowed(cls, definition.name):
        return None
    stands = {
        p.arg for p in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)
    } - text.rebound
    ends = channel_ends(function)
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    scope = {
        name: value
        for name, value in {**vars(builtins), **getattr(function, "__globals__", {})}.items()
        if name not in own
    }
    first = next(iter(definition.args.posonlyargs + definition.args.args), None)
    return Method(
        definition.body,
        frozenset(name for name, end in ends.items() if end == READ and name in stands),
        frozenset(name for name, end in ends.items() if end == WRITE),
        first.arg if first is not None and first.arg in stands else "",
        cls if cls is not None else _owner(function),
        scope,
        text.exact,
        {name: kind for name, kind in _hinted(function).items() if name in stands},
    )


def _assigned(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What gets what; of ``a, b = x, y`` one by one."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


@dataclass(frozen=True)
class _Text:
    """A function as it stands in a file, whether that is what runs, and the names that it gives another meaning to."""

    definition: ast.FunctionDef
    exact: bool
    rebound: frozenset[str]


def _as_it_stands(code: types.CodeType) -> _Text | None:
    """None where nothing can be read. Remembered as long as the lines of the file are the same: to find, compile and
    compare them takes milliseconds, and every worker that is declared asks for each of its methods.
    """
    key = code.co_filename, code
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)  # the very same list, unless the file has changed
    known = _READ.get(key)
    if known is None or known[0] is not lines:
        definition = _definition(code)
        text = (
            None
            if definition is None
            else _Text(definition, _is_what_runs(definition, code), frozenset(_rebound(definition.body)))
        )
        known = lines, text
        if len(_READ) >= 1024:
            _READ.clear()
        _READ[key] = known
    return known[1]


def _definition(code: types.CodeType) -> ast.FunctionDef | None:
    try:
        text = inspect.getsource(code)
        # a text may have lines further left than its first: no dedent
        found = ast.parse(f"if True:\n{text}" if text[:1].isspace() else text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if isinstance(found, ast.If):
        found = found.body[0]
    return found if isinstance(found, ast.FunctionDef) and found.name == code.co_name else None


def _is_what_runs(definition: ast.FunctionDef, code: types.CodeType) -> bool:
    """Whether compiling the text gives the code: the file may have changed since it was imported."""
    bare = ast.FunctionDef(
        definition.name, definition.args, definition.body, [], definition.returns, None, lineno=1, col_offset=0
    )
    given = definition.args
    without: list[ast.expr | None] = [None] * len(given.kwonlyargs)
    bare.args = ast.arguments(given.posonlyargs, given.args, given.vararg, given.kwonlyargs, without, given.kwarg, [])
    owner = code.co_qualname.split(".")[-2:-1] or ["_"]
    # names that begin with __ are of a class
    inside = ast.ClassDef(owner[0] if owner[0].isidentifier() else "_", [], [], [bare], [])
    free = [ast.arg(name) for name in code.co_freevars if name != "__class__"]
    outer = ast.FunctionDef("outer", ast.arguments([], free, None, [], [], None, []), [inside], [], None, None)
    flags = code.co_flags & __future__.annotations.compiler_flag
    try:
        module = compile(
            ast.fix_missing_locations(ast.Module([outer], [])), "<source>", "exec", flags, dont_inherit=True
        )
    except (SyntaxError, ValueError, RecursionError):
        return False
    again = next((c for c in _codes(module) if c.co_name == code.co_name and c.co_varnames == code.co_varnames), None)
    return again is not None and _steps(again) == _steps(code)


def _steps(code: types.CodeType) -> list[tuple[str, Any]]:
    """Its instructions without what depends on the text around the function: how a method of an imported name is looked
    up.
    """
    found = []
    for i in dis.get_instructions(code):
        if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"):
            told = None if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs else i.argval
            found.append(
                (i.opname.replace("METHOD", "ATTR"), _steps(told) if isinstance(told, types.CodeType) else told)
            )
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Those inside a code object, the outer ones first."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _is_shadowed(cls: type, name: str) -> bool:
    """Whether something of the class may put another function in the place of its method: ``self.go =
    torch.compile(self.go)``.
    """
    stored = _stored(cls)
    return stored is None or name in stored


@functools.lru_cache(1024)
def _stored(cls: type) -> frozenset[str] | None:
    """Names of attributes that methods of a class assign to; None where they may be any."""
    functions = [
        inspect.unwrap(f)
        for c in cls.__mro__
        if c not in (Worker, object)
        for f in vars(c).values()
        if isinstance(f, types.FunctionType)
    ]
    codes = [code for f in functions for code in (f.__code__, *_codes(f.__code__))]
    by_name = any({"setattr", "__setattr__", "__dict__"} & set(code.co_names) for code in codes)
    if by_name or cls.__getattribute__ is not object.__getattribute__:
        return None
    return frozenset(i.argval for code in codes for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")


def _is_quiet_wrapper(function: Any) -> bool:
    """``@torch.no_grad()`` and its like above a method."""
    if function.__globals__.get("__name__") != "torch.utils._contextlib":
        return False
    factory = inspect.getclosurevars(function).nonlocals.get("ctx_factory")
    return is_of(type(getattr(factory, "__self__", None)), QUIET_BLOCKS)


def _owner(function: Any) -> type | None:
    """The class in whose body a function of a module was written."""
    here: Any = getattr(function, "__globals__", {})
    for name in function.__qualname__.split(".")[:-1]:
        here = here.get(name) if isinstance(here, dict) else vars(here).get(name) if isinstance(here, type) else None
    return here if isinstance(here, type) else None


def _rebound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that anything in these statements gives another meaning to."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.alias):
                yield (node.asname or node.name).split(".")[0]
            elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name
            elif isinstance(node, ast.MatchMapping) and node.rest:
                yield node.rest
