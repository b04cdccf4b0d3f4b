"""Ranked plans for a workflow. Each has its predicted timeline, and every loser its reason.

>>> plans = plan(profile, devices=64)
>>> plans.best.seconds, plans.best.shape
>>> plans["temporal"].timeline
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlinf_lab.errors import PlanError, UnknownNameError, counted, renamed, shown
from rlinf_lab.planning.costs.base import BEYOND, INTERPOLATED, MEASURED, CostEstimate
from rlinf_lab.planning.forecast.forecast import device_names, forecast, graph_of
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.infeasible import Unplaceable
from rlinf_lab.planning.placement.search_space import DEFAULT_MICRO_BATCHES, Setting
from rlinf_lab.planning.placement.to_execution_plan import execution_plan, same_workers
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.candidates import NOTHING, Candidate, Known
from rlinf_lab.planning.planner.explain import early, reason, why_no
from rlinf_lab.planning.planner.feasible import MAX_GIB, MODES, Wish, limited, nearest, of_modes, why_none
from rlinf_lab.planning.planner.given_plan import as_given
from rlinf_lab.planning.planner.lower_bound import Bound, lower_bound
from rlinf_lab.planning.planner.ranking import SEVERAL, Shown, order, ranking, simulated
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.profile.reconcile import of_flow, splits
from rlinf_lab.planning.schema.arguments import names_and_counts, number
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.planning.search.effort import FEW_COUNTS, is_exact
from rlinf_lab.planning.search.problem import FEW_LEAVES, GROUPS, LONG, Orders
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow

MAX_FACTOR = 100.0  # an estimate that is off by more says nothing
ABOUT = "~ followed micro-batch by micro-batch, not simulated"


@dataclass(frozen=True)
class Planned:
    """One plan. ``seconds`` of an iteration: simulated, where that was done, else followed micro-batch by micro-batch.
    ``known``: what was found beside it.
    """

    name: str
    candidate: Candidate
    simulated: float | None
    reason: str
    graph: WorkflowGraph
    devices: tuple[str, ...]
    known: Known = NOTHING

    @property
    def seconds(self) -> float:
        return self.candidate.seconds if self.simulated is None else self.simulated

    @property
    def seconds_are(self) -> str:
        """``simulated`` or ``followed``."""
        return "followed" if self.simulated is None else "simulated"

    @property
    def mode(self) -> str:
        """``temporal``, ``spatial`` or ``hybrid`` (``alone`` for a flow of one worker)."""
        return self.candidate.placement.mode

    @property
    def shape(self) -> str:
        """Who shares and who streams, as a text. `>` is one after another on the same devices, `|` at the same time on
        devices of their own.
        """
        return self.candidate.placement.shape

    @property
    def placement(self) -> Mapping[str, dict[str, Any]]:
        """Where each worker is placed, and how it works there. This is devices, ranks, micro-batches of an iteration,
        sub_batches, and whether it stays on its devices.
        """
        there = self.candidate.placement
        return {
            name: {
                "devices": len(s.devices),
                "ranks": s.ranks,
                "micro_batches": there.number_of_calls(s),
                "sub_batches": s.sub_batches,
                "stays": s.stays,
            }
            for name, s in there.seats.items()
        }

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on who takes its devices too early, and who may have one rank only. Too early is before its input is
        there.
        """
        placement = self.candidate.placement
        told = [
            s for s in splits(placement.setting.profile, self.graph) if s.sure or placement.seats[s.worker].ranks > 1
        ]
        return (*early(placement), *(f"{split}. Next: {split.advice}" for split in told))

    @cached_property
    def timeline(self) -> Timeline:
        """The predicted timeline of so many iterations as it takes to settle. They are two, or with staleness a few
        that overlap.
        """
        return steady(self.candidate.placement, self.devices)

    @cached_property
    def execution(self) -> ExecutionPlan:
        """What `lab.run` takes."""
        return execution_plan(self.candidate.placement, self.graph, self.devices, self.name)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, as `ExecutionPlan.save` does: what `load` reads. Its seconds are not in it; `planned`
        tells them again.
        """
        self.execution.save(path)

    @staticmethod
    def load(path: str | Path) -> ExecutionPlan:
        """Read the plan that `save` wrote: what `lab.run` and `planned` take."""
        return ExecutionPlan.load(path)

    def diff(self, other: Planned | ExecutionPlan) -> str:
        """What is different in another plan, as of `ExecutionPlan.diff`."""
        return self.execution.diff(other)

    def simulate(self, iterations: int = 10, noise: float = 0.0, seed: int = 0) -> Timeline:
        """A longer forecast; ``noise``: relative standard deviation of every duration."""
        return forecast(self.candidate.placement, iterations, self.devices, noise, seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without the timeline, which is simulated again."""
        return {key: value for key, value in self.__dict__.items() if key != "timeline"}

    def to_dict(self) -> dict[str, Any]:
        fields = ("name", "mode", "shape", "seconds", "seconds_are")
        return {**{f: getattr(self, f) for f in fields}, "workers": dict(self.placement), "reason": self.reason}

    def __repr__(self) -> str:
        lines = [f"{self.name}: {_about(self)}{self.seconds:.4g} s an iteration, {self.shape}"]
        for worker, at in self.placement.items():
            lines.append(f"  {worker:<12} {_place(at)}")
        return "\n".join([*lines, f"  {self.reason}", *(f"  note: {n}" for n in self.notes)])

    def _repr_html_(self) -> str:
        from html import escape

        from rlinf_lab.timeline.draw.picture import scene
        from rlinf_lab.timeline.draw.svg import shown_html

        picture = ""
        if self.simulated is not None:
            picture = shown_html(scene(self.timeline.snapshot(), self.timeline.accounting(), 960, "device"))
        return f"<div><pre>{escape(repr(self))}</pre>{picture}</div>"


@dataclass(frozen=True)
class Plans(Sequence[Planned]):
    """Plans, fastest first. ``bound``: seconds that no plan can beat, an estimate where costs were not measured;
    ``refused``: modes without a plan, and why; ``quick``: as of `plan`.
    """

    ranked: tuple[Planned, ...]
    bound: Bound
    refused: Mapping[str, str]
    profile: Profile
    devices: Mapping[str, int]
    quick: bool = False

    @property
    def best(self) -> Planned:
        return self.ranked[0]

    def __len__(self) -> int:
        return len(self.ranked)

    def __iter__(self) -> Iterator[Planned]:
        return iter(self.ranked)

    def __getitem__(self, which: Any) -> Any:
        """By position, or by name; a mode (``"spatial"``) gives its fastest plan."""
        if isinstance(which, (slice, int)):
            if isinstance(which, int) and not -len(self) <= which < len(self):
                raise IndexError(
                    f"plans[{which}]: there are {len(self)}, plans[0] is the fastest. Next: plans[{len(self) - 1}]."
                )
            return self.ranked[which]
        if not isinstance(which, str):
            raise PlanError(
                f"plans[{shown(which)}]: a position, a name, a mode or a shape. Next: plans[{self.ranked[0].name!r}]."
            )
        for plan in self.ranked:
            if which in (plan.name, plan.mode, plan.shape):
                return plan
        if which in self.refused:
            raise PlanError(f"There is no {which} plan: {self.refused[which]} Next: plans[{self.ranked[0].name!r}].")
        raise UnknownNameError.of("plan", which, [p.name for p in self.ranked])

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the figures of the best plan rest on, and its own notes."""
        found = [f"profile is stale: {s}" for s in self.profile.stale()]
        placement = self.best.candidate.placement
        for i, stage in enumerate(placement.setting.stages):
            estimate = placement.estimate(i)
            if estimate.basis not in (MEASURED, INTERPOLATED) or estimate.relative >= BEYOND:
                found.append(
                    f"{stage.name}: {estimate.basis}, {_good(estimate)}" + f" ({estimate.note})" * bool(estimate.note)
                )
        setting, problem = placement.setting, placement.setting.problem(placement.arrangement)
        single = [n for n, w in self.profile.workers.items() if w.resource == "device" and w.ranks.most == 1]
        there = sum(self.devices.values())
        if single and placement.used < there:
            found.append(
                f"{there - placement.used} of {there} devices are idle: by the profile {listing(single)} "
                f"{'has' if len(single) == 1 else 'have'} one rank at most. Next: lab.profile(flow, "
                f"ranks={{{single[0]!r}: [1, {there}]}}) measures more"
            )
        orders = Orders.of(problem)
        if not orders.is_grouped and not is_exact(problem):
            found.append(
                f"{len(setting.stages)} workers on {_budget(self.devices)} are more than an exact search can look at: "
                "plans were looked for on some numbers of devices and then near the best, and a somewhat faster one "
                "may exist; the lower bound holds for all. "
                f"Next: fewer devices or workers for an exact search (any {FEW_LEAVES} workers on {FEW_COUNTS} devices)"
            )
        if not orders.all:
            groups = (
                f", cut between {GROUPS} groups of neighbours and each group in one way" if orders.is_grouped else ""
            )
            found.append(
                f"{len(placement.setting.stages)} workers can be composed in more ways than can be searched: they were "
                "looked at in one order, producers before "
                f"consumers{groups}, and a faster plan may exist; the lower bound holds for all. "
                f"Next: one worker where several do the same, for an exact search (any {FEW_LEAVES} workers, a chain "
                f"of {LONG})"
            )
        return (*found, *self.best.notes)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return {
            "profile": self.profile.name,
            "devices": dict(self.devices) if len(self.devices) > 1 else next(iter(self.devices.values())),
            "lower_bound_s": self.bound.seconds, "lower_bound_is": "estimated" if self.bound.unsure else "measured",
            "plans": [p.to_dict() for p in self.ranked],
            "refused": [{"mode": mode, "reason": why} for mode, why in self.refused.items()],
            "notes": list(self.notes),
        }  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def to_pandas(self) -> Any:
        """One row per plan. Columns: name, mode, shape, seconds and whether they are simulated or followed, devices of
        each worker, reason.
        """
        import pandas as pd

        rows = [
            {
                "name": p.name,
                "mode": p.mode,
                "shape": p.shape,
                "seconds": p.seconds,
                "seconds_are": p.seconds_are,
                **{w: at["devices"] for w, at in p.placement.items()},
                "reason": p.reason,
            }
            for p in self.ranked
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        width = max(len(p.name) for p in self.ranked)
        head = f"{counted(len(self.ranked), 'plan')} for {self.profile.name!r} on {_budget(self.devices)}"
        lines = [f"{head}; {self.bound.said}"]
        for plan in self.ranked:
            places = ", ".join(f"{w} {at['devices']}" for w, at in plan.placement.items())
            lines.append(
                f"  {plan.name:<{width}}  {_about(plan) + format(plan.seconds, '.4g'):>10} s  {plan.shape}  [{places}] "
                f" {plan.reason}"
            )
        lines += [f"  {mode:<{width}}  no plan: {why}" for mode, why in self.refused.items()]
        return "\n".join([*lines, *(f"  {legend}" for legend in self._legend()), *(f"  note: {n}" for n in self.notes)])

    def _legend(self) -> list[str]:
        return [ABOUT] if any(p.simulated is None for p in self.ranked) else []

    def _repr_html_(self) -> str:
        from html import escape

        widths = {p.name: 90 * self.best.seconds / p.seconds if p.seconds else 90 for p in self.ranked}
        rows = "".join(
            "<tr><td "
            f"style='text-align:left'>{'<b>' * (p is self.best)}{escape(p.name)}{'</b>' * (p is self.best)}</td>"
            f"<td>{_about(p)}{p.seconds:.4g}</td>"
            "<td style='text-align:left'><span "
            f"style='display:inline-block;height:.7em;background:#1e69b4;width:{widths[p.name]:.0f}px'></span></td>"
            f"<td style='text-align:left'>{escape(p.shape)}</td>"
            "<td "
            f"style='text-align:left'>{escape(', '.join(f'{w} {_place(at)}' for w, at in p.placement.items()))}</td>"
            f"<td style='text-align:left'>{escape(p.reason)}</td></tr>"
            for p in self.ranked
        )
        rows += "".join(
            f"<tr><td style='text-align:left'>{escape(m)}</td><td>–</td><td></td><td colspan=3 "
            f"style='text-align:left'>{escape(w)}</td></tr>"
            for m, w in self.refused.items()
        )
        head = "".join(
            f"<th style='text-align:left'>{h}</th>" for h in ("plan", "seconds", "speed", "shape", "devices", "why")
        )
        notes = "".join(f"<br><small>{escape(n)}</small>" for n in (*self._legend(), *self.notes))
        return (
            f"<div><b>{counted(len(self.ranked), 'plan')}</b> for {escape(self.profile.name)} on "
            f"{escape(_budget(self.devices))}; {escape(self.bound.said)}"
            f"<table><tr>{head}</tr>{rows}</table>{notes}</div>"
        )


@renamed(chunks="micro_batches")
def plan(
    what: Profile | Workflow,
    devices: int | Mapping[str, int] | Sequence[str] | Mapping[str, Sequence[str]],
    profile: Profile | None = None,
    *,
    memory_gib: float | None = None,
    staleness: int = 0,
    micro_batches: int = DEFAULT_MICRO_BATCHES,
    rule: str = "fitted",
    modes: Sequence[str] = MODES,
    simulate: bool = True,
    quick: bool = False,
) -> Plans:
    """Search for plans and rank them.

    ``what``: a profile, or a workflow and its ``profile``; then ``plans.best`` is what `lab.run` takes.
    ``devices``: how many, how many of each kind, or their names, of several kinds by kind (``{"H": ["cuda:0"], "R":
    ["node1/cuda:0"]}``). ``memory_gib`` of one device (default: the profile's). ``staleness``: how many iterations old
    a rollout's weights may be. ``micro_batches``: most micro-batches of an iteration. ``rule``: ``"rlinf"`` for the
    public tool's cost rule.
    ``modes``: leave some out. ``simulate``: run the first few through the scheduler in virtual time and rank by that.
    ``quick``: only the best plan of all, of turns and of streams, for sliders.

    Raises `PlanError` when a worker fits nowhere, naming it, its limit and the nearest thing that would work.
    """
    profile, graph = _given(what, profile)
    names, counts = names_and_counts(devices)
    if isinstance(modes, str) or not isinstance(modes, Collection) or not modes:
        raise PlanError(f"modes is {shown(modes)}; give some of {', '.join(MODES)}. Next: modes=('temporal',).")
    for given in modes:
        if given not in MODES:
            raise UnknownNameError.of("mode", given, MODES)
    if memory_gib is not None:
        number("memory_gib", memory_gib, 0, MAX_GIB, above=True)
        profile = limited(profile, memory_gib)
    try:
        setting = Setting.of(profile, counts, micro_batches, rule, staleness)
    except Unplaceable as error:
        wish = Wish(profile, error.devices, micro_batches, rule, staleness, tuple(modes))
        raise PlanError(error.said + nearest(wish)) from None
    return searched(setting, graph, names, tuple(modes), simulate, quick)


def planned(
    what: Profile | Workflow,
    plan: ExecutionPlan,
    profile: Profile | None = None,
    *,
    devices: int | Mapping[str, int] | None = None,
    memory_gib: float | None = None,
    rule: str = "fitted",
) -> Planned:
    """What a plan of yours would take under a profile. Made by hand, edited, or read from a file: as one of `plan`,
    simulated, not searched.

    ``what``, ``profile``, ``memory_gib``, ``rule``: as of `plan`. ``devices``: how many of each kind, where there are
    several (in the order of the plan's).

    Raises `PlanError` where the plan does not fit the workflow, the profile or the devices' memory, naming the worker
    or channel.
    """
    profile, graph = _given(what, profile)
    if not isinstance(plan, ExecutionPlan):
        raise PlanError(
            f"planned({shown(what)}, {shown(plan)}): an ExecutionPlan is needed. Next: ExecutionPlan.from_json(text), "
            "or plans.best.execution."
        )
    counts = _counts_of(profile, plan, devices)
    if memory_gib is not None:
        number("memory_gib", memory_gib, 0, MAX_GIB, above=True)
        profile = limited(profile, memory_gib)
    try:
        candidate, names = as_given(profile, graph, plan, counts, rule)
    except Unplaceable as error:
        wish = Wish(profile, counts, DEFAULT_MICRO_BATCHES, rule, plan.staleness, MODES)
        raise PlanError(error.said + nearest(wish)) from None
    timeline = steady(candidate.placement, names)
    _, seconds = settled(timeline, plan.staleness)
    made = Planned(plan.name, candidate, seconds, "as it was given", graph, names)
    made.__dict__.update(timeline=timeline, execution=plan)
    return made


def _counts_of(profile: Profile, plan: ExecutionPlan, devices: Any) -> dict[str, int]:
    """How many of each kind a plan has."""
    kinds, there = [k.name for k in profile.kinds] or [""], len(plan.devices)
    if devices is None and len(kinds) > 1:
        raise PlanError(
            f"The profile has the kinds {', '.join(kinds)}, and plan {plan.name!r} does not say which of its {there} "
            "devices are of which. "
            f"Next: devices={{{kinds[0]!r}: {there}}}."
        )
    counts = (
        {kinds[0]: there} if devices is None else dict(devices) if isinstance(devices, Mapping) else {kinds[0]: devices}
    )
    if all(isinstance(n, int) for n in counts.values()) and sum(counts.values()) != there:
        raise PlanError(
            f"devices is {shown(devices)}, but plan {plan.name!r} has {there}. Next: {there}, or a plan for as many."
        )
    return counts


def searched(
    setting: Setting,
    graph: WorkflowGraph,
    names: tuple[str, ...] = (),
    modes: tuple[str, ...] = MODES,
    simulate: bool = True,
    quick: bool = False,
    known: Known = NOTHING,
) -> Plans:
    """`plan` of what was checked. ``names`` of the devices; with none they are ``cuda:0`` and so on. ``known``: of
    `candidates`.
    """
    found = of_modes(setting, modes, quick, known, 1 if quick or not simulate else SEVERAL)
    if not found:
        raise PlanError(
            f"No plan for {setting.profile.name!r} on {_budget(setting.devices)} among {', '.join(modes)}: "
            f"{why_none(setting, modes)}"
        )
    devices = names or device_names(found[0].placement)
    return replace(_ranked(setting, ranking(found, devices, simulate), graph, devices, modes), quick=quick)


def simulated_one_by_one(plans: Plans) -> Iterator[Plans]:
    """The same plans, with one more of them simulated each time, ranked by that. No others are searched or looked at
    beside them.
    """
    first, modes = (
        plans.best,
        tuple(m for m in MODES if m in plans.refused or any(p.mode in (m, "alone") for p in plans)),
    )
    some = [Shown(p.candidate, p.seconds, None if p.simulated is None else p.timeline) for p in plans]
    for i, one in enumerate(some):
        if one.timeline is None:
            some[i] = simulated(one.candidate, first.devices)
            ranked = _ranked(first.candidate.placement.setting, order(some), first.graph, first.devices, modes)
            yield replace(ranked, quick=plans.quick)


def _given(what: Any, profile: Profile | None) -> tuple[Profile, WorkflowGraph]:
    if isinstance(what, Profile) and profile is None:
        return what, graph_of(what)
    if not isinstance(what, Workflow):
        raise PlanError(
            f"plan() takes a Profile, or a Workflow and its profile, not {shown(what)}. Next: plan(flow, 8, profile)."
        )
    if not isinstance(profile, Profile):
        raise PlanError(
            f"plan({what.name!r}, ...) needs profile=. Next: profile=lab.profile(flow), or Profile.load(path)."
        )
    same_workers(profile, what.graph)
    return of_flow(profile, what.graph), what.graph


def _ranked(
    setting: Setting, some: Sequence[Shown], graph: WorkflowGraph, devices: tuple[str, ...], modes: tuple[str, ...]
) -> Plans:
    best, known = some[0], Known.of([one.candidate for one in some])
    bound = lower_bound(setting, best.seconds)
    ranked: list[Planned] = []
    for one in some:
        why = reason(one.candidate, one.seconds, best.seconds, one.timeline, None if one is not best else bound)
        made = Planned(_name(one.candidate, ranked), one.candidate, one.simulated, why, graph, devices, known)
        if one.timeline is not None:
            made.__dict__["timeline"] = one.timeline
        ranked.append(made)
    missing = [m for m in modes if not any(p.mode in (m, "alone") for p in ranked)]
    return Plans(tuple(ranked), bound, {m: why_no(setting, m) for m in missing}, setting.profile, setting.devices)


def _name(candidate: Candidate, before: list[Planned]) -> str:
    kind = candidate.placement.mode
    same = sum(p.mode == kind for p in before)
    return kind if not same else f"{kind} {same + 1}"


def _good(estimate: CostEstimate) -> str:
    """How good an estimate is, for people."""
    if estimate.relative < 1:
        return f"good to {100 * estimate.relative:.0f} %"
    return (
        f"may be off by a factor of {1 + estimate.relative:.2g}"
        if estimate.relative < MAX_FACTOR
        else "may be off by any factor"
    )


def _about(plan: Planned) -> str:
    """A mark on seconds that no simulation has seen; `ABOUT` explains it."""
    return "~" if plan.simulated is None else ""


def _place(at: Mapping[str, Any]) -> str:
    where = f"{at['devices']} device{'s' * (at['devices'] != 1)}" if at["devices"] else "host"
    ranks = f", {at['ranks']} ranks" if at["ranks"] not in (at["devices"], 1) else ""
    micro_batches = f", {at['micro_batches']} micro-batches" if at["micro_batches"] > 1 else ""
    return where + ranks + micro_batches + f", {at['sub_batches']} sub-batches" * (at["sub_batches"] > 1)


def _budget(devices: Mapping[str, int]) -> str:
    return " + ".join(f"{n} {kind}" if kind else counted(n, "device") for kind, n in devices.items())
