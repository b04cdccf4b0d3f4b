"""lerobot itself, on the CPU build of torch.

torchvision comes as a CUDA build, whose operators that torch cannot load; when it is imported it describes two of them by name, whether they are there
or not. They are declared here and never called. That torchvision has no `VideoReader` any more, which lerobot decodes with where torchcodec and the
system's ffmpeg are not installed: `VideoReader` here is what it was, PyAV seen through its words. What is asked for, when, and how near a time stamp must
be is lerobot's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class VideoReader:
    """torchvision's, as far as lerobot calls it."""

    def __init__(self, path: str, stream: str) -> None:
        import av

        self.container = av.open(path)

    def seek(self, seconds: float, keyframes_only: bool) -> None:
        assert keyframes_only
        self.container.seek(int(seconds * 1_000_000), any_frame=False, backward=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for frame in self.container.decode(video=0):
            yield {"data": torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1), "pts": float(frame.pts * frame.time_base)}


def imported() -> Any:
    """The class `LeRobotDataset`."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    if not hasattr(torchvision.io, "VideoReader"):
        torchvision.io.VideoReader = VideoReader

    return LeRobotDataset
