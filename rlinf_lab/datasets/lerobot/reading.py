"""A LeRobotDataset, read one episode at a time. Legend: T steps of an episode.

A data set may come from anywhere: paths stay in its folder, nothing in it is executed, what does not fit its own description is refused by name, and
a picture is looked at only where its size is the announced one.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from gymnasium import Space, spaces
from numpy.typing import NDArray
from PIL import Image

from rlinf_lab.datasets.episodes import DataSpec, Episode, EpisodeSource
from rlinf_lab.datasets.lerobot import layout
from rlinf_lab.datasets.space_json import LARGEST_ROW, MOST_AXES, built, from_json, is_image, leaf_spaces
from rlinf_lab.errors import ConfigError, shown

LARGEST_JSON = 64 << 20
MOST_FOOTERS = 64  # of files, held at once
MOST_FRAMES = 10**7  # of an episode
_PLACE = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")

WHOLE = frozenset(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))
NUMBERS = WHOLE | {"bool", "float16", "float32", "float64"}
KINDS = NUMBERS | {"image", "video"}
_ONE_NUMBER = {layout.REWARD: NUMBERS, layout.DONE: NUMBERS, layout.SUCCESS: NUMBERS, "task_index": WHOLE}


class LeRobotData(EpisodeSource):
    """See `read_lerobot`. Holds an episode's place on disk, not its frames; pickles as the folder's name."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self.info = self._read_info()
        ours = self.info.get("rlinf_lab")
        ours = ours if isinstance(ours, dict) else {}
        self._features: dict[str, dict[str, Any]] = self.info["features"]
        self._footers: dict[Path, tuple[pq.FileMetaData, NDArray[np.int64]]] = {}  # parsing one costs more than reading a short episode
        observation, action = (self._space(kind, ours) for kind in ("observation", "action"))
        fps = self.info.get("fps", 10)
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
            raise self._bad(layout.INFO, f"fps is {shown(fps)}")
        env, limit = ours.get("env"), ours.get("max_episode_steps")
        if env is not None and not isinstance(env, str):
            raise self._bad(layout.INFO, f"env is {shown(env)}, and no id")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise self._bad(layout.INFO, f"max_episode_steps is {shown(limit)}, and no number of steps")
        self.spec = DataSpec(observation, action, env, limit, float(fps), str(ours.get("by", self.path.name)))
        self._columns = {
            kind: layout.columns_of(space, kind) if f"{kind}_space" in ours else self._foreign(kind)
            for kind, space in (("observation", observation), ("action", action))
        }
        for name in [*self._columns["observation"].values(), *self._columns["action"].values()]:
            if name not in self._features:
                raise self._bad(layout.INFO, f"it describes no feature {name!r}")
        for kind, space in (("observation", observation), ("action", action)):
            for path, leaf in leaf_spaces(space) if f"{kind}_space" in ours else ():
                name, wanted = self._columns[kind][path], layout.feature_of(leaf)
                has = self._features[name]
                if has["shape"] != wanted["shape"] or has["dtype"] not in (wanted["dtype"], "video"):
                    raise self._bad(layout.INFO, f"feature {name!r} is {has['dtype']}{has['shape']}, and its space has {wanted['dtype']}{wanted['shape']}")

    def __fspath__(self) -> str:
        return str(self.path)

    def __reduce__(self) -> Any:
        return LeRobotData, (str(self.path),)

    # --- what there is -----------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self._places["length"])

    @property
    def lengths_E(self) -> NDArray[np.int64]:
        return self._places["length"]

    def read(self, index: int) -> Episode:
        at = {name: int(self._places[name][index]) for name in _PLACE}
        place = layout.path_in(self.path, self.info.get("data_path"), at["data/chunk_index"], at["data/file_index"])
        wanted = [*self._columns["observation"].values(), *self._columns["action"].values()]
        names = [n for n in (*wanted, layout.REWARD, layout.DONE, layout.SUCCESS, "task_index") if n in self._features]
        table = self._frames(place, at, [*(n for n in names if self._features[n]["dtype"] != "video"), "episode_index"])
        numbers = table["episode_index"]
        if not pa.types.is_integer(numbers.type) or not pc.all(pc.equal(numbers, at["episode_index"])).as_py():
            raise self._bad(place, f"episode {index} is not where meta/episodes says it is")
        arrays = {name: self._array(table, name, place, at) for name in names}
        T = at["length"]
        spec = self.spec
        trees = [
            built(space, lambda path, kind=kind: arrays[self._columns[kind][path]])
            for kind, space in (("observation", spec.observation_space), ("action", spec.action_space))
        ]
        ours = self._our_rows[index]
        done = bool(arrays[layout.DONE][-1]) if layout.DONE in arrays else False
        reward_T = arrays[layout.REWARD].astype(np.float32) if layout.REWARD in arrays else np.zeros(T, np.float32)
        success_T = arrays[layout.SUCCESS].astype(bool) if layout.SUCCESS in arrays else None
        return Episode(
            trees[0], trees[1], reward_T, bool(ours.get("terminated", done)), bool(ours.get("truncated", not done)), success_T, self._final(ours),
            ours.get("seed"), self._task(int(arrays["task_index"][0])) if "task_index" in arrays else "",
        )  # fmt: skip

    # --- frames -----------------------------------------------------------------------------------------------
    def _frames(self, place: Path, at: dict[str, int], names: list[str]) -> pa.Table:
        """The rows of one episode: only the row groups are read that it lies in."""
        try:
            if place not in self._footers:
                if len(self._footers) >= MOST_FOOTERS:
                    self._footers.pop(next(iter(self._footers)))
                found = pq.read_metadata(place)
                self._footers[place] = found, np.cumsum([found.row_group(g).num_rows for g in range(found.num_row_groups)])
            footer, ends = self._footers[place]
            with pq.ParquetFile(place, metadata=footer) as file:
                known = file.schema_arrow.names
                for name in names:
                    if name not in known:
                        raise self._bad(place, f"it has no column {name!r}")
                start = at["dataset_from_index"] - self._first_of(at)
                stop = start + at["length"]
                if not 0 <= start < stop <= (ends[-1] if len(ends) else 0):
                    raise self._bad(place, f"episode {at['episode_index']} ends at row {stop}, and there are {ends[-1] if len(ends) else 0}")
                first, last = (int(np.searchsorted(ends, row, side="right")) for row in (start, stop - 1))
                before = int(ends[first - 1]) if first else 0
                table = file.read_row_groups(list(range(first, last + 1)), columns=names, use_threads=False)
                return table.slice(start - before, stop - start)
        except (OSError, pa.ArrowException) as error:
            raise self._bad(place, f"it cannot be read: {error}") from error

    def _first_of(self, at: dict[str, int]) -> int:
        """The number of the first frame of that file."""
        return self._firsts[at["data/chunk_index"], at["data/file_index"]]

    @cached_property
    def _firsts(self) -> dict[tuple[int, int], int]:
        columns = [self._places[name].tolist() for name in ("data/chunk_index", "data/file_index", "dataset_from_index")]
        firsts: dict[tuple[int, int], int] = {}
        for chunk, file, start in zip(*columns, strict=True):
            firsts[chunk, file] = min(start, firsts.get((chunk, file), start))
        return firsts

    def _array(self, table: pa.Table, name: str, place: Path, at: dict[str, int]) -> NDArray:
        feature = self._features[name]
        if feature["dtype"] == "video":
            from rlinf_lab.datasets.lerobot.video import read_frames

            return read_frames(self, name, at)
        column = table[name].combine_chunks()
        if column.null_count:
            raise self._bad(place, f"{name} of episode {at['episode_index']} has gaps")
        if feature["dtype"] == "image":
            return np.stack([self._picture(cell, feature["shape"], name, place) for cell in column.to_pylist()])
        shape, kind = feature["shape"], feature["dtype"]
        try:
            while isinstance(column, (pa.ListArray, pa.FixedSizeListArray, pa.LargeListArray)):
                column = column.flatten()
            array = column.to_numpy(zero_copy_only=False).astype(bool if kind == "bool" else np.dtype(kind), copy=False)
            return array.reshape(at["length"], *self._shape_of(name, shape))
        except (ValueError, TypeError, pa.ArrowException) as error:
            raise self._bad(place, f"{name} of episode {at['episode_index']} is not of the shape {shape} and type {kind}: {error}") from error

    def _shape_of(self, name: str, shape: list[int]) -> tuple[int, ...]:
        """Of a row. A column of single numbers has none, unless the space of its leaf is a Box of one number."""
        if shape != [1]:
            return tuple(shape)
        return (1,) if self._ones.get(name) else ()

    @cached_property
    def _ones(self) -> dict[str, bool]:
        kinds = (("observation", self.spec.observation_space), ("action", self.spec.action_space))
        return {self._columns[kind][path]: leaf.shape == (1,) for kind, space in kinds for path, leaf in leaf_spaces(space)}

    def _picture(self, cell: Any, shape: list[int], name: str, place: Path) -> NDArray:
        data = cell.get("bytes") if isinstance(cell, dict) else None
        if not isinstance(data, bytes):
            raise self._bad(place, f"{name} has a picture that is not within the file. Next: lerobot's own conversion to version 3.0")
        try:
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
                if [picture.height, picture.width] != list(shape[:2]):
                    raise self._bad(place, f"{name} has a picture of {picture.height} × {picture.width}, and {shape} are announced")
                return np.asarray(picture.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            if isinstance(error, ConfigError):
                raise
            raise self._bad(place, f"{name} has a picture that cannot be read: {error}") from error

    # --- descriptions ---------------------------------------------------------------------------------------------
    def _read_info(self) -> dict[str, Any]:
        path = self.path / layout.INFO
        if not path.is_file():
            raise ConfigError(f"{str(self.path)!r} is no LeRobotDataset: it has no {layout.INFO}. Next: the folder that holds meta/ and data/.")
        try:
            if path.stat().st_size > LARGEST_JSON:
                raise self._bad(layout.INFO, f"it has {path.stat().st_size} bytes")
            info = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise self._bad(layout.INFO, f"it cannot be read: {error}") from error
        if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
            raise self._bad(layout.INFO, "it describes no features")
        version = info.get("codebase_version")
        if version != layout.VERSION:
            raise self._bad(layout.INFO, f"it is of version {shown(version)}, and {layout.VERSION} is read here. Next: lerobot's conversion from 2.1 to 3.0")
        left = LARGEST_ROW
        for name, feature in info["features"].items():
            shape = feature.get("shape") if isinstance(feature, dict) else None
            fits = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 10**6 for n in shape)
            kind = feature.get("dtype") if isinstance(feature, dict) else None
            if not isinstance(shape, list) or not fits or not isinstance(kind, str) or kind not in KINDS:
                raise self._bad(layout.INFO, f"feature {name!r} is {shown(feature)}, which has no dtype and shape that are known")
            left -= math.prod(shape) * (1 if kind in ("image", "video") else np.dtype(kind).itemsize)
            if left < 0 or len(shape) > MOST_AXES:
                raise self._bad(layout.INFO, f"feature {name!r} has the shape {shown(shape)}: a row has {LARGEST_ROW >> 20} MiB at most")
        for name, kinds in _ONE_NUMBER.items():
            feature = info["features"].get(name)
            if feature is not None and (feature["shape"] not in ([], [1]) or feature["dtype"] not in kinds):
                raise self._bad(layout.INFO, f"feature {name!r} is {shown(feature)}, and one {'whole ' if kinds is WHOLE else ''}number of a frame is needed")
        return info

    def _foreign(self, kind: str) -> dict[tuple[str, ...], str]:
        """Columns of a data set that others have written, by their place in the tree."""
        names = [n for n in self._features if n == kind or n.startswith(f"{kind}.")]
        if not names:
            raise self._bad(layout.INFO, f"it describes no {kind}")
        return {(): names[0]} if len(names) == 1 else {(n.removeprefix(f"{kind}."),): n for n in names}

    def _space(self, kind: str, ours: dict[str, Any]) -> Space:
        if f"{kind}_space" in ours:
            try:
                return from_json(ours[f"{kind}_space"])
            except ConfigError as error:
                raise self._bad(layout.INFO, str(error).rstrip(".")) from error
        columns = self._foreign(kind)
        if len(columns) == 1 and () in columns:
            return self._leaf(columns[()])
        return spaces.Dict({path[0]: self._leaf(name) for path, name in columns.items()})

    def _leaf(self, name: str) -> Space:
        feature = self._features[name]
        shape = tuple(feature["shape"])
        if feature["dtype"] in ("image", "video"):
            names = feature.get("names")
            if isinstance(names, list) and names and str(names[0]).startswith("channel"):
                shape = (*shape[1:], shape[0])
                feature["shape"] = list(shape)
            found = spaces.Box(0, 255, shape, np.uint8)
            if not is_image(found):
                raise self._bad(layout.INFO, f"{name} has pictures of the shape {list(shape)}, and colour ones are read here")
            return found
        kind = np.dtype(feature["dtype"])
        if kind.kind == "f":
            return spaces.Box(-np.inf, np.inf, shape, kind.type)
        limits = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        return spaces.Box(*limits, shape, np.int8 if kind.kind == "b" else kind.type)

    @cached_property
    def _places(self) -> dict[str, NDArray[np.int64]]:
        files = sorted((self.path / layout.EPISODES).glob("*/*.parquet"))
        if not files:
            raise self._bad(layout.EPISODES, "it has no files")
        video = [f"videos/{n}/{part}" for n, f in self._features.items() if f["dtype"] == "video" for part in ("chunk_index", "file_index", "from_timestamp")]
        try:
            table = pa.concat_tables([pq.read_table(file, columns=[*_PLACE, *video]) for file in files])
        except (OSError, pa.ArrowException, ValueError) as error:
            raise self._bad(layout.EPISODES, f"it cannot be read: {error}") from error
        if missing := [name for name in (*_PLACE, *video) if name not in table.column_names]:
            raise self._bad(layout.EPISODES, f"it has no columns {', '.join(missing)}")
        for name in (*_PLACE, *video):
            _check_column(self._bad, layout.EPISODES, table, name, pa.types.is_floating if name.endswith("from_timestamp") else pa.types.is_integer)
        try:
            places = {name: np.asarray(table[name] if name.endswith("from_timestamp") else table[name].cast(pa.int64())) for name in table.column_names}
        except pa.ArrowException as error:  # beyond 64 bits
            raise self._bad(layout.EPISODES, f"it cannot be read: {error}") from error
        length, start, stop = (places[name] for name in ("length", "dataset_from_index", "dataset_to_index"))
        wrong = (length <= 0) | (length > MOST_FRAMES) | (start < 0) | (stop - start != length)
        if wrong.any():
            n = int(np.argmax(wrong))
            raise self._bad(layout.EPISODES, f"episode {n} has {length[n]} frames, from {start[n]} to {stop[n]}")
        return places

    @cached_property
    def _tasks(self) -> dict[int, str]:
        path = self.path / layout.TASKS
        try:
            table = pq.read_table(path)
        except FileNotFoundError:
            return {}
        except (OSError, pa.ArrowException) as error:
            raise self._bad(layout.TASKS, f"it cannot be read: {error}") from error
        words = next((n for n in table.column_names if n != "task_index"), None)
        if words is None or "task_index" not in table.column_names:
            raise self._bad(layout.TASKS, "it names no tasks")
        return dict(zip(table["task_index"].to_pylist(), map(str, table[words].to_pylist()), strict=True))

    def _task(self, index: int) -> str:
        return self._tasks.get(index, "")

    @cached_property
    def _our_rows(self) -> list[dict[str, Any]]:
        path = self.path / layout.OURS
        try:
            table = pq.read_table(path) if path.is_file() and "rlinf_lab" in self.info else None  # else somebody has written the set anew
        except (OSError, pa.ArrowException) as error:
            raise self._bad(layout.OURS, f"it cannot be read: {error}") from error
        if table is None:
            return [{}] * len(self)
        if table.num_rows != len(self):
            raise self._bad(layout.OURS, f"it has {table.num_rows} rows, and there are {len(self)} episodes")
        kinds = {"seed": pa.types.is_integer, "terminated": pa.types.is_boolean, "truncated": pa.types.is_boolean, "final_obs": pa.types.is_binary}
        for name, fits in kinds.items():
            _check_column(self._bad, layout.OURS, table, name, fits, may_lack=name in ("seed", "final_obs"))
        return list(table.select(list(kinds)).to_pylist())

    def _final(self, ours: dict[str, Any]) -> Any:
        if ours.get("final_obs") is None:
            return None
        leaves = dict(leaf_spaces(self.spec.observation_space))
        try:
            with np.load(io.BytesIO(ours["final_obs"]), allow_pickle=False) as arrays:
                return built(self.spec.observation_space, lambda path: _last(arrays, self._columns["observation"][path], leaves[path]))
        except (OSError, ValueError, KeyError, EOFError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise self._bad(layout.OURS, f"a last observation cannot be read: {error}") from error

    def _bad(self, where: str | Path, what: str) -> ConfigError:
        return ConfigError(f"{str(self.path)!r}: {where if isinstance(where, str) else where.name}: {what}.")


def _check_column(
    bad: Callable[[str, str], ConfigError], where: str, table: pa.Table, name: str, fits: Callable[[pa.DataType], bool], may_lack: bool = False
) -> None:
    """`ConfigError` naming a value of another type than the column, or one that lacks."""
    if name not in table.column_names:
        raise bad(where, f"it has no column {name!r}")
    column = table[name]
    gaps = 0 if may_lack else column.null_count
    if gaps or not (fits(column.type) or (may_lack and pa.types.is_null(column.type))):
        row = pc.index(column.is_null(), True).as_py() if gaps else 0
        raise bad(where, f"{name} of episode {row} is {shown(column[row].as_py())}, and {fits.__name__.removeprefix('is_')} is needed")


def _last(arrays: Any, name: str, space: Any) -> NDArray:
    """One array of an npz, if it is announced as one of its space.

    A few bytes may unpack to any size. `ValueError` where it is another.
    """
    with arrays.zip.open(f"{name}.npy") as file:
        read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[np.lib.format.read_magic(file)[0]]
        shape, _, kind = read_header(file)
    wanted = np.dtype(space.dtype)
    if shape != space.shape or not (kind == wanted or (wanted.kind == "f" and kind.kind in "biuf" and kind.itemsize <= 8)):
        raise ValueError(f"the last {name} is {kind}{list(shape)}, and its space has {wanted}{list(space.shape)}")
    return np.asarray(arrays[name].astype(wanted))


def read_lerobot(folder: str | os.PathLike[str]) -> LeRobotData:
    """The episodes of a LeRobotDataset of codebase version 3.0, ours or others'. An episode is read when it is asked for.

    ``data[3]`` reads the row groups that the fourth episode lies in, ``data[:10]`` is a slice that reads nothing yet. Of data that others have written
    ``observation.state`` alone is a Box, several columns are a Dict; actions are as they were recorded. Raises `ConfigError` naming the file and what is
    wrong with it.
    """
    return LeRobotData(folder)
