"""What `lab.profile` is asked for. It is checked before anything is measured, and compared with a profile that is there
already.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_lab.errors import ConfigError, PlanError, shown
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.handovers import Values
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.arguments import MAX_ITERATIONS, number, ranks_by_worker, whole
from rlinf_lab.planning.schema.json_schema import known, listing
from rlinf_lab.runtime.machine.devices import devices_here, refuse_missing
from rlinf_lab.runtime.profiling.subject import changed, subject
from rlinf_lab.runtime.run.run import check_executor
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.workflow import Workflow

MOST_ITEMS = 10**9
MOST_TOKENS = 1e9


@dataclass(frozen=True)
class Request:
    """The arguments of `lab.profile`. ``inputs``: the one that every iteration gets, or None; ``path``: a file that may
    be there.
    """

    flow: Workflow
    devices: tuple[str, ...]
    ranks: Mapping[str, tuple[int, ...]]
    items: int | None
    inputs: tuple[Any] | None
    iterations: int
    executor: str
    generators: Mapping[str, float]
    path: Path | None

    @classmethod
    def of(
        cls,
        flow: Any,
        devices: Any,
        ranks: Any,
        items: Any,
        inputs: Any,
        iterations: Any,
        executor: Any,
        generators: Any,
        path: Any,
    ) -> Request:
        """Checked. Raises `PlanError`, `ConfigError` or `UnknownNameError` naming the argument, its value and one that
        would work.
        """
        if not isinstance(flow, Workflow):
            raise PlanError(
                f"profile() takes a Workflow, not {shown(flow)}. Next: the Workflow whose workers are to be measured."
            )
        check_executor(executor)
        names = _devices(devices)
        return cls(
            flow, names, _ranks(flow, names, ranks),
            None if items is None else whole("profile(items=...)", items, 1, MOST_ITEMS),
            _first(inputs), whole("profile(iterations=...)", iterations, 1, MAX_ITERATIONS), executor,
            _generators(flow, generators), _path(path),
        )  # fmt: skip

    def misses(self, profile: Profile, accelerators: Collection[str]) -> tuple[str, ...]:
        """Why a profile is none of what is asked for; empty when it is. ``accelerators``: names of the GPUs among
        ``devices``.
        """
        graph = self.flow.graph
        if set(profile.workers) != set(graph.workers):
            return (f"it is of workers {listing(list(profile.workers))}, the workflow has {listing(graph.workers)}",)
        values = Values.of(graph)
        own = [(e.producer, e.consumer) for e in graph.edges if DRIVER not in (e.producer, e.consumer)]
        here = {f"edge from {p} to {c}" for p, c in (*own, *values.edges)}
        here |= {f"handover {w}.{m}()" for w, m, _ in values.handovers}
        there = {f"edge from {e.producer} to {e.consumer}" for e in profile.edges}
        there |= {f"handover {h.worker}.{h.method}()" for h in profile.handovers}
        found = [f"it has no {missing}" for missing in sorted(here - there)]
        found += [f"it has {'an' if x[0] == 'e' else 'a'} {x}, the workflow has none" for x in sorted(there - here)]
        if self.items is not None and profile.items != self.items:
            found.append(f"it counts {profile.items} items an iteration, asked for are {self.items}")
        found += [
            why
            for worker in graph.workers
            for why in (*self._other_ranks(profile, worker), *self._other_lengths(profile, worker))
        ]
        if profile.fingerprint is not None and profile.fingerprint.measured:
            found += changed(profile.fingerprint.measured, subject(self.flow, self.inputs))
        if profile.fingerprint is not None and set(profile.fingerprint.devices) != set(accelerators):
            ours, theirs = listing(sorted(set(accelerators))), listing(sorted(set(profile.fingerprint.devices)))
            found.append(f"it was measured on accelerators: {theirs}; asked for are: {ours}")
        return tuple(found)

    def _other_ranks(self, profile: Profile, worker: str) -> list[str]:
        own = profile.workers[worker]
        seen = {s.devices // own.ranks.devices_per_rank for s in own.samples}
        if worker not in self.ranks:
            # Who was not said to have several ranks gets one in plans; what was written by hand says itself who may
            # have how many.
            several = profile.fingerprint is not None and own.ranks.most != 1
            return [f"it lets {worker} have several ranks, asked for is one"] if several else []
        failed = [
            n for n in self.ranks[worker] if any(note.startswith(f"{n} ranks: not measured") for note in profile.notes)
        ]
        missing = [str(n) for n in self.ranks[worker] if n not in seen and n not in failed]
        return [f"{worker} was not measured with {', '.join(missing)} ranks"] if missing else []

    def _other_lengths(self, profile: Profile, worker: str) -> list[str]:
        lengths, asked = profile.workers[worker].lengths, self.generators.get(worker)
        if asked is None:
            return (
                [f"{worker} generates in it, asked for are batches"]
                if lengths is not None and profile.fingerprint is not None
                else []
            )
        if lengths is None or lengths.max_tokens != asked:
            was = "is no generator in it" if lengths is None else f"generates up to {lengths.max_tokens:g} tokens in it"
            return [f"{worker} {was}, asked for are up to {asked:g} tokens"]
        return []


def _devices(value: Any) -> tuple[str, ...]:
    if value is None:
        return tuple(devices_here())
    wanted = "names of at least one device. Next: devices=lab.devices(), or ['cpu:0', 'cpu:1']."
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise PlanError(f"profile(devices={shown(value)}): {wanted}")
    for name in value:
        if not Device.is_name(name):
            raise PlanError(
                f"profile(devices): {shown(name)} is no name such as 'cpu:0', 'cuda:1' or 'node1/cpu:0'; {wanted}"
            )
    # of GPUs all must be there: their names are asked for
    refuse_missing(ExecutionPlan("profile", tuple(value), {}), emulate=True)
    first = Device.parse(value[0])
    # a network timed on a core would be foretold hundreds of times too slow for a GPU
    if any(Device.parse(name).kind != first.kind for name in value):
        gpus = [name for name in value if Device.parse(name).kind == "cuda"]
        raise PlanError(
            f"profile(devices={shown(list(value))}): cores and GPUs. All workers are measured on the first ones, and "
            "what takes a time on a core takes "
            f"another on a GPU. Next: devices={shown(gpus)}, then profile.with_worker(NAME, resource='host') for "
            "workers that use no GPU; or, for plans with "
            f"both, lab.run under one of them and lab.estimate(flow, plan, run.timeline)."
        )
    if first.node and first.kind == "cuda":
        here = [d for d in devices_here() if Device.parse(d).kind == "cuda"]
        first_here = f"a GPU of this node first, devices={shown([*here[:1], *value])}, or " if here else ""
        raise PlanError(
            f"profile(devices): {value[0]!r}, the first one, is a GPU of another node. Each worker is set up by itself "
            "in this process, on the first "
            f"device, to see what it occupies and how long it takes to leave. Next: {first_here}lab.profile on that "
            f"node, where it is {first.local!r}."
        )
    return tuple(value)


def _ranks(flow: Workflow, devices: Sequence[str], value: Any) -> dict[str, tuple[int, ...]]:
    asked = ranks_by_worker("profile", value, flow.graph.workers, len(devices), f"devices: {len(devices)}")
    return {worker: tuple(counts) for worker, counts in asked.items()}


def _generators(flow: Workflow, value: Any) -> dict[str, float]:
    if value is not None and not isinstance(value, Mapping):
        raise PlanError(
            f"profile(generators={shown(value)}): for each worker that generates, its longest response in tokens. "
            f"Next: generators={{{flow.graph.workers[0]!r}: 4096}}."
        )
    for worker in value or {}:
        known("worker", worker, flow.graph.workers, "generators")
    return {
        worker: number(f"profile(generators): tokens of {worker!r}", tokens, 0, MOST_TOKENS, above=True)
        for worker, tokens in (value or {}).items()
    }


def _first(inputs: Any) -> tuple[Any] | None:
    if inputs is None:
        return None
    if isinstance(inputs, Iterable):
        for one in inputs:
            return (one,)
    raise PlanError(
        f"profile(inputs={shown(inputs)}): at least one argument of the iterations. Next: inputs=[first], or none "
        "where they take none."
    )


def _path(value: Any) -> Path | None:
    """A file, or one that can be made: known before minutes are spent."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"profile(path={shown(value)}): no path. Next: path='profile.json'.")
    try:
        path = Path(value)
        if path.is_dir() or not path.parent.is_dir():
            what = "is a folder" if path.is_dir() else f"is in {str(path.parent)!r}, which is no folder"
            raise ConfigError(
                f"profile(path={shown(value)}) {what}. Next: the name of a file in a folder that is there, such as "
                "'profile.json'."
            )
    except (ValueError, OSError, TypeError) as error:  # a zero byte, a name that is too long, a path of bytes
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"profile(path={shown(value)}) cannot be a file: {error}. Next: path='profile.json'."
        ) from error
    return path
