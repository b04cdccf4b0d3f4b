"""Every benchmark runs at a tiny size, so that none rots; no time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "import_time", "engine", "simulator", "planner_optimality", "planner_search", "prediction_error", "switching", "asynchronous", "socket_cost",
        pytest.param("front_door", marks=pytest.mark.slow), pytest.param("auto_plan", marks=pytest.mark.slow),
        "generation", "length_replay", "staleness_model", "idle_shares", "tool_cell", "stream_gain", "dispatch", pytest.param("grpo_small_model", marks=pytest.mark.slow),
        pytest.param("clone_then_rl", marks=pytest.mark.slow), pytest.param("generation_vllm", marks=pytest.mark.vllm), pytest.param("warp_arm", marks=pytest.mark.warp),
        pytest.param("simulators", marks=pytest.mark.slow), pytest.param("recorder", marks=pytest.mark.slow), pytest.param("workflow_overhead", marks=pytest.mark.slow),
        pytest.param("off_policy", marks=pytest.mark.slow), pytest.param("async_collect", marks=pytest.mark.slow), "td3_bc",
        pytest.param("sac_mujoco", marks=pytest.mark.slow), pytest.param("rlpd", marks=pytest.mark.slow), pytest.param("cloning", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_benchmark_runs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/harness.py", name, "--smoke"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_a_span_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's benchmark takes half a minute and is slow; it had gone on calling what was gone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from watched import nanoseconds_per_write

    assert nanoseconds_per_write(200) > 0


def _of_the_readme(word: str) -> str:
    """The first example with this word in it."""
    examples = [part.split("```")[0] for part in (ROOT / "README.md").read_text().split("```python\n")[1:]]
    return next(example for example in examples if word in example)


def test_the_readme_example_runs(warm_python: Any) -> None:
    done = warm_python(_of_the_readme("lab.Workflow"))
    # Source read from a string cannot be inspected; the safe answer (compute first) must still give the right result.
    assert done.returncode == 0, done.stderr[-2000:]
    assert "[328350, 328350, 328350, 328350, 328350]" in done.stdout and "starved" in done.stdout


def test_the_readme_trains(tmp_path: Path, warm_python: Any) -> None:
    done = warm_python(_of_the_readme("lab.train").replace("100_000", "2_000") + "print(policy)\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "95 % interval" in done.stdout and "gamma=0.9" in done.stdout and "TrainedPolicy" in done.stdout
    assert (tmp_path / "runs/cartpole/policy.safetensors").exists()
