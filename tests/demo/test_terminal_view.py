"""What the demo prints."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from rlinf_lab.experiments.autoplan.choice import Choice
from rlinf_lab.terminal import choice_table, told


def plan(name: str, seconds: float) -> Any:
    return SimpleNamespace(name=name, seconds=seconds)


def printed(choice: Choice) -> list[list[str]]:
    out = io.StringIO()
    Console(file=out, width=80).print(choice_table(choice))
    return [line.split() for line in out.getvalue().splitlines() if line.strip()]


def test_plans_stand_below_each_other_and_the_best_is_marked() -> None:
    plans: Any = [plan("fused", 0.254), plan("spatial", 12.369)]
    choice = Choice(plan("temporal", 0), plan("auto fused", 0), 0.5, 0.254, True, "saves 20 s", plans)
    assert printed(choice)[1:] == [
        ["plan", "seconds", "an", "iteration"], ["temporal", "0.500", "measured"], ["fused", "0.254", "predicted", "chosen"],
        ["spatial", "12.369", "predicted"], ["saves", "20", "s"],
    ]  # fmt: skip


def test_why_a_plan_was_kept_is_said() -> None:
    old = plan("temporal", 0)
    assert printed(Choice(old, old, 0.5, 0.5, False, "nothing better"))[2] == ["temporal", "0.500", "measured,", "kept"]
    kept = {"plan": "temporal", "why": "AutoPlan(stays)", "iteration_seconds": {"old": 0.5, "predicted": None, "measured": None, "gain": 1.0}}
    assert told(kept) == "plan 'temporal' was kept, 0.500 s an iteration; AutoPlan(stays)"
    assert told({**kept, "iteration_seconds": None}) == "plan 'temporal': AutoPlan(stays)"
    unknown = {"plan": "new", "why": "", "iteration_seconds": {"old": 0.5, "predicted": 0.25, "measured": None, "gain": 2.0}}
    assert "predicted 0.250 s, not measured, [bold]gain 2.00×" in told(unknown)
