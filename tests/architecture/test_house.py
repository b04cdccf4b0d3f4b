"""The house: light import, walls, public names, what must not be in the repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rlinf_lab

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "vllm", "plotly", "pandas", "ipywidgets", "gymnasium", "numpy")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).exists()]


def test_the_import_loads_nothing_heavy() -> None:
    code = f"import sys, rlinf_lab; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_timeline_loads_numpy_only() -> None:
    """Pandas and pyarrow come with the first frame or file, psutil and NVML with the first sampler."""
    heavy = (*HEAVY, "pyarrow", "psutil", "pynvml")
    code = f"import sys, rlinf_lab.timeline; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['numpy']"


def test_the_import_adds_few_modules() -> None:
    """A bound on what is loaded instead of on seconds, which a busy machine stretches: about 0.02 s."""
    code = "import sys; before = len(sys.modules); import rlinf_lab; print(len(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60


def test_every_public_name_resolves() -> None:
    for name in dir(rlinf_lab):
        assert getattr(rlinf_lab, name) is not None
    with pytest.raises(AttributeError, match="did you mean 'Workflow'"):
        _ = rlinf_lab.Workflw


def test_the_walls_stand() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_init_files_under_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_modules_stay_small() -> None:
    sizes = {p.relative_to(ROOT): len(p.read_text().splitlines()) for p in tracked() if p.suffix == ".py" and "rlinf_lab" in p.parts}
    large = {str(p): n for p, n in sizes.items() if n > 700}
    assert large == {}
    ordered = sorted(sizes.values())
    assert ordered[len(ordered) // 2] <= 250


def test_no_machine_paths_or_registry_hosts_are_kept() -> None:
    words = ["/wo" + "rk/", "/opt/py" + "pi", "/ro" + "ot/"]
    found = [
        (p.relative_to(ROOT), word)
        for p in tracked() if p.suffix in (".py", ".md", ".toml", ".txt", ".yml", ".sh", ".ipynb", ".js", ".json", "")
        for word in words if word in p.read_text(errors="ignore")
    ]  # fmt: skip
    assert found == []


def test_notebooks_have_a_kernelspec_and_no_stored_output() -> None:
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        content = json.loads(path.read_text())
        assert content["metadata"]["kernelspec"]["name"] == "python3", path.name
        assert not [c for c in content["cells"] if c.get("outputs")], path.name
