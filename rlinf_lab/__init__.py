"""Build RL workflows in a notebook, see their schedule, run them on Ray.

Runs are watched live.

    import rlinf_lab as lab

Public names are loaded when they are first used, so that the import itself is light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Worker": "rlinf_lab.workflow.worker",
    "TorchWorker": "rlinf_lab.workers.residence",
    "Inbox": "rlinf_lab.workflow.worker",
    "Outbox": "rlinf_lab.workflow.worker",
    "Weights": "rlinf_lab.workflow.weights",
    "Workflow": "rlinf_lab.workflow.workflow",
    "ExecutionPlan": "rlinf_lab.planning.plan.execution_plan",
    "Profile": "rlinf_lab.planning.profile.profile",
    "profile": "rlinf_lab.runtime.profiling.profiler",
    "plan": "rlinf_lab.planning.planner.planner",
    "replan": "rlinf_lab.planning.adapt.replan",
    "estimate": "rlinf_lab.planning.replay.estimate",
    "train": "rlinf_lab.experiments",
    "collect": "rlinf_lab.experiments",
    "teleoperate": "rlinf_lab.experiments",
    "resume": "rlinf_lab.experiments",
    "load_policy": "rlinf_lab.experiments",
    "compare": "rlinf_lab.experiments",
    "runs": "rlinf_lab.experiments",
    "sweep": "rlinf_lab.experiments",
    "linear": "rlinf_lab.recipes.schedules",
    "Run": "rlinf_lab.runtime.run.run",
    "session": "rlinf_lab.runtime.run.run",
    "run": "rlinf_lab.notebook",
    "show": "rlinf_lab.notebook",
    "TimelineView": "rlinf_lab.widgets.timeline_view",
    "PlanExplorer": "rlinf_lab.widgets.explorer",
    "devices": "rlinf_lab.runtime.executors.ray_nodes",
    "shutdown": "rlinf_lab.runtime.executors.ray_start",
    "Timeline": "rlinf_lab.timeline.timeline",
    "envs": "rlinf_lab.vecenv",
    "doctor": "rlinf_lab.checkup",
    "check": "rlinf_lab.runtime.run.preflight",
}

if TYPE_CHECKING:
    from rlinf_lab.checkup import doctor as doctor
    from rlinf_lab.experiments import collect as collect
    from rlinf_lab.experiments import compare as compare
    from rlinf_lab.experiments import load_policy as load_policy
    from rlinf_lab.experiments import resume as resume
    from rlinf_lab.experiments import runs as runs
    from rlinf_lab.experiments import sweep as sweep
    from rlinf_lab.experiments import teleoperate as teleoperate
    from rlinf_lab.experiments import train as train
    from rlinf_lab.notebook import run as run
    from rlinf_lab.notebook import show as show
    from rlinf_lab.planning.adapt.replan import replan as replan
    from rlinf_lab.planning.plan.execution_plan import ExecutionPlan as ExecutionPlan
    from rlinf_lab.planning.planner.planner import plan as plan
    from rlinf_lab.planning.profile.profile import Profile as Profile
    from rlinf_lab.planning.replay.estimate import estimate as estimate
    from rlinf_lab.recipes.schedules import linear as linear
    from rlinf_lab.runtime.executors.ray_nodes import devices as devices
    from rlinf_lab.runtime.executors.ray_start import shutdown as shutdown
    from rlinf_lab.runtime.profiling.profiler import profile as profile
    from rlinf_lab.runtime.run.preflight import check as check
    from rlinf_lab.runtime.run.run import Run as Run
    from rlinf_lab.runtime.run.run import session as session
    from rlinf_lab.timeline.timeline import Timeline as Timeline
    from rlinf_lab.vecenv import envs as envs
    from rlinf_lab.widgets.explorer import PlanExplorer as PlanExplorer
    from rlinf_lab.widgets.timeline_view import TimelineView as TimelineView
    from rlinf_lab.workers.residence import TorchWorker as TorchWorker
    from rlinf_lab.workflow.weights import Weights as Weights
    from rlinf_lab.workflow.worker import Inbox as Inbox
    from rlinf_lab.workflow.worker import Outbox as Outbox
    from rlinf_lab.workflow.worker import Worker as Worker
    from rlinf_lab.workflow.workflow import Workflow as Workflow

_ROOMS = frozenset({"algorithms", "datasets", "errors", "generation", "planning", "profiling", "replay", "tasks", "testing"})
"""packages and modules whose names are reached as ``lab.algorithms.grpo``"""
_MOVED = {
    "timeline_html": "rlinf_lab.widgets.timeline_html",
    "message_costs": "lab.profiling.message_costs",
    "PingPong": "lab.profiling.PingPong",
    "crowding": "lab.profiling.crowding",
    "Crowd": "lab.profiling.Crowd",
    "make_vec": "lab.envs.make_vec",
    "list_envs": "lab.envs.ids",
    "register_env": "lab.envs.register",
    "check_env": "lab.envs.check_env",
    "VecEnv": "lab.envs.VecEnv",
    "EnvSpec": "lab.envs.EnvSpec",
    "Simulator": "lab.planning.Simulator",
    "profile_from_run": "lab.planning.profile_from_run",
    "profile_from_trace": "lab.planning.profile_from_trace",
    "planned": "lab.planning.planned",
    "Scripted": "lab.testing.Scripted",
    "Collected": "lab.testing.Collected",
    "Recorder": "lab.testing.Recorder",
    "WorkerError": "lab.errors.WorkerError",
}
"""flat names of before, for notebooks that were written with them"""
_GONE = {
    "Filler": "a second workflow for that work, run on devices of its own",
    "sensitivity": "for times in (0.5, 2): print(lab.plan(flow, devices, profile.scaled('WORKER', times)).best)",
}
"""what there was, and what to do instead"""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        from rlinf_lab.runtime.threads.main_thread_guard import aside

        return aside(lambda: importlib.import_module(f"rlinf_lab.{name}"))
    if name in _HOME:
        from rlinf_lab.runtime.threads.main_thread_guard import aside

        # Aside: an interrupt in the middle of pandas' import would leave half a pandas until the kernel is restarted.
        value = getattr(aside(lambda: importlib.import_module(_HOME[name])), name)
        # Looked up once. No module here may be called like one of these names: importing it would put it in their place.
        globals()[name] = value
        return value
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _MOVED:
        raise AttributeError(f"lab.{name} is called {_MOVED[name]} now.")
    if name in _GONE:
        raise AttributeError(f"lab.{name} is gone. Next: {_GONE[name]}.")
    import difflib

    near = difflib.get_close_matches(name, [*_HOME, *_ROOMS], n=1)
    raise AttributeError(f"module 'rlinf_lab' has no attribute {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def __dir__() -> list[str]:
    return sorted([*_HOME, *_ROOMS, "__version__"])
