"""Temporal, spatial and hybrid on a real embodied job (PPO on Meta-World, two cores, processes): is the predicted order the measured one, and how far off?

One run on a single core is measured, and what messages cost and how much two busy cores slow each other down; the three modes are predicted from it. In
each of three rounds all of that goes by turns, two iterations of each, so that a machine that is slower in one minute than in the next is so for all.
"""

from __future__ import annotations

import statistics
from typing import Any

from harness import Case
from prediction_error import devices, in_turn

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.executors.ray_start import shutdown

ROUNDS, TURNS = 3, 12


def plans(flow: lab.Workflow) -> tuple[ExecutionPlan, dict[str, ExecutionPlan]]:
    """(the measured one, the modes). Everywhere two tokens, answered one by one."""
    one = {"micro_batches": {"obs": 1}}
    double = {"sub_batches": {"simulator": 2}, **one}
    measured = ExecutionPlan.temporal(flow, devices(1), name="measured", **double)
    return measured, {
        "temporal": ExecutionPlan.temporal(flow, devices(2), {"simulator": 2}, **one),
        "spatial": ExecutionPlan.spatial(flow, devices(2), {"simulator": [0], "policy": [1], "learner": [1]}, **double),
        "hybrid": ExecutionPlan.fused_cells(flow, devices(2), {"simulator": 2}, name="hybrid", **one),
    }


class Rounds:
    """Seconds of an iteration by mode: ``predicted`` and ``measured``, a dict for each round."""

    def __init__(self, smoke: bool) -> None:
        self._smoke = smoke
        self._found: list[tuple[dict[str, float], dict[str, float]]] = []

    def get(self) -> list[tuple[dict[str, float], dict[str, float]]]:
        if not self._found:
            flow = build(PPOConfig.preset("numpy/ReachArm-v0" if self._smoke else "metaworld/button-press-v3"))
            first, modes = plans(flow)
            n = 1 if self._smoke else TURNS
            for _ in range(1 if self._smoke else ROUNDS):
                ((timeline, _), *ran), found = in_turn(flow, [first, *modes.values()], n, "ray")
                estimate = lab.estimate(flow, first, timeline, **found)
                predicted = {name: estimate.iteration_seconds(plan) for name, plan in modes.items()}
                self._found.append((predicted, {name: seconds for name, (_, seconds) in zip(modes, ran, strict=True)}))
            shutdown()
        return self._found

    def same_order(self) -> float:
        """Share of the rounds."""
        return statistics.mean(sorted(p, key=p.__getitem__) == sorted(m, key=m.__getitem__) for p, m in self.get())

    def off(self, mode: str) -> float:
        """How far the ratio of this mode to the temporal one is off: median over the rounds of |predicted ratio / measured ratio - 1|."""
        return statistics.median(abs(p[mode] / p["temporal"] / (m[mode] / m["temporal"]) - 1) for p, m in self.get())

    def table(self) -> list[list[float]]:
        return [[round_number, *p.values(), *m.values()] for round_number, (p, m) in enumerate(self.get())]


def cases(smoke: bool) -> list[Case]:
    rounds = Rounds(smoke)
    note: dict[str, Any] = {"runs": 1, "target_of": "value"}
    return [
        Case(
            "modes_real_job, order as predicted", "of the rounds", rounds.same_order, target=">= 1", curve=rounds.table,
            note="curve: round, predicted temporal, spatial, hybrid, measured temporal, spatial, hybrid (seconds)", **note,
        ),
        Case("modes_real_job, spatial to temporal", "|predicted / measured ratio - 1|", lambda: rounds.off("spatial"), target="<= 0.1", **note),
        Case("modes_real_job, hybrid to temporal", "|predicted / measured ratio - 1|", lambda: rounds.off("hybrid"), target="<= 0.1", **note),
    ]  # fmt: skip
