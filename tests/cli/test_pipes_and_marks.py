"""What the planning commands read from and write to that is no plain file: pipes, files with a mark of their encoding, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_lab import Profile
from rlinf_lab.cli import main
from rlinf_lab.errors import ConfigError

TEXT = '{"items": 8, "workers": {"a": {"samples": [{"devices": 1, "items": 8, "seconds": 2.0}]}}, "edges": []}'


def test_a_profile_may_come_through_a_pipe() -> None:
    read, write = os.pipe()
    os.write(write, TEXT.encode())
    os.close(write)
    try:
        assert Profile.load(f"/dev/fd/{read}") == Profile.from_json(TEXT)
    finally:
        os.close(read)


def test_a_profile_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(TEXT, encoding="utf-8-sig")
    assert Profile.load(file) == Profile.from_json(TEXT)


def test_a_folder_and_an_empty_file_are_no_profiles(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "empty.json").write_text("")
    with pytest.raises(ConfigError, match=r"folder\.json' \(a folder\)"):
        Profile.load(tmp_path / "folder.json")
    with pytest.raises(ConfigError, match="not JSON: it is empty. Next: "):
        Profile.load(tmp_path / "empty.json")


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is a device of Linux")
def test_a_full_disk_is_an_error_in_words(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(TEXT)
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "rlinf_lab", "plan", "--profile", file, "--devices", "1"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "No space left on device. Next: " in done.stderr and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_an_unknown_ending_is_refused_before_anything_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.json"
    file.write_text(TEXT)
    monkeypatch.setattr("rlinf_lab.planning_commands.plan", lambda *_, **__: pytest.fail("it was planned"))
    assert main(["simulate", "--profile", str(file), "--devices", "1", "--out", str(tmp_path / "x.foo")]) == 2
    assert "Unknown ending of a timeline's file '.foo'" in capsys.readouterr().err
