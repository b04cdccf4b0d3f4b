"""Values that describe calls and channels: what executors send, what the graph is traced from."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlinf_lab.errors import ConfigError, WorkflowError, shown
from rlinf_lab.workflow.structure import Path, rebuilt

#: The two ends of a channel, as a method has them.
READ, WRITE = "read", "write"
DEFAULT_CAPACITY = 64
ORDERS = ("fifo", "lifo", "priority", "oldest_group")
GATHERERS = ("writers", "readers")


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """What a channel promises.

    ``capacity``: items it holds before a put blocks (``None``: unbounded). ``keyed``: every item has an integer key and
    is read by it. ``whole``: the consumer wants everything of an iteration at once (on-policy training), each of its
    ranks an equal share (`Inbox.get_all`), so nothing bounds it. Who asks for less is given nothing before all is
    there, either.
    ``weight``: of an item (its tokens, say), a whole number that a function of the item gives; 1 without it, and a put
    may say its own. ``order``: which of the items that are there a get is given: "fifo", "lifo", "priority" (what the
    put says), or a function of the item that gives a number: the smallest goes first, as in `queue.PriorityQueue`, and
    among equals the one that came first. "oldest_group": those of the group that began first, whichever comes when; a
    put then says the group's key.

    ``group``: a barrier for so many items of one key, as group-relative advantages need (GRPO: the responses to one
    prompt). A put says its key; when a rank has put as many with the same key, they go on together, as one item of the
    channel: a list, in the order of their puts. All else (``capacity``, micro-batches, ``get(n)``, an order's or
    weight's function) counts and sees groups. A call that ends with an incomplete group fails.

    ``gather``: by whom groups are put together. "writers": by the rank that puts, so one rank puts all items of a key.
    "readers": where the channel is read, whichever ranks and processes they come from; the weight's function then sees
    an item and a group weighs their sum, the order is "fifo" (as they are whole) or "oldest_group", and what is left of
    an incomplete group counts as unread.

    ``discard_unread``: more may be put in an iteration than is read, as where samples are drawn until a batch is full
    (dynamic sampling, DAPO): what is left is discarded, and calls that go on putting end (`Outbox.put`). Without it the
    iteration fails, as soon as it is certain that nobody will read on.

    ``may_be_empty``: it is all right that producers are called in an iteration and put nothing, as a filter that lets
    nothing pass. Without it the iteration fails: whoever reads an empty stream to its end computes something of
    nothing.
    """

    name: str
    capacity: int | None = DEFAULT_CAPACITY
    keyed: bool = False
    whole: bool = False
    weight: Callable[[Any], int] | None = None
    order: str | Callable[[Any], float] = "fifo"
    group: int = 1
    discard_unread: bool = False
    may_be_empty: bool = False
    gather: str = "writers"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigError(
                f"Channel name {self.name!r} is not an identifier. Next: use letters, digits and underscores."
            )
        for option in ("keyed", "whole", "discard_unread", "may_be_empty"):
            if not isinstance(getattr(self, option), bool):
                given = getattr(self, option)
                raise ConfigError(
                    f"Channel {self.name!r}: {option} is {given!r}; it must be True or False. Next: {option}=True, or "
                    "leave it out."
                )
        if not isinstance(self.group, int) or isinstance(self.group, bool) or self.group < 1:
            raise ConfigError(
                f"Channel {self.name!r}: group is {shown(self.group)}; it must be a whole number of items, at least 1. "
                "Next: group=8, say, or leave it out."
            )
        if self.group > 1 and self.keyed:
            raise ConfigError(
                f"Channel {self.name!r}: group={self.group} and keyed=True: the key says which group an item is of, or "
                "who reads it. Next: one."
            )
        self._check_gathering()
        if self.weight is not None and not callable(self.weight):
            raise ConfigError(
                f"Channel {self.name!r}: weight is {shown(self.weight)}; it must be a function of an item, or None. "
                f"Next: weight=lambda item: len(item.tokens), say."
            )
        if not callable(self.order) and self.order not in ORDERS:
            known = ", ".join(map(repr, ORDERS))
            raise ConfigError(
                f"Channel {self.name!r}: order is {shown(self.order)}; it must be {known}, or a function of an item. "
                "Next: one of those."
            )
        if self.capacity is not None and (
            not isinstance(self.capacity, int) or isinstance(self.capacity, bool) or self.capacity < 1
        ):
            raise ConfigError(
                f"Channel {self.name!r}: capacity is {self.capacity!r}; it must be a whole number of items, "
                f"at least 1, or None for no bound. Next: capacity={DEFAULT_CAPACITY}, say."
            )

    def _check_gathering(self) -> None:
        if self.gather not in GATHERERS:
            raise ConfigError(
                f"Channel {self.name!r}: gather is {shown(self.gather)}; it must be 'writers' or 'readers'. Next: "
                "gather='readers' where several ranks put items of one group."
            )
        if self.gather == "readers" and (self.group == 1 or self.order not in ("fifo", "oldest_group")):
            raise ConfigError(
                f"Channel {self.name!r}: gather='readers' with group={self.group} and order={shown(self.order)}: it is "
                "for groups, in order 'fifo' or 'oldest_group'. Next: group=8, say, and one of those orders."
            )
        if self.order == "oldest_group" and (self.keyed or (self.group > 1 and self.gather == "writers")):
            beside = "keyed=True" if self.keyed else "groups of writers"
            raise ConfigError(
                f"Channel {self.name!r}: order='oldest_group' with {beside}: "
                "the key says of which group an item is. Next: gather='readers', or another order."
            )

    @property
    def is_fifo(self) -> bool:
        """Whether items leave as they came, one by one."""
        return self.order == "fifo" and self.gathered == 1

    @property
    def gathered(self) -> int:
        """How many items of a key are put together where it is read; 1: none."""
        return self.group if self.gather == "readers" else 1

    @property
    def asks_group(self) -> bool:
        """Whether a put says by ``key`` of which group its items are. That travels with them."""
        return self.gathered > 1 or self.order == "oldest_group"

    @property
    def taken_by(self) -> int:
        """The order as the engine knows it, a number. 0: first in, first out; 1: last in, first out; 2: by what is
        known of each item; 3: by the age of its group.
        """
        return {"fifo": 0, "lifo": 1, "oldest_group": 3}.get(self.order if isinstance(self.order, str) else "", 2)

    def tag(
        self, who: str, items: Sequence[Any], weight: int | None, priority: float | None, key: int | None = None
    ) -> Tags | None:
        """What is known of the items of a put beside themselves. None when it is nothing. Raises `WorkflowError` for
        what is no weight or no priority.
        """
        if self.asks_group and key is None:
            raise WorkflowError(f"{who} has groups. Next: say of which group the item is, put(item, key=...).")
        if weight is None and self.weight is None and priority is None and self.order in ("fifo", "lifo"):
            return Tags(None, (key,) * len(items)) if self.asks_group and key is not None else None
        if (priority is not None) != (self.order == "priority"):
            if priority is None:
                raise WorkflowError(f"{who} takes the smallest priority first. Next: put(item, priority=...).")
            raise WorkflowError(
                f"{who} has no priorities. Next: declare it with order='priority', or leave priority= out."
            )
        weights: tuple[int, ...] | None = None
        if weight is not None:
            weights = (weight,) * len(items)
        elif self.weight is not None:
            weights = tuple(map(self.weight, items))
        for one in weights or ():
            if not isinstance(one, numbers.Integral) or isinstance(one, bool) or one < 0:
                must = "it must be a whole number, not negative. Next: let weight= or the channel's function give one"
                raise WorkflowError(f"{who}: the weight of an item is {shown(one)}; {must}.")
        ranks = (
            tuple(map(self.order, items))
            if callable(self.order)
            else (key,) * len(items)
            if self.asks_group and key is not None
            else None
            if priority is None
            else (priority,) * len(items)
        )
        for rank in ranks or ():
            if not isinstance(rank, numbers.Real) or rank != rank:
                raise WorkflowError(
                    f"{who}: the place of an item is {shown(rank)}; it must be a number. Next: let priority= or the "
                    "channel's order give one."
                )
        return Tags(None if weights is None else tuple(map(int, weights)), ranks)


class Tags(NamedTuple):
    """Weights and places in the order of the items of a put. They are there where a channel has them."""

    weights: tuple[int, ...] | None
    ranks: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ChannelArg:
    """An argument that is a channel end: ``direction`` is ``"read"`` (Inbox) or ``"write"`` (Outbox)."""

    channel: str
    direction: str


@dataclass(frozen=True, slots=True)
class WeightsArg:
    """An argument that is a store of weights."""

    name: str


@dataclass(frozen=True, slots=True)
class RefArg:
    """An argument that is (a part of) the value of another call. ``path``: attributes (".x") and items ("[", key)."""

    call_id: int
    path: Path = ()
    producer: str = ""
    iteration: int = -1  # of the call that makes it


class Hole:
    """Where in a `Nested` argument the value of ``refs[index]`` belongs. (No dataclass: those are containers of
    values.)
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return "<the value of another call>"


@dataclass(frozen=True, slots=True)
class Nested:
    """An argument that contains values of other calls. It is a structure with holes, and what fills them."""

    template: Any
    refs: tuple[RefArg, ...]

    @staticmethod
    def filled(template: Any, values: list[Any]) -> Any:
        """The template with a value in every hole."""
        return rebuilt(template, lambda leaf: values[leaf.index] if type(leaf) is Hole else leaf)


@dataclass(frozen=True, slots=True)
class CallSpec:
    """One call of one worker, for all its ranks, or those in ``ranks``. ``starts_on_device``: it computes before its
    first get."""

    call_id: int
    worker: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    starts_on_device: bool = True
    ranks: tuple[int, ...] = ()

    def taken_by(self, ranks: int) -> tuple[int, ...]:
        """Who takes part, of so many."""
        return self.ranks or tuple(range(ranks))

    def place(self, rank: int, ranks: int) -> tuple[int, int]:
        """Position of a rank, of so many, among those that take part. And how many these are."""
        return (self.ranks.index(rank), len(self.ranks)) if self.ranks else (rank, ranks)

    def arguments(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    def channels(self, direction: str) -> list[str]:
        return [a.channel for a in self.arguments() if isinstance(a, ChannelArg) and a.direction == direction]

    def refs(self) -> list[RefArg]:
        """Also those inside lists and dicts."""
        found: list[RefArg] = []
        for argument in self.arguments():
            found += (
                argument.refs if isinstance(argument, Nested) else [argument] if isinstance(argument, RefArg) else []
            )
        return found
