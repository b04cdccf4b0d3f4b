"""The calls of the loop that have not ended, on whichever host."""

from __future__ import annotations

from collections.abc import Iterable

from rlinf_lab.workflow.specs import CallSpec, WeightsArg


class CallsUnderWay:
    """At the driver's host, written under its mutex. Each rank's part of a call is one."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], tuple[str, str, int]] = {}  # (call, rank): its host, label, iteration
        self._users: dict[tuple[int, int], CallSpec] = {}  # of those that are given weights

    def add(self, call: CallSpec, rank: int, host: str) -> None:
        """A rank begins its part, sooner or later."""
        label = f"{call.worker}[{rank}].{call.method}"
        self._parts[call.call_id, rank] = host, label, call.iteration
        if any(isinstance(a, WeightsArg) for a in call.arguments()):
            self._users[call.call_id, rank] = call

    def end(self, call_id: int, rank: int) -> str | None:
        """It has ended. Returns its label, or None for one of which nothing is known any more."""
        found = self._parts.pop((call_id, rank), None)
        self._users.pop((call_id, rank), None)
        return None if found is None else found[1]

    def has(self, call_id: int, ranks: Iterable[int]) -> bool:
        """Whether any of these ranks has not ended its part."""
        return any((call_id, rank) in self._parts for rank in ranks)

    def lose(self, host: str) -> list[int]:
        """A host has died; the iterations of its parts, which will not report their end."""
        lost = [key for key, (home, _, _) in list(self._parts.items()) if home == host]
        return [self._parts.pop(key)[2] for key in lost]

    def users(self, weights: str) -> set[tuple[int, str, int]]:
        """Those that are given these weights: (call, worker, rank)."""
        wanted = WeightsArg(weights)
        return {(call_id, c.worker, rank) for (call_id, rank), c in self._users.items() if wanted in c.arguments()}

    # --- for a look, also without the mutex -----------------------------------------------------------------------
    def labels(self) -> list[str]:
        """worker[rank].method, in the order in which they were submitted. Each rank begins them in that order."""
        return [label for _, label, _ in list(self._parts.values())]

    def of(self, iterations: Iterable[int]) -> list[str]:
        """Those of these iterations."""
        wanted = set(iterations)
        return [label for _, label, i in list(self._parts.values()) if i in wanted]

    def but_of(self, iterations: Iterable[int]) -> list[str]:
        """Those of others."""
        spared = set(iterations)
        return [label for _, label, i in list(self._parts.values()) if i not in spared]

    def ranks_at(self, host: str) -> list[str]:
        """Who of a host has one: worker[rank], each once."""
        mine = [label for home, label, _ in list(self._parts.values()) if home == host]
        return list(dict.fromkeys(label.split(".")[0] for label in mine))
