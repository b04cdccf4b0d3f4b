"""``rlinf-lab plan`` and ``rlinf-lab simulate``: what they take, and what they print."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_lab.errors import ConfigError, PlanError, shown
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import Planned, Plans, plan, planned
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.files import read_text
from rlinf_lab.timeline.timeline import Timeline

Writer = Callable[[Timeline, Path], None]


@dataclass(frozen=True)
class PlanCommand:
    """Search for plans from a profile. Which placement for so many devices, will it fit, where will the time go."""

    profile: Path
    """profile as JSON (docs/profile.md)"""
    devices: str
    """how many devices: 64, or of several kinds h100=32,a100=16"""
    memory_gib: float | None = None
    """GiB of one device (default: the profile's)"""
    staleness: int = 0
    """how many iterations old a rollout's weights may be; 0: synchronous"""
    micro_batches: int = 64
    """most micro-batches of an iteration"""
    rule: str = "fitted"
    """cost rule: fitted, or rlinf (the public placement tool's formulas)"""
    modes: str = "temporal,spatial,hybrid"
    """which modes to consider"""
    json: bool = False
    """print JSON instead of a table"""
    save: Path | None = None
    """write the plan (plan: the fastest; simulate: the chosen one) as JSON, for simulate --plan and ExecutionPlan.load"""

    def plans(self) -> Plans:
        return plan(
            Profile.load(self.profile), counts(self.devices), memory_gib=self.memory_gib, staleness=self.staleness, micro_batches=self.micro_batches,
            rule=self.rule, modes=tuple(m.strip() for m in self.modes.split(",")),
        )  # fmt: skip

    def run(self, write: Writer) -> int:
        """Print the ranked plans; the exit status. ``write``: of a timeline to a file."""
        plans = self.plans()
        self.keep(plans.best)
        show(plans.to_json() if self.json else str(plans))
        return 0

    def keep(self, chosen: Planned) -> None:
        """Write a plan where it shall be saved."""
        if self.save is not None:
            chosen.execution.save(self.save)


@dataclass(frozen=True)
class SimulateCommand(PlanCommand):
    """Run a plan through the scheduler in virtual time.

    Seconds of each iteration, what the devices do, the timeline as a file.
    """

    devices: str = ""
    """how many devices: 64, or of several kinds h100=32,a100=16; of a plan in a file as many as it has"""
    plan: str = ""
    """name, mode or shape of the plan (default: the fastest), or a file FILE.json (--save), perhaps edited"""
    iterations: int = 3
    """how many; the first one includes coming to the devices"""
    noise: float = 0.0
    """relative standard deviation of every duration"""
    seed: int = 0
    """of the noise"""
    out: Path | None = None
    """write the timeline: .html (interactive), .json or .gz (Perfetto), .parquet, .svg or .png"""

    def run(self, write: Writer) -> int:
        """Print the simulation; the exit status."""
        chosen = self.chosen()
        self.keep(chosen)
        timeline = chosen.simulate(self.iterations, self.noise, self.seed)
        if self.out is not None:
            try:
                write(timeline, self.out)
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(f"The timeline cannot be written to {str(self.out)!r}: {why}. Next: --out in a folder that exists.") from error
        report = simulation(chosen, timeline)
        show(json.dumps(report, indent=1) if self.json else _text(report))
        return 0

    def chosen(self) -> Planned:
        if self.plan.lower().endswith(".json") or (self.plan and not self.devices and Path(self.plan).exists()):
            return self._given()
        if not self.devices:
            raise ConfigError("--devices is missing: plans are searched for so many. Next: --devices 64, or --plan FILE.json with a plan that was saved.")
        plans = self.plans()
        return plans[self.plan] if self.plan else plans.best

    def _given(self) -> Planned:
        """The plan of a file."""
        for flag in ("staleness", "micro_batches", "modes"):
            if getattr(self, flag) != PlanCommand.__dataclass_fields__[flag].default:
                raise ConfigError(f"--{flag} together with --plan {self.plan}: what the plan of a file says counts. Next: without it, or change the file.")
        text = read_text(self.plan, "plan", PlanError)
        if _is_a_list_of_plans(text):
            raise PlanError(f"{self.plan!r} is what `rlinf-lab plan --json` prints, which names no devices. Next: rlinf-lab plan ... --save {self.plan}.")
        made = ExecutionPlan.from_json(text)
        return planned(Profile.load(self.profile), made, devices=counts(self.devices) if self.devices else None, memory_gib=self.memory_gib, rule=self.rule)


def _is_a_list_of_plans(text: str) -> bool:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and isinstance(data.get("plans"), list) and "placements" not in data


def show(text: str) -> None:
    """Print, down to the last byte. `ConfigError` where that cannot be (a full disk); whoever has read enough of a pipe is told by `BrokenPipeError`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its end goes there
        raise ConfigError(f"The output cannot be written: {error.strerror or error}. Next: another file, or a disk with room.") from error


def counts(text: str) -> int | Mapping[str, int]:
    """``"64"`` or ``"h100=32,a100=16"``."""
    try:
        if "=" not in text:
            return int(text)
        pairs = [(kind.strip(), int(count)) for kind, count in (part.split("=") for part in text.split(","))]
        if not all(kind for kind, _ in pairs):
            raise ValueError("a kind without a name")
    except ValueError as error:
        wanted = "a number such as 64, or a number of each kind such as h100=32,a100=16"
        raise ConfigError(f"--devices is {shown(text)}; give {wanted}. Next: --devices 8, or the kinds in the profile.") from error
    found = dict(pairs)
    for kind in found:
        if len(given := [n for name, n in pairs if name == kind]) > 1:
            together = ",".join(f"{name}={sum(given) if name == kind else n}" for name, n in found.items())
            raise ConfigError(f"--devices names {kind!r} more than once: {' and '.join(map(str, given))}. Next: --devices {together}, if that is all.")
    return found


def in_flags(said: str) -> str:
    """What an error says of keywords of `plan`, as flags. ``memory_gib=90`` is ``--memory-gib 90``."""
    said = re.sub(r"\bplans\[('[^']*')\]", lambda found: f"--plan {shlex.quote(found[1][1:-1])}", said)
    said = _KEYWORD.sub(lambda found: f"{_flag(found[1])} {_plain(found[2])}", said)
    said = re.sub(r"^devices\['([^']*)'\] is", r"--devices: \1 is", said)
    return re.sub(rf"(^(?=(?:{_NAMES}) is )|(?<=It stands in )(?=devices\.))({_NAMES})", lambda found: _flag(found[2]), said)


_NAMES = "memory_gib|modes|devices|micro_batches|staleness|rule|iterations|noise|seed"
_KEYWORD = re.compile(rf"\b(?:(?<=device_))?({_NAMES})=(\([^)]*\)|\{{[^}}]*\}}|[\w+-]+(?:\.\d+)?)")


def _flag(keyword: str) -> str:
    return "--" + keyword.replace("_", "-")


def _plain(value: str) -> str:
    """``('temporal', 'spatial')`` as ``temporal,spatial``; ``{'H': 4}`` as ``H=4``."""
    return re.sub(r"['(){} ]", "", value).replace(":", "=").rstrip(",")


def simulation(chosen: Planned, timeline: Timeline) -> dict[str, Any]:
    """A simulated timeline in numbers."""
    bubbles = timeline.bubbles()
    causes = dict(zip(bubbles["cause"].astype(str), bubbles["share"].astype(float), strict=True))
    return {
        "plan": chosen.name, "shape": chosen.shape, "workers": dict(chosen.placement),
        "iteration_s": [float(s) for s in timeline.iterations()["seconds"]],
        "busy_share": float(timeline.utilisation().mean()), "idle_share": causes,
    }  # fmt: skip


def _text(report: Mapping[str, Any]) -> str:
    seconds = ", ".join(f"{s:.4g}" for s in report["iteration_s"])
    lines = [f"{report['plan']}: {report['shape']}", f"  seconds of the iterations: {seconds}", f"  devices busy {100 * report['busy_share']:.1f} %"]
    lines += [f"  idle: {cause:<9} {100 * share:.1f} %" for cause, share in report["idle_share"].items() if share >= 0.0005]
    return "\n".join(lines)
