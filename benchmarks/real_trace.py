"""A real trace of any size: a PPO run and torch's own profile of a learner, recorded here and now, repeated as often as it takes.

The run has items that travel (arrows), iterations, waits (idle time of every device) and counters; the profile has nested calls, six deep and
more, in bursts.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.run.run import run
from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.widgets.feed import TimelineFeed, message

STEPS = 60  # of the learner, under the profiler


def recorded_run(iterations: int) -> Timeline:
    """PPO on the arm task, policy and simulator on devices of their own."""
    flow = build(PPOConfig.preset("numpy/ReachArm-v0"))
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"simulator": [0], "policy": [1], "learner": [2]})
    done = run(flow, plan, inputs=["train"] * iterations, keep_results=False, emulate=True)
    done.wait(300)
    return done.timeline


def profiled_learner() -> Timeline:
    """Steps of a small net as `torch.profiler` writes them."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Tanh(), torch.nn.Linear(128, 8))
    optimiser, batch = torch.optim.Adam(net.parameters()), torch.randn(64, 64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "torch.json"
        plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as recorder:
            for _ in range(STEPS + 1):
                with record_function("update"):
                    for part in ("loss", "step"):
                        with record_function(part):
                            optimiser.zero_grad()
                            net(batch).square().mean().backward()
                            optimiser.step()
                recorder.step()
        return Timeline.from_chrome(path)


def real_trace(count: int) -> Timeline:
    """At least ``count`` spans, half of each kind: the runs without a gap, the profiles spread over all the time, as one takes them now and then."""
    run_part, profile = recorded_run(12 if count > 100_000 else 2), profiled_learner()
    whole, runs, profiles = Timeline(run_part.devices), *(-(-count // (2 * len(part))) for part in (run_part, profile))
    _repeat(whole, run_part, "run", runs, run_part.elapsed_ns)
    _repeat(whole, profile, "profile", profiles, max(profile.elapsed_ns, runs * run_part.elapsed_ns // profiles))
    return whole


def _repeat(whole: Timeline, part: Timeline, source: str, times: int, period_ns: int) -> None:
    """Add a timeline so often, each time so much later and with iterations of its own."""
    spans, samples, told = part.spans.copy(), part.counter_samples.copy(), int(part.spans["iteration"].max()) + 1
    for field in ("start", "end"):
        spans[field] -= part.start_ns
    samples["time"] -= part.start_ns
    for turn in range(times):
        tables: dict[str, Any] = {} if turn else {"tracks": tuple(part.tracks), "names": tuple(part.names)}
        whole.extend(SpanBatch("local", source, turn, spans.copy(), counters=samples.copy(), **tables))
        for field in ("start", "end"):
            spans[field] += period_ns
        samples["time"] += period_ns
        spans["iteration"] = np.where(spans["iteration"] < 0, -1, spans["iteration"] + told)


def write_message(timeline: Timeline, folder: Path) -> None:
    """What the kernel would send: ``content.json`` with its content and the names of its parts, which are files of their own."""
    content, parts = message([TimelineFeed(timeline).take(final=True)])
    (folder / "content.json").write_text(json.dumps({"content": content, "parts": list(parts)}))
    for name, data in parts.items():
        (folder / f"{name}.bin").write_bytes(data)
