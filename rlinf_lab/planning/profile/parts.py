# ruff: noqa: RUF009 (rule() makes dataclass fields)
"""The parts of a profile. They are measurements of a worker, its ranks and memory, edges, cells, links, kinds of
devices. See `planning.profile.profile`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.schema.json_schema import rule

KINDS = ("batch", "generation", "simulator")
RESOURCES = ("device", "host")
FORMAT = "rlinf_lab.profile/1"


@dataclass(frozen=True)
class Sample:
    """One measurement: ``items`` in ``seconds`` of one call, spread over ``devices``."""

    devices: int = rule(low=0, high=1_000_000, doc="devices that worked on it together (0 for a worker on the host)")
    items: float = rule(above=0, high=1e12, doc="items of the measured call, over all its devices")
    seconds: float = rule(low=0, high=1e9, unit="s", doc="duration of the call")
    beside: tuple[str, ...] = rule((), doc="workers that occupied the same devices meanwhile (they leave less memory)")
    peak_gib: float | None = rule(None, low=0, high=1e9, unit="GiB", doc="most memory of one device during the call")
    outputs: tuple[tuple[float, float], ...] = rule(
        (), doc="(seconds since the start, fraction of the outputs that had appeared)"
    )
    kind: str = rule("", doc="kind of device it was measured on; empty: the first of profile.kinds")

    def scaled(self, factor: float) -> Sample:
        """As if all had taken so many times as long. The way to each output too."""
        outputs = tuple((at * factor, part) for at, part in self.outputs)
        return dataclasses.replace(self, seconds=self.seconds * factor, outputs=outputs)


@dataclass(frozen=True)
class RankRule:
    """Which numbers of ranks a worker can have. A device count is valid when ``devices / devices_per_rank`` is such a
    number.
    """

    devices_per_rank: int = rule(1, low=1, high=1_000_000, doc="model-parallel size")
    divides: int = rule(0, low=0, high=10**12, doc="the number of ranks must divide this (0: no such rule)")
    counts: tuple[int, ...] = rule((), doc="allowed numbers of ranks (empty: all)")
    most: int = rule(0, low=0, high=1_000_000, doc="at most so many ranks (0: no limit)")

    def allows(self, devices: int) -> bool:
        ranks, rest = divmod(devices, self.devices_per_rank)
        return (
            rest == 0 and ranks >= 1 and (not self.divides or self.divides % ranks == 0)
            and (not self.counts or ranks in self.counts) and (not self.most or ranks <= self.most)
        )  # fmt: skip

    @property
    def fewest(self) -> int:
        """Devices that it allows at least; 0: it allows no number of them."""
        return min((n for n in (c * self.devices_per_rank for c in self.counts or (1,)) if self.allows(n)), default=0)

    def __str__(self) -> str:
        some = [f"{self.devices_per_rank} device{'s' * (self.devices_per_rank > 1)} a rank"]
        some += [f"ranks: {' or '.join(map(str, sorted(self.counts)))}"] * bool(self.counts)
        some += [f"a number of ranks that divides {self.divides}"] * bool(self.divides) + [
            f"at most {self.most} ranks"
        ] * bool(self.most)
        return ", ".join(some)


@dataclass(frozen=True)
class Memory:
    """Bytes on each device of a worker."""

    resident_gib: float = rule(
        0.0, low=0, high=1e9, unit="GiB", doc="as long as the worker is on the device: weights, optimiser, scene"
    )
    per_item_gib: float = rule(
        0.0, low=0, high=1e9, unit="GiB", doc="for each item that a device holds at once during a call"
    )
    sharded: bool = rule(
        False, doc="resident_gib is the total, divided over the devices (else each device holds all of it)"
    )
    shared_gib: float = rule(
        0.0,
        low=0,
        high=1e9,
        unit="GiB",
        doc="besides resident_gib, on each device: weights that it holds together with others",
    )
    shared_as: str = rule(
        "",
        doc="which weights those are: who has the same name here holds them too; a device has them once, however many "
        "of these are there",
    )


@dataclass(frozen=True)
class ModelShape:
    """What decides the roofline of a decode step. It sets bytes of weights against bytes of the key-value cache."""

    layers: int = rule(low=1, high=1_000_000, doc="transformer layers")
    kv_heads: int = rule(low=1, high=1_000_000, doc="key-value heads")
    head_dim: int = rule(low=1, high=1_000_000, doc="size of a head")
    weight_gb: float = rule(above=0, high=1e9, unit="GB", doc="bytes of all weights / 1e9")
    bytes_per_value: float = rule(2.0, above=0, high=1024, doc="2 for bf16")

    @property
    def kv_bytes_per_token(self) -> float:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value


@dataclass(frozen=True)
class Lengths:
    """The distribution of response lengths. It is a completion curve of a measured run, token quantiles, or a mean and
    a maximum.
    """

    max_tokens: float = rule(low=1, high=1e9, unit="tokens", doc="longest response")
    completion: tuple[tuple[float, float], ...] = rule(
        (), doc="(seconds, fraction finished) of a run with all requests started at once"
    )
    quantiles: tuple[tuple[float, float], ...] = rule((), doc="(tokens, fraction of responses not longer)")
    mean_tokens: float | None = rule(
        None, above=0, unit="tokens", doc="mean length, with nothing else known: a log-normal cut at max_tokens"
    )
    sigma: float = rule(0.65, above=0, high=10, doc="spread of that log-normal (of the logarithm)")
    group_correlation: float = rule(
        0.0, low=0, high=1, doc="how alike the lengths of one group are (0 independent, 1 equal)"
    )
    prompt_tokens: float = rule(0.0, low=0, high=1e9, unit="tokens", doc="mean prompt length")
    factor: float = rule(
        1.0, above=0, high=1e6, doc="what if: responses so many times as long as those that were measured"
    )
    tail: float = rule(
        1.0,
        low=0,
        high=16,
        doc="what if: ratio to the median length, to this power (0 all equal, 1 as measured, 2 a longer tail)",
    )


@dataclass(frozen=True)
class WorkerProfile:
    """One worker. ``kind`` chooses its cost model: batch, generation or simulator."""

    samples: tuple[Sample, ...] = rule(
        doc="measurements; two device counts or sizes let the model tell fixed cost from scaling"
    )
    kind: str = rule("batch", choices=KINDS, doc="cost model")
    calls: float = rule(
        1.0,
        above=0,
        high=1e9,
        doc="calls of an iteration, each with the sample's items (steps of an episode); below 1: in some of them",
    )
    exponent: float | None = rule(
        None,
        low=0,
        high=2,
        doc="where samples do not tell: seconds fall with devices to this power (of a generator this part)",
    )
    ranks: RankRule = rule(RankRule(), doc="valid numbers of ranks")
    memory: Memory = rule(Memory(), doc="bytes on a device")
    onload_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="coming to the device")
    offload_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="leaving the device")
    offloadable: bool = rule(True, doc="false: never leaves a device that it uses")
    resource: str = rule("device", choices=RESOURCES, doc="'host': works on processors of its own and takes no device")
    devices: int | None = rule(None, low=1, doc="pinned to exactly so many devices")
    lengths: Lengths | None = rule(None, doc="generation: response lengths")
    model: ModelShape | None = rule(None, doc="generation: identifies the load part from one measurement")
    in_turn: tuple[tuple[str, float], ...] = rule(
        (),
        doc="(producer, part of the seconds), in order, where all of one input is taken before the next; empty: a "
        "batch of each at a time",
    )
    starts_on_device: bool = rule(
        False, doc="takes its devices before its first items are there: its method computes before its first get"
    )
    max_running: int | None = rule(None, low=1, high=10**9, doc="generation: most sequences of one rank at once")


@dataclass(frozen=True)
class EdgeProfile:
    """A stream of items from one worker to another. Edges in both directions make a cell of the two."""

    producer: str = rule(doc="worker that puts")
    consumer: str = rule(doc="worker that gets")
    group: int = rule(
        1, low=1, high=10**9, doc="so many items of one key are needed together (responses to one prompt)"
    )
    whole: bool = rule(
        False,
        doc="the consumer is handed everything of the iteration at once, each rank its share (on-policy training)",
    )
    value: bool = rule(
        False,
        doc="with whole: a value that a call is given, no channel; "
        "the consumer only starts when the producer has ended",
    )
    items: float | None = rule(
        None, above=0, high=1e12, doc="items of an iteration that pass, where it is not the profile's number"
    )

    at_end: bool = rule(
        False,
        doc="the producer puts all of the iteration at its end; the consumer may work on it in batches of its own",
    )
    item_mib: float | None = rule(
        None, low=0, high=1e9, unit="MiB", doc="what one item occupies on its way; null: moving it costs nothing"
    )

    @property
    def channel(self) -> str:
        """The name of its channel in the workflow that a profile describes."""
        name = re.sub(r"\W", "_", f"{self.producer}_to_{self.consumer}")
        return name if name.isidentifier() else f"_{name}"


@dataclass(frozen=True)
class Handover:
    """A call once an iteration that streams nothing. It gives a value to another worker, or is given one (new weights),
    after all that its worker streams.
    """

    worker: str = rule(doc="worker that is called")
    method: str = rule(doc="its method: the name of its spans in a run")
    seconds: float = rule(low=0, high=1e9, unit="s", doc="duration of the call, on however many devices")
    after: tuple[str, ...] = rule(
        (),
        doc="workers whose values it is given: they have ended, and the handovers of theirs that are listed before it",
    )


@dataclass(frozen=True)
class Cell:
    """What is known of a cycle of workers beyond its members."""

    members: tuple[str, ...] = rule(doc="the workers of the cycle")
    sub_batches: tuple[int, ...] = rule(
        (1, 2),
        doc="numbers of sub-batches to consider where members sit apart; one alone: so many, whatever a plan says",
    )
    tokens: int = rule(
        1,
        low=1,
        high=10**9,
        doc="items in the cell at a time, of all ranks of its head, which puts them together and waits for all, "
        "whatever a plan says",
    )
    calibration: float = rule(
        1.0, above=0, high=1e6, doc="measured seconds over the sum of the steps, where that is known"
    )


@dataclass(frozen=True)
class Link:
    """What lies between workers on devices of their own. Every edge has one to itself."""

    gib_per_s: float = rule(above=0, high=1e9, unit="GiB/s", doc="bandwidth")
    latency_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="of each batch that is moved")


@dataclass(frozen=True)
class Message:
    """What a small item costs that goes from one process to another, each way."""

    transport: str = rule(choices=("unix", "tcp"), doc="within a node, or between nodes")
    latency_s: float = rule(
        low=0, high=1e9, unit="s", doc="from its put until its reader goes on, while both do nothing else"
    )
    busy_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="computing at each end: packing and waking, unpacking")


@dataclass(frozen=True)
class DeviceKind:
    """One kind of device, where there are several."""

    name: str = rule(doc="such as 'h100'")
    speed: float = rule(
        1.0, low=1e-6, high=1e6, doc="relative to the first kind, for workers without samples on this kind"
    )
    memory_gib: float | None = rule(
        None, above=0, high=1e9, unit="GiB", doc="memory of one such device; null: device_memory_gib"
    )


@dataclass(frozen=True)
class ProfileFields:
    """What a profile has; see `planning.profile.profile.Profile`."""

    items: int = rule(low=1, high=10**9, doc="items of one iteration")
    workers: Mapping[str, WorkerProfile] = rule(doc="by name")
    edges: tuple[EdgeProfile, ...] = rule((), doc="who feeds whom")
    name: str = rule("profile", doc="for people")
    format: str = rule(FORMAT, choices=(FORMAT,), doc="version of this file format")
    cells: tuple[Cell, ...] = rule((), doc="more about cycles")
    handovers: tuple[Handover, ...] = rule(
        (), doc="calls that hand over values after the streams (new weights), in the order in which they are made"
    )
    kinds: tuple[DeviceKind, ...] = rule(
        (), doc="kinds of devices; the first is what samples and memory mean by default"
    )
    device_memory_gib: float | None = rule(
        None, above=0, high=1e9, unit="GiB", doc="memory of one device; null: everything fits"
    )
    link: Link | None = rule(None, doc="between devices, for edges with item_mib; null: moving items costs nothing")
    messages: tuple[Message, ...] = rule((), doc="between processes, for each transport; none: a message costs nothing")
    weights: str = rule("equal", choices=("equal", "tokens"), doc="what a generated item weighs downstream")
    fingerprint: Fingerprint | None = rule(
        None, doc="where it was measured; null when that is not known (written by hand, read off a timeline)"
    )
    notes: tuple[str, ...] = rule((), doc="for people")
