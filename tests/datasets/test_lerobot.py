"""LeRobotDataset v3: what is written is read back, and what is wrong is said. Their own library reads it in test_lerobot_library.py."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from made_episodes import ARM, FILMED, RICH, STATE, filmed, made

import rlinf_lab as lab
from rlinf_lab.datasets import Episode, EpisodeList, read_lerobot, write_lerobot
from rlinf_lab.datasets.lerobot import layout, writing
from rlinf_lab.errors import ConfigError


@pytest.mark.parametrize(("observation", "action"), [(STATE, ARM), (RICH, ARM), (STATE, spaces.Discrete(3)), (RICH, spaces.MultiDiscrete([2, 3]))])
def test_what_is_written_is_read_back(observation: spaces.Space, action: spaces.Space, tmp_path: Path) -> None:
    data = made(observation, action)
    back = read_lerobot(write_lerobot(data, tmp_path / "data"))
    assert back.spec == data.spec and back.lengths_E.tolist() == data.lengths_E.tolist()
    for mine, theirs in zip(data, back, strict=True):
        assert mine.differences(theirs) == "" and (mine.seed, mine.task) == (theirs.seed, theirs.task)
        np.testing.assert_array_equal(mine.success_T, theirs.success_T)
        for a, b in zip(_leaves(mine.obs_T), _leaves(theirs.obs_T), strict=True):
            assert a.dtype == b.dtype
    assert [len(e) for e in back[1:4]] == data.lengths_E[1:4].tolist()
    again = pickle.loads(pickle.dumps(back))
    assert again[2].differences(data[2]) == "" and len(pickle.dumps(back)) < 500


def _leaves(tree: Any) -> list[np.ndarray]:
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else None
    return [np.asarray(tree)] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


def test_what_was_collected_is_written_as_the_simulator_takes_it(tmp_path: Path) -> None:
    data = lab.collect("Pendulum-v1", lambda obs_NX: np.clip(-obs_NX[:, 2:], -1, 1), episodes=2, max_episode_steps=40)
    folder = write_lerobot(data, tmp_path / "data")
    frames = pq.read_table(folder / "data/chunk-000/file-000.parquet").to_pylist()
    env = gymnasium.make("Pendulum-v1")
    assert read_lerobot(folder).spec.action_space == env.action_space
    for row in frames:
        if row["frame_index"] == 0:
            obs, _ = env.reset(seed=data[row["episode_index"]].seed)
        np.testing.assert_array_equal(obs, np.array(row["observation.state"], np.float32))
        obs, reward, *_ = env.step(np.array([row["action"]], np.float32))
        assert np.float32(reward) == np.float32(row["next.reward"])
    stats = json.loads((folder / layout.STATS).read_text())["action"]
    assert (stats["min"], stats["max"]) == ([-2.0], [2.0])


@pytest.mark.parametrize("pictures_a_file", [3, 10**6])
def test_videos_are_read_back_picture_by_picture(pictures_a_file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "VIDEO_FILE_MB", pictures_a_file * 32 * 48 * 3 / 8 / 2**20)
    data = filmed()
    folder = write_lerobot(data, tmp_path / "data", videos=True)
    assert len(list((folder / "videos/observation.images.camera").glob("*/*.mp4"))) == (1 if pictures_a_file > 100 else 4)
    back = read_lerobot(folder)
    assert back.spec == data.spec
    for mine, theirs in zip(data, back, strict=True):
        away = np.abs(mine.obs_T["camera"].astype(int)[:, None] - theirs.obs_T["camera"].astype(int)).mean((2, 3, 4))
        np.testing.assert_array_equal(away.argmin(0), np.arange(len(mine)))  # a neighbour is 8 shades away
        assert away.diagonal().max() < 2.5
        rest = dataclasses.replace(theirs, obs_T={**theirs.obs_T, "camera": mine.obs_T["camera"]})
        assert mine.differences(rest) == "" and theirs.seed == mine.seed
    stats = json.loads((folder / layout.STATS).read_text())["observation.images.camera"]
    np.testing.assert_allclose(np.ravel(stats["mean"]), np.concatenate([e.obs_T["camera"] for e in data]).mean((0, 1, 2)) / 255, rtol=1e-5)


def test_a_video_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no pictures"):
        write_lerobot(made(), tmp_path / "none", videos=True)
    odd = spaces.Dict({"camera": spaces.Box(0, 255, (13, 16, 3), np.uint8)})
    with pytest.raises(ConfigError, match="13 × 16; of a video both must be even"):
        write_lerobot(made(odd), tmp_path / "odd", videos=True)
    for key in ("../../../../esc", "a/b", "c" * 300):
        named = spaces.Dict({key: FILMED["camera"]})
        with pytest.raises(ConfigError, match="names a folder of videos, so it must be without /"):
            write_lerobot(made(named), tmp_path / "inside" / "named", videos=True)
    (tmp_path / "inside").rmdir()  # nothing in it
    data = filmed(2)
    with pytest.raises(ConfigError, match="33.333 frames a second"):
        write_lerobot(EpisodeList(dataclasses.replace(data.spec, fps=33.333), list(data)), tmp_path / "fps", videos=True)
    other = made(FILMED, count=1, seed=3)[0]
    wrong = dataclasses.replace(other, obs_T={**other.obs_T, "state": np.zeros((len(other), 9), np.float32)})
    with pytest.raises(ConfigError, match="observation.state of number 2"):
        write_lerobot(EpisodeList(data.spec, [*data, wrong]), tmp_path / "wrong", videos=True)
    assert list(tmp_path.iterdir()) == []
    folder = write_lerobot(data, tmp_path / "cut", videos=True)
    truncated("videos/*/*/*.mp4")(folder)
    with pytest.raises(ConfigError, match=r"file-000.mp4: it (cannot be decoded|holds)"):
        read_lerobot(folder)[1]


def test_statistics_are_those_of_all_frames(tmp_path: Path) -> None:
    data = made(RICH)
    stats = json.loads((write_lerobot(data, tmp_path / "data") / layout.STATS).read_text())
    state = np.concatenate([e.obs_T["state"] for e in data])
    np.testing.assert_allclose(stats["observation.state"]["mean"], state.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["observation.state"]["std"], state.std(0), rtol=1e-5)
    pictures = np.concatenate([e.obs_T["camera"] for e in data]) / 255
    np.testing.assert_allclose(np.ravel(stats["observation.images.camera"]["mean"]), pictures.mean((0, 1, 2)), rtol=1e-5)
    assert np.shape(stats["observation.images.camera"]["std"]) == (3, 1, 1)


def test_an_episode_costs_the_reading_of_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files, one row group an episode; of a file of foreign make with one row group for all the right rows."""
    monkeypatch.setattr(layout, "DATA_FILE_MB", 0.002)
    data = made(count=40)
    folder = write_lerobot(data, tmp_path / "data")
    files = sorted((folder / "data").glob("*/*.parquet"))
    assert len(files) > 3 and sum(pq.ParquetFile(f).num_row_groups for f in files) == 40
    for file in files:
        pq.write_table(pq.read_table(file), file)  # one row group
    assert [mine.differences(theirs) for mine, theirs in zip(data, read_lerobot(folder), strict=True)] == [""] * 40


def test_data_of_others_has_the_spaces_of_its_columns(tmp_path: Path) -> None:
    folder = write_lerobot(made(RICH), tmp_path / "data")
    info = json.loads((folder / layout.INFO).read_text())
    del info["rlinf_lab"]
    (folder / layout.INFO).write_text(json.dumps(info))
    shutil.rmtree(folder / "meta" / "rlinf_lab")
    data = read_lerobot(folder)
    assert isinstance(data.spec.observation_space, spaces.Dict) and data.spec.env is None
    assert {"state", "images.camera", "grid", "pair.0"} <= set(data.spec.observation_space)
    assert data[0].obs_T["images.camera"].shape[1:] == (12, 16, 3) and data[1].seed is None and data[0].final_obs is None


def change(**changes: Any) -> Any:
    def changed(folder: Path) -> None:
        info = json.loads((folder / layout.INFO).read_text())
        (folder / layout.INFO).write_text(json.dumps({**info, **changes}))

    return changed


def column(name: str, value: Any) -> Any:
    def changed(folder: Path) -> None:
        path = next((folder / layout.EPISODES).glob("*/*.parquet"))
        table = pq.read_table(path)
        values = [value if i == 1 else v for i, v in enumerate(table[name].to_pylist())]
        pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), path)

    return changed


def truncated(pattern: str) -> Any:
    def changed(folder: Path) -> None:
        path = next(folder.glob(pattern))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return changed


def ours(**values: Any) -> Any:
    """Of episode 1 other things are said in our own table."""

    def changed(folder: Path) -> None:
        table = pq.read_table(folder / layout.OURS)
        for name, value in values.items():
            column = [value if i == 1 else v for i, v in enumerate(table[name].to_pylist())]
            column = column if value is None or type(value) is type(column[0]) else [value] * len(column)
            table = table.set_column(table.column_names.index(name), name, pa.array(column))
        pq.write_table(table, folder / layout.OURS)

    return changed


def feature(name: str, **changes: Any) -> Any:
    def changed(folder: Path) -> None:
        info = json.loads((folder / layout.INFO).read_text())
        info["features"][name] |= changes
        (folder / layout.INFO).write_text(json.dumps(info))

    return changed


def without(pattern: str) -> Any:
    return lambda folder: next(folder.glob(pattern)).unlink()


def npz(array: np.ndarray) -> bytes:
    return writing.packed({"observation.state": array})


def texts(name: str) -> Any:
    def changed(folder: Path) -> None:
        path = next((folder / layout.EPISODES).glob("*/*.parquet"))
        table = pq.read_table(path)
        pq.write_table(table.set_column(table.column_names.index(name), name, table[name].cast(pa.string())), path)

    return changed


def rows_less(name: str) -> Any:
    return lambda folder: pq.write_table(pq.read_table(folder / name).slice(1), folder / name)


FEATURES = {"observation.state": {"dtype": "object", "shape": [3], "names": None}, "action": {"dtype": "float32", "shape": [2], "names": None}}
LARGE = {**FEATURES, "observation.state": {"dtype": "float32", "shape": [10**5, 10**5], "names": None}}
NESTED: Any = {"discrete": 2}
for _ in range(200):
    NESTED = {"tuple": [NESTED]}
HUGE = {**FEATURES, "observation.state": {"dtype": "float32", "shape": [10**9], "names": None}}


@pytest.mark.parametrize(("damage", "said"), [
    (without("meta/info.json"), "is no LeRobotDataset: it has no meta/info.json"),
    (lambda folder: (folder / layout.INFO).write_text("{"), "info.json: it cannot be read"),
    (lambda folder: (folder / layout.INFO).write_text("[]"), "info.json: it describes no features"),
    (lambda folder: (folder / layout.INFO).write_text("[" * 10**6), "info.json: it cannot be read"),
    (change(codebase_version="v2.1"), "it is of version 'v2.1', and v3.0 is read here"),
    (change(fps=0), "fps is 0"), (change(features=FEATURES), "feature 'observation.state' is"), (change(features=HUGE), "feature 'observation.state' is"),
    (change(data_path="../../{chunk_index}/{file_index}.parquet"), "leads out of the data set's folder"),
    (change(data_path="/etc/{chunk_index}"), "leads out of the data set's folder"),
    (change(data_path="{chunk_index.__class__}"), "is no template of paths"), (change(data_path=None), "is no template of paths"),
    (change(data_path="data\0/{chunk_index}"), "is no template of paths"), (change(features=LARGE), "feature 'observation.state' has the shape"),
    (change(rlinf_lab={"observation_space": {"box": [10**6, 10**5], "dtype": "float32", "low": 0, "high": 1}}), "rows of 381469 MiB, and 256 are read"),
    (change(rlinf_lab={"observation_space": {"multi_binary": 10**12}}), "and 256 are read"),
    (change(rlinf_lab={"observation_space": {"box": [3], "dtype": "S999999999", "low": 0, "high": 1}}), "and 256 are read"),
    (change(rlinf_lab={"action_space": {"discrete": 10**30}}), "is no space"), (change(rlinf_lab={"action_space": NESTED}), "more than 32 deep"),
    (change(rlinf_lab={"observation_space": {"tuple": [], "box": [10**6, 10**5], "dtype": "float32", "low": 0, "high": 1}}), "and 256 are read"),
    (column("length", -3), "episode 1 has -3 frames"), (column("length", 10**12), "episode 1 has 1000000000000 frames"),
    (column("dataset_to_index", 10**6), "episode 1 has"), (column("data/chunk_index", -1), "chunk_index is -1"),
    (truncated("data/*/*.parquet"), "file-000.parquet: it cannot be read"), (truncated("meta/episodes/*/*.parquet"), "meta/episodes: it cannot be read"),
    (without("data/*/*.parquet"), "file-000.parquet: it cannot be read"), (without("meta/episodes/*/*.parquet"), "meta/episodes: it has no files"),
    (column("length", None), "meta/episodes: length of episode 1 is None, and integer is needed"),
    (column("data/file_index", None), "data/file_index of episode 1 is None"), (texts("length"), "length of episode 0 is '"),
    (ours(seed="x"), "seed of episode 0 is 'x', and integer is needed"), (ours(terminated="no"), "terminated of episode 0 is 'no', and boolean is needed"),
    (ours(terminated=None), "terminated of episode 1 is None"), (ours(final_obs=b"PK\3\4 and no more"), "a last observation cannot be read"),
    (ours(final_obs=npz(np.zeros(1 << 24, np.uint8))), "the last observation.state is uint8[16777216], and its space has float32[3]"),
    (ours(final_obs=npz(np.zeros(7, np.float32))), "the last observation.state is float32[7], and its space has float32[3]"),
    (ours(final_obs=npz(np.array(["a", "b", "c"]))), "the last observation.state is <U1[3]"),
    (rows_less(layout.OURS), "it has 4 rows, and there are 5 episodes"), (feature("next.reward", shape=[3]), "feature 'next.reward' is"),
    (feature("task_index", dtype="float32"), "one whole number of a frame is needed"),
    (feature("observation.state", shape=[1]), "feature 'observation.state' is float32[1], and its space has float32[3]"),
    (change(rlinf_lab={"max_episode_steps": "x"}), "max_episode_steps is 'x'"), (change(rlinf_lab={"env": ["a"]}), "env is ['a'], and no id"),
    (truncated("meta/tasks.parquet"), "meta/tasks.parquet: it cannot be read"), (truncated("meta/rlinf_lab/*"), "rlinf_lab/episodes.parquet: it cannot be read"),
])  # fmt: skip
def test_a_damaged_data_set_says_where(damage: Any, said: str, tmp_path: Path) -> None:
    folder = write_lerobot(made(), tmp_path / "data")
    damage(folder)
    with pytest.raises(ConfigError) as error:
        list(read_lerobot(folder))
    assert said in str(error.value) and "data" in str(error.value)


@pytest.mark.parametrize("names", [{"axes": ["height"]}, 5, [], [None], "height"], ids=str)
def test_what_axes_are_called_may_be_anything(names: Any, tmp_path: Path) -> None:
    """Of pictures too; and numbers of episodes need no description, only a column."""
    folder = write_lerobot(filmed(2), tmp_path / "data")
    feature("observation.images.camera", names=names)(folder)
    info = json.loads((folder / layout.INFO).read_text())
    del info["rlinf_lab"], info["features"]["episode_index"]
    (folder / layout.INFO).write_text(json.dumps(info))
    for mine, theirs in zip(filmed(2), read_lerobot(folder), strict=True):
        np.testing.assert_array_equal(mine.obs_T["camera"], theirs.obs_T["images.camera"])
        assert theirs.seed is None  # of a set that somebody has written anew our own table is none


def test_a_picture_is_looked_at_only_where_its_size_is_the_announced_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = writing._pictures
    monkeypatch.setattr(writing, "_pictures", lambda rows: real(np.zeros((len(rows), 3000, 3000, 3), np.uint8)))
    folder = write_lerobot(made(RICH, count=1), tmp_path / "data")
    with pytest.raises(ConfigError, match="a picture of 3000 × 3000, and .12, 16, 3. are announced"):
        read_lerobot(folder)[0]


@pytest.mark.parametrize("videos", [False, True])
def test_pictures_of_another_type_stay_what_they_are_or_are_refused(videos: bool, tmp_path: Path) -> None:
    data = filmed(2)

    def as_type(change: Any) -> EpisodeList:
        return EpisodeList(data.spec, [dataclasses.replace(e, obs_T={**e.obs_T, "camera": change(e.obs_T["camera"])}) for e in data])

    plain = read_lerobot(write_lerobot(data, tmp_path / "plain", videos=videos))
    for kind in (np.int64, np.float32):
        whole = read_lerobot(write_lerobot(as_type(lambda x, kind=kind: x.astype(kind)), tmp_path / kind.__name__, videos=videos))
        assert [a.differences(b) for a, b in zip(plain, whole, strict=True)] == ["", ""] and whole[0].obs_T["camera"].dtype == np.uint8
    for name, change in {"float32": lambda x: x / np.float32(255), "int64": lambda x: x.astype(int) - 100, "<U3": lambda x: x.astype("<U3")}.items():
        with pytest.raises(ConfigError, match=f"observation.images.camera of .* has {name}.* uint8 of its space cannot hold. Next: .255"):
            write_lerobot(as_type(change), tmp_path / "odd", videos=videos)
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize(("leaves", "said"), [
    ({"a": spaces.Dict({"b": STATE}), "a.b": STATE}, r"observation\['a'\]\['b'\] and observation\['a.b'\] would both be the column 'observation.a.b'"),
    ({"image": FILMED["camera"], "images": spaces.Dict({"image": STATE})}, r"\['image'\] and observation\['images'\]\['image'\] would both be"),
])  # fmt: skip
def test_two_leaves_of_one_column_are_refused(leaves: dict[str, spaces.Space], said: str, tmp_path: Path) -> None:
    data = made()
    with pytest.raises(ConfigError, match=said):
        write_lerobot(EpisodeList(dataclasses.replace(data.spec, observation_space=spaces.Dict(leaves)), list(data)), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path) -> None:
    good = made()
    odd = Episode(np.zeros((2, 4), np.float32), np.zeros((2, 2), np.float32), np.zeros(2, np.float32), False, True, np.zeros(2, bool))
    with pytest.raises(ConfigError, match=r"observation.state of number 5.*shape \(4,\), not \[3\]"):
        write_lerobot(EpisodeList(good.spec, [*good, odd]), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
    write_lerobot(good, tmp_path / "data")
    with pytest.raises(ConfigError, match="is there already. Next: another folder"):
        write_lerobot(good, tmp_path / "data")
