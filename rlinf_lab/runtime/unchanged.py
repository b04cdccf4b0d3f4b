"""Whether tensors are what they were when they were handed out: torch counts the changes of each in place.

A model's ``state_dict()`` is its live tensors. Who publishes that and goes on learning has others pull what was learnt since, under the older version: nobody
would see it. Not noticed: those through ``.data`` and ``.numpy()``, by fused optimisers, and arrays of numpy, for nobody counts those; nor changes of a tensor
that lies on a part of a larger one's memory, for torch has one count for all of that, and a learner may publish one half while it writes the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rlinf_lab.errors import WorkflowError

_SIMPLE = frozenset({int, float, bool, str, bytes, type(None)})


class Unchanged:
    """The tensors of nested dicts, lists and tuples, and how often each had been changed."""

    def __init__(self, state: Any) -> None:
        self._counts = _counted(state)

    def changed(self) -> str:
        """The first that was changed since, by its name; "" where none was."""
        return next((_named(way) for way, tensor, _ in self._changes() if not _is_a_part(tensor)), "")

    def refusal(self, version: int, weights: str, owner: str) -> WorkflowError | None:
        """Why this version cannot be handed out any more."""
        if not (changed := self.changed()):
            return None
        return WorkflowError(
            f"Version {version} of the weights {weights!r} was changed after {owner!r} published it ({changed} in place): who pulls it now would get others "
            f"than that version has. Next: publish a copy, as in weights.publish({{k: v.clone() for k, v in model.state_dict().items()}})."
        )

    def _changes(self) -> list[tuple[Any, Any, int]]:
        if not self._counts:
            return []
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
            return [one for one in self._counts if one[1]._version != one[2]]


def _counted(state: Any) -> list[tuple[Any, Any, int]]:
    """Each with its way from the state: (way of what it lies in, key). Whatever can be pickled passes, also what holds itself."""
    torch: Any = sys.modules.get("torch")
    if getattr(torch, "Tensor", None) is None:  # it may just be being imported
        return []
    found: list[tuple[Any, Any, int]] = []
    seen = set[int]()
    open_: list[tuple[Any, Iterator[tuple[Any, Any]]]] = [(None, iter([(None, state)]))]
    with torch._C.DisableTorchFunctionSubclass():  # subclasses may refuse whatever they do not know, as parameters without a shape do
        while open_:
            way, parts = open_[-1]
            for key, part in parts:
                if type(part) in _SIMPLE:
                    continue
                if isinstance(part, torch.Tensor) and not part.is_inference():
                    found.append(((way, key), part, part._version))
                elif isinstance(part, (dict, list, tuple)) and id(part) not in seen:
                    seen.add(id(part))
                    open_.append(((way, key), iter(part.items() if isinstance(part, dict) else enumerate(part))))
                    break
            else:
                open_.pop()
    return found


def _named(way: Any) -> str:
    """The keys on it."""
    keys: list[str] = []
    while way[0] is not None:  # the first key is none: that of the state itself
        way, key = way
        keys.append(f"[{key!r}]")
    return "".join(reversed(keys)) or "the tensor"


def _is_a_part(tensor: Any) -> bool:
    """Of larger memory; a sparse one has none of its own."""
    return tensor.layout is sys.modules["torch"].strided and bool(tensor.untyped_storage().nbytes() > tensor.nbytes)
