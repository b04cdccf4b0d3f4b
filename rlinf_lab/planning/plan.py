"""The execution plan: which rank sits on which devices, and at which granularity items flow. Frozen, JSON, printable.

The same workflow runs under every plan; see `temporal`, `spatial` and `fused` for the three hand-made forms.
Source: RLinf (arXiv 2509.15965), section 3.3: temporal, spatial and hybrid scheduling.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.engine import ALL
from rlinf_lab.workflow.graph import WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow

Ranks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ExecutionPlan:
    """Where, and how finely.

    ``devices``: names (``"cpu:0"`` is one core, ``"cuda:0"`` one GPU); an index below is a position in this tuple.
    ``placements``: for each worker, for each rank, the indices of its devices (rank 0 of ``((0,), (1,))`` is on device 0).
    ``chunks``: for each channel, how many items one batch of its consumer holds at most (0: everything of the iteration).
    ``capacities``: overrides of the channels' capacity (items; None: unbounded).
    ``sub_batches``: for each worker, into how many tokens its batch is split (default 1); 2 is double buffering in a cell.
    ``fused``: groups of workers whose rank i form one unit: channels between them are private to the unit.
    ``memory``: units a worker's rank occupies on each of its devices while resident (default 0).
    ``device_memory``: units a device has; None: everything fits and nothing is ever switched out.
    """

    name: str
    devices: tuple[str, ...]
    placements: Mapping[str, Ranks]
    chunks: Mapping[str, int] = field(default_factory=dict)
    capacities: Mapping[str, int | None] = field(default_factory=dict)
    sub_batches: Mapping[str, int] = field(default_factory=dict)
    fused: tuple[tuple[str, ...], ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    device_memory: int | None = None

    # --- the three hand-made forms ----------------------------------------------------------------------
    @classmethod
    def temporal(
        cls, flow: Workflow, devices: Sequence[str], ranks: Mapping[str, int] | None = None, name: str = "temporal", **fields: Any
    ) -> ExecutionPlan:
        """Every worker on all devices, one after another: a phase begins when the one before has produced everything.

        ``ranks``: how many copies of each worker (default 1); rank r sits on device r.
        """
        graph = flow.graph
        placements = _spread(graph, devices, ranks or {})
        tokens = {w: len(p) * fields.get("sub_batches", {}).get(w, 1) for w, p in placements.items()}
        return cls._made(graph, name, devices, placements, _cell_chunks(graph, tokens, whole=True), fields)

    @classmethod
    def spatial(
        cls, flow: Workflow, devices: Sequence[str], on: Mapping[str, Sequence[int]], chunk: int = 1, name: str = "spatial", **fields: Any
    ) -> ExecutionPlan:
        """Workers on devices of their own, streaming to each other in chunks of ``chunk`` items.

        ``on``: for each worker the device indices of its ranks, one device a rank.
        """
        graph = flow.graph
        for worker in on:
            graph.node(worker)
        missing = [w for w in graph.workers if w not in on]
        if missing:
            raise PlanError(f"Plan {name!r}: on= has no devices for {', '.join(map(repr, missing))}; give each worker its ranks.")
        placements: dict[str, Ranks] = {w: tuple((int(d),) for d in on[w]) for w in graph.workers}
        chunks = {c.name: chunk for c in graph.channels if not c.whole} | _cell_chunks(graph, {}, whole=False)
        return cls._made(graph, name, devices, placements, chunks, fields)

    @classmethod
    def fused_cells(
        cls, flow: Workflow, devices: Sequence[str], ranks: Mapping[str, int] | None = None, name: str = "fused", **fields: Any
    ) -> ExecutionPlan:
        """As `temporal`, but rank i of every member of a cell forms a unit that advances without waiting for the others."""
        graph = flow.graph
        if not graph.cells:
            raise PlanError(f"Plan {name!r}: workflow {graph.name!r} has no cell to fuse (no cycle of channels).")
        wanted = dict(ranks or {})
        for cell in graph.cells:
            count = max(wanted.get(w, 1) for w in cell)
            wanted.update(dict.fromkeys(cell, count))
        placements = _spread(graph, devices, wanted)
        chunks = _cell_chunks(graph, {}, whole=False)
        return cls._made(graph, name, devices, placements, chunks, {**fields, "fused": graph.cells})

    @classmethod
    def _made(
        cls, graph: WorkflowGraph, name: str, devices: Sequence[str], placements: dict[str, Ranks], chunks: dict[str, int], fields: dict[str, Any]
    ) -> ExecutionPlan:
        known = {f.name for f in dataclasses.fields(cls)}
        for key in fields:
            if key not in known:
                raise UnknownNameError.of("plan field", key, known)
        chunks = {**chunks, **fields.pop("chunks", {})}
        plan = cls(name, tuple(devices), placements, chunks, **fields)
        plan.validate(graph)
        return plan

    # --- asking ------------------------------------------------------------------------------------------
    def ranks(self, worker: str) -> int:
        return len(self.placements[worker])

    def chunk(self, channel: str) -> int:
        """Items of one batch; `engine.ALL` for everything."""
        return self.chunks.get(channel, 0) or ALL

    def tokens(self, worker: str) -> int:
        """Into how many tokens one rank of the worker splits its batch."""
        return self.sub_batches.get(worker, 1)

    def is_fused(self, producer: str, consumer: str) -> bool:
        return any(producer in group and consumer in group for group in self.fused)

    def device_names(self, worker: str, rank: int) -> tuple[str, ...]:
        return tuple(self.devices[d] for d in self.placements[worker][rank])

    # --- checking ----------------------------------------------------------------------------------------
    def validate(self, graph: WorkflowGraph) -> None:
        """Raises `PlanError` (or `UnknownNameError`) naming the worker, channel or field that cannot work."""
        if not self.devices:
            raise PlanError(f"Plan {self.name!r} has no devices. Next: devices=lab.devices() or ['cpu:0', 'cpu:1'].")
        if len(set(self.devices)) != len(self.devices):
            raise PlanError(f"Plan {self.name!r} names a device twice: {list(self.devices)}.")
        for worker in [*self.placements, *self.sub_batches, *self.memory, *(w for g in self.fused for w in g)]:
            graph.node(worker)
        for channel in [*self.chunks, *self.capacities]:
            graph.channel(channel)
        for worker in graph.workers:
            self._validate_worker(worker)
        for group in self.fused:
            counts = {w: self.placements[w] for w in group}
            if len(set(counts.values())) > 1:
                raise PlanError(f"Plan {self.name!r}: fused workers must share ranks and devices, but they have {counts}.")
        for channel, chunk in self.chunks.items():
            if not isinstance(chunk, int) or chunk < 0:
                raise PlanError(f"Plan {self.name!r}: chunk of channel {channel!r} is {chunk!r}; give a number of items, 0 for all.")
        self._validate_cells(graph)

    def _validate_worker(self, worker: str) -> None:
        if worker not in self.placements or not self.placements[worker]:
            raise PlanError(f"Plan {self.name!r} places no rank of worker {worker!r}; add it to placements.")
        ranks = self.placements[worker]
        used: list[int] = [d for devices in ranks for d in devices]
        for device in used:
            if not 0 <= device < len(self.devices):
                raise PlanError(
                    f"Plan {self.name!r} puts worker {worker!r} on device {device}, but there are {len(self.devices)} "
                    f"devices ({', '.join(self.devices)}), numbered from 0."
                )
        if len(set(used)) != len(used):
            raise PlanError(
                f"Plan {self.name!r}: worker {worker!r} has {len(ranks)} ranks on devices {used}: more ranks than devices. "
                f"Give each rank a device of its own, or use fewer ranks."
            )
        if self.tokens(worker) < 1:
            raise PlanError(f"Plan {self.name!r}: sub_batches of {worker!r} is {self.tokens(worker)}; it must be at least 1.")
        need = self.memory.get(worker, 0)
        if self.device_memory is not None and need > self.device_memory:
            raise PlanError(
                f"Plan {self.name!r}: worker {worker!r} needs {need} units of memory on each device, {self.device_memory} are there."
            )

    def _validate_cells(self, graph: WorkflowGraph) -> None:
        """A chunk larger than the tokens in flight would starve a cell for ever."""
        for edge in graph.edges:
            if not any(edge.producer in c and edge.consumer in c for c in graph.cells) or edge.keyed:
                continue
            tokens = self.tokens(edge.producer) * (1 if self.is_fused(edge.producer, edge.consumer) else self.ranks(edge.producer))
            chunk = self.chunks.get(edge.channel, 0)
            if not 1 <= chunk <= tokens:
                raise PlanError(
                    f"Plan {self.name!r}: chunk of channel {edge.channel!r} is {chunk}, but only {tokens} tokens circulate in the "
                    f"cell {edge.producer!r} <-> {edge.consumer!r}: it would wait for ever. Next: a chunk from 1 to {tokens}."
                )

    # --- JSON and pictures ---------------------------------------------------------------------------
    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> ExecutionPlan:
        """The plan that `to_json` wrote. `UnknownNameError` for a field that a plan does not have."""
        data = json.loads(text)
        known = [f.name for f in dataclasses.fields(cls)]
        for key in data:
            if key not in known:
                raise UnknownNameError.of("plan field", key, known)
        for key in ("name", "devices", "placements"):
            if key not in data:
                raise PlanError(f"Plan without the field {key!r}; it has {sorted(data)}.")
        data["devices"] = tuple(data["devices"])
        data["placements"] = {w: tuple(tuple(r) for r in ranks) for w, ranks in data["placements"].items()}
        data["fused"] = tuple(tuple(g) for g in data.get("fused", ()))
        return cls(**data)

    def __repr__(self) -> str:
        lines = [f"ExecutionPlan {self.name!r} on {len(self.devices)} devices: {', '.join(self.devices)}"]
        for worker, ranks in self.placements.items():
            where = ", ".join("+".join(self.devices[d] for d in r) or "nowhere" for r in ranks)
            tokens = f", {self.tokens(worker)} sub-batches" if self.tokens(worker) > 1 else ""
            lines.append(f"  {worker:<12} {len(ranks)} rank{'s' * (len(ranks) > 1)} on {where}{tokens}")
        if self.chunks:
            lines.append("  chunks       " + ", ".join(f"{c} {n or 'all'}" for c, n in self.chunks.items()))
        lines += [f"  fused        {' + '.join(g)}" for g in self.fused]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th style='text-align:center'>{escape(d)}</th>" for d in self.devices)
        rows = []
        for worker, ranks in self.placements.items():
            cells = "".join(
                "<td style='text-align:center'>" + ", ".join(f"rank {r}" for r, ds in enumerate(ranks) if d in ds) + "</td>"
                for d in range(len(self.devices))
            )
            rows.append(f"<tr><th style='text-align:left'>{escape(worker)}</th>{cells}</tr>")
        notes = [f"chunk of {escape(c)}: {n or 'all'}" for c, n in self.chunks.items()]
        notes += [f"fused: {escape(' + '.join(g))}" for g in self.fused]
        return (
            f"<div><b>Plan {escape(self.name)}</b><table><thead><tr><th></th>{head}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table><small>{' · '.join(notes)}</small></div>"
        )


def _spread(graph: WorkflowGraph, devices: Sequence[str], ranks: Mapping[str, int]) -> dict[str, Ranks]:
    for worker, count in ranks.items():
        graph.node(worker)
        if not isinstance(count, int) or not 1 <= count <= len(devices):
            raise PlanError(f"Worker {worker!r}: {count!r} ranks on {len(devices)} devices; give 1 to {len(devices)} ranks.")
    return {w: tuple((r,) for r in range(ranks.get(w, 1))) for w in graph.workers}


def _cell_chunks(graph: WorkflowGraph, tokens: Mapping[str, int], whole: bool) -> dict[str, int]:
    """Inside a cell: all tokens in flight (phases alternate) or one by one (each unit advances on its own)."""
    chunks: dict[str, int] = {}
    for edge in graph.edges:
        inside = any(edge.producer in c and edge.consumer in c for c in graph.cells)
        if inside and not edge.keyed:
            chunks[edge.channel] = tokens[edge.producer] if whole else 1
    return chunks
