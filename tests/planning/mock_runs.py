"""Runs under a mock clock, and the profiles that are read off them."""

from __future__ import annotations

import numpy as np

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind


def run(flow: lab.Workflow, plan: lab.ExecutionPlan | lab.Planned, iterations: int = 4) -> lab.Run:
    done = lab.run(flow, plan, iterations, dashboard=False, clock=MockClock())
    done.wait()
    return done


def profiled(flow: lab.Workflow) -> Profile:
    """From a run on one device."""
    plan = lab.ExecutionPlan.temporal(flow, ["cpu:0"])
    return lab.planning.profile_from_run(flow, plan, run(flow, plan).timeline)


def seconds(done: lab.Run) -> float:
    """Of the last iteration."""
    return float(done.timeline.iterations()["seconds"].iloc[-1])


def between_ends(done: lab.Run) -> float:
    """Seconds between ends of iterations that overlap."""
    spans = done.timeline.spans
    ends = np.sort(spans[spans["kind"] == SpanKind.MARK]["end"]) / 1e9
    return float((ends[-3] - ends[3]) / (len(ends) - 6))
