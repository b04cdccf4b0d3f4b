"""The picture of a workflow graph: well-formed, complete, nothing outside, boxes apart."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rlinf_lab.workflow.drawing.graph_svg import graph_svg
from rlinf_lab.workflow.graph import Call, Edge, Node, ValueEdge

SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Sample:
    """Plain parts of a graph."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    values: list[ValueEdge] = field(default_factory=list)
    cells: list[tuple[str, ...]] = field(default_factory=list)

    def worker(self, name: str, *methods: str) -> None:
        calls = tuple(Call(m, f"{m}(inbox: Inbox, outbox: Outbox)", (), (), False) for m in methods)
        self.nodes.append(Node(name, name.title(), calls))

    def edge(self, channel: str, source: str, target: str, keyed: bool = False, capacity: int | None = None) -> None:
        self.edges.append(Edge(channel, source, target, keyed, False, capacity))

    def svg(self) -> str:
        return graph_svg(self.nodes, self.edges, self.values, self.cells)


def embodied() -> Sample:
    s = Sample()
    s.worker("simulator", "collect")
    s.worker("policy", "act", "load_weights")
    s.worker("learner", "train")
    s.worker("driver")
    s.edge("obs", "simulator", "policy", capacity=8)
    s.edge("act", "policy", "simulator", keyed=True)
    s.edge("traj", "simulator", "learner")
    s.values.append(ValueEdge("learner", "policy", "weights"))
    s.cells.append(("simulator", "policy"))
    return s


def fan() -> Sample:
    s = Sample()
    for name in ("source", *(f"w{i}" for i in range(8)), "sink"):
        s.worker(name, "run")
    for i in range(8):
        s.edge(f"to_{i}", "source", f"w{i}")
        s.edge(f"from_{i}", f"w{i}", "sink", keyed=i % 2 == 0, capacity=5)
    return s


def long_names() -> Sample:
    s = Sample()
    names = ("embodied_simulator_with_a_very_long_name", "VISION_LANGUAGE_ACTION_POLICY_MODEL", "proximal_policy_optimisation_learner")
    for name in names:
        s.worker(name, "a_method_whose_name_is_long_as_well", "another_one")
    s.edge("observations_of_every_camera_there_is", names[0], names[1], capacity=8)
    s.edge("continuous_actions_in_chunks", names[1], names[0], keyed=True)
    s.edge("whole_trajectories_for_training", names[0], names[2])
    s.values.append(ValueEdge(names[2], names[1], "['state_dict']['parameters']['of_the_policy']"))
    s.cells.append(names[:2])
    return s


def crossing() -> Sample:
    s = Sample()
    for name in ("a", "d", "b", "c"):
        s.worker(name, "run")
    for source, target in itertools.product("ad", "bc"):
        s.edge(f"{source}_to_{target}", source, target)
    s.edge("again", "a", "a")
    return s


SAMPLES = [embodied, fan, long_names, crossing]
Room = tuple[float, float, float, float]


def rooms(svg: str, kind: str) -> list[Room]:
    """(x, y, width, height) of all rectangles of one kind: "box", or "under" for the paper under a label."""
    root = ElementTree.fromstring(svg)
    return [tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height")) for r in root.iter(f"{SVG}rect") if r.attrib["class"] == kind]  # type: ignore[misc]


def apart(a: Room, b: Room) -> bool:
    return a[0] + a[2] <= b[0] or b[0] + b[2] <= a[0] or a[1] + a[3] <= b[1] or b[1] + b[3] <= a[1]


@pytest.mark.parametrize("sample", SAMPLES)
def test_boxes_and_labels_are_apart_and_inside(sample: Callable[[], Sample]) -> None:
    svg = sample().svg()
    width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split()[2:])
    places, labels = rooms(svg, "box"), rooms(svg, "under")
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in places + labels)
    assert all(apart(one, other) for one, other in itertools.combinations(places + labels, 2))


def dejavu_width(text: str, size: float, bold: bool) -> float:
    """Of matplotlib's own copy of the widest font that browsers may choose."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    shown = text.replace("$", "S")
    return TextPath((0, 0), shown, size=size, prop=FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")).get_extents().width


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_text_is_wider_than_its_place(sample: Callable[[], Sample]) -> None:
    root = ElementTree.fromstring(sample().svg())
    checked = 0
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        for text in group.findall(f"{SVG}text"):
            kind = text.attrib["class"]
            margin = 0 if kind == "label" else 20
            assert rect is not None and dejavu_width(text.text or "", 12 if kind == "name" else 11, kind == "name") <= float(rect.attrib["width"]) - margin
            checked += 1
    assert checked >= 8


def test_everything_is_named_and_an_idle_driver_is_left_out() -> None:
    svg = embodied().svg()
    for text in ("simulator", "policy", "learner", "obs (≤ 8)", "act (keyed)", "traj", "weights", "collect(inbox: Inbox", "cell: simulator and policy"):
        assert text in svg
    assert "driver" not in svg and len(rooms(svg, "box")) == 3


def test_text_is_escaped_ranks_are_shown_and_the_default_capacity_goes_without_saying() -> None:
    s = Sample()
    s.worker("a<b>", "run")
    s.worker("b", "run")
    s.edge("usual", "a<b>", "b", capacity=64)
    s.edge("tight", "a<b>", "b", keyed=True, capacity=2)
    svg = graph_svg(s.nodes, s.edges, [], [], {"a<b>": 4})
    labels = [t.text for t in ElementTree.fromstring(svg).iter(f"{SVG}text") if t.attrib["class"] == "label"]
    assert labels == ["usual", "tight (keyed, ≤ 2)"] and "room for 64 items" in svg and "a&lt;b&gt; × 4" in svg
    ElementTree.fromstring(Sample().svg())
