"""Every public exception, in one place.

Each is also a standard-library error, so that ``except ValueError`` keeps working, and each survives
pickling, so that it can cross a process. A message names the object, shows the value and says the next step.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_C = TypeVar("_C", bound=type)
LISTED = 16  # names in a message at most; of more the nearest ones


def shown(value: object, limit: int = 80) -> str:
    """``repr`` for a message: one line, cut, also of what has no working one."""
    try:
        text = repr(value).split("\n", 1)[0]
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def said(error: BaseException) -> str:
    """What an error says; also of one that cannot."""
    try:
        return str(error)
    except Exception as problem:
        return f"<{type(error).__name__}, whose str raises {type(problem).__name__}>"


def counted(number: int, noun: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def article(noun: str) -> str:
    """``a list``, ``an int``."""
    return f"{'an' if noun[:1].lower() in {*'aeiou'} else 'a'} {noun}"


def renamed(**names: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorator: refuse an argument by its name of before, and say the new one. ``names``: old to new."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            refuse_old_names(f"{function.__qualname__.removesuffix('.__init__')}()", kwargs, names)
            return function(*args, **kwargs)

        return checked

    return decorate


def refuse_old_names(who: str, given: Iterable[str], names: Mapping[str, str]) -> None:
    """Raise `RenamedError` for what is ``given`` by the name that it had before. ``names``: old to new, or to what to write instead."""
    for old in given:
        if old in names and names[old].isidentifier():
            raise RenamedError(f"{who}: {old!r} is called {names[old]!r} now. Next: {names[old]}=...")
        if old in names:
            raise RenamedError(f"{who}: {old!r} is gone. Next: {names[old]}.")


def with_old_names(renamed: Mapping[str, str]) -> Callable[[_C], _C]:
    """Class decorator: an old name raises `RenamedError` with the new one.

    In one line, where the class is constructed with the old name, or it is read.
    """

    def decorated(cls: _C) -> _C:
        construct = cls.__init__  # type: ignore[misc]

        @functools.wraps(construct)
        def checked(self: Any, *values: Any, **named: Any) -> None:
            refuse_old_names(cls.__name__, named, renamed)
            construct(self, *values, **named)

        def absent(self: Any, name: str) -> Any:
            if any(name in vars(base) for base in type(self).__mro__):  # a property whose own code lacks something: what it says is the fault
                return object.__getattribute__(self, name)
            refuse_old_names(cls.__name__, [name], renamed)
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}")

        cls.__init__, cls.__getattr__ = checked, absent  # type: ignore[misc,attr-defined]
        return cls

    return decorated


class RlinfLabError(Exception):
    """Base of everything this package raises on purpose."""

    def __reduce__(self) -> tuple:
        # Exceptions with keyword-only state do not survive pickle by default.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[RlinfLabError], args: tuple, state: dict) -> RlinfLabError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UnknownNameError(RlinfLabError, LookupError):
    """A name (environment, worker, channel, field) that does not exist; suggests the nearest one."""

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[str], hint: str = "", alike: float = 0.4, whose: str = "") -> UnknownNameError:
        """Build the message.

        ``what`` is the kind of thing, ``known`` the names that would work, ``alike`` (0 to 1) how near one must be to
        be meant, ``whose`` what should have it.
        """
        names = sorted(str(k) for k in known)
        small = {one.lower(): one for one in reversed(names)}
        near = difflib.get_close_matches(str(name).lower(), small, n=1, cutoff=alike)
        nearest = f" Did you mean {small[near[0]]!r}?" if near else ""
        if len(names) > LISTED:  # the first ones of the alphabet help nobody
            ordered = difflib.get_close_matches(str(name).lower(), small, n=LISTED // 2 if near else LISTED, cutoff=0.0)
            listing = f"{', '.join(small[one] for one in ordered)}, … ({len(names)} in all)"
        else:
            listing = ", ".join(names) if names else "none"
        rest = [hint] * bool(hint) + ["Next: one of those."] * (bool(names) and "Next:" not in hint)
        said = f"{whose} has no {what} {shown(name)}" if whose else f"Unknown {what} {shown(name)}"
        return cls(" ".join([f"{said}.{nearest} Known: {listing}.", *rest]))


class ConfigError(RlinfLabError, ValueError):
    """A field of a configuration has a value that cannot work."""


class RenamedError(ConfigError, TypeError, AttributeError):
    """A name of an earlier version; says the new one."""


class WorkflowError(RlinfLabError, ValueError):
    """The workflow itself is wrong. A channel without a consumer, a call with the wrong arguments."""


class PlanError(RlinfLabError, ValueError):
    """The plan does not fit the workflow or the devices."""


class PlanNameError(PlanError, UnknownNameError):
    """A plan names a worker, channel or field that does not exist. Suggests the nearest one."""


class EnvError(RlinfLabError, RuntimeError):
    """A simulator failed, or an environment breaks the `VecEnv` contract."""


class MissingDependencyError(RlinfLabError, ImportError):
    """An optional package is not installed; the message says which extra installs it."""

    @classmethod
    def of(cls, package: str, extra: str, why: str) -> MissingDependencyError:
        return cls(f"{why} needs the package {package!r}, which is not installed. Next: pip install 'rlinf-lab[{extra}]'")


class ChannelClosed(RlinfLabError, EOFError):
    """A `take()` found the end of the stream: every producer has finished."""


class ChannelBroken(RlinfLabError, ConnectionError):
    """The process at the other end of a channel died before it closed the channel."""


class Cancelled(RlinfLabError, RuntimeError):
    """The run was stopped while this worker was in the middle of a call."""


class DeadlockError(RlinfLabError, RuntimeError):
    """Nothing can move any more; the message names who waits for whom.

    Attribute ``waits``: the same as `rlinf_lab.planning.plan.wait_graph.Wait` objects, where an executor or the simulator raised it.
    """

    waits: tuple[Any, ...] = ()


class ExecutorError(RlinfLabError, RuntimeError):
    """The executor cannot do what was asked (not started, already stopped, a host died)."""


class TimelineError(RlinfLabError, ValueError):
    """Spans do not fit together, or a file is not a timeline.

    A batch is missing, say, or a span ends before it starts.
    """


class WorkerError(RlinfLabError, RuntimeError):
    """A worker's own exception, raised where the user waits.

    Attributes: ``worker`` (name), ``rank``, ``method``, ``remote_traceback`` (text of the worker's
    stack), ``cause_type`` (name of the original class). With the local executor ``__cause__`` is the original, its
    frames included, for a debugger; from another process only the text comes.
    """

    worker: str = "?"
    rank: int = 0
    method: str = "?"
    remote_traceback: str = ""
    cause_type: str = ""

    @classmethod
    def of(cls, worker: str, rank: int, method: str, cause: BaseException, remote_traceback: str) -> WorkerError:
        kind = type(cause).__name__
        error = cls(f"Worker {worker!r} rank {rank} failed in {method}(): {kind}: {said(cause)}\n--- traceback in the worker ---\n{remote_traceback.rstrip()}")
        error.worker, error.rank, error.method = worker, rank, method
        error.remote_traceback, error.cause_type = remote_traceback, kind
        error.__cause__ = cause
        return error
