"""Which modes have a plan at all, and what to change where none has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import NOTHING, Candidate, Known, candidates
from rlinf_lab.planning.planner.explain import shortage, why_no
from rlinf_lab.planning.profile.memory import advised, less_than_advised
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.arguments import MAX_DEVICES
from rlinf_lab.planning.search.solver import BOTH

MODES = ("temporal", "spatial", "hybrid")
MAX_GIB = 10**9
MAX_TRIED_DEVICES = 512  # devices up to which every one of the next numbers is tried


def of_modes(
    setting: Setting, modes: tuple[str, ...], quick: bool, known: Known = NOTHING, several: int = 1
) -> list[Candidate]:
    """The candidates among plans of these modes. ``known``, ``several``: of `candidates`."""
    free = "hybrid" in modes or len(modes) > 1 or len(setting.stages) < len(setting.profile.workers)
    found = candidates(setting, BOTH if free else (modes[0],), quick, known, several=several)
    return [c for c in found if c.placement.mode in (*modes, "alone")]


def why_none(setting: Setting, modes: tuple[str, ...]) -> str:
    """What stands against every plan of these modes, and what would help."""
    short = shortage(setting)
    if short.gib > min(map(setting.cap, setting.kinds)):
        said = short.said
    else:
        said = " ".join(f"{mode}: {why_no(setting, mode)}" for mode in modes)
    wish = Wish(setting.profile, setting.devices, setting.micro_batches, setting.rule, setting.staleness, modes)
    return said + nearest(wish)


@dataclass(frozen=True)
class Wish:
    """What was asked for: see `planner.plan`."""

    profile: Profile
    devices: Mapping[str, int]
    micro_batches: int
    rule: str
    staleness: int
    modes: tuple[str, ...]

    def is_possible(self, **changed: Any) -> bool:
        """Whether there is a plan when this and that is changed. Streams are looked at first, for they are quick."""
        wish = replace(self, **changed)
        some = [("spatial",), wish.modes] if "spatial" in wish.modes else [wish.modes]
        try:
            return any(of_modes(wish.setting(), modes, quick=True) for modes in some)
        except PlanError:
            return False

    def setting(self) -> Setting:
        """Raises `Unplaceable` where somebody fits nowhere."""
        return Setting.of(self.profile, self.devices, self.micro_batches, self.rule, self.staleness)


def nearest(wish: Wish) -> str:
    """What to change so that there is a plan. Each way was tried."""
    found = []
    if wish.modes != MODES and wish.is_possible(modes=MODES):
        found.append(f"modes={MODES}")
    if (enough := _least_memory(wish)) is not None:
        found.append(f"memory_gib={enough}" + " for every kind of device" * (len(wish.devices) > 1))
    if (more := _least_devices(wish)) is not None:
        found.append(f"devices={more.get('', more)}")
    return f" Next: {', or '.join(found) or _both(wish)}."


def _both(wish: Wish) -> str:
    """Where more memory or more devices alone would not do."""
    more = _least_devices(replace(wish, profile=limited(wish.profile, MAX_GIB)))
    gib = _least_memory(replace(wish, devices=more)) if more is not None else None
    if more is None or gib is None:
        return "other ranks or pins of the workers, or workers that can leave (offloadable: true)"
    return f"memory_gib={gib} and devices={more.get('', more)}"


def _least_memory(wish: Wish) -> float | None:
    """The least GiB of a device with which there is a plan. There is none with one percent less; None when memory is
    not what is missing.
    """

    def does(gib: float) -> bool:
        return wish.is_possible(profile=limited(wish.profile, gib))

    caps = [k.memory_gib for k in wish.profile.kinds if k.name in wish.devices] or [None]
    least = min((c if c is not None else wish.profile.device_memory_gib or math.inf for c in caps), default=math.inf)
    if not math.isfinite(least) or not does(MAX_GIB):
        return None
    in_turn = shortage(replace(wish, profile=limited(wish.profile, MAX_GIB)).setting()).gib  # mostly that is it
    low, high = least, advised(max(least, min(in_turn, MAX_GIB)))
    while high < MAX_GIB and not does(high):
        low, high = high, min(MAX_GIB, 2 * high)
    middle = less_than_advised(high)
    while low < middle:
        low, high = (low, middle) if does(middle) else (middle, high)
        middle = min(advised((low + high) / 2), less_than_advised(high))
    return high


def _least_devices(wish: Wish) -> Mapping[str, int] | None:
    """The devices with the fewest more of one kind with which there is a plan. Only some numbers are tried; the kind
    may be one that the profile knows and that was not asked for.
    """
    found = []
    others = {} if "" in wish.devices else {k.name: 0 for k in wish.profile.kinds if k.name not in wish.devices}
    for kind, there in {**wish.devices, **others}.items():

        def does(number: int, kind: str = kind) -> bool:
            return number <= MAX_DEVICES and wish.is_possible(devices={**wish.devices, kind: number})

        near = range(there + 1, there + 9) if there <= MAX_TRIED_DEVICES else ()
        low = there
        for high in sorted({*near, *((there or max(wish.devices.values())) * t for t in (2, 3, 4, 8, 16, 64))}):
            if does(high):
                while high - low > 1:  # more need not always do, but what is said was tried
                    middle = (low + high) // 2
                    low, high = (low, middle) if does(middle) else (middle, high)
                found.append((high - there, {**wish.devices, kind: high}))
                break
            low = high
    return min(found, key=lambda f: f[0])[1] if found else None


def limited(profile: Profile, gib: float) -> Profile:
    """With so much memory on every device."""
    return profile.replace(device_memory_gib=gib, kinds=tuple(replace(k, memory_gib=None) for k in profile.kinds))
