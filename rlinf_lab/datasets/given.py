"""What a user may give as ``data``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from rlinf_lab.datasets.episodes import EpisodeSource
from rlinf_lab.datasets.hdf5 import SUFFIXES, read_hdf5
from rlinf_lab.datasets.lerobot import read_lerobot
from rlinf_lab.errors import ConfigError

MINARI_ID = re.compile(r"([\w-]+/)*[\w-]+-v\d+")


def recorded(data: Any) -> Any:
    """The episodes of a LeRobotDataset's folder, or of an HDF5 file.

    Another file, and what is no path, stays as it is. `ConfigError` for a path where nothing is.
    """
    if isinstance(data, EpisodeSource) or not isinstance(data, (str, os.PathLike)):
        return data
    if Path(data).is_file():
        return read_hdf5(data) if Path(data).suffix.lower() in SUFFIXES else data
    if not Path(data).exists():
        name = os.fspath(data)
        advice = "recorded episodes (lab.collect(env, 'expert')), or the folder of a LeRobotDataset"
        if isinstance(data, str) and MINARI_ID.fullmatch(name):
            advice = f"data=lab.datasets.read_minari({name!r}) reads a data set of Minari by its id; else {advice}"
        raise ConfigError(f"data={name!r}: there is no such folder. Next: {advice}.")
    return read_lerobot(data)
