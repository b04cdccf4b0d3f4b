"""What two plans have in common whatever their numbers: who time-shares with whom, and who streams to whom on devices
of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Tree
from rlinf_lab.planning.search.problem import Cut, members

Form = Any
"""None, a leaf, (TEMPORAL, its parts in order) or (SPATIAL, a set of its parts)"""


@dataclass(frozen=True)
class Outline:
    """The ``form`` of a plan; turns of parts without a link have no order. Who works on the host has its place as well:
    whether it waits for all or streams makes other plans, with other seconds."""

    form: Form
    links: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, tree: Tree, links: Collection[tuple[int, int]]) -> Outline:
        """``links``: (producer, consumer)."""
        empty = cls(None, frozenset(links))
        return cls(empty._of(tree), empty.links)

    def has(self, kind: str, cut: Cut) -> bool:
        """Whether a plan with this outline may have this composition, its parts being as the outline has them."""
        before, after, both = (
            self._within(self.form, leaves) for leaves in (cut.before, cut.after, cut.before | cut.after)
        )
        return bool(self.joined(kind, before, after) == both)

    def _of(self, tree: Tree) -> Form:
        if not tree.parts():
            return tree.leaves.bit_length() - 1
        before, after = map(self._of, tree.parts())
        return self.joined(TEMPORAL if getattr(tree, "kind", "") == TEMPORAL else SPATIAL, before, after)

    def _within(self, form: Form, leaves: int) -> Form:
        """What is left of a form without the other leaves."""
        if form is None or isinstance(form, int):
            return form if form is not None and leaves >> form & 1 else None
        found: Form = None
        for part in form[1]:
            found = self.joined(form[0], found, self._within(part, leaves))
        return found

    def joined(self, kind: str, before: Form, after: Form) -> Form:
        """The form of a composition of two parts. None: of nobody."""
        if before is None or after is None:
            return after if before is None else before
        parts = [*_parts(before, kind), *_parts(after, kind)]
        return (kind, frozenset(parts) if kind == SPATIAL else tuple(self._ordered(parts)))

    def _ordered(self, parts: list[Form]) -> list[Form]:
        """As they time-share, of those that are not linked the one with the first leaf first."""
        left, found = list(parts), list[Form]()
        while left:
            free = [p for i, p in enumerate(left) if not any(self._linked(_leaves(p), _leaves(q)) for q in left[:i])]
            found.append(min(free, key=lambda p: _leaves(p) & -_leaves(p)))
            left.remove(found[-1])
        return found

    def _linked(self, a: int, b: int) -> bool:
        return any(self._neighbours.get(v, 0) & b for v in members(a))

    @cached_property
    def _neighbours(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for p, c in self.links:
            found[p], found[c] = found.get(p, 0) | 1 << c, found.get(c, 0) | 1 << p
        return found


def _parts(form: Form, kind: str) -> list[Form]:
    return list(form[1]) if isinstance(form, tuple) and form[0] == kind else [form]


def _leaves(form: Form) -> int:
    return 1 << form if isinstance(form, int) else sum(map(_leaves, form[1]))
