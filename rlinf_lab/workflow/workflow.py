"""The macro flow: worker classes, channels, and a loop that calls worker methods. It never mentions devices."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import Any

from rlinf_lab.errors import ConfigError, UnknownNameError, WorkflowError
from rlinf_lab.workflow.channel import DEFAULT_CAPACITY, Channel, ChannelSpec
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph
from rlinf_lab.workflow.handles import Dispatcher, Handle
from rlinf_lab.workflow.trace import trace
from rlinf_lab.workflow.worker import FunctionWorker, Worker

# Who receives the calls of each workflow, by its identity. Of the thread that executes the iteration: two runs of one workflow, or a run
# and a trace, must not hear each other's calls. At module level, so that a workflow holds nothing that cannot be copied.
_DISPATCHERS: ContextVar[Mapping[int, Dispatcher]] = ContextVar("rlinf_lab dispatchers", default=MappingProxyType({}))


class Declaration:
    """A worker as declared: its class and the arguments of its constructor. Built where it will live, not here."""

    def __init__(self, name: str, cls: type[Worker], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.cls, self.args, self.kwargs = name, cls, args, kwargs
        self._starts: dict[str, bool] = {}  # reading source code takes a millisecond, a call must not

    @property
    def class_name(self) -> str:
        if self.cls is FunctionWorker:
            return getattr(self.args[0], "__name__", "function")
        return self.cls.__name__

    def build(self) -> Worker:
        return self.cls(*self.args, **self.kwargs)

    def function(self, method: str) -> Callable[..., Any]:
        function = inspect.getattr_static(self.cls, method, None)
        if (method.startswith("_") and method != "__call__") or not inspect.isfunction(function):
            public = [n for n, f in inspect.getmembers(self.cls, inspect.isfunction) if not n.startswith("_")]
            raise UnknownNameError.of(f"method of worker {self.name!r} ({self.class_name})", method, public)
        return function

    def signature(self, method: str) -> str:
        parameters = list(inspect.signature(self.function(method)).parameters.values())[1:]
        return f"({', '.join(str(p) for p in parameters)})"

    def starts_on_device(self, method: str) -> bool:
        """Whether the method computes before it first reads from an inbox."""
        if method not in self._starts:
            self._starts[method] = _starts_on_device(self.function(method))
        return self._starts[method]


class WorkerHandle:
    """A declared worker inside the iteration function: calling its methods returns a `Handle` at once."""

    def __init__(self, flow: Workflow, declaration: Declaration) -> None:
        self._flow = flow
        self._declaration = declaration

    def __getattr__(self, method: str) -> Callable[..., Handle]:
        if method.startswith("_"):
            raise AttributeError(method)
        self._declaration.function(method)  # fails here, with the nearest name, rather than on a remote machine

        def call(*args: Any, **kwargs: Any) -> Handle:
            return self._flow.dispatcher().call(self._declaration.name, method, args, kwargs)

        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Handle:
        return self._flow.dispatcher().call(self._declaration.name, "__call__", args, kwargs)

    def __dir__(self) -> list[str]:
        return [n for n, _ in inspect.getmembers(self._declaration.cls, inspect.isfunction) if not n.startswith("_")]

    def __repr__(self) -> str:
        return f"WorkerHandle({self._declaration.name!r}: {self._declaration.class_name})"


class Workflow:
    """Workers, channels and one iteration of an ordinary Python loop.

    >>> flow = Workflow("double")
    >>> numbers, doubled = flow.channels("numbers", "doubled")
    >>> double = flow.worker(lambda batch: [2 * x for x in batch], name="double")
    >>> @flow.iteration
    ... def iteration():
    ...     numbers.put_all(range(4))
    ...     double(numbers, doubled)
    ...     return doubled.get_all()
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.channel_specs: dict[str, ChannelSpec] = {}
        self.workers: dict[str, Declaration] = {}
        self._body: Callable[..., Any] | None = None

    # --- declaring -----------------------------------------------------------------------------------
    def channel(
        self, name: str, *, capacity: int | None = DEFAULT_CAPACITY, keyed: bool = False, whole: bool = False
    ) -> Channel:
        """Declare a channel. See `ChannelSpec` for the fields."""
        if name in self.channel_specs:
            raise WorkflowError(f"Workflow {self.name!r} has a channel {name!r} already; choose another name.")
        self.channel_specs[name] = ChannelSpec(name, capacity, keyed, whole)
        self._forget_graph()
        return Channel(self, self.channel_specs[name])

    def channels(self, *names: str) -> tuple[Channel, ...]:
        """Declare several channels with the default capacity."""
        return tuple(self.channel(n) for n in names)

    def worker(self, what: type[Worker] | Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any) -> WorkerHandle:
        """Declare a worker from a `Worker` class with its constructor's arguments, or from a function on batches."""
        if isinstance(what, type) and issubclass(what, Worker):
            cls, arguments, default = what, args, what.__name__.lower()
            self._check_constructor(what, args, kwargs)
        elif callable(what) and not isinstance(what, type):
            cls, arguments, default = FunctionWorker, (what, *args), getattr(what, "__name__", "function")
            default = "function" if default == "<lambda>" else default
        else:
            raise WorkflowError(
                f"A worker is a subclass of lab.Worker or a function on batches, not {what!r}. "
                f"Next: `class {getattr(what, '__name__', 'Mine')}(lab.Worker): ...`"
            )
        chosen = name or default
        if chosen in self.workers or chosen == DRIVER:
            raise WorkflowError(f"Workflow {self.name!r} has a worker {chosen!r} already; pass name=... to tell them apart.")
        if not chosen.isidentifier():
            raise ConfigError(f"Worker name {chosen!r} is not an identifier; use letters, digits and underscores.")
        self.workers[chosen] = Declaration(chosen, cls, arguments, kwargs)
        self._forget_graph()
        return WorkerHandle(self, self.workers[chosen])

    def iteration(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the function that is one iteration of the loop."""
        self._body = body
        self._forget_graph()
        return body

    # --- looking at it -----------------------------------------------------------------------------
    @cached_property
    def graph(self) -> WorkflowGraph:
        """The traced graph (a dry run of the iteration; nothing is computed)."""
        return trace(self)

    @property
    def body(self) -> Callable[..., Any]:
        if self._body is None:
            raise WorkflowError(
                f"Workflow {self.name!r} has no iteration yet. Next: decorate the function with @flow.iteration."
            )
        return self._body

    def declaration(self, worker: str) -> Declaration:
        if worker not in self.workers:
            raise UnknownNameError.of("worker", worker, self.workers)
        return self.workers[worker]

    # --- running (used by executors) -------------------------------------------------------------------
    def listener(self) -> Dispatcher | None:
        """As `dispatcher`; None outside a run."""
        return _DISPATCHERS.get().get(id(self))

    def dispatcher(self) -> Dispatcher:
        """Who receives the calls that this thread makes now."""
        found = self.listener()
        if found is None:
            raise WorkflowError(
                f"Workflow {self.name!r}: a worker or channel was used outside a run. Calls belong into the function that "
                f"@flow.iteration decorates (and not into threads that it starts); start it with lab.run(flow, plan=..., iterations=...)."
            )
        return found

    @contextlib.contextmanager
    def dispatching(self, dispatcher: Dispatcher) -> Iterator[None]:
        """Send the calls that this thread makes to this workflow to ``dispatcher`` for the duration of the block."""
        token = _DISPATCHERS.set({**_DISPATCHERS.get(), id(self): dispatcher})
        try:
            yield
        finally:
            _DISPATCHERS.reset(token)

    def _check_constructor(self, cls: type[Worker], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            inspect.signature(cls).bind(*args, **kwargs)
        except TypeError as error:
            raise WorkflowError(f"Worker class {cls.__name__}{inspect.signature(cls)}: {error}.") from None

    def _forget_graph(self) -> None:
        self.__dict__.pop("graph", None)

    def __repr__(self) -> str:
        if self._body is None:
            return f"Workflow({self.name!r}: {len(self.workers)} workers, {len(self.channel_specs)} channels, no iteration yet)"
        return repr(self.graph)

    def _repr_html_(self) -> str | None:
        return None if self._body is None else self.graph._repr_html_()


def _starts_on_device(function: Callable[..., Any]) -> bool:
    """False when the method's first statement reads from an inbox: then it needs no device before its input is there.

    Read from the source; where there is none (a class typed into a bare prompt) the safe answer is True.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        return True
    inboxes = {a.arg for a in definition.args.args if a.annotation is not None and "Inbox" in ast.unparse(a.annotation)}
    statements = definition.body
    if isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
        statements = statements[1:]
    if not statements:
        return True
    source = _read_from(statements[0])
    return not (isinstance(source, ast.Name) and source.id in inboxes)


def _read_from(statement: ast.stmt) -> ast.AST | None:
    """What the statement reads first: ``x`` in ``for _ in x``, ``y = x.get()`` and ``while y := x.get()``."""
    if isinstance(statement, ast.For):
        return statement.iter
    value: ast.AST | None = getattr(statement, "value", None)
    if isinstance(statement, ast.While):
        value = statement.test
    if isinstance(value, ast.NamedExpr):
        value = value.value
    if not isinstance(value, ast.Call):
        return None
    return value.func.value if isinstance(value.func, ast.Attribute) else value.func
