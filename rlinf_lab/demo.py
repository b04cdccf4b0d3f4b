"""The demo: a robot arm learns a task under ``plan="auto"``.

The run finds the plan by itself, with a view in the terminal.

1. Evaluate the untrained policy.
2. Train: the first iterations run on one core and are measured; where a plan on more devices pays, the run changes to it.
3. Evaluate on fresh seeds, film, and say old, predicted, measured and gain.

On one core there is nothing to choose, which is said.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError
from rlinf_lab.runtime.run.run import check_executor
from rlinf_lab.timeline.record.files import writing

if TYPE_CHECKING:
    import pandas as pd

    from rlinf_lab.experiments.evaluation import Evaluation
    from rlinf_lab.experiments.training import TrainingRun

GOOD = 0.985  # mean success in training, exploration noise and all: then it ends
EPISODES = 50  # of an evaluation
LOOK_SECONDS = 0.4
#: What `doctor` says of drawing, by simulator.
DRAWING = {"metaworld": "MuJoCo drawing", "maniskill": "Vulkan"}


@dataclass(frozen=True)
class DemoConfig:
    """What `rlinf-lab demo` takes."""

    env: str = "metaworld/button-press-v3"
    """"simulator/task"; one that has a preset (`rlinf_lab.recipes.ppo.PRESETS`)"""
    seed: int = 0
    """of environments, weights and exploration"""
    iterations: int | None = None
    """updates at most; None: the preset's"""
    executor: str = "processes"
    """"processes", "ray" or "local" (threads of this process), for a plan on several devices"""
    out: str = "runs"
    """folder that gets a new folder demo-<time>"""
    video: bool = True
    """whether to film the learnt policy"""

    def __post_init__(self) -> None:
        check_executor(self.executor)
        if self.iterations is not None and self.iterations < 1:
            raise ConfigError(f"DemoConfig.iterations is {self.iterations}; at least 1.")


class Demo:
    """One demo run; ``view`` is told what happens (see `rlinf_lab.terminal`). ``devices``: None takes the cores and GPUs of this machine."""

    def __init__(self, config: DemoConfig, view: Any, devices: Sequence[str] | None = None) -> None:
        from rlinf_lab.experiments.starting import all_devices  # seconds, which other commands do without
        from rlinf_lab.recipes.ppo import PPOConfig

        self.config, self.view = config, view
        self.settings: dict[str, Any] = {"seed": config.seed} | ({} if config.iterations is None else {"iterations": config.iterations})
        self.ppo = PPOConfig.preset(config.env, **self.settings)
        self.devices = list(all_devices() if devices is None else devices)
        self.folder = Path(config.out) / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
        self.training: TrainingRun | None = None
        self.film = "not asked for"

    def run(self) -> dict[str, Any]:
        """Do it all; the summary that is also written to ``summary.json``."""
        from rlinf_lab.experiments.acting import TrainedPolicy
        from rlinf_lab.experiments.starting import train

        self.view.begin(self)
        start = time.monotonic()
        before = TrainedPolicy(self.ppo, self.ppo.make_policy()().weights()).evaluate(EPISODES)
        self.training = train(
            "ppo", self.config.env, plan="auto", devices=self.devices, executor=self.config.executor, folder=self.folder, progress=False, render=False,
            until={"success_rate": GOOD}, **self.settings,
        )  # fmt: skip
        self._watch(self.training)
        after = self.training.evaluate(EPISODES)
        summary = self._summary(self.training, before, after, time.monotonic() - start)
        self._write(self.training, summary)
        self.view.end(self, summary)
        return summary

    def _watch(self, training: TrainingRun) -> None:
        while True:
            try:
                training.wait(LOOK_SECONDS)
                break
            except TimeoutError:
                self.view.update(self)
        self.view.update(self)

    # --- what is left behind -----------------------------------------------------------------------------
    def _summary(self, training: TrainingRun, before: Evaluation, after: Evaluation, seconds: float) -> dict[str, Any]:
        rows, auto = training.metrics, training.auto
        choice = None if auto is None else auto.choice
        return {
            "env": self.config.env,
            "success_rate_before": before.get("success_rate"),
            "success_rate_after": after.get("success_rate"),
            "success_counts": "at the episode's last step, greedy policy, seeds never used in training",
            "episodes_evaluated": after["episodes"],
            "seconds": round(seconds, 2),
            "env_steps": int(rows["env_steps"].max()),
            "steps_per_second": round(training.config.env_steps / float(rows["seconds"].tail(20).median()), 1),
            "plan": training.plan.name,
            "plans": [json.loads(phase.plan.to_json()) for phase in training.phases],
            "why": repr(auto),
            "iteration_seconds": None if choice is None else {
                "old": choice.measured_s, "predicted": choice.predicted_s if choice.changes else None, "measured": choice.result_s,
                "gain": choice.gain if choice.changes else 1.0,
            },
            "bubble_sum_error_ns": max(abs(phase.timeline.bubble_sum_error_ns()) for phase in training.phases),
            "seeds": {"training": self.config.seed, "evaluation": after.of.seed},
            "executor": self.config.executor,
            "devices": self.devices,
            "machine": platform.machine(),
            "versions": versions(),
        }  # fmt: skip

    def _write(self, training: TrainingRun, summary: dict[str, Any]) -> None:
        """Beside what every run keeps. Each file is there whole or not at all, whenever the demo is interrupted."""
        from rlinf_lab.widgets.curves import learning_curve
        from rlinf_lab.widgets.report import timeline_html

        folder = self.folder
        _put_text(folder / "summary.json", json.dumps(summary, indent=1))
        for number, phase in enumerate(training.phases, 1):
            stem = f"{number}-{phase.plan.name.replace(' ', '-')}"
            timeline_html(phase.timeline, folder / f"timeline-{stem}.html", f"{self.config.env}, {phase.plan.name}")
            phase.timeline.to_perfetto(folder / f"timeline-{stem}.json.gz")
            _put_text(folder / f"plan-{stem}.json", phase.plan.to_json())
        curve = learning_curve(with_plans(training), self.config.env)
        _put(folder / "learning_curve.png", lambda file: curve.savefig(file, format="png", dpi=130, facecolor="white"))
        if self.config.video:
            self.film = self._filmed(training)

    def _filmed(self, training: TrainingRun) -> str:
        """What was written, or what the machine lacks and how to get it."""
        said = training.film(self.folder / "policy.mp4")
        check = DRAWING.get(self.config.env.partition("/")[0])
        if not said.startswith("none") or check is None:
            return said
        from rlinf_lab.checkup import doctor

        found = doctor()[check]
        return f"none, {found.found}. Next: {found.mend}" if found.mend else said


def with_plans(training: TrainingRun) -> pd.DataFrame:
    """The metrics of a run, with each iteration's plan as column ``plan``."""
    rows = training.metrics
    names = [(first, phase.plan.name) for first, phase in zip(training.phase_firsts, training.phases, strict=True)]
    return rows.assign(plan=[next(name for first, name in reversed(names) if iteration > first) for iteration in rows["iteration"]])


def _put(path: Path, write: Callable[[Path], object]) -> None:
    with writing("demo", path) as file:
        write(file)


def _put_text(path: Path, text: str) -> None:
    _put(path, lambda file: file.write_text(text, encoding="utf-8"))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("rlinf-lab", "torch", "ray", "numpy", "metaworld", "mani-skill", "mujoco"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # an extra that is not installed
            found[package] = "not installed"
    return found
