"""Sampled programs: right ones pass, harmful ones end within their limits, and nothing of them is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.tasks import Jsonl, Problem, Sandbox, program_reward
from rlinf_lab.tasks.program import program_of

PROBLEM = Problem("add", "", 1, {"tests": ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]})


@pytest.mark.parametrize(("program", "value", "says"), [
    ("def add(a, b):\n    return a + b", 1.0, "2 of 2"), ("def add(a, b):\n    return a * b - 1", 0.5, "1 of 2 tests; 'AssertionError'"),
    ("def add(a, b): return", 0.0, "AssertionError"), ("def add(:", 0.0, "SyntaxError"),
])  # fmt: skip
def test_share_of_tests(program, value, says):
    verdict = program_reward(PROBLEM, f"Here:\n```python\n{program}\n```\n", sandbox=Sandbox(seconds=20))
    assert verdict.value == value and says in verdict.detail


def test_a_file_of_problems_with_tests_is_verified_by_them(tmp_path):
    (tmp_path / "add.jsonl").write_text('{"prompt": "add", "answer": "", "tests": ["assert add(2, 3) == 5", "assert add(-1, 1) == 1"]}\n')
    task = Jsonl(tmp_path / "add.jsonl", verifier="program")
    assert task.reward(task.problems[0], "def add(a, b):\n    return a + b").value == 0.5


def test_limits_end_what_goes_beyond_them(monkeypatch):
    hasty = Sandbox(seconds=0.2)
    assert hasty.run("import time; time.sleep(99)").reason == "time"
    assert hasty.run("while True: pass").reason == "time"
    monkeypatch.setattr("rlinf_lab.tasks.program.STARTING_SECONDS", 30.0)  # its second of CPU time is over first
    assert hasty.run("while True: pass").reason == "time"
    sandbox = Sandbox(seconds=20, memory_mib=256, output_kib=4)
    flood = sandbox.run("while True: print('a' * 999)")
    assert flood.reason == "output" and len(flood.output) == 4096
    assert "MemoryError" in sandbox.run("x = bytearray(1 << 29)").output
    assert "File too large" in sandbox.run("open('f', 'wb').write(bytes(1 << 25))").output
    assert sandbox.run("import os; os.abort()").returncode == -6
    assert sandbox.run("import os; print(sorted(os.environ))").output == "['HOME', 'LC_ALL', 'PATH']\n"


def test_nothing_is_left_behind():
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(77)\nprint(os.getcwd(), flush=True)"
    ended = Sandbox(seconds=20).run(program)
    folder = Path(ended.output.strip()).name
    assert folder.startswith("rlinf_program_")
    if ended.isolated:  # else a program that leaves its session is beyond reach
        assert not [p for p in Path("/proc").glob("[0-9]*/cwd") if folder in _link(p)]  # other tests have programs of their own
        net = Sandbox(seconds=20).run("import socket; socket.create_connection(('127.0.0.1', 1), 1)")
        assert "unreachable" in net.output


def _link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_program_of_a_completion():
    assert program_of("x = 1") == "x = 1"
    assert program_of("a\n```\nfirst\n```\nb\n```py\nlast\n```") == "last\n"
    assert program_of("a\n```python\ncut off") == "cut off"
    assert program_reward(Problem("p", ""), "x").error.endswith("has no detail['tests']")
    with pytest.raises(ConfigError, match=r"Sandbox\.seconds is 0"):
        Sandbox(seconds=0)
    assert Path(Sandbox().run("import os; print(os.getcwd())").output.strip()).name.startswith("rlinf_program_")
