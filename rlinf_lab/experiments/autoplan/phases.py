"""The phases of a run that plans itself.

    temporal ──(enough seen, and a change could pay)──▶ temporal in parts ──▶ (networks on the GPU) ──choose──▶
    the chosen plan ──(slower?)──▶ back

Whoever runs the phases asks `AutoPlan` after each iteration whether the phase ends, and then for the next one. It has
processes made ready for the chosen plan: not before all is measured, which they would disturb; the run goes on
meanwhile. A run too short for a change stays in its first phase, and its workers are not set up a second time. A GPU
that fails while it is tried is left out: the run goes on on cores. A chosen plan that cannot begin (a process died, an
environment can be made once only) is given up for the old one.
"""

from __future__ import annotations

import dataclasses
import html
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf_lab.errors import WorkerError, counted
from rlinf_lab.experiments.autoplan.choice import Choice, choose
from rlinf_lab.experiments.autoplan.probes import ITERATIONS, Probe, by_kind, gpu_probe, most_ranks, probes
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.spares import Spares
from rlinf_lab.runtime.machine.devices import cores as cores_here
from rlinf_lab.runtime.machine.pinning import cores_of
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.workflow import Workflow

if TYPE_CHECKING:
    from rlinf_lab.planning.fit.samples import Observed

CHANGE_S = 6.0  # until processes with torch in them are there and warm, beside what the workers' own setup takes
READY_S = 1.0  # where they have been waiting
GPU_FAULT = re.compile(r"\b(CUDA|cuda|cuDNN|CUDNN|cuBLAS|CUBLAS|NVIDIA|NVML)")
MEASURING = "plan='auto' measures its first iterations on one core; they may be slower than those that follow"
WORSE = 1.05  # times slower than the old plan: then back


class Phase(NamedTuple):
    """A plan, and the executor that it shall run under."""

    plan: ExecutionPlan
    executor: str
    measures: bool = False
    """its timeline is read: workers that a recipe could fuse are to be seen apart"""
    options: Mapping[str, Any] = MappingProxyType({})
    """of the executor"""


@dataclass
class AutoPlan:
    """Says under which plan a run goes on. ``shares``: see `Recipe.shares`; ``executor``: of plans on several devices;
    ``staleness``: how many updates the weights that act may be old; ``fuses``: the recipe can (`Recipe.fuse`), so the
    run begins as it would go on on one core, and is measured only where a change could pay. ``prepare``: what a process
    calls that may become a host of the chosen plan, so that it has imported what workers need.

    ``choice`` is there when it has been made; ``notes``: why there was nothing to choose.
    """

    shares: Mapping[str, int]
    devices: Sequence[str]
    executor: str = "processes"
    staleness: int = 0
    fuses: bool = False
    networks: Collection[str] = ()
    prepare: Callable[[], object] | None = None
    choice: Choice | None = None
    notes: list[str] = field(default_factory=list)
    _probes: list[Probe] = field(default_factory=list)
    _seen: list[Observed] = field(default_factory=list)
    _measured_s: float = 0.0  # of an iteration under the first plan
    _is_over: bool = False  # nothing is to be decided any more
    _number: int = 0  # of the phase
    _new_runs: bool = False  # an iteration of the chosen plan has ended
    _spares: Spares | None = None
    _measured: int | None = None  # iterations of this phase, without what came after its measurement

    def first(self, flow: Workflow) -> Phase:
        """The plan to begin with."""
        self._probes = probes(flow, self.shares, self.devices, self.staleness, self.networks)
        self._is_over = not self._probes
        if self._probes and self.fuses:
            self._probes.insert(0, self._probes[0]._replace(measures=False))
        if self._is_over:
            few = len(self.devices) < 2
            self.notes.append(
                "one device: nothing to choose"
                if few
                else "no cell whose environments several ranks could share: nothing to choose"
            )
            return Phase(ExecutionPlan.temporal(flow, (by_kind(self.devices)[0] or self.devices)[:1]), "local")
        return self._probe(0)

    def _probe(self, number: int) -> Phase:
        return Phase(self._probes[number].plan, "local", self._probes[number].measures)

    def ends_phase(self, seconds: Sequence[float], remaining: int) -> bool:
        """After an iteration: whether the phase ends with it. ``seconds``: of the iterations of this phase so far;
        ``remaining``: iterations of the run.
        """
        if self._is_over or remaining <= 0:
            return False
        if self.choice is not None:
            return self._looks_back(seconds)
        if len(seconds) < self._probes[self._number].iterations:
            return False
        if self._number == 0:
            self._measured_s = _typical(seconds)
            most_gained = remaining * self._measured_s * (1 - 1 / len(self.devices))
            if most_gained <= 2 * CHANGE_S:  # there and, of a change that was a mistake, back
                self._is_over = True
                self.notes.append(
                    f"{counted(remaining, 'iteration')} of {self._measured_s:.3g} s left: no change of plans could pay"
                )
        last = self._number == len(self._probes) - 1
        return not self._is_over and (not last or self._has_processes(len(seconds)))

    def _has_processes(self, measured: int) -> bool:
        """Whether processes are ready that may become hosts of the chosen plan.

        The first time it has them started, after so many ``measured`` iterations.
        """
        cores, most = by_kind(self.devices)[0], max(self.shares.values(), default=1)
        if self.prepare is None or self.executor != "processes" or len(cores) < 2:
            return True
        if self._spares is None:
            self._measured = measured
            others = cores_of(cores[1:], cores_here())
            self._spares = Spares(most_ranks(most, len(cores)), self.prepare, others)
        return self._spares.are_ready()

    def next(self, flow: Workflow, timeline: Timeline, remaining: int, setup_s: float) -> Phase:
        """The next phase. ``flow``: with all workers; ``timeline``: of the phase that has ended. ``setup_s``: what
        setting up the workers took.

        Raises `PlanError` when the timeline does not say what is needed.
        """
        if self.choice is not None:  # it was a mistake
            self._is_over = True
            return Phase(self.choice.old, "local")
        from rlinf_lab.planning.fit.samples import Observed  # not before it is needed: the planner takes half a second

        first, self._measured = self._measured, None
        if self._probes[self._number].measures:
            self._seen.append(Observed.of(flow.graph, self._probes[self._number].plan, timeline, first))
        self._number += 1
        if self._number == len(self._probes) and self._asks_the_gpu(remaining, setup_s):
            self._probes.append(gpu_probe(flow, self.devices, self.networks))
        if self._number < len(self._probes):
            return self._probe(self._number)
        return self._choose(flow, remaining, setup_s)

    def survives(self, error: BaseException) -> bool:
        """Whether a run goes on (`after_failure`) whose phase ended with ``error``.

        It does where the chosen plan could not even begin, or a GPU failed that was being tried.
        """
        if self._awaits_new:
            return True
        cores = by_kind(self.devices)[0]  # without any there is nothing to go on with
        return bool(cores and self._tried_gpus()) and of_a_gpu(error)

    def after_failure(self, flow: Workflow, error: BaseException, remaining: int, setup_s: float) -> Phase:
        """The phase in which it goes on: under the old plan, on cores."""
        tried, choice = self._tried_gpus(), self.choice
        if choice is not None and not (tried and of_a_gpu(error)):
            self.notes.append(f"{choice.new.name} could not begin, back to {choice.old.name}: {reason(error)}")
            self._is_over = True
            return Phase(choice.old, "local")
        self.notes.append(f"{', '.join(tried)} failed, the run goes on without: {reason(error)}")
        self.devices = by_kind(self.devices)[0]
        if self.choice is None:
            return self._choose(flow, remaining, setup_s)
        self._is_over = True
        return Phase(self.choice.old, "local")

    @property
    def _awaits_new(self) -> bool:
        """Whether the chosen plan has been begun and nothing has come of it yet."""
        return self.choice is not None and self.choice.changes and not self._is_over and not self._new_runs

    def _tried_gpus(self) -> list[str]:
        """Of this phase, as long as it could turn out to be a mistake."""
        if self._is_over:
            return []
        return by_kind((self._probes[self._number].plan if self.choice is None else self.choice.new).devices)[1]

    def _choose(self, flow: Workflow, remaining: int, setup_s: float) -> Phase:
        change_s = setup_s + (CHANGE_S if self._spares is None else READY_S)
        self.choice = choose(
            flow,
            self._seen,
            self.shares,
            self.devices,
            self._measured_s,
            remaining,
            change_s,
            self.executor,
            self.staleness,
        )
        self._is_over = not self.choice.changes
        plan, spares = self.choice.new, self._spares
        if len(plan.devices) == 1:
            self.close()
            return Phase(plan, "local")
        return Phase(plan, self.executor, options={} if spares is None else {"spares": spares})

    def close(self) -> None:
        """End the processes that wait for nothing any more."""
        if self._spares is not None:
            self._spares.close()

    def _asks_the_gpu(self, remaining: int, setup_s: float) -> bool:
        """Whether a look at the GPU could repay itself. Were the networks' work done in no time there."""
        cores, gpus = by_kind(self.devices)
        if not gpus or not cores or not self.networks or by_kind(self._probes[-1].plan.devices)[1]:
            return False
        turns = [turn for worker in self.networks for turn in self._seen[0].every_turn(worker)]
        busy_s = sum(turn.busy for turn in turns) / self._seen[0].iterations()
        pays = remaining * busy_s > 2 * (CHANGE_S + setup_s)
        if not pays:
            self.notes.append(
                f"{gpus[0]} was not tried: the networks take {busy_s:.2g} s of an iteration, {remaining * busy_s:.2g} "
                "s until the end"
            )
        return pays

    def _looks_back(self, seconds: Sequence[float]) -> bool:
        """Take in what the new plan takes. Whether it turned out to be slower than the old one."""
        assert self.choice is not None
        self._new_runs = True
        if len(seconds) < ITERATIONS + 1:
            return False
        found = _typical(seconds)
        worse = found > WORSE * self.choice.measured_s
        if worse:
            self.notes.append(
                f"{self.choice.new.name} took {found:.3g} s an iteration, {self.choice.old.name} "
                f"{self.choice.measured_s:.3g} s: back to it"
            )
        self.choice = dataclasses.replace(self.choice, result_s=found)
        self._is_over = not worse
        return worse

    @property
    def measures(self) -> bool:
        """Whether the run is still measured, and nothing has been decided."""
        return self.choice is None and not self._is_over

    @property
    def note(self) -> str:
        """In one line: old, predicted, measured, gain; or why there is nothing to say."""
        if self.choice is None:
            return "; ".join(self.notes) or MEASURING
        return "; ".join([self.choice.line, *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        if self.choice is None:
            return notes or f"<div>{MEASURING}</div>"
        table = self.choice.table.to_html(index=False, na_rep="–", float_format="{:.3g}".format, border=0)
        return f"<div><b>Plan</b>: {html.escape(self.choice.reason)}</div>{table}{notes}"

    def __repr__(self) -> str:
        said = [repr(self.choice)] if self.choice is not None else [] if self.notes else ["measuring"]
        return f"AutoPlan({'; '.join([*said, *self.notes])})"


def _typical(seconds: Sequence[float]) -> float:
    """The first iteration of a phase warms up."""
    return statistics.median(seconds[1:] or seconds)


def of_a_gpu(error: BaseException | None) -> bool:
    """Whether torch, or a library below it, says that a GPU failed.

    No memory left, a driver that is too old, a kernel that cannot run there.
    """
    return error is not None and bool(GPU_FAULT.search(_words(error)) or of_a_gpu(error.__cause__))


def reason(error: BaseException) -> str:
    """The line that names the fault, without the traceback. Of the error, or of what caused it."""
    found = next((line for line in _words(error).splitlines() if GPU_FAULT.search(line)), None)
    if found is None and error.__cause__ is not None:
        return reason(error.__cause__)
    return (found or _words(error) or type(error).__name__).splitlines()[0][:200]


def _words(error: BaseException) -> str:
    """What it says: not its traceback, where lines of code speak of GPUs."""
    return str(error).removesuffix(error.remote_traceback.rstrip()) if isinstance(error, WorkerError) else str(error)
