"""How sharp the tests are: subtle single changes, made one at a time; the nearest tests must notice.

    python tools/mutants.py --count 80 --seed 1 --rooms planning runtime timeline

A mutant is one change of one expression or statement (`any` for `all`, an off-by-one, a dropped term, a missing reset).
It runs in a copy of the working tree against tests that call its function, and is killed by the first one that fails,
or hangs. Which tests call what is measured once, in one run of the daily suite (`--calls FILE` keeps it); the nearest
come first: an oracle of that part of the room, files that import the module, the rest, for so many seconds. What
survives them meets all others that call it, and, where it is of `runtime`, those that start Ray. What survives that is
a test that is missing, or a change that changes nothing: look at each. (Mutation testing: DeMillo, Lipton, Sayward
1978.)

    python tools/mutants.py --at rlinf_lab/planning/engine/matching.py:183     # every change of that line
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
}  # fmt: skip
RENAMED = {"all": "any", "any": "all", "min": "max", "max": "min"}
MOST_FILES = 5  # of tests that import the module are near it
TESTS_S = 90  # of tests, as measured, for one mutant at first
ALL_S = 1800  # and then
ORACLES = [
    ("planning.engine", "planning/test_parity.py"), ("planning.simulator", "planning/test_parity.py"), ("planning.simulator", "planning/test_under_way.py"),
    ("planning.search", "planning/test_search_optimality.py"), ("planning.fit", "planning/test_habits_of_workers.py"),
    ("planning.planner", "planning/test_stated_seconds.py"), ("planning.replay", "planning/test_estimates.py"),
    ("planning.simulator.simulator", "planning/test_estimates.py"),
    ("planning.placement", "planning/test_promised_seconds.py"), ("planning.profile", "planning/test_profile.py"),
    ("planning.profile.reconcile", "planning/test_whole_batches.py"),
    ("planning.forecast", "planning/test_promised_seconds.py"), ("planning.engine", "planning/test_at_once.py"), ("runtime.host", "runtime/test_several_hosts.py"),
    ("runtime.executors", "runtime/test_process_runs.py"), ("runtime.transport", "runtime_ray/test_links.py"),
    ("timeline.account", "timeline/test_accounting.py"), ("timeline.record", "timeline/test_alignment.py"),
    ("planning.engine.queue_order", "runtime/test_weights_and_orders.py"), ("runtime.profiling.profiler", "workers/test_shared_weights.py"),
    ("runtime.executors", "runtime_ray/test_private_ray.py"),
]  # fmt: skip
LIMIT_S = 240  # the nearest tests of one mutant; longer is a hang, and so is thrice as long of the others
HANGS_S = 120  # so is one test that takes so long
QUICK = "not slow and not long and not ray and not browser and not gpu and not vllm and not lerobot and not warp"
OF_RAY = "ray and " + QUICK.replace("not ray and ", "")
READS_THE_SOURCE = ("architecture", "browser", "notebooks", "benchmarks", "cli", "demo")  # a mutant's file is written anew, so they would fail, or take long


def mutants_of(tree: ast.Module) -> Iterator[tuple[str, ast.AST, str, Any]]:
    """(function, node, what is done, how to do it to its copy). Annotations, docstrings and messages are left alone."""
    for called, function in functions(tree):
        if function.name not in ("__repr__", "_repr_html_", "__str__"):
            yield from ((called, *change) for node in inside(function) for change in changes(node))


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """By their qualified names, as code objects have them."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield within + child.name, child
            yield from functions(child, f"{within}{child.name}.<locals>.")
        else:
            yield from functions(child, f"{within}{child.name}." if isinstance(child, ast.ClassDef) else within)


def inside(function: ast.AST) -> Iterator[ast.AST]:
    """Everything that runs, without what only describes: annotations, defaults, texts, raised errors, nested functions."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, (ast.arguments, ast.JoinedStr, ast.Raise, ast.Assert, ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(function, ast.AnnAssign) and child is function.annotation:
            continue
        if isinstance(function, ast.FunctionDef) and child in (function.returns, *function.decorator_list):
            continue
        yield child
        yield from inside(child)


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str, Any]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield node, f"{name(op)} → {name(SWAPPED[type(op)]())}", lambda n: n.ops.__setitem__(0, SWAPPED[type(n.ops[0])]())
        case ast.BoolOp(op=op):
            yield node, f"{name(op)} → {name(SWAPPED[type(op)]())}", lambda n: setattr(n, "op", SWAPPED[type(n.op)]())
            yield node, "the last term is dropped", lambda n: n.values.pop()
        case ast.BinOp(op=op, left=left, right=right) if type(op) in SWAPPED and not texts(left, right):
            yield node, f"{name(op)} → {name(SWAPPED[type(op)]())}", lambda n: setattr(n, "op", SWAPPED[type(n.op)]())
        case ast.Call(func=ast.Name(id=called)) if called in RENAMED:
            yield node, f"{called} → {RENAMED[called]}", lambda n: setattr(n.func, "id", RENAMED[n.func.id])
        case ast.UnaryOp(op=ast.Not()):
            yield node, "not is dropped", lambda n: replace_by(n, n.operand)
        case ast.Constant(value=value) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9:
            yield node, f"{value} → {value + 1}", lambda n: setattr(n, "value", n.value + 1)
        case ast.AugAssign(op=op) if type(op) in SWAPPED:
            yield node, f"{name(op)}= → {name(SWAPPED[type(op)]())}=", lambda n: setattr(n, "op", SWAPPED[type(n.op)]())
        case ast.Assign(targets=[ast.Attribute()]) | ast.Expr(value=ast.Call()):
            yield node, "the statement is dropped", lambda n: replace_by(n, ast.Pass())


def replace_by(node: ast.AST, other: ast.AST) -> None:
    """In place: the parent keeps its reference."""
    node.__class__, node.__dict__ = other.__class__, dict(other.__dict__, lineno=node.lineno, col_offset=node.col_offset)  # type: ignore[attr-defined]


def texts(*sides: ast.AST) -> bool:
    return any(isinstance(s, (ast.JoinedStr, ast.List, ast.Tuple)) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides)


def name(op: ast.AST) -> str:
    return type(op).__name__


def imports(path: Path) -> set[str]:
    """Of the library, directly or by what tests of a room share (a file beside it)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rlinf_lab"):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom) and node.module and (beside := path.with_name(f"{node.module}.py")).exists():
            found |= imports(beside)
    return found


def nearest(module: str, tests: dict[Path, set[str]]) -> list[Path]:
    """The oracle of that part of the room, test files that import the module, then those that import its package."""
    (*_, package, last), found = module.split("."), list[Path]()
    for prefix in (module, module.rpartition(".")[0]):
        importing = [p for p, names in tests.items() if p not in found and any(n == prefix or n.startswith(prefix + ".") for n in names)]
        found += sorted(importing, key=lambda p: (last not in p.stem, package not in p.stem, len(tests[p]), p))
    oracles = [ROOT / "tests" / file for part, file in ORACLES if module.startswith(f"rlinf_lab.{part}")]
    return list(dict.fromkeys([*oracles, *found[:MOST_FILES]]))


class Calls:
    """Which tests call which function, and their seconds: measured once. (As a plugin of pytest, this file writes it.)"""

    def __init__(self, at: Path) -> None:
        if not at.exists():
            folders = [str(p) for p in sorted((ROOT / "tests").iterdir()) if p.is_dir() and p.name not in (*READS_THE_SOURCE, "__pycache__")]
            environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "OMP_NUM_THREADS": "1", "MUTANTS_CALLS": str(at)}
            command = [sys.executable, "-m", "pytest", "-p", "mutants", "-q", "-n", "2", "--timeout", str(HANGS_S), "-m", QUICK, *folders]
            subprocess.run(command, cwd=ROOT, env=environment, check=False)
        self.seconds: dict[str, float] = {}
        self.tests: defaultdict[str, list[str]] = defaultdict(list)
        for line in at.read_text().splitlines():
            test, self.seconds[test], called = json.loads(line)
            for function in called:
                self.tests[function].append(test)

    def chosen(self, function: str, near: list[Path], seconds: float = TESTS_S) -> list[str]:
        """Tests that call it, those of near files first, and short ones, for so long; near files, where none is known to."""
        order = {str(path.relative_to(ROOT)): i for i, path in enumerate(near)}
        found, spent = list[str](), 0.0
        for test in sorted(self.tests[function], key=lambda t: (order.get(t.partition("::")[0], len(order)), self.seconds[t])):
            if spent + self.seconds[test] <= seconds and (ROOT / test.partition("::")[0]).exists():
                spent += self.seconds[test]
                found.append(test)
        return found or list(order)

    def others(self, function: str, near: list[Path]) -> list[str]:
        """All the rest of the tests that call it."""
        tried = set(self.chosen(function, near))
        return [test for test in self.chosen(function, near, ALL_S) if test not in tried]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    seen, began, failed = set(), time.monotonic(), item.session.testsfailed

    def call(frame: Any, event: str, arg: object) -> None:
        seen.add(frame.f_code)

    sys.settrace(call)
    threading.settrace(call)
    yield
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    if item.session.testsfailed > failed:
        return  # it would kill every mutant
    library = f"{ROOT}/rlinf_lab/"
    called = sorted({f"{c.co_filename.removeprefix(f'{ROOT}/')}:{c.co_qualname}" for c in list(seen) if c.co_filename.startswith(library)})
    with open(os.environ["MUTANTS_CALLS"], "a") as file:
        file.write(json.dumps([item.nodeid, time.monotonic() - began, called]) + "\n")


def every(rooms: list[str]) -> Iterator[tuple[Path, int, int, str, str]]:
    """(file, number of the mutant in it, line, function, what is done)."""
    for room in rooms:
        for path in sorted((ROOT / "rlinf_lab" / room).rglob("*.py")):
            for i, (function, node, what, _) in enumerate(mutants_of(ast.parse(path.read_text()))):
                yield path, i, node.lineno, function, what  # type: ignore[attr-defined]


def mutated(text: str, number: int) -> str:
    tree = copy.deepcopy(ast.parse(text))
    _, node, _, change = list(mutants_of(tree))[number]
    change(node)
    return ast.unparse(ast.fix_missing_locations(tree))


def verdict(copy_of: Path, tests: list[str], marked: str = QUICK, limit_s: float = LIMIT_S) -> str:
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--timeout", str(HANGS_S), "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy_of), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy_of, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "killed: hangs"
    if "ERROR: not found:" in done.stdout + done.stderr:
        return verdict(copy_of, list(dict.fromkeys(test.partition("::")[0] for test in tests)), marked, limit_s)  # renamed since they were measured
    if done.returncode in (0, 5):  # passed, or nothing of it is quick
        return "SURVIVED"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"killed: {failed[0].split(' - ')[0] if failed else done.stdout[-200:]}"


def with_ray(file: Path) -> list[str]:
    """Folders of tests that start it: what its processes do is not seen when calls are measured."""
    return ["tests/runtime_ray", "tests/runtime"] if "runtime" in file.parts else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=["planning", "runtime", "timeline"])
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="start", help="go on at this mutant of the draw")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further mutant is begun after so long")
    parser.add_argument("--at", nargs="+", default=[], help="FILE:LINE; each change of it, in place of a draw")
    parser.add_argument("--calls", type=Path, help="which tests call what; measured, and written, where it is not there")
    parser.add_argument("--out", type=Path, help="JSON lines are added to it, one a mutant")
    given, began = parser.parse_args(), time.monotonic()
    tests = {p: imports(p) for p in sorted((ROOT / "tests").rglob("test_*.py")) if p.parent.name != "browser"}
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "tree"
        shutil.copytree(ROOT, there, ignore=shutil.ignore_patterns(".git", ".venv*", ".mypy_cache", "runs", "__pycache__"), symlinks=True)
        calls = Calls(given.calls or Path(folder) / "calls.jsonl")
        killed, total, all_of_them = 0, 0, list(every(given.rooms))
        drawn = random.Random(given.seed).sample(all_of_them, min(given.count, len(all_of_them)))
        at = [one for one in all_of_them if f"{one[0].relative_to(ROOT)}:{one[2]}" in given.at]
        for n, (path, number, line, function, what) in enumerate(at if given.at else drawn):
            if n < given.start or time.monotonic() - began > given.seconds:
                continue
            file, text = path.relative_to(ROOT), path.read_text()
            (there / file).write_text(mutated(text, number))
            called, near = f"{file}:{function}", nearest(".".join(file.with_suffix("").parts), tests)
            said = "SURVIVED (no test imports it)"
            for chosen, marked, limit in (
                (calls.chosen(called, near), QUICK, LIMIT_S), (calls.others(called, near), QUICK, 3 * LIMIT_S), (with_ray(file), OF_RAY, 3 * LIMIT_S)
            ):  # fmt: skip
                if chosen and said.startswith("SURVIVED"):
                    said = verdict(there, chosen, marked, limit)
            (there / file).write_text(text)
            total, killed = total + 1, killed + said.startswith("killed")
            print(f"{n:3} {file}:{line} {what}: {said}", flush=True)
            if given.out:
                row = {"n": n, "file": str(file), "line": line, "change": what, "verdict": said}
                given.out.open("a").write(json.dumps(row) + "\n")
    print(f"{killed} of {total} killed")


if __name__ == "__main__":
    main()
