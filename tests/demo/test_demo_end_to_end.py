"""The demo as a user starts it, at a small size: what it says, and every file that it leaves, opened again.

Real Meta-World on a real Ray; the task that needs no simulator in threads, also on made-up machines with one core and with a GPU.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

import rlinf_lab.demo as demo_module
from rlinf_lab.demo import PROBE_ITERATIONS, Demo, DemoConfig
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies import Weights
from rlinf_lab.runtime.executors import local
from rlinf_lab.runtime.machine import devices as devices_module
from rlinf_lab.runtime.machine.devices import Gpus
from rlinf_lab.terminal import TerminalView
from rlinf_lab.vecenv import make_vec

sys.path.insert(0, str(Path(__file__).parents[1] / "timeline"))
from perfetto_reader import read

UPDATES = PROBE_ITERATIONS + 4
PROMISED = {
    "success_rate_before", "success_rate_after", "seconds", "env_steps", "steps_per_second", "plan", "iteration_seconds_predicted",
    "iteration_seconds_measured", "bubble_sum_error_ns", "seeds", "versions",
}  # fmt: skip


@dataclass
class Done:
    """A demo that has ended."""

    demo: Demo
    summary: dict[str, Any]
    said: str


def play(out: Path, env: str, executor: str, terminal: bool = False, **fields: Any) -> Done:
    text = io.StringIO()
    view = TerminalView(Console(file=text, width=150, force_terminal=terminal, color_system=None))
    demo = Demo(DemoConfig(env, iterations=UPDATES, executor=executor, out=str(out), **fields), view)
    return Done(demo, demo.run(), text.getvalue())


@pytest.fixture(scope="module", params=[
    pytest.param(("metaworld/button-press-v3", "ray"), id="metaworld-ray", marks=pytest.mark.ray),
    pytest.param(("numpy/ReachArm-v0", "local"), id="numpy-local", marks=pytest.mark.xdist_group("demo")),
])  # fmt: skip
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return play(tmp_path_factory.mktemp("runs"), *request.param)


def test_the_summary_says_what_was_promised(done: Done) -> None:
    stored = json.loads((done.demo.folder / "summary.json").read_text())
    assert stored == done.summary and set(stored) >= PROMISED
    assert re.fullmatch(r"demo-\d{8}-\d{6}", done.demo.folder.name)
    assert 0 <= stored["success_rate_before"] <= 1 and 0 <= stored["success_rate_after"] <= 1
    assert stored["env_steps"] == UPDATES * done.demo.ppo.env_steps
    assert stored["steps_per_second"] > 0 and stored["seconds"] > stored["env_steps"] / stored["steps_per_second"]
    assert stored["bubble_sum_error_ns"] == 0
    assert stored["plan"] == min(stored["predictions_seconds"], key=stored["predictions_seconds"].get) or stored["plan"] == "fused"
    assert stored["iteration_seconds_predicted"] == stored["predictions_seconds"][stored["plan"]] > 0
    assert stored["iteration_seconds_measured"] > 0
    assert stored["seeds"]["training"] == 0 and stored["seeds"]["evaluation_from"] >= 1 << 29
    assert {"python", "torch", "ray", "metaworld"} <= set(stored["versions"])
    assert stored["episodes_evaluated"] >= 50


def test_two_plans_ran_and_can_be_read_again(done: Done) -> None:
    names = ["temporal", done.summary["plan"]]
    for number, name in enumerate(names, 1):
        plan = ExecutionPlan.from_json((done.demo.folder / f"plan-{number}-{name}.json").read_text())
        assert plan == done.demo.phases[number - 1].run.plan and len(plan.devices) == 2
    assert set(done.summary["predictions_seconds"]) == {"temporal", "fused", "spatial"}


def test_metrics_are_one_row_for_each_update(done: Done) -> None:
    rows = pd.read_parquet(done.demo.folder / "metrics.parquet")
    assert {"iteration", "seconds", "env_steps", "return", "success_rate", "episodes", "policy_loss", "value_loss", "kl", "plan"} <= set(rows)
    assert rows["env_steps"].tolist() == [done.demo.ppo.env_steps * (i + 1) for i in range(UPDATES)]
    assert rows["plan"].tolist() == ["temporal"] * PROBE_ITERATIONS + [done.summary["plan"]] * (UPDATES - PROBE_ITERATIONS)
    assert np.isfinite(rows[["return", "policy_loss", "value_loss", "kl", "seconds"]].to_numpy()).all()
    assert rows["success_rate"].between(0, 1).all()


def test_timelines_are_pages_without_a_network_and_hold_every_span(done: Done) -> None:
    for number, phase in enumerate(done.demo.phases, 1):
        page = (done.demo.folder / f"timeline-{number}-{phase.plan.name}.html").read_text()
        assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|\bfetch\(|\bimport\s*\(""", page)
        (stored,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        data = json.loads(stored)
        content = data["content"]
        assert content["layout"]["count"] == len(phase.run.timeline) > 1000
        assert content["tables"]["devices"] == list(phase.plan.devices)
        assert len(gzip.decompress(base64.b64decode(data["parts"]["spans"]))) >= 20 * len(phase.run.timeline)


def test_perfetto_traces_parse_back(done: Done) -> None:
    for number, phase in enumerate(done.demo.phases, 1):
        trace = read(done.demo.folder / f"timeline-{number}-{phase.plan.name}.pftrace")
        ours = sorted((f"{s.track.worker}[{s.track.rank}]", s.start_ns, s.end_ns) for s in phase.run.timeline.rows())
        assert sorted((thread, start, end) for thread, _, start, end in trace.slices) == ours
        assert {"simulator[0]", "simulator[1]", "policy[0]", "learner[0]"} <= set(trace.threads.values()) or phase.plan.name == "spatial"
        assert {"collect", "act", "train"} <= {name for _, name, _, _ in trace.slices}
        assert any(name.startswith("core ") for name, _, _ in trace.counters)
        # Arrows need items that are counted in one place: hosts that write to one channel count apart.
        assert trace.leave or done.demo.config.executor == "ray"


def test_the_learning_curve_is_a_picture(done: Done) -> None:
    image = np.asarray(Image.open(done.demo.folder / "learning_curve.png").convert("RGB"))
    assert image.shape[0] > 300 and image.shape[1] > 900
    blue = (np.abs(image.astype(int) - (0x2F, 0x7F, 0xD0)).sum(axis=2) < 40).sum()
    assert blue > 200, "the curves are drawn"


def test_the_policy_is_kept_and_filmed_where_drawing_works(done: Done) -> None:
    weights = Weights.load(done.demo.folder / "policy.safetensors")
    assert weights.version == UPDATES
    env = make_vec(done.summary["env"], 1)
    try:
        renders = env.spec.renders
    finally:
        env.close()
    path = done.demo.folder / "policy.mp4"
    assert path.exists() == renders
    if renders:
        frames = imageio.imread(path)
        assert frames.ndim == 4 and len(frames) >= 20 and min(frames.shape[1:3]) >= 200
        assert frames.std() > 5 and (frames[0] != frames[-1]).mean() > 0.001, "something is seen, and it moves"
    assert ("film: policy.mp4: 2 episodes" in done.said) == renders


def test_it_ends_by_saying_what_to_open_next(done: Done) -> None:
    said = " ".join(done.said.replace("│", " ").split())
    assert "candidate plans: temporal, fused, spatial" in said
    assert "predicted by the simulator" in said and "chosen" in said
    tail = said[said.index("open next") :]
    (page,) = re.findall(r"\S+\.html", tail.replace("/ ", "/"))
    assert (done.demo.folder / Path(page).name).exists()
    assert "learning_curve.png" in tail
    assert ("policy.mp4" in tail) == (done.demo.folder / "policy.mp4").exists()


def test_without_a_film_none_is_promised(tmp_path: Path) -> None:
    done = play(tmp_path, "numpy/ReachArm-v0", "local", video=False)
    assert not (done.demo.folder / "policy.mp4").exists()
    assert "film: not asked for" in done.said and "policy.mp4" not in done.said and "learning_curve.png beside it" in done.said


def test_one_core_has_one_plan_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "slots", lambda: ["cpu:0"])
    done = play(tmp_path, "numpy/ReachArm-v0", "local", video=False)
    assert "one device, so there is only the temporal plan" in done.said
    assert "candidate" not in done.said and "chosen" not in done.said
    assert done.summary["plan"] == "temporal" and list(done.summary["predictions_seconds"]) == ["temporal"]
    assert done.summary["devices"] == ["cpu:0"] and done.summary["bubble_sum_error_ns"] == 0


def test_with_a_gpu_the_plans_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole demo with a GPU slot; torch computes on the CPU in its place."""
    monkeypatch.setattr(demo_module, "slots", lambda: ["cpu:0", "cpu:1", "cuda:0"])
    monkeypatch.setattr(local, "torch_device", lambda names: "cpu")
    monkeypatch.setattr(devices_module, "gpus", lambda: Gpus(1))
    done = play(tmp_path, "numpy/ReachArm-v0", "local", video=False)
    assert set(done.summary["predictions_seconds"]) == {"temporal", "spatial", "fused"}
    assert "fused: policy was measured on cuda and is assumed to take as long on cpu" in done.summary["prediction_notes"]
    for phase in done.demo.phases:
        tracks = {s.track for s in phase.run.timeline.rows()}
        assert {t.devices for t in tracks if t.worker == "learner"} == {("cuda:0",)}
        assert {t.devices for t in tracks if t.worker == "simulator"} == {("cpu:0",), ("cpu:1",)}


def test_the_live_view_of_a_terminal(tmp_path: Path) -> None:
    done = play(tmp_path, "numpy/ReachArm-v0", "local", terminal=True, video=False)
    for part in ("plan temporal", "update ", f"of at most {UPDATES}", "success rate", "return", "cpu:0 busy", "cpu:1 busy", "bubbles"):
        assert part in done.said, part
