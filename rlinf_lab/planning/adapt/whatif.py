"""What if there were more devices, longer responses, less memory? A question is a changed profile and a changed search.

>>> asked = Question.of(plans)
>>> dataclasses.replace(asked, devices={"": 128}, tail=1.5).answer(plans.profile)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError, UnknownNameError, refuse_old_names, shown
from rlinf_lab.planning.costs import GenerationModel, fit_worker
from rlinf_lab.planning.forecast.forecast import graph_of
from rlinf_lab.planning.placement.budget import Budget
from rlinf_lab.planning.placement.infeasible import Unplaceable
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.plan.device import extended
from rlinf_lab.planning.plan.execution_plan import OLD_NAMES
from rlinf_lab.planning.planner.feasible import MAX_GIB, MODES, Wish, nearest
from rlinf_lab.planning.planner.planner import Plans, searched
from rlinf_lab.planning.profile.memory import limits
from rlinf_lab.planning.profile.profile import DeviceKind, Profile
from rlinf_lab.planning.schema.arguments import MAX_DEVICES, MAX_MICRO_BATCHES, MAX_STALENESS, number, whole

SPEEDS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
TAILS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
SLIDER_DEVICES = 4096
SLIDER_STALENESS = 4  # iterations


@dataclass(frozen=True)
class Question:
    """What to change of a profile before it is planned again. ``devices`` of each kind; ``items`` of an iteration;
    ``micro_batches``: most of an iteration; ``memory_gib`` of a device (None: no limit); where there are several kinds
    of device a mapping, of each kind (one number: of all).

    ``length`` and ``tail``: of generated responses, relative to the profile's (`profile.Lengths.factor`, `.tail`).
    ``switching``: seconds of coming and leaving, relative to the profile's. ``staleness``: iterations that weights may
    be old. ``speed``: of workers, by name, relative to the profile's: 2 halves the seconds of its calls.
    """

    devices: Mapping[str, int]
    items: int
    micro_batches: int
    memory_gib: float | Mapping[str, float | None] | None = None
    length: float = 1.0
    tail: float = 1.0
    switching: float = 1.0
    staleness: int = 0
    rule: str = "fitted"
    speed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.devices, Mapping) or not self.devices:
            raise PlanError(f"what if devices = {shown(self.devices)}: how many of each kind. Next: {{'': 64}}.")
        for kind, count in self.devices.items():
            whole(f"what if devices[{kind!r}]", count, 1, MAX_DEVICES, of="devices")
        whole("what if micro_batches", self.micro_batches, 1, MAX_MICRO_BATCHES)
        whole("what if staleness", self.staleness, 0, MAX_STALENESS)
        if isinstance(self.memory_gib, Mapping) and set(self.devices) == {""}:
            raise PlanError(
                f"what if memory_gib = {shown(self.memory_gib)}: there is one kind of device. Next: one number, such "
                "as memory_gib=80."
            )
        for kind, gib in self._memories().items():
            if kind and kind not in self.devices:
                raise UnknownNameError.of(
                    "kind of device", kind, self.devices, f"It stands in what if memory_gib = {shown(self.memory_gib)}."
                )
            if gib is not None:
                number(
                    f"what if memory_gib{f'[{kind!r}]' if kind else ''} = {shown(gib)}: GiB of a device",
                    gib,
                    0,
                    MAX_GIB,
                    above=True,
                )
        for name in ("length", "tail", "switching"):
            value, most = getattr(self, name), 16 if name == "tail" else 1e6
            number(
                f"what if {name} = {shown(value)}: a factor (1: as in the profile)",
                value,
                0,
                most,
                above=name == "length",
            )
        if not isinstance(self.speed, Mapping):
            raise PlanError(f"what if speed = {shown(self.speed)}: a factor for each worker. Next: {{'rollout': 2.0}}.")
        for worker, factor in self.speed.items():
            said = f"what if speed[{worker!r}] = {shown(factor)}: a factor (2: twice as fast)"
            number(said, factor, 0, 1e6, above=True)

    @classmethod
    def of(cls, plans: Plans) -> Question:
        """The question that these plans answer."""
        setting = plans.best.candidate.placement.setting
        caps = {kind: None if math.isinf(cap := setting.cap(kind)) else cap for kind in setting.kinds}
        memory = caps if len(caps) > 1 else next(iter(caps.values()))
        return cls(
            dict(setting.devices),
            setting.profile.items,
            setting.micro_batches,
            memory,
            staleness=setting.staleness,
            rule=setting.rule,
        )

    def _memories(self) -> Mapping[str, float | None]:
        """By kind; all under no name where one number is for all."""
        return self.memory_gib if isinstance(self.memory_gib, Mapping) else {"": self.memory_gib}

    def profile(self, base: Profile) -> Profile:
        """The profile as it would be. Raises `PlanError` naming a value that cannot be."""
        step = step_of(base)
        if not isinstance(self.items, int) or isinstance(self.items, bool) or self.items < step or self.items % step:
            near = (
                max(step, round(self.items / step) * step)
                if isinstance(self.items, int | float) and math.isfinite(self.items)
                else step
            )
            raise PlanError(
                f"what if items = {self.items!r}: a whole number of groups of {step} items. Next: items={near}."
            )
        times = self.items / base.items
        memories = self._memories()
        kinds = tuple(
            replace(k, memory_gib=memories.get(k.name, memories.get("", _own_memory(base, k)))) for k in base.kinds
        )
        workers = dict(base.workers)
        if self.switching != 1:
            workers = {
                n: replace(w, onload_s=w.onload_s * self.switching, offload_s=w.offload_s * self.switching)
                for n, w in workers.items()
            }
        changed = base.replace(
            items=self.items, workers=workers, device_memory_gib=memories.get(""), kinds=kinds,
            edges=tuple(e if e.items is None else replace(e, items=e.items * times) for e in base.edges),
        )  # fmt: skip
        for name, worker in base.workers.items():
            if worker.lengths is not None and (self.length, self.tail) != (1, 1):
                changed = _longer(changed, name, self.length, self.tail)
        for name, factor in self.speed.items():
            changed = changed.scaled(name, 1 / factor)
        return changed

    def answer(self, base: Profile, simulate: bool = False, like: Plans | None = None) -> Plans:
        """Plans for the changed profile. They are quick ones, or all of them with the first ones simulated. Raises
        `PlanError` when nothing fits.

        ``like``: plans for the same workflow and devices, as far as these go; without it they are for the workflow that
        the profile describes. Where there are as many devices, of as much memory, a quick answer is looked for among
        the shapes of these plans; anywhere else among all.
        """
        profile = self.profile(base)
        try:
            setting = Setting.of(profile, self.devices, self.micro_batches, self.rule, self.staleness)
        except Unplaceable as error:
            wish = Wish(profile, self.devices, self.micro_batches, self.rule, self.staleness, MODES)
            raise PlanError(error.said + nearest(wish)) from None
        if like is None:
            return searched(setting, graph_of(setting.profile), simulate=simulate, quick=not simulate)
        before = like.best.candidate.placement.setting
        known = replace(like.best.known, alone=_devices_of(setting) == _devices_of(before))
        names = extended(like.best.devices, sum(self.devices.values())) if len(self.devices) == 1 else ()
        return searched(setting, like.best.graph, names, simulate=simulate, quick=not simulate, known=known)


def _longer(profile: Profile, generator: str, length: float = 1.0, tail: float = 1.0) -> Profile:
    """A profile with a generator's responses so many times as long. Their ratio to the median length is taken to the
    power ``tail`` (`profile.Lengths.factor`, `.tail`). Where tokens are weights, whoever works on them has more to do
    (`_slower_with`)."""
    lengths = profile.workers[generator].lengths
    assert lengths is not None  # checked by the profile
    changed = profile.with_worker(
        generator, lengths=replace(lengths, factor=lengths.factor * length, tail=lengths.tail * tail)
    )
    others = _slower_with(profile, generator) - {generator}
    if others:
        before, after = (_mean_length(p, generator) for p in (profile, changed))
        for name in others:
            changed = changed.scaled(name, after / before)
    return changed


def _slower_with(profile: Profile, generator: str) -> frozenset[str]:
    """Workers whose seconds depend on the length of a generator's responses. They are the generator itself, and batch
    work on them where tokens are weights.
    """
    reached, open_ = set[str](), [generator] if profile.weights == "tokens" else []
    while open_:
        here = open_.pop()
        for edge in profile.edges:
            if edge.producer == here and edge.consumer not in reached and edge.consumer != generator:
                reached.add(edge.consumer)
                open_.append(edge.consumer)
    return frozenset({generator, *(name for name in reached if profile.workers[name].kind == "batch")})


def _mean_length(profile: Profile, generator: str) -> float:
    """In tokens."""
    model = fit_worker(profile.workers[generator])
    assert isinstance(model, GenerationModel)
    return float(np.mean(model.asked))


def _devices_of(setting: Setting) -> list[tuple[str, int, float]]:
    """Of each kind how many, and GiB of one."""
    return [(kind, n, setting.cap(kind)) for kind, n in setting.devices.items()]


def _own_memory(profile: Profile, kind: DeviceKind) -> float | None:
    return profile.device_memory_gib if kind.memory_gib is None else kind.memory_gib


def step_of(profile: Profile) -> int:
    """Items of an iteration come in multiples of this: whole groups of every edge."""
    return math.lcm(1, *(e.group for e in profile.edges))


@dataclass(frozen=True)
class Slider:
    """One field of a question with the ``values`` worth looking at. They ascend (None: no limit, last).

    ``field`` is ``devices.KIND`` for the number of a kind, ``memory_gib.KIND`` for its memory where there are several
    kinds, ``speed.WORKER`` for that of a worker.
    """

    field: str
    label: str
    unit: str
    values: tuple[float | None, ...]
    why: str = ""

    def at(self, question: Question) -> int:
        """Where a question stands: the nearest value."""
        name, _, kind = self.field.partition(".")
        now = getattr(question, name)
        now = now.get(kind, 1.0 if name == "speed" else None) if isinstance(now, Mapping) else now
        return min(range(len(self.values)), key=lambda i: _distance(self.values[i], now))


def _distance(value: float | None, now: float | None) -> float:
    if value is None or now is None:
        return 0.0 if value is now else math.inf
    return abs(value - now)


def moved(question: Question, field: str, value: float | None) -> Question:
    """The question with one slider moved. `UnknownNameError` for a field that no slider has."""
    name, _, kind = field.partition(".")
    if name == "devices":
        if kind not in question.devices or value is None:
            raise UnknownNameError.of("kind of device", kind, question.devices)
        return replace(question, devices={**question.devices, kind: int(value)})
    if kind and name == "memory_gib" and kind in question.devices:
        before = (
            question.memory_gib
            if isinstance(question.memory_gib, Mapping)
            else dict.fromkeys(question.devices, question.memory_gib)
        )
        return replace(question, memory_gib={**before, kind: value})
    if kind and name == "speed" and value is not None:
        return replace(question, speed={**question.speed, kind: value})
    known = ("items", "micro_batches", "memory_gib", "length", "tail", "switching", "staleness")
    refuse_old_names("What if", [field], OLD_NAMES)
    if name not in known or kind:
        raise UnknownNameError.of("slider", field, [*(f"devices.{k}" for k in question.devices), *known])
    change: dict[str, Any] = {
        name: int(value) if value is not None and name in ("items", "micro_batches", "staleness") else value
    }
    return replace(question, **change)


def sliders(profile: Profile, question: Question) -> tuple[Slider, ...]:
    """The sliders that can change an answer. There is none for memory where nobody needs memory, none for lengths
    without a generator.
    """
    found = []
    for kind, count in question.devices.items():
        found.append(
            Slider(
                f"devices.{kind}", f"{kind} devices" if kind else "devices", "", _counts(count), "how many there are"
            )
        )
    step = step_of(profile)
    items = sorted({max(step, round(question.items * f / step) * step) for f in FACTORS if f <= 4} | {question.items})
    found.append(
        Slider(
            "items",
            "batch",
            "items",
            tuple(items),
            "items of one iteration; measured sizes are interpolated, others extrapolated",
        )
    )
    finest = int(math.log2(max(2, min(1024, profile.items))))
    found.append(
        Slider(
            "micro_batches",
            "most micro-batches",
            "",
            _with([2**g for g in range(finest + 1)], question.micro_batches),
            "how finely an iteration may be streamed",
        )
    )
    workers = profile.workers.values()
    if any(w.lengths is not None for w in workers):
        found.append(Slider("length", "response length", "×", FACTORS[2:-1], "relative to what was measured"))
        found.append(
            Slider(
                "tail",
                "long tail",
                "power",
                TAILS,
                "ratio to the median length, to this power: 0 all equal, 1 as measured",
            )
        )
    if any(map(limits, workers)):
        for kind, gib in question._memories().items():
            field, label = (f"memory_gib.{kind}", f"memory of {kind}") if kind else ("memory_gib", "memory")
            found.append(
                Slider(
                    field,
                    label,
                    "GiB",
                    (*_memories(profile, question, gib), None),
                    "of one device; what does not fit is no plan",
                )
            )
    if any(w.onload_s or w.offload_s for w in workers):
        found.append(
            Slider(
                "switching", "switching cost", "×", (0.0, *FACTORS), "seconds of coming to the devices and leaving them"
            )
        )
    found.append(
        Slider(
            "staleness",
            "staleness",
            "iterations",
            tuple(range(SLIDER_STALENESS + 1)),
            "how old the weights of a rollout may be",
        )
    )
    found += [
        Slider(f"speed.{name}", name, "×", SPEEDS, "how fast its calls are, relative to what was measured")
        for name, worker in profile.workers.items()
        if any(sample.seconds for sample in worker.samples)
    ]
    return tuple(found)


def _counts(now: int) -> tuple[int, ...]:
    most = min(SLIDER_DEVICES, max(8, 4 * now))
    steps = [m * 2**k for k in range(12) for m in (1, 1.5) if m * 2**k == int(m * 2**k) and m * 2**k <= most]
    return _with([int(s) for s in steps], now)


def _with(values: Sequence[int], now: int) -> tuple[int, ...]:
    return tuple(sorted({*values, now}))


def _memories(profile: Profile, question: Question, now: float | None) -> tuple[float, ...]:
    usual = {8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 64.0, 80.0, 96.0, 141.0, 192.0}
    budget = Budget(profile, question.devices)
    least = max(w.memory.resident_gib for w in budget.profile.workers.values())
    usual |= {round(least * f, 1) for f in (0.5, 1.0, 1.5, 2.0, 3.0)} - {0.0}
    return tuple(sorted(usual | ({now} if now is not None else set())))


def described(plans: Plans) -> dict[str, Any]:
    """`Plans.to_dict` with the causes of bubbles of each plan that was simulated. Each is a list [cause, share of
    device time].
    """
    data = plans.to_dict()
    for made, entry in zip(plans, data["plans"], strict=True):
        if made.simulated is not None:
            bubbles = made.timeline.bubbles()
            entry["bubbles"] = [
                [str(c), float(s)] for c, s in zip(bubbles["cause"], bubbles["share"], strict=True) if s >= 0.005
            ]
    return data
