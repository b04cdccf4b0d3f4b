"""Run folders that somebody edited: an error that says what, or a row beside the others; never a traceback of Python's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, RlinfLabError
from rlinf_lab.experiments.storage.folder import RunFolder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an evaluation, some milliseconds of work."""
    path = tmp_path_factory.mktemp("runs") / "run"
    settings: dict[str, Any] = {"num_envs": 2, "n_steps": 4, "batch_size": 8, "n_epochs": 1, "max_episode_steps": 4}
    lab.train("ppo", "numpy/ReachArm-v0", **settings, iterations=2, plan=None, folder=path, progress=False, eval_every={"iterations": 1}, eval_episodes=1).wait()
    return path


def in_json(name: str, **changes: Any) -> Callable[[Path], None]:
    """None takes an entry away."""

    def change(path: Path) -> None:
        content = json.loads((path / name).read_text()) | changes
        (path / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def in_metrics(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda path: change(pd.read_parquet(path / "metrics.parquet")).to_parquet(path / "metrics.parquet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (in_metrics(lambda table: table.drop(columns="iteration")), "no column 'iteration'"),
        (in_metrics(lambda table: table.assign(seconds="long")), "seconds: no numbers"),
        (in_json("config.json", env=None), r"have no 'env'.*Next: give it again, env=\.\.\."),
        (in_json("config.json", learning_rate={"linear": [1, 2, 3]}), r"is \{'linear': \[1, 2, 3\]\}.*Next:"),
        (in_json("config.json", policy={"policy_of": 3}), "was changed by hand"),
        (in_json("run.json", best=[1.0]), r"the best evaluation is \[1.0\].*Next: take 'best' out"),
        (in_json("run.json", best={"return": "high"}), "the best evaluation is"),
        (in_json("run.json", algorithm=["ppo"]), "algorithm"),
    ],
)
def test_what_was_changed_is_named_and_hides_no_other_run(change: Callable[[Path], None], said: str, whole: Path, tmp_path: Path) -> None:
    for name in ("changed", "other"):
        shutil.copytree(whole, tmp_path / name)
    change(tmp_path / "changed")
    with pytest.raises(RlinfLabError, match=said):
        lab.resume(tmp_path / "changed", total_timesteps=80, progress=False)
    table = lab.runs(tmp_path).set_index("name")
    assert set(table.index) == {"changed", "other"} and table.loc["other", "state"] == "finished" and table.loc["other", "best_return"] is not None


def test_an_environment_that_a_file_lacks_may_be_given_again(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    in_json("config.json", env=None)(tmp_path / "run")
    assert lab.load_policy(tmp_path / "run", env="numpy/ReachArm-v0").version == 2
    with pytest.raises(ConfigError, match="have no 'env'"):
        lab.load_policy(tmp_path / "run")


def test_the_best_return_is_that_of_the_best_evaluation(whole: Path) -> None:
    assert RunFolder(whole).best_return() == RunFolder(whole).metrics()["eval_return"].max()
