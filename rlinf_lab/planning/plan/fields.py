"""The fields of a plan: what each may hold. Errors name the plan, the field, the value and what to write instead."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from rlinf_lab.errors import PlanError, PlanNameError
from rlinf_lab.planning.plan.device import Device, whole

Ranks = tuple[tuple[int, ...], ...]
MAX_ITEMS = 2**31 - 1  # items; counts travel as 32-bit integers
MAX_TOKENS = 65_536  # sub-batches of one rank
MAX_STALENESS = 64  # iterations under way beside the newest: each holds its queues and values

NUMBERS = {  # field: least, most, advice, example
    "micro_batches": (0, MAX_ITEMS, "a number of items, 0 for everything of the iteration", "{'samples': 8}"),
    "capacities": (1, MAX_ITEMS, "a number of items, or None for no bound", "{'samples': 64}"),
    "sub_batches": (1, MAX_TOKENS, "1, or 2 for double buffering", "{'simulator': 2}"),
    "in_flight": (
        1,
        MAX_TOKENS,
        "items that are put into the cell at a time, by all ranks of its head together",
        "{'simulator': 16}",
    ),
    "memory": (0, MAX_ITEMS, "whole units (GiB, say), 0 for none", "{'learner': 40}"),
    "working": (0, MAX_ITEMS, "whole units beside those of memory, 0 for none", "{'learner': 10}"),
    "priorities": (
        0,
        MAX_ITEMS,
        "a number for each worker that shares devices, the smaller one goes first",
        "{'reward': 0, 'critic': 1}",
    ),
}


class Fixed(dict[str, Any]):
    """A mapping that stays as it is. What was checked cannot be changed behind the plan's back."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PlanError(
            "A plan does not change. Next: dataclasses.replace(plan, micro_batches={**plan.micro-batches, 'samples': "
            "8}) makes another one."
        )

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Fixed, (dict(self),)


class Fields:
    """Reads the fields of the plan called ``name``. Every method returns the value in its canonical form or raises
    `PlanError`.
    """

    def __init__(self, name: Any) -> None:
        if not isinstance(name, str) or not name.strip():
            raise PlanError(
                f"A plan's name is {shown(name)}; it must be a text that is not empty. Next: name='temporal'."
            )
        self.name = name

    def refuse(self, where: str, value: Any, must: str, advice: str) -> NoReturn:
        raise PlanError(f"Plan {self.name!r}: {where} is {shown(value)}; it must be {must}. Next: {advice}.")

    def known(self, where: str, what: str, name: Any, names: Iterable[str]) -> None:
        """Raise `PlanNameError` with the nearest name."""
        names = list(names)
        if name not in names:
            raise PlanNameError.of(what, name, names, f"It stands in {where} of plan {self.name!r}.")

    # --- single values -----------------------------------------------------------------------------------
    def whole(self, where: str, value: Any, low: int, advice: str, high: int = MAX_ITEMS) -> int:
        """A whole number; numpy's integers too, but neither a truth value nor 2.0."""
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None or not low <= number <= high:
            self.refuse(where, value, f"a whole number from {low} to {high}", advice)
        return number

    def rows(self, where: str, value: Any, must: str, advice: str) -> Sequence[Any]:
        """A list, a tuple or a range, not a text."""
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            self.refuse(where, value, must, advice)
        return value

    def by_name(self, where: str, value: Any, each: Callable[[str, Any], Any], example: str) -> dict[str, Any]:
        """A mapping from names; ``each(where, value)`` reads one entry."""
        if not isinstance(value, Mapping):
            self.refuse(where, value, "a mapping from names", example)
        for key in value:
            if not isinstance(key, str):
                self.refuse(f"a name in {where}", key, "a text", example)
        return Fixed({key: each(f"{where}[{key!r}]", item) for key, item in value.items()})

    # --- the fields ----------------------------------------------------------------------------------------
    def devices(self, value: Any) -> tuple[str, ...]:
        advice = "devices=lab.devices() or ['cpu:0', 'cpu:1']"
        names = self.rows("devices", value, "a list of names", advice)
        if not names:
            raise PlanError(f"Plan {self.name!r} has no devices. Next: {advice}.")
        for i, device in enumerate(names):
            if not Device.is_name(device):
                self.refuse(f"devices[{i}]", device, "a name such as 'cpu:0', 'cuda:1' or 'node1/cpu:0'", advice)
        if len(set(names)) != len(names):
            raise PlanError(
                f"Plan {self.name!r} names a device twice: devices is {list(names)}. Next: name each device once."
            )
        for device in names:
            if (all_of_it := whole(device)) != device and all_of_it in names:
                raise PlanError(
                    f"Plan {self.name!r} has {all_of_it} and a share of it, {device}: devices is {list(names)}. "
                    f"Next: shares only, '{all_of_it}.1' and '{all_of_it}.2', or all of it."
                )
        return tuple(names)

    def placements(self, value: Any, devices: Sequence[str]) -> dict[str, Ranks]:
        return self.by_name(
            "placements",
            value,
            lambda where, ranks: self._ranks(where, ranks, devices),
            "placements={'learner': [[0], [1]]}",
        )

    def _ranks(self, where: str, value: Any, devices: Sequence[str]) -> Ranks:
        advice = "[[0], [1]] for two ranks on one device each, [[0, 1]] for one rank on two"
        ranks = self.rows(where, value, "a list of ranks, each a list of device numbers", advice)
        if not ranks:
            raise PlanError(
                f"Plan {self.name!r}: {where} is empty, so it places no rank of that worker. Next: {advice}."
            )
        used: list[int] = []
        read = []
        for r, rank in enumerate(ranks):
            numbers = []
            for d, device in enumerate(self.rows(f"{where}[{r}]", rank, "a list of device numbers", advice)):
                number = self.whole(f"{where}[{r}][{d}]", device, 0, advice)
                if number >= len(devices):
                    raise PlanError(
                        f"Plan {self.name!r}: {where}[{r}] puts a rank on device {number}, but there are "
                        f"{len(devices)} devices "
                        f"({some(devices)}), numbered from 0. Next: a number from 0 to {len(devices) - 1}."
                    )
                numbers.append(number)
            nodes = {Device.parse(devices[n]).node for n in numbers}
            if len(nodes) > 1:
                raise PlanError(
                    f"Plan {self.name!r}: {where}[{r}] puts a rank on {', '.join(devices[n] for n in numbers)}, which "
                    "are on different nodes; "
                    f"a rank is one process. Next: one rank on each node."
                )
            read.append(tuple(numbers))
            used += numbers
        if len(set(used)) != len(used):
            raise PlanError(
                f"Plan {self.name!r}: {where} is {shown(value)}: {len(ranks)} ranks share a device; a worker cannot "
                "have more ranks than devices. "
                f"Next: give each rank devices of its own, or use fewer ranks."
            )
        return tuple(read)

    def numbers(self, name: str, value: Any) -> dict[str, Any]:
        """One of `NUMBERS`: whole numbers by the name of a worker or a channel."""
        low, high, advice, example = NUMBERS[name]

        def each(where: str, n: Any) -> int | None:
            return None if n is None and name == "capacities" else self.whole(where, n, low, advice, high)

        return self.by_name(name, value, each, f"{name}={example}")

    def device_memory(self, value: Any) -> int | None:
        return (
            None
            if value is None
            else self.whole(
                "device_memory", value, 1, "units of one device, as in memory, or None when everything fits"
            )
        )

    def staleness(self, value: Any) -> int:
        advice = "0 to end each iteration before the next begins, 1 to overlap two of them"
        return self.whole("staleness", value, 0, advice, MAX_STALENESS)

    def origin(self, value: Any) -> dict[str, Any]:
        """Read where it is looked at (`as_given`)."""
        return self.by_name(
            "origin", value, lambda where, said: said, "no origin: the plan is read from its other fields then"
        )

    def fused(self, value: Any) -> tuple[tuple[str, ...], ...]:
        advice = "fused=[['simulator', 'policy']]"
        groups = []
        for i, group in enumerate(self.rows("fused", value, "a list of groups of workers", advice)):
            names = self.rows(f"fused[{i}]", group, "a list of at least two workers", advice)
            if len(names) < 2:
                self.refuse(f"fused[{i}]", group, "a list of at least two workers", advice)
            for worker in names:
                if not isinstance(worker, str):
                    self.refuse(f"a name in fused[{i}]", worker, "a text", advice)
            groups.append(tuple(names))
        every = [w for g in groups for w in g]
        for worker in every:
            if every.count(worker) > 1:
                raise PlanError(
                    f"Plan {self.name!r}: fused is {shown(value)}, which names {worker!r} {every.count(worker)} times. "
                    "Next: put each worker into "
                    f"one group at most."
                )
        return tuple(groups)


def shown(value: Any) -> str:
    """One short line."""
    text = repr(value)
    first = text.split("\n", 1)[0]
    return text if len(text) <= 60 and text == first else first[:57] + "..."


def some(names: Sequence[str]) -> str:
    """A list that stays readable with thousands of names."""
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])}, …, {names[-1]}"
