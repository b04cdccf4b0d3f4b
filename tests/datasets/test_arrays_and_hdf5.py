"""Episodes of plain arrays, and of HDF5 files in the layouts of robomimic, LIBERO, ManiSkill and D4RL."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.trees import map_tree

h5py = pytest.importorskip("h5py")  # not in every environment

RNG = np.random.default_rng(0)


def steps(count: int, width: int = 3) -> np.ndarray:
    return RNG.normal(size=(count, width)).astype(np.float32)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 99), st.sampled_from(["flags", "lengths", "lists"]))
def test_arrays_say_the_same_however_they_are_given(lengths: list[int], seed: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    obs = {"joints": rng.normal(size=(count, 2)).astype(np.float32), "mode": rng.integers(0, 3, count)}
    action, reward = rng.uniform(-1, 1, (count, 2)).astype(np.float32), rng.normal(size=count)
    success, ends = rng.random(count) < 0.3, np.cumsum(lengths)
    last = np.isin(np.arange(count), ends - 1)
    terminated = last & (rng.random(count) < 0.5)

    def piece(tree: Any, a: int, b: int) -> Any:
        return map_tree(lambda leaf: leaf[a:b], tree)

    whole = {"reward": reward, "terminated": terminated, "truncated": last & ~terminated, "success": success}
    if how == "lists":
        cuts = list(zip([0, *ends[:-1]], ends, strict=True))
        data = lab.datasets.from_arrays([piece(obs, *c) for c in cuts], [piece(action, *c) for c in cuts], **{k: [v[a:b] for a, b in cuts] for k, v in whole.items()})
    else:
        data = lab.datasets.from_arrays(obs, action, lengths=lengths if how == "lengths" else None, **whole)
    assert data.lengths_E.tolist() == lengths
    assert np.concatenate([e.action_T for e in data]).tolist() == action.tolist() and np.concatenate([e.obs_T["mode"] for e in data]).tolist() == obs["mode"].tolist()
    assert [e.terminated for e in data] == terminated[ends - 1].tolist() and all(e.terminated != e.truncated for e in data)
    assert np.concatenate([e.success_T for e in data]).tolist() == success.tolist()
    assert data.spec.action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32) and data.spec.observation_space["mode"].shape == ()


def test_steps_after_the_last_end_are_an_episode_that_was_cut() -> None:
    data = lab.datasets.from_arrays(steps(7), np.arange(7) % 3, terminated=[0, 0, 1, 0, 0, 0, 0], next_obs=steps(7))
    assert data.lengths_E.tolist() == [3, 4] and [(e.terminated, e.truncated) for e in data] == [(True, False), (False, False)]
    assert data.spec.action_space == spaces.Discrete(3) and all(e.final_obs.shape == (3,) for e in data) and data[0].reward_T.tolist() == [0, 0, 0]


def test_switches_are_learnt_from_too() -> None:
    obs = {"on": np.array([True, False, True, True]), "pair": np.ones((4, 2), bool), "joints": steps(4)}
    data = lab.datasets.from_arrays(obs, steps(4, 2), lengths=[3, 1])
    assert data.spec.observation_space["on"] == spaces.Discrete(2) and data.spec.observation_space["pair"] == spaces.MultiBinary(2)
    run = lab.train("clone", data=data, gradient_steps=2, batch_size=2, plan=None, folder=None).wait()
    assert run.policy().act({"on": np.array(1), "pair": np.ones(2, np.int8), "joints": np.zeros(3)}).shape == (2,)


def test_a_last_observation_may_follow_the_last_action() -> None:
    obs = [steps(5), steps(3)]
    data = lab.datasets.from_arrays(obs, [steps(4), steps(2)], terminated=[True, False], task="lift")
    assert data.lengths_E.tolist() == [4, 2] and [e.terminated for e in data] == [True, False] and data[1].task == "lift"
    assert all((e.final_obs == o[-1]).all() and (e.obs_T == o[:-1]).all() for e, o in zip(data, obs, strict=True))


def test_of_an_environment_they_have_its_spaces_and_a_clone_learns_from_them() -> None:
    count = 400
    obs = np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32)
    action = np.clip(-2 * obs[:, :1], -2, 2)
    data = lab.datasets.from_arrays(obs, action, lengths=[200, 200], env="Pendulum-v1")
    assert data.spec.action_space == spaces.Box(-2, 2, (1,), np.float32) and data.spec.max_episode_steps == 200
    run = lab.train("clone", data=data, gradient_steps=300, plan=None, folder=None)
    run.wait()
    assert run.metrics["action_error"].iloc[-1] < 0.5 * run.metrics["action_error"].iloc[0]


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"obs": steps(4), "action": steps(4)}, "nothing says where episodes end"),
        ({"obs": steps(4), "action": steps(5), "lengths": [5]}, r"from_arrays\(obs=...\): 4 rows, and action has 5"),
        ({"obs": {"a": steps(4)}, "action": steps(5), "lengths": [5]}, r"obs\['a'\]"),
        ({"obs": steps(4), "action": steps(4), "lengths": [2, 3]}, "5 steps together, and there are 4"),
        ({"obs": steps(4), "action": steps(4), "lengths": [4, 0]}, "0 is no number of steps"),
        ({"obs": [steps(4)], "action": steps(4)}, "action=...*a ndarray, and obs is a list of 1 episode"),
        ({"obs": [steps(4)], "action": [steps(2)]}, "episode 0.*obs has the shape"),
        ({"obs": [steps(4)], "action": [steps(4)], "reward": [[1.0]]}, r"reward=...\): episode 0 has the shape \(1,\), and 4 actions"),
        ({"obs": ["up"], "action": [steps(4)]}, "numbers with a row for each step"),
        ({"obs": [[[1], [1, 2]]], "action": [steps(2)]}, "a row for each step is needed"),
        ({"obs": [], "action": []}, "there is no episode"),
        ({"obs": None, "action": []}, "obs=None"),
        ({"obs": [steps(2)], "action": [steps(2)], "lengths": [2]}, "leave it out"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lab.datasets.from_arrays(**arguments)


# --- files ----------------------------------------------------------------------------------------------------------------
def robomimic(path: Path, counts: tuple[int, ...] = (4, 6, 3)) -> Path:
    """As robomimic's documentation describes it, with LIBERO's words about the task."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
        data.attrs["problem_info"] = json.dumps({"language_instruction": "lift the cube"})
        for i, count in enumerate(counts):
            demo = data.create_group(f"demo_{i + 8}")
            demo.attrs["num_samples"] = count
            demo["actions"], demo["dones"], demo["rewards"] = np.full((count, 7), i, np.float64), np.eye(count)[-1], np.eye(count)[-1]
            for group in ("obs", "next_obs"):
                for key, value in (("robot0_eef_pos", np.full((count, 3), i + (group == "next_obs"), np.float64)), ("agentview_image", np.full((count, 8, 8, 3), i, np.uint8))):
                    demo[f"{group}/{key}"] = value
        file["mask/train"] = np.array([b"demo_10", b"demo_8"])
    return path


def test_robomimics_layout(tmp_path: Path) -> None:
    data = lab.datasets.read_hdf5(robomimic(tmp_path / "lift.hdf5"))
    assert data.lengths_E.tolist() == [4, 6, 3] and data.steps == 13, "demo_8, demo_9, demo_10"
    assert data[2].action_T[0, 0] == 2 and data[1].task == "lift the cube" and data[0].terminated and data[0].reward_T.tolist() == [0, 0, 0, 1]
    assert data[1].final_obs["robot0_eef_pos"].tolist() == [2, 2, 2]
    assert data.spec.observation_space == spaces.Dict(
        {"agentview_image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "robot0_eef_pos": spaces.Box(-np.inf, np.inf, (3,), np.float32)}
    )
    assert "robomimic's lift.hdf5" in repr(data)
    train = lab.datasets.read_hdf5(tmp_path / "lift.hdf5", split="train")
    assert train.lengths_E.tolist() == [4, 3]
    again = pickle.loads(pickle.dumps(train))
    assert [e.differences(f) for e, f in zip(train, again, strict=True)] == ["", ""]
    with pytest.raises(UnknownNameError, match="'valid'.*train"):
        lab.datasets.read_hdf5(tmp_path / "lift.hdf5", split="valid")


def test_a_clone_is_trained_on_a_file_by_its_name(tmp_path: Path) -> None:
    run = lab.train("clone", data=str(robomimic(tmp_path / "lift.hdf5")), gradient_steps=2, batch_size=4, plan=None, folder=None)
    run.wait()
    assert run.policy().act({"robot0_eef_pos": np.zeros(3), "agentview_image": np.zeros((8, 8, 3), np.uint8)}).shape == (7,)


def test_a_file_that_maniskill_has_written_itself(tmp_path: Path) -> None:
    from mani_skill.utils.wrappers.record import RecordEpisode

    from envs.maniskill import CONTROL, ManiSkillEnv

    stock = ManiSkillEnv("PickCube-v1", CONTROL, draws=False).stock
    env = RecordEpisode(gymnasium.wrappers.TimeLimit(stock, 6), str(tmp_path), trajectory_name="picked", save_video=False, source_type="motionplanning")
    for seed in (11, 12):
        env.reset(seed=seed)
        for _ in range(6):
            env.step(np.full(env.action_space.shape, 0.1, np.float32))
    env.close()
    data = lab.datasets.read_hdf5(tmp_path / "picked.h5")
    assert data.lengths_E.tolist() == [6, 6] and [e.seed for e in data] == [11, 12] and data.spec.by == "motionplanning"
    assert data.spec.env == "maniskill/PickCube-v1" and data[0].final_obs.shape == data[0].obs_T.shape[1:] and data[1].truncated and data[0].success is False
    with h5py.File(tmp_path / "picked.h5", "a") as file:
        del file["traj_0/obs"]
    with pytest.raises(ConfigError, match=r"no observations.*replay_trajectory"):
        lab.datasets.read_hdf5(tmp_path / "picked.h5")


def test_d4rls_layout(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "hopper.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"], file["next_observations"] = steps(9), steps(9, 2), np.arange(9.0), steps(9)
        file["terminals"], file["timeouts"] = np.arange(9) == 3, np.arange(9) == 8
    data = lab.datasets.read_hdf5(tmp_path / "hopper.hdf5")
    assert data.lengths_E.tolist() == [4, 5] and data[0].terminated and data[1].truncated and data[1].reward_T.tolist() == [4, 5, 6, 7, 8]


def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["weights"] = np.zeros(3)
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_group("traj_0")
    for name, says in (("none.h5", "no such file"), ("text.h5", "no HDF5 file"), ("other.h5", r"\['weights'\].*from_arrays"), ("empty.h5", "no demonstration")):
        with pytest.raises(ConfigError, match=says):
            lab.datasets.read_hdf5(tmp_path / name)
    path = robomimic(tmp_path / "short.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/rewards"]
        file["data/demo_9/rewards"] = np.zeros(2)
    with pytest.raises(ConfigError, match=r"short.hdf5, demo_9.*2 rewards"):
        lab.datasets.read_hdf5(path)[1]
    with pytest.raises(ConfigError, match=r"no observations.*dataset_states_to_obs"):
        with h5py.File(path, "a") as file:
            del file["data/demo_8/obs"]
        lab.datasets.read_hdf5(path)


def test_what_was_written_elsewhere_is_written_here(tmp_path: Path) -> None:
    data = lab.datasets.read_hdf5(robomimic(tmp_path / "lift.hdf5"))
    read = lab.datasets.read_lerobot(lab.datasets.write_lerobot(data, tmp_path / "lift"))
    assert [mine.differences(theirs) for mine, theirs in zip(data, read, strict=True)] == ["", "", ""] and read[0].task == "lift the cube"


def test_data_sets_of_every_kind_are_added_and_told_apart(tmp_path: Path) -> None:
    mine = lab.datasets.from_arrays([steps(3), steps(2)], [steps(3, 2), steps(2, 2)])
    theirs = lab.datasets.read_lerobot(lab.datasets.write_lerobot(mine, tmp_path / "theirs"))
    both, again = theirs + mine, mine + theirs
    assert both.lengths_E.tolist() == again.lengths_E.tolist() == [3, 2, 3, 2] and both[2].differences(mine[0]) == ""
    runs = [lab.train("clone", data=data, gradient_steps=2, plan=None, folder=None).wait() for data in (mine, both)]
    assert list(lab.compare(*runs).differences.index) == ["data"]
    for name, data, says in (("clone", mine[:0], "at least one episode"), ("td3_bc", {"obs": steps(3)}, r"from_arrays\(obs, action")):
        with pytest.raises(ConfigError, match=says):
            lab.train(name, data=data)
