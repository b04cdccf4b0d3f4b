"""Runs under a mock clock, and the profiles that are read off them."""

from __future__ import annotations

import numpy as np

import rlinf_lab as lab
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline


def run(flow: lab.Workflow, plan: lab.ExecutionPlan | lab.Planned, iterations: int = 4) -> lab.Run:
    done = lab.run(flow, plan, iterations, dashboard=False, clock=MockClock())
    done.wait()
    spans = done.timeline.spans
    assert (spans["end"] > spans["start"])[np.isin(spans["kind"], (SpanKind.LOCK, SpanKind.WAIT))].all(), "only waits that took time are shown"
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


def under(truth: Profile, planned: lab.Planned) -> Placement:
    """The plan's seats, with workers that cost what is true."""
    setting, placement = planned.candidate.placement.setting, planned.candidate.placement
    return Placement(Setting.of(truth, setting.devices, setting.micro_batches), placement.arrangement, placement.tree)


def run_of(planned: lab.Planned, truth: Profile, iterations: int = 9, noise: float = 0.0) -> Timeline:
    """A run under a plan whose workers really cost what ``truth`` says."""
    return forecast(under(truth, planned), iterations, planned.devices, noise)
