"""The picture of a workflow graph: well-formed, complete, nothing outside, boxes apart."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlinf_lab.workflow.drawing import HEIGHT, WIDTH, graph_svg
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


def reasoning() -> Sample:
    s = Sample()
    for name in ("prompts", "generator", "reward_math", "reward_code", "reference", "advantages", "learner"):
        s.worker(name, "run")
    for source, target in [("prompts", "generator"), ("generator", "reward_math"), ("generator", "reward_code"), ("generator", "reference"),
                           ("reward_math", "advantages"), ("reward_code", "advantages"), ("reference", "advantages"), ("advantages", "learner"),
                           ("generator", "learner")]:  # fmt: skip
        s.edge(f"{source[:4]}_{target[:4]}", source, target)
    s.values.append(ValueEdge("learner", "generator", "weights"))
    return s


def boxes(svg: str) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(svg)
    return [(float(r.attrib["x"]), float(r.attrib["y"])) for r in root.iter(f"{SVG}rect") if r.attrib["class"] == "box"]


@pytest.mark.parametrize("sample", [embodied(), reasoning()], ids=["embodied", "reasoning"])
def test_boxes_are_apart_and_inside(sample: Sample) -> None:
    svg = sample.svg()
    width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split()[2:])
    places = boxes(svg)
    assert all(x > 0 and x + WIDTH < width and y > 0 and y + HEIGHT < height for x, y in places)
    for (x0, y0), (x1, y1) in itertools.combinations(places, 2):
        assert abs(x0 - x1) >= WIDTH or abs(y0 - y1) >= HEIGHT


def test_everything_is_named_and_an_idle_driver_is_left_out() -> None:
    svg = embodied().svg()
    for text in ("simulator", "policy", "learner", "obs (≤ 8)", "act (keyed)", "traj", "weights", "collect(inbox: Inbox", "cell: simulator and policy"):
        assert text in svg
    assert "driver" not in svg and len(boxes(svg)) == 3


def test_text_is_escaped_and_ranks_are_shown() -> None:
    s = Sample()
    s.worker("a<b>", "run")
    svg = graph_svg(s.nodes, [], [], [], {"a<b>": 4})
    ElementTree.fromstring(svg)
    assert "a&lt;b&gt; × 4" in svg


def test_two_workers_that_feed_only_themselves(tmp_path: Path) -> None:
    s = Sample()
    s.worker("a", "run")
    s.edge("again", "a", "a")
    ElementTree.fromstring(s.svg())
    ElementTree.fromstring(Sample().svg())
