"""Recorded episodes: LeRobotDataset v3 and Minari, in both directions.

Minibatches come from more data than memory holds.
"""

from rlinf_lab.datasets.episodes import DataSpec, Episode, EpisodeList, EpisodeSource
from rlinf_lab.datasets.lerobot import read_lerobot, write_lerobot
from rlinf_lab.datasets.minari_data import read_minari, write_minari
from rlinf_lab.datasets.sampling import ChunkSampler

__all__ = [
    "ChunkSampler", "DataSpec", "Episode", "EpisodeList", "EpisodeSource", "read_lerobot", "read_minari", "write_lerobot", "write_minari",
]  # fmt: skip
