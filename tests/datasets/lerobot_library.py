"""lerobot itself, on the CPU build of torch.

torchvision comes as a CUDA build, whose operators that torch cannot load; when it is imported it describes two of them by name, whether they are there
or not. They are declared here and never called.
"""

from __future__ import annotations

from typing import Any

import torch


def imported() -> Any:
    """The class `LeRobotDataset`."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset
