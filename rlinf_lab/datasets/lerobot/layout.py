"""Where a LeRobotDataset of version 3.0 keeps what, and what its columns are called.

    meta/info.json                              features, counts, templates of paths
    meta/stats.json, meta/tasks.parquet
    meta/episodes/chunk-000/file-000.parquet    a row for each episode: where its frames are
    data/chunk-000/file-000.parquet             a row for each frame, episodes one after another, each a row group of its own
    meta/rlinf_lab/episodes.parquet             ours: seeds, kinds of ends and last observations, which the format has no place for

Source: lerobot 0.4.4, ``lerobot/datasets/utils.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gymnasium import Space

from rlinf_lab.datasets.space_json import is_image, leaf_spaces
from rlinf_lab.errors import ConfigError, shown

VERSION = "v3.0"
INFO, STATS, TASKS, OURS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/rlinf_lab/episodes.parquet"
EPISODES = "meta/episodes"
EPISODES_PATH = EPISODES + "/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILES_A_CHUNK, DATA_FILE_MB, VIDEO_FILE_MB = 1000, 100, 200
OWN_COLUMNS = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{name: {"dtype": "int64", "shape": [1], "names": None} for name in ("frame_index", "episode_index", "index", "task_index")},
}  # fmt: skip
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"

_FIELD = re.compile(r"\{(chunk_index|file_index|video_key)(:0?(\d{1,2})d)?\}")


def path_in(root: Path, template: object, chunk: object, file: object, video_key: str = "") -> Path:
    """A file below ``root``. `ConfigError` for a template, or for numbers, that lead elsewhere: a data set may come from anywhere."""
    if not isinstance(template, str) or re.sub(_FIELD, "", template).count("{"):
        raise ConfigError(f"{root.name}: {shown(template)} is no template of paths. Next: {DATA_PATH!r}.")
    known = {"chunk_index": chunk, "file_index": file}
    for name, value in known.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**6:
            raise ConfigError(f"{root.name}: {name} is {shown(value)}, and no number of a file.")

    def written(match: re.Match[str]) -> str:
        name, _, width = match.groups()
        return video_key if name == "video_key" else f"{known[name]:0{int(width or 1)}d}"

    try:
        found = (root / _FIELD.sub(written, template)).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, a ring of links
        raise ConfigError(f"{root.name}: {shown(template)} is no template of paths: {error}. Next: {DATA_PATH!r}.") from error
    if not found.is_relative_to(root.resolve()):
        raise ConfigError(f"{root.name}: {shown(template)} leads out of the data set's folder. Next: a data set of whom you trust.")
    return found


def columns_of(space: Space, kind: str) -> dict[tuple[str, ...], str]:
    """The names of a space's columns, by the place of the leaf.

    ``kind``: "observation" or "action". `ConfigError` where two have one name.
    """
    found: dict[tuple[str, ...], str] = {}
    places: dict[str, tuple[str, ...]] = {}
    for path, leaf in leaf_spaces(space):
        if kind == "action":
            found[path] = ".".join(("action", *path))
        else:
            middle = ("images",) if is_image(leaf) else ()
            found[path] = ".".join(("observation", *middle, *(path or ("image" if middle else "state",))))
        if found[path] in places:
            one, other = (kind + "".join(f"[{key!r}]" for key in place) for place in (places[found[path]], path))
            raise ConfigError(f"{one} and {other} would both be the column {found[path]!r} of a LeRobotDataset. Next: rename one of them.")
        places[found[path]] = path
    return found


def feature_of(space: Any, videos: bool = False) -> dict[str, Any]:
    """How info.json describes the column of a leaf."""
    if is_image(space):
        return {"dtype": "video" if videos else "image", "shape": list(space.shape), "names": ["height", "width", "channels"]}
    shape = list(space.shape) or [1]
    return {"dtype": str(space.dtype) if space.dtype != bool else "bool", "shape": shape, "names": None}
