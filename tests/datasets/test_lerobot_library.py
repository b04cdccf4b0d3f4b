"""What is written here is read by lerobot, and what lerobot has written is read here: make test-lerobot."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import lerobot_library
import numpy as np
import pytest
from made_episodes import ARM, RICH, STATE, filmed, made

import rlinf_lab as lab
from rlinf_lab.datasets import read_lerobot, write_lerobot
from rlinf_lab.datasets.lerobot import layout

pytestmark = pytest.mark.lerobot


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    for name in ("HF_HOME", "HF_LEROBOT_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return lerobot_library.imported()


@pytest.mark.parametrize("observation", [STATE, RICH], ids=["state", "pictures"])
def test_lerobot_reads_every_frame(dataset, observation, tmp_path):
    data = made(observation, ARM, count=6)
    folder = write_lerobot(data, tmp_path / "data")
    theirs = dataset("made/some", root=folder, delta_timestamps={"action": [k / data.spec.fps for k in range(3)]})
    assert len(theirs) == data.steps and theirs.num_episodes == 6 and theirs.fps == 20
    rows = [(e, t) for e, T in enumerate(data.lengths_E) for t in range(T)]
    for index, (e, t) in enumerate(rows):
        frame, mine = theirs[index], data[e]
        state = mine.obs_T["state"] if isinstance(mine.obs_T, dict) else mine.obs_T
        np.testing.assert_array_equal(frame["observation.state"], state[t])
        wanted = [mine.action_T[min(t + k, len(mine) - 1)] for k in range(3)]
        np.testing.assert_array_equal(frame["action"], wanted)
        assert frame["action_is_pad"].tolist() == [t + k >= len(mine) for k in range(3)]
        assert float(frame["next.reward"]) == mine.reward_T[t] and bool(frame["next.success"]) == mine.success_T[t]
        assert bool(frame["next.done"]) == (t == len(mine) - 1) and frame["task"] == mine.task
        if observation is RICH:
            picture = frame["observation.images.camera"].numpy().transpose(1, 2, 0) * 255
            np.testing.assert_allclose(picture, mine.obs_T["camera"][t], atol=1e-3)
    np.testing.assert_allclose(theirs.meta.stats["action"]["mean"], np.concatenate([e.action_T for e in data]).mean(0), rtol=1e-5)


def test_gymnasium_plays_what_lerobot_reads_of_what_was_collected(dataset, tmp_path):
    data = lab.collect("Pendulum-v1", lambda obs_NX: np.clip(-obs_NX[:, 2:], -1, 1), episodes=2, max_episode_steps=20)
    theirs = dataset("pendulum/swung", root=write_lerobot(data, tmp_path / "data"))
    env = gymnasium.make("Pendulum-v1")
    for frame in (theirs[index] for index in range(len(theirs))):
        if int(frame["frame_index"]) == 0:
            env.reset(seed=data[int(frame["episode_index"])].seed)
        _, reward, *_ = env.step(np.atleast_1d(frame["action"].numpy()))
        assert np.float32(reward) == float(frame["next.reward"])
    assert float(theirs.meta.stats["action"]["max"][0]) == 2


def test_lerobot_reads_every_picture_of_a_video(dataset, tmp_path, monkeypatch):
    """By time stamp, as it reads its own: several episodes in a file, several files."""
    monkeypatch.setattr(layout, "VIDEO_FILE_MB", 10 * 32 * 48 * 3 / 8 / 2**20)
    data = filmed(count=6)
    folder = write_lerobot(data, tmp_path / "data", videos=True)
    theirs = dataset("made/some", root=folder, delta_timestamps={"observation.images.camera": [0.0, 1 / data.spec.fps]}, video_backend="pyav")
    assert theirs.meta.video_keys == ["observation.images.camera"] and len({p.name for p in folder.glob("videos/*/*/*.mp4")}) > 1
    rows = [(e, t) for e, T in enumerate(data.lengths_E) for t in range(T)]
    for index, (e, t) in enumerate(rows):
        mine, frame = data[e].obs_T, theirs[index]
        np.testing.assert_array_equal(frame["observation.state"], mine["state"][t])
        for k, picture in enumerate(frame["observation.images.camera"].numpy().transpose(0, 2, 3, 1) * 255):
            np.testing.assert_allclose(picture.mean(), mine["camera"][min(t + k, len(data[e]) - 1)].mean(), atol=3)  # a neighbour is 8 away


@pytest.mark.parametrize("videos", [False, True], ids=["pictures", "video"])
def test_what_lerobot_has_written_is_read_here(dataset, videos, tmp_path):
    kind = "video" if videos else "image"
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": None}, "action": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.images.top": {"dtype": kind, "shape": (64, 96, 3), "names": ["height", "width", "channels"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }  # fmt: skip
    theirs = dataset.create("made/theirs", fps=10, features=features, root=tmp_path / "theirs", use_videos=videos)
    for e in range(3):
        for t in range(4 + e):
            theirs.add_frame({
                "observation.state": np.full(3, 10 * e + t, np.float32), "action": np.full(2, -t, np.float32), "next.reward": np.array([t], np.float32),
                "observation.images.top": np.full((64, 96, 3), 40 * e + 10 * t, np.uint8), "task": f"task {e}",
            })  # fmt: skip
        theirs.save_episode()
    theirs.finalize()
    data = read_lerobot(tmp_path / "theirs")
    assert data.lengths_E.tolist() == [4, 5, 6] and [e.task for e in data] == ["task 0", "task 1", "task 2"]
    for e, episode in enumerate(data):
        T = 4 + e
        np.testing.assert_array_equal(episode.obs_T["state"][:, 0], 10 * e + np.arange(T))
        np.testing.assert_array_equal(episode.action_T[:, 1], -np.arange(T))
        np.testing.assert_array_equal(episode.reward_T, np.arange(T))
        assert episode.obs_T["images.top"].shape == (T, 64, 96, 3)
        shade = episode.obs_T["images.top"].reshape(T, -1).mean(1)
        np.testing.assert_allclose(shade, 40 * e + 10 * np.arange(T), atol=4 if videos else 0)  # video is lossy
