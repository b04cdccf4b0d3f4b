"""Comparisons and sweeps, on runs in folders that are written here: nothing is trained but in the sweep."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments.storage.folder import RunFolder


def kept(path: Path, seed: int, learning_rate: float, returns: list[float]) -> Path:
    folder = RunFolder(path)
    folder.make()
    folder.about(algorithm="ppo", env="CartPole-v1", state="finished")
    folder.write_json("config.json", {"env": "CartPole-v1", "learning_rate": learning_rate, "seed": seed})
    steps = 100.0 * np.arange(1, len(returns) + 1)
    folder.write_tables(pd.DataFrame({"iteration": np.arange(1, len(returns) + 1), "seconds": 1.0, "env_steps": steps, "return": returns}), None)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> list[list[Path]]:
    slow = [kept(tmp_path / f"slow{s}", s, 1e-4, [10.0 * s + i for i in range(10)]) for s in (0, 1)]
    fast = [kept(tmp_path / f"fast{s}", s, 1e-3, [10.0 * s + 5 * i for i in range(5 + 5 * s)]) for s in (0, 1)]
    return [slow, fast]


def test_groups_are_named_by_what_differs_and_drawn_with_a_band(runs: list[list[Path]]) -> None:
    found = lab.compare(*runs)
    assert list(found.groups) == ["learning_rate=0.0001", "learning_rate=0.001"] and found.metric == "return"
    assert found.differences.loc["learning_rate"].tolist() == ["0.0001", "0.001"] and "seed" not in found.differences.index
    curve = found.curves().query("label == 'learning_rate=0.001'")
    assert curve["env_steps"].max() == 500, "as far as all its seeds go"
    assert np.allclose(curve["high"] - curve["low"], 10) and np.allclose(curve["mean"], curve["low"] + 5)
    assert found.table["lowest"].tolist() == [9.0, 20.0] and found.table["highest"].tolist() == [19.0, 55.0]
    assert [trace.fill for trace in found.figure().data] == ["toself", None, "toself", None]
    assert found.picture().startswith(b"\x89PNG") and "learning_rate" in repr(found) and "<table" in found._repr_html_()


def test_interquartile_means_and_probabilities_of_improvement_have_intervals(runs: list[list[Path]], tmp_path: Path) -> None:
    """Of two seeds the bootstrap draws one value twice, or both: its interval is from one to the other."""
    found = lab.compare(*runs)  # they came to 9 and 19, and to 20 and 55
    slow, fast = found.statistics().itertuples(index=False)
    assert slow[:4] == (2, 14, 9, 19) and fast[:4] == (2, 37.5, 20, 55)
    assert np.isnan(slow[4:]).all() and fast[4:] == (1, 1, 1)
    assert found.statistics(over="learning_rate=0.001").iloc[0, 4:].tolist() == [0, 0, 0]
    assert "14 [9, 19]" in repr(found) and "beats learning_rate=0.0001" in found._repr_html_()
    with pytest.raises(UnknownNameError, match="Did you mean 'learning_rate=0.001'"):
        found.statistics(over="learning_rate=0.01")
    single = lab.compare(runs[0][0], runs[0][1])
    assert single.statistics()["iqm"].tolist() == [9, 19] and single.statistics()["beats"].tolist()[1] == 1
    assert single.statistics()["iqm_low"].isna().all() and "interquartile" not in repr(single)
    mixed = kept(tmp_path / "mixed", 5, 1e-4, [3.0])
    RunFolder(mixed).write_json("config.json", {"env": "Acrobot-v1", "learning_rate": 1e-4, "seed": 5})
    with pytest.raises(ConfigError, match=r"'other' ran on \['Acrobot-v1'\], 'fast' on \['CartPole-v1'\]"):
        lab.compare({"fast": runs[1], "other": mixed}).statistics()
    uneven = lab.compare({"slow": [*runs[0], mixed], "fast": runs[1]})
    with pytest.raises(ConfigError, match="'slow' has other numbers of seeds by environment .CartPole-v1: 2, Acrobot-v1: 1"):
        uneven.statistics()
    assert "interquartile" not in repr(uneven)


def test_a_run_without_an_episode_is_compared_by_return_and_named(runs: list[list[Path]], tmp_path: Path) -> None:
    early = kept(tmp_path / "early", 0, 1e-4, [])
    RunFolder(early).write_tables(pd.DataFrame({"iteration": [1], "seconds": 1.0, "env_steps": 100.0, "staleness": 0.0}))
    for given in ({"fast": runs[1], "early": early}, {"early": early, "fast": runs[1]}):
        found = lab.compare(given)
        assert found.metric == "return" and found.table["final return"].isna().to_dict() == {"fast": False, "early": True}
        assert set(found.curves()["label"]) == {"fast"} and found.picture() and len(found.figure().data) == 2
        assert "No return so far: early." in repr(found) and "No return so far: early." in found._repr_html_()
    alone = lab.compare(early)
    assert alone.metric == "return" and "No return so far: early" in repr(alone) and not len(alone.curves())


def test_labels_of_ones_own_and_single_runs(runs: list[list[Path]]) -> None:
    found = lab.compare({"ours": runs[1], "theirs": runs[0][0]})
    assert list(found.groups) == ["ours", "theirs"] and found.table["seeds"].tolist() == [2, 1]
    assert len(lab.compare(runs[0][0], runs[0][1]).differences) == 0
    with pytest.raises(UnknownNameError, match="Did you mean 'return'"):
        lab.compare(*runs, metric="retrun")
    with pytest.raises(ConfigError, match="42 is no run"):
        lab.compare(42)
    with pytest.raises(ConfigError, match="no run.json"):
        lab.compare(runs[0][0].parent)


def test_the_shelf_tells_who_died_and_deletes_only_what_is_over(runs: list[list[Path]], tmp_path: Path) -> None:
    from rlinf_lab.experiments.storage.folder import this_process

    here = this_process()
    RunFolder(runs[0][0]).about(state="running", began=1.0, **here)
    RunFolder(runs[0][1]).about(state="running", began=2.0, **{**here, "process_began": here["process_began"] - 100})
    (runs[1][0] / "run.json").write_text("{")
    RunFolder(runs[1][1]).about(began="yesterday")
    assert lab.runs(tmp_path).query("name == 'fast1'")["state"].item() == "damaged"
    RunFolder(runs[1][1]).about(began=3.0)
    table = lab.runs(tmp_path)
    states = dict(zip(table["name"], table["state"], strict=True))
    assert states == {"slow0": "running", "slow1": "died", "fast0": "damaged", "fast1": "finished"}
    row = table.set_index("name").loc
    metrics = RunFolder(runs[0][1]).metrics()
    assert row["slow1", "return"] == metrics["return"].iloc[-1] and math.isnan(row["fast0", "return"])
    for file in runs[0][1].iterdir():  # it wrote last two minutes after it had begun
        os.utime(file, (122.0, 122.0))
    RunFolder(runs[1][1]).about(state="finished", began=100.0, ended=40.0)  # of before it was resumed
    assert lab.runs(tmp_path).set_index("name").loc[["slow1", "fast1"], "minutes"].tolist() == [2.0, 0.0]
    with pytest.raises(ConfigError, match="slow0: the run goes on"):
        table.delete()
    table.query("state == 'died'").delete()
    assert sorted(lab.runs(tmp_path)["name"]) == ["fast0", "fast1", "slow0"]
    assert len(lab.runs(tmp_path / "nowhere")) == 0
    head, first = repr(lab.runs(tmp_path)).splitlines()[:2]
    assert head.split() == list(lab.runs(tmp_path).columns) and head.split()[1] == "state" and "..." not in first


def test_one_failure_of_a_sweep_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bad = {"seen": 0}

    def fails_once(row: object) -> None:
        bad["seen"] += 1
        if bad["seen"] == 1:
            raise RuntimeError("the first one")

    sweep = lab.sweep("ppo", "numpy/ReachArm-v0", grid={"learning_rate": [1e-3, 1e-4]}, seeds=2, **SMALL, on_iteration=fails_once).wait()
    assert list(sweep.failures) == [("learning_rate=0.001", 0)] and sweep.table["state"].tolist() == ["failed", "finished", "finished", "finished"]
    assert repr(sweep) == "Sweep(2 settings × 2 seeds: 3 of 4 runs done, 1 failed)"
    assert list(lab.compare(sweep).groups) == ["learning_rate=0.001", "learning_rate=0.0001"]
    with pytest.raises(UnknownNameError, match="learning_rate"):
        lab.sweep("ppo", "numpy/ReachArm-v0", grid={"learning_rte": [1]})
    with pytest.raises(ConfigError, match="gamma is 7"):
        lab.sweep("ppo", "numpy/ReachArm-v0", grid={"gamma": [0.9, 7]})


SMALL = {"num_envs": 4, "n_steps": 20, "batch_size": 40, "n_epochs": 1, "max_episode_steps": 20, "iterations": 2, "folder": False}
