"""A plan of the search as a timeline. The profile's workers are scripts, run by the real scheduler in virtual time.

Ranks of a generator work on their own, each through its part of the responses, and so do ranks that begin at different
times (`per_rank`); every other worker is one worker group on all its devices, because data-parallel ranks advance
together (collectives). Items are bundled, so that an iteration has a few thousand steps whatever its size.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.forecast.bundles import Bundles
from rlinf_lab.planning.forecast.message_costs import message_of
from rlinf_lab.planning.forecast.per_rank import seconds_of_a_rank
from rlinf_lab.planning.forecast.stream_estimate import follow
from rlinf_lab.planning.forecast.transfer_workers import Links
from rlinf_lab.planning.placement.budget import Budget
from rlinf_lab.planning.placement.cell_order import order, rounds
from rlinf_lab.planning.placement.memory_units import Turns, priorities
from rlinf_lab.planning.placement.placement import Placement, Seat
from rlinf_lab.planning.placement.to_execution_plan import ranks_of
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.profile import EdgeProfile, Handover, Message, Profile
from rlinf_lab.planning.schema.arguments import MAX_ITERATIONS, number, whole
from rlinf_lab.planning.search.plan_tree import Leaf, leaf_of
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn, get, put, run
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import Call, Node, Step, WorkflowGraph
from rlinf_lab.workflow.specs import ChannelSpec

BUNDLES = 1024  # see `forecast`
MOVED_PARTS = 16  # parts in which what the consumer wants whole is moved
METHODS = {"generation": "generate", "simulator": "step", "batch": "work"}


def forecast(
    placement: Placement,
    iterations: int = 2,
    devices: Sequence[str] = (),
    noise: float = 0.0,
    seed: int = 0,
    detail: int = BUNDLES,
) -> Timeline:
    """The predicted timeline of some iterations. The first one includes coming to the devices; later ones are what a
    run settles to. With staleness they overlap.

    ``devices``: names (default: their kind and number). ``noise``: relative standard deviation of every duration, drawn
    from ``seed``.
    ``detail``: bundles of items at most, unless the plan's micro-batches ask for more.
    """
    whole("iterations", iterations, 1, MAX_ITERATIONS)
    number("noise", noise, 0, 10)
    whole("seed", seed, 0, 2**63)
    return _Forecast(placement, devices, noise, seed, detail).run(iterations)


def device_names(placement: Placement) -> tuple[str, ...]:
    """``cuda:0`` and so on, kind after kind. ``cpu:0`` for a kind whose name begins with "cpu"."""
    numbers = {"cpu": itertools.count(), "cuda": itertools.count()}
    words = (
        "cpu" if kind.startswith("cpu") else "cuda" for kind, n in placement.setting.devices.items() for _ in range(n)
    )
    return tuple(f"{word}:{next(numbers[word])}" for word in words)


def graph_of(profile: Profile) -> WorkflowGraph:
    """The workflow that a profile describes. It has a channel for each edge, a method for each worker, then the
    handovers.
    """
    nodes, program, edges = [], [], (*profile.edges, *gates(profile))
    budget = Budget(profile, {"": 1})
    back = {e.channel for e in profile.edges if _answers(budget, e)}
    for name, worker in profile.workers.items():
        reads = tuple(e.channel for e in edges if e.consumer == name)
        writes = tuple(e.channel for e in edges if e.producer == name)
        # The head of a cell works before the first answer. Who waits for a value begins, and takes its devices, when it
        # is there.
        early = worker.starts_on_device and not any(e.value for e in edges if e.consumer == name)
        call = Call(METHODS[worker.kind], "()", reads, writes, early or back.issuperset(reads))
        nodes.append(Node(name, worker.kind, (call,)))
        program.append(Step(name, call, ()))
    channels = tuple(ChannelSpec(e.channel, None, e.channel in back, e.whole) for e in edges)
    for handover in profile.handovers:
        call = Call(handover.method, "()", (), (), True)
        latest = {step.worker: i for i, step in enumerate(program)}
        program.append(Step(handover.worker, call, tuple(latest[w] for w in handover.after)))
        nodes = [replace(n, calls=(*n.calls, call)) if n.name == handover.worker else n for n in nodes]
    return WorkflowGraph(profile.name, tuple(nodes), channels, (), tuple(program))


def shared_weights(profile: Profile) -> list[dict[str, float]]:
    """Who holds which weights together, as `Simulator` takes it. For weights that several workers hold, it says of each
    worker which part of what it moves they are.
    """
    found: dict[str, dict[str, float]] = {}
    for name, worker in profile.workers.items():
        if memory.shares(worker):
            found.setdefault(worker.memory.shared_as, {})[name] = memory.shared_part(worker)
    return list(found.values())


def gates(profile: Profile) -> tuple[EdgeProfile, ...]:
    """Who must wait for complete groups although the responses reach it through others. Each gate is an edge from the
    generator, of whole groups.

    Not within a cell: its members answer each other step by step, all items of a sub-batch together.
    """
    found, home = [], Budget(profile, {"": 1}).home
    for edge in profile.edges:
        source = _generator_above(profile, edge.producer)
        if edge.group > 1 and source not in (None, edge.producer) and home[source] != home[edge.consumer]:
            found.append(EdgeProfile(source, edge.consumer, edge.group))
    direct = {(e.producer, e.consumer) for e in profile.edges}
    return tuple(dict.fromkeys(g for g in found if (g.producer, g.consumer) not in direct))


def _generator_above(profile: Profile, name: str) -> str | None:
    """The generator from which a worker's items come, itself included."""
    seen, open_ = set[str](), [name]
    while open_:
        name = open_.pop()
        if profile.workers[name].kind == "generation":
            return name
        if name not in seen:
            seen.add(name)
            open_ += [e.producer for e in reversed(profile.edges) if e.consumer == name]
    return None


def _answers(budget: Budget, edge: EdgeProfile) -> bool:
    """Whether an edge of a cell leads back. Such an edge goes to a member that works before its producer in a step."""
    stage = budget.home[edge.producer]
    if stage != budget.home[edge.consumer]:
        return False
    found = order(budget.profile, budget.stages[stage].members)
    return found.index(edge.producer) > found.index(edge.consumer)


class _Forecast:
    def __init__(self, placement: Placement, devices: Sequence[str], noise: float, seed: int, detail: int) -> None:
        self.placement, self.setting, self.profile = placement, placement.setting, placement.setting.profile
        self.problem = self.setting.problem(placement.arrangement)
        self.edges = (*self.profile.edges, *gates(self.profile))
        self.names = tuple(devices) or device_names(placement)
        self.noise, self.random = noise, np.random.default_rng(seed)
        self.bundles = Bundles(placement, self.edges, detail)
        self.links = Links.of(self.profile, self._moving(), self.bundles.count)

    def run(self, iterations: int) -> Timeline:
        graph = self.links.inserted(graph_of(self.profile))
        plan, switches = self._plan(graph), self._switches()
        first = len(self.profile.workers)
        handing = {first + i: h for i, h in enumerate(self.profile.handovers)}
        calls = [
            self._handover(handing[i], step)
            if i in handing
            else self.links.call(step.worker) or self._call(step.worker, step.call)
            for i, step in enumerate(graph.program)
        ]
        try:
            return Simulator(graph, plan, switches, shared=shared_weights(self.profile)).simulate(calls, iterations)
        except (struct.error, OverflowError) as error:  # nanoseconds in 64 bits
            work = follow(self.placement).work
            stage, most = max(work.items(), key=lambda item: item[1].busy)
            raise PlanError(
                f"{iterations} iterations end later than a timeline can say (292 years): "
                f"{self.setting.stages[stage].name!r} takes {most.busy:.3g} s of each. "
                f"Next: see its samples, calls and lengths in the profile, or plan(simulate=False)."
            ) from error

    def _moving(self) -> dict[EdgeProfile, Message | None]:
        """Edges between stages on devices of their own, with what a message costs. Their items take time to move."""
        found = {}
        for edge in self.edges:
            message = self._message(edge.producer, edge.consumer)
            if self._are_apart(edge) and (message is not None or (self.profile.link is not None and edge.item_mib)):
                found[edge] = message
        return found

    def _are_apart(self, edge: EdgeProfile) -> bool:
        seats, home = self.placement.seats, self.setting.home
        return home[edge.producer] != home[edge.consumer] and not set(seats[edge.producer].devices) & set(
            seats[edge.consumer].devices
        )

    def _message(self, producer: str, consumer: str) -> Message | None:
        """What a message between two workers costs. None where they share a process, or nothing is known."""
        devices = [self.placement.seats[name].devices for name in (producer, consumer)]
        if not self.profile.messages or set(devices[0]) & set(devices[1]):
            return None
        nodes = {Device.parse(self.names[used[0]]).node if used else 0 for used in devices}
        return message_of(self.profile.messages, len(nodes) == 1)

    def _talk_seconds(self, name: str, inner: Sequence[EdgeProfile]) -> float:
        """What the messages of a step of a cell cost one of its members. It counts computing, and the flight of what it
        waits for.
        """
        total = 0.0
        for edge in inner:
            message = self._message(edge.producer, edge.consumer) if name in (edge.producer, edge.consumer) else None
            if message is not None:
                total += message.busy_s + (message.latency_s if edge.consumer == name else 0.0)
        return total

    # --- the plan ----------------------------------------------------------------------------------------------
    def _plan(self, graph: WorkflowGraph) -> ExecutionPlan:
        placements = {
            name: ranks_of(self.placement, name) if self.bundles.independent(name) else (tuple(seat.devices),)
            for name, seat in self.placement.seats.items()
        }
        placements.update(self.links.placements())
        micro_batches = {e.channel: self.bundles.micro_batch(e) for e in self.edges}
        # What is wanted whole is moved while it is made; a batch is moved when it is complete.
        micro_batches.update(
            {self.links.source(e.channel): self._moved_at_once(e, micro_batches[e.channel]) for e in self._moving()}
        )
        sub_batches = {n: s.sub_batches for n, s in self.placement.seats.items() if s.sub_batches > 1}
        turns = Turns.of(self.placement) if any(sum(pair) for pair in self._switches().values()) else Turns()
        more = (
            turns.memory,
            turns.device_memory,
            self.setting.staleness,
            turns.working,
            priorities(self.placement, graph),
        )
        return ExecutionPlan("forecast", self.names, placements, micro_batches, {}, sub_batches, (), *more)

    def _moved_at_once(self, edge: EdgeProfile, micro_batch: int) -> int:
        """Bundles: batches of all ranks together."""
        ranks = self.placement.seats[edge.consumer].ranks if edge.consumer in self.bundles.by_rank else 1
        return min(self.bundles.count, micro_batch * ranks) or max(1, self.bundles.count // MOVED_PARTS)

    def _switches(self) -> dict[str, tuple[int, int]]:
        return {
            n: (_ns(w.onload_s), _ns(w.offload_s))
            for n, w in self.profile.workers.items()
            if not self.placement.seats[n].stays
        }

    # --- scripts -------------------------------------------------------------------------------------------------
    def _call(self, name: str, call: Call) -> SimCall:
        seat = self.placement.seats[name]
        if len(self.bundles.mates(name)) > 1:
            script = self._in_cell(name, seat)
        elif self.bundles.streams(name):
            script = self._generator(name, seat)
        else:
            script = self._batch(name, seat, leaf_of(self.placement.tree, self.setting.home[name]))
        return SimCall(name, call.method, script, call.reads, call.writes, (), call.starts_on_device)

    def _handover(self, handover: Handover, step: Step) -> SimCall:
        def script(turn: Turn) -> Script:
            yield run(self._noisy(handover.seconds))

        return SimCall(step.worker, step.call.method, script, after=step.after)

    def _generator(self, name: str, seat: Seat) -> Callable[[Turn], Script]:
        """Each rank has every so-maniest response of the whole stream. A channel that asks for groups gets them when
        they are complete.
        """
        inputs, outputs = self._edges(name)
        streams = [self.bundles.times(name, 1)] + [
            self.bundles.times(name, e.group) for e in self.edges if self.links.source(e.channel) in outputs
        ]

        def script(turn: Turn) -> Script:
            for channel in inputs:
                yield get(channel, ALL)
            # rounded from the start: ranks that are ready together stay together, and do not drift by half a nanosecond
            # a step
            before = 0
            moments = sorted(
                (_ns(float(at)), i) for i, times in enumerate(streams) for at in times[turn.rank :: seat.ranks]
            )
            for at, i in moments:
                if at > before:
                    yield run(self._noisy((at - before) / 1e9))
                    before = at
                if i:
                    yield put(outputs[i - 1])

        return script

    def _batch(self, name: str, seat: Seat, leaf: Leaf) -> Callable[[Turn], Script]:
        inputs, outputs = self._edges(name)
        code = int(np.ravel_multi_index(leaf.devices, self.setting.shape))
        seconds = float(self.problem.table(leaf.worker, self.placement.beside[leaf.worker])[leaf.grain, code])
        whole = [e.channel for e in self.edges if e.channel in inputs and self.bundles.micro_batch(e) == 0]
        streamed = [c for c in inputs if c not in whole]
        turns = self._inputs_in_turn(name, inputs)
        above = _generator_above(self.profile, name)
        source = above if above is not None and self.bundles.streams(above) else None
        made = self.bundles.as_taken(name, seat) if not inputs else []
        in_calls = not made and name in self.bundles.by_rank | self.setting.in_whole_calls
        ranks = seat.ranks if name in self.bundles.by_rank else 1
        lead = self.setting.leads.get(name, 0.0)
        if in_calls and name not in self.setting.sources:
            each = self._of_a_call(name, seconds)
        else:  # in proportion
            most = self.bundles.share(name, 0, ranks) if not inputs else self.bundles.count

            def each(n: int) -> float:
                return seconds * n * seat.micro_batches / most

        late = {self.links.source(e.channel) for e in self.edges if e.producer == name and e.at_end}
        made_by: dict[tuple[int, int], int] = {}  # bundles that are put at the end, by iteration and rank

        def work(turn: Turn, first: int, n: int, part: float = 1.0, last: bool = True) -> Script:
            yield run(self._noisy(each(n) * part * self.bundles.weight(name, source, first, n)))
            if last and late:
                made_by[turn.iteration, turn.rank] = made_by.get((turn.iteration, turn.rank), 0) + n
            for channel in outputs if last else ():
                if channel not in late:
                    yield put(channel, n)

        def whole_turn(turn: Turn) -> Script:
            yield from (in_turn if turns else script)(turn)
            n = made_by.pop((turn.iteration, turn.rank), 0)
            for channel in outputs if n else ():
                if channel in late:
                    yield put(channel, n)

        def in_turn(turn: Turn) -> Script:
            for channel, part in turns:
                last = channel == turns[-1][0]
                if channel in whole:
                    n = yield get(channel, ALL)
                    for first, some in _parts(turn.first(), _divided(n, seat.micro_batches)):
                        yield from work(turn, first, some, part, last)
                else:
                    while n := (yield get(channel)):
                        yield from work(turn, turn.first(), n, part, last)

        def script(turn: Turn) -> Script:
            if not inputs:
                share = self.bundles.share(name, turn.position, turn.count)
                parts = made or _divided(share, seat.micro_batches)
                if lead:
                    yield run(self._noisy(lead * seconds * seat.micro_batches))
                for first, some in _parts(0, parts):
                    yield from work(turn, first, some, 1 - lead)
                return
            n = 0
            for channel in whole:
                n = yield get(channel, ALL)
            if not streamed:
                for first, some in _parts(turn.first(), _divided(n, seat.micro_batches)):
                    yield from work(turn, first, some)
                return
            while n := (yield get(streamed[0])):
                first = turn.first()
                for channel in streamed[1:]:
                    yield get(channel, n)
                yield from work(turn, first, n)

        return whole_turn

    def _of_a_call(self, name: str, micro_batch_s: float) -> Callable[[int], float]:
        """Seconds that a rank, or a worker group, takes for so many bundles."""
        seconds = seconds_of_a_rank(self.placement, name, micro_batch_s, None if name in self.bundles.by_rank else 1)
        return lru_cache(maxsize=None)(lambda n: seconds(n / self.bundles.count * self.profile.items))

    def _in_cell(self, name: str, seat: Seat) -> Callable[[Turn], Script]:
        """The script of a member of a cell, step by step, slot by slot. It takes what comes from members before it in
        the step, does its own work, and puts what goes on; answers of the last step come by key.
        """
        mates = self.bundles.mates(name)
        at = order(self.profile, mates).index
        inner = [e for e in self.edges if e.producer in mates and e.consumer in mates]
        answers = {e.channel for e in inner if at(e.producer) > at(e.consumer)}
        gets = sorted((e.channel for e in inner if e.consumer == name), key=lambda c: c not in answers)
        puts = [e.channel for e in inner if e.producer == name]
        times = rounds(self.profile, mates)
        steps = min(self.profile.workers[m].calls for m in mates) / times  # that one round stands for
        seconds = self.placement.member_seconds(name) / times + steps * self._talk_seconds(name, inner)
        inputs, outputs = self._edges(name)
        late = {self.links.source(e.channel) for e in self.edges if e.producer == name and e.at_end}
        slots = range(seat.sub_batches)
        whole = {e.channel for e in self.edges if e.channel in inputs and self.bundles.micro_batch(e) == 0}

        def script(turn: Turn) -> Script:
            parts = [self.bundles.count // seat.micro_batches] * seat.micro_batches
            for channel in inputs:
                if channel in whole:
                    parts = _divided((yield get(channel, ALL)), seat.micro_batches)
            for n in parts:
                for channel in inputs:
                    if channel not in whole:
                        n = yield get(channel)
                for step in range(times):
                    for slot in slots:
                        for channel in gets:
                            if channel not in answers or step:
                                yield get(channel, 1, slot if channel in answers else -1)
                        yield run(self._noisy(seconds))
                        for channel in puts:
                            yield put(channel, 1, slot if channel in answers else -1)
                for channel in gets:
                    for slot in slots if channel in answers else ():
                        yield get(channel, 1, slot)
                for channel in outputs:
                    if channel not in late:
                        yield put(channel, n)
            for channel in outputs:
                if channel in late:
                    yield put(channel, self.bundles.count)

        return script

    # --- small things --------------------------------------------------------------------------------------------
    def _edges(self, name: str) -> tuple[list[str], list[str]]:
        """Channels from and to other stages."""
        mates = self.bundles.mates(name)
        inputs = [e for e in self.edges if e.consumer == name and e.producer not in mates]
        return [e.channel for e in inputs], [
            self.links.source(e.channel) for e in self.edges if e.producer == name and e.consumer not in mates
        ]

    def _inputs_in_turn(self, name: str, inputs: Sequence[str]) -> list[tuple[str, float]]:
        """(channel, part of the seconds) of a worker that takes its inputs in turn. None where it waits for one that
        its profile does not name.
        """
        channels = {e.producer: e.channel for e in self.profile.edges if e.consumer == name and e.channel in inputs}
        found = [
            (channels[producer], part) for producer, part in self.profile.workers[name].in_turn if producer in channels
        ]
        return found if len(found) == len(inputs) else []

    def _noisy(self, seconds: float) -> int:
        factor = math.exp(self.noise * self.random.standard_normal() - self.noise**2 / 2) if self.noise else 1.0
        return _ns(max(0.0, seconds) * factor)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _divided(n: int, parts: int) -> list[int]:
    """Divide into parts as equal as whole numbers allow, without empty ones. The larger ones come early, so that the
    first parts of all ranks together make no less than a micro-batch.
    """
    ends = [-(-n * i // parts) for i in range(parts + 1)]
    return [end - start for start, end in itertools.pairwise(ends) if end > start]


def _parts(first: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(number of its first bundle, bundles) of parts that follow each other."""
    for size in sizes:
        yield first, size
        first += size
