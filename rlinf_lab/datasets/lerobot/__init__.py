"""LeRobotDataset, codebase version 3.0: written with pyarrow, read episode by episode."""

from rlinf_lab.datasets.lerobot.reading import LeRobotData, read_lerobot
from rlinf_lab.datasets.lerobot.writing import write_lerobot

__all__ = ["LeRobotData", "read_lerobot", "write_lerobot"]
