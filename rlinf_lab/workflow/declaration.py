"""A worker as declared, and what can be a worker. What cannot is refused here by name rather than later on another
machine.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from rlinf_lab.errors import UnknownNameError, WorkflowError
from rlinf_lab.workflow.source import batched, computes_first
from rlinf_lab.workflow.worker import Context, FunctionWorker, Worker


class Declaration:
    """A worker as declared: its class and the arguments of its constructor. Built where it will live, not here."""

    def __init__(self, name: str, cls: type[Worker], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.cls, self.args, self.kwargs = name, cls, args, kwargs
        self._starts: dict[str, bool] = {}  # reading source code takes milliseconds, a call must not

    @property
    def arguments(self) -> list[Any]:
        """What its constructor is given, in order."""
        return [*self.args, *self.kwargs.values()]

    @property
    def class_name(self) -> str:
        if self.cls is FunctionWorker:
            return getattr(self.args[0], "__name__", "function")
        return self.cls.__name__

    def outdated(self) -> bool:
        """Whether another class has taken the place of this one in its module."""
        scope = getattr(sys.modules.get(self.cls.__module__), "__dict__", {})
        return (
            "." not in self.cls.__qualname__
            and isinstance(now := scope.get(self.cls.__name__), type)
            and now is not self.cls
        )

    def has_preflight(self) -> bool:
        """Whether the class has something to say about a plan before a launch."""
        return self.cls.preflight is not Worker.preflight

    def build(self, context: Context) -> Worker:
        """The worker. It knows its rank and device from the first line of its constructor on."""
        worker = self.cls.__new__(self.cls, *self.args, **self.kwargs)
        object.__setattr__(worker, "_context", context)  # whatever the class does about attributes
        worker.__init__(*self.args, **self.kwargs)  # type: ignore[misc]
        return worker

    def function(self, method: str) -> Callable[..., Any]:
        """The method as written. `UnknownNameError` with the nearest name, `WorkflowError` for one that cannot be
        called from a loop.
        """
        function = inspect.getattr_static(self.cls, method, None)
        who = f"method of worker {self.name!r} ({self.class_name})"
        if isinstance(function, (staticmethod, classmethod)):
            raise WorkflowError(
                f"{method!r} is a {type(function).__name__}, not a {who}. Next: make it an ordinary method, `def "
                f"{method}(self, ...)`."
            )
        if (method.startswith("_") and method != "__call__") or not inspect.isfunction(function):
            advice = "Call the worker itself, it is one function." if self.cls is FunctionWorker else ""
            raise UnknownNameError.of(who, method, self.methods(), advice)
        if fault := _fault(function):
            raise WorkflowError(f"{method!r}, a {who}, {fault}")
        return function

    def methods(self) -> list[str]:
        """The methods a loop may call: public ones, not merely inherited from `Worker`."""
        found = inspect.getmembers(self.cls, inspect.isfunction)
        return [n for n, f in found if not n.startswith("_") and getattr(Worker, n, None) is not f]

    def signature(self, method: str) -> str:
        """The method's parameters as written, without self."""
        parameters = list(signature_of(self.function(method)).parameters.values())[1:]
        return f"({', '.join(str(p.replace(annotation=_as_written(p.annotation))) for p in parameters)})"

    def __repr__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        text = ", ".join(arguments)
        return f"Declaration({self.name!r}: {self.class_name}({text if len(text) <= 60 else text[:57] + '...'}))"

    def starts_on_device(self, method: str) -> bool:
        """Whether the method computes, or may compute, before it first reads from an inbox."""
        if method not in self._starts:
            self._starts[method] = computes_first(self.function(method), self.cls)
        return self._starts[method]

    def batched(self, method: str) -> frozenset[str]:
        """The inboxes of which the method gets the plan's batches and nothing else."""
        return batched(self.function(method))


@functools.lru_cache(1024)
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """As written, self included. Every call and iteration asks; inspecting takes fifty times as long as remembering."""
    return inspect.signature(function)


@functools.lru_cache(1024)
def returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether its value can only be None. No line of it returns anything else, and its annotation does not say that it
    would.
    """
    if signature_of(function).return_annotation is not inspect.Signature.empty:
        return says_none(function)
    before = None
    for one in dis.get_instructions(function):
        if one.opname == "RETURN_CONST" and one.argval is not None:
            return False
        if one.opname == "RETURN_VALUE" and (
            one.is_jump_target or before is None or before.opname != "LOAD_CONST" or before.argval is not None
        ):
            return False
        before = one
    return True


def says_none(function: Callable[..., Any]) -> bool:
    """Whether it is annotated as ``-> None``."""
    return signature_of(function).return_annotation in (None, type(None), "None")


@functools.lru_cache(1024)
def _fault(function: Callable[..., Any]) -> str:
    """Why a method cannot be called from a loop; "" when it can."""
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        return would_not_run(function)
    first = next(iter(signature_of(function).parameters.values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return f"takes no self. Next: `def {function.__name__}(self, ...)`."
    return ""


class _Written:
    """An annotation that is text (postponed evaluation): `inspect` would put it in quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _as_written(annotation: Any) -> Any:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def would_not_run(function: Callable[..., Any]) -> str:
    """The end of a sentence about an async or generator function."""
    if inspect.isgeneratorfunction(function):
        return (
            "is a generator function (it contains yield), so calling it would run nothing. Next: return a value, or "
            "put items into a lab.Outbox."
        )
    return (
        "is an async function, so calling it would run nothing. Next: write `def` instead of `async def`; calls of "
        "workers do not block "
        "anyway, and a method may use asyncio.run(...) inside."
    )


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Its signature, and why it cannot be called so. The latter is "" when it can, or is written in C and silent."""
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"{signature}: {error}"
    return ""


def check_constructor(cls: type[Worker], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if why := misfit(cls, args, kwargs):
        raise WorkflowError(
            f"Worker class {cls.__name__}{why}. Next: flow.worker({cls.__name__}, ...) takes the "
            "constructor's arguments behind the class."
        )


def check_iteration_call(
    name: str, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], advice: str
) -> None:
    """Whether the iteration function of the workflow called ``name`` takes these arguments."""
    if why := misfit(body, args, kwargs):
        function = getattr(body, "__name__", "iteration")
        raise WorkflowError(f"Workflow {name!r}: its iteration {function}{why}. Next: {advice}.")


def check_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A function on batches is called with one list and returns the results."""
    name = getattr(function, "__name__", repr(function))
    if args or kwargs:
        given = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
        raise WorkflowError(
            f"The function {name!r} as a worker takes no further arguments, but got {given}. Next: "
            f"functools.partial({name}, ...), or a "
            f"subclass of lab.Worker with a constructor."
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise WorkflowError(f"The function {name!r} {would_not_run(function)}")
    if why := misfit(function, ([],), {}):
        raise WorkflowError(
            f"As a worker a function is called with one list of items and returns the list of results; {name}{why}. "
            "Next: give it one parameter, or write a subclass of lab.Worker."
        )
