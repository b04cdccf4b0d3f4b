"""What the demo prints."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from rlinf_lab.terminal import TerminalView


def test_predictions_stand_below_each_other_and_the_best_is_marked() -> None:
    out = io.StringIO()
    TerminalView(Console(file=out, width=80)).choice({"temporal": 0.261, "fused": 0.254, "spatial": 12.369}, SimpleNamespace(name="fused"))
    rows = [line.rstrip() for line in out.getvalue().splitlines()][-3:]
    assert [row.split() for row in rows] == [["fused", "0.254", "chosen"], ["temporal", "0.261"], ["spatial", "12.369"]]
    assert len({row.index(".") for row in rows}) == 1
