"""Whether a running plan still fits, and whether another one would pay. What its workers really take is held against
what the plan expected.

A worker drifts when its seconds of an iteration, the median over a window, are off by more than a threshold in every
half of that window. An iteration that takes other than its workers account for is said, too: then the profile does not
know all that a run does.

Plans are looked for by what is quickly followed, and compared by what the scheduler takes for them in virtual time, the
present one too: nothing is proposed that was not simulated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlinf_lab.errors import PlanError, counted, shown
from rlinf_lab.planning.adapt.drift import Drift, Window
from rlinf_lab.planning.adapt.profile_update import Readings, as_taken
from rlinf_lab.planning.adapt.trials import DEFAULT_MOMENTS, Trial, Trials
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.planner.candidates import Candidate, candidates
from rlinf_lab.planning.planner.planner import Planned
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.arguments import MAX_ITERATIONS, number, whole
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.timeline.record.clock import seconds_shown
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

WINDOW_ITERATIONS = 8  # iterations
DRIFT_THRESHOLD = 0.15
WORTH_SHARE = 0.02  # a plan that is not faster by this is not proposed
MAX_MOMENTS = 10**9


class Running(Protocol):
    """A run, as far as it matters here."""

    @property
    def timeline(self) -> Timeline: ...


@dataclass(frozen=True)
class Replan:
    """What was found. ``proposal``: a better plan, or None; ``now`` and ``then``: seconds of an iteration with what was
    measured, under the present plan and the proposed one, ``simulated`` or, where that took too long, followed
    micro-batch by micro-batch (then nothing is proposed);
    ``switching``: seconds that the change costs once; ``elapsed``: of a whole iteration, against what the plan takes
    with what was measured of its workers;
    ``promised``: the seconds of an iteration that the plan itself said, before anything was measured; ``notes``: what
    the window does not tell, and what was not simulated."""

    drifts: tuple[Drift, ...]
    profile: Profile
    proposal: Planned | None
    now: float
    then: float
    switching: float
    iterations: int
    elapsed: Drift
    promised: float
    notes: tuple[str, ...] = ()
    simulated: bool = True

    @property
    def payback(self) -> float:
        """Iterations after which the change has paid for itself; inf without a proposal."""
        return self.switching / (self.now - self.then) if self.proposal is not None else math.inf

    def to_dict(self) -> dict[str, Any]:
        return {
            "drift": {
                d.worker: {"expected_s": d.expected, "measured_s": d.measured, "sustained": d.sustained}
                for d in self.drifts
            },
            "iteration": {
                "promised_s": self.promised, "expected_s": self.elapsed.expected, "measured_s": self.elapsed.measured,
                "sustained": self.elapsed.sustained,
            },
            "now_s": self.now, "then_s": self.then,
            "seconds_are": "simulated" if self.simulated else "followed", "switching_s": self.switching,
            "iterations": self.iterations,
            "payback_iterations": None if self.proposal is None else self.payback,
            "proposal": None if self.proposal is None else self.proposal.to_dict(),
            "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        lines = [f"Measured against expected, {self.iterations} iterations:"]
        for d in self.drifts:
            lines.append(
                f"  {d.worker:<12} {d.measured:9.4g} s, expected {d.expected:9.4g} s{d.percent and f' ({d.percent})'}"
                + ", sustained" * d.sustained
            )
        said, so = self._iteration()
        said_off, so_off = (d.percent and f" ({d.percent})" for d in (said, so))
        lines.append(f"  {'an iteration':<12} {said.measured:9.4g} s, the plan said {said.expected:.4g} s{said_off}")
        lines.append(
            f"  {'':<12} {'':>9}    with its workers as measured {so.expected:.4g} s{so_off}"
            + ", sustained" * so.sustained
        )
        return "\n".join([*lines, f"  {self._verdict()}", *(f"  note: {note}" for note in self.notes)])

    def _iteration(self) -> tuple[Drift, Drift]:
        """Seconds of an iteration against those that the plan said. They are also held against those that it takes with
        its workers as they were measured.
        """
        said = replace(self.elapsed, worker="an iteration, as the plan said", expected=self.promised, sustained=False)
        return said, replace(self.elapsed, worker="an iteration, with workers as measured")

    def _verdict(self) -> str:
        if not any(d.sustained for d in self.drifts):
            return (
                "No sustained drift: the plan stays."
                if not self.elapsed.sustained
                else "No worker drifts: the plan stays."
            )
        if not self.simulated:
            return (
                "Nothing is proposed: the plan that runs was not simulated with what was measured (about "
                f"{self.now:.4g} s an iteration)."
            )
        if self.proposal is None:
            return (
                f"No other plan is faster by more than {100 * WORTH_SHARE:.0f} % with what was measured "
                f"({self.now:.4g} s an "
                "iteration): the plan stays."
            )
        return (
            f"Proposed: {self.proposal.shape}, {self.then:.4g} s an iteration instead of {self.now:.4g} s; switching "
            f"takes {seconds_shown(self.switching)}, paid back after {counted(math.ceil(self.payback), 'iteration')}."
        )

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(d.worker)}</td><td>{d.expected:.4g}</td>"
            f"<td>{d.measured:.4g}</td><td>{d.percent}</td>"
            f"<td>{'sustained' if d.sustained else ''}</td></tr>"
            for d in (*self.drifts, *self._iteration())
        )
        head = "".join(f"<th>{h}</th>" for h in ("worker", "expected s", "measured s", "drift", ""))
        notes = "".join(f"<br><small>{escape(n)}</small>" for n in self.notes)
        return f"<div><table><tr>{head}</tr>{rows}</table>{escape(self._verdict())}{notes}</div>"


def replan(
    run: Running | Timeline,
    plan: Planned | None = None,
    *,
    window: int = WINDOW_ITERATIONS,
    threshold: float = DRIFT_THRESHOLD,
    restart_s: float | None = None,
    moments: int = DEFAULT_MOMENTS,
) -> Replan:
    """Compare the last ``window`` iterations with what ``plan`` expected; where off, search again.

    ``plan``: the one of `lab.plan` under which they ran, which knows what it expected; a run does not keep it.
    ``threshold``: relative drift that counts. ``restart_s``: seconds that a change of plan costs beside bringing the
    workers to their devices (default: what setting up took in this timeline). ``moments`` of virtual time are simulated
    at most (the default: about 0.1 s); what they do not reach is in the notes and is not proposed. The iteration that
    warms up is left out.

    Raises `PlanError` when there are fewer than two iterations to look at, or the timeline is of other workers or of
    another plan.
    """
    timeline = run if isinstance(run, Timeline) else getattr(run, "timeline", None)
    if not isinstance(timeline, Timeline):
        raise PlanError(
            f"replan({shown(run)}, ...): a run or its Timeline is needed. Next: replan(run.timeline, plans.best)."
        )
    if not isinstance(plan, Planned):
        raise PlanError(
            f"replan(run, {shown(plan)}): a plan of lab.plan is needed, which knows what it expected. Next: "
            "plans.best, or plans['spatial'], of plans = lab.plan(flow, devices, lab.profile(flow))."
        )
    whole(f"replan(window={shown(window)}): it", window, 2, MAX_ITERATIONS, "iterations")
    number("replan: threshold", threshold)
    whole("replan: moments", moments, 1, MAX_MOMENTS, "of virtual time")
    if restart_s is not None:
        number("replan: restart_s", restart_s, 0, 1e9)
    profile = plan.candidate.placement.setting.profile
    seen = Window.of(timeline, profile, window)
    missing = [w for w in profile.workers if w not in seen.workers]
    if missing:
        raise PlanError(
            f"The timeline has no span of {', '.join(missing)}, which plan {plan.name!r} places. Next: the timeline of "
            "a run under that plan."
        )
    _refuse_other_places(timeline, plan)
    expected = _expected(plan.candidate)
    workers = tuple(
        Drift.of(w, as_taken(plan.candidate, seen, w, expected[w]), seen.of_worker(profile, w), threshold)
        for w in profile.workers
    )
    handed = tuple(
        Drift.of(f"{h.worker}.{h.method}()", h.seconds, seen.of_handover(h.worker, h.method), threshold)
        for h in profile.handovers
    )
    readings = _readings(profile, plan.candidate, seen, workers, handed)
    present = tuple(_under(p, plan.candidate) for p in readings.of_both())
    same, trials = readings.as_measured == profile, Trials(plan.devices, moments)
    now = trials.of(present) if not same or plan.simulated is None else Trial(present, (plan.simulated,), ())
    followed = tuple(c.seconds for c in present)
    seconds = (followed if now is None else now.seconds)[0]
    elapsed = Drift.of("an iteration", seconds, seen.elapsed_of(profile), threshold)
    others = _other_workers(plan, seen) + _other_items(plan.candidate, seen, threshold)
    unknown = others + ((_unaccounted(elapsed),) if elapsed.sustained else ())
    if now is None:
        unknown = (
            _unreached(f"the plan that runs ({seconds:.4g} s, followed micro-batch by micro-batch)", moments),
            *unknown,
        )
    found = Replan(
        (*workers, *handed),
        readings.as_measured,
        None,
        seconds,
        seconds,
        0.0,
        len(seen.warm),
        elapsed,
        plan.seconds,
        unknown,
        now is not None,
    )
    if same or now is None:
        return found
    best, notes = _better(readings, now, trials, moments)
    found = replace(found, notes=(*notes, *unknown))
    if best is None:
        return found
    worst = max(range(len(now.seconds)), key=lambda i: best.seconds[i] / now.seconds[i])
    onload = max((w.onload_s + w.offload_s for w in profile.workers.values()), default=0.0)
    restart = _setup_seconds(timeline) if restart_s is None else restart_s
    proposal = _proposed(best, now, plan)
    found = replace(found, notes=(*found.notes, *(f"{proposal.shape}: {note}" for note in proposal.notes)))
    return replace(
        found, proposal=proposal, now=now.seconds[worst], then=best.seconds[worst], switching=onload + restart
    )


def _proposed(best: Trial, now: Trial, plan: Planned) -> Planned:
    """With its simulated timeline, as measured in proportion."""
    candidate = best.candidates[0]
    reason = f"{100 * (1 / best.against(now) - 1):.0f} % faster with what was measured"
    proposal = Planned(
        f"{candidate.placement.mode}, replanned", candidate, best.seconds[0], reason, plan.graph, plan.devices
    )
    proposal.__dict__["timeline"] = best.timelines[0]
    return proposal


def _readings(
    profile: Profile, candidate: Candidate, seen: Window, workers: tuple[Drift, ...], handed: tuple[Drift, ...]
) -> Readings:
    """The profile with what was measured of all that drifts."""
    changed = profile
    for d in workers:
        if d.sustained and not d.expected:
            changed = _as_measured(changed, candidate, d)
    calls = [
        replace(h, seconds=d.measured) if d.sustained else h for h, d in zip(profile.handovers, handed, strict=True)
    ]
    return Readings.of(
        changed.replace(handovers=tuple(calls)),
        candidate,
        seen,
        tuple(d for d in workers if d.sustained and d.expected),
    )


def _better(readings: Readings, now: Trial, trials: Trials, moments: int) -> tuple[Trial | None, tuple[str, ...]]:
    """A plan that is faster however the measurement is read, with notes. They say what the readings do not agree in and
    what was not simulated.
    """
    tried = trials.among(_others(now), now)
    who = (
        f"the batches of {' and '.join(readings.unclear)} (of one size, or uneven) do not tell whether each takes "
        "longer or its items do"
    )
    left = (
        ()
        if not tried.left
        else (_unreached(f"{tried.left} more plan{'s' * (tried.left > 1)} that may be faster", moments),)
    )
    if tried.trials and tried.trials[0].against(now) <= 1 - WORTH_SHARE:
        return tried.trials[0], ((f"{who}: the gain is the smaller one of both.",) if readings.unclear else ()) + left
    for trial in tried.trials:
        if any(then <= s * (1 - WORTH_SHARE) for then, s in zip(trial.seconds, now.seconds, strict=True)):
            ways = [f"{then:.4g} s instead of {s:.4g} s" for then, s in zip(trial.seconds, now.seconds, strict=True)]
            shape = trial.candidates[0].placement.shape
            return None, (
                f"{who}: {shape} would take {ways[0]}, or {ways[1]}. Next: measure again, lab.profile(flow).",
                *left,
            )
    return None, left


def _others(now: Trial) -> list[tuple[Candidate, ...]]:
    """Good plans, without the present one, under each profile of it. Each of them is given under all profiles."""
    found: dict[object, tuple[Candidate, ...]] = {_places(now.candidates[0]): ()}
    for i, present in enumerate(now.candidates):
        for candidate in candidates(present.placement.setting, quick=True, ceiling=present.searched):
            if _places(candidate) not in found:
                others = [one.placement.setting.profile for one in now.candidates]
                found[_places(candidate)] = tuple(
                    candidate if k == i else _under(other, candidate) for k, other in enumerate(others)
                )
    return [some for some in found.values() if some]


def _places(candidate: Candidate) -> tuple[object, ...]:
    """Two plans that have it in common are one."""
    placement = candidate.placement
    return placement.shape, *placement.seats.values()


def _unreached(what: str, moments: int) -> str:
    return (
        f"{what}: not simulated, for that takes more than the {moments} moments that were allowed. Next: replan(..., "
        f"moments={10 * moments})."
    )


def _other_workers(plan: Planned, seen: Window) -> tuple[str, ...]:
    """A note on who computes beside the plan's workers. No plan counts their seconds, and perhaps they hold the others
    up.
    """
    took = {
        w: statistics.median(s)
        for w, s in seen.workers.items()
        if w not in plan.candidate.placement.setting.profile.workers
    }
    said = listing([f"{worker} {seconds:.4g} s" for worker, seconds in took.items() if seconds])
    if not any(took.values()):
        return ()
    return (
        f"others compute in the timeline, too, whom plan {plan.name!r} does not place: {said} an iteration, which no "
        "plan here counts. "
        f"Next: a profile with them, lab.planning.profile_from_run(flow, plan.execution, run.timeline), and lab.plan "
        "with it.",
    )


def _other_items(candidate: Candidate, seen: Window, threshold: float) -> tuple[str, ...]:
    """A note where everybody takes more items than the profile counts, or everybody fewer. That many items take other
    seconds, without a drift.

    Where some take as many, others are made into more on their way, or left out. Members of a cell take each item
    several times. A simulation hands over bundles that stand for all items of the profile, however many those are."""
    if seen.is_simulated:
        return ()
    setting = candidate.placement.setting
    alone = {name for stage in setting.stages if len(stage.members) == 1 for name in stage.members}
    took = {
        e.consumer: seen.items(e.consumer) * e.group
        for e in setting.profile.edges
        if e.consumer in alone and seen.items(e.consumer)
    }
    items = setting.profile.items
    if not took or not (
        all(n > items * (1 + threshold) for n in took.values())
        or all(n < items / (1 + threshold) for n in took.values())
    ):
        return ()
    said = listing([f"{worker} {n:g}" for worker, n in took.items()])
    return (
        f"items that are taken in an iteration: {said}; the profile counts {items}. Other seconds are no drift then, "
        "they are of other work. "
        f"Next: profile = lab.planning.profile_from_run(flow, plan.execution, run.timeline), and lab.plan with it.",
    )


def _unaccounted(elapsed: Drift) -> str:
    off = f"an iteration takes {elapsed.measured:.4g} s, and its workers account for {elapsed.expected:.4g} s"
    if elapsed.measured < elapsed.expected:
        return (
            f"{off}: they may overlap more than the plan says. Next: the notes of the plan, and "
            "run.timeline.bubbles(by=['cause', 'waiting_for'])."
        )
    return (
        f"{off}: the rest (waits for values, the loop itself, messages, more batches than planned) is not in the "
        "profile. Next: run.timeline.bubbles(by=['cause', 'waiting_for']), and "
        "lab.planning.profile_from_run(flow, plan, run.timeline).notes."
    )


def _expected(candidate: Candidate) -> Mapping[str, float]:
    """Seconds that each worker's busiest rank computes in an iteration, by the plan."""
    placement = candidate.placement
    found: dict[str, float] = {}
    for stage, work in candidate.streamed.work.items():
        names = placement.setting.stages[stage].members
        for name in names:
            found[name] = (
                work.busy
                if len(names) == 1
                else placement.member_seconds(name)
                * placement.seats[name].sub_batches
                * placement.seats[name].micro_batches
            )
    return found


def _as_measured(profile: Profile, candidate: Candidate, drift: Drift) -> Profile:
    """With the worker as slow or as fast as it was. For one that should take no time nothing can be scaled: its samples
    all take the same, then.
    """
    if drift.expected:
        return profile.scaled(drift.worker, drift.factor)
    samples = tuple(replace(s, seconds=1.0, outputs=()) for s in profile.workers[drift.worker].samples)
    even = profile.with_worker(drift.worker, samples=samples)
    return even.scaled(drift.worker, drift.measured / _expected(_under(even, candidate))[drift.worker])


def _refuse_other_places(timeline: Timeline, plan: Planned) -> None:
    """A run of the same workers under another plan is refused. It takes other seconds, which are no drift. What other
    tools call their devices is not compared.
    """
    used: dict[str, set[str]] = {}
    for track in timeline.tracks:
        used.setdefault(track.worker, set()).update(track.devices)
    for worker, seat in plan.candidate.placement.seats.items():
        there, here = used.get(worker, set()), {plan.devices[i] for i in seat.devices}
        if here and there and there != here and there <= set(timeline.devices) and all(map(Device.is_name, there)):
            raise PlanError(
                f"Plan {plan.name!r} places {worker!r} on {_few(here)}; in the timeline it worked on {_few(there)}: a "
                "run under another "
                f"plan, whose seconds are no drift of this one. Next: the plan that was run."
            )


def _few(devices: set[str]) -> str:
    ordered = sorted(devices, key=Device.parse)
    return listing(ordered) if len(ordered) <= 4 else f"{len(ordered)} devices ({ordered[0]} to {ordered[-1]})"


def _under(profile: Profile, candidate: Candidate) -> Candidate:
    """The same plan under a changed profile."""
    setting = candidate.placement.setting
    changed = Setting.of(profile, setting.devices, setting.micro_batches, setting.rule, setting.staleness)
    return Candidate.of(changed, candidate.placement.arrangement, candidate.placement.tree)


def _setup_seconds(timeline: Timeline) -> float:
    """The longest that a rank was set up."""
    spans = timeline.spans
    setups = spans[spans["kind"] == SpanKind.SETUP]
    return float((setups["end"] - setups["start"]).max(initial=0)) / 1e9
