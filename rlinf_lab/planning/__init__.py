"""How to do it: plans, the engine, the simulator, estimates.

``lab.planning`` holds what is needed beside ``lab.plan``: costs from a run or a trace, what if, plans of one's own,
staleness of asynchronous training, tools. Loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AsynchronousTraining": "simulator.rollouts",
    "MeanStaleness": "simulator.staleness",
    "ResponseLengths": "costs.response_lengths",
    "Simulator": "simulator.simulator",
    "StalenessPolicy": "simulator.staleness",
    "ToolCell": "simulator.tool_cell",
    "planned": "planner.planner",
    "profile_from_run": "fit.fit",
    "profile_from_trace": "fit.from_trace",
}


_GONE = {
    "sensitivity": "for times in (0.5, 2): print(lab.plan(flow, devices, profile.scaled('WORKER', times)).best)"
}
"""what there was, and what to do instead"""


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"lab.planning.{name} is gone. Next: {_GONE[name]}.")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
