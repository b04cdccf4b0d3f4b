"""A replay buffer's rows lie on disk once, whatever a kill leaves behind, and no more of them than states name."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.experiments.storage import segments
from rlinf_lab.experiments.storage.folder import RunFolder
from rlinf_lab.experiments.storage.snapshot import Snapshot, segments_of
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.replay import PrioritisedReplayBuffer, ReplayBuffer

CAPACITY, EACH = 100, 7
ROW_BYTES = 16 + 4


def buffer_after(states: int, kind: type[ReplayBuffer] = ReplayBuffer) -> ReplayBuffer:
    """Row ``i`` of all that ever came holds ``i``; 13 rows a state."""
    buffer = kind(CAPACITY, seed=1)
    for number in range(states):
        value = 13 * number + np.arange(13)
        buffer.add({"obs": np.stack([value, -value], 1).astype(np.float64), "reward": value.astype(np.float32)})
    return buffer


def snapshot(number: int, kind: type[ReplayBuffer] = ReplayBuffer) -> Snapshot:
    return Snapshot(number, {"weights": PolicyWeights({"w": np.full(2, number, np.float32)}, number), "replay": buffer_after(number, kind).state_dict()})


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments.write, "__defaults__", (EACH * ROW_BYTES,))


def is_the_buffer_of(found: Snapshot, kind: type[ReplayBuffer] = ReplayBuffer) -> bool:
    loaded, wanted = kind(CAPACITY, seed=5), buffer_after(found.iteration, kind)
    loaded.load_state_dict(found.state["replay"])
    for one, other in zip((loaded.rows(loaded.order), loaded.sample(9).data), (wanted.rows(wanted.order), wanted.sample(9).data), strict=True):
        for name in ("obs", "reward"):
            np.testing.assert_array_equal(one[name], other[name])
    assert loaded.state_dict()["rows"].first == wanted.state_dict()["rows"].first
    return True


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritisedReplayBuffer])
def test_every_row_is_written_once_and_no_more_is_kept_than_states_name(tmp_path: Path, kind: type[ReplayBuffer]) -> None:
    folder = RunFolder(tmp_path)
    written: list[str] = []
    for number in range(1, 21):
        before = {path.name: path.stat().st_ino for path in (tmp_path / "replay").glob("*")}
        folder.write_state(snapshot(number, kind), keep=2)
        now = {path.name: path.stat().st_ino for path in (tmp_path / "replay").glob("*")}
        assert all(now[name] == before[name] for name in now.keys() & before.keys())  # none was written again
        written += now.keys() - before.keys()
        named = {name for path in (tmp_path / "learner.safetensors", *folder.checkpoints()) for name in segments_of(path)}
        assert set(now) == named and len(now) <= -(-(CAPACITY + 13) // EACH)
        assert is_the_buffer_of(folder.state(), kind)
    assert len(written) == len(set(written)) == 20 * 13 // EACH
    rows_in_state = Snapshot.load(tmp_path / "learner.safetensors", tmp_path / "replay").state["replay"]["rows"]
    assert rows_in_state.count == CAPACITY and rows_in_state.first == 20 * 13 - CAPACITY


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import test_segments as case
from rlinf_lab.experiments.storage import segments
segments.write.__defaults__ = (case.EACH * case.ROW_BYTES,)
folder, left = case.RunFolder({folder!r}), [{changes}]
def counted(change):
    def one(*given, **named):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*given, **named)
    return one
Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
for number in range(1, 100):
    folder.write_state(case.snapshot(number), keep=2)
"""


@pytest.mark.parametrize("changes", [9, 46, 83])  # of files, before the process is killed: while a segment, a state, an old one is the next
def test_a_process_that_is_killed_leaves_a_whole_buffer(tmp_path: Path, warm_python: Any, changes: int) -> None:
    done = warm_python(KILLED.format(here=str(Path(__file__).parent), folder=str(tmp_path), changes=changes))
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = RunFolder(tmp_path)
    found = folder.state()
    assert found.iteration >= 1 and is_the_buffer_of(found)
    folder.write_state(snapshot(found.iteration + 1), keep=2)  # goes on, and what was left behind is gone
    assert is_the_buffer_of(folder.state()) and folder.state().iteration == found.iteration + 1
    named = {name for path in (tmp_path / "learner.safetensors", *folder.checkpoints()) for name in segments_of(path)}
    assert {path.name for path in (tmp_path / "replay").glob("*")} == named


def test_damaged_rows_are_noticed_and_an_earlier_state_is_taken(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in (1, 2, 3):
        folder.write_state(snapshot(number), keep=3)
    alone = set(segments_of(tmp_path / "learner.safetensors")) - set(segments_of(folder.checkpoints()[1]))
    path = tmp_path / "replay" / alone.pop()
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(ConfigError, match="its rows rows-.* are damaged"):
        Snapshot.load(tmp_path / "learner.safetensors", tmp_path / "replay")
    assert folder.state().iteration == 2 and is_the_buffer_of(folder.state())
    path.unlink()
    with pytest.raises(ConfigError, match="its rows rows-.* are missing"):
        Snapshot.load(tmp_path / "learner.safetensors", tmp_path / "replay")


def test_another_history_never_takes_the_rows_of_this_one(tmp_path: Path) -> None:
    """A run that goes on from an earlier state sees other rows of the same numbers."""
    folder = RunFolder(tmp_path)
    folder.write_state(snapshot(5))
    other = buffer_after(4)
    other.add({"obs": np.full((13, 2), 0.5), "reward": np.full(13, 0.5, np.float32)})
    folder.write_state(Snapshot(5, {**snapshot(5).state, "replay": other.state_dict()}))
    held = folder.state().state["replay"]["rows"]
    assert held["reward"][-13:].tolist() == [0.5] * 13 and held["reward"][:52].tolist() == list(range(52))
