"""Work for the bubbles of a plan: done in small steps on devices that would be idle, for nobody in the workflow.

>>> class Evaluate(lab.Worker):
...     def setup(self): self.games = iter(range(10_000))
...     def step(self):                      # a few milliseconds of work
...         game = next(self.games, None)
...         return False if game is None else play(game)
>>> run = lab.run(flow, plan, fillers=[lab.Filler(Evaluate, on=["cuda:0", "cuda:1"])])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_lab.errors import PlanError, WorkflowError, shown
from rlinf_lab.workflow.declaration import Declaration, check_constructor, signature_of
from rlinf_lab.workflow.worker import Worker


@dataclass(frozen=True)
class FillerSpec:
    """A filler as plans see it: rank r is on device ``on[r]``. Raises `PlanError` naming the field that cannot be."""

    name: str
    on: tuple[str, ...]
    memory: int = 0
    delays: int = 1
    method: str = "step"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise PlanError(
                f"A filler's name is {shown(self.name)}. Next: name=..., of letters, digits and underscores."
            )
        if not self.on or not all(isinstance(device, str) for device in self.on) or len(set(self.on)) < len(self.on):
            raise PlanError(
                f"Filler {self.name!r}: on={shown(self.on)}. Next: the name of a device of the plan, or a list of "
                "different ones."
            )
        for field, least in (("memory", 0), ("delays", 1)):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise PlanError(
                    f"Filler {self.name!r}: {field}={shown(value)}. Next: a whole number, at least {least}."
                )

    @classmethod
    def of(cls, name: str, on: str | Sequence[str], memory: int, delays: int, method: str = "step") -> FillerSpec:
        """``on``: a name, or several."""
        if not isinstance(on, (str, Sequence)):
            raise PlanError(
                f"Filler {name!r}: on={shown(on)}. Next: the name of a device of the plan, or a list of different ones."
            )
        return cls(name, (on,) if isinstance(on, str) else tuple(on), memory, delays, method)


class Filler:
    """Low-priority work that is attached to a run or a session: ``fillers=[lab.Filler(Evaluate, on="cuda:0")]``.

    ``what``: a `Worker` class with its constructor's arguments, or a function without arguments. ``method`` (of a
    class) does one small step, of milliseconds. What it returns is kept as the latest result; False says that there is
    no more to do. ``on``: a device of the plan, or several: a copy of the worker on each. Steps are taken while an
    iteration is under way, where nobody of the workflow is on the device or waits for it.

    ``delays``: for how many steps one iteration may have to wait. With 1 fillers rest, after somebody had to wait for a
    step, until that iteration has ended; more fills more of the bubbles. ``memory``: units that a copy takes on its
    device, beside all workers of the plan.

    Raises `WorkflowError` for what cannot take steps, `PlanError` for a field that cannot be.
    """

    def __init__(
        self, what: type[Worker] | Callable[[], Any], *args: Any, on: str | Sequence[str], name: str | None = None,
        method: str = "step",
        memory: int = 0, delays: int = 1, **kwargs: Any,
    ) -> None:  # fmt: skip
        if isinstance(what, type) and issubclass(what, Worker):
            cls, arguments, default = what, args, what.__name__.lower()
            check_constructor(what, args, kwargs)
        elif callable(what) and not isinstance(what, (type, Worker)):
            _check_step(what, args, kwargs)
            cls, arguments, default, method = FunctionFiller, (what,), getattr(what, "__name__", "filler"), "step"
            default = "filler" if default == "<lambda>" else default
        else:
            raise WorkflowError(
                "A filler is a subclass of lab.Worker (the class, not an instance) or a function without arguments, "
                f"not {shown(what)}. Next: "
                f"`class Mine(lab.Worker): def step(self): ...` and lab.Filler(Mine, ..., on='cpu:0')."
            )
        self.spec = FillerSpec.of(default if name is None else name, on, memory, delays, method)
        self.declaration = Declaration(self.spec.name, cls, arguments, kwargs)
        _check_method(self.declaration, method)

    def __repr__(self) -> str:
        return (
            f"Filler({self.spec.name!r}: {self.declaration.class_name}.{self.spec.method} on {', '.join(self.spec.on)})"
        )


class FunctionFiller(Worker):
    """A function without arguments as a filler: each call of it is a step."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def step(self) -> Any:
        return self.function()


def _check_step(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = getattr(function, "__name__", repr(function))
    if args or kwargs:
        raise WorkflowError(
            f"The function {name!r} as a filler takes no arguments. Next: functools.partial({name}, ...), or a "
            "subclass of lab.Worker."
        )
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise WorkflowError(
            f"The function {name!r} as a filler would run nothing when it is called. Next: an ordinary function that "
            "does one small step."
        )
    try:
        inspect.signature(function).bind()
    except ValueError:  # written in C
        return
    except TypeError as error:
        raise WorkflowError(
            f"The function {name!r} as a filler is called without arguments: {error}. Next: functools.partial({name}, "
            "...)."
        ) from None


def _check_method(declaration: Declaration, method: str) -> None:
    """A step is called without arguments."""
    try:
        signature_of(declaration.function(method)).bind(None)
    except TypeError as error:
        raise WorkflowError(
            f"Filler {declaration.name!r}: {method}{declaration.signature(method)} is called without arguments: "
            f"{error}. Next: give them to the constructor."
        ) from None


def specs_of(fillers: object) -> tuple[FillerSpec, ...]:
    """Of the ``fillers=`` of a run. Raises `WorkflowError` for anything else."""
    if (
        isinstance(fillers, (str, Filler))
        or not isinstance(fillers, Sequence)
        or not all(isinstance(f, Filler) for f in fillers)
    ):
        raise WorkflowError(
            f"fillers={shown(fillers)}: a list of fillers. Next: fillers=[lab.Filler(Mine, on='cpu:0')]."
        )
    return tuple(f.spec for f in fillers)
