"""A plan that somebody gives, as one that the search could have found.

Such a plan is made by hand, edited, or read from a file. A plan that the search wrote and nobody edited says how it was
found (`planning.placement.provenance`). Of any other one, who sits where, in which batches and who is offloaded is read
off the plan; from whose devices are whose follows who time-shares with whom and who streams. What has no place in such
a plan is refused in words. An executor's own fields (capacities, priorities, units of memory) are not simulated: queues
are unbounded, and whoever has units of ``memory`` is offloaded while others work there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rlinf_lab.errors import PlanError, counted
from rlinf_lab.planning.forecast.stream_estimate import follow
from rlinf_lab.planning.placement.free_memory import APART, SINGLE, TOGETHER, Forms, Window
from rlinf_lab.planning.placement.memory_units import priorities
from rlinf_lab.planning.placement.placement import Placement, Seat
from rlinf_lab.planning.placement.provenance import found_by
from rlinf_lab.planning.placement.search_space import DEFAULT_MICRO_BATCHES, Arrangement, Setting
from rlinf_lab.planning.placement.to_execution_plan import execution_plan, micro_batch_between
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.candidates import Candidate
from rlinf_lab.planning.planner.given_batches import GivenBatches, in_given_batches
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.arguments import MAX_MICRO_BATCHES
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf, Tree, evaluate, nodes
from rlinf_lab.planning.search.problem import Cut, Cuts, Problem
from rlinf_lab.workflow.graph import WorkflowGraph

MAX_TREES = 64  # of a part that are looked at
MAX_CANDIDATES = 4096  # of trees and micro-batches together


@dataclass(frozen=True)
class Seated(Placement):
    """A placement whose workers sit where they were put. Not where the tree would have them."""

    put: Mapping[str, Seat] = field(default_factory=dict)

    @cached_property
    def seats(self) -> Mapping[str, Seat]:
        return self.put


def as_given(
    profile: Profile, graph: WorkflowGraph, plan: ExecutionPlan, devices: Mapping[str, int], rule: str = "fitted"
) -> tuple[Candidate, tuple[str, ...]]:
    """(the plan as a candidate, names of its devices in the candidate's order). ``devices``: of each kind, in the order
    of the plan's.

    Raises `PlanError` naming the worker that the profile allows no such place, what does not fit, or what cannot be
    simulated from a profile.
    """
    plan.validate(graph)
    if plan.origin and (candidate := _as_found(profile, graph, plan, devices, rule)) is not None:
        return candidate, plan.devices
    setting = Setting.of(profile, devices, DEFAULT_MICRO_BATCHES, rule, plan.staleness)
    if (changed := in_given_batches(setting, graph, plan)) is not profile:
        profile, setting = changed, Setting.of(changed, devices, DEFAULT_MICRO_BATCHES, rule, plan.staleness)
    reader = _Reader(setting, graph, plan)
    if not reader.batches.is_coarse():
        reader = _Reader(
            Setting.of(profile, devices, min(MAX_MICRO_BATCHES, profile.items), rule, plan.staleness), graph, plan
        )
    return reader.candidate()


def _as_found(
    profile: Profile, graph: WorkflowGraph, plan: ExecutionPlan, devices: Mapping[str, int], rule: str
) -> Candidate | None:
    """The plan of the search that it was. None if that does not make this very plan any more (somebody has edited it)
    or does not fit.
    """
    finest = plan.origin.get("micro_batches", 0)
    if not isinstance(finest, int) or not 1 <= finest <= MAX_MICRO_BATCHES:
        finest = DEFAULT_MICRO_BATCHES
    setting = Setting.of(profile, devices, finest, rule, plan.staleness)
    try:
        placement = found_by(plan.origin, setting)
        if placement is None or placement.misfit() or execution_plan(placement, graph, plan.devices, plan.name) != plan:
            return None
        candidate = Candidate.of(placement.setting, placement.arrangement, placement.tree)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise PlanError(
            f"Plan {plan.name!r}: origin is not what a search wrote ({error!r}). Next: without origin it is read from "
            "the rest."
        ) from error
    return candidate if math.isfinite(candidate.searched) else None


class _Reader:
    """Reads one plan. ``where``: the devices of each worker, renumbered so that each has neighbours."""

    def __init__(self, setting: Setting, graph: WorkflowGraph, plan: ExecutionPlan) -> None:
        self.setting, self.profile, self.graph, self.plan = setting, setting.profile, graph, plan
        for name in self.profile.workers:
            self._check_ranks(name)
        order = self._renumbered()
        self.names = tuple(plan.devices[d] for d in order)
        place = {d: i for i, d in enumerate(order)}
        self.where = {
            n: self._neighbours(n, sorted(place[d] for d in set(itertools.chain(*plan.placements[n]))))
            for n in self.profile.workers
        }
        self.batches = GivenBatches(setting, graph, plan)

    def candidate(self) -> tuple[Candidate, tuple[str, ...]]:
        """The fastest of all trees and micro-batches with which the plan is this plan. Those that it may stand for are
        tried.
        """
        setting = self.setting
        forms = Forms(
            tuple(map(self._form, range(len(setting.stages)))),
            windows=tuple(sorted(map(self._window, self.profile.workers), key=lambda w: w[0])),
        )
        staying = sum(1 << i for i, stage in enumerate(setting.stages) if self._stays(stage.members))
        seats = {name: self._seat(name, 0, bool(staying >> setting.home[name] & 1)) for name in self.profile.workers}
        bare = Seated(setting, Arrangement(staying, forms), self._leaf(0), seats)
        arrangement = Arrangement(staying, replace(forms, meeting=bare.meetings))
        problem = setting.problem(arrangement)
        found: list[tuple[int, float, Seated]] = []
        for tree in itertools.islice(
            itertools.chain.from_iterable(map(self._in_micro_batches, self._trees(problem))), MAX_CANDIDATES
        ):
            there = {n.worker: 2**n.grain for n in nodes(tree) if isinstance(n, Leaf)}
            placed = Seated(
                setting,
                arrangement,
                tree,
                {n: replace(s, micro_batches=there[setting.home[n]]) for n, s in seats.items()},
            )
            found.append((self._missed(placed), evaluate(tree, problem), placed))
        found.sort(key=lambda f: f[:2])
        best = next(
            ((seconds, placed) for _, seconds, placed in found if math.isfinite(seconds) and not placed.misfit()), None
        )
        if best is None:
            raise PlanError(self._refused(found[0][2]))
        return Candidate(best[1], best[0], follow(best[1])), self.names

    def _missed(self, placement: Placement) -> int:
        """Channels whose batches would differ from the plan's, and whether who comes first would."""
        edges, asked = self.batches.edges, {e: self.batches.asked(e) for e in self.profile.edges}
        return sum(
            n is not None and micro_batch_between(placement, edges[e.producer, e.consumer]) != n
            for e, n in asked.items()
        ) + (priorities(placement, self.graph) != self.plan.priorities)

    def _refused(self, placement: Placement) -> str:
        """Nothing fits, or the models tell no seconds."""
        head = f"Plan {self.plan.name!r} does not fit profile {self.profile.name!r}:"
        if misfit := placement.misfit():
            return f"{head} {misfit}. Next: fewer items at a time, more devices, or others who leave (plan.memory)."
        return (
            f"{head} some worker has too little memory beside others, or more items on a device than were measured. "
            f"Next: plan(profile, {len(self.names)}) finds plans that fit, and says who does not."
        )

    # --- who sits where --------------------------------------------------------------------------------------
    def _check_ranks(self, name: str) -> None:
        """As the profile allows."""
        worker, ranks = self.profile.workers[name], self.plan.placements[name]
        used, each = list(itertools.chain(*ranks)), worker.ranks.devices_per_rank
        where = f"Plan {self.plan.name!r}: placements[{name!r}]"
        if worker.resource == "host":
            if used:
                raise PlanError(
                    f"{where} is on {counted(len(set(used)), 'device')}, but the profile has it on the host. "
                    "Next: [[]], or resource: 'device'."
                )
            return
        sizes = {len(rank) for rank in ranks}
        if sizes != {each}:
            raise PlanError(
                f"{where} has ranks of {listing([counted(n, 'device') for n in sorted(sizes)])}; the profile "
                f"says {each} a rank. Next: {each} in each."
            )
        if not worker.ranks.allows(len(used)):
            raise PlanError(
                f"{where} has {counted(len(ranks), 'rank')}, which the profile does not allow: {worker.ranks}. Next: "
                f"{self._allowed(name, len(used))}."
            )
        if worker.devices not in (None, len(used)):
            raise PlanError(
                f"{where} is on {counted(len(used), 'device')}; the profile pins it to {worker.devices}. "
                f"Next: {worker.devices}, or no pin."
            )

    def _allowed(self, name: str, devices: int) -> str:
        rule, there = self.profile.workers[name].ranks, len(self.plan.devices)
        near = min(filter(rule.allows, range(1, there + 1)), key=lambda n: (abs(n - devices), n), default=0)
        return counted(near, 'device') if near else f"more than {counted(there, 'device')}"

    def _renumbered(self) -> list[int]:
        """The devices in an order in which each worker has neighbours, if easily found. Devices of a kind stay
        together.
        """
        used = [{d for rank in ranks for d in rank} for ranks in self.plan.placements.values()]
        if all(max(u) - min(u) + 1 == len(u) for u in used if u):
            return list(range(len(self.plan.devices)))
        found: list[int] = []
        for n in self.setting.counts:
            kind = range(len(found), len(found) + n)
            found += sorted(kind, key=lambda d: ([d not in u for u in sorted(used, key=len, reverse=True)], d))
        return found

    def _neighbours(self, name: str, there: Sequence[int]) -> range:
        """Its devices, of one kind, one beside the other."""
        found = range(there[0], there[-1] + 1) if there else range(0)
        if len(found) > len(there):
            names = [self.names[d] for d in there]
            raise PlanError(
                f"Plan {self.plan.name!r}: {name!r} is on {listing(names[:8])}, of which others have some in a way "
                "that is neither turns nor streams: such a "
                f"plan cannot be simulated from a profile. Next: devices that lie side by side, or lab.run(flow, plan)."
            )
        ends = list(itertools.accumulate(self.setting.counts))
        if found and len({int(np.searchsorted(ends, d, side="right")) for d in (found[0], found[-1])}) > 1:
            raise PlanError(
                f"Plan {self.plan.name!r}: {name!r} is on devices of several kinds, which no profile tells. Next: one "
                "kind for each worker."
            )
        return found

    def _counts(self, devices: range) -> tuple[int, ...]:
        """Of each kind."""
        starts = [0, *itertools.accumulate(self.setting.counts)]
        return tuple(max(0, min(devices.stop, b) - max(devices.start, a)) for a, b in itertools.pairwise(starts))

    def _window(self, name: str) -> tuple[str, Window]:
        n = len(self.where[name])
        return (name, Window(n, n)) if n else (name, Window())

    def _form(self, stage: int) -> str:
        members = self.setting.stages[stage].members
        if len(members) == 1:
            return SINGLE
        used = [set(self.where[m]) for m in members if self.where[m]]
        if all(u == used[0] for u in used):
            return TOGETHER
        if sum(map(len, used)) == len(set().union(*used)):
            return APART
        raise PlanError(
            f"Plan {self.plan.name!r}: {listing(members)} answer each other and share some of their devices, not all: "
            "from a profile such a plan cannot be "
            f"simulated. Next: the same devices for all of them, or devices of their own."
        )

    def _stays(self, members: Sequence[str]) -> bool:
        leaving = [m for m in members if self.plan.device_memory is not None and self.plan.memory.get(m, 0)]
        if leaving and not all(self.profile.workers[m].offloadable for m in leaving):
            fixed = next(m for m in leaving if not self.profile.workers[m].offloadable)
            where = f"profile.workers.{fixed}.offloadable"
            raise PlanError(
                f"Plan {self.plan.name!r}: {fixed!r} is offloaded (memory), but {where} is false. Next: memory 0."
            )
        return not leaving

    def _seat(self, name: str, grain: int, stays: bool) -> Seat:
        worker, devices = self.profile.workers[name], self.where[name]
        ranks = len(devices) // worker.ranks.devices_per_rank if devices else 1
        return Seat(name, devices, ranks, 2**grain, self._sub_batches(name), stays or not devices)

    def _sub_batches(self, name: str) -> int:
        """Those of its cell. Where the plan says nothing and the profile knows one number only, on devices of their
        own, that one.
        """
        members = self.setting.stages[self.setting.home[name]].members
        known = self.setting.cell(self.setting.home[name]).sub_batches
        given = {m: n for m in members if (n := self.plan.tokens(m)) > 1} if len(members) > 1 else {}
        if len(set(given.values())) > 1:
            numbers = f"sub_batches of {listing(list(given))} are {listing(list(map(str, given.values())))}"
            raise PlanError(
                f"Plan {self.plan.name!r}: {numbers}; members of a cell have as many. Next: one number for all of them."
            )
        apart = len(members) > 1 and self._form(self.setting.home[name]) == APART
        return max(given.values(), default=known[0] if apart and len(known) == 1 else 1)

    # --- the tree ------------------------------------------------------------------------------------------------
    def _trees(self, problem: Problem) -> Iterator[Tree]:
        """All trees in which those with common devices time-share and the others stream. Those come first in which most
        edges are what the plan makes of them.
        """
        cuts, known = Cuts.shared(problem), dict[int, list[tuple[int, Tree]]]()

        def some(leaves: int) -> list[tuple[int, Tree]]:
            if leaves not in known:
                found: list[tuple[int, Tree]] = (
                    [(0, self._leaf(leaves.bit_length() - 1))] if not leaves & (leaves - 1) else []
                )
                for cut in cuts.of(leaves) if not found else ():
                    for (wrong, before), (more, after) in itertools.product(some(cut.before), some(cut.after)):
                        missed, tree = self._composed(cut, before, after)
                        found.append((wrong + more + missed, tree))
                known[leaves] = sorted(found, key=lambda way: way[0])[:MAX_TREES]
            return known[leaves]

        trees = some(problem.everyone)
        return (tree for wrong, tree in trees if wrong == trees[0][0])

    def _in_micro_batches(self, tree: Tree) -> Iterator[Tree]:
        """A tree with all the micro-batches that the plan may stand for. Who is handed nothing in batches has all that
        there are; turns come once, or for each micro-batch.
        """
        stages = range(len(self.setting.stages))
        asked = {u: grains for u in stages if len(grains := self.batches.grains(u)) <= self.setting.finest_call[u]}
        choices = [
            sorted(
                {*asked[u][:1], *asked[u][-1:]}
                if u in asked
                else set(range(self.setting.finest_call[u] + 1))
            )
            for u in stages
        ]
        for chosen in itertools.product(*choices):
            for once in (True, False):
                yield _grained(tree, chosen, once)

    def _leaf(self, stage: int) -> Leaf:
        members = self.setting.stages[stage].members
        used = {self.where[m] for m in members if self.where[m]}
        counts = [self._counts(devices) for devices in used] or [(0,) * len(self.setting.counts)]
        return Leaf(stage, tuple(map(sum, zip(*counts, strict=True))), 0)

    def _composed(self, cut: Cut, before: Tree, after: Tree) -> tuple[int, Composed]:
        """Compose two parts, and count the edges that would wrongly be turns. Returns (edges that would be turns
        although producer and consumer have no device in common, the composition).
        """
        stages = self.setting.stages
        devices = [
            {d for i, u in enumerate(stages) if part >> i & 1 for m in u.members for d in self.where[m]}
            for part in (cut.before, cut.after)
        ]
        shared = devices[0] & devices[1]
        kind = TEMPORAL if shared else SPATIAL
        home, where = self.setting.home, self.where
        crossing = [
            e for e in self.profile.edges if cut.before >> home[e.producer] & 1 and cut.after >> home[e.consumer] & 1
        ]
        apart = sum(not set(where[e.producer]) & set(where[e.consumer]) for e in crossing) if shared else 0
        ends = list(itertools.accumulate(self.setting.counts))
        kinds = [int(np.searchsorted(ends, d, side="right")) for d in devices[0] | devices[1]]
        return apart, Composed(kind, before, after, tuple(kinds.count(k) for k in range(len(ends))), cut.finest)


def _grained(tree: Tree, grains: Sequence[int], once: bool) -> Tree:
    """With so fine leaves, and compositions as fine as these and their edges allow. Turns ``once`` an iteration."""
    if isinstance(tree, Leaf):
        return replace(tree, grain=grains[tree.worker])
    before, after = (_grained(part, grains, once) for part in tree.parts())
    return replace(
        tree,
        before=before,
        after=after,
        grain=0 if once and tree.kind == TEMPORAL else min(tree.grain, before.grain, after.grain),
    )
