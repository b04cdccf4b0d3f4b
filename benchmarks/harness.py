"""Runs the benchmarks of this folder and writes ``results/NAME.json``; ``docs/benchmarks.md`` is made from those files.

    python benchmarks/harness.py [NAME ...] [--smoke] [--case TEXT]

A benchmark module has ``cases(smoke) -> list[Case]``. Ours and the peer run alternately, in the same minutes; the ratio is the median of
the pairwise ratios. ``--smoke`` runs everything at a tiny size and writes nothing. ``--case`` measures only the cases with that text in their name;
the other rows of the file stay as they were measured. What never came to its end counts as infinite, and is null in the file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = (
    "import_time", "engine", "simulator", "planner_optimality", "planner_search", "planner_regret", "what_if", "workflow_overhead", "prediction_error", "modes_real_job",
    "switching", "simulators", "asynchronous", "socket_cost", "channels", "recorder", "timeline_fps", "event_to_screen",
    "front_door", "auto_plan", "generation", "length_replay", "staleness_model", "idle_shares", "tool_cell", "stream_gain", "dispatch", "grpo_small_model",
    "cloning", "clone_then_rl", "off_policy", "async_collect",
)  # fmt: skip
WITH_GPU = ("gpu",)
LEARNING = ("sac_mujoco", "rlpd", "td3_bc")  # only when named: hours (make bench-learn: the first)
WITH_WARP = ("warp_arm",)  # only when named, on a GPU machine: MuJoCo Warp has an environment of its own
WITH_VLLM = ("generation_vllm",)  # only when named: vLLM has an environment of its own


@dataclass
class Case:
    """One row. ``ours`` and ``peer`` measure once and return a number in ``unit``; ``target`` reads like ">= 10" on the ratio or value."""

    case: str
    unit: str
    ours: Callable[[], float]
    peers: dict[str, Callable[[], float]] = field(default_factory=dict)
    target: str = ""
    target_of: str = "ratio"
    runs: int = 5
    note: str = ""
    curve: Callable[[], list[list[float]]] | None = None


def machine() -> dict[str, Any]:
    import importlib.metadata as metadata

    import psutil

    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.processor())
    versions = {p: metadata.version(p) for p in ("ray", "torch", "numpy")}
    return {
        "cpu": model, "cores": len(psutil.Process().cpu_affinity()), "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpu": gpu(), "python": platform.python_version(), "versions": versions,
        **({"priority": "real time, the machine was shared"} if os.sched_getscheduler(0) != os.SCHED_OTHER else {}),
    }  # fmt: skip


def gpu() -> str | None:
    """The name of the first one that torch can use; torch is not imported where there is none."""
    from rlinf_lab.runtime.machine.devices import gpus

    if not gpus().usable:
        return None
    import torch

    return torch.cuda.get_device_name(0)


def summary(values: list[float]) -> dict[str, Any]:
    finite = lambda value: value if math.isfinite(value) else None  # noqa: E731
    return {"median": finite(statistics.median(values)), "min": finite(min(values)), "max": finite(max(values)), "runs": len(values)}


def measure(case: Case, runs: int) -> dict[str, Any]:
    ours: list[float] = []
    peers: dict[str, list[float]] = {name: [] for name in case.peers}
    for _ in range(runs):
        ours.append(case.ours())
        for name, peer in case.peers.items():
            peers[name].append(peer())
    row: dict[str, Any] = {"case": case.case, "unit": case.unit, "ours": summary(ours), "peers": {n: summary(v) for n, v in peers.items()}}
    if peers:
        first = next(iter(peers.values()))
        ratios = [a / b if math.isfinite(a) else math.inf for a, b in zip(ours, first, strict=True)]
        row["ratio"] = statistics.median(ratios)
        row["ratios"] = [value if math.isfinite(value) else None for value in (min(ratios), max(ratios))]
    if case.target:
        sign, bound = case.target.split()
        value = row.get("ratio") if case.target_of == "ratio" else row["ours"]["median"]
        row["target"] = f"{case.target_of} {case.target}"
        row["met"] = bool(value is not None and (value >= float(bound) if sign == ">=" else value <= float(bound)))
    if case.curve is not None:
        row["curve"] = case.curve()
    row["note"] = case.note
    return row


def run(name: str, smoke: bool, wanted: str = "") -> dict[str, Any]:
    cases = [case for case in importlib.import_module(name).cases(smoke) if wanted in case.case]
    rows = []
    for case in cases:
        row = measure(case, 1 if smoke else case.runs)
        rows.append(row)
        print(f"{row['case']}: {_number(row['ours']['median'])} {row['unit']}" + (f", ratio {row['ratio']:.3g}" if "ratio" in row else ""), flush=True)
    return {"benchmark": name, "machine": machine(), "date": time.strftime("%Y-%m-%d"), "rows": rows}


def table() -> str:
    lines = ["# Benchmarks", "", "Made from `benchmarks/results/*.json` by `make bench`; median (min to max).", ""]
    lines += ["| case | ours | peer | ratio | target | met | note |", "|---|---|---|---|---|---|---|"]
    for path in sorted((HERE / "results").glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            peer = "; ".join(f"{n}: {_spread(v)}" for n, v in row["peers"].items()) or "–"
            ratio = f"{row['ratio']:.3g}" + _range(row.get("ratios")) if "ratio" in row else "–"
            met = {True: "yes", False: "**no**"}.get(row.get("met"), "–")
            lines.append(f"| {row['case']} | {_spread(row['ours'])} {row['unit']} | {peer} | {ratio} | {row.get('target', '–')} | {met} | {row['note']} |")
    return "\n".join(lines) + "\n"


def _spread(v: dict[str, Any]) -> str:
    return f"{_number(v['median'])} ({_number(v['min'])} to {_number(v['max'])})"


def _range(ends: list[float | None] | None) -> str:
    """Rows that were measured earlier have none."""
    return "" if ends is None else f" ({_number(ends[0])} to {_number(ends[1])})"


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.4g}"


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The rows of both, measured anew where there are new ones."""
    fresh = {row["case"]: row for row in new["rows"]}
    rows = [fresh.pop(row["case"], row) for row in old["rows"]]
    return {**new, "rows": [*rows, *fresh.values()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = [*NAMES, *WITH_GPU, *LEARNING, *WITH_WARP, *WITH_VLLM]
    parser.add_argument("names", nargs="*", default=[*NAMES, *WITH_GPU] if gpu() else list(NAMES))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--case", default="", help="a part of the cases' names")
    given = parser.parse_args()
    sys.path.insert(0, str(HERE))
    for name in given.names:
        if name not in every:
            parser.error(f"no benchmark {name!r}; there are {', '.join(every)}")
        if name in WITH_GPU and not gpu():
            parser.error(f"benchmark {name!r} needs a GPU, and torch can use none here. Next: `rlinf-lab doctor` says why.")
        result, file = run(name, given.smoke, given.case), HERE / "results" / f"{name}.json"
        if not given.smoke:
            file.parent.mkdir(exist_ok=True)
            if given.case and file.exists():
                result = merged(json.loads(file.read_text()), result)
            file.write_text(json.dumps(result, indent=1) + "\n")
    if not given.smoke:
        (HERE.parent / "docs" / "benchmarks.md").write_text(table())


if __name__ == "__main__":
    main()
