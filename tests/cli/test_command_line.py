"""The shell's way in, and the doctor."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rlinf_lab.checkup as doctor_module
from rlinf_lab.cli import main
from rlinf_lab.demo import DemoConfig
from rlinf_lab.errors import ConfigError


def test_the_doctor_finds_what_is_here(capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {c["name"]: c for c in report["checks"]}
    assert report["ok"] and found["torch"]["status"] == "ok"
    assert set(found) >= {"Python", "processors", "GPU", "Ray", "Meta-World", "ManiSkill", "Vulkan", "vLLM", "disk"}
    assert all(set(c) == {"name", "status", "found", "mend"} for c in report["checks"])


def test_the_doctor_says_how_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor_module.installed
    monkeypatch.setattr(doctor_module, "installed", lambda name: None if name in ("metaworld", "torch") else real(name))
    report = doctor_module.doctor()
    assert report["Meta-World"].status == "optional" and "rlinf-lab[metaworld]" in report["Meta-World"].mend
    assert report["torch"].status == "broken" and not report.ok
    assert "mend: pip install torch" in repr(report) and "<table" in report._repr_html_()


def test_the_doctor_says_what_draws_the_classic_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor_module.importlib.util.find_spec
    monkeypatch.setattr(doctor_module.importlib.util, "find_spec", lambda name, *more: None if name == "pygame" else real(name, *more))
    assert doctor_module.doctor()["pygame"].mend == 'pip install "gymnasium[classic-control]"'


def test_the_doctor_names_the_environment_to_use(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Sets that exclude each other: in the one without MuJoCo Warp it says where that is, or what makes it; in its own what is not there."""
    monkeypatch.chdir(tmp_path)
    real = doctor_module.installed
    here = {"mujoco-warp": None}
    monkeypatch.setattr(doctor_module, "installed", lambda name: here.get(name, "1.0") if name in ("mujoco-warp", "mjlab", "mujoco") else real(name))
    assert "make env-warp" in doctor_module.doctor()["MuJoCo Warp"].mend
    (tmp_path / ".venv-warp/bin").mkdir(parents=True)
    (tmp_path / ".venv-warp/bin/python").touch()
    assert doctor_module.doctor()["MuJoCo Warp"].mend == "use .venv-warp/bin/python"
    here["mujoco-warp"] = "3.11.0"
    found = doctor_module.doctor()["MuJoCo Warp"]
    assert found.status == "ok" and "Meta-World" in found.found and ".venv" in found.found


def test_a_wrong_environment_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture, tmp_path) -> None:
    assert main(["demo", "--env", "metaworld/button-pres-v3", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'metaworld/button-press-v3'" in said and "Traceback" not in said


def test_an_unknown_executor_is_refused_before_a_folder_is_made(capsys: pytest.CaptureFixture, tmp_path) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--executor", "x", "--out", str(tmp_path / "runs")])
    assert "executor='x' is not known" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_python_m_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "rlinf_lab", "trace", "--help"], capture_output=True, text=True, check=True)
    assert "Chrome trace JSON" in shown.stdout


def test_no_iterations_are_refused() -> None:
    with pytest.raises(ConfigError, match="iterations is 0; at least 1"):
        DemoConfig(iterations=0)


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [(["plan", "--devises", "3"], "Next: rlinf-lab plan --profile profile.json --devices 64 (all options: rlinf-lab plan --help)."),
     (["plna"], "Next: rlinf-lab plan --profile"), (["doctor", "--jsn"], "Next: rlinf-lab doctor (all options"),
     (["trace"], "Next: rlinf-lab trace run.parquet"),
     (["train", "sac", "CartPole-v1", "--bogus", "3"], "Next: rlinf-lab train ppo CartPole-v1 --total-timesteps 100000 (all options: rlinf-lab train sac --help)."),
     (["train", "--bogus"], "Next: rlinf-lab train ppo CartPole-v1 --total-timesteps 100000 (all options: rlinf-lab train ppo --help)."),
     ([], "Next: rlinf-lab doctor (all commands: rlinf-lab --help)."), (["--out", "7"], "Next: rlinf-lab doctor (all commands")],
)  # fmt: skip
def test_arguments_that_are_no_command_end_with_one_that_is(typed: list[str], wanted: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == 2 and capsys.readouterr().err.splitlines()[-1].startswith(wanted)


def test_help_has_no_next_step(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--help"])
    assert not ended.value.code and "Next" not in capsys.readouterr().err
