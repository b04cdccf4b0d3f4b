"""The front door from a shell; training itself is tested with the library."""

from __future__ import annotations

import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from rlinf_lab.cli import main
from rlinf_lab.experiment_commands import Compare, flag_type, parsed
from rlinf_lab.experiments import exits, starting, train
from rlinf_lab.experiments.recipe import HOMES
from rlinf_lab.experiments.storage.folder import RunFolder
from rlinf_lab.recipes.described import field_docs
from rlinf_lab.recipes.grpo import GRPOConfig
from rlinf_lab.recipes.ppo import PPOConfig
from rlinf_lab.recipes.schedules import linear

FLAGS = ["--num-envs", "2", "--n-steps", "16", "--batch-size", "16", "--n-epochs", "1", "--total-timesteps", "64"]


def test_train_evaluate_runs_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    schedule = ["--learning-rate", "linear(1e-3, 1e-4)", "--gamma", "0.97"]
    assert main(["train", "ppo", "CartPole-v1", *FLAGS, *schedule, "--folder", "runs/one"]) == 0
    assert capsys.readouterr().out == f"Next: rlinf-lab evaluate {Path('runs/one')}\n"
    config = json.loads(Path("runs/one/config.json").read_text())
    assert config["gamma"] == 0.97 and config["learning_rate"] == {"linear": [1e-3, 1e-4]} and config["total_timesteps"] == 64
    assert main(["evaluate", "runs/one", "--episodes", "3"]) == 0
    assert "3 episodes, seed 1, iteration 2" in capsys.readouterr().out
    assert main(["trace", "runs/one"]) == 0
    assert "learner" in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["resume", "runs/one", "--total-timesteps", "96"]) == 0
    assert json.loads(Path("runs/one/run.json").read_text())["iteration"] == 3
    assert "(as the run was begun)" in capsys.readouterr().err, "nobody asked for it by name"
    assert main(["compare", "runs/one", "runs/one", "--to", "curves.png"]) == 0
    assert "all settings are the same" in capsys.readouterr().out and Path("curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "pppo", "CartPole-v1"], "Did you mean 'ppo'"), (["evaluate", "nowhere"], "no run.json"), (["train", "ppo", "CartPol-v1"], "CartPole-v1"),
        (["train", "sac", "reasoning/remainder"], "rlinf-lab train grpo reasoning/remainder"),
        (["train", "grpo", "reasoning/remaind"], "Did you mean 'reasoning/remainder'"), (["train", "grpo", "CartPol-v1"], "rlinf-lab train ppo ..."),
        (["evaluate", "nowhere"], "Next: rlinf-lab runs lists"), (["resume", "nowhere"], "Next: rlinf-lab runs lists"),
        (["train", "ppo", "CartPole-v1", "--total-timesteps", "0"], "--total-timesteps is 0; it must be a whole number of at least 1, or None. Next: --total-timesteps 100000."),
        (["train", "ppo", "CartPole-v1", "--eval-every", "0"], "--eval-every 0: environment steps"),
        (["train", "ppo", "CartPole-v1", "--executor", "thread"], "executor='thread' is not known. Next: 'local'"),
        (["train", "rlpd", "Pendulum-v1"], "lab.collect(env, 'expert'"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("rlinf-lab: ") and said in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("typed", "names", "settings"),
    [
        ("resume --total-timesteps 200 DIR", [], {"total_timesteps": 200}), ("resume DIR --total-timesteps 200", [], {"total_timesteps": 200}),
        ("resume DIR --env problems.jsonl", [], {"env": "problems.jsonl"}),
        ("resume --net-arch 32 16 DIR --gamma 0.9", [], {"net_arch": (32, 16), "gamma": 0.9}),
        ("train --total-timesteps 200 ppo CartPole-v1", ["ppo", "CartPole-v1"], {"total_timesteps": 200}),
        ("train ppo --total-timesteps 200 CartPole-v1 --seed 3", ["ppo", "CartPole-v1"], {"total_timesteps": 200, "seed": 3}),
        ("train --net-arch 64 64 ppo CartPole-v1", ["ppo", "CartPole-v1"], {"net_arch": (64, 64)}),
        ("train ppo --loggers csv tensorboard CartPole-v1", ["ppo", "tensorboard"], {}),
        ("train --loggers csv tensorboard ppo CartPole-v1", ["ppo", "CartPole-v1"], {"loggers": ("csv", "tensorboard")}),
        ("train --loss ppo grpo reasoning/sorting", ["grpo", "reasoning/sorting"], {"loss": "ppo"}),
        ("train --total-timesteps=200 ppo problems.jsonl", ["token_ppo", "problems.jsonl"], {"total_timesteps": 200}),
    ],
)
def test_options_may_stand_before_or_behind(
    typed: str, names: list[str], settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder(tmp_path).about(algorithm="ppo")
    called: list[tuple[list[str], dict[str, object]]] = []

    class Done:
        folder = "there"

        def wait(self) -> None: ...

    def begins(first: object, *rest: str, **given: object) -> Done:
        called.append(([getattr(first, "name", ""), *rest] if rest else [], given))
        return Done()

    monkeypatch.setattr(starting, "train", begins)
    monkeypatch.setattr(starting, "resume", begins)
    assert main(typed.replace("DIR", str(tmp_path)).split()) == 0
    ((found, given),) = called
    assert found == names and given.items() >= settings.items()


def test_folders_to_compare_may_stand_around_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Compare] = []
    monkeypatch.setattr(Compare, "run", lambda self: seen.append(self) or 0)
    assert main(["compare", "1", "--metric", "return", "b", "--to", "c.png"]) == 0
    assert seen == [Compare((Path("1"), Path("b")), "return", Path("c.png"))]


@pytest.mark.parametrize(("while_importing", "said"), [("tyro", "nothing had begun"), ("rlinf_lab.experiments.starting", "everything was stopped")])
def test_an_interrupt_of_the_imports_is_one_line(while_importing: str, said: str) -> None:
    code = f"""
import runpy, sys
class Interrupts:
    def find_spec(self, name, *rest):
        if name == {while_importing!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = ["rlinf-lab", "train", "ppo", "CartPole-v1"]
runpy.run_module("rlinf_lab", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (130, f"rlinf-lab: interrupted; {said}.")


def test_what_was_begun_is_ended_when_somebody_interrupts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Begun:
        stops = 0

        def wait(self) -> None: ...
        def stop(self) -> None:
            self.stops += 1

    begun = Begun()
    monkeypatch.setattr(exits, "_STARTED", {begun})

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(starting, "train", interrupted)
    assert main(["train", "ppo", "CartPole-v1"]) == 130 and begun.stops == 1
    assert capsys.readouterr().err == "\nrlinf-lab: interrupted; everything was stopped.\n" and not exits._STARTED


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
    assert flag_type(typing.get_type_hints(GRPOConfig)["tools"]) == tuple[str, ...]  # names, or objects elsewhere
    assert parsed("clip_range", "linear(0.2, 0.1)") == linear(0.2, 0.1) and parsed("activation", "relu") == "relu"


def test_the_help_of_train_names_what_it_takes_and_every_algorithm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    told = capsys.readouterr().out
    assert "ALGORITHM" in told and "ENV" in told and "STR" not in told
    assert all(name in told for name in HOMES if name != "embodied_grpo")  # grpo, where an environment is trained on


@pytest.mark.parametrize("waited", [True, False])
def test_a_failure_is_said_once(waited: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where somebody waited it was raised there; else a script says it at its exit."""
    monkeypatch.setattr(exits, "is_script", lambda: True)

    def stops(row: object) -> None:
        raise ArithmeticError("of the user's function")

    run = train("ppo", "CartPole-v1", total_timesteps=64, num_envs=2, n_steps=16, batch_size=16, n_epochs=1, on_iteration=stops, folder=False, plan=None)
    if waited:
        with pytest.raises(ArithmeticError):
            run.wait()
    exits._wait_for_all()
    assert capsys.readouterr().err.count("of the user's function") == (0 if waited else 1)
