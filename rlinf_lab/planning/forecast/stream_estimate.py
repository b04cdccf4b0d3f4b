"""Seconds of a plan when its micro-batches are followed one by one. This covers streams that thin out towards a long
tail, tokens as weights, groups, whole batches.

The search adds up equal micro-batches (`search.solver`); this follows a few hundred *atoms* (equal parts of the items,
in order of completion) through the plan's tree. It is quick enough for a slider; the event simulator (`forecast`) then
runs the real scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.cancellation import check
from rlinf_lab.planning.costs import GenerationModel, Stream
from rlinf_lab.planning.placement.free_memory import Colocated
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.profile.handovers import handed_over
from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, Leaf, Tree, nodes, numbers
from rlinf_lab.planning.search.problem import Cuts

MIN_ATOMS_LOG2 = 6  # at least 2^6 atoms: a stream of responses is followed more finely than the plan's micro-batches


@dataclass(frozen=True)
class Work:
    """Calls of one stage: when each began and ended, in seconds of the iteration."""

    starts: np.ndarray
    ends: np.ndarray

    @property
    def busy(self) -> float:
        return float((self.ends - self.starts).sum())


@dataclass(frozen=True)
class Streamed:
    """What following the micro-batches of a plan gives. ``seconds`` between iterations; ``fill``: until the last item
    has left and all is handed over; ``work`` by stage; ``handing``: seconds by which handovers end later than the
    streams.
    """

    seconds: float
    fill: float
    work: dict[int, Work]
    handing: float = 0.0


def follow(placement: Placement) -> Streamed:
    """Follow the items of one iteration through a plan."""
    check()
    return _Follower(placement).answer()


class _Follower:
    def __init__(self, placement: Placement) -> None:
        self.placement, self.setting = placement, placement.setting
        self.problem = self.setting.problem(placement.arrangement)
        self.cuts = Cuts.shared(self.problem)
        self.atoms = 2 ** max(MIN_ATOMS_LOG2, *(n.grain for n in nodes(placement.tree)))
        self.leaves = {n.worker: n for n in nodes(placement.tree) if isinstance(n, Leaf)}
        self.left: dict[int, np.ndarray] = {}  # when each atom has left a stage
        self.begun: dict[int, float] = {}
        self.calls: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self.ends: dict[int, float] = {}

    def answer(self) -> Streamed:
        tree, overlap = self.placement.tree, self.setting.overlap
        fill = self._run(tree, 0, self.atoms, 0.0)
        work = {u: Work(*(np.concatenate(c) for c in zip(*calls, strict=True))) for u, calls in self.calls.items()}
        busy, later = self._handovers(work)
        if overlap:
            seconds = max(numbers(tree, self.problem).period, (fill + later) / (1 + overlap), busy)
        else:
            seconds = self._free(tree) + later
        return Streamed(seconds, fill + later, work, later)

    def _handovers(self, work: dict[int, Work]) -> tuple[float, float]:
        """How long handovers keep workers busy, and by how much they outlast the streams. The first: seconds from the
        begin of a worker's work to the end of its last handover, or for which a device works (the next iteration of its
        does not begin before). The second: how much later than the streams the last handover ends.
        """
        profile, home = self.setting.profile, self.setting.home
        if not profile.handovers:
            return 0.0, 0.0
        ends = {name: float(work[home[name]].ends.max()) for name in profile.workers}
        over = handed_over(profile, ends)
        busy = max(over[h.worker] - float(work[home[h.worker]].starts.min()) for h in profile.handovers)
        busy = max(
            busy, *(self._occupied(work, seat.devices.start) for seat in self.placement.seats.values() if seat.devices)
        )
        return busy, max(over.values()) - max(ends.values())

    def _occupied(self, work: dict[int, Work], device: int) -> float:
        """Seconds of an iteration for which a device works, handovers included."""
        here = {name for name, seat in self.placement.seats.items() if device in seat.devices}
        stages = {self.setting.home[name] for name in here}
        return sum(work[u].busy for u in stages) + sum(
            h.seconds for h in self.setting.profile.handovers if h.worker in here
        )

    def _free(self, tree: Tree) -> float:
        """When the devices are ready for the next iteration."""
        if isinstance(tree, Leaf):
            return self.ends[id(tree)]
        if tree.kind == TEMPORAL:
            return self.ends[id(tree)] + self.problem.switch(tree.after.leaves, tree.before.leaves, self.cuts)
        return max(self._free(part) for part in tree.parts())

    # --- the tree --------------------------------------------------------------------------------------------
    def _run(self, tree: Tree, first: int, stop: int, ready: float) -> float:
        """Atoms ``first`` to ``stop`` through a part whose devices are free from ``ready`` on. When it has ended."""
        if isinstance(tree, Leaf):
            end = self._leaf(tree, first, stop, ready)
        elif tree.kind == TEMPORAL:
            end = self._turns(tree, first, stop, ready)
        else:
            end = max(self._run(part, first, stop, ready) for part in tree.parts())
        self.ends[id(tree)] = end
        return end

    def _turns(self, tree: Composed, first: int, stop: int, ready: float) -> float:
        there = self.problem.switch(tree.before.leaves, tree.after.leaves, self.cuts)
        back = self.problem.switch(tree.after.leaves, tree.before.leaves, self.cuts)
        if not tree.before.leaves & ~self.setting.unceasing:  # its turn comes once
            start = ready if first else self._run(tree.before, first, stop, ready) + there
            return self._run(tree.after, first, stop, start)
        micro_batch = self.atoms >> tree.grain
        for lo in range(first, stop, micro_batch):
            ready = self._run(tree.before, lo, lo + micro_batch, ready + (back if lo > first else 0.0)) + there
            ready = self._run(tree.after, lo, lo + micro_batch, ready)
        return ready

    def _leaf(self, leaf: Leaf, first: int, stop: int, ready: float) -> float:
        stage = leaf.worker
        if self.problem.once >> stage & 1 and self._stream(stage, 1) is not None:
            return self._generate(leaf, self._arrivals(stage, 0, self.atoms)[0], ready)
        # before its end, for it waits for nothing: whatever the micro-batches of the turns
        if self.setting.unceasing >> stage & 1:
            if first:
                return ready
            stop = self.atoms
        size = self.atoms >> leaf.grain
        seconds = self._seconds(stage)
        calls = (stop - first) // size
        turns = self._in_turn(stage)
        if calls == 1 == len(turns):  # as it is for each of many turns
            arrived, weights = self._arrivals(stage, first, stop, turns[0][0])
            start, part = (
                max(float(arrived.max()), ready),
                turns[0][1] * (1.0 if weights is None else float(weights.sum()) / size),
            )
            return self._called(
                stage, first, stop, start, start + float(self._led(leaf, first, np.array([seconds * part]))[0])
            )
        each, there = [], []
        for producer, part in turns:
            arrived, weights = self._arrivals(stage, first, stop, producer)
            each.append(
                seconds
                * part
                * (np.ones(calls) if weights is None else weights.reshape(calls, size).sum(axis=1) / size)
            )
            there.append(arrived.reshape(calls, size).max(axis=1))
        # One call after the other: end_j = max over i <= j of (arrival_i + seconds of calls i to j).
        taken = self._led(leaf, first, np.concatenate(each))
        total = np.cumsum(taken)
        ends = total + np.maximum.accumulate(np.maximum(np.concatenate(there), ready) - (total - taken))
        self._left(stage)[first:stop] = np.repeat(ends[-calls:], size)
        self.calls.setdefault(stage, []).append((ends - taken, ends))
        return float(ends[-1])

    def _led(self, leaf: Leaf, first: int, seconds: np.ndarray) -> np.ndarray:
        """Seconds of the calls of a source that has a lead. It reads, or sets up, before it goes on evenly: the first
        call of the iteration has that, too.
        """
        lead = self.setting.leads.get(self.setting.stages[leaf.worker].members[0], 0.0)
        if not lead:
            return seconds
        begins = (np.arange(len(seconds)) == 0) & (first == 0)
        return seconds * (1 - lead + np.where(begins, lead * 2.0**leaf.grain, 0.0))

    def _left(self, stage: int) -> np.ndarray:
        if stage not in self.left:
            self.left[stage] = np.full(self.atoms, np.inf)
        return self.left[stage]

    def _called(self, stage: int, first: int, stop: int, start: float, end: float) -> float:
        self._left(stage)[first:stop] = end
        self.calls.setdefault(stage, []).append((np.array([start]), np.array([end])))
        return end

    def _in_turn(self, stage: int) -> list[tuple[str | None, float]]:
        """(producer, part of the seconds) of the inputs that a stage takes in turn. There is one entry for all where it
        takes a batch of each at a time.
        """
        members = self.setting.stages[stage].members
        own = self.setting.profile.workers[members[0]].in_turn if len(members) == 1 else ()
        return list(own) or [(None, 1.0)]

    @cached_method
    def _seconds(self, stage: int) -> float:
        """Of a micro-batch: asked for as often as there are turns."""
        leaf = self.leaves[stage]
        code = int(np.ravel_multi_index(leaf.devices, self.setting.shape))
        return float(self.problem.table(stage, self.placement.beside[stage])[leaf.grain, code])

    # --- streams ---------------------------------------------------------------------------------------------
    def _arrivals(
        self, stage: int, first: int, stop: int, of: str | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """When atoms ``first`` to ``stop`` are there for a stage, and their weights. They come from all producers or
        ``of`` one; weights of all atoms have the mean 1 (None: each 1).
        """
        arrived, weights = np.zeros(stop - first), None
        for edge in self.setting.profile.edges:
            producer = self.setting.home[edge.producer]
            if self.setting.home[edge.consumer] != stage or producer == stage or of not in (None, edge.producer):
                continue
            left, source = self.left[producer], self._generator(producer)
            # No finer than the edge allows: all that come together with these.
            size = max(1, self.atoms >> self.setting.edges[producer, stage]) if source is None else 1
            lo, hi = (0, self.atoms) if self.setting.whole(edge) else (first // size * size, -(-stop // size) * size)
            there = left[lo:hi]
            if source is None:
                there = np.repeat(there.reshape(-1, size).max(axis=1), size) if size > 1 else there
            else:
                stream = self._stream(source, edge.group)
                assert stream is not None
                # A group is complete when its last member is, wherever on the way it is asked for.
                there = np.maximum(there, self.begun[source] + stream.times[lo:hi])
                if self.setting.profile.weights == "tokens":
                    weights = stream.weights[first:stop]
            arrived = np.maximum(arrived, there.max() if self.setting.whole(edge) else there[first - lo : stop - lo])
        return arrived, weights

    @cached_method
    def _generator(self, stage: int) -> int | None:
        """The streaming stage from which a stage's items come, if there is one."""
        if self.problem.once >> stage & 1:
            return stage if self._stream(stage, 1) is not None else None
        above = (self._generator(p) for p, c in self.problem.edges if c == stage)
        return next((g for g in above if g is not None), None)

    @cached_method
    def _stream(self, stage: int, group: int) -> Stream | None:
        return stream_of(self.placement, self.leaves[stage], self.atoms, group)

    def _generate(self, leaf: Leaf, arrived: np.ndarray, ready: float) -> float:
        stream = self._stream(leaf.worker, 1)
        assert stream is not None
        start = max(ready, float(arrived[0]))
        times = np.maximum(start + stream.times, arrived)
        self.begun[leaf.worker], self.left[leaf.worker] = start, times
        self.calls.setdefault(leaf.worker, []).append((np.array([start]), times[-1:]))
        return float(times[-1])


def stream_of(placement: Placement, leaf: Leaf, atoms: int, group: int) -> Stream | None:
    """When the outputs of a generator leave it on its devices of a plan. None for a model that knows no lengths."""
    setting = placement.setting
    name = setting.stages[leaf.worker].members[0]
    axis = int(np.argmax(leaf.devices))
    kind, n = setting.kinds[axis], np.array([leaf.devices[axis]])
    model, worker, items = setting.models[name, kind], setting.profile.workers[name], setting.profile.items
    if not isinstance(model, GenerationModel):
        return None
    colocated = Colocated(placement.beside[leaf.worker], placement.arrangement.forms, (name,))
    cap = setting.tables.free_memory.running(name, kind, n, items, colocated)
    stream = model.stream(int(n[0]), items, atoms, group, None if cap is None else float(cap[0]))
    return Stream(worker.calls * stream.times, stream.weights)
