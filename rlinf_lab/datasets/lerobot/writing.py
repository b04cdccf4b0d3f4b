"""Episodes as a LeRobotDataset. Legend: T steps of an episode."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from rlinf_lab.datasets.episodes import Episode, EpisodeSource
from rlinf_lab.datasets.lerobot import layout
from rlinf_lab.datasets.lerobot.video import VideoFiles
from rlinf_lab.datasets.space_json import at, is_image, leaf_spaces, to_json
from rlinf_lab.errors import ConfigError


def write_lerobot(data: EpisodeSource, folder: str | os.PathLike[str], *, videos: bool = False) -> Path:
    """Write a LeRobotDataset of codebase version 3.0, which lerobot 0.4 reads. Returns the folder.

    Pictures are PNG within the frames, without loss; with ``videos`` they are H.264 in an mp4 for each camera, much smaller and not bit for bit the same.
    One episode at a time is in memory. The folder is there whole or not at all. Beside what lerobot reads there are seeds, kinds of ends and last
    observations, so that `read_lerobot` gives the same episodes. Raises `ConfigError` where the folder is there, there are no episodes, no pictures for
    a video, two leaves of one column, or numbers that the type of their space cannot hold (pictures of floats in a space of uint8).
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"write_lerobot({str(target)!r}): it is there already. Next: another folder, or delete it.")
    if not len(data):
        raise ConfigError(f"write_lerobot({str(target)!r}): {data!r} has nothing to write.")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        _Writer(data, part, videos).write()
        part.chmod(0o755)
        if target.exists():
            target.rmdir()  # empty
        part.replace(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


@dataclass
class _Statistics:
    """Running ones of a column, over all frames (of pictures by channel, in [0, 1])."""

    count: int = 0
    total: Any = 0.0
    squares: Any = 0.0
    low: Any = np.inf
    high: Any = -np.inf

    def add(self, values: NDArray, picture: bool) -> None:
        rows = values.astype(np.float64)
        rows = rows / 255.0 if picture else rows.reshape(len(rows), -1)
        axes = (0, 1, 2) if picture else (0,)
        self.count += len(rows) * (rows.shape[1] * rows.shape[2] if picture else 1)
        self.total = self.total + rows.sum(axes)
        self.squares = self.squares + np.square(rows).sum(axes)
        self.low, self.high = np.minimum(self.low, rows.min(axes)), np.maximum(self.high, rows.max(axes))

    def as_json(self, shape: list[int], picture: bool) -> dict[str, Any]:
        mean = self.total / self.count
        std = np.sqrt(np.maximum(self.squares / self.count - mean**2, 0.0))
        form = (len(mean), 1, 1) if picture else tuple(shape)
        named = {"min": self.low, "max": self.high, "mean": mean, "std": std}
        return {**{name: np.asarray(value).reshape(form).tolist() for name, value in named.items()}, "count": [self.count]}


class _Writer:
    def __init__(self, data: EpisodeSource, root: Path, videos: bool) -> None:
        self.data, self.root, self.spec = data, root, data.spec
        self.columns: dict[str, tuple[str, tuple[str, ...], Any]] = {}  # name: (obs or action, place in the tree, space of the leaf)
        for kind, space in (("observation", self.spec.observation_space), ("action", self.spec.action_space)):
            names, leaves = layout.columns_of(space, kind), dict(leaf_spaces(space))
            self.columns |= {names[path]: (kind, path, leaves[path]) for path in names}
        first = data[0]
        self.tells_success = first.success_T is not None
        extra = {layout.REWARD: "float32", layout.DONE: "bool", **({layout.SUCCESS: "bool"} if self.tells_success else {})}
        self.features = {
            **{name: layout.feature_of(leaf, videos) for name, (_, _, leaf) in self.columns.items()},
            **{name: {"dtype": kind, "shape": [1], "names": None} for name, kind in extra.items()}, **layout.OWN_COLUMNS,
        }  # fmt: skip
        self.videos = {n: VideoFiles(root, n, f["shape"], self.spec.fps) for n, f in self.features.items() if f["dtype"] == "video"}
        if videos and not self.videos:
            raise ConfigError(f"write_lerobot(videos=True): {data!r} has no pictures. Next: videos=False.")
        for name, files in self.videos.items():
            self.features[name]["info"] = files.info
        self.stats = {name: _Statistics() for name in self.features}
        self.tasks: dict[str, int] = {}
        self.frames = 0

    def write(self) -> None:
        rows, ours = [], []
        for index, (episode, (chunk, file), seen) in enumerate(self._written()):
            rows.append({
                "episode_index": index, "tasks": [episode.task], "length": len(episode), "data/chunk_index": chunk, "data/file_index": file,
                "dataset_from_index": self.frames - len(episode), "dataset_to_index": self.frames,
                "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0, **seen,
            })  # fmt: skip
            final = None if episode.final_obs is None else packed(self._final(episode))
            ours.append({"seed": episode.seed, "terminated": episode.terminated, "truncated": episode.truncated, "final_obs": final})
        self._table(layout.EPISODES_PATH.format(chunk_index=0, file_index=0), pa.Table.from_pylist(rows))
        schema = pa.schema({"seed": pa.int64(), "terminated": pa.bool_(), "truncated": pa.bool_(), "final_obs": pa.binary()})
        self._table(layout.OURS, pa.Table.from_pylist(ours, schema))
        self._tasks()
        stats = {n: s.as_json(self.features[n]["shape"], self.features[n]["dtype"] in ("image", "video")) for n, s in self.stats.items()}
        self._json(layout.STATS, stats)
        self._json(layout.INFO, self._info(len(rows)))

    def _written(self) -> Iterator[tuple[Episode, tuple[int, int], dict[str, Any]]]:
        """Each episode when its frames are on disk. With the file that they are in, and where its videos are."""
        number, writer, path = -1, None, self.root
        try:
            for index, episode in enumerate(self.data):
                if writer is None or path.stat().st_size > layout.DATA_FILE_MB * 2**20:
                    if writer is not None:
                        writer.close()
                    number += 1
                    place = divmod(number, layout.FILES_A_CHUNK)
                    path = self.root / layout.DATA_PATH.format(chunk_index=place[0], file_index=place[1])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    writer = pq.ParquetWriter(path, self._schema())
                table = self._table_of(episode, index)
                writer.write_table(table, row_group_size=len(episode))
                self.frames += len(episode)
                yield episode, place, {k: v for name, files in self.videos.items() for k, v in files.add(self._column(episode, name)).items()}
            for files in self.videos.values():
                files.close()
        finally:
            if writer is not None:
                writer.close()
            for files in self.videos.values():
                files.abandon()

    def _schema(self) -> pa.Schema:
        """With what Hugging Face's datasets reads of it: which columns are pictures."""
        fields: dict[str, pa.DataType] = {}
        described: dict[str, dict[str, Any]] = {}
        for name, feature in self.features.items():
            kind, shape = feature["dtype"], feature["shape"]
            if kind == "video":
                continue
            if kind == "image":
                fields[name], described[name] = pa.struct({"bytes": pa.binary(), "path": pa.string()}), {"_type": "Image"}
                continue
            fields[name] = _arrow(kind, shape)
            value: dict[str, Any] = {"dtype": kind, "_type": "Value"}
            if shape == [1]:
                described[name] = value
            elif len(shape) == 1:
                described[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
            else:
                described[name] = {"shape": shape, "dtype": kind, "_type": f"Array{len(shape)}D"}
        return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": described}})})

    def _table_of(self, episode: Episode, index: int) -> pa.Table:
        T, fps = len(episode), self.spec.fps
        task = self.tasks.setdefault(episode.task, len(self.tasks))
        if (episode.success_T is not None) != self.tells_success:
            raise ConfigError(f"write_lerobot: number {index}, {episode!r}, tells of success unlike the first one. Next: data.where(...) of one kind.")
        done_T = np.zeros(T, bool)
        done_T[-1] = episode.terminated or episode.truncated
        values: dict[str, NDArray] = {
            layout.REWARD: episode.reward_T, layout.DONE: done_T, "timestamp": np.arange(T) / fps, "frame_index": np.arange(T),
            "episode_index": np.full(T, index), "index": self.frames + np.arange(T), "task_index": np.full(T, task),
        }  # fmt: skip
        if episode.success_T is not None:
            values[layout.SUCCESS] = episode.success_T
        arrays = []
        for name, feature in self.features.items():
            picture = feature["dtype"] in ("image", "video")
            column = self._column(episode, name) if name in self.columns else values[name]
            if column.shape[1:] not in (tuple(feature["shape"]), ()) or (column.ndim == 1 and feature["shape"] != [1]):
                raise ConfigError(f"write_lerobot: {name} of number {index}, {episode!r}, has rows of the shape {column.shape[1:]}, not {feature['shape']}.")
            self.stats[name].add(column, picture)
            if feature["dtype"] != "video":
                arrays.append(_pictures(column) if picture else _array(column, feature))
        return pa.Table.from_arrays(arrays, schema=self._schema())

    def _column(self, episode: Episode, name: str) -> NDArray:
        kind, path, leaf = self.columns[name]
        return _held(np.asarray(at(episode.obs_T if kind == "observation" else episode.action_T, path)), leaf, name, episode)

    def _final(self, episode: Episode) -> dict[str, NDArray]:
        places = ((name, path, leaf) for name, (kind, path, leaf) in self.columns.items() if kind == "observation")
        return {name: _held(np.asarray(at(episode.final_obs, path)), leaf, f"the last {name}", episode) for name, path, leaf in places}

    def _tasks(self) -> None:
        """As pandas writes a frame whose index is the tasks."""
        import pandas as pd

        path = self.root / layout.TASKS
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame({"task_index": list(self.tasks.values())}, index=list(self.tasks)).to_parquet(path)

    def _info(self, episodes: int) -> dict[str, Any]:
        spec = self.spec
        return {
            "codebase_version": layout.VERSION, "robot_type": None, "total_episodes": episodes, "total_frames": self.frames,
            "total_tasks": len(self.tasks), "chunks_size": layout.FILES_A_CHUNK, "data_files_size_in_mb": layout.DATA_FILE_MB,
            "video_files_size_in_mb": layout.VIDEO_FILE_MB, "fps": int(spec.fps) if float(spec.fps).is_integer() else spec.fps,
            "splits": {"train": f"0:{episodes}"}, "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self.videos else None, "features": self.features,
            "rlinf_lab": {
                "observation_space": to_json(spec.observation_space), "action_space": to_json(spec.action_space), "env": spec.env,
                "max_episode_steps": spec.max_episode_steps, "by": spec.by,
            },
        }  # fmt: skip

    def _json(self, name: str, plain: Any) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(plain, indent=4, ensure_ascii=False, allow_nan=False))

    def _table(self, name: str, table: pa.Table) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)


def _held(values: NDArray, leaf: Any, name: str, episode: Episode) -> NDArray:
    """Whole numbers in the type of their space. Each stays what it is: nothing is rounded, rescaled or wrapped."""
    kind = np.dtype(leaf.dtype)
    if values.dtype == kind or (kind.kind == "f" and values.dtype.kind in "biuf"):
        return values
    if values.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):
            cast = values.astype(kind)
        if np.array_equal(cast, values):
            return cast
    span = f" from {values.min()} to {values.max()}" if values.dtype.kind in "biuf" else ""
    advice = "(255 * x).round().astype(np.uint8) of pictures in [0, 1]" if is_image(leaf) else f"whole numbers, x.astype(np.{kind}), or another space"
    raise ConfigError(f"write_lerobot: {name} of {episode!r} has {values.dtype}{span}, which {kind} of its space cannot hold. Next: {advice}.")


def _arrow(kind: str, shape: list[int]) -> pa.DataType:
    value = pa.type_for_alias({"float32": "float", "float64": "double"}.get(kind, kind))
    if shape == [1]:
        return value
    nested = value
    for size in reversed(shape):
        nested = pa.list_(nested, size if len(shape) == 1 else -1)
    return nested


def _array(column: NDArray, feature: dict[str, Any]) -> pa.Array:
    kind, shape = feature["dtype"], feature["shape"]
    flat = np.ascontiguousarray(column, dtype=np.dtype(kind) if kind != "bool" else bool)
    if shape == [1]:
        return pa.array(flat.reshape(-1), _arrow(kind, shape))
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), shape[0])
    return pa.array(flat.tolist(), _arrow(kind, shape))


def _pictures(column_THWC: NDArray) -> pa.Array:
    rows = []
    for picture in column_THWC:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "PNG")
        rows.append({"bytes": out.getvalue(), "path": None})
    return pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def packed(arrays: dict[str, NDArray]) -> bytes:
    """Arrays as one npz; reading it executes nothing."""
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return out.getvalue()
