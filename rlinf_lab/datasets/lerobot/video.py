"""Pictures of episodes in the video files of a LeRobotDataset, written and read. Legend: T steps, H height, W width, C channels."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets.lerobot import layout
from rlinf_lab.errors import ConfigError, shown

if TYPE_CHECKING:
    from rlinf_lab.datasets.lerobot.reading import LeRobotData

CODEC = ["-crf", "18", "-g", "2", "-bf", "0"]
"""H.264 that looks lossless, a key frame at every second picture as lerobot has it: one picture is read without its file; no frames out of order"""

COMPRESSION = 8
"""at least, as assumed: a new file begins after a number of pictures, not after a size that depends on when ffmpeg writes"""

LONGEST_NAME = 255  # of a folder, in bytes


class VideoFiles:
    """The mp4 files of one camera, episodes one after another.

    A new file begins where one has grown large.

    Raises `ConfigError` for pictures that the codec has no form for.
    """

    def __init__(self, root: Path, name: str, shape: list[int], fps: float) -> None:
        if re.search(r"[/\\\0]", name) or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
            raise ConfigError(
                f"write_lerobot(videos=True): {shown(name)} names a folder of videos, so it must be without / and \\, of {LONGEST_NAME} bytes at most. "
                "Next: another key of that camera, or videos=False."
            )
        if shape[0] % 2 or shape[1] % 2:
            raise ConfigError(f"write_lerobot(videos=True): {name} has pictures of {shape[0]} × {shape[1]}; of a video both must be even. Next: videos=False.")
        if round(fps, 2) != fps:
            raise ConfigError(f"write_lerobot(videos=True): {fps} frames a second; of a video it must have two decimals at most. Next: videos=False.")
        self.root, self.name, self.fps = root, name, fps
        self.number, self.frames = -1, 0
        self.most = layout.VIDEO_FILE_MB * 2**20 * COMPRESSION / np.prod(shape)
        self._writer: Any = None
        height, width = shape[:2]
        self.info = {
            "video.height": height, "video.width": width, "video.codec": "h264", "video.pix_fmt": "yuv420p", "video.is_depth_map": False,
            "video.fps": int(fps) if float(fps).is_integer() else fps, "video.channels": 3, "has_audio": False,
        }  # fmt: skip

    @property
    def path(self) -> Path:
        """Of the file that is being written."""
        chunk, file = divmod(self.number, layout.FILES_A_CHUNK)
        return self.root / layout.VIDEO_PATH.format(video_key=self.name, chunk_index=chunk, file_index=file)

    def add(self, frames_THWC: NDArray[np.uint8]) -> dict[str, Any]:
        """Write an episode's pictures. Returns what meta/episodes says of where they are; times in seconds."""
        import imageio.v2 as imageio

        if self._writer is None or self.frames > self.most:
            self.close()
            self.number, self.frames = self.number + 1, 0
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # macro_block_size 1: no padding to multiples of 16
            self._writer = imageio.get_writer(
                self.path, "ffmpeg", fps=self.fps, codec="libx264", pixelformat="yuv420p", quality=None, macro_block_size=1, output_params=CODEC
            )
        start = self.frames
        for frame in frames_THWC:
            self._writer.append_data(frame)
        self.frames += len(frames_THWC)
        chunk, file = divmod(self.number, layout.FILES_A_CHUNK)
        place = {"chunk_index": chunk, "file_index": file, "from_timestamp": start / self.fps, "to_timestamp": self.frames / self.fps}
        return {f"videos/{self.name}/{part}": value for part, value in place.items()}

    def abandon(self) -> None:
        """End ffmpeg, whatever it has written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def close(self) -> None:
        """End the file. `OSError` where ffmpeg did not write all of it, as on a full disk."""
        if self._writer is None:
            return
        from imageio_ffmpeg import count_frames_and_secs

        self.abandon()
        found = 0
        with contextlib.suppress(RuntimeError):  # no video at all
            found, _ = count_frames_and_secs(str(self.path))
        if found != self.frames:
            raise OSError(f"{self.path.name} of {self.name} holds {found} of {self.frames} pictures. Next: is the disk full?")


def read_frames(data: LeRobotData, name: str, at: dict[str, int]) -> NDArray[np.uint8]:
    """The pictures (T, H, W, C) of an episode.

    The file is decoded from where the episode begins, and no further than its end.
    """
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
