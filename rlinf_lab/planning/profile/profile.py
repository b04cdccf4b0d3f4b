"""A profile: what the workers of a workflow cost, as data. JSON with units, measured, written by hand or edited.

Units are in the names: ``_s`` seconds, ``_gib`` gibibytes of one device, ``items`` counts of one iteration.
`docs/profile.md` explains every field with examples; `rlinf_lab.planning.costs` fits models to it;
`rlinf_lab.planning.search` plans with them.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_lab.errors import ConfigError, counted, shown, with_old_names
from rlinf_lab.planning.profile.checks import check_profile
from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.profile.parts import (
    Cell,
    DeviceKind,
    EdgeProfile,
    Handover,
    Lengths,
    Link,
    Memory,
    Message,
    ModelShape,
    ProfileFields,
    RankRule,
    Sample,
    WorkerProfile,
)  # fmt: skip
from rlinf_lab.planning.schema.files import json_in, read_text, write_text
from rlinf_lab.planning.schema.json_schema import known, listing, read
from rlinf_lab.timeline.record.clock import seconds_shown


@with_old_names({"unit": "group_size"})
@dataclass(frozen=True)
class Profile(ProfileFields):
    """See the module's docstring. Immutable: `replace` makes a changed copy."""

    def __post_init__(self) -> None:
        check_profile(self)

    # --- JSON ---------------------------------------------------------------------------------------------
    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """A checked profile. `UnknownNameError` or `ConfigError` naming the field
        (``workers.learner.samples[0].seconds``).
        """
        return read(cls, data, "profile")

    @classmethod
    def from_json(cls, text: str) -> Profile:
        return cls._parsed(text, "The profile")

    @classmethod
    def _parsed(cls, text: str, it: str) -> Profile:
        """``it``: what to call the text."""
        return cls.from_dict(json_in(text, it, "profile", ConfigError, "mend it there; docs/profile.md has examples"))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a JSON file."""
        return cls._parsed(read_text(path, "profile", ConfigError), f"The profile {str(path)!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; fields that have their default are left out."""
        return _plain(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def save(self, path: str | Path) -> None:
        write_text(path, self.to_json(), "profile", ConfigError)

    # --- asking -------------------------------------------------------------------------------------------
    def replace(self, **changes: Any) -> Profile:
        """A copy in which some fields are changed. `UnknownNameError` for what is none."""
        for field in changes:
            known("profile field", field, [f.name for f in dataclasses.fields(self)], f"profile.replace({field}=...)")
        return dataclasses.replace(self, **changes)

    def with_worker(self, name: str, **changes: Any) -> Profile:
        """A copy in which fields of one worker are changed. `UnknownNameError` for a worker or field that
        there is not.
        """
        known("worker", name, self.workers, "profile.workers")
        for field in changes:
            known(
                "worker field",
                field,
                [f.name for f in dataclasses.fields(self.workers[name])],
                f"profile.with_worker({name!r}, {field}=...)",
            )
        return self.replace(workers={**self.workers, name: dataclasses.replace(self.workers[name], **changes)})

    def group_size(self, worker: str) -> int:
        """How many of its items make a group, which a rank has as a whole."""
        fed = [e.group for e in self.edges if e.consumer == worker]
        made = [e.group for e in self.edges if e.producer == worker and self.workers[worker].kind == "batch"]
        return max(fed or made, default=1)

    def scaled(self, worker: str, factor: float) -> Profile:
        """A copy in which every second of a worker's samples is multiplied. It stands for an error of measurement, or a
        faster device.
        """
        known("worker", worker, self.workers, "profile.workers")
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 <= factor < float("inf"):
            raise ConfigError(
                f"scaled({worker!r}, {shown(factor)}): a factor, at least 0; 1.1 for ten percent more. Next: "
                f"scaled({worker!r}, 1.1)."
            )
        return self.with_worker(worker, samples=tuple(s.scaled(factor) for s in self.workers[worker].samples))

    def stale(self, here: Fingerprint | None = None) -> tuple[str, ...]:
        """What differs between the machine that measured and this one. Empty when the profile is fresh (or was written
        by hand).
        """
        return () if self.fingerprint is None else self.fingerprint.differences(here or Fingerprint.here())

    def __repr__(self) -> str:
        origin = "no fingerprint" if self.fingerprint is None else f"measured on {self.fingerprint}"
        lines = [f"Profile {self.name!r}: {counted(self.items, 'item')} an iteration, {origin}"]
        for name, w in self.workers.items():
            sizes = "; ".join(
                f"{s.seconds:g} s for {s.items:g} on {s.devices}" + f" beside {'+'.join(s.beside)}" * bool(s.beside)
                for s in w.samples
            )
            calls = f", {w.calls:g} calls" if w.calls != 1 else ""
            lines.append(f"  {name:<12} {w.kind}{calls}: {sizes}")
        for e in self.edges:
            habits = _habits(e)
            lines.append(f"  {e.producer} --> {e.consumer}" + f" ({habits})" * bool(habits))
        for c in self.cells:
            kept = f"{c.tokens} items go round together, or " if c.tokens > 1 else ""
            lines.append(
                f"  cell {' + '.join(c.members)}: {kept}sub-batches {' or '.join(map(str, c.sub_batches))}".replace(
                    ", or sub-batches 1", ""
                )
            )
        for h in self.handovers:
            lines.append(
                f"  then {h.worker}.{h.method}(): {h.seconds:g} s" + f", after {listing(list(h.after))}" * bool(h.after)
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(n)}</th><td>{w.kind}</td><td>{len(w.samples)}</td>"
            f"<td>{' to '.join(dict.fromkeys(seconds_shown(of(s.seconds for s in w.samples)) for of in (min, max)))}"
            f"</td><td>{w.memory.resident_gib:.4g} GiB</td>"
            f"<td>{seconds_shown(w.onload_s)} / {seconds_shown(w.offload_s)}</td></tr>"
            for n, w in self.workers.items()
        )
        head = "".join(
            f"<th>{h}</th>" for h in ("worker", "model", "samples", "seconds", "resident", "onload / offload")
        )
        habits = [f"{e.producer} to {e.consumer}: {said}" for e in self.edges if (said := _habits(e))]
        notes = "".join(f"<br><small>{escape(note)}</small>" for note in (*habits, *self.notes))
        return (
            f"<div><b>Profile {escape(self.name)}</b>, {self.items} "
            f"items<table><tr>{head}</tr>{rows}</table>{notes}</div>"
        )


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
    "Cell", "DeviceKind", "EdgeProfile", "Fingerprint", "Handover", "Lengths", "Link", "Memory", "Message",
    "ModelShape", "Profile", "RankRule", "Sample",
    "WorkerProfile",
]  # fmt: skip


def _habits(edge: EdgeProfile) -> str:
    """How items pass where they do not just stream."""
    notes = [f"groups of {edge.group}"] * (edge.group > 1) + [
        "its value first" if edge.value else "whole batch first"
    ] * edge.whole
    return ", ".join(notes + ["all at the end"] * edge.at_end)
