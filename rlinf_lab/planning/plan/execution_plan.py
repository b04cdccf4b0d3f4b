"""The execution plan: which rank sits on which devices, and at which granularity items flow. Frozen, JSON, printable.

The same workflow runs under every plan; `temporal`, `spatial`, `hybrid` and `fused_cells` make the usual forms.
Source: RLinf (arXiv 2509.15965), section 3.3: temporal, spatial and hybrid scheduling.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

from rlinf_lab.errors import PlanError, PlanNameError, counted, refuse_old_names
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.plan.device import whole
from rlinf_lab.planning.plan.fields import NUMBERS, Fields, Ranks, shown, some
from rlinf_lab.planning.schema.files import json_in, read_text, write_text
from rlinf_lab.workflow.graph import Edge, WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow

SHOWN_DEVICES = 16  # devices that are shown side by side
OLD_NAMES = {"chunks": "micro_batches", "chunk": "micro_batch"}  # of fields, as notebooks and files before had them


class HasPlan(Protocol):
    """What `lab.plan` found: a plan with what is known of it."""

    @property
    def execution(self) -> ExecutionPlan: ...


@dataclass(frozen=True)
class ExecutionPlan:
    """Where, and how finely.

    ``devices``: names (``"cpu:0"`` is one core, ``"cuda:0"`` one GPU); an index below is a position in this tuple.
    ``"cuda:0.1"`` and ``"cuda:0.2"`` are streams of one GPU, which work at the same time.
    ``placements``: for each worker, for each rank, the indices of its devices (rank 0 of ``((0,), (1,))`` is on device
    0).
    ``micro_batches``: for each channel, how many items one batch of its consumer holds at most (0: everything of the
        iteration). Of a channel that is wanted whole no batch is given before everything is there; 0 gives each rank
        its equal share (`Inbox.get_all`).
    ``capacities``: overrides of the channels' capacity (items; None: unbounded).
    ``sub_batches``: for each worker, into how many tokens its batch is split (default 1); 2 is double buffering in a
    cell.
    ``fused``: groups of workers whose rank i form one unit: channels between them are private to the unit.
    ``memory``: units a worker's rank occupies on each of its devices while resident (default 0).
    ``device_memory``: units a device has; None: everything fits and nothing is ever switched out.
    ``staleness``: how many earlier iterations may be unfinished when an iteration begins; 0: one after the other.
    ``working``: further units that a worker's rank occupies on each of its devices while it works (default 0).
    ``priorities``: who of one iteration gets a device first when several wait for it: the smaller number (default: a
    worker's depth in the graph).
    ``in_flight``: for one worker of a cell, how many items its head's ranks together put into the cell at a time and
        wait for, whatever ``sub_batches`` says (default: ranks times sub-batches): as large may the cell's
        micro-batches be.
    ``origin``: how the search found it, for simulations (`planning.placement.provenance`); executors do not look at it,
        nor do comparisons. Of a plan that was edited since it says nothing, and need not be taken out.
    """

    name: str
    devices: tuple[str, ...]
    placements: Mapping[str, Ranks]
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    capacities: Mapping[str, int | None] = field(default_factory=dict)
    sub_batches: Mapping[str, int] = field(default_factory=dict)
    fused: tuple[tuple[str, ...], ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    device_memory: int | None = None
    staleness: int = 0
    working: Mapping[str, int] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    in_flight: Mapping[str, int] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __new__(cls, *_: Any, **fields: Any) -> Self:
        """Raises `ConfigError` for a field by the name that it had before."""
        refuse_old_names(cls.__name__, fields, OLD_NAMES)
        return super().__new__(cls)

    def __getattr__(self, name: str) -> NoReturn:
        if name in OLD_NAMES:
            raise AttributeError(
                f"{type(self).__name__}.{name} is called {OLD_NAMES[name]} now. Next: plan.{OLD_NAMES[name]}."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __post_init__(self) -> None:
        """Lists become tuples, mappings are copied. Raises `PlanError` naming the field that cannot be."""
        read = Fields(self.name)
        devices = read.devices(self.devices)
        values = {
            "devices": devices, "placements": read.placements(self.placements, devices),
            "fused": read.fused(self.fused), "device_memory": read.device_memory(self.device_memory),
            "staleness": read.staleness(self.staleness), "origin": read.origin(self.origin),
            **{name: read.numbers(name, getattr(self, name)) for name in NUMBERS},
        }  # fmt: skip
        for field_name, value in values.items():
            object.__setattr__(self, field_name, value)

    # --- the three hand-made forms ----------------------------------------------------------------------
    @classmethod
    def temporal(
        cls,
        flow: Workflow,
        devices: Sequence[str],
        ranks: Mapping[str, int] | None = None,
        name: str = "temporal",
        **fields: Any,
    ) -> ExecutionPlan:
        """Every worker on all devices, one after another. A phase begins when the one before has produced everything.

        ``ranks``: how many copies of each worker (default 1); rank r sits on device r.
        """
        graph, given = _graph(flow), cls._given(name, devices, fields)
        placements = _spread(graph, name, given["devices"], ranks)
        tokens = {w: len(p) * given.get("sub_batches", {}).get(w, 1) for w, p in placements.items()}
        return cls._made(
            graph,
            placements,
            _cell_micro_batches(graph, tokens, {w: len(p) for w, p in placements.items()}, whole=True),
            given,
        )

    @classmethod
    def spatial(
        cls,
        flow: Workflow,
        devices: Sequence[str],
        on: Mapping[str, Sequence[int]],
        micro_batch: int = 1,
        name: str = "spatial",
        **fields: Any,
    ) -> ExecutionPlan:
        """Workers on devices of their own, streaming to each other in micro-batches of ``micro_batch`` items.

        ``on``: for each worker the device indices of its ranks, one device a rank.
        """
        graph, given = _graph(flow), cls._given(name, devices, fields)
        read = Fields(name)
        on = read.by_name(
            "on",
            on,
            lambda where, ds: read.rows(where, ds, "a list of device numbers", "on={'learner': [0, 1]}"),
            "on={'learner': [0]}",
        )
        for worker in on:
            read.known("on", "worker", worker, graph.workers)
        missing = [w for w in graph.workers if w not in on]
        if missing:
            raise PlanError(
                f"Plan {name!r}: on= has no devices for {', '.join(map(repr, missing))}. Next: give each worker its "
                "ranks' devices."
            )
        placements: dict[str, Any] = {w: tuple((d,) for d in on[w]) for w in graph.workers}
        micro_batches = {c.name: micro_batch for c in graph.channels if not c.whole} | _cell_micro_batches(
            graph, {}, {}, whole=False
        )
        return cls._made(graph, placements, micro_batches, given)

    @classmethod
    def hybrid(
        cls,
        flow: Workflow,
        devices: Sequence[str],
        on: Mapping[str, Sequence[int]],
        micro_batch: int = 1,
        name: str = "hybrid",
        **fields: Any,
    ) -> ExecutionPlan:
        """Workers that have a device in common take turns, with a whole batch each. The others stream to each other.

        ``on``, ``micro_batch``: as of `spatial`. Raises `PlanError` where all share devices, or nobody does.
        """
        made = cls.spatial(flow, devices, on, micro_batch, name, **fields)
        return dataclasses.replace(made, micro_batches=_taking_turns(made, _graph(flow)))

    @classmethod
    def fused_cells(
        cls,
        flow: Workflow,
        devices: Sequence[str],
        ranks: Mapping[str, int] | None = None,
        name: str = "fused",
        **fields: Any,
    ) -> ExecutionPlan:
        """As `temporal`, with cells that advance rank by rank. Rank i of every member forms a unit that does not wait
        for the others."""
        graph, given = _graph(flow), cls._given(name, devices, fields)
        if not graph.cells:
            raise PlanError(
                f"Plan {name!r}: workflow {graph.name!r} has no cell to fuse (no cycle of channels). Next: "
                "ExecutionPlan.temporal."
            )
        if "fused" in fields:
            fault = f"fused={shown(fields['fused'])} cannot be given as well. Next: without it."
            raise PlanError(f"Plan {name!r}: fused_cells fuses the cells of the workflow; {fault}")
        wanted = dict(_counts(graph, name, given["devices"], ranks))
        for cell in graph.cells:
            wanted.update(dict.fromkeys(cell, max(wanted.get(w, 1) for w in cell)))
        placements = _spread(graph, name, given["devices"], wanted)
        return cls._made(
            graph, placements, _cell_micro_batches(graph, {}, {}, whole=False), {**given, "fused": graph.cells}
        )

    @classmethod
    def _given(cls, name: str, devices: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that were given by hand, checked: the rest is computed from them."""
        read = Fields(name)
        free = [f.name for f in dataclasses.fields(cls) if f.name not in ("name", "devices", "placements")]
        refuse_old_names(f"Plan {name!r}", fields, OLD_NAMES)
        for key in fields:
            read.known("the arguments", "plan field", key, free)
        checked = {
            key: read.numbers(key, value) if key in NUMBERS else getattr(read, key)(value)
            for key, value in fields.items()
        }
        return {"name": name, "devices": read.devices(devices), **checked}

    @classmethod
    def _made(
        cls,
        graph: WorkflowGraph,
        placements: Mapping[str, Any],
        micro_batches: Mapping[str, int],
        given: dict[str, Any],
    ) -> ExecutionPlan:
        plan = cls(
            placements=placements, **{**given, "micro_batches": {**micro_batches, **given.get("micro_batches", {})}}
        )
        plan.validate(graph)
        return plan

    # --- asking ------------------------------------------------------------------------------------------
    def ranks(self, worker: str) -> int:
        return len(self.placements[worker])

    def micro_batch(self, channel: str) -> int:
        """Items of one batch; `engine.ALL` for everything."""
        return self.micro_batches.get(channel, 0) or ALL

    def tokens(self, worker: str) -> int:
        """Into how many tokens one rank of the worker splits its batch."""
        return self.sub_batches.get(worker, 1)

    def is_fused(self, producer: str, consumer: str) -> bool:
        return any(producer in group and consumer in group for group in self.fused)

    def device_names(self, worker: str, rank: int) -> tuple[str, ...]:
        return tuple(self.devices[d] for d in self.placements[worker][rank])

    # --- checking ----------------------------------------------------------------------------------------
    def validate(self, flow: Workflow | WorkflowGraph) -> None:
        """Raises `PlanError` naming the worker, channel or field that does not fit. Or the ring in which calls would
        wait for each other."""
        graph, read = graph_in(flow), Fields(self.name)
        for where in ("placements", "sub_batches", "in_flight", "memory", "working", "priorities"):
            for worker in getattr(self, where):
                read.known(where, "worker", worker, graph.workers)
        for i, group in enumerate(self.fused):
            for worker in group:
                read.known(f"fused[{i}]", "worker", worker, graph.workers)
        for where, channels in {"micro_batches": self.micro_batches, "capacities": self.capacities}.items():
            for channel in channels:
                read.known(where, "channel", channel, graph.channels_by_name())
        for worker in graph.workers:
            self._validate_worker(worker)
        for group in self.fused:
            places = {w: self.placements[w] for w in group}
            if len(set(places.values())) > 1:
                raise PlanError(
                    f"Plan {self.name!r}: fused workers must share ranks and devices, but placements has "
                    f"{shown(places)}. Next: give them "
                    f"the same placement, or do not fuse them."
                )
        for channel, capacity in self.capacities.items():
            if graph.channel(channel).whole and capacity is not None:
                raise PlanError(
                    f"Plan {self.name!r}: capacities[{channel!r}] is {capacity}, but that channel is declared whole: "
                    "its consumer waits for "
                    f"everything, so nothing may bound it. Next: leave it out."
                )
        self._validate_shares()
        self._validate_cells(graph)

    def _validate_shares(self) -> None:
        """What is on shares of one device is there at the same time."""
        if self.device_memory is None:
            return
        largest: dict[str, dict[int, int]] = {}  # by device, of each share
        for worker, ranks in self.placements.items():
            for number in {number for rank in ranks for number in rank}:
                of_device = largest.setdefault(whole(self.devices[number]), {})
                need = self.memory.get(worker, 0) + self.working.get(worker, 0)
                of_device[number] = max(of_device.get(number, 0), need)
        for device, needs in largest.items():
            if len(needs) > 1 and sum(needs.values()) > self.device_memory:
                raise PlanError(
                    f"Plan {self.name!r}: the shares of {device} need {' + '.join(map(str, needs.values()))} units of "
                    f"memory at the same time (memory + working), and it has {self.device_memory} (device_memory). "
                    f"Next: the whole device, where workers take turns."
                )

    def _validate_worker(self, worker: str) -> None:
        if worker not in self.placements:
            raise PlanError(
                f"Plan {self.name!r} places no rank of worker {worker!r}. Next: add placements[{worker!r}], such as "
                "[[0]]."
            )
        need, more = self.memory.get(worker, 0), self.working.get(worker, 0)
        if self.device_memory is not None and need + more > self.device_memory:
            units = (
                f"{need} + {more} units of memory on each device (memory + working)"
                if more
                else f"{need} units of memory on each device (memory)"
            )
            raise PlanError(
                f"Plan {self.name!r}: worker {worker!r} needs {units}, and a device has "
                f"{self.device_memory} (device_memory). Next: larger devices, or a worker that needs less."
            )

    def _validate_cells(self, graph: WorkflowGraph) -> None:
        """A micro-batch larger than the tokens in flight would starve a cell for ever."""
        for edge in graph.edges:
            if not any(edge.producer in c and edge.consumer in c for c in graph.cells) or edge.keyed:
                continue
            tokens = self._in_flight(graph, edge)
            micro_batch = self.micro_batches.get(edge.channel, 0)
            if not 1 <= micro_batch <= tokens:
                raise PlanError(
                    f"Plan {self.name!r}: micro-batch of channel {edge.channel!r} is {micro_batch}, but only {tokens} "
                    "tokens circulate in the "
                    f"cell {edge.producer!r} <-> {edge.consumer!r}: it would wait for ever "
                    f"({graph.ring_over(edge)}). Next: a micro-batch from 1 to "
                    f"{tokens}, or, where rank by rank more items are put before it waits, as many tokens: "
                    f"sub_batches={{{edge.producer!r}: {max(2, micro_batch)}}}."
                )

    def _in_flight(self, graph: WorkflowGraph, edge: Edge) -> int:
        """Items that are in the cell of an edge at a time."""
        cell = next(c for c in graph.cells if edge.producer in c and edge.consumer in c)
        units = self.ranks(edge.producer) if self.is_fused(edge.producer, edge.consumer) else 1
        known = [n for w, n in self.in_flight.items() if w in cell]
        return max(1, known[0] // units) if known else self.tokens(edge.producer) * self.ranks(edge.producer) // units

    # --- JSON and pictures ---------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain values, free to be changed. Without ``origin`` where no search found it, and without an empty
        ``in_flight``.
        """
        found = {
            key: dict(value) if isinstance(value, Mapping) else value for key, value in dataclasses.asdict(self).items()
        }
        return {key: value for key, value in found.items() if value or key not in ("origin", "in_flight")}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_dict(cls, data: Any) -> ExecutionPlan:
        """The plan that `to_dict` gave, also by the names that it had before. `PlanError` names the field that is
        missing, unknown or wrong.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        if not isinstance(data, Mapping):
            raise PlanError(
                f"A plan is {shown(data)}; it must be an object with the fields {', '.join(fields)}. Next: "
                "plan.to_dict() makes one."
            )
        data = _by_new_names(data)
        for key in data:
            if key not in fields:
                raise PlanNameError.of("plan field", key, fields)
        for key in ("name", "devices", "placements"):
            if key not in data:
                raise PlanError(
                    f"Plan without the field {key!r}; it has {', '.join(map(str, data)) or 'none'}. Next: "
                    "plan.to_json() shows a whole one."
                )
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> ExecutionPlan:
        """The plan that `to_json` wrote. `PlanError` as `from_dict`, or with the place where the text is no JSON."""
        return cls._parsed(text, "The plan")

    @classmethod
    def _parsed(cls, text: str, it: str) -> ExecutionPlan:
        """``it``: what to call the text."""
        return cls.from_dict(json_in(text, it, "plan", PlanError, "plan.to_json() writes one"))

    @classmethod
    def load(cls, path: str | Path) -> ExecutionPlan:
        """Read a JSON file that `save` wrote."""
        return cls._parsed(read_text(path, "plan", PlanError), f"The plan {str(path)!r}")

    def save(self, path: str | Path) -> None:
        """Write it as JSON, to be edited, read again by `load`, and simulated. The last is done by
        `rlinf-lab simulate --plan FILE.json` and `lab.planning.planned`.
        """
        write_text(path, self.to_json(), "plan", PlanError)

    def diff(self, other: ExecutionPlan | HasPlan) -> str:
        """What is different in another plan, a line for each entry. Also in one of those that `lab.plan` found; empty
        when they are equal. Placements are compared by device names."""
        other = getattr(other, "execution", other)
        if not isinstance(other, ExecutionPlan):
            raise PlanError(
                f"Plan {self.name!r} is compared with another ExecutionPlan, not with {shown(other)}. Next: "
                "plans['spatial']."
            )
        lines = []
        for f in (f for f in dataclasses.fields(self) if f.compare):
            ours, theirs = getattr(self, f.name), getattr(other, f.name)
            if not isinstance(ours, Mapping):
                pairs = [(f.name, ours, theirs)]
            elif f.name == "placements":
                pairs = [(f"placements[{w!r}]", self._seats(w), other._seats(w)) for w in {**ours, **theirs}]
            else:
                pairs = [
                    (f"{f.name}[{key!r}]", ours.get(key, "default"), theirs.get(key, "default"))
                    for key in {**ours, **theirs}
                ]
            lines += [f"{name}: {_plain(a, f.name)} -> {_plain(b, f.name)}" for name, a, b in pairs if a != b]
        return "\n".join(lines)

    def __hash__(self) -> int:
        """Equal plans are equal in these, too; the mappings cannot be hashed."""
        return hash((self.name, self.devices, self.fused))

    def devices_of(self, worker: str) -> frozenset[int]:
        """Numbers of the devices on which some rank of a worker sits."""
        return frozenset(itertools.chain(*self.placements[worker]))

    @property
    def unused_devices(self) -> tuple[str, ...]:
        """Devices on which nobody sits."""
        used = frozenset().union(*map(self.devices_of, self.placements))
        return tuple(name for i, name in enumerate(self.devices) if i not in used)

    def __repr__(self) -> str:
        lines = [f"ExecutionPlan {self.name!r} on {counted(len(self.devices), 'device')}: {some(self.devices)}"]
        for worker in self.placements:
            tokens = f", {self.tokens(worker)} sub-batches" if self.tokens(worker) > 1 else ""
            lines.append(f"  {worker:<12} {counted(self.ranks(worker), 'rank')} on {self._where(worker)}{tokens}")
        return "\n".join([*lines, *(f"  {what:<12} {text}" for what, text in self._settings())])

    def _settings(self) -> list[tuple[str, str]]:
        """What is not default beside who sits where, as (name, text)."""
        rooms = ", ".join(f"{c} {'unbounded' if n is None else n}" for c, n in self.capacities.items())
        found = [("micro-batches", ", ".join(f"{c} {n or 'whole'}" for c, n in self.micro_batches.items()))]
        found += [("capacities", rooms)]
        found += [("fused", " + ".join(group)) for group in self.fused]
        found += [("in flight", ", ".join(f"{n} items in the cell of {w}" for w, n in self.in_flight.items()))]
        found += [("memory", self._memory())]
        found += [
            ("priorities", ", ".join(f"{w} {n}" for w, n in sorted(self.priorities.items(), key=lambda item: item[1])))
        ]
        found += [("staleness", counted(self.staleness, "iteration") if self.staleness else "")]
        if idle := self.unused_devices:
            ranks = f"ranks={{{next(iter(self.placements))!r}: {len(self.devices)}}}"
            found += [("unused", f"{some(idle)}: {len(idle)} of {len(self.devices)}. Next: {ranks}, or lab.plan")]
        return [(what, text) for what, text in found if text]

    def _memory(self) -> str:
        """In words. ``a 1, b 1 + 2 at work; a device has 2 units: time-shared a, b`` is an example."""
        units = [(w, self.memory.get(w, 0), self.working.get(w, 0)) for w in self.placements]
        held = ", ".join(f"{w} {n}" + f" + {more} at work" * bool(more) for w, n, more in units if n or more)
        if self.device_memory is None:
            return f"{held}; a device has no limit: everybody stays" if held else ""
        leaving = ", ".join(w for w in self.placements if self.may_have_to_leave(w))
        turns = f"time-shared {leaving}" if leaving else "everybody stays"
        return f"{held or 'nobody needs any'}; a device has {counted(self.device_memory, 'unit')}: {turns}"

    def may_have_to_leave(self, worker: str) -> bool:
        """Whether it shares a device that is too small for all, another one at work."""
        if not self.memory.get(worker) or self.device_memory is None:
            return False
        for device in {d for ds in self.placements[worker] for d in ds}:
            there = [w for w, ranks in self.placements.items() for ds in ranks if device in ds]
            working = max((self.working.get(w, 0) for w in there if w != worker), default=0)
            if sum(self.memory.get(w, 0) for w in there) + working > self.device_memory and len(there) > 1:
                return True
        return False

    def _seats(self, worker: str) -> str:
        return self._where(worker) if worker in self.placements else "nothing"

    def _where(self, worker: str) -> str:
        return some(["+".join(self.device_names(worker, r)) or "nowhere" for r in range(self.ranks(worker))])

    def _repr_html_(self) -> str:
        return _table(self)


def _plain(value: Any, field: str) -> str:
    if (field, value) == ("micro_batches", 0) or (field, value) == ("capacities", None):
        return "whole" if field == "micro_batches" else "unbounded"
    if isinstance(value, tuple):
        return some([" + ".join(v) if isinstance(v, tuple) else str(v) for v in value]) or "none"
    return str(value)


def execution_in(plan: Any) -> Any:
    """Of a plan that a search found what executors take; anything else as it is."""
    found = getattr(plan, "execution", None)
    return found if isinstance(found, ExecutionPlan) else plan


def graph_in(flow: Any) -> WorkflowGraph:
    """The graph of a workflow, given as either. Raises `PlanError` for anything else."""
    if isinstance(flow, Workflow):
        return flow.graph
    if not isinstance(flow, WorkflowGraph):
        raise PlanError(
            f"A Workflow (or its graph) is needed, not {shown(flow)}. Next: pass the Workflow that the plan is for."
        )
    return flow


def _graph(flow: Any) -> WorkflowGraph:
    if not isinstance(flow, Workflow):
        raise PlanError(
            f"A plan is made for a Workflow, not for {shown(flow)}. Next: ExecutionPlan.temporal(flow, "
            "devices=lab.devices())."
        )
    return flow.graph


def _counts(graph: WorkflowGraph, name: str, devices: Sequence[str], ranks: Any) -> dict[str, int]:
    """How many ranks of each worker are wanted, checked."""
    read = Fields(name)
    advice = f"at most {counted(len(devices), 'rank')}, one for each device"
    counts = read.by_name(
        "ranks",
        {} if ranks is None else ranks,
        lambda where, n: read.whole(where, n, 1, advice, len(devices)),
        "ranks={'simulator': 2}",
    )
    for worker in counts:
        read.known("ranks", "worker", worker, graph.workers)
    return counts


def _spread(graph: WorkflowGraph, name: str, devices: Sequence[str], ranks: Any) -> dict[str, Ranks]:
    counts = _counts(graph, name, devices, ranks)
    return {w: tuple((r,) for r in range(counts.get(w, 1))) for w in graph.workers}


def _by_new_names(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """What a file says, with fields by their present names, also within ``origin``."""
    found = (
        {OLD_NAMES.get(key, key): value for key, value in data.items()}
        if set(data).isdisjoint(OLD_NAMES.values())
        else dict(data)
    )
    if isinstance(found.get("origin"), Mapping):
        found["origin"] = {OLD_NAMES.get(key, key): value for key, value in found["origin"].items()}
    return found


def _cell_micro_batches(
    graph: WorkflowGraph, tokens: Mapping[str, int], ranks: Mapping[str, int], whole: bool
) -> dict[str, int]:
    """Micro-batches inside a cell. They are all tokens in flight, divided among the consumer's ranks (phases
    alternate), or one by one (each unit advances on its own).
    """
    micro_batches: dict[str, int] = {}
    for edge in graph.edges:
        inside = any(edge.producer in c and edge.consumer in c for c in graph.cells)
        if inside and not edge.keyed:
            micro_batches[edge.channel] = max(1, tokens[edge.producer] // ranks[edge.consumer]) if whole else 1
    return micro_batches


def _table(plan: ExecutionPlan) -> str:
    """A row for each worker, with a column for each device where that is readable."""
    left, middle = "style='text-align:left'", "style='text-align:center'"
    if len(plan.devices) <= SHOWN_DEVICES:
        head = "".join(f"<th {middle}>{escape(d)}</th>" for d in plan.devices)
    else:
        head = f"<th {left}>{counted(len(plan.devices), 'device')}: {escape(some(plan.devices))}</th>"
    rows = []
    for worker, ranks in plan.placements.items():
        if len(plan.devices) <= SHOWN_DEVICES:
            held = [", ".join(f"rank {r}" for r, ds in enumerate(ranks) if d in ds) for d in range(len(plan.devices))]
            cells = "".join(f"<td {middle}>{text}</td>" for text in held)
        else:
            cells = f"<td {left}>{counted(len(ranks), 'rank')} on {escape(plan._where(worker))}</td>"
        rows.append(f"<tr><th {left}>{escape(worker)}</th>{cells}</tr>")
    notes = [f"{escape(w)} in {n} sub-batches" for w, n in plan.sub_batches.items() if n > 1]
    notes += [f"{what}: {escape(text)}" for what, text in plan._settings()]
    return (
        f"<div><b>Plan {escape(plan.name)}</b><table><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table><small>{' · '.join(notes)}</small></div>"
    )


def _taking_turns(plan: ExecutionPlan, graph: WorkflowGraph) -> dict[str, int]:
    """Micro-batches of a plan of turns. Everything is there before a worker begins on devices of its producer."""
    pairs = itertools.combinations(plan.placements, 2)
    shared = {frozenset(pair) for pair in pairs if plan.devices_of(pair[0]) & plan.devices_of(pair[1])}
    every = len(plan.placements) * (len(plan.placements) - 1) // 2
    if len(shared) in (0, every):
        who, other = ("all do", "temporal") if shared else ("nobody shares a device", "spatial")
        raise PlanError(
            f"Plan {plan.name!r}: in a hybrid plan some workers share devices and some do not; here {who}. Next: "
            f"ExecutionPlan.{other}(flow, devices, ...), or other numbers in on=."
        )
    cells = [set(cell) for cell in graph.cells]
    in_turn = {
        e.channel
        for e in graph.edges
        if {e.producer, e.consumer} in shared and not any({e.producer, e.consumer} <= cell for cell in cells)
    }
    return {c: 0 if c in in_turn else n for c, n in plan.micro_batches.items()}
