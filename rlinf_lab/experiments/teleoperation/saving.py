"""Episodes on disk as they are kept: hours of somebody's work outlast the kernel."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from rlinf_lab.datasets import DataSpec, EpisodeList, read_lerobot, write_lerobot
from rlinf_lab.datasets.presenting import same
from rlinf_lab.errors import ConfigError, RlinfLabError, counted, said

LAST_S = 60.0  # that the last write may take when all is closed


class Saver:
    """A LeRobotDataset that is written anew, aside, whenever there are more episodes. It is whole at every moment.

    ``known``: what is said of the episodes, their actions in the environment's own units. What is in ``folder`` already
    is `before`. Raises `ConfigError` where that is another environment's data, or none at all.
    """

    def __init__(self, folder: str | os.PathLike[str], known: DataSpec) -> None:
        self.folder = Path(folder)
        self.problem = ""
        """why the last write failed; "" where it did not"""
        self.before = EpisodeList(known)
        aside = self._aside()
        if not self.folder.exists() and aside.exists():
            aside.rename(self.folder)  # a kernel ended between two renames
        if self.folder.exists() and any(self.folder.iterdir()):
            found = read_lerobot(self.folder)
            mine, theirs = (known.observation_space, known.action_space), found.spec
            if not (same(mine[0], theirs.observation_space) and same(mine[1], theirs.action_space)):
                raise ConfigError(
                    f"teleoperate(save_to={str(folder)!r}): {found!r} is there, of {theirs.observation_space} and "
                    f"{theirs.action_space}; here they are {mine[0]} and {mine[1]}. Next: another folder."
                )
            self.before = EpisodeList(known, [*found])
        self._there = len(self.before)  # episodes in the folder, as far as is known here
        self._changed = threading.Condition()
        self._wanted: EpisodeList | None = None
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def _aside(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.before")

    def save(self, data: EpisodeList) -> None:
        """Have ``data``, all of it, written soon. A newer call takes the place of one that waits."""
        with self._changed:
            self._wanted = data
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="teleoperation-saver", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """When what waits has been written."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LAST_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._is_closing)
                data, self._wanted = self._wanted, None
            if data is None:
                return
            try:
                self._write(data)
                self.problem = ""
            except (OSError, RlinfLabError) as error:  # a full disk, say: the next episode tries again
                self.problem = f"not saved to {self.folder}: {said(error)}"

    def _write(self, data: EpisodeList) -> None:
        found = len(read_lerobot(self.folder)) if self.folder.exists() and any(self.folder.iterdir()) else 0
        if found != self._there:
            raise ConfigError(
                f"it has {counted(found, 'episode')}, and {self._there} were known of: somebody else writes there. "
                "Next: lab.datasets.write_lerobot(seat.data, 'another folder')"
            )
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=self.folder.parent, prefix=f".{self.folder.name}."))
        try:
            write_lerobot(data, part)
            aside = self._aside()
            shutil.rmtree(aside, ignore_errors=True)
            if self.folder.exists():
                self.folder.rename(aside)
            part.rename(self.folder)
            self._there = len(data)
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)
