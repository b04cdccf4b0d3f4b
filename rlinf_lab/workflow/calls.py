"""A call of a worker's method, as data: what the executor sends, what the graph is traced from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.channel import Channel, ChannelSpec

READ, WRITE = "read", "write"


@dataclass(frozen=True, slots=True)
class ChannelArg:
    """An argument that is a channel end: ``direction`` is ``"read"`` (Inbox) or ``"write"`` (Outbox)."""

    channel: str
    direction: str


@dataclass(frozen=True, slots=True)
class RefArg:
    """An argument that is (a part of) the value of another call. ``path``: attributes (".x") and items ("[", key)."""

    call_id: int
    path: tuple[tuple[str, Any], ...] = ()
    producer: str = ""


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call of one worker, for all its ranks. ``starts_on_device``: it computes before its first get."""

    call_id: int
    worker: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    starts_on_device: bool = True

    def arguments(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    def channels(self, direction: str) -> list[str]:
        return [a.channel for a in self.arguments() if isinstance(a, ChannelArg) and a.direction == direction]

    def refs(self) -> list[RefArg]:
        return [a for a in self.arguments() if isinstance(a, RefArg)]


class Handle:
    """The future of a call. ``handle.wait()`` is the only barrier; ``handle.x`` and ``handle["x"]`` are lazy parts of its value.

    Workers with several ranks return one value per rank: ``wait()`` gives the list, a lazy part refers to rank 0's value
    (ranks of one program agree on what they return).
    """

    __slots__ = ("_call", "_dispatcher")

    def __init__(self, dispatcher: Dispatcher, call: CallSpec) -> None:
        self._dispatcher = dispatcher
        self._call = call

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the call returned; its value, or the worker's own exception as `WorkerError`.

        ``timeout`` in seconds; `TimeoutError` when it passes first.
        """
        return self._dispatcher.wait(self._call, (), timeout)

    def done(self) -> bool:
        """True when the call has returned or failed; never blocks."""
        return self._dispatcher.done(self._call)

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):
            raise AttributeError(name)
        return Ref(self, ((".", name),))

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self, (("[", key),))

    def __repr__(self) -> str:
        return f"Handle({self._call.worker}.{self._call.method}, iteration {self._call.iteration})"


class Ref:
    """A part of a call's value that may not be there yet: pass it on to another call, or `wait()` for it."""

    __slots__ = ("_handle", "_path")

    def __init__(self, handle: Handle, path: tuple[tuple[str, Any], ...]) -> None:
        self._handle = handle
        self._path = path

    def wait(self, timeout: float | None = None) -> Any:
        return self._handle._dispatcher.wait(self._handle._call, self._path, timeout)

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):
            raise AttributeError(name)
        return Ref(self._handle, (*self._path, (".", name)))

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self._handle, (*self._path, ("[", key)))

    def __repr__(self) -> str:
        return f"Ref({self._handle!r}{path_text(self._path)})"


def path_text(path: tuple[tuple[str, Any], ...]) -> str:
    return "".join(f".{key}" if how == "." else f"[{key!r}]" for how, key in path)


def follow(value: Any, path: tuple[tuple[str, Any], ...]) -> Any:
    """The part of ``value`` that ``path`` names; a dict also answers to attribute access."""
    for how, key in path:
        if how == "." and not (isinstance(value, dict) and key in value):
            value = getattr(value, key)
        else:
            value = value[key]
    return value


class Dispatcher(Protocol):
    """Who receives the calls of an iteration function: the tracer (a dry run) or a session of an executor."""

    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle: ...
    def wait(self, call: CallSpec, path: tuple[tuple[str, Any], ...], timeout: float | None) -> Any: ...
    def done(self, call: CallSpec) -> bool: ...
    def driver_put(self, channel: ChannelSpec, items: list[Any], key: int | None) -> None: ...
    def driver_get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]: ...


def bind(
    call_id: int,
    worker: str,
    function: Callable[..., Any],
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    iteration: int,
    starts_on_device: bool,
) -> CallSpec:
    """Turn live arguments (channels, handles, values) into a `CallSpec`. Raises `WorkflowError` for a wrong call."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(None, *args, **kwargs)  # None stands for self
    except TypeError as error:
        raise WorkflowError(
            f"Call of {worker}.{method}{signature}: {error}. Got {len(args)} positional arguments and {sorted(kwargs)}."
        ) from None
    directions = {name: _direction(p) for name, p in signature.parameters.items()}

    def convert(name: str, value: Any) -> Any:
        if isinstance(value, Channel):
            if directions[name] is None:
                raise WorkflowError(
                    f"{worker}.{method}: the channel {value.name!r} is passed as {name!r}, which is not annotated as an "
                    f"Inbox or an Outbox. Next: write `{name}: lab.Inbox` to read from it, `{name}: lab.Outbox` to write."
                )
            return ChannelArg(value.name, directions[name] or READ)
        if directions[name] is not None:
            raise WorkflowError(f"{worker}.{method}: {name!r} must be a channel of this workflow, not {value!r}.")
        if isinstance(value, Handle):
            return RefArg(value._call.call_id, (), value._call.worker)
        if isinstance(value, Ref):
            return RefArg(value._handle._call.call_id, value._path, value._handle._call.worker)
        return value

    names = list(bound.arguments)[1:]
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name in names:
        parameter, value = signature.parameters[name], bound.arguments[name]
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional.extend(convert(name, v) for v in value)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            keywords.update({k: convert(name, v) for k, v in value.items()})
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords[name] = convert(name, value)
        else:
            positional.append(convert(name, value))
    return CallSpec(call_id, worker, method, tuple(positional), keywords, iteration, starts_on_device)


def _direction(parameter: inspect.Parameter) -> str | None:
    """Read from the annotation; a text annotation (postponed evaluation) is searched for the class name."""
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else f"{getattr(annotation, '__name__', '')} {annotation!r}"
    if "Outbox" in text:
        return WRITE
    return READ if "Inbox" in text else None
