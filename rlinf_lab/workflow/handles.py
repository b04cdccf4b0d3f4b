"""What a call returns at once. It is a handle of its future value, and lazy parts of that value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Protocol

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.declaration import Declaration
from rlinf_lab.workflow.specs import CallSpec, ChannelSpec
from rlinf_lab.workflow.structure import Path, path_text


class Dispatcher(Protocol):
    """Who receives the calls of an iteration function: the tracer or an executor's session. ``is_dry``: the tracer,
    which runs nothing.
    """

    is_dry: bool

    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle: ...
    def wait(self, call: CallSpec, path: Path, timeout: float | None) -> Any: ...
    def done(self, call: CallSpec) -> bool: ...
    def driver_put(
        self,
        channel: ChannelSpec,
        items: list[Any],
        key: int | None,
        weight: int | None = None,
        priority: float | None = None,
    ) -> None: ...
    def driver_get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]: ...


class FlowBuilder(Protocol):
    """A workflow as its parts know it. They see what is declared, and who receives the calls of its loop now."""

    name: str
    workers: dict[str, Declaration]
    channel_specs: dict[str, ChannelSpec]

    @property
    def body(self) -> Callable[..., Any]: ...
    def declaration(self, worker: str) -> Declaration: ...
    def dispatcher(self) -> Dispatcher: ...
    def listener(self) -> Dispatcher | None: ...
    def dispatching(self, dispatcher: Dispatcher) -> AbstractContextManager[None]: ...


class LoopPart:
    """A workflow, or a worker of it. The iteration function calls it; it is no value that could be given to a worker.
    """


class _Lazy:
    """A value that may not be there yet. What only a value can do is refused by name instead of giving
    something wrong.
    """

    __slots__ = ()

    def _without_value(self, *_: Any, **__: Any) -> NoReturn:
        raise WorkflowError(
            f"{self!r} has no value yet: it cannot be compared, computed with, iterated, called or formatted. Next: "
            "call .wait() on it "
            f"and use what that returns, or pass it to another worker's method as it is."
        )

    __bool__ = __len__ = __iter__ = __contains__ = __call__ = __reversed__ = __next__ = _without_value
    __float__ = __int__ = __index__ = __complex__ = __round__ = __array__ = _without_value
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = _without_value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _without_value
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _without_value
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __divmod__ = __rdivmod__ = _without_value
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __setitem__ = __delitem__ = __enter__ = __exit__ = (
        __await__
    ) = _without_value

    def __format__(self, spec: str) -> str:
        return self._without_value() if spec else repr(self)

    def __reduce__(self) -> NoReturn:
        raise WorkflowError(
            f"{self!r} cannot be copied or sent inside this value. Next: pass it as an argument of its own, or in a "
            "list, tuple, dict or "
            f"dataclass; there it is replaced by its value."
        )


class Ref(_Lazy):
    """A part of a call's value that may not be there yet. Pass it on to another call, or `wait()` for it."""

    __slots__ = ("_call", "_dispatcher", "_path")

    def __init__(self, dispatcher: Dispatcher, call: CallSpec, path: Path = ()) -> None:
        self._dispatcher, self._call, self._path = dispatcher, call, path

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the call returned; this part of its value. Raises the worker's own exception as `WorkerError`.

        ``timeout`` in seconds; `TimeoutError` when it passes first.
        """
        return self._dispatcher.wait(self._call, self._path, timeout)

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("_"):
            raise AttributeError(name)
        return Ref(self._dispatcher, self._call, (*self._path, (".", name)))

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self._dispatcher, self._call, (*self._path, ("[", key)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ref):
            self._without_value()
        return self._call is other._call and self._path == other._path

    def __hash__(self) -> int:
        return hash(id(self._call))

    def _whole(self) -> str:
        return f"Handle({self._call.worker}.{self._call.method}, iteration {self._call.iteration})"

    def __repr__(self) -> str:
        return f"Ref({self._whole()}{path_text(self._path)})"


class Handle(Ref):
    """The future of a call. ``handle.wait()`` is the only barrier; ``handle.x`` and ``handle["x"]`` are lazy parts of
    its value.

    Workers with several ranks return one value per rank: ``wait()`` gives the list, a lazy part refers to rank 0's
    value (ranks of one program agree on what they return).
    """

    __slots__ = ()

    def done(self) -> bool:
        """True when the call has returned or failed; never blocks."""
        return self._dispatcher.done(self._call)

    def __repr__(self) -> str:
        return self._whole()


def awaited(lazy: Any) -> tuple[CallSpec, Path] | None:
    """The call of whose value this is a lazy part, and the way to it. None for what is no such part."""
    return (lazy._call, lazy._path) if isinstance(lazy, Ref) else None


class Origin(NamedTuple):
    """Where a value comes from: who makes the call, and which part it returns."""

    dispatcher: Dispatcher
    call: CallSpec
    path: Path


def origin_of(value: Ref) -> Origin:
    """What a handle or a part of one stands for. Its own attributes would be lazy parts of the value."""
    return Origin(value._dispatcher, value._call, value._path)
