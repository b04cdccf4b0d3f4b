"""Pictures of an episode from the video files of a LeRobotDataset. Legend: T steps, H height, W width, C channels."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets.lerobot import layout

if TYPE_CHECKING:
    from rlinf_lab.datasets.lerobot.reading import LeRobotData


def read_frames(data: LeRobotData, name: str, at: dict[str, int]) -> NDArray[np.uint8]:
    """The pictures (T, H, W, C) of an episode: decoded from where it begins in its file, and no further than its end."""
    import imageio.v2 as imageio

    places, index = data._places, at["episode_index"]
    row = int(np.flatnonzero(places["episode_index"] == index)[0])
    chunk, file, start = (places[f"videos/{name}/{part}"][row] for part in ("chunk_index", "file_index", "from_timestamp"))
    path = layout.path_in(data.path, data.info.get("video_path"), int(chunk), int(file), name)
    shape = tuple(data.info["features"][name]["shape"])
    # Half a frame earlier: a time stamp is rounded.
    options: dict[str, Any] = {"input_params": ["-ss", f"{max(0.0, float(start) - 0.5 / data.spec.fps):.6f}"]}
    try:
        with imageio.get_reader(path, "ffmpeg", **options) as reader:
            pictures: Any = reader
            frames = [np.asarray(frame) for frame in itertools.islice(pictures.iter_data(), at["length"])]
    except (OSError, RuntimeError, ValueError, IndexError) as error:
        raise data._bad(path, f"it cannot be decoded: {str(error)[:200]}") from error
    if len(frames) < at["length"] or frames[0].shape != shape:
        found = frames[0].shape if frames else None
        raise data._bad(path, f"it holds {len(frames)} pictures of {found} for episode {index}, and {at['length']} of {shape} are announced")
    return np.stack(frames)
