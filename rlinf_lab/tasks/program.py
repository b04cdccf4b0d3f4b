"""Programs as answers, each run in a child process.

With limits of time, memory and output, without a network where possible.

This keeps a sampled program from harming the run by accident. It is no wall against a determined attacker: for that,
put the reward worker into a container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.tasks.isolated import kill_group
from rlinf_lab.tasks.task import Problem, RewardResult

_LAUNCHER = Path(__file__).with_name("confined.py")
CODE_FENCE = "```"


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended."""

    returncode: int | None
    """its exit code; negative: the signal that ended it; None: it was killed here"""
    output: str
    """what it wrote, errors included, cut at the limit"""
    reason: str = ""
    """why it was killed: "time" or "output"; "" where it ended by itself"""
    isolated: bool = False
    """whether it had neither a network nor other processes in sight"""

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    def __repr__(self) -> str:
        end = f"killed for {self.reason}" if self.reason else f"exit code {self.returncode}"
        return f"ProgramResult({end}, {len(self.output)} characters{', isolated' if self.isolated else ''})"


@dataclass(frozen=True)
class Sandbox:
    """Limits for programs. `run` never raises for what the program does."""

    seconds: float = 2.0
    """of wall time until it is killed; also, rounded up, of CPU time"""
    memory_mib: int = 512
    """of address space"""
    output_kib: int = 64
    """of output until it is killed"""

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_mib", "output_kib"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"Sandbox.{name} is {shown(getattr(self, name))}; it must be greater than 0.")

    def run(self, program: str, stdin: str = "") -> ProgramResult:
        """Run a Python program in an empty folder, which is removed afterwards. There is nothing in its environment."""
        with tempfile.TemporaryDirectory(prefix="rlinf_program_") as folder:
            Path(folder, "program.py").write_text(program, encoding="utf-8", errors="replace")
            Path(folder, "stdin").write_text(stdin, encoding="utf-8", errors="replace")
            seconds = max(1, -(-int(self.seconds * 1000) // 1000))
            read, write = os.pipe()
            with open(Path(folder, "stdin"), "rb") as given, os.fdopen(read, "rb") as told:
                child = subprocess.Popen(
                    [sys.executable, "-I", str(_LAUNCHER), str(seconds), str(self.memory_mib), str(write)],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env={"PATH": os.defpath, "HOME": folder, "LC_ALL": "C.UTF-8"},
                    start_new_session=True,
                    pass_fds=[write],
                )
                os.close(write)
                try:
                    output, reason = self._watch(child)
                    if not reason:
                        child.wait()
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        kill_group(child)  # also what a program that has ended left behind
                    if child.stdout is not None:
                        child.stdout.close()
                isolated, _, code = told.read().decode().partition(" ")
        ended = None if reason or not code else int(code)
        if ended == -signal.SIGXCPU:  # the kernel was quicker than the watch here
            ended, reason = None, "time"
        return ProgramResult(ended, output.decode("utf-8", "replace"), reason, isolated == "1")

    def _watch(self, child: subprocess.Popen[bytes]) -> tuple[bytes, str]:
        """Its output until it ends or a limit is reached."""
        assert child.stdout is not None
        deadline = time.monotonic() + self.seconds + STARTING_SECONDS
        limit = self.output_kib << 10
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return output, "time"
                if not selector.select(min(left, 0.05)):
                    if child.poll() is not None:  # somebody it started still holds the pipe
                        return output, ""
                    continue
                part = os.read(child.stdout.fileno(), 1 << 16)
                output += part
                if len(output) > limit:
                    return output[:limit], "output"
                if not part:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(max(0.0, deadline - time.monotonic()))
                        return output, ""
                    return output, "time"


STARTING_SECONDS = 1.0
"""what the interpreter may take to begin, beside the program's own time"""


def program_reward(problem: Problem, completion: str, *, sandbox: Sandbox | None = None) -> RewardResult:
    """The share of a problem's tests that the completion's program passes.

    ``problem.detail["tests"]``: Python statements such as ``"assert add(2, 3) == 5"``, each run after the program, in a
    process of its own. The program is the last fenced block of the completion, or all of it.
    """
    tests = problem.detail.get("tests")
    if not tests:
        return RewardResult(0.0, error=f"{problem!r} has no detail['tests']")
    program = program_of(completion)
    ran = [(sandbox or Sandbox()).run(f"{program}\n\n{test}\n") for test in tests]
    passed = sum(r.ok for r in ran)
    failed = next((r for r in ran if not r.ok), None)
    last = failed.output.strip().rsplit("\n", 1)[-1] if failed is not None else ""
    why = "" if failed is None else f"; {(failed.reason and f'killed for {failed.reason}') or shown(last, 60)}"
    return RewardResult(passed / len(tests), f"{passed} of {len(tests)} tests{why}")


def program_of(completion: str) -> str:
    """The last fenced block, without its language. All of the text where there is no fence."""
    parts = completion.split(CODE_FENCE)
    if len(parts) == 1:
        return completion
    # Odd parts lie between fences; a last one that is not closed was cut off.
    block = parts[-1] if len(parts) % 2 == 0 else parts[-2]
    first, newline, rest = block.partition("\n")
    return rest if newline and (not first.strip() or first.strip().isalnum()) else block
