"""The macro flow: worker classes, channels, and a loop that calls worker methods. It never mentions devices."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import Any

from rlinf_lab.errors import ConfigError, RlinfLabError, UnknownNameError, WorkflowError, counted
from rlinf_lab.workflow.channel import Channel
from rlinf_lab.workflow.declaration import Declaration, check_constructor, check_function, would_not_run
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph
from rlinf_lab.workflow.handles import Dispatcher, Handle, LoopPart
from rlinf_lab.workflow.specs import DEFAULT_CAPACITY, ChannelSpec
from rlinf_lab.workflow.tracing.trace import trace
from rlinf_lab.workflow.weights import WeightsHandle
from rlinf_lab.workflow.worker import FunctionWorker, Worker

# Who receives the calls of each workflow, by its identity. Of the thread that executes the iteration: two runs of one
# workflow, or a run and a trace, must not hear each other's calls. At module level, so that a workflow holds nothing
# that cannot be copied.
_DISPATCHERS: ContextVar[Mapping[int, Dispatcher]] = ContextVar("rlinf_lab dispatchers", default=MappingProxyType({}))


class WorkerHandle(LoopPart):
    """A declared worker inside the iteration function: calling its methods returns a `Handle` at once."""

    def __init__(self, flow: Workflow, declaration: Declaration) -> None:
        self._flow = flow
        self._declaration = declaration

    def __getattr__(self, method: str) -> Callable[..., Handle]:
        if method.startswith("_"):
            raise AttributeError(
                f"{method!r} of worker {self._declaration.name!r}: what begins with an underscore belongs to the "
                "worker alone."
            )
        self._declaration.function(method)  # fails here, with the nearest name, rather than on a remote machine

        def call(*args: Any, **kwargs: Any) -> Handle:
            return self._flow.dispatcher().call(self._declaration.name, method, args, kwargs)

        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Handle:
        return self._flow.dispatcher().call(self._declaration.name, "__call__", args, kwargs)

    def __dir__(self) -> list[str]:
        return self._declaration.methods()

    def __repr__(self) -> str:
        methods = "".join(f", {m}{self._declaration.signature(m)}" for m in self._declaration.methods()[:6])
        return f"WorkerHandle({self._declaration.name!r}: {self._declaration.class_name}{methods})"


class Workflow(LoopPart):
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
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(
                f"A workflow's name is {name!r}; it must be a text that is not empty. Next: lab.Workflow('grpo')."
            )
        self.name = name
        self.channel_specs: dict[str, ChannelSpec] = {}
        self.weight_names: list[str] = []
        self.workers: dict[str, Declaration] = {}
        self._body: Callable[..., Any] | None = None

    # --- declaring -----------------------------------------------------------------------------------
    def channel(
        self, name: str, *, capacity: int | None = DEFAULT_CAPACITY, keyed: bool = False, whole: bool = False,
        weight: Callable[[Any], int] | None = None, order: str | Callable[[Any], float] = "fifo", group: int = 1,
        discard_unread: bool = False, may_be_empty: bool = False, gather: str = "writers",
    ) -> Channel:  # fmt: skip
        """Declare a channel. See `ChannelSpec` for the fields."""
        if name in self.channel_specs:
            raise WorkflowError(
                f"Workflow {self.name!r} has a channel {name!r} already. Next: choose another name, or run the cell "
                "that makes the Workflow again."
            )
        self.channel_specs[name] = ChannelSpec(
            name, capacity, keyed, whole, weight, order, group, discard_unread, may_be_empty, gather
        )
        self._forget_graph()
        return Channel(self, self.channel_specs[name])

    def channels(self, *names: str) -> tuple[Channel, ...]:
        """Declare several channels with the default capacity."""
        return tuple(self.channel(n) for n in names)

    def weights(self, name: str) -> WeightsHandle:
        """Declare a store of weights: one worker publishes versions, others pull them. See `Weights`."""
        if name in self.weight_names:
            raise WorkflowError(
                f"Workflow {self.name!r} has weights {name!r} already. Next: choose another name, or run the cell that "
                "makes the Workflow again."
            )
        made = WeightsHandle(self, name)
        self.weight_names.append(name)
        self._forget_graph()
        return made

    def worker(
        self, what: type[Worker] | Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any
    ) -> WorkerHandle:
        """Declare a worker from a `Worker` class and arguments, or a function on batches."""
        if isinstance(what, type) and issubclass(what, Worker):
            cls, arguments, default = what, args, what.__name__.lower()
            check_constructor(what, args, kwargs)
        elif callable(what) and not isinstance(what, (type, Worker, WorkerHandle)):
            check_function(what, args, kwargs)
            cls, arguments, default = FunctionWorker, (what,), getattr(what, "__name__", "function")
            default = "function" if default == "<lambda>" else default
        else:
            near = (
                what.__name__ if isinstance(what, type) else type(what).__name__ if isinstance(what, Worker) else "Mine"
            )
            raise WorkflowError(
                "A worker is a subclass of lab.Worker (the class, not an instance) or a function on batches, not "
                f"{what!r}. "
                f"Next: `class {near}(lab.Worker): ...` and flow.worker({near}, ...) with its constructor's arguments."
            )
        chosen = default if name is None else name
        if not isinstance(chosen, str) or not chosen.isidentifier():
            raise ConfigError(
                f"Worker name {chosen!r} is not an identifier. Next: use letters, digits and underscores."
            )
        if chosen in self.workers or chosen == DRIVER:
            raise WorkflowError(
                f"Workflow {self.name!r} has a worker {chosen!r} already. Next: pass name=... to tell them apart, or "
                "run the "
                f"cell that makes the Workflow again."
            )
        self.workers[chosen] = Declaration(chosen, cls, arguments, kwargs)
        self._forget_graph()
        return WorkerHandle(self, self.workers[chosen])

    def iteration(self, body: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: the function that is one iteration of the loop. A later one takes its place; runs keep the one
        they began with.
        """
        if not callable(body):
            raise WorkflowError(
                f"The iteration of workflow {self.name!r} is {body!r}, which is no function. Next: `@flow.iteration`, "
                "without parentheses, above a `def`."
            )
        if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise WorkflowError(f"The iteration {body.__name__!r} of workflow {self.name!r} {would_not_run(body)}")
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

    def outdated(self) -> list[str]:
        """Workers whose class has been defined anew since, in its cell or by a reload. They go on with the old one."""
        return [name for name, declaration in self.workers.items() if declaration.outdated()]

    # --- running (used by executors) -------------------------------------------------------------------
    def listener(self) -> Dispatcher | None:
        """As `dispatcher`; None outside a run."""
        return _DISPATCHERS.get().get(id(self))

    def dispatcher(self) -> Dispatcher:
        """Who receives the calls that this thread makes now."""
        found = self.listener()
        if found is None:
            raise WorkflowError(
                f"Workflow {self.name!r}: a worker or channel was used outside a run. Calls belong into the function "
                "that "
                "@flow.iteration decorates, not into threads that it starts, and not into methods of workers (those "
                "are given channels as "
                f"arguments). Next: start it with lab.run(flow, plan=..., iterations=...)."
            )
        return found

    @contextlib.contextmanager
    def dispatching(self, dispatcher: Dispatcher) -> Iterator[None]:
        """Send the calls that this thread makes in the block to ``dispatcher``."""
        token = _DISPATCHERS.set({**_DISPATCHERS.get(), id(self): dispatcher})
        try:
            yield
        finally:
            _DISPATCHERS.reset(token)

    def _forget_graph(self) -> None:
        self.__dict__.pop("graph", None)

    def __repr__(self) -> str:
        parts = f"{counted(len(self.workers), 'worker')}, {counted(len(self.channel_specs), 'channel')}"
        if self._body is None:
            return f"Workflow({self.name!r}: {parts}, no iteration yet)"
        try:
            return repr(self.graph)
        except RlinfLabError as error:
            return f"Workflow({self.name!r}: {parts}; its iteration cannot be traced. {str(error).splitlines()[0]})"

    def _repr_html_(self) -> str | None:
        try:
            return None if self._body is None else self.graph._repr_html_()
        except RlinfLabError:  # the text says why there is no picture
            return None
