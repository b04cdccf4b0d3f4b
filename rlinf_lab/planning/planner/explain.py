"""Why a plan won or lost, in a line. It also tells who takes its devices twice, and why there is no plan of a mode."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.placement.budget import Stage
from rlinf_lab.planning.placement.free_memory import APART, SINGLE, TOGETHER, Forms, allowed
from rlinf_lab.planning.placement.infeasible import on_each
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import Candidate
from rlinf_lab.planning.planner.lower_bound import Bound
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.search.plan_tree import TEMPORAL
from rlinf_lab.timeline.timeline import Timeline

SHOWN_SHARE = 0.02  # share of a bubble's cause that is worth a word
AS_FAST_FACTOR = 1.0005  # 0.0 % slower


def early(placement: Placement) -> tuple[str, ...]:
    """A sentence for each worker that takes devices of others before its input is there."""
    setting, found = placement.setting, []
    for name, seat in placement.seats.items():
        cell = setting.stages[setting.home[name]].members
        # who begins a cycle waits for nobody's items
        fed = any(e.consumer == name and e.producer not in cell for e in setting.profile.edges)
        others = [n for n, o in placement.seats.items() if n not in cell and set(o.devices) & set(seat.devices)]
        if setting.profile.workers[name].starts_on_device and fed and not seat.stays and others:
            # In a cycle somebody has to put before it reads, so only who is in none is told to read first.
            advice = ". Next: read the inbox first, and compute then" if len(cell) == 1 else ""
            found.append(
                f"{name} computes, or may compute, before its first get, so it takes its devices from "
                f"{' and '.join(others)} before its input is there, and "
                f"once more when it is: plans are simulated so, but looked for as if it came once{advice}"
            )
    return tuple(found)


def reason(candidate: Candidate, seconds: float, best: float, timeline: Timeline | None, bound: Bound | None) -> str:
    """Why a plan is where it is. It tells how much slower it is, and where its devices' time goes. ``seconds``: those
    that are shown, of the simulation where there is one, which knows links and messages; ``best``: of the fastest plan.
    ``bound``: given for that one.
    """
    if bound is not None:
        above = round(100 * (seconds / bound.seconds - 1)) if bound.seconds else 0
        lower = "the lower bound" if not bound.unsure else "the estimated lower bound"
        return f"fastest; {above} % above {lower}" + _idle(candidate, seconds, timeline)
    slower = f"{100 * (seconds / best - 1):.1f} % slower" if best else f"{seconds:.4g} s slower"
    return ("as fast" if seconds <= best * AS_FAST_FACTOR else slower) + _idle(candidate, seconds, timeline)


def _idle(candidate: Candidate, seconds: float, timeline: Timeline | None) -> str:
    """Where the devices' time goes: turns one after another, who waits most, causes."""
    said = _turns(candidate, seconds) or _waiting(candidate, seconds)
    if timeline is None:
        return said
    bubbles = timeline.bubbles()
    worst = [
        f"{cause} {100 * share:.0f} %"
        for cause, share in zip(bubbles["cause"], bubbles["share"], strict=True)
        if share >= SHOWN_SHARE
    ][:2]
    return said + (f"; idle: {', '.join(worst)}" if worst else "")


def _turns(candidate: Candidate, seconds: float) -> str:
    """One after another on the devices; who works on the host does so meanwhile."""
    if candidate.placement.mode != TEMPORAL:
        return ""
    stages, seats = candidate.placement.setting.stages, candidate.placement.seats
    parts: dict[bool, list[str]] = {False: [], True: []}
    for u, w in sorted(candidate.streamed.work.items(), key=lambda item: item[1].starts[0]):
        parts[any(seats[m].devices for m in stages[u].members)].append(f"{stages[u].name} {w.busy:.4g} s")
    handing = candidate.streamed.handing
    other = candidate.seconds - handing - sum(w.busy for w in candidate.streamed.work.values())
    switching = f", handing over {handing:.3g} s" if handing > 1e-3 * candidate.seconds else ""
    switching += f", switching {other:.3g} s" if other > 1e-3 * candidate.seconds else ""
    profile, carried = candidate.placement.setting.profile, seconds - candidate.seconds
    if carried > SHOWN_SHARE * seconds and (profile.link is not None or profile.messages):
        switching += f", waiting for what is moved {carried:.3g} s"
    beside = f"; on the host beside them: {', '.join(parts[False])}" if parts[False] else ""
    return (f"; turns: {', '.join(parts[True])}" if parts[True] else "") + switching + beside


def _waiting(candidate: Candidate, seconds: float) -> str:
    """The stage with devices of its own that wastes most of them."""
    placement, found = candidate.placement, []
    for stage in candidate.streamed.work:
        names = placement.setting.stages[stage].members
        devices = {d for m in names for d in placement.seats[m].devices}
        shared = any(devices & set(s.devices) for m, s in placement.seats.items() if m not in names)
        if devices and not shared:
            idle = max(0.0, 1 - _worked(candidate, stage) / (len(devices) * seconds)) if seconds else 0.0
            found.append((idle * len(devices), idle, placement.setting.stages[stage].name, len(devices)))
    if not found:
        return ""
    _, idle, name, count = max(found)
    who = f"{name}'s device waits" if count == 1 else f"{name}'s {count} devices wait"
    return f"; {who} {100 * idle:.0f} % of the time"


def _worked(candidate: Candidate, stage: int) -> float:
    """Device seconds for which a stage works in an iteration. Members of a cell that sit apart work for as long as each
    takes, not as long as the cell.
    """
    placement = candidate.placement
    names = placement.setting.stages[stage].members
    seats = [placement.seats[m] for m in names]
    if placement.arrangement.forms[stage] != APART:
        return candidate.streamed.work[stage].busy * len({d for seat in seats for d in seat.devices})
    return sum(placement.member_seconds(s.worker) * s.micro_batches * s.sub_batches * len(s.devices) for s in seats)


def why_no(setting: Setting, kind: str) -> str:
    """Why there is no plan of a mode."""
    if len(setting.stages) == 1:
        return _nobody_else(setting.stages[0])
    split = next((u for i, u in enumerate(setting.stages) if not _together(setting, i)), None)
    if kind == "spatial":
        fewest = {u.name: _fewest(setting, i) for i, u in enumerate(setting.stages)}
        needs = " + ".join(f"{n} {name}" for name, n in fewest.items())
        if sum(fewest.values()) > setting.totals[-1]:
            return (
                f"devices of their own for all need {needs} = {sum(fewest.values())} devices, {setting.totals[-1]} are "
                "there."
            )
    elif kind == "hybrid" and len(setting.stages) == 2:
        return "two that time-share or stream are no mixture; it takes three."
    elif kind == "temporal" and split is not None:
        return (
            f"{_all(split)} cannot sit on the same devices, and apart they stream to each "
            "other."
        )
    elif shortage(setting).gib > min(map(setting.cap, setting.kinds)):
        return "who stays on the devices leaves too little memory for the others: " + shortage(setting).said
    return ("no mixture" if kind == "hybrid" else "none") + " was found that is different from the others."


def _all(stage: Stage) -> str:
    return f"{', '.join(stage.members[:-1])} and {stage.members[-1]}"


def _nobody_else(stage: Stage) -> str:
    if len(stage.members) == 1:
        return "the flow has one worker to place."
    return (
        f"{_all(stage)} answer each other step by step and are placed as one; there is nobody else to time-share or to "
        "stream with."
    )


def _together(setting: Setting, stage: int) -> bool:
    """Whether all members of a stage fit on the same devices, with nobody else there."""
    if len(setting.stages[stage].members) == 1:
        return True
    forms = Forms(tuple(TOGETHER if i == stage else SINGLE for i in range(len(setting.stages))))
    return bool(np.isfinite(setting.tables.of(stage, 0, forms)).any())


@dataclass(frozen=True)
class Shortage:
    """Why nothing fits. ``said`` in a sentence; with ``gib`` on each device all could time-share on the most devices
    that each can have.
    """

    said: str
    gib: float


def shortage(setting: Setting) -> Shortage:
    """What stands against every plan of turns. It tells who keeps how much, and what works beside it."""
    workers = setting.profile.workers
    most = {
        m: _most(setting, m, max(setting.counts))
        for u in setting.stages
        for m in u.members
        if workers[m].resource == "device"
    }
    if not most:
        return Shortage("all workers are on the host.", 0.0)
    # who keeps each there: itself, or a member of its cell that cannot leave
    mates = {m: [s for s in setting.stages[setting.home[m]].members if not workers[s].offloadable] for m in most}
    keeps = {m: _keeps(setting, m, n) for m, n in most.items() if mates[m]}
    needs = {m: _needs(setting, m, n) for m, n in most.items()}
    together = {m: needs[m] + sum(g for s, g in keeps.items() if s != m) - _twice(setting, {m, *keeps}) for m in most}
    short = max(most, key=together.__getitem__)
    gib = together[short]
    cells = "".join(
        f"; {m!r} stays with {mates[m][0]!r}, in one cell" for m in keeps if m not in mates[m] and m != short
    )
    others = ", ".join(f"{s!r} keeps {g:.3g} GiB" for s, g in keeps.items() if s != short and g > 0)
    if len(setting.kinds) > 1:
        return Shortage(_short_of_kinds(setting, short, others), gib)
    same = _twice(setting, {short, *keeps})
    beside = (
        f" while {others} there (offloadable: false{cells}{f', {same:.3g} GiB of it the same weights' if same else ''})"
        if others
        else ""
    )
    cap = setting.cap(setting.kinds[0])
    return Shortage(
        f"{short!r} needs {needs[short]:.3g} GiB {on_each(most[short])}{beside}, and a device has {cap:g} GiB.", gib
    )


def _short_of_kinds(setting: Setting, name: str, others: str) -> str:
    """On each kind of device that has enough of them."""
    most = {kind: _most(setting, name, n) for kind, n in setting.devices.items()}
    needs = [
        f"{_needs(setting, name, n):.3g} GiB {on_each(n)} of {kind}, which has {setting.cap(kind):g}"
        for kind, n in most.items()
        if n
    ]
    beside = f"; {others} (offloadable: false) where they sit" if others else ""
    return f"{name!r} needs {', or '.join(needs)}{beside}."


def _twice(setting: Setting, names: Collection[str]) -> float:
    """GiB of weights that several of these hold on a device."""
    return memory.counted_twice(setting.profile.workers[m] for m in names)


def _needs(setting: Setting, name: str, devices: int) -> float:
    """GiB on each of so many devices, with the finest micro-batches."""
    return float(
        memory.needed(
            setting.profile.workers[name],
            np.array([devices]),
            setting.fewest_items(name),
            setting.profile.group_size(name),
        )[0]
    )


def _keeps(setting: Setting, name: str, devices: int) -> float:
    return float(memory.kept(setting.profile.workers[name], np.array([devices]), setting.profile.items)[0])


def _most(setting: Setting, name: str, there: int) -> int:
    """The most devices that it may have; 0 where there are too few."""
    devices = np.arange(1, there + 1)
    return int(devices[allowed(setting.profile.workers[name], devices)].max(initial=0))


def _fewest(setting: Setting, stage: int) -> int:
    """Devices that a stage needs at least, in any of its forms, alone there."""
    forms = [TOGETHER, APART] if len(setting.stages[stage].members) > 1 else [SINGLE]
    rows = [
        setting.tables.of(stage, 0, Forms(tuple(f if i == stage else SINGLE for i in range(len(setting.stages)))))
        for f in forms
    ]
    return int(setting.totals[np.isfinite(rows).any(axis=(0, 1))].min())  # somewhere it fits: `Setting.check`
