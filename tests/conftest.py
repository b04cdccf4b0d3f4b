"""Shared by all rooms: threads, Ray's settings, and the rule that CI must not skip what it is meant to run."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_processes
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: beside tests of other processes, what Ray starts hardly has its turn
os.environ.setdefault("RLINF_LAB_CACHE", "")  # which runner was fast is measured, and not read from the user's cache
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # where that is set, each of some hundred processes compiles the library again: 0.3 s
sys.dont_write_bytecode = False
# No test depends on how fast this machine is.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

NURSERY = warm_processes.Nursery()
FORKS = sys.platform == "linux" and not os.environ.get("RLINF_LAB_FRESH_PROCESSES")
GROUPS = ("browser", "ray", "gpu")  # those on one GPU slow each other down
#: Rooms whose files take long; what is short fills up the end.
LASTING = tuple(f"tests/{room}/" for room in ("simulators", "notebooks", "benchmarks", "experiments", "recipes", "generation", "runtime", "planning"))
#: What `make test-quick` leaves out, by name.
HEAVY = {line for line in (Path(__file__).parent / "heavy.txt").read_text().split("\n") if line and not line.startswith("#")}
REQUIRED = {
    "browser": "RLINF_LAB_REQUIRE_BROWSER", "vllm": "RLINF_LAB_REQUIRE_VLLM", "lerobot": "RLINF_LAB_REQUIRE_LEROBOT", "warp": "RLINF_LAB_REQUIRE_WARP",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start Ray, or a browser, run one after another: two cores hold one of each. What lasts begins first."""
    for item in items:
        for marker in GROUPS:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.xdist_group(marker))
        if item.nodeid.removeprefix("tests/").partition("[")[0] in HEAVY:
            item.add_marker(pytest.mark.heavy)
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, int]:
    marked = next((i for i, marker in enumerate(GROUPS) if item.get_closest_marker(marker)), len(GROUPS))
    return marked, next((i for i, room in enumerate(LASTING) if item.nodeid.startswith(room)), len(LASTING))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Groups, else whole files: see `whole_files`."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from whole_files import WholeFiles

    return WholeFiles(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is here before the first test stays to the end: thousands of tests and all that they import are not walked through at each full collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after the fixtures of the test, which may still use it
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The private Ray that one test has started, which takes seconds, serves the next ones, and ends with the last of them."""
    started = sys.modules.get("rlinf_lab.runtime.executors.ray_start")
    if started and item.get_closest_marker("ray") and not _another_needs_ray(item, nextitem):
        started.shutdown()


def _another_needs_ray(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """In this process: where several share the tests, those that need it come one after another."""
    items = item.session.items
    later = [nextitem] if "PYTEST_XDIST_WORKER" in os.environ else items[items.index(item) + 1 :]
    return any(other is not None and other.get_closest_marker("ray") for other in later)


def pytest_unconfigure() -> None:
    NURSERY.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures: tests of a GPU may use it there."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU that torch can use")
    if item.get_closest_marker("lerobot"):
        pytest.importorskip("lerobot", reason="lerobot has an environment of its own: make test-lerobot")
    if item.get_closest_marker("vllm"):
        pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")
    if item.get_closest_marker("warp") and importlib.util.find_spec("mujoco_warp") is None:  # not imported: MuJoCo looks then how it can draw
        pytest.skip("MuJoCo Warp has an environment of its own: make test-warp")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Where a kind of test is required (CI), one that skips has failed."""
    outcome = yield
    report = outcome.get_result()
    for marker, variable in REQUIRED.items():
        if report.skipped and os.environ.get(variable) and item.get_closest_marker(marker):
            report.outcome = "failed"
            report.longrepr = f"skipped, but {variable} requires it: {report.longrepr}"


@pytest.fixture
def warm_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program as ``python -c`` would, in a process that has imported torch already: `warm_processes.Nursery.run`."""
    return NURSERY.run if FORKS else warm_processes.run_anew


@pytest.fixture(autouse=True)
def _warm_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of the processes executor begin with torch imported, except where a test is about how they begin."""
    anew = any(map(request.node.get_closest_marker, ("fresh", "gpu")))  # CUDA survives no fork
    if FORKS and not anew and "rlinf_lab.runtime" in sys.modules:
        from rlinf_lab.runtime.executors import child

        monkeypatch.setattr(child, "subprocess", warm_processes.instead_of(child, NURSERY))
