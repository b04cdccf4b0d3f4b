"""The front door on a small numpy task, all in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import gymnasium
import numpy as np
import psutil
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, ExecutorError, MissingDependencyError, UnknownNameError
from rlinf_lab.experiments import TrainingRun
from rlinf_lab.experiments.display.progress import Line
from rlinf_lab.experiments.recipe import find
from rlinf_lab.experiments.settings import with_runner
from rlinf_lab.experiments.storage import keeping
from rlinf_lab.experiments.storage.folder import RunFolder
from rlinf_lab.recipes.ppo import PPOConfig
from rlinf_lab.vecenv import EnvSpec, registry, runners
from rlinf_lab.workers.learner import Number
from rlinf_lab.workers.seeds import looks_seed

SMALL: dict[str, Any] = {"num_envs": 4, "n_steps": 20, "batch_size": 40, "n_epochs": 1, "progress": False, "max_episode_steps": 20}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


class Breaks(gymnasium.Env[Any, Any]):
    """Ends in its third step."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 3:
            raise RuntimeError("the arm fell off")
        return np.zeros(2, np.float32), 1.0, False, False, {}


def train(**more: Any) -> TrainingRun:
    return lab.train("ppo", "numpy/ReachArm-v0", **{**SMALL, "iterations": 6, "folder": False, **more})


def arrays(run: TrainingRun) -> dict[str, np.ndarray]:
    return run.policy().module.weights().arrays


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_looking_at_a_run_does_not_change_what_it_learns() -> None:
    alone, watched = train(), train(eval_every={"iterations": 2}, eval_episodes=4, on_iteration=lambda row: {"doubled": 2 * row["env_steps"]})
    early = watched.evaluate(episodes=4, seed=1)
    assert early["episodes"] == 4 and 1 <= early["iteration"] <= 6 and early["length"] == 20
    alone.wait()
    watched.wait()
    assert same(arrays(alone), arrays(watched))
    table = watched.metrics
    assert table["iteration"].tolist() == [1, 2, 3, 4, 5, 6] and table["seconds"].notna().all()
    assert table["eval_return"].notna().tolist() == [False, True] * 3 and (table["doubled"] == 2 * table["env_steps"]).all()
    looks = looks_seed(0)
    assert watched.evaluate(4, looks)["return"] == table["eval_return"].iloc[-1], "the same seeds, the same policy"
    assert watched.evaluate(4, looks, best=True)["return"] == table["eval_return"].max()
    assert not set(watched.evaluate(4).returns_E) & set(watched.evaluate(4, looks).returns_E), "what chose a policy does not judge it"


def test_a_run_is_kept_and_goes_on_from_its_folder(tmp_path: Path) -> None:
    run = train(folder=None, eval_every=160, eval_episodes=4).wait()
    assert run.folder is not None and run.folder.parent == Path("runs")
    about = json.loads((run.folder / "run.json").read_text())
    assert about["state"] == "finished" and about["iteration"] == 6 and about["seeds"]["training"] == 0 and "torch" in about["versions"]
    obs = np.random.default_rng(0).normal(size=(3, 8))
    assert np.array_equal(lab.load_policy(run.folder).act(obs), run.policy().act(obs))
    assert lab.load_policy(run.folder).act(obs[1]) == pytest.approx(run.policy().act(obs)[1], abs=1e-6), "one observation, no batch"
    assert np.array_equal(lab.load_policy(run.folder, best=True).act(obs), run.policy(best=True).act(obs))
    with pytest.raises(ConfigError, match=r"has done all its 6 iterations.*total_timesteps=960"):
        lab.resume(run.folder)
    with pytest.raises(ConfigError, match=r"stands at 480 steps, and total_timesteps=300 .*asks for no more.*total_timesteps=960"):
        lab.resume(run.folder, total_timesteps=300)
    saved = run.save(tmp_path / "copy")
    more = lab.resume(saved, total_timesteps=640, progress=False).wait()
    assert more.iteration == 8 and more.metrics["env_steps"].tolist() == [80.0 * i for i in range(1, 9)]
    assert "went on after iteration 6 exactly where it was" in repr(more)
    pairs = zip(run.metrics.to_dict("records"), more.metrics.to_dict("records"), strict=False)
    assert all(a["policy_loss"] == b["policy_loss"] for a, b in pairs), "what was before is kept"


def test_what_steps_the_environments_is_said_kept_and_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured once for a run; on the day it goes on another runner is faster, and its numbers would not be the same."""
    for faster in ("numpy", "loop"):
        rates = {"numpy": 20.0 if faster == "numpy" else 1.0, "loop": 10.0}
        monkeypatch.setattr(runners, "steps_per_second", lambda make, n, rates=rates: rates[make.args[1]["runner"]])
        monkeypatch.setattr(runners, "_KNOWN", {})
        monkeypatch.setenv("RLINF_LAB_CACHE", "")
        if faster == "numpy":
            run = lab.train("ppo", "CartPole-v1", **{**SMALL, "iterations": 1}).wait()
            assert run.config.runner == "numpy" and "steps by numpy (measured)" in repr(run)
            assert run.runner is not None and json.loads((run.folder / "run.json").read_text())["runner"] == str(run.runner)
    assert lab.resume(run.folder, total_timesteps=160, progress=False).wait().config.runner == "numpy"


def test_the_newest_checkpoints_stay(tmp_path: Path) -> None:
    run = train(folder=tmp_path / "run", checkpoint_minutes=1e-9, keep_checkpoints=2, iterations=5).wait()
    assert [p.name for p in RunFolder(run.folder).checkpoints()] == ["learner-000004.safetensors", "learner-000005.safetensors"]


@pytest.mark.parametrize(("write_s", "iterations"), [(0.0, [3, 6, 9, 12]), (2.0, [3, 11, 19]), (20.0, [3, 24])])
def test_checkpoints_take_a_hundredth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_s: float, iterations: list[int]) -> None:
    """Half a minute an iteration; one after a minute, and each ten minutes at least."""
    now, write = [0.0], RunFolder.write_state

    def lasts(_row: Any) -> None:
        now[0] += 30.0

    def slowly(self: RunFolder, *args: Any) -> None:
        write(self, *args)
        now[0] += write_s

    monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    monkeypatch.setattr(RunFolder, "write_state", slowly)
    run = train(folder=tmp_path / "run", keep_checkpoints=99, iterations=25, on_iteration=lasts).wait()
    assert [int(p.name[8:14]) for p in RunFolder(run.folder).checkpoints()][: len(iterations)] == iterations


def test_what_is_saved_of_a_run_that_goes_on_names_its_iteration(tmp_path: Path) -> None:
    run = train(iterations=10_000)
    saved = run.save(tmp_path / "copy")
    run.stop()
    copied = json.loads((saved / "run.json").read_text())["iteration"]
    assert 1 <= copied == lab.load_policy(saved).version <= run.iteration and RunFolder(saved).state().iteration == copied


def test_a_folder_has_one_run_and_one_writer(tmp_path: Path) -> None:
    """It may be saved again and again into a folder of its own; nobody else's is written over."""
    run, other = train(iterations=10_000, folder=tmp_path / "going"), train(iterations=1, folder=tmp_path / "other").wait()
    with pytest.raises(ConfigError, match=rf"a run is going on in it \(process {os.getpid()}\)\. Next: run.wait\(\) or run.stop\(\)"):
        lab.resume(tmp_path / "going")
    first = json.loads((run.save(tmp_path / "copy") / "run.json").read_text())
    run.stop()
    assert json.loads((run.save(tmp_path / "copy") / "run.json").read_text())["run_id"] == first["run_id"]
    assert run.save(tmp_path / "going"), "its own"
    before = (tmp_path / "other" / "policy.safetensors").read_bytes()
    for path in ("other", "going"):
        with pytest.raises(ConfigError, match=r"there is another run in it. Next: another folder"):
            (run if path == "other" else other).save(tmp_path / path)
    assert (tmp_path / "other" / "policy.safetensors").read_bytes() == before
    more = lab.resume(tmp_path / "copy", total_timesteps=80 * (run.iteration + 1), progress=False).wait()
    assert more.save(tmp_path / "copy")
    with pytest.raises(ConfigError, match="there is another run in it"):
        run.save(tmp_path / "copy")  # another run goes on from it by now


def test_a_run_of_another_process_that_lives_is_not_resumed(tmp_path: Path) -> None:
    train(iterations=1, folder=tmp_path / "run").wait()
    folder = RunFolder(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        folder.about(state="running", pid=other.pid, process_began=psutil.Process(other.pid).create_time())
        with pytest.raises(ConfigError, match=rf"a run is going on in it \(process {other.pid}\)"):
            lab.resume(folder.path, total_timesteps=160)
        other.communicate(b"\n")
    assert lab.resume(folder.path, total_timesteps=160, progress=False).wait().iteration == 2


def test_every_number_of_an_update_may_be_a_schedule() -> None:
    """One that does not change learns what the number learns; each is asked with the share of the run that is done."""
    asked: dict[str, list[float]] = {}
    numbers = {"gamma": 0.9, "gae_lambda": 0.8, "learning_rate": 1e-3, "n_epochs": 2, "batch_size": 40, "clip_range": 0.2, "vf_coef": 0.4,
               "ent_coef": 0.01, "max_grad_norm": 0.3}  # fmt: skip
    assert set(numbers) == {name for name, hint in get_type_hints(PPOConfig).items() if hint == Number}

    def constant(name: str, value: float) -> Callable[[float], float]:
        return lambda progress: asked.setdefault(name, []).append(progress) or value

    plain = train(**numbers, iterations=4).wait()
    scheduled = train(**{name: constant(name, value) for name, value in numbers.items()}, iterations=4).wait()
    assert same(arrays(plain), arrays(scheduled))
    assert all({0.0, 0.25, 0.5, 0.75} <= set(asked[name]) for name in numbers)


def test_a_goal_ends_a_run_and_is_named() -> None:
    run = train(iterations=50, until={"return": -1e9}, eval_every={"iterations": 1}, eval_episodes=2).wait()
    assert run.state == "finished" and run.iteration == 1 and "≥ -1e+09" in run.reason and run.evaluate(2)["iteration"] == 1


def test_pause_stop_and_asking_meanwhile() -> None:
    began = threading.Semaphore(0)
    run = train(iterations=10_000, on_iteration=lambda row: began.release())
    first = run.evaluate(episodes=2)["iteration"]
    run.pause()
    held = run.evaluate(episodes=2)["iteration"]
    assert held >= first and run.evaluate(episodes=2)["iteration"] == run.policy().version == held, "it is held: nothing is newer"
    while began.acquire(blocking=False):
        pass
    run.unpause()
    assert began.acquire(timeout=60)
    assert run.evaluate(episodes=2)["iteration"] > held
    run.stop()
    assert run.state == "stopped" and run.policy().version == run.iteration == len(run.metrics)
    assert run.wait() is run


def test_on_iteration_may_stop_the_run_and_not_wait_for_it() -> None:
    began = threading.Semaphore(0)
    found: list[Any] = []

    def ends(row: dict[str, float]) -> None:
        with began:
            run.stop()  # waiting for itself it would end after a minute, its iteration given up
            found.append((run._done.is_set(), run.run.state))
            with pytest.raises(ExecutorError, match="waits for the run, which waits for it"):
                run.wait()

    run = train(iterations=10_000, on_iteration=ends)
    began.release()
    run.wait(120)
    assert found == [(False, "running")] and run.state == "stopped" and run.iteration == 1 and run.policy().version == 1


def test_weights_of_another_environment_are_refused(tmp_path: Path) -> None:
    run = train(folder=tmp_path / "run").wait(120)
    with pytest.raises(ConfigError, match=r"another policy than gymnasium/CartPole-v1 has.*Next: the environment"):
        lab.load_policy(run.folder, env="CartPole-v1")


def test_what_on_iteration_raises_comes_out_where_the_user_waits() -> None:
    def broken(row: object) -> None:
        raise ZeroDivisionError("mine")

    run = train(on_iteration=broken)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run.wait()
    assert run.state == "failed"


def test_a_broken_environment_comes_out_too() -> None:
    run = lab.train("ppo", Breaks, **{**SMALL, "folder": False, "iterations": 3})
    with pytest.raises(lab.errors.WorkerError, match="the arm fell off"):
        run.wait()
    with pytest.raises(lab.errors.WorkerError, match="the arm fell off"):
        run.save("here")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rat": 1e-3}, "Did you mean 'learning_rate'"),
        ({"lr": 1e-3}, "'lr' is called 'learning_rate' here. Next: learning_rate=0.001."),
        ({"eval_evry": 3}, "eval_every"),
        ({"gamma": 2.0}, "gamma is 2.0"),
        ({"total_timesteps": 0}, r"total_timesteps is 0.*Next: total_timesteps=100_000"),
        ({"eval_every": {"steps": 3}}, "eval_every="),
        ({"plan": "fastest"}, "an ExecutionPlan"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_starts(settings: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=said):
        train(**settings)


def test_a_vector_of_gymnasium_is_trained_on_as_it_is() -> None:
    """With its own number of environments, on copies: the user's stays as it was."""
    vector = gymnasium.make_vec("CartPole-v1", 3)
    settings: dict[str, Any] = {"n_steps": 8, "batch_size": 12, "n_epochs": 1, "iterations": 2, "folder": False, "progress": False}
    run = lab.train("ppo", vector, **settings).wait()
    assert run.config.num_envs == 3 and run.evaluate(2)["episodes"] == 2 and len(run.metrics) == 2
    assert vector.reset(seed=0)[0].shape == (3, 4) and not vector.closed
    assert run.policy().predict(vector.reset(seed=0)[0])[0].shape == (3,)
    with pytest.raises(ConfigError, match=r"this VectorEnv has 3 environments, num_envs is 4\. Next: num_envs=3"):
        lab.train("ppo", vector, **settings, num_envs=4)
    vector.__deepcopy__ = lambda memo: 1 / 0
    with pytest.raises(ConfigError, match=r"which cannot be copied \(ZeroDivisionError.*Next: a function that takes num_envs"):
        lab.train("ppo", vector, **settings)


class Absent:
    """An adapter that knows its task without the simulator, which is not installed here."""

    name = "absent"

    def load(self) -> Any:
        return self

    def tasks(self) -> list[str]:
        raise MissingDependencyError.of("absent_sim", "absent", "An environment of absent")

    def has(self, task: str) -> bool:
        return True

    def spec(self, task: str, max_episode_steps: int | None = None) -> EnvSpec:
        return EnvSpec(f"absent/{task}", gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2), 10)

    def make(self, task: str, num_envs: int, max_episode_steps: int | None) -> Any:
        self.tasks()


def test_a_simulator_that_is_not_here_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a worker; unless workers live elsewhere, where it may be installed."""
    found = {**registry.adapters(), "absent": Absent()}
    monkeypatch.setattr(registry, "adapters", lambda: found)
    with pytest.raises(MissingDependencyError, match=r"absent_sim.*Next: pip install 'rlinf-lab\[absent\]'"):
        lab.train("ppo", "absent/Task-v0", **{**SMALL, "folder": "here"})
    assert not Path("here").exists(), "nothing was begun"
    factory = registry.environment("absent/Task-v0")
    assert factory.for_run(4).runner is not None and with_runner(PPOConfig("absent/Task-v0"), "ray")[1] is not None


@pytest.mark.parametrize(("algorithm", "unit"), [("ppo", "steps"), ("clone", "gradient steps"), ("grpo", "answers")])
def test_a_line_of_progress_says_what_it_counts(algorithm: str, unit: str) -> None:
    line = Line("mine", 10, unit=find(algorithm).config.unit)
    line({"env_steps": 10})
    assert f" {unit}/s" in str(line._bar)
    line.close()


def test_unknown_algorithms_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        lab.train("pppo", "CartPole-v1")
    with pytest.raises(ConfigError, match=r"it has no run.json"):
        lab.resume(tmp_path)
    with pytest.raises(ConfigError, match=r"it has no run.json"):
        lab.load_policy(tmp_path / "nowhere")
