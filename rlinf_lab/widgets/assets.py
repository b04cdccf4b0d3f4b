"""The JavaScript of the widgets. Plain ES modules in `static/` are joined into the one file that anywidget takes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")
#: The timeline, in the order in which the files build on each other.
TIMELINE = (
    "base.js", "lane.js", "instants.js", "series.js", "depths.js", "store.js", "links.js", "statistics.js", "calls.js",
    "rows.js", "counters.js", "paint.js",
    "details.js", "legend.js", "hands.js", "timeline.js",
)  # fmt: skip
DASHBOARD = (*TIMELINE, "charts.js", "history.js", "panels.js", "standstill.js", "dashboard.js")
_IMPORT = re.compile(r'^import\s+\{[^}]*\}\s+from\s+"\./[\w.]+";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|let|function|class|async)\b)", re.MULTILINE)


@cache
def module(*names: str) -> str:
    """The files ``names`` of `static/` as one module. Imports between them go, only the last one's default export
    stays.
    """
    parts = []
    for name in names:
        text = (STATIC / name).read_text(encoding="utf-8")
        parts.append(f"// ---- {name}\n{_EXPORT.sub('', _IMPORT.sub('', text))}")
    return "\n".join(parts)


@cache
def stylesheet() -> str:
    """The one style sheet of all widgets."""
    return (STATIC / "style.css").read_text(encoding="utf-8")
