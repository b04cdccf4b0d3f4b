"""Whatever is given in place of what is meant: an error of ours that says what was given, never one of numpy or of the standard library."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.cli import main
from rlinf_lab.errors import RlinfLabError
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.adapt.whatif import Question
from rlinf_lab.planning.fit.fit import profile_from_run
from rlinf_lab.planning.fit.from_trace import profile_from_trace
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, Sample, WorkerProfile
from rlinf_lab.widgets.explorer import PlanExplorer

WORK = WorkerProfile((Sample(1, 8.0, 1.0),))
PROFILE = Profile(8, {"a": WORK, "b": WORK}, (EdgeProfile("a", "b"),))
ODD = (None, -1, 0, 1.5, math.nan, math.inf, -math.inf, True, "x", "64", "", b"x", [], [None], (1, 2), {}, {1: 2}, {"": None}, {"": 10**30}, 10**30, 1e300,
       object())  # fmt: skip
NAMES = [f"{i} {type(v).__name__}" for i, v in enumerate(ODD)]
PLANS = plan(PROFILE, 2)
TIMELINE = PLANS.best.simulate(4)


def ours(ask: Callable[[], Any]) -> str:
    """What the error says; "" when there was none."""
    try:
        ask()
    except RlinfLabError as error:
        assert any(said in str(error) for said in ("Next: ", " must be ", "Known: ")), error
        return str(error)
    return ""


@pytest.mark.parametrize("odd", ODD, ids=NAMES)
def test_no_foreign_error_comes_out(odd: Any) -> None:
    for name in ("devices", "memory_gib", "staleness", "micro_batches", "rule", "modes", "profile"):
        ours(lambda name=name: plan(PROFILE, **{"devices": 2, name: odd}))
    for name in ("iterations", "noise", "seed"):
        ours(lambda name=name: PLANS.best.simulate(**{name: odd}))
    for name in ("window", "threshold", "restart_s"):
        ours(lambda name=name: replan(TIMELINE, PLANS.best, **{name: odd}))
    for made in (PROFILE, WORK, WORK.samples[0], PROFILE.edges[0]):
        for field in dataclasses.fields(made):
            ours(lambda made=made, field=field: _planned(made, {field.name: odd}))
    for ask in (
        lambda: plan(odd, 2), lambda: Profile.from_json(odd), lambda: Profile.from_dict(odd), lambda: replan(odd, PLANS.best), lambda: replan(TIMELINE, odd),
        lambda: PlanExplorer(odd), lambda: PROFILE.scaled("a", odd), lambda: PROFILE.scaled(odd, 1.0),
        lambda: profile_from_trace(odd, {"a": "*"}, 8, []), lambda: profile_from_trace(TIMELINE, odd, 8, []), lambda: profile_from_run(odd, odd, odd),
        lambda: profile_from_trace(TIMELINE, {"a": "*"}, odd, []), lambda: profile_from_trace(TIMELINE, {"a": "*"}, 8, odd),
    ):  # fmt: skip
        ours(ask)
    if not isinstance(odd, int):
        assert isinstance(odd, slice | str) or ours(lambda: PLANS[odd])
    if not isinstance(odd, str):
        assert ours(lambda: Profile.load(odd)) and ours(lambda: PROFILE.save(odd))


def _planned(made: Any, change: dict[str, Any]) -> Any:
    changed = dataclasses.replace(made, **change)
    if isinstance(changed, Profile):
        return plan(changed, 2, simulate=False)
    if isinstance(changed, EdgeProfile):
        return plan(PROFILE.replace(edges=(changed,)), 2, simulate=False)
    worker = changed if isinstance(changed, WorkerProfile) else dataclasses.replace(WORK, samples=(changed,))
    return plan(PROFILE.replace(workers={"a": worker, "b": WORK}), 2, simulate=False)


@pytest.mark.parametrize("odd", ODD, ids=NAMES)
def test_an_explorer_survives_questions_that_cannot_be_asked(odd: Any) -> None:
    explorer = PlanExplorer(PLANS)
    for field in dataclasses.fields(Question):
        ours(lambda field=field: explorer.ask(simulate=False, **{field.name: odd}))
        assert explorer.ask(simulate=False, **dataclasses.asdict(Question.of(PLANS))).best.seconds == pytest.approx(PLANS.best.candidate.seconds)


FILES = {
    "binary": bytes(range(256)), "truncated": PROFILE.to_json()[:50].encode(), "empty": b"", "list": b"[1]", "deep": b"[" * 100_000,
    "nan": PROFILE.to_json().replace("1.0", "NaN").encode(), "inf": PROFILE.to_json().replace("1.0", "1e999").encode(),
    "digits": PROFILE.to_json().replace('"items": 8', '"items": 1' + 5000 * "0").encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FILES, "missing", "."])
def test_files_that_are_no_profiles_are_one_line_on_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    if name in FILES:
        path.write_bytes(FILES[name])
    for command in ("plan", "simulate"):
        assert main([command, "--profile", str(path), "--devices", "2"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("rlinf-lab: ") and said.count("\n") == 1 and "Traceback" not in said


def test_a_position_beyond_the_plans_says_how_many_there_are() -> None:
    plans = plan(PROFILE, 8, simulate=False)
    for which in (99, -99):
        with pytest.raises(IndexError, match=rf"plans\[{which}\]: there are {len(plans)}, .* Next: plans\[{len(plans) - 1}\]"):
            plans[which]
    assert plans[-1] is plans[len(plans) - 1] is list(plans)[-1] and plans.index(plans[0]) == 0
