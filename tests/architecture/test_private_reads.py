"""No module reads a private attribute of another module's class: a part is given what it uses, and asks for the rest."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rlinf_lab"
#: How many there are; a number may only fall.
READS = {"runtime": 0, "planning": 0, "workflow": 0}
#: Public though underscored: of named tuples, of Python itself.
PYTHONS = {"_replace", "_make", "_asdict", "_fields", "_exit", "_getframe", "_current_frames"}
#: Of other libraries, which have no other name for it; each in few places.
OTHERS = {
    "_C", "_version", "_buffers", "_modules", "_parameters", "_indices", "_values", "_Options", "_devices", "_timeout", "_release_ipc_counter",
    "_private", "_global_node", "_object_ref_deserializer", "_actor_id",
}  # fmt: skip


def reads(tree: ast.Module) -> Iterator[str]:
    """``x._y`` where x is neither self nor cls and no class or function of the module has a ``_y``."""
    own = {*defined(tree), *PYTHONS, *OTHERS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not is_itself(node.value) and node.attr not in own and is_private(node.attr):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def defined(tree: ast.Module) -> Iterator[str]:
    """Names that the module's classes and functions have, and what they assign to themselves."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_itself(node.value):
            yield node.attr


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_itself(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@pytest.mark.parametrize("room", READS)
def test_private_attributes_of_other_modules_are_read_nowhere_new(room: str) -> None:
    found = {str(path.relative_to(PACKAGE)): list(reads(ast.parse(path.read_text()))) for path in sorted((PACKAGE / room).rglob("*.py"))}
    count = sum(map(len, found.values()))
    shown = "\n".join(f"{path} {read}" for path, lines in found.items() for read in lines)
    assert count <= READS[room], f"{count} in {room}, {READS[room]} before. Next: give the part what it uses, or a method.\n{shown}"


def test_what_is_counted() -> None:
    """Planted ones are found; what a module's own classes have is theirs."""
    planted = "class A:\n    def __init__(self, b):\n        self._b = b\n\n    def f(self, other):\n        return other._b, other._c, b._replace(), b.__len__()\n"
    assert Counter(line.split(": ")[1] for line in reads(ast.parse(planted))) == {"other._c": 1}
