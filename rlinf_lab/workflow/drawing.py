"""The workflow graph as an SVG text: columns from upstream to downstream, boxes for workers, arrows for channels.

Pure function of plain data. Edges between neighbouring columns go straight from box to box, in either direction; all
others take a lane of their own above (downstream) or below (upstream) the boxes. Colours follow the page's theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT, COLUMN_GAP, ROW_GAP, LANE, MARGIN, PORT = 156, 54, 132, 44, 26, 26, 20
_STYLE = """
.rl-graph{--rl-g-ink:var(--jp-ui-font-color1,#1f2328);--rl-g-soft:var(--jp-ui-font-color2,#656d76);
--rl-g-paper:var(--jp-layout-color0,#fff);--rl-g-line:var(--jp-border-color1,#b4bac2);--rl-g-edge:#1e69b4;max-width:100%;height:auto;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif;font-size:12px}
@media (prefers-color-scheme:dark){.rl-graph{--rl-g-ink:var(--jp-ui-font-color1,#e6e8ea);
--rl-g-soft:var(--jp-ui-font-color2,#969da5);--rl-g-paper:var(--jp-layout-color0,#111);--rl-g-line:var(--jp-border-color1,#4a5056);--rl-g-edge:#4b96ff}}
body[data-jp-theme-light="true"] .rl-graph{--rl-g-edge:#1e69b4}
body[data-jp-theme-light="false"] .rl-graph{--rl-g-edge:#4b96ff}
.rl-graph text{fill:var(--rl-g-ink)}
.rl-graph .soft{fill:var(--rl-g-soft);font-size:11px}
.rl-graph .box{fill:var(--rl-g-paper);stroke:var(--rl-g-line);stroke-width:1.25}
.rl-graph .cell{fill:none;stroke:var(--rl-g-soft);stroke-dasharray:5 4}
.rl-graph .edge{fill:none;stroke:var(--rl-g-edge);stroke-width:1.5}
.rl-graph .value{fill:none;stroke:var(--rl-g-soft);stroke-width:1.5;stroke-dasharray:2 4;stroke-linecap:round}
.rl-graph .tip{fill:var(--rl-g-edge)} .rl-graph .vtip{fill:var(--rl-g-soft)}
.rl-graph .label{font-size:11px;text-anchor:middle;paint-order:stroke;stroke:var(--rl-g-paper);stroke-width:6px;stroke-linejoin:round}
.rl-graph .name{font-weight:600}
""".replace("\n", "")


@dataclass(frozen=True)
class _Arrow:
    """One arrow. ``kind``: "edge" (a channel) or "value"."""

    source: str
    target: str
    label: str
    title: str
    kind: str


def graph_svg(
    nodes: Sequence[Any], edges: Sequence[Any], value_edges: Sequence[Any] = (), cells: Iterable[Sequence[str]] = (), ranks: dict[str, int] | None = None
) -> str:
    """The picture of a `WorkflowGraph`'s ``nodes``, ``edges``, ``value_edges`` and ``cells``, as one ``<svg>`` element.

    ``ranks``: worker name to its number of ranks under a plan, shown in the box when given.
    """
    arrows = [_Arrow(e.producer, e.consumer, _channel_label(e), _channel_title(e), "edge") for e in edges]
    arrows += [_Arrow(v.producer, v.consumer, v.label, f"value {v.label}: once per iteration", "value") for v in value_edges]
    used = {a.source for a in arrows} | {a.target for a in arrows}
    shown = [n for n in nodes if n.calls or n.name in used]
    return _Drawing(shown, arrows, list(cells), ranks or {}).svg()


def _channel_label(edge: Any) -> str:
    notes = (["keyed"] if edge.keyed else []) + ([f"≤ {edge.capacity}"] if edge.capacity else [])
    return edge.channel + (f" ({', '.join(notes)})" if notes else "")


def _channel_title(edge: Any) -> str:
    room = f"room for {edge.capacity} items" if edge.capacity else "capacity set by the plan"
    return f"channel {edge.channel}: {edge.producer} → {edge.consumer}, {'keyed, ' if edge.keyed else ''}{room}"


class _Drawing:
    def __init__(self, nodes: list[Any], arrows: list[_Arrow], cells: list[Sequence[str]], ranks: dict[str, int]) -> None:
        self.nodes, self.arrows, self.cells, self.ranks = nodes, arrows, cells, ranks
        self.column = _columns([n.name for n in nodes], arrows, cells)
        self.straight = [a for a in arrows if abs(self.column[a.source] - self.column[a.target]) == 1]
        others = [a for a in arrows if a not in self.straight]
        self.over = [a for a in others if self.column[a.target] > self.column[a.source]]
        self.under = [a for a in others if a not in self.over]
        self.at = self._place()

    def _place(self) -> dict[str, tuple[float, float]]:
        """Top left corner of every box; columns are centred on the tallest one."""
        columns: dict[int, list[str]] = {}
        for node in self.nodes:
            columns.setdefault(self.column[node.name], []).append(node.name)
        tallest = max((len(c) for c in columns.values()), default=1)
        self.top = MARGIN + LANE * len(self.over)
        self.bottom = self.top + tallest * HEIGHT + (tallest - 1) * ROW_GAP
        at: dict[str, tuple[float, float]] = {}
        for number, names in columns.items():
            free = (tallest - len(names)) * (HEIGHT + ROW_GAP) / 2
            for row, name in enumerate(self._sorted(names, at)):
                at[name] = (MARGIN + number * (WIDTH + COLUMN_GAP), self.top + free + row * (HEIGHT + ROW_GAP))
        self.width = 2 * MARGIN + max(columns, default=0) * (WIDTH + COLUMN_GAP) + WIDTH
        self.height = self.bottom + MARGIN + LANE * len(self.under)
        return at

    def _sorted(self, names: list[str], at: dict[str, tuple[float, float]]) -> list[str]:
        """By the mean height of the neighbours that are placed already: fewer crossings."""

        def height(name: str) -> float:
            near = [at[o][1] for a in self.straight for o in (a.source, a.target) if name in (a.source, a.target) and o in at]
            return sum(near) / len(near) if near else 0.0

        return sorted(names, key=height)

    def svg(self) -> str:
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="rl-graph" role="img" aria-label="workflow graph" '
                 f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}">', f"<style>{_STYLE}</style>"]  # fmt: skip
        parts += [self._cell(c) for c in self.cells]
        labels: list[str] = []
        for arrow, y_from, y_to in self._ports():
            parts.append(self._straight(arrow, y_from, y_to, labels))
        for number, arrow in enumerate(self.over):
            parts.append(self._around(arrow, MARGIN / 2 + LANE * number + 6, True, number, labels))
        for number, arrow in enumerate(self.under):
            parts.append(self._around(arrow, self.bottom + MARGIN / 2 + LANE * (number + 0.5), False, number, labels))
        parts += [self._box(n) for n in self.nodes] + labels
        return "".join([*parts, "</svg>"])

    def _box(self, node: Any) -> str:
        x, y = self.at[node.name]
        lines = [f"{node.name}: {node.class_name}"] + [c.signature for c in node.calls]
        ranks = f" × {self.ranks[node.name]}" if node.name in self.ranks else ""
        methods = ", ".join(dict.fromkeys(c.method for c in node.calls))
        below = node.class_name if node.class_name and node.class_name != node.name else methods
        return (
            f"<g><title>{escape(chr(10).join(lines))}</title>"
            f'<rect class="box" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>'
            f'<text class="name" x="{x + 12:g}" y="{y + 23:g}">{escape(_short(node.name + ranks, 21))}</text>'
            f'<text class="soft" x="{x + 12:g}" y="{y + 41:g}">{escape(_short(below, 24))}</text></g>'
        )

    def _cell(self, members: Sequence[str]) -> str:
        places = [self.at[m] for m in members if m in self.at]
        if not places:
            return ""
        x0, y0 = min(x for x, _ in places) - 12, min(y for _, y in places) - 12
        x1, y1 = max(x for x, _ in places) + WIDTH + 12, max(y for _, y in places) + HEIGHT + 12
        title = f"cell: {' and '.join(members)} wait for each other's answers"
        return f'<g><title>{escape(title)}</title><rect class="cell" x="{x0:g}" y="{y0:g}" width="{x1 - x0:g}" height="{y1 - y0:g}" rx="12"/></g>'

    def _ports(self) -> list[tuple[_Arrow, float, float]]:
        """Heights at which each straight arrow leaves and arrives: those on one side of a box share it evenly."""
        sides: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        for i, a in enumerate(self.straight):
            right = self.column[a.target] > self.column[a.source]
            sides.setdefault((a.source, right), []).append((self.at[a.target][1], i))
            sides.setdefault((a.target, not right), []).append((self.at[a.source][1], i))
        height: dict[tuple[str, int], float] = {}
        for (name, _), members in sides.items():
            members.sort()
            gap = min(PORT, (HEIGHT - 12) / max(1, len(members) - 1))
            for k, (_, i) in enumerate(members):
                height[name, i] = self.at[name][1] + HEIGHT / 2 + (k - (len(members) - 1) / 2) * gap
        return [(a, height[a.source, i], height[a.target, i]) for i, a in enumerate(self.straight)]

    def _straight(self, a: _Arrow, y0: float, y1: float, labels: list[str]) -> str:
        right = self.column[a.target] > self.column[a.source]
        x0 = self.at[a.source][0] + (WIDTH if right else 0)
        x1 = self.at[a.target][0] + (0 if right else WIDTH)
        tip = 8 if right else -8
        mid = (x0 + x1) / 2
        labels.append(_label(a, mid, (y0 + y1) / 2))
        return _path(a, f"M{x0:g} {y0:g}C{mid:g} {y0:g} {mid:g} {y1:g} {x1 - tip:g} {y1:g}", x1, y1, (-tip, 0))

    def _around(self, a: _Arrow, lane: float, over: bool, number: int, labels: list[str]) -> str:
        """Along a lane above or below the boxes; a box that has others between itself and the lane is left and met sideways."""
        (xs, ys), (xt, yt) = self.at[a.source], self.at[a.target]
        shift = (number % 4 - 1.5) * 10
        own = 14 if a.source == a.target else 0
        turn = 8 if over else -8
        edge = 10 if over else HEIGHT - 10
        if self._shut_in(a.source, over):
            x0 = xs + WIDTH + 14 + shift / 4
            way = f"M{xs + WIDTH:g} {ys + edge:g}H{x0:g}V{lane + turn:g}"
        else:
            x0 = xs + WIDTH / 2 + shift + own
            way = f"M{x0:g} {ys + (0 if over else HEIGHT):g}V{lane + turn:g}"
        aside = self._shut_in(a.target, over)
        x1 = xt - 20 + shift / 4 if aside else xt + WIDTH / 2 + shift - own
        step = 8 if x1 > x0 else -8
        way += f"Q{x0:g} {lane:g} {x0 + step:g} {lane:g}H{x1 - step:g}Q{x1:g} {lane:g} {x1:g} {lane + turn:g}"
        labels.append(_label(a, (x0 + x1) / 2, lane))
        if aside:
            return _path(a, f"{way}V{yt + edge:g}H{xt - 8:g}", xt, yt + edge, (-8, 0))
        y1 = yt if over else yt + HEIGHT
        return _path(a, f"{way}V{y1 - turn:g}", x1, y1, (0, -turn))

    def _shut_in(self, name: str, over: bool) -> bool:
        x, y = self.at[name]
        return any(ox == x and (oy < y if over else oy > y) for ox, oy in self.at.values())


def _columns(names: list[str], arrows: list[_Arrow], cells: list[Sequence[str]]) -> dict[str, int]:
    """Longest path over the arrows that go forward in program order (the others point back).

    What a cell feeds stands to the right of all its members, so that its outline encloses nobody else.
    """
    order = {name: i for i, name in enumerate(names)}
    after = {(a.source, a.target) for a in arrows}
    for cell in cells:
        after |= {(member, a.target) for a in arrows if a.source in cell and a.target not in cell for member in cell}
    column = dict.fromkeys(names, 0)
    for name in names:
        for source, target in after:
            if source == name and order[target] > order[name]:
                column[target] = max(column[target], column[name] + 1)
    return column


def _path(a: _Arrow, way: str, x: float, y: float, back: tuple[float, float]) -> str:
    """A line with its arrow head, whose tip is at (x, y); ``back`` points from the tip to the head's base."""
    bx, by = x + back[0], y + back[1]
    ox, oy = (0.0, 4.0) if back[0] else (4.0, 0.0)
    head = f"M{x:g} {y:g}L{bx + ox:g} {by + oy:g}L{bx - ox:g} {by - oy:g}Z"
    tip = "tip" if a.kind == "edge" else "vtip"
    return f'<g><title>{escape(a.title)}</title><path class="{a.kind}" d="{way}"/><path class="{tip}" d="{head}"/></g>'


def _label(a: _Arrow, x: float, y: float) -> str:
    return f'<text class="label" x="{x:g}" y="{y + 4:g}">{escape(_short(a.label, 22))}<title>{escape(a.title)}</title></text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
