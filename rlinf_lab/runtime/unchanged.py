"""Whether tensors are what they were when they were handed out: torch counts the changes of each in place.

A model's ``state_dict()`` is its live tensors. Who publishes that and goes on learning has others pull what was learnt since, under the older version: nobody
would see it. Not noticed: changes through ``.data`` and ``.numpy()``, and arrays of numpy, for nobody counts those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rlinf_lab.errors import WorkflowError


class Unchanged:
    """The tensors of nested dicts, lists and tuples, and how often each had been changed."""

    def __init__(self, state: Any) -> None:
        torch = sys.modules.get("torch")
        tensor = getattr(torch, "Tensor", None)  # torch may just be being imported
        self._counts = [] if tensor is None else [(name, t, t._version) for name, t in _leaves(state, "") if isinstance(t, tensor) and not t.is_inference()]

    def changed(self) -> str:
        """The first that was changed since, by its name; "" where none was."""
        return next((name for name, tensor, count in self._counts if tensor._version != count), "")

    def refusal(self, version: int, weights: str, owner: str) -> WorkflowError | None:
        """Why this version cannot be handed out any more."""
        if not (name := self.changed()):
            return None
        return WorkflowError(
            f"Version {version} of the weights {weights!r} was changed after {owner!r} published it ({name} in place): who pulls it now would get others "
            f"than that version has. Next: publish a copy, as in weights.publish({{k: v.clone() for k, v in model.state_dict().items()}})."
        )


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{name}[{number}]")
    else:
        yield name or "the tensor", value
