"""An export is there whole or not at all: on a full disk, when it is interrupted, over an older file."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from built import timeline_of

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.record.files import whole
from rlinf_lab.widgets import timeline_html

WRITERS = ("to_perfetto", "to_parquet", "to_svg", "to_png", "html")


def made() -> Timeline:
    spans = ((1000 * i, 1000 * i + i**3 % 977, -1, "", -1, 0, f"step {i * i % 97}") for i in range(400))
    return timeline_of(*(("w", 0, ("cpu:0",), SpanKind.RUN, *span) for span in spans))


def writer(timeline: Timeline, who: str) -> Callable[[Path], Any]:
    return (lambda path: timeline_html(timeline, path)) if who == "html" else getattr(timeline, who)


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes: as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("who", WRITERS)
@pytest.mark.parametrize("older", [b"an older one", None])
def test_where_there_is_no_room_the_older_file_stays(tmp_path: Path, who: str, older: bytes | None) -> None:
    path = tmp_path / "export"
    if older is not None:
        path.write_bytes(older)
    write = writer(made(), who)
    with little_room(1000), pytest.raises(TimelineError, match=r"export'\): .*large.*Next: "):
        write(path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([older] if older is not None else [])
    write(path)
    assert path.stat().st_size > 1000 and [p.name for p in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("who", WRITERS)
def test_a_device_is_written_to_and_says_that_it_is_full(who: str) -> None:
    with pytest.raises(TimelineError, match="/dev/full.*No space left"):
        writer(made(), who)(Path("/dev/full"))
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    writer(made(), who)(Path(os.devnull))


def test_an_interrupted_one_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(2):  # once without an older one
        before = list(tmp_path.iterdir())
        with pytest.raises(KeyboardInterrupt), whole(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == before
        path.write_text("older")
    assert path.read_text() == "older"


def test_links_and_modes_stay(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "t.json", tmp_path / "link.json"
    file.write_text("older")
    file.chmod(0o640)
    link.symlink_to(file)
    timeline = made()
    assert timeline.to_perfetto(link) == link
    assert link.is_symlink() and stat.S_IMODE(file.stat().st_mode) == 0o640 and Timeline.open(file).diff(timeline) == ""
    fresh = tmp_path / "fresh.json"
    timeline.to_perfetto(fresh)
    other = tmp_path / "other.json"
    other.write_text("")
    assert fresh.stat().st_mode == other.stat().st_mode  # that of the umask


def test_a_name_as_long_as_names_can_be_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline, name = made(), "ä" * 127 + "x"
    for who in WRITERS:
        writer(timeline, who)(tmp_path / name)
        assert [p.name for p in tmp_path.iterdir()] == [name]
    (tmp_path / name).unlink()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    assert Timeline.open(timeline.to_parquet("~/t.parquet")).diff(timeline) == ""
    assert [p.name for p in (tmp_path / "~").iterdir()] == ["t.parquet"]


def test_a_byte_order_mark_and_numbers_beyond_64_bits(tmp_path: Path) -> None:
    event = {"ph": "X", "name": "k", "cat": "kernel", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"device": 0, "stream": 10**30}}
    (tmp_path / "t.json").write_text("\ufeff" + json.dumps([event]))
    timeline = Timeline.open(tmp_path / "t.json")
    assert timeline.to_pandas()["worker"].tolist() == [f"stream {10**30}"] and "1 span of" in str(timeline.summary())
