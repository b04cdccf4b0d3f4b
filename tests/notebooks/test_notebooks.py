"""Each notebook runs from top to bottom at a small size; as it is stored it has a kernel, parameters, all outputs or none, and an assertion at the end."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
SMALL: dict[str, dict[str, Any]] = {
    "00_hello": {"env_id": "numpy/ReachArm-v0", "executor": "local", "total_timesteps": 61_440, "expected_rise": 0.1},
    "01_your_environment": {"total_timesteps": 2_200, "expected_success": 0.0},
    "02_compare": {"total_timesteps": 6_000, "seeds": 1},
    "10_workflows": {"population": 32},
    "20_profiling": {"items": 12, "iterations": 2},
    "21_planning": {"devices": 16, "micro_batches": 16},
    "22_published_comparisons": {"simulate": True, "asked": ["1.5B, 128", "ManiSkill, 16", "LIBERO, 8"]},
    "30_live_timeline": {"samples": 24, "iterations": 4},
    "31_reading_a_timeline": {"iterations": 3},
    "40_any_plan": {"steps": 4, "iterations": 3},
    "41_idle_devices": {"samples": 12, "iterations": 2},
    "50_simulators": {"envs": ["CartPole-v1", "numpy/ReachArm-v0"], "num_envs": 4, "steps": 5, "frames": 2},
    "51_on_a_gpu": {"num_envs": 64, "few": 4, "seconds": 5, "iterations": 3, "goal": 0.0},
    "61_where_the_bubbles_go": {"iterations": 3, "updates": 60},
    "70_sac": {"total_timesteps": 2_048, "expected_return": -2_000},
    "62_tools": {"iterations": 2, "warm_up_steps": 2, "prompts": 4, "group_size": 4},
    "60_reasoning": {"iterations": 2, "warm_up_steps": 2, "prompts": 4, "group_size": 4},
    "63_vllm": {"iterations": 2, "warm_up_steps": 2, "prompts": 4, "group_size": 4},
    "71_demonstrations_to_rl": {
        "episodes": 2, "gradient_steps": 100, "num_envs": 4, "iterations": 1, "test_episodes": 2, "film_episodes": 1, "least_gain": -1.0,
    },
    "72_your_own_loss": {"total_timesteps": 7_680, "seeds": 1, "expected_rise": -1e9},
    "73_your_own_data": {"episodes": 5, "gradient_steps": 300},
    "74_at_the_controls": {"demonstrations": 2, "corrected": 2, "gradient_steps": 50, "test_episodes": 2, "least_gain": -1.0},
    "75_from_data_alone": {"episodes": 4, "gradient_steps": 40, "eval_every": 20, "test_episodes": 2, "least_gain": -1e9},
}  # fmt: skip
MOST_BYTES = 1_500_000
DAILY = "20_profiling"
RAY = {"10_workflows", "40_any_plan"}
IN_LAB = {"00_hello", "21_planning", "30_live_timeline", "31_reading_a_timeline"}  # run from top to bottom by tests/browser, in JupyterLab


def parameters() -> list[Any]:
    """One of them each day, and one in JupyterLab; the others in `make test-long`."""
    marks = {name: [pytest.mark.long, pytest.mark.ray] for name in RAY} | {name: [pytest.mark.slow] for name in IN_LAB}
    marks |= {"51_on_a_gpu": [pytest.mark.warp], "63_vllm": [pytest.mark.vllm], DAILY: []}
    return [pytest.param(p, id=p.stem, marks=marks.get(p.stem, [pytest.mark.long])) for p in NOTEBOOKS]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", parameters())
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import papermill  # not above: each process that collects the tests would

    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    done = papermill.execute_notebook(
        path, tmp_path / path.name, SMALL[path.stem], cwd=tmp_path, progress_bar=False, execution_timeout=120
    )  # fmt: skip
    assert all(c.execution_count for c in done.cells if c.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_stored_clean(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert book.metadata["kernelspec"]["name"] == "python3"
    code = [c for c in book.cells if c.cell_type == "code"]
    assert len({c.execution_count is None for c in code}) == 1, "executed as a whole, or not at all"
    outputs = [o for c in code for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert path.stat().st_size <= MOST_BYTES, "what is stored is read on a page, and kept in every clone"
    assert not book.metadata.get("widgets"), "states of widgets are of the kernel that made them: pictures are static"
    assert max(len(line) for c in code for line in c.source.splitlines()) <= 145, "a line that a laptop's page cuts off"
    assert "parameters" in code[0].metadata.get("tags", [])
    assert "assert " in code[-1].source
    assert set(SMALL[path.stem]) <= {line.split(" =")[0] for line in code[0].source.splitlines()}


def test_the_plans_of_40_are_foretold_exactly_at_the_size_that_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a size where all batches are alike nobody can know what other batches cost."""
    code = [c.source for c in nbformat.read(REPOSITORY / "notebooks" / "40_any_plan.ipynb", as_version=4).cells if c.cell_type == "code"]
    wanted = [code[0], *(c for c in code if any(mark in c for mark in ("rlinf_lab as lab", "class Simulator", "plans = {", "foretold = {")))]
    file = tmp_path / "any_plan_as_stored.py"
    file.write_text("\n\n".join(wanted))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)  # where the source of a class is looked for
    spec.loader.exec_module(module)
    assert len(module.plans) == 5
    assert {n: t.elapsed_ns for n, t in module.foretold.items()} == {n: run.timeline.elapsed_ns for n, run in module.exact.items()}
