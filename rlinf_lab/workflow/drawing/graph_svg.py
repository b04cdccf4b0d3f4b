"""The workflow graph as an SVG text. Columns go from upstream to downstream, boxes are workers, arrows are channels.

Pure function of plain data. Edges between neighbouring columns go straight from box to box, in either direction; all
others take a lane of their own above (downstream) or below (upstream) the boxes. Colours follow the page's theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rlinf_lab.timeline.draw.svg import anywhere
from rlinf_lab.workflow.drawing.shapes import Arrow, Box, Curve, fitting, path, room_around, short, text_width
from rlinf_lab.workflow.specs import DEFAULT_CAPACITY

HEIGHT, ROW_GAP, LANE, MARGIN, PORT = 54, 40, 26, 26, 18
NARROWEST, WIDEST = 104, 250  # of a box
SMALLEST_GAP, LARGEST_GAP = 84, 260  # between columns
READABLE = 0.7  # a wide graph is shrunk to the page, but not below this; then it scrolls
_STYLE = """
.rl-graph{--rl-g-ink:var(--jp-ui-font-color1,#1f2328);--rl-g-soft:var(--jp-ui-font-color2,#656d76);
--rl-g-paper:var(--jp-layout-color0,#fff);--rl-g-line:var(--jp-border-color1,#b4bac2);--rl-g-edge:#1e69b4;
max-width:100%;height:auto;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif;font-size:12px}
@media (prefers-color-scheme:dark){.rl-graph{--rl-g-ink:var(--jp-ui-font-color1,#e6e8ea);
--rl-g-soft:var(--jp-ui-font-color2,#969da5);--rl-g-paper:var(--jp-layout-color0,#111);--rl-g-line:var(--jp-border-color1,#4a5056);
--rl-g-edge:#4b96ff}}
body[data-jp-theme-light="true"] .rl-graph{--rl-g-edge:#1e69b4}
body[data-jp-theme-light="false"] .rl-graph{--rl-g-edge:#4b96ff}
.rl-graph text{fill:var(--rl-g-ink)}
.rl-graph .soft{fill:var(--rl-g-soft);font-size:11px}
.rl-graph .box{fill:var(--rl-g-paper);stroke:var(--rl-g-line);stroke-width:1.25}
.rl-graph .cell{fill:none;stroke:var(--rl-g-soft);stroke-dasharray:5 4}
.rl-graph .edge{fill:none;stroke:var(--rl-g-edge);stroke-width:1.5}
.rl-graph .value{fill:none;stroke:var(--rl-g-soft);stroke-width:1.5;stroke-dasharray:2 4;stroke-linecap:round}
.rl-graph .tip{fill:var(--rl-g-edge)} .rl-graph .vtip{fill:var(--rl-g-soft)}
.rl-graph .label{font-size:11px;text-anchor:middle}
.rl-graph .under{fill:var(--rl-g-paper)}
.rl-graph .name{font-weight:600}
""".replace("\n", "")


def graph_html(svg: str) -> str:
    """A picture of `graph_svg` for a page. Also for one that takes SVG out of HTML: there it has the colours of
    light paper.
    """
    return anywhere(svg, svg.replace("(prefers-color-scheme:dark)", "not all"), "workflow graph")


def graph_svg(
    nodes: Sequence[Any],
    edges: Sequence[Any],
    value_edges: Sequence[Any] = (),
    cells: Iterable[Sequence[str]] = (),
    ranks: dict[str, int] | None = None,
) -> str:
    """The picture of a `WorkflowGraph`'s ``nodes``, ``edges``, ``value_edges`` and ``cells``, as one ``<svg>`` element.

    ``ranks``: worker name to its number of ranks under a plan, shown in the box when given.
    """
    arrows = [Arrow(e.producer, e.consumer, _channel_label(e), _channel_title(e), "edge") for e in edges]
    arrows += [
        Arrow(v.producer, v.consumer, short(v.label, 30), f"value {v.label}: once per iteration", "value")
        for v in value_edges
    ]
    used = {a.source for a in arrows} | {a.target for a in arrows}
    shown = [n for n in nodes if n.calls or n.name in used]
    return _Drawing(shown, arrows, list(cells), ranks or {}).svg()


def _channel_label(edge: Any) -> str:
    """Its name; what is not as by default behind it."""
    bound = [f"≤ {edge.capacity}"] if edge.capacity and edge.capacity != DEFAULT_CAPACITY else []
    notes = ["keyed"] * edge.keyed + ["whole"] * edge.whole + [f"groups of {edge.group}"] * (edge.group > 1) + bound
    return short(edge.channel, 26) + (f" ({', '.join(notes)})" if notes else "")


def _channel_title(edge: Any) -> str:
    room = f"room for {edge.capacity} items" if edge.capacity else "capacity set by the plan"
    return f"channel {edge.channel}: {edge.producer} → {edge.consumer}, {'keyed, ' if edge.keyed else ''}{room}"


class _Drawing:
    def __init__(
        self, nodes: list[Any], arrows: list[Arrow], cells: list[Sequence[str]], ranks: dict[str, int]
    ) -> None:
        self.nodes, self.arrows, self.cells, self.ranks = nodes, arrows, cells, ranks
        self.column = _columns([n.name for n in nodes], arrows, cells)
        self.straight = [a for a in arrows if abs(self._span(a)) == 1]
        others = [a for a in arrows if a not in self.straight]
        # Long ways outside, short ones near the boxes: fewer crossings.
        self.over = sorted((a for a in others if self._span(a) > 0), key=lambda a: -self._span(a))
        self.under = sorted((a for a in others if self._span(a) <= 0), key=lambda a: -self._span(a))
        self.box = self._place()
        self.ways = self._curves()
        self.labels: list[tuple[Box, str]] = []

    def _span(self, a: Arrow) -> int:
        return self.column[a.target] - self.column[a.source]

    def _place(self) -> dict[str, Box]:
        """Every box. Those of a column are equally wide, and columns are centred on the tallest one."""
        columns: dict[int, list[str]] = {}
        for node in self.nodes:
            columns.setdefault(self.column[node.name], []).append(node.name)
        texts = {
            n.name: max(text_width(self._title(n), 12, bold=True), text_width(self._subtitle(n), 11))
            for n in self.nodes
        }
        heights = {n.name: self._height(n.name) for n in self.nodes}
        tall = {c: sum(heights[n] for n in names) + (len(names) - 1) * ROW_GAP for c, names in columns.items()}
        self.top = MARGIN + LANE * len(self.over)
        self.bottom = self.top + max(tall.values(), default=HEIGHT)
        box: dict[str, Box] = {}
        x = float(MARGIN)
        for number in sorted(columns):
            width = min(WIDEST, max(NARROWEST, 24 + max(texts[n] for n in columns[number])))
            y = (self.top + self.bottom - tall[number]) / 2
            for name in self._sorted(columns[number], box):
                box[name] = Box(x, y, width, heights[name])
                y += heights[name] + ROW_GAP
            x += width + self._gap(number)
        self.width = x - (self._gap(max(columns)) if columns else 0) + MARGIN
        self.height = self.bottom + MARGIN + LANE * len(self.under)
        return box

    def _height(self, name: str) -> float:
        """Room for the arrows of its busier side."""
        right = sum(
            self.column[a.target if a.source == name else a.source] > self.column[name]
            for a in self.straight
            if name in (a.source, a.target)
        )
        left = sum(name in (a.source, a.target) for a in self.straight) - right
        return max(HEIGHT, PORT * max(left, right) + 8)

    def _gap(self, column: int) -> float:
        """The width between two columns. It has room for the labels of the arrows there, and for their heads."""
        labels = [
            text_width(a.label, 11)
            for a in self.straight
            if min(self.column[a.source], self.column[a.target]) == column
        ]
        return min(LARGEST_GAP, max(SMALLEST_GAP, 48 + max(labels, default=0)))

    def _sorted(self, names: list[str], box: dict[str, Box]) -> list[str]:
        """By the mean height of the neighbours that are placed already: fewer crossings."""

        def height(name: str) -> float:
            near = [
                box[o].y
                for a in self.straight
                for o in (a.source, a.target)
                if name in (a.source, a.target) and o in box
            ]
            return sum(near) / len(near) if near else 0.0

        return sorted(names, key=height)

    def svg(self) -> str:
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="rl-graph" role="img" aria-label="workflow graph" '
                 f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" '
                 f'style="min-width:{READABLE * self.width:.0f}px">',
                 f"<style>{_STYLE}</style>"]  # fmt: skip
        parts += [self._cell(c) for c in self.cells]
        parts += [self._straight(curve) for curve in self.ways]
        parts += [self._around(a, MARGIN / 2 + LANE * i + 6, True, i) for i, a in enumerate(self.over)]
        parts += [
            self._around(a, self.bottom + MARGIN / 2 + LANE * (i + 0.5), False, i) for i, a in enumerate(self.under)
        ]
        parts += [self._shown(n) for n in self.nodes] + [text for _, text in self.labels]
        return "".join([*parts, "</svg>"])

    def _title(self, node: Any) -> str:
        ranks = f" × {self.ranks[node.name]}" if node.name in self.ranks else ""
        return fitting(node.name, 12, True, WIDEST - 24 - text_width(ranks, 12, bold=True)) + ranks

    def _subtitle(self, node: Any) -> str:
        methods = ", ".join(dict.fromkeys(c.method for c in node.calls))
        return fitting(
            node.class_name if node.class_name and node.class_name != node.name else methods, 11, False, WIDEST - 24
        )

    def _shown(self, node: Any) -> str:
        b = self.box[node.name]
        lines = [f"{node.name}: {node.class_name}"] + [f"{c.method}{c.signature}" for c in node.calls]
        return (
            f"<g><title>{escape(chr(10).join(lines))}</title>"
            f'<rect class="box" x="{b.x:g}" y="{b.y:g}" width="{b.w:g}" height="{b.h:g}" rx="7"/>'
            f'<text class="name" x="{b.x + 12:g}" y="{b.y + b.h / 2 - 4:g}">{escape(self._title(node))}</text>'
            f'<text class="soft" x="{b.x + 12:g}" y="{b.y + b.h / 2 + 14:g}">{escape(self._subtitle(node))}</text></g>'
        )

    def _cell(self, members: Sequence[str]) -> str:
        inside = [self.box[m] for m in members if m in self.box]
        if not inside:
            return ""
        x0, y0 = min(b.x for b in inside) - 12, min(b.y for b in inside) - 12
        x1, y1 = max(b.x + b.w for b in inside) + 12, max(b.y + b.h for b in inside) + 12
        title = f"cell: {' and '.join(members)} wait for each other's answers"
        return (
            f'<g><title>{escape(title)}</title><rect class="cell" x="{x0:g}" y="{y0:g}" width="{x1 - x0:g}" '
            f'height="{y1 - y0:g}" rx="12"/></g>'
        )

    def _ports(self) -> list[tuple[Arrow, float, float, float]]:
        """Heights at which each straight arrow leaves and arrives. Those on one side of a box share it evenly.

        The last number says where the label is clearest: near the end that has fewer arrows.
        """
        sides: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        for i, a in enumerate(self.straight):
            right = self._span(a) > 0
            sides.setdefault((a.source, right), []).append((self.box[a.target].y, i))
            sides.setdefault((a.target, not right), []).append((self.box[a.source].y, i))
        height: dict[tuple[str, int], float] = {}
        crowd: dict[tuple[str, int], int] = {}
        for (name, _), members in sides.items():
            members.sort()
            b = self.box[name]
            gap = min(PORT + 2, (b.h - 12) / max(1, len(members) - 1))
            for k, (_, i) in enumerate(members):
                height[name, i] = b.y + b.h / 2 + (k - (len(members) - 1) / 2) * gap
                crowd[name, i] = len(members)
        found = []
        for i, a in enumerate(self.straight):
            more = crowd[a.source, i] - crowd[a.target, i]
            found.append(
                (a, height[a.source, i], height[a.target, i], 0.5 if abs(more) < 2 else 0.64 if more > 0 else 0.36)
            )
        return found

    def _curves(self) -> list[Curve]:
        found = []
        for a, y0, y1, best in self._ports():
            source, target = self.box[a.source], self.box[a.target]
            right = self._span(a) > 0
            found.append(
                Curve(a, source.x + (source.w if right else 0), y0, target.x + (0 if right else target.w), y1, best)
            )
        return found

    def _straight(self, curve: Curve) -> str:
        others = [point for other in self.ways if other is not curve for point in other.points]
        self._label(curve.arrow, [curve.at(t) for t in (curve.best, 0.5, 0.36, 0.64, 0.43, 0.57, 0.28, 0.72)], others)
        tip = 8 if curve.x1 > curve.x0 else -8
        middle = (curve.x0 + curve.x1) / 2
        way = (
            f"M{curve.x0:g} {curve.y0:g}C{middle:g} {curve.y0:g} {middle:g} {curve.y1:g} {curve.x1 - tip:g} "
            f"{curve.y1:g}"
        )
        return path(curve.arrow, way, curve.x1, curve.y1, (-tip, 0))

    def _around(self, a: Arrow, lane: float, over: bool, number: int) -> str:
        """Along a lane above or below the boxes. A box that has others between itself and the lane is left and met
        sideways.
        """
        source, target = self.box[a.source], self.box[a.target]
        shift = (number % 4 - 1.5) * 10
        own = min(source.w / 2 - 12, text_width(a.label, 11) / 2 + 26) if a.source == a.target else 0
        shift = 0 if own else shift
        turn = 8 if over else -8
        edge = 10 if over else -10
        if self._shut_in(a.source, over):
            x0 = source.x + source.w + 14 + shift / 4
            leaves = source.y + (0 if over else source.h) + edge
            way = f"M{source.x + source.w:g} {leaves:g}H{x0:g}V{lane + turn:g}"
        else:
            x0 = source.x + source.w / 2 + shift + own
            way = f"M{x0:g} {source.y + (0 if over else source.h):g}V{lane + turn:g}"
        aside = self._shut_in(a.target, over)
        x1 = target.x - 20 + shift / 4 if aside else target.x + target.w / 2 + shift - own
        step = 8 if x1 > x0 else -8
        way += f"Q{x0:g} {lane:g} {x0 + step:g} {lane:g}H{x1 - step:g}Q{x1:g} {lane:g} {x1:g} {lane + turn:g}"
        self._label(a, [(x0 + (x1 - x0) * t, lane) for t in (0.5, 0.4, 0.6, 0.3, 0.7)], [])
        if aside:
            arrives = target.y + (0 if over else target.h) + edge
            return path(a, f"{way}V{arrives:g}H{target.x - 8:g}", target.x, arrives, (-8, 0))
        y1 = target.y + (0 if over else target.h)
        return path(a, f"{way}V{y1 - turn:g}", x1, y1, (0, -turn))

    def _shut_in(self, name: str, over: bool) -> bool:
        b = self.box[name]
        return any(o.x == b.x and (o.y < b.y if over else o.y > b.y) for o in self.box.values())

    def _label(self, a: Arrow, places: list[tuple[float, float]], lines: list[tuple[float, float]]) -> None:
        """Draw the label where it hides no box, no other label and the fewest ``lines``. Of such places it takes the
        first, and there is paper under it.
        """
        width = text_width(a.label, 11)

        def hidden(place: tuple[float, float]) -> int:
            room = room_around(place, width)
            taken = [*self.box.values(), *(label for label, _ in self.labels)]
            return 1000 * any(map(room.meets, taken)) + sum(room.holds(point) for point in lines)

        x, y = min(places, key=hidden)
        room = room_around((x, y), width)
        self.labels.append((room, (
            f'<g><title>{escape(a.title)}</title><rect class="under" x="{room.x:g}" y="{room.y:g}" width="{room.w:g}" '
            f'height="{room.h:g}" rx="3"/>'
            f'<text class="label" x="{x:g}" y="{y + 4:g}">{escape(a.label)}</text></g>'
        )))  # fmt: skip


def _columns(names: list[str], arrows: list[Arrow], cells: list[Sequence[str]]) -> dict[str, int]:
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
