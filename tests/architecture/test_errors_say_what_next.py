"""What a user's code or input is refused with says what to do next, wherever it is written out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rlinf_lab"
REFUSALS = {"WorkflowError", "ConfigError", "PlanError", "ExecutorError", "ChannelClosed", "TimeoutError"}
ADVISED = {  # which end in advice themselves
    "advice", "error", "fault", "must", "need", "wanted", "found", "would_not_run", "_why_nothing_comes", "_next", "why_none",
}  # fmt: skip


def silent(path: Path) -> Iterator[str]:
    """Refusals with a text of their own and no advice."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name) and node.exc.func.id in REFUSALS:
            parts = [n for a in node.exc.args for n in ast.walk(a)]
            names = {n.id for n in parts if isinstance(n, ast.Name)} | {n.attr for n in parts if isinstance(n, ast.Attribute)}
            texts = [n.value for n in parts if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            if texts and not any("Next:" in text for text in texts) and not names & ADVISED:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {''.join(texts)[:120]}"


def test_refusals_say_what_to_do_next() -> None:
    paths = [path for part in ("runtime", "workflow", "planning") for path in sorted((PACKAGE / part).rglob("*.py"))]
    assert [found for path in (*paths, PACKAGE / "planning_commands.py") for found in silent(path)] == []
