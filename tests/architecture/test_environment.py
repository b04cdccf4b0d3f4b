"""environment.yml: its pip section is really installed, into a fresh environment.

`make` does so once in a clean checkout (tools/setup.sh installs that section). The test here does it in every run of the suite without
downloading again: the packages of the running environment are visible in the fresh one, all but this project, and pip does the rest: it
resolves the section with its constraints and extras against them, builds, installs, writes the scripts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def section() -> list[str]:
    """The words that conda hands to pip."""
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert any(str(d).startswith("python=3.11") for d in conda["dependencies"]) and "pip" in conda["dependencies"]
    (lines,) = [d["pip"] for d in conda["dependencies"] if isinstance(d, dict)]
    return [word for line in lines for word in line.split()]


def outside() -> dict[str, str]:
    """The environment of a user who is not in this repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}


def say(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=outside(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


def fresh(folder: Path) -> Path:
    """The Python of a new, empty environment."""
    say(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    return folder / "bin" / "python"


def see_packages(python: Path) -> None:
    """Make everything installed here visible there, but this project (its own path file is not read). pip removes nothing that is outside."""
    target = Path(say(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=ROOT).strip())
    (target / "shared.pth").write_text(sysconfig.get_path("purelib"))


def test_make_installs_what_conda_would() -> None:
    """One place says what is installed: tools/setup.sh reads the section."""
    assert say("bash", "tools/setup.sh", "--section", cwd=ROOT).split() == section() == ["-c", "constraints.txt", "-e", ".[dev]"]
    makefile = (ROOT / "Makefile").read_text()
    assert "$(STAMP): pyproject.toml constraints.txt environment.yml tools/setup.sh" in makefile


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_pip_section_installs_into_a_fresh_environment(tmp_path: Path) -> None:
    python = fresh(tmp_path / "env")
    see_packages(python)
    find = "import importlib.util; print(importlib.util.find_spec('rlinf_lab'))"
    assert say(python, "-c", find, cwd=tmp_path).strip() == "None"
    report = tmp_path / "report.json"
    offline = ("--no-index", "--no-build-isolation")  # nothing to look for: it is all visible
    say(python, "-m", "pip", "install", "--quiet", *offline, "--report", report, *section(), cwd=ROOT)
    (installed,) = json.loads(report.read_text())["install"]
    assert installed["metadata"]["name"] == "rlinf-lab" and installed["requested_extras"] == ["dev"]
    use = "import rlinf_lab as lab; print(lab.__file__); print(*lab.envs.ids())"
    where, names = say(python, "-c", use, cwd=tmp_path).splitlines()
    assert Path(where) == ROOT / "rlinf_lab" / "__init__.py"
    assert {"numpy/ReachArm-v0", "metaworld/button-press-v3", "maniskill/PushCube-v1"} <= set(names.split())
    assert json.loads(say(tmp_path / "env" / "bin" / "rlinf-lab", "doctor", "--json", cwd=tmp_path))["ok"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_pip_section_installs_from_nothing(tmp_path: Path) -> None:
    """Every package from the index."""
    python = fresh(tmp_path / "env")
    try:
        say(python, "-m", "ensurepip", cwd=ROOT)
        say(python, "-m", "pip", "install", "-q", *section(), cwd=ROOT)
        say(python, "-m", "pip", "check", cwd=tmp_path)
        say(python, "-c", "import rlinf_lab as lab; assert lab.doctor().ok; assert lab.envs.ids('metaworld')", cwd=tmp_path)
    finally:
        shutil.rmtree(tmp_path / "env")  # gigabytes, which pytest would keep


def test_make_lab_starts_for_root_too() -> None:
    """Jupyter refuses root, which is who one is in most containers, unless told so."""
    said = subprocess.run(["make", "--dry-run", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "jupyter lab" in said and ("--allow-root" in said) == (os.getuid() == 0)
