"""Recorded episodes: LeRobotDataset v3 and Minari, in both directions.

HDF5 files of other libraries and plain arrays are read. Minibatches come from more data than memory holds.
"""

from rlinf_lab.datasets.arrays import from_arrays
from rlinf_lab.datasets.episodes import DataSpec, Episode, EpisodeList, EpisodeSource
from rlinf_lab.datasets.hdf5 import read_hdf5
from rlinf_lab.datasets.lerobot import read_lerobot, write_lerobot
from rlinf_lab.datasets.minari_data import read_minari, write_minari
from rlinf_lab.datasets.sampling import ChunkSampler

__all__ = [
    "ChunkSampler", "DataSpec", "Episode", "EpisodeList", "EpisodeSource", "from_arrays", "read_hdf5", "read_lerobot", "read_minari", "write_lerobot", "write_minari",
]  # fmt: skip
