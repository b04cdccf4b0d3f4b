"""Who waits for whom. Each wait is a line for people and an edge for finding the cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlinf_lab.errors import DeadlockError


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits. ``who``: worker[rank]; ``what``: in words; ``on``: the workers, or worker[rank]s, that could
    end it.

    ``via``: what lies between, one for each of ``on``: the channel's name, the device's, or "" for the value of a call.
    ``needs``: those of ``on`` that all must move; of the others any one is enough. ``advice``: what would end it, where
    that is neither an item nor a device.
    """

    who: str
    what: str
    on: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.who} waits for {self.what}"


def standstill(waits: Sequence[Wait]) -> DeadlockError:
    """The error that says who waits for what. In what rings, and what would end it."""
    found = rings(waits)
    lines = "\n".join(f"  {wait}" for wait in waits)
    told = (found and ": ") or ""
    told += "; ".join(" → ".join(ring) for ring in found)
    error = DeadlockError(f"Nothing can move any more{told}\n{lines}\n{_advice(waits, found)}")
    error.waits = tuple(waits)
    return error


def _advice(waits: Sequence[Wait], found: Sequence[Sequence[str]]) -> str:
    after = dict(pairwise(found[0])) if found else {}
    ways = list(dict.fromkeys(wait.advice for wait in waits if wait.advice and (wait.who in after or not found)))
    if not found:
        usual = "have somebody put what is waited for, ask for less (get(n) of fewer items), or leave that call out"
        return f"Next: {'; or '.join(ways) or usual}."
    between = {
        via
        for wait in waits
        for name, via in zip(wait.on, wait.via, strict=False)
        if name in (after.get(wait.who), worker_of(after.get(wait.who, "")))
    }
    devices, channels = (
        sorted(via for via in between if via and (":" in via) is is_device) for is_device in (True, False)
    )
    if channels:
        ways.append(
            f"have one of {', '.join(after)} put before it gets (channel {', '.join(map(repr, channels))}), or get "
            "before it puts where that is full"
        )
    if devices:
        ways.append(f"a plan in which {', '.join(after)} do not share {', '.join(devices)}")
    return f"Next: {'; or '.join(ways) or 'let one of ' + ', '.join(after) + ' end without what it waits for'}."


def worker_of(label: str) -> str:
    """Of worker[rank]."""
    return label.split("[")[0]


def ranks_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Labels by what `Wait.on` may call them. Each is found by itself, and all of a worker by its name."""
    found: dict[str, list[str]] = {}
    for label in names:
        found.setdefault(worker_of(label), []).append(label)
        found[label] = [label]
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks of a worker that wait for the same. So a few groups are looked at instead of hundreds of ranks."""

    worker: str
    on: tuple[str, ...]
    needs: frozenset[str]


def rings(waits: Iterable[Wait], computing: Iterable[str] = ()) -> list[list[str]]:
    """Rings of ranks that wait for each other and that nobody else can free. The shortest first, each with its first
    repeated at the end.

    ``computing``: labels of ranks that wait for nobody; who is neither in ``waits`` nor among them is taken for one who
    moves.
    """
    group_of = {wait.who: _Group(worker_of(wait.who), wait.on, wait.needs) for wait in waits}
    ranks = ranks_of([*group_of, *computing])
    free = _free(group_of, ranks)
    stuck = {label: group for label, group in group_of.items() if group not in free}
    edges = {
        group: {stuck[n]: n for on in group.on for n in reversed(ranks.get(on, ())) if n in stuck}
        for group in dict.fromkeys(stuck.values())
    }
    found = []
    while ring := min((ring for group in edges if (ring := _ring(group, edges))), key=len, default=[]):
        found.append([edges[a][b] for a, b in pairwise([ring[-2], *ring])])
        edges = {
            group: {g: label for g, label in after.items() if g not in ring}
            for group, after in edges.items()
            if group not in ring
        }
    return found


def _free(group_of: dict[str, _Group], ranks: dict[str, list[str]]) -> set[_Group]:
    """Those that somebody who moves can free, directly or in some steps."""
    free: set[_Group] = set()

    def moves(name: str) -> bool:
        return name not in ranks or any(label not in group_of or group_of[label] in free for label in ranks[name])

    def freed(group: _Group) -> bool:
        any_of = [name for name in group.on if name not in group.needs]
        return all(map(moves, group.needs)) and (not any_of or any(map(moves, any_of)))

    groups = set(group_of.values())
    while fresh := {group for group in groups - free if freed(group)}:
        free |= fresh
    return free


def _ring(start: _Group, edges: dict[_Group, dict[_Group, str]]) -> list[_Group]:
    """The shortest way from ``start`` back to it."""
    came: dict[_Group, _Group] = {}
    front = [start]
    while front:
        later = []
        for here in front:
            for after in edges[here]:
                if after not in came:
                    came[after] = here
                    later.append(after)
        if start in came:
            ring = [start, came[start]]
            while ring[-1] != start:
                ring.append(came[ring[-1]])
            return ring[::-1]
        front = later
    return []
