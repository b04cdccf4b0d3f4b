"""The documents are true where a machine can tell: links, paths, names, commands, pictures, and how long they are."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rlinf_lab

ROOT = Path(__file__).parents[2]
NOTES = sorted((ROOT / "docs/design").glob("*.md"))
DESIGN = [note for note in NOTES if (ROOT / "rlinf_lab" / note.stem / "__init__.py").exists()]  # of a package each
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md")), *NOTES]
MOST_RULES, MOST_LINES = 15, 40  # of a package; of a version in the changelog
MOST_WORDS = {
    "ARCHITECTURE.md": 1300,
    "docs/history.md": 1900,
    "README.md": 1300,
}  # two pages, three pages, two pages with tables
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]*\w(?:\.\w+)?")
EXAMPLES = ("runs/",)  # folders that a run makes


def _paths(text: str) -> Iterator[str]:
    """Files and folders between backticks."""
    return (
        named
        for named in re.findall(r"`([^`\n]+)`", text)
        if PATH.fullmatch(named.rstrip("/")) and not named.startswith(EXAMPLES)
    )


def _exists(path: str) -> bool:
    return any((base / path).exists() for base in (ROOT, ROOT / "rlinf_lab"))


def _rules(document: Path) -> list[str]:
    return re.findall(r"^\d+\. .*?(?=^\d+\. |\Z)", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def _drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_docs", ROOT / "tools/draw_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw_docs"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    missing = [link for link in links if ":" not in link and not (document.parent / link.split("#")[0]).exists()]
    assert missing == []


@pytest.mark.parametrize("document", [ROOT / "ARCHITECTURE.md", *DESIGN], ids=lambda path: path.name)
def test_paths_that_are_named_exist(document: Path) -> None:
    named = list(_paths(document.read_text()))
    assert named
    assert [path for path in named if not _exists(path)] == []


@pytest.mark.parametrize("document", DESIGN, ids=lambda path: path.name)
def test_a_package_has_few_rules_and_each_is_kept_by_something(document: Path) -> None:
    rules = _rules(document)
    assert 0 < len(rules) <= MOST_RULES
    assert [int(rule.split(".")[0]) for rule in rules] == list(range(1, len(rules) + 1))
    assert [rule.splitlines()[0] for rule in rules if not any(map(_exists, _paths(rule)))] == []


def test_every_package_has_its_rules() -> None:
    packages = {path.parent.name for path in (ROOT / "rlinf_lab").glob("*/__init__.py")}
    assert packages - {note.stem for note in DESIGN} == set()


def test_a_version_has_few_lines_in_the_changelog() -> None:
    newest = re.split(r"^## ", (ROOT / "docs/CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    assert rlinf_lab.__version__ in newest.splitlines()[0]
    assert len(newest.rstrip().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", MOST_WORDS)
def test_what_is_meant_to_be_short_is_short(name: str) -> None:
    assert len((ROOT / name).read_text().split()) <= MOST_WORDS[name]


def test_public_names_that_are_named_exist() -> None:
    of_today = [document for document in DOCUMENTS if document.name != "history.md"]
    named = {
        (document.name, name)
        for document in of_today
        for name in re.findall(r"\blab\.([A-Za-z_]\w*)", document.read_text())
    }
    assert {(where, name) for where, name in named if not hasattr(rlinf_lab, name)} == set()


def test_commands_and_extras_that_are_named_exist() -> None:
    text = "\n".join(
        document.read_text() for document in DOCUMENTS if document.name not in ("history.md", "benchmarks.md")
    )
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert (
        set(re.findall(r"\bmake ([a-z][a-z-]*)`", text)) | set(re.findall(r"^make ([a-z-]+)", text, flags=re.MULTILINE))
        <= targets
    )
    commands = set(re.findall(r"`rlinf-lab ([a-z]+)", text))
    said = subprocess.run(
        [sys.executable, "-m", "rlinf_lab", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert commands and [command for command in commands if not re.search(rf"\b{command}\b", said)] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for group in re.findall(r"rlinf-lab\[([\w,-]+)\]", text):
        assert set(group.split(",")) <= set(extras)


def test_the_readme_lists_the_notebooks() -> None:
    listed = re.findall(r"\(notebooks/(\w+\.ipynb)\)", (ROOT / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_the_floors_within_rooms_are_those_of_the_contracts() -> None:
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text().split())
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = [c for c in contracts if c["type"] == "layers" and c["containers"][0].startswith("rlinf_lab.")]
    assert rooms
    for contract in rooms:
        room = contract["containers"][0].removeprefix("rlinf_lab.")
        folder = ROOT / "rlinf_lab" / room.replace(".", "/")
        floors = [layer for layer in reversed(contract["layers"]) if (folder / layer).is_dir()]
        assert "." in room or f"`{room}/` {', '.join(floors)}" in text, floors


def test_pictures_are_of_today() -> None:
    """Next, where one is not: python tools/draw_docs.py, which refuses a bubble whose cause the accounting denies."""
    drawing = _drawing()
    assert (ROOT / "docs/floors.svg").read_text() == drawing.floors()
    assert (ROOT / "docs/bubbles.svg").read_text() == drawing.bubbles()
    from rlinf_lab.timeline import Cause

    assert {example.cause for example in drawing.EXAMPLES} == set(map(str, Cause))


def test_reasons_stand_where_they_count() -> None:
    """Numbers of decisions mean nothing any more."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    words = re.compile(r"\bdecisions? \d+|docs/(decisions|log)\.md", re.IGNORECASE)
    kept = [
        path
        for path in listed
        if path.endswith((".py", ".md", ".js", ".ipynb", ".toml")) and path != "tests/architecture/test_documents.py"
    ]
    assert [path for path in kept if (ROOT / path).exists() and words.search((ROOT / path).read_text())] == []
