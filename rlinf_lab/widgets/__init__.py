"""Pictures of values: timeline, workflow graph, dashboard, plans. Importing a name loads what it needs, not more."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Dashboard": "dashboard",
    "GraphView": "graph_view",
    "PlanExplorer": "explorer",
    "TimelineView": "timeline_view",
    "timeline_html": "report",
}

__all__ = ["Dashboard", "GraphView", "PlanExplorer", "TimelineView", "timeline_html"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
