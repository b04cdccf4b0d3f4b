"""The workflow graph as a picture, with the ranks that a plan gives each worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlinf_lab.timeline.record.files import writing
from rlinf_lab.workflow.drawing.graph_svg import graph_html, graph_svg
from rlinf_lab.workflow.graph import WorkflowGraph


class GraphView:
    """Displays a `WorkflowGraph`; hover over a box for the methods' signatures. ``ranks``: worker to number
    of ranks.
    """

    def __init__(self, graph: WorkflowGraph, ranks: Mapping[str, int] | None = None) -> None:
        self.graph = graph
        self.ranks = dict(ranks or {})

    @property
    def svg(self) -> str:
        """One ``<svg>`` element."""
        g = self.graph
        return graph_svg(g.nodes, g.edges, g.value_edges, g.cells, self.ranks)

    def save(self, path: str | Path) -> Path:
        """Write the picture as an SVG file and return its path. Raises `TimelineError` where it cannot be written."""
        with writing("save", path) as target:
            target.write_text(self.svg, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return graph_html(self.svg)

    def __repr__(self) -> str:
        return repr(self.graph)
