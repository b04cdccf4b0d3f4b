"""Which modes have a plan at all, and what to change where none has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.candidates import Candidate, candidates
from rlinf_lab.planning.given import MOST_DEVICES
from rlinf_lab.planning.profile import Profile
from rlinf_lab.planning.reasons import fewest_apart, shortage, why_no
from rlinf_lab.planning.search.solver import BOTH
from rlinf_lab.planning.setting import Setting

MODES = ("temporal", "spatial", "hybrid")


def of_modes(setting: Setting, modes: tuple[str, ...], quick: bool, staying: int = 0) -> list[Candidate]:
    """The candidates among plans of these modes."""
    free = "hybrid" in modes or len(modes) > 1 or len(setting.units) < len(setting.profile.workers)
    found = candidates(setting, BOTH if free else (modes[0],), quick, staying)
    return [c for c in found if c.placement.mode in (*modes, "alone")]


def why_none(setting: Setting, modes: tuple[str, ...]) -> str:
    """What stands against every plan of these modes, and what would help."""
    short = shortage(setting)
    if short.gib > min(map(setting.cap, setting.kinds)):
        said = short.said
    else:
        said = " ".join(f"{mode}: {why_no(setting, mode)}" for mode in modes)
    return said + nearest(setting, modes)


def nearest(setting: Setting, modes: tuple[str, ...]) -> str:
    """What to change so that there is a plan. Each way was tried."""
    gib, kind = math.ceil(shortage(setting).gib), next(iter(setting.devices))
    found = []
    if _possible(setting, setting.profile, setting.devices, MODES):
        found.append(f"modes={MODES}")
    if gib > min(map(setting.cap, setting.kinds)) and _possible(setting, limited(setting.profile, gib), setting.devices, modes):
        found.append(f"memory_gib={gib}")
    counts = sorted(n for n in {fewest_apart(setting), *(t * setting.devices[kind] for t in (2, 4, 8))} if setting.devices[kind] < n <= MOST_DEVICES)
    for count in counts:
        more = {**setting.devices, kind: count}
        if _possible(setting, setting.profile, more, modes):
            found.append(f"devices={more if kind else more[kind]}")
            break
    return f" Next: {', or '.join(found)}." if found else " Next: more memory, more devices, or workers that can leave (offloadable: true)."


def _possible(setting: Setting, profile: Profile, devices: Mapping[str, int], modes: tuple[str, ...]) -> bool:
    try:
        changed = Setting.of(profile, devices, setting.chunks, setting.rule, setting.staleness)
    except PlanError:
        return False
    return bool(of_modes(changed, modes, quick=True))


def limited(profile: Profile, gib: float) -> Profile:
    """With so much memory on every device."""
    return profile.replace(device_memory_gib=gib, kinds=tuple(replace(k, memory_gib=None) for k in profile.kinds))
