"""The front door from a shell; training itself is tested with the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlinf_lab.cli import main
from rlinf_lab.experiment_commands import field_docs, parsed
from rlinf_lab.recipes.ppo import PPOConfig
from rlinf_lab.recipes.schedules import linear

FLAGS = ["--num-envs", "2", "--n-steps", "16", "--batch-size", "16", "--n-epochs", "1", "--total-timesteps", "64"]


def test_train_evaluate_runs_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    schedule = ["--learning-rate", "linear(1e-3, 1e-4)", "--gamma", "0.97"]
    assert main(["train", "ppo", "CartPole-v1", *FLAGS, *schedule, "--folder", "runs/one"]) == 0
    config = json.loads(Path("runs/one/config.json").read_text())
    assert config["gamma"] == 0.97 and config["learning_rate"] == {"linear": [1e-3, 1e-4]} and config["total_timesteps"] == 64
    assert main(["evaluate", "runs/one", "--episodes", "3"]) == 0
    assert "3 episodes, seed 1, iteration 2" in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["compare", "runs/one", "runs/one", "--to", "curves.png"]) == 0
    assert "all settings are the same" in capsys.readouterr().out and Path("curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["train", "pppo", "CartPole-v1"], "Did you mean 'ppo'"), (["evaluate", "nowhere"], "no run.json"), (["train", "ppo", "CartPol-v1"], "CartPole-v1")],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("rlinf-lab: ") and said in error and "Traceback" not in error


def test_the_help_has_every_field_with_its_docstring_and_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["train", "ppo", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    docs = field_docs(PPOConfig)
    assert {"gamma", "clip_range", "net_arch", "learning_rate"} <= docs.keys()
    for name in ("gamma", "n_steps", "clip_range", "ent_coef", "learning_rate", "net_arch", "activation"):
        assert f"--{name.replace('_', '-')}" in told and " ".join(docs[name].split())[:40] in told
    assert "(default: 0.98)" in told and "(default: linear(0.001, 0.0001))" in told


def test_numbers_and_schedules_are_read_as_they_are_written() -> None:
    assert parsed("learning_rate", "3e-4") == 3e-4 and parsed("n_epochs", "4") == 4 and isinstance(parsed("n_epochs", "4"), int)
    assert parsed("clip_range", "linear(0.2, 0.1)") == linear(0.2, 0.1) and parsed("activation", "relu") == "relu"
