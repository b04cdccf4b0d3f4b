"""What the demo leaves behind is whole, also where it is interrupted while it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rlinf_lab.demo import Demo, with_plans
from rlinf_lab.timeline import Timeline


def phase(name: str) -> Any:
    return SimpleNamespace(plan=SimpleNamespace(name=name, to_json=lambda: '{"name": "' + name + '"}'), timeline=Timeline(["cpu:0"]))


def training() -> Any:
    rows = pd.DataFrame({"iteration": [1, 2, 3], "env_steps": [1.0, 2.0, 3.0], "success_rate": [0.0, 1.0, 1.0], "return": [0.0, 1.0, 1.0]})
    return SimpleNamespace(metrics=rows, phases=[phase("temporal"), phase("auto fused")], phase_firsts=[0, 2])


def write(folder: Path) -> None:
    demo: Any = SimpleNamespace(folder=folder, config=SimpleNamespace(env="task", video=False))
    Demo._write(demo, training(), {"success": 1.0})


def test_all_files_are_there(tmp_path: Path) -> None:
    write(tmp_path)
    kinds = [f"{kind}-{stem}.{end}" for stem in ("1-temporal", "2-auto-fused") for kind, end in (("timeline", "html"), ("timeline", "json.gz"), ("plan", "json"))]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["summary.json", "learning_curve.png", *kinds])


def test_each_iteration_has_the_plan_that_it_ran_under() -> None:
    assert with_plans(training())["plan"].tolist() == ["temporal", "temporal", "auto fused"]


@pytest.mark.parametrize(("owner", "method", "file"), [("pathlib.Path", "write_text", "summary.json"), ("matplotlib.figure.Figure", "savefig", "learning_curve.png")])
def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, method: str, file: str) -> None:
    def half(this: Any, *given: Any, **_: Any) -> None:
        path = this if owner == "pathlib.Path" else given[0]
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(f"{owner}.{method}", half)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert not (tmp_path / file).exists() and not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]
