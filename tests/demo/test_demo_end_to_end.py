"""The demo as a user starts it, at a small size: what it says, and every file that it leaves, opened again. Threads; changes of plans at fixed places."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

import rlinf_lab as lab
from rlinf_lab.checkup import doctor
from rlinf_lab.demo import Demo, DemoConfig
from rlinf_lab.experiments import starting
from rlinf_lab.experiments.autoplan.choice import Choice
from rlinf_lab.experiments.autoplan.phases import AutoPlan, Phase
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.checklist import OPTIONAL, Check, Report
from rlinf_lab.terminal import TerminalView
from rlinf_lab.workflow.workflow import Workflow

UPDATES, PROBE = 7, 3


class AfterThree(AutoPlan):
    """Changes to two ranks of the simulator after three iterations, whatever was measured."""

    def first(self, flow: Workflow) -> Phase:
        return Phase(ExecutionPlan.temporal(flow, self.devices[:1]), "local")

    def ends_phase(self, seconds: Any, remaining: int) -> bool:
        return self.choice is None and len(seconds) == PROBE

    def next(self, flow: Workflow, timeline: Any, remaining: int, setup_s: float) -> Phase:
        old = ExecutionPlan.temporal(flow, self.devices[:1])
        new = ExecutionPlan.fused_cells(flow, self.devices, {"simulator": 2}, name="auto fused")
        self.choice = Choice(old, new, 0.5, 0.25, True, "as the test has it", result_s=0.3)
        return Phase(new, "local")


@dataclass
class Done:
    """A demo that has ended."""

    demo: Demo
    summary: dict[str, Any]
    said: str


def play(out: Path, terminal: bool = False, devices: Any = ("cpu:0", "cpu:1"), **fields: Any) -> Done:
    text = io.StringIO()
    view = TerminalView(Console(file=text, width=150, force_terminal=terminal, color_system=None))
    config = DemoConfig("numpy/ReachArm-v0", executor="local", out=str(out), **{"iterations": UPDATES, **fields})
    demo = Demo(config, view, devices)
    return Done(demo, demo.run(), " ".join(text.getvalue().replace("│", " ").split()))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "AutoPlan", AfterThree)
        return play(tmp_path_factory.mktemp("runs"))


pytestmark = pytest.mark.xdist_group("demo")


def test_the_summary_says_old_predicted_measured_and_gain(done: Done) -> None:
    stored = json.loads((done.demo.folder / "summary.json").read_text())
    assert stored == done.summary
    assert re.fullmatch(r"demo-\d{8}-\d{6}", done.demo.folder.name)
    assert 0 <= stored["success_rate_before"] <= 1 and 0 <= stored["success_rate_after"] <= 1
    assert stored["env_steps"] == UPDATES * done.demo.ppo.env_steps and stored["steps_per_second"] > 0
    assert stored["bubble_sum_error_ns"] == 0 and stored["episodes_evaluated"] == 50
    assert stored["plan"] == "auto fused" and stored["devices"] == ["cpu:0", "cpu:1"]
    assert stored["iteration_seconds"] == {"old": 0.5, "predicted": 0.25, "measured": 0.3, "gain": 0.5 / 0.3}
    assert {"python", "torch", "ray", "metaworld"} <= set(stored["versions"])
    assert "an iteration: old plan 0.500 s, new plan 'auto fused' predicted 0.250 s, measured 0.300 s, gain 1.67×" in done.said


def test_its_folder_is_that_of_a_run(done: Done) -> None:
    policy = lab.load_policy(done.demo.folder)
    assert policy.version == UPDATES
    rows = pd.read_parquet(done.demo.folder / "metrics.parquet")
    assert rows["env_steps"].tolist() == [done.demo.ppo.env_steps * (i + 1) for i in range(UPDATES)]
    assert np.isfinite(rows[["return", "policy_loss", "value_loss", "kl", "seconds"]].to_numpy()).all()


def test_timelines_are_pages_without_a_network_and_hold_every_span(done: Done) -> None:
    for stem, phase in phases(done):
        assert ExecutionPlan.from_json((done.demo.folder / f"plan-{stem}.json").read_text()) == phase.plan
        page = (done.demo.folder / f"timeline-{stem}.html").read_text()
        assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|\bfetch\(|\bimport\s*\(""", page)
        (stored,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        data = json.loads(stored)
        assert data["content"]["layout"]["count"] == len(phase.timeline) > 10
        assert data["content"]["tables"]["devices"] == list(phase.plan.devices)
        assert len(gzip.decompress(base64.b64decode(data["parts"]["spans"]))) >= 20 * len(phase.timeline)


def test_traces_for_perfetto_hold_every_span(done: Done) -> None:
    for stem, phase in phases(done):
        text = gzip.decompress((done.demo.folder / f"timeline-{stem}.json.gz").read_bytes())
        slices = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
        assert len(slices) == len(phase.timeline) and {"roll_out", "train"} <= {event["name"] for event in slices}


def phases(done: Done) -> list[tuple[str, Any]]:
    """The files' names and the runs."""
    assert done.demo.training is not None
    found = done.demo.training.phases
    assert [p.plan.name for p in found] == ["temporal", "auto fused"] and done.demo.training.phase_firsts == [0, PROBE]
    return list(zip(("1-temporal", "2-auto-fused"), found, strict=True))


def test_the_learning_curve_is_a_picture(done: Done) -> None:
    image = np.asarray(Image.open(done.demo.folder / "learning_curve.png").convert("RGB"))
    assert image.shape[0] > 300 and image.shape[1] > 900
    blue = (np.abs(image.astype(int) - (0x2F, 0x7F, 0xD0)).sum(axis=2) < 40).sum()
    assert blue > 200, "the curves are drawn"


def test_it_is_filmed_and_ends_by_saying_what_to_open_next(done: Done) -> None:
    frames = imageio.imread(done.demo.folder / "policy.mp4")
    assert frames.ndim == 4 and len(frames) >= 20 and min(frames.shape[1:3]) >= 200
    assert frames.std() > 5 and (frames[0] != frames[-1]).mean() > 0.001, "something is seen, and it moves"
    assert "film: policy.mp4: 2 episodes" in done.said
    tail = done.said[done.said.index("open next") :]
    (page,) = re.findall(r"\S+\.html", tail.replace("/ ", "/"))
    assert (done.demo.folder / Path(page).name).exists() and "learning_curve.png and policy.mp4 beside it" in tail


def test_one_core_has_one_plan_and_says_so(tmp_path: Path) -> None:
    done = play(tmp_path, devices=["cpu:0"], video=False, iterations=2)
    assert "one device: there is nothing to choose" in done.said and "chosen" not in done.said
    assert done.summary["plan"] == "temporal" and done.summary["iteration_seconds"] is None and len(done.summary["plans"]) == 1
    assert done.summary["devices"] == ["cpu:0"] and done.summary["bubble_sum_error_ns"] == 0
    assert "film: not asked for" in done.said and not (done.demo.folder / "policy.mp4").exists()


def test_a_machine_that_cannot_draw_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor()["MuJoCo drawing"].name == "MuJoCo drawing" and doctor()["Vulkan"].name == "Vulkan"
    lacking = Report("", (Check("MuJoCo drawing", OPTIONAL, "no OSMesa", "apt-get install libosmesa6"),))
    monkeypatch.setattr("rlinf_lab.checkup.doctor", lambda: lacking)

    class Blind:
        def film(self, path: Any) -> str:
            return "none, it cannot draw."

    demo = Demo(DemoConfig(), None, ["cpu:0"])
    training: Any = Blind()
    assert demo._filmed(training) == "none, no OSMesa. Next: apt-get install libosmesa6"


def test_the_live_view_of_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_lab.terminal.REFRESH_SECONDS", 0.0)
    monkeypatch.setattr("rlinf_lab.demo.LOOK_SECONDS", 0.02)
    done = play(tmp_path, terminal=True, devices=["cpu:0"], video=False, iterations=4)
    for part in ("plan temporal", "update ", "of at most 4", "success rate", "return", "cpu:0 busy", "bubbles"):
        assert part in done.said, part
