"""What the demo leaves behind is whole, also where it is interrupted while it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlinf_lab.demo import Demo
from rlinf_lab.timeline import Timeline

ROWS = pd.DataFrame({"env_steps": [1.0, 2.0], "success_rate": [0.0, 1.0], "return": [0.0, 1.0]})


def phase(name: str) -> Any:
    plan = SimpleNamespace(name=name, to_json=lambda: '{"name": "' + name + '"}')
    return SimpleNamespace(plan=plan, training=ROWS, run=SimpleNamespace(timeline=Timeline(["cpu:0"])), state=None)


def write(folder: Path) -> None:
    demo: Any = SimpleNamespace(folder=folder, config=SimpleNamespace(env="task", video=False))
    Demo._write(demo, phase("temporal"), phase("fused"), {"success": 1.0})


def test_all_files_are_there(tmp_path: Path) -> None:
    write(tmp_path)
    kinds = ["timeline-1-temporal.html", "timeline-1-temporal.pftrace", "timeline-2-fused.html", "timeline-2-fused.pftrace"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["summary.json", "metrics.parquet", "plan-1-temporal.json", "plan-2-fused.json", "learning_curve.png", *kinds]
    )
    assert pd.read_parquet(tmp_path / "metrics.parquet")["plan"].tolist() == ["temporal"] * 2 + ["fused"] * 2


@pytest.mark.parametrize(
    ("owner", "method", "file"),
    [(Path, "write_text", "summary.json"), (pd.DataFrame, "to_parquet", "metrics.parquet"), (Figure, "savefig", "learning_curve.png")],
)
def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, file: str) -> None:
    def half(this: Any, *given: Any, **_: Any) -> None:
        path = this if owner is Path else given[0]
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, method, half)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert not (tmp_path / file).exists() and not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]
