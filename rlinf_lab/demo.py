"""The demo: a robot arm learns a task, first under the temporal plan, then under the plan that the simulator predicts to be fastest.

1. Evaluate the untrained policy, train a few iterations under the temporal plan, record everything.
2. Read the cost of every call off that timeline, simulate the candidate plans, choose.
3. Go on under the chosen plan until the policy presses the button; evaluate it on fresh seeds; compare predicted and measured.

On a machine with one core and no GPU there is only the temporal plan: nothing is chosen then, and what is checked is its prediction.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.replay.estimate import Estimate, estimate
from rlinf_lab.recipes.plans import candidates, slots
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.run.run import Run, check_executor, run
from rlinf_lab.timeline.record.files import writing
from rlinf_lab.workers.seeds import Purpose, environment_seed
from rlinf_lab.workflow.workflow import Workflow

PROBE_ITERATIONS = 8
GOOD = 0.985  # mean success, with exploration noise, over so many iterations: then the greedy policy is tried
GOOD_ITERATIONS = 8


@dataclass(frozen=True)
class DemoConfig:
    """What `rlinf-lab demo` takes."""

    env: str = "metaworld/button-press-v3"
    """"simulator/task"; one that has a preset (`rlinf_lab.recipes.ppo.PRESETS`)"""
    seed: int = 0
    """of environments, weights and exploration"""
    iterations: int | None = None
    """updates at most; None: the preset's"""
    executor: str = "ray"
    """"ray" (processes) or "local" (threads of this process)"""
    out: str = "runs"
    """folder that gets a new folder demo-<time>"""
    video: bool = True
    """whether to film the learnt policy"""

    def __post_init__(self) -> None:
        check_executor(self.executor)
        if self.iterations is not None and self.iterations < PROBE_ITERATIONS + 2:
            least = PROBE_ITERATIONS + 2
            raise ConfigError(f"DemoConfig.iterations is {self.iterations}; at least {least}: the first {PROBE_ITERATIONS} measure the temporal plan.")


@dataclass
class Phase:
    """One plan's part of the demo."""

    run: Run
    plan: ExecutionPlan
    predicted_seconds: float | None
    state: dict[str, Any] | None = None
    evaluation: dict[str, float] | None = None

    @property
    def training(self) -> pd.DataFrame:
        """Metrics of the training iterations of this phase, one row each."""
        rows = self.run.metrics
        return rows[rows["env_steps"].notna() & rows["policy_loss"].notna()] if "policy_loss" in rows else rows.iloc[:0]

    @property
    def measured_seconds(self) -> float:
        """Median seconds of a training iteration; the first one warms up and does not count."""
        return float(self.training["seconds"].iloc[1:].median())


class Demo:
    """One demo run; ``view`` is told what happens (see `rlinf_lab.terminal`)."""

    def __init__(self, config: DemoConfig, view: Any) -> None:
        self.config, self.view = config, view
        overrides = {"seed": config.seed} | ({} if config.iterations is None else {"iterations": config.iterations})
        self.ppo = PPOConfig.preset(config.env, **overrides)
        self.devices = slots()
        self.folder = Path(config.out) / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
        self.phases: list[Phase] = []
        self.predictions: dict[str, float] = {}
        self.notes: list[str] = []
        self.film = "not asked for"

    def run(self) -> dict[str, Any]:
        """Do it all; the summary that is also written to ``summary.json``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        flow = build(self.ppo)
        plans = candidates(flow, self.devices)
        self.view.begin(self, plans)
        first = self._phase(flow, plans[0], None, self._probe())
        best, predicted = self._choose(flow, first, plans)
        second = self._phase(build(self.ppo, first.state), best, predicted, self._until_learnt())
        seconds = time.monotonic() - start
        summary = self._summary(first, second, seconds)
        self._write(first, second, summary)
        self.view.end(self, summary)
        return summary

    # --- the phases --------------------------------------------------------------------------------------
    def _phase(self, flow: Workflow, plan: ExecutionPlan, predicted: float | None, inputs: Any) -> Phase:
        started = run(flow, plan, None, self.config.executor, self._requests(inputs))
        phase = Phase(started, plan, predicted)
        self.phases.append(phase)
        self.view.phase(phase, self)
        started.on_update(lambda _: self.view.update(phase))
        results = started.wait()
        for result in results:
            if isinstance(result, dict) and "optimizer" in result:
                phase.state = result
            elif isinstance(result, dict) and "episodes" in result and "policy_loss" not in result:
                phase.evaluation = result
        return phase

    def _requests(self, inputs: Iterator[str]) -> Iterator[str]:
        yield from inputs

    def _probe(self) -> Iterator[str]:
        yield "evaluate"
        for _ in range(PROBE_ITERATIONS):
            yield "train"
        yield "state"

    def _until_learnt(self) -> Iterator[str]:
        """Train until the success rate stays high, or the iterations are used up; then evaluate."""
        for _ in range(self.ppo.updates - PROBE_ITERATIONS):
            yield "train"
            recent = [r.get("success_rate") for r in self.phases[-1].run.results if isinstance(r, dict)]
            known = [r for r in recent if r is not None][-GOOD_ITERATIONS:]
            if len(known) == GOOD_ITERATIONS and sum(known) / len(known) >= GOOD:
                break
        yield "evaluate"
        yield "state"

    def _choose(self, flow: Workflow, first: Phase, plans: list[ExecutionPlan]) -> tuple[ExecutionPlan, float | None]:
        # Not the iterations that evaluate: the policy's answers there are not those of training.
        measured: Estimate = estimate(flow.graph, plans[0], first.run.timeline, set(first.training["iteration"]))
        self.notes = list(measured.notes)
        for plan in plans:
            self.notes += moved(plans[0], plan)
            try:
                self.predictions[plan.name] = measured.iteration_seconds(plan)
            except PlanError as error:
                self.notes.append(f"{plan.name}: {error}")
        fastest = min(self.predictions.values())
        # Within two percent the prediction cannot tell them apart: take the one whose ranks wait for fewer others.
        close = [p for p in plans if self.predictions.get(p.name, float("inf")) <= 1.02 * fastest]
        best = next((p for p in close if p.fused), close[0])
        self.view.choice(self.predictions, best)
        return best, self.predictions[best.name]

    # --- what is left behind -----------------------------------------------------------------------------
    def _summary(self, first: Phase, second: Phase, seconds: float) -> dict[str, Any]:
        phases = [first, second]
        training = pd.concat([p.training for p in phases])
        steps = int(training["env_steps"].max())
        return {
            "env": self.config.env,
            "success_rate_before": (first.evaluation or {}).get("success_rate"),
            "success_rate_after": (second.evaluation or {}).get("success_rate"),
            "success_counts": "at the episode's last step, greedy policy, seeds never used in training",
            "episodes_evaluated": (second.evaluation or {}).get("episodes"),
            "seconds": round(seconds, 2),
            "env_steps": steps,
            "steps_per_second": round(steps / float(training["seconds"].sum()), 1),
            "plan": second.plan.name,
            "plans": {p.plan.name: json.loads(p.plan.to_json()) for p in phases},
            "predictions_seconds": self.predictions,
            "prediction_notes": self.notes,
            "iteration_seconds_predicted": second.predicted_seconds,
            "iteration_seconds_measured": second.measured_seconds,
            "iteration_seconds_temporal": first.measured_seconds,
            "bubble_sum_error_ns": max(abs(p.run.timeline.bubble_sum_error_ns()) for p in phases),
            "seeds": {"training": self.config.seed, "evaluation_from": environment_seed(self.config.seed, Purpose.EVALUATION)},
            "executor": self.config.executor,
            "devices": self.devices,
            "machine": platform.machine(),
            "versions": versions(),
        }

    def _write(self, first: Phase, second: Phase, summary: dict[str, Any]) -> None:
        """Each file is there whole or not at all, whenever the demo is interrupted."""
        from rlinf_lab.recipes import film
        from rlinf_lab.widgets.curves import learning_curve
        from rlinf_lab.widgets.report import timeline_html

        folder, phases = self.folder, [first, second]
        _put_text(folder / "summary.json", json.dumps(summary, indent=1))
        metrics = pd.concat([p.training.assign(plan=p.plan.name) for p in phases], ignore_index=True)
        _put(folder / "metrics.parquet", metrics.to_parquet)
        for number, phase in enumerate(phases, 1):
            stem = f"timeline-{number}-{phase.plan.name}"
            timeline_html(phase.run.timeline, folder / f"{stem}.html", f"{self.config.env}, {phase.plan.name} plan")
            phase.run.timeline.to_perfetto(folder / f"{stem}.pftrace")
            _put_text(folder / f"plan-{number}-{phase.plan.name}.json", phase.plan.to_json())
        curve = learning_curve(metrics, self.config.env)
        _put(folder / "learning_curve.png", lambda file: curve.savefig(file, format="png", dpi=130, facecolor="white"))
        state = second.state
        if state is not None:
            state["weights"].save(folder / "policy.safetensors")
            if self.config.video:
                self.film = film.film(self.ppo, state["weights"], folder / "policy.mp4")


def _put(path: Path, write: Callable[[Path], object]) -> None:
    with writing("demo", path) as file:
        write(file)


def _put_text(path: Path, text: str) -> None:
    _put(path, lambda file: file.write_text(text, encoding="utf-8"))


def moved(measured: ExecutionPlan, plan: ExecutionPlan) -> list[str]:
    """Which workers ``plan`` puts on another kind of device than the one their cost was measured on."""

    def kinds(of: ExecutionPlan, worker: str) -> str:
        return ", ".join(sorted({name.partition(":")[0] for rank in range(of.ranks(worker)) for name in of.device_names(worker, rank)}))

    changes = [(w, kinds(measured, w), kinds(plan, w)) for w in plan.placements]
    return [f"{plan.name}: {w} was measured on {a} and is assumed to take as long on {b}" for w, a, b in changes if a != b]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("rlinf-lab", "torch", "ray", "numpy", "metaworld", "mani-skill", "mujoco"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # an extra that is not installed
            found[package] = "not installed"
    return found
