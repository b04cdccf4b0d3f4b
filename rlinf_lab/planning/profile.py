# ruff: noqa: RUF009 (rule() makes dataclass fields)
"""A profile: what the workers of a workflow cost, as data. JSON with units, measured, written by hand or edited.

Units are in the names: ``_s`` seconds, ``_gib`` gibibytes of one device, ``items`` counts of one iteration. `docs/profile.md` explains
every field with examples; `rlinf_lab.planning.costs` fits models to it; `rlinf_lab.planning.search` plans with them.

>>> profile = Profile.from_dict({
...     "name": "two stages", "items": 64,
...     "workers": {
...         "sampler": {"samples": [{"devices": 1, "items": 64, "seconds": 8.0}]},
...         "learner": {"samples": [{"devices": 1, "items": 64, "seconds": 4.0}]},
...     },
...     "edges": [{"producer": "sampler", "consumer": "learner"}],
... })
>>> profile.workers["learner"].samples[0].seconds
4.0
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.planning.fingerprint import Fingerprint
from rlinf_lab.planning.profile_checks import check_profile
from rlinf_lab.planning.reading import known, listing, read, rule
from rlinf_lab.timeline.files import whole

FORMAT = "rlinf_lab.profile/1"
KINDS = ("batch", "generation", "simulator")
RESOURCES = ("device", "host")


@dataclass(frozen=True)
class Sample:
    """One measurement: ``items`` in ``seconds`` of one call, spread over ``devices``."""

    devices: int = rule(low=0, high=1_000_000, doc="devices that worked on it together (0 for a worker on the host)")
    items: float = rule(above=0, high=1e12, doc="items of the measured call, over all its devices")
    seconds: float = rule(low=0, high=1e9, unit="s", doc="duration of the call")
    beside: tuple[str, ...] = rule((), doc="workers that occupied the same devices meanwhile (they leave less memory)")
    peak_gib: float | None = rule(None, low=0, high=1e9, unit="GiB", doc="most memory of one device during the call")
    outputs: tuple[tuple[float, float], ...] = rule((), doc="(seconds since the start, fraction of the outputs that had appeared)")
    kind: str = rule("", doc="kind of device it was measured on; empty: the first of profile.kinds")

    def scaled(self, factor: float) -> Sample:
        """As if all had taken so many times as long, the way to each output too."""
        outputs = tuple((at * factor, part) for at, part in self.outputs)
        return dataclasses.replace(self, seconds=self.seconds * factor, outputs=outputs)


@dataclass(frozen=True)
class RankRule:
    """Which numbers of ranks a worker can have. A device count is valid when ``devices / devices_per_rank`` is such a number."""

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
        some += [f"a number of ranks that divides {self.divides}"] * bool(self.divides) + [f"at most {self.most} ranks"] * bool(self.most)
        return ", ".join(some)


@dataclass(frozen=True)
class Memory:
    """Bytes on each device of a worker."""

    resident_gib: float = rule(0.0, low=0, high=1e9, unit="GiB", doc="as long as the worker is on the device: weights, optimiser, scene")
    per_item_gib: float = rule(0.0, low=0, high=1e9, unit="GiB", doc="for each item that a device holds at once during a call")
    sharded: bool = rule(False, doc="resident_gib is the total, divided over the devices (else each device holds all of it)")


@dataclass(frozen=True)
class ModelShape:
    """What decides the roofline of a decode step: bytes of weights against bytes of the key-value cache."""

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
    """Distribution of response lengths: a completion curve of a measured run, token quantiles, or a mean and a maximum."""

    max_tokens: float = rule(above=0, high=1e9, unit="tokens", doc="longest response")
    completion: tuple[tuple[float, float], ...] = rule((), doc="(seconds, fraction finished) of a run with all requests started at once")
    quantiles: tuple[tuple[float, float], ...] = rule((), doc="(tokens, fraction of responses not longer)")
    mean_tokens: float | None = rule(None, above=0, unit="tokens", doc="mean length, with nothing else known: a log-normal cut at max_tokens")
    sigma: float = rule(0.65, above=0, high=10, doc="spread of that log-normal (of the logarithm)")
    group_correlation: float = rule(0.0, low=0, high=1, doc="how alike the lengths of one group are (0 independent, 1 equal)")
    prompt_tokens: float = rule(0.0, low=0, high=1e9, unit="tokens", doc="mean prompt length")
    factor: float = rule(1.0, above=0, high=1e6, doc="what if: responses so many times as long as those that were measured")
    tail: float = rule(1.0, low=0, high=16, doc="what if: ratio to the median length, to this power (0 all equal, 1 as measured, 2 a longer tail)")


@dataclass(frozen=True)
class WorkerProfile:
    """One worker. ``kind`` chooses its cost model: batch, generation or simulator."""

    samples: tuple[Sample, ...] = rule(doc="measurements; two device counts or sizes let the model tell fixed cost from scaling")
    kind: str = rule("batch", choices=KINDS, doc="cost model")
    calls: float = rule(1.0, above=0, high=1e9, doc="calls of an iteration, each with the sample's items (steps of an episode)")
    exponent: float | None = rule(None, low=0, high=2, doc="where samples do not tell: seconds fall with devices to this power (of a generator this part)")
    ranks: RankRule = rule(RankRule(), doc="valid numbers of ranks")
    memory: Memory = rule(Memory(), doc="bytes on a device")
    onload_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="coming to the device")
    offload_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="leaving the device")
    offloadable: bool = rule(True, doc="false: never leaves a device that it uses")
    resource: str = rule("device", choices=RESOURCES, doc="'host': works on processors of its own and takes no device")
    devices: int | None = rule(None, low=1, doc="pinned to exactly so many devices")
    lengths: Lengths | None = rule(None, doc="generation: response lengths")
    model: ModelShape | None = rule(None, doc="generation: identifies the load part from one measurement")
    max_running: int | None = rule(None, low=1, high=10**9, doc="generation: most sequences of one rank at once")


@dataclass(frozen=True)
class EdgeProfile:
    """A stream of items from one worker to another. Edges in both directions make a cell of the two."""

    producer: str = rule(doc="worker that puts")
    consumer: str = rule(doc="worker that gets")
    group: int = rule(1, low=1, high=10**9, doc="so many items of one key are needed together (responses to one prompt)")
    whole: bool = rule(False, doc="the consumer starts when everything of the iteration is there (on-policy training)")
    items: float | None = rule(None, above=0, high=1e12, doc="items of an iteration that pass, where it is not the profile's number")

    item_mib: float | None = rule(None, low=0, high=1e9, unit="MiB", doc="what one item occupies on its way; null: moving it costs nothing")

    @property
    def channel(self) -> str:
        """The name of its channel in the workflow that a profile describes."""
        name = re.sub(r"\W", "_", f"{self.producer}_to_{self.consumer}")
        return name if name.isidentifier() else f"_{name}"


@dataclass(frozen=True)
class Cell:
    """What is known of a cycle of workers beyond its members."""

    members: tuple[str, ...] = rule(doc="the workers of the cycle")
    sub_batches: tuple[int, ...] = rule((1, 2), doc="numbers of sub-batches to consider when the members sit on devices of their own")
    calibration: float = rule(1.0, above=0, high=1e6, doc="measured seconds over the sum of the steps, where that is known")


@dataclass(frozen=True)
class Link:
    """What lies between workers on devices of their own. Every edge has one to itself."""

    gib_per_s: float = rule(above=0, high=1e9, unit="GiB/s", doc="bandwidth")
    latency_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="of each batch that is moved")


@dataclass(frozen=True)
class Message:
    """What a small item costs that goes from one process to another, each way."""

    transport: str = rule(choices=("unix", "tcp"), doc="within a node, or between nodes")
    latency_s: float = rule(low=0, high=1e9, unit="s", doc="from its put until its reader goes on, while both do nothing else")
    busy_s: float = rule(0.0, low=0, high=1e9, unit="s", doc="computing at each end: packing and waking, unpacking")


@dataclass(frozen=True)
class DeviceKind:
    """One kind of device, where there are several."""

    name: str = rule(doc="such as 'h100'")
    speed: float = rule(1.0, above=0, high=1e6, doc="relative to the first kind, for workers without samples on this kind")
    memory_gib: float | None = rule(None, above=0, high=1e9, unit="GiB", doc="memory of one such device; null: device_memory_gib")


@dataclass(frozen=True)
class Profile:
    """See the module's docstring. Immutable: `replace` makes a changed copy."""

    items: int = rule(low=1, high=10**9, doc="items of one iteration")
    workers: Mapping[str, WorkerProfile] = rule(doc="by name")
    edges: tuple[EdgeProfile, ...] = rule((), doc="who feeds whom")
    name: str = rule("profile", doc="for people")
    format: str = rule(FORMAT, choices=(FORMAT,), doc="version of this file format")
    cells: tuple[Cell, ...] = rule((), doc="more about cycles")
    kinds: tuple[DeviceKind, ...] = rule((), doc="kinds of devices; the first is what samples and memory mean by default")
    device_memory_gib: float | None = rule(None, above=0, high=1e9, unit="GiB", doc="memory of one device; null: everything fits")
    link: Link | None = rule(None, doc="between devices, for edges with item_mib; null: moving items costs nothing")
    messages: tuple[Message, ...] = rule((), doc="between processes, for each transport; none: a message costs nothing")
    weights: str = rule("equal", choices=("equal", "tokens"), doc="what a generated item weighs downstream")
    fingerprint: Fingerprint | None = rule(None, doc="where it was measured; null when that is not known (written by hand, read off a timeline)")
    notes: tuple[str, ...] = rule((), doc="for people")

    def __post_init__(self) -> None:
        check_profile(self)

    # --- JSON ---------------------------------------------------------------------------------------------
    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """A checked profile. `UnknownNameError` or `ConfigError` naming the field (``workers.learner.samples[0].seconds``)."""
        return read(cls, data, "profile")

    @classmethod
    def from_json(cls, text: str) -> Profile:
        if not isinstance(text, str):
            raise ConfigError(f"Profile.from_json({shown(text)}): JSON as text is needed. Next: Profile.load(path) reads a file.")
        try:
            data = json.loads(text, object_pairs_hook=_distinct)
        except json.JSONDecodeError as error:
            raise ConfigError(f"The profile is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from error
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
            raise ConfigError(f"The profile is not JSON that can be read: {error}.") from error
        return cls.from_dict(data)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a JSON file."""
        file = _path(path)
        try:
            if not file.is_file():
                folder = file if file.is_dir() else file.parent
                near = sorted(p.name for p in folder.glob("*.json"))[:5] if folder.is_dir() else []
                raise ConfigError(f"No profile at {str(path)!r}. JSON files there: {listing(near)}.")
            return cls.from_json(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{str(path)!r} is no JSON: byte {error.start} is no text. Next: a file that profile.save(path) wrote.") from error
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"The profile {str(path)!r} cannot be read: {error}.") from error

    def to_dict(self) -> dict[str, Any]:
        """Plain values; fields that have their default are left out."""
        return _plain(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def save(self, path: str | Path) -> None:
        try:
            with whole(_path(path)) as target:
                target.write_text(self.to_json() + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"The profile cannot be written to {str(path)!r}: {error}.") from error

    # --- asking -------------------------------------------------------------------------------------------
    def replace(self, **changes: Any) -> Profile:
        return dataclasses.replace(self, **changes)

    def with_worker(self, name: str, **changes: Any) -> Profile:
        """A copy in which fields of one worker are changed."""
        known("worker", name, self.workers, "profile.workers")
        changed = dataclasses.replace(self.workers[name], **changes)
        return self.replace(workers={**self.workers, name: changed})

    def scaled(self, worker: str, factor: float) -> Profile:
        """A copy in which every second of a worker's samples is multiplied: an error of measurement, or a faster device."""
        known("worker", worker, self.workers, "profile.workers")
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 <= factor < float("inf"):
            raise ConfigError(f"scaled({worker!r}, {shown(factor)}): a factor, at least 0; 1.1 for ten percent more.")
        return self.with_worker(worker, samples=tuple(s.scaled(factor) for s in self.workers[worker].samples))

    def stale(self, here: Fingerprint | None = None) -> tuple[str, ...]:
        """What differs between the machine that measured and this one; empty when the profile is fresh (or was written by hand)."""
        return () if self.fingerprint is None else self.fingerprint.differences(here or Fingerprint.here())

    def __repr__(self) -> str:
        origin = "no fingerprint" if self.fingerprint is None else f"measured on {self.fingerprint}"
        lines = [f"Profile {self.name!r}: {self.items} items an iteration, {origin}"]
        for name, w in self.workers.items():
            sizes = "; ".join(f"{s.seconds:g} s for {s.items:g} on {s.devices}" + f" beside {'+'.join(s.beside)}" * bool(s.beside) for s in w.samples)
            calls = f", {w.calls:g} calls" if w.calls != 1 else ""
            lines.append(f"  {name:<12} {w.kind}{calls}: {sizes}")
        for e in self.edges:
            notes = [f"groups of {e.group}"] * (e.group > 1) + ["whole batch first"] * e.whole
            lines.append(f"  {e.producer} --> {e.consumer}" + f" ({', '.join(notes)})" * bool(notes))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(n)}</th><td>{w.kind}</td><td>{len(w.samples)}</td>"
            f"<td>{min(s.seconds for s in w.samples):g} to {max(s.seconds for s in w.samples):g} s</td>"
            f"<td>{w.memory.resident_gib:g} GiB</td><td>{w.onload_s:g} / {w.offload_s:g} s</td></tr>"
            for n, w in self.workers.items()
        )
        head = "".join(f"<th>{h}</th>" for h in ("worker", "model", "samples", "seconds", "resident", "onload / offload"))
        return f"<div><b>Profile {escape(self.name)}</b>, {self.items} items<table><tr>{head}</tr>{rows}</table></div>"


def _path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{shown(path)} is no path. Next: a text such as 'profile.json'.")
    return Path(path)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose names may not be given twice: one of the two would count for nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"The profile gives {shown(twice)} twice in one object: the fields {listing(names[:8])}. Next: one of the two.")
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if f.name == "format" or item != f.default:
                found[f.name] = _plain(item)
        return found
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


__all__ = [
    "Cell", "DeviceKind", "EdgeProfile", "Fingerprint", "Lengths", "Link", "Memory", "Message", "ModelShape", "Profile", "RankRule", "Sample", "WorkerProfile",
]  # fmt: skip
