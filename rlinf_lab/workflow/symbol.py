"""What stands for a value in the dry run of the user's loop. It takes part in whatever the loop computes, and says so
where it cannot.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn, Protocol

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.specs import RefArg

DEEPEST = 16
"""parts of parts of a value over which somebody may iterate: who goes on takes numbers apart, which has no end"""


class Asked(Protocol):
    """Who traces. It says which way a branch goes, and which number stands for one that is not known yet."""

    def decide(self) -> bool: ...
    def number(self) -> int: ...
    def current(self) -> Asked | None: ...


class Symbol:
    """Stands for a value of a later run. Arithmetic gives symbols, truth asks the tracer which way to go.

    Python insists on real numbers from ``len()``, ``int()``, ``float()`` and ``range()``: they get 1, and 0 in a second
    dry run.
    ``source``: the call whose value (or a part of it) this is computed from.
    """

    def __init__(self, tracer: Asked, text: str, source: RefArg | None = None) -> None:
        self._tracer = tracer
        self._text = text
        self._source = source

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(self._tracer, f"{self._text}.{name}", self._source)

    def _derived(self, *_: Any, **__: Any) -> Symbol:
        return Symbol(self._tracer, self._text, self._source)

    __call__ = __getitem__ = __enter__ = _derived
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _derived
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _derived
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = (
        _derived
    )
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = _derived
    __round__ = __floor__ = __ceil__ = __trunc__ = _derived
    __eq__ = __ne__ = _derived  # type: ignore[assignment]
    __copy__ = __deepcopy__ = _derived
    __array_ufunc__ = __array_function__ = _derived  # numpy's functions of it
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Symbol:
        from rlinf_lab.workflow.structure import leaves

        return next(leaf for leaf in leaves([args, kwargs]) if isinstance(leaf, Symbol))._derived()

    def __divmod__(self, other: Any) -> tuple[Symbol, Symbol]:
        return self._derived(), self._derived()

    __rdivmod__ = __divmod__

    def __setitem__(self, key: Any, value: Any) -> None:
        """Nothing is there to be changed."""

    def __delitem__(self, key: Any) -> None:
        """Nothing is there to be removed."""

    def __exit__(self, *_: Any) -> None:
        """Nothing was entered."""

    def _live(self) -> Asked:
        tracer = self._tracer.current()
        return refuse_kept(self) if tracer is None else tracer

    def __bool__(self) -> bool:
        return self._live().decide()

    def __contains__(self, item: Any) -> bool:
        return self._live().decide()

    def __iter__(self) -> Iterator[Symbol]:
        """As many parts as ``a, b = symbol`` asks for. Else one, so that the body of a loop is seen (none in the second
        dry run).
        """
        if self._text.count("[0]") > DEEPEST:
            raise WorkflowError(
                f"Something iterates over a value of the dry run, over its parts, and over theirs, without an end: "
                f"{self._text[:60]}... (numpy.random.default_rng([number, 1]) does). Next: let a worker do that, or "
                "give it int(number)."
            )
        asked = _unpacked(sys._getframe(1))
        count = self._live().number() if asked is None else asked
        return iter([Symbol(self._tracer, f"{self._text}[{i}]", self._source) for i in range(count)])

    __reversed__ = __iter__

    def __len__(self) -> int:
        return self._live().number()

    def __int__(self) -> int:
        return self._live().number()

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._live().number())

    def __format__(self, spec: str) -> str:
        return f"<{self._text}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """For numpy, which is loaded when it asks. It gets the symbol as an object, or the stand-in where a kind of
        number is wanted.
        """
        import numpy as np

        if dtype is not None and np.dtype(dtype) != np.dtype(object):
            return np.array(self._live().number(), dtype)
        made = np.empty((), object)
        made[()] = self
        return made

    def __reduce__(self) -> NoReturn:
        raise WorkflowError(
            f"{self!r} belongs to the dry run of an iteration function and cannot be copied or sent. Next: keep "
            "nothing of the iteration in "
            f"variables outside it; return what is needed."
        )

    def __repr__(self) -> str:
        return f"<value of {self._text}, known at run time>"


def source_of(value: Symbol) -> RefArg | None:
    """The call whose value (or a part of it) a symbol is computed from. Its own attributes are symbols, too."""
    return value._source


def refuse_kept(value: Symbol) -> NoReturn:
    """Of a symbol that a variable has kept beyond its dry run."""
    raise WorkflowError(
        f"{value!r} is a symbol of the dry run, which is over. A variable outside the iteration function has kept it. "
        "Next: make that variable anew before the run, or let the iteration return the value instead."
    )


def _unpacked(frame: FrameType) -> int | None:
    """How many parts the statement that ``frame`` executes unpacks to; None when it iterates. It is ``a, b = x`` or
    ``a, *b = x``.
    """
    at = frame.f_lasti
    instruction = next((i for i in dis.get_instructions(frame.f_code) if i.offset == at), None)
    if instruction is None or instruction.arg is None:
        return None
    if instruction.opname == "UNPACK_SEQUENCE":
        return instruction.arg
    if instruction.opname == "UNPACK_EX":  # before the starred name in the low byte, after it in the high one
        return (instruction.arg & 0xFF) + (instruction.arg >> 8) + 1
    return None
