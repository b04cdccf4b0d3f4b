"""What single fields of a profile cannot see. These are names that must exist, and fields that need each other. Errors
name the field, the value and what would work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.planning.profile.parts import (
    EdgeProfile,
    Lengths,
    ProfileFields,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.schema.json_schema import check, known, listing
from rlinf_lab.workflow.graph import DRIVER

MIN_ITEMS = 1e-6  # of a call; numbers near the smallest of all make no seconds an item
MAX_SUB_BATCHES = 64
MAX_RANKS = 1_000_000
NEAR_DEVICES = 8192  # devices: so far the nearest number to a pin is looked for


def check_profile(profile: ProfileFields) -> None:
    """Raise `ConfigError` or `UnknownNameError`."""
    check(profile, "profile")
    if not profile.workers:
        raise ConfigError("profile.workers is empty. Next: give at least one worker with one sample.")
    for name, worker in profile.workers.items():
        if name == DRIVER:
            raise ConfigError(
                f"profile.workers.{name}: {name!r} is the loop that calls the workers. Next: another name, such as "
                f"'{name}_1'."
            )
        _check_name("profile.workers", name)
        _check_worker(profile, name, worker)
    for i, edge in enumerate(profile.edges):
        for end in ("producer", "consumer"):
            known("worker", getattr(edge, end), profile.workers, f"profile.edges[{i}].{end}")
        if edge.producer == edge.consumer:
            raise ConfigError(f"profile.edges[{i}] goes from {edge.producer!r} to itself. Next: name another consumer.")
        if profile.items % edge.group:
            raise ConfigError(
                f"profile.edges[{i}].group is {edge.group}, which does not divide the {profile.items} items of an "
                "iteration. "
                f"Next: {_nearest_divisor(profile.items, edge.group)}."
            )
    for name, worker in profile.workers.items():
        _check_in_turn(profile, name, worker)
    _check_channels(profile.edges)
    _check_shared(profile.workers)
    _check_handovers(profile)
    transports = [m.transport for m in profile.messages]
    if len(set(transports)) != len(transports):
        raise ConfigError(f"profile.messages names a transport twice: {listing(transports)}. Next: one entry for each.")
    names = [k.name for k in profile.kinds]
    for name in names:
        _check_name("profile.kinds", name)
    if len(set(names)) != len(names):
        raise ConfigError(f"profile.kinds names a kind of device twice: {listing(names)}. Next: one entry for each.")
    if profile.kinds and profile.kinds[0].speed != 1:
        speed = f"profile.kinds[0].speed is {profile.kinds[0].speed:g}"
        raise ConfigError(f"{speed}; speeds are relative to this first kind. Next: 1, and the others relative to it.")
    _check_cells(profile)


def _check_name(where: str, name: str) -> None:
    if not name.strip():
        raise ConfigError(
            f"{where} has the name {shown(name)}, in which there is nothing to read. Next: a text such as 'h100'."
        )
    if not name.isprintable():
        plain = "".join(c if c.isprintable() else "_" for c in name)
        raise ConfigError(f"{where} has the name {shown(name)}, which does not fit on a line of text. Next: {plain!r}.")


def _check_shared(workers: Mapping[str, WorkerProfile]) -> None:
    """Weights that several hold are said of all of them, and as large for each."""
    holders: dict[str, list[str]] = {}
    for name, worker in workers.items():
        memory = worker.memory
        if bool(memory.shared_as) != bool(memory.shared_gib):
            given, missing = ("shared_as", "shared_gib") if memory.shared_as else ("shared_gib", "shared_as")
            raise ConfigError(
                f"profile.workers.{name}.memory.{given} is {shown(getattr(memory, given))} without {missing}: weights "
                "that are shared have a name and a size. "
                f"Next: both, or neither."
            )
        if memory.shared_as:
            _check_name(f"profile.workers.{name}.memory.shared_as", memory.shared_as)
            holders.setdefault(memory.shared_as, []).append(name)
    for weights, names in holders.items():
        where, sizes = f"profile.workers.{names[0]}.memory", {n: workers[n].memory.shared_gib for n in names}
        if len(names) == 1:
            others = listing([shown(w) for w in holders if w != weights])
            raise ConfigError(
                f"{where}.shared_as is {shown(weights)}, which no other worker has; others are {others}. Next: the "
                "same name for all."
            )
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{n} {gib:g}" for n, gib in sizes.items())
            raise ConfigError(
                f"{where}.shared_gib: the weights {shown(weights)} have one size, not {said}. Next: what differs "
                "belongs to resident_gib."
            )


def _nearest_divisor(number: int, wanted: int) -> int:
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return min([*low, *(number // d for d in low)], key=lambda d: (abs(d - wanted), d))


def _check_cells(profile: ProfileFields) -> None:
    cycles = _cycles(profile) if profile.cells else []
    for i, cell in enumerate(profile.cells):
        for member in cell.members:
            known("worker", member, profile.workers, f"profile.cells[{i}].members")
        if set(cell.members) not in cycles:
            there = "; ".join(listing([n for n in profile.workers if n in cycle]) for cycle in cycles)
            raise ConfigError(
                f"profile.cells[{i}].members is {list(cell.members)}, which is no cycle of profile.edges that no other "
                "entry names. "
                f"Next: {f'all members of one: {there}' if there else 'leave it out'}."
            )
        cycles.remove(set(cell.members))  # a second entry for it would be ignored
        if not cell.sub_batches or min(cell.sub_batches) < 1 or max(cell.sub_batches) > MAX_SUB_BATCHES:
            raise ConfigError(
                f"profile.cells[{i}].sub_batches is {shown(list(cell.sub_batches))}; give numbers from 1 to "
                f"{MAX_SUB_BATCHES}. Next: [1, 2]."
            )

        if len(cell.sub_batches) > 1 and cell.tokens > 1:
            raise ConfigError(
                f"profile.cells[{i}] has tokens: {cell.tokens}, which go round together whatever a plan says, and "
                f"sub_batches: {list(cell.sub_batches)}, of "
                f"which a plan chooses. Next: sub_batches: [1], or tokens: 1."
            )
        inside = [
            j
            for j, e in enumerate(profile.edges)
            if e.at_end and e.producer in cell.members and e.consumer in cell.members
        ]
        if inside:
            raise ConfigError(
                f"profile.edges[{inside[0]}].at_end is True between members of a cell, who answer each other step by "
                "step. Next: at_end: false there."
            )


def _cycles(profile: ProfileFields) -> list[set[str]]:
    """Workers from each of which items come back to it, grouped by who reaches whom."""
    after = {n: {e.consumer for e in profile.edges if e.producer == n} for n in profile.workers}
    for middle in after:  # Warshall: paths through one more worker each time
        for start in after:
            if middle in after[start]:
                after[start] |= after[middle]
    found: list[set[str]] = []
    for name, reached in after.items():
        if name in reached and not any(name in cycle for cycle in found):
            found.append({n for n in reached if name in after[n]})
    return found


def _check_in_turn(profile: ProfileFields, name: str, worker: WorkerProfile) -> None:
    if not worker.in_turn:
        return
    where, named = f"profile.workers.{name}.in_turn", [producer for producer, _ in worker.in_turn]
    fed_by = [e.producer for e in profile.edges if e.consumer == name]
    if sorted(named) != sorted(fed_by):
        raise ConfigError(
            f"{where} names {listing(named)}, but {name} is fed by {listing(fed_by)}. Next: each of these once, in the "
            "order it takes them."
        )
    parts = [part for _, part in worker.in_turn]
    if min(parts) < 0 or not math.isclose(sum(parts), 1.0, abs_tol=1e-6):
        raise ConfigError(
            f"{where} has the parts {shown(parts)}, which are not parts of a whole. Next: numbers from 0 whose sum is "
            "1."
        )


def _check_handovers(profile: ProfileFields) -> None:
    for i, handover in enumerate(profile.handovers):
        for field, workers in {"worker": (handover.worker,), "after": handover.after}.items():
            for worker in workers:
                known("worker", worker, profile.workers, f"profile.handovers[{i}].{field}")
        same = [
            j
            for j in range(i)
            if (profile.handovers[j].worker, profile.handovers[j].method) == (handover.worker, handover.method)
        ]
        if same:
            raise ConfigError(
                f"profile.handovers[{same[0]}] and profile.handovers[{i}] are both "
                f"{handover.worker}.{handover.method}(). Next: one of them, with the seconds "
                f"of both."
            )


def _check_channels(edges: Sequence[EdgeProfile]) -> None:
    """One edge for two workers, and a channel's name for each."""
    seen: dict[str, int] = {}
    for i, edge in enumerate(edges):
        if edge.value and not edge.whole:
            raise ConfigError(
                f"profile.edges[{i}].value is True and whole is False: a value is there when its producer has ended. "
                "Next: whole: true as well."
            )
        if edge.value and edge.at_end:
            raise ConfigError(
                f"profile.edges[{i}].at_end is True and so is value: a value is there when its producer has ended "
                "anyway. Next: one of them."
            )
        j = seen.setdefault(edge.channel, i)
        other = edges[j]
        if i != j and (edge.producer, edge.consumer) == (other.producer, other.consumer):
            raise ConfigError(
                f"profile.edges[{j}] and profile.edges[{i}] both go from {edge.producer!r} to {edge.consumer!r}. Next: "
                "one edge for all that passes between "
                f"the two: the larger group, whole where one of them is."
            )
        if i != j:
            raise ConfigError(
                f"profile.edges[{j}] ({other.producer!r} to {other.consumer!r}) and profile.edges[{i}] "
                f"({edge.producer!r} to {edge.consumer!r}) cannot be "
                f"told apart by name: both channels would be {edge.channel!r}. Next: rename one of the workers."
            )


def _check_worker(profile: ProfileFields, name: str, worker: WorkerProfile) -> None:
    where = f"profile.workers.{name}"
    if not worker.samples:
        raise ConfigError(
            f"{where}.samples is empty. Next: one measurement, such as {{'devices': 1, 'items': {profile.items}, "
            f"'seconds': 1.0}}."
        )
    if worker.resource == "host" and worker.devices is not None:
        raise ConfigError(
            f"{where}.devices is {worker.devices}, but a worker on the host takes no device. Next: leave it out, or "
            "resource: 'device'."
        )
    for i, sample in enumerate(worker.samples):
        if sample.devices == 0 and worker.resource == "device":
            raise ConfigError(
                f"{where}.samples[{i}].devices is 0. Next: at least 1, or resource: 'host' for a worker that takes no "
                "device."
            )
        if sample.items < MIN_ITEMS:
            raise ConfigError(
                f"{where}.samples[{i}].items is {sample.items:g}, hardly any of an item. Next: the items of the "
                "measured call, such as 1."
            )
        for other in sample.beside:
            known("worker", other, profile.workers, f"{where}.samples[{i}].beside")
            if other == name:
                raise ConfigError(
                    f"{where}.samples[{i}].beside names {name!r} itself. Next: only the others that occupied its "
                    "devices meanwhile."
                )
        _check_outputs(f"{where}.samples[{i}].outputs", sample)
        if sample.kind:
            known("kind of device", sample.kind, [k.name for k in profile.kinds], f"{where}.samples[{i}].kind")
    if worker.kind == "generation":
        if worker.lengths is None:
            raise ConfigError(
                f"{where}.lengths is missing: a generation worker needs its response lengths. Next: {{'max_tokens': "
                f"..., 'mean_tokens': ...}}."
            )
        _check_lengths(f"{where}.lengths", worker.lengths)
        if worker.exponent is not None and worker.exponent > 1:
            raise ConfigError(
                f"{where}.exponent is {worker.exponent:g}: of a generator it is the part of the measured seconds that "
                "falls with devices. Next: 1 or less."
            )
    elif worker.lengths is not None or worker.model is not None or worker.max_running is not None:
        raise ConfigError(
            f"{where}.kind is {worker.kind!r}, but lengths, model and max_running belong to kind 'generation'. Next: "
            "that kind, or without them."
        )
    _check_ranks(where, worker.ranks, worker.devices)


def _check_ranks(where: str, ranks: RankRule, pinned: int | None) -> None:
    """A rule that allows some number of devices, and a pin that it allows."""
    for i, count in enumerate(ranks.counts):
        if not 1 <= count <= MAX_RANKS:
            near = min(max(count, 1), MAX_RANKS)
            raise ConfigError(
                f"{where}.ranks.counts[{i}] is {shown(count)}; it must be a number of ranks from 1 to {MAX_RANKS}. "
                f"Next: {near}."
            )
    if not ranks.fewest:
        raise ConfigError(
            f"{where}.ranks allows no number of ranks at all: {ranks}. Next: leave out one of counts, divides and most."
        )
    if pinned is not None and not ranks.allows(pinned):
        near = min(
            filter(ranks.allows, range(1, NEAR_DEVICES + 1)), key=lambda n: (abs(n - pinned), n), default=ranks.fewest
        )
        raise ConfigError(
            f"{where}.devices is {pinned}, which {where}.ranks does not allow: {ranks}. Next: {near}, or other ranks."
        )


def _check_outputs(where: str, sample: Sample) -> None:
    """When outputs appeared: in order, within the call, at most all of them."""
    rising = all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(sample.outputs))
    if sample.outputs and not (
        rising and sample.outputs[0][0] >= 0 and sample.outputs[0][1] >= 0 and sample.outputs[-1][1] <= 1
    ):
        raise ConfigError(
            f"{where} goes from {list(sample.outputs[0])} to {list(sample.outputs[-1])}; both columns must rise from 0 "
            "or more, to at most 1. "
            f"Next: [seconds since the start, part of the outputs that had appeared], the earliest first."
        )
    if sample.outputs and sample.outputs[-1][0] > sample.seconds:
        raise ConfigError(
            f"{where} ends with {list(sample.outputs[-1])}: {sample.outputs[-1][0]:g} s after the start of a call of "
            f"{sample.seconds:g} s. "
            f"Next: seconds since that start, at most {sample.seconds:g}."
        )


def _check_lengths(where: str, lengths: Lengths) -> None:
    given = [n for n in ("completion", "quantiles") if getattr(lengths, n)] + ["mean_tokens"] * (
        lengths.mean_tokens is not None
    )
    if len(given) != 1:
        raise ConfigError(
            f"{where} gives {listing(given)}; exactly one of completion, quantiles and mean_tokens describes the "
            "lengths. Next: one of them."
        )
    if lengths.mean_tokens is not None and lengths.mean_tokens >= lengths.max_tokens:
        raise ConfigError(
            f"{where}.mean_tokens is {lengths.mean_tokens:g}, not below max_tokens = {lengths.max_tokens:g}. Next: the "
            "longest response as max_tokens."
        )
    for name in ("completion", "quantiles"):
        curve = getattr(lengths, name)
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(curve))
        if curve and not (rising and curve[0][1] >= 0 and curve[-1][1] == 1.0):
            raise ConfigError(
                f"{where}.{name} must rise in both columns and end at fraction 1.0; it ends with {list(curve[-1])}. "
                f"Next: its points in order, the last one [..., 1.0]."
            )
        what = "seconds" if name == "completion" else "tokens"
        if curve and curve[0][0] < 0:
            raise ConfigError(
                f"{where}.{name}[0] is {list(curve[0])}: {curve[0][0]:g} {what}. Next: the first point at 0 {what} or "
                "later."
            )
        if curve and curve[-1][0] == 0:
            raise ConfigError(
                f"{where}.{name} ends with {list(curve[-1])}: all responses take 0 {what}. Next: a last point above 0 "
                f"{what}."
            )
