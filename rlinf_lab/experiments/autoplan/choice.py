"""From measured iterations to a plan: fit a profile, search, and decide whether changing pays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf_lab.errors import PlanError, RlinfLabError, counted
from rlinf_lab.experiments.autoplan.probes import by_kind, rank_counts
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import make_executor
from rlinf_lab.workflow.workflow import Workflow

if TYPE_CHECKING:
    import pandas as pd

    from rlinf_lab.planning.fit.samples import Observed
    from rlinf_lab.planning.planner.planner import Planned, Plans
    from rlinf_lab.planning.profile.profile import Profile

CORE, GPU = "core", "gpu"
NEVER = 1e-4  # speed of a GPU for workers that do not compute on one
LEAST_GAIN = 1.05  # times faster: predictions are good to a few per cent


@dataclass(frozen=True)
class Choice:
    """What was measured, what was found, and whether the run changes its plan.

    ``measured_s`` and ``predicted_s``: of an iteration. ``reason``: in words. ``result_s``: of an iteration under the
    new plan, once it has run.
    """

    old: ExecutionPlan
    new: ExecutionPlan
    measured_s: float
    predicted_s: float
    changes: bool
    reason: str
    plans: Plans | None = None
    result_s: float | None = None

    @property
    def gain(self) -> float:
        """Old seconds over new ones: measured where that is known, else predicted."""
        return self.measured_s / (self.predicted_s if self.result_s is None else self.result_s)

    @property
    def table(self) -> pd.DataFrame:
        """A row for the old plan and one for the new. Seconds predicted and measured, and the gain."""
        import pandas as pd

        old = {"plan": self.old.name, "predicted_s": None, "measured_s": self.measured_s, "gain": 1.0}
        new = {"plan": self.new.name, "predicted_s": self.predicted_s, "measured_s": self.result_s, "gain": self.gain}
        return pd.DataFrame([old, new] if self.changes else [old])

    @property
    def line(self) -> str:
        """Old, predicted, measured and gain; seconds of an iteration."""
        if not self.changes:
            return f"plan {self.old.name} is kept, {self.measured_s:.3g} s an iteration: {self.reason}"
        measured = "not measured yet" if self.result_s is None else f"measured {self.result_s:.3g} s"
        return (
            f"old plan {self.old.name} {self.measured_s:.3g} s → new plan {self.new.name}: "
            f"predicted {self.predicted_s:.3g} s, {measured}, gain {self.gain:.2f}×"
        )

    def __repr__(self) -> str:
        if not self.changes:
            return f"Choice(stays under {self.old.name!r}, {self.measured_s:.3g} s an iteration: {self.reason})"
        after = "" if self.result_s is None else f", measured {self.result_s:.3g} s"
        change = (
            f"{self.old.name!r} {self.measured_s:.3g} s -> {self.new.name!r}: predicted {self.predicted_s:.3g} s{after}"
        )
        return f"Choice({change}, {self.gain:.2f}x; {self.reason})"


def choose(
    flow: Workflow, runs: Sequence[Observed], shares: Mapping[str, int], devices: Sequence[str], measured_s: float,
    remaining: int, change_s: float,
    executor: str, staleness: int = 0,
) -> Choice:  # fmt: skip
    """The best plan on ``devices``, and whether a change to it pays.

    It pays where ``remaining`` iterations save more than the ``change_s`` seconds that it takes.

    ``runs``: those of `probes`, the first one under the plan that the run would otherwise keep, ``measured_s`` an
    iteration; and of `gpu_probe`, if any: without it no GPU is used. ``shares``: see `probes`. ``executor``: under
    which a plan on several devices would run. ``staleness``: as `lab.plan` takes it.
    """
    from rlinf_lab.planning.fit.fit import fitted  # not before: who plans by hand need not wait for the planner
    from rlinf_lab.planning.planner.planner import plan
    from rlinf_lab.planning.profile.parts import RankRule

    old, (cores, gpus) = runs[0].plan, by_kind(devices)
    stay = lambda reason, plans=None: Choice(old, old, measured_s, measured_s, False, reason, plans)  # noqa: E731
    there = [run for run in runs if by_kind(run.plan.devices)[1]]
    places = len(cores or gpus)
    rules = {
        w: RankRule(counts=rank_counts(shares[w], places)) if w in shares else RankRule(most=1)
        for w in flow.graph.workers
    }
    for cell in flow.graph.cells:  # who answers in a cell may have as many ranks as who asks
        counts = next((rules[w].counts for w in cell if w in shares), None)
        rules |= {w: RankRule(counts=counts) for w in cell if counts and w not in shares}
    try:
        items = max(shares.values(), default=None)
        profile = fitted([run for run in runs if run not in there], items, flow.name, rules=rules)
        if there:
            profile = _with_gpus(profile, fitted(there, items, flow.name, rules=rules), there[0].plan)
        plans = plan(flow, {CORE: cores, GPU: gpus} if there else cores or gpus, profile, staleness=staleness)
    except PlanError as error:
        return stay(f"no other plan could be predicted, {str(error).splitlines()[0]}")
    best = next((p for p in plans if _works(p, flow, executor)), None)
    if best is None:
        return stay("no worker stands another plan", plans)
    gained = remaining * (measured_s - best.seconds)
    if len(best.execution.devices) == 1 or measured_s < LEAST_GAIN * best.seconds:
        return stay(f"the best plan found would take {best.seconds:.3g} s", plans)
    if gained <= change_s:
        return stay(
            f"{best.name} would save {max(gained, 0):.2g} s until the end, the change takes {change_s:.2g} s", plans
        )
    new = dataclasses.replace(best.execution, name=f"auto {best.name}")
    return Choice(
        old,
        new,
        measured_s,
        best.seconds,
        True,
        f"saves {gained:.3g} s in {counted(remaining, 'iteration')}, the change takes {change_s:.2g} s",
        plans,
    )


def _with_gpus(profile: Profile, measured: Profile, plan: ExecutionPlan) -> Profile:
    """``profile`` of cores, with what workers on a GPU took there.

    Those that ``plan`` has on one; the others stay on cores.
    """
    from rlinf_lab.planning.profile.parts import DeviceKind

    workers = dict(profile.workers)
    for name, worker in profile.workers.items():
        if by_kind(plan.device_names(name, 0))[1]:
            there = tuple(dataclasses.replace(sample, kind=GPU) for sample in measured.workers[name].samples)
            workers[name] = dataclasses.replace(worker, samples=(*worker.samples, *there))
    return dataclasses.replace(profile, workers=workers, kinds=(DeviceKind(CORE), DeviceKind(GPU, NEVER)))


def _works(planned: Planned, flow: Workflow, executor: str) -> bool:
    """Whether every worker accepts the plan (`Worker.preflight`). Nothing is started, and devices are looked at when it
    is.
    """
    try:
        make_executor(
            executor if len(planned.execution.devices) > 1 else "local", flow, planned.execution, emulate=True
        )
    except RlinfLabError:
        return False
    return True
