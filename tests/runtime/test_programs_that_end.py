"""A program may end while a run goes on: quietly, soon, and with nothing left of it."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sessions import until

from rlinf_lab.runtime.executors import child, multi_process
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.run import at_exit
from rlinf_lab.runtime.run.at_exit import EXIT_SECONDS

Ends = Callable[[str], tuple[int, str, str]]  # a program's last lines; its exit status, what it said, and its errors

PROGRAM = """
import itertools, os, sys, time
import rlinf_lab as lab

class Sink(lab.Worker):
    def sink(self, inbox: lab.Inbox) -> int:
        return sum(x for batch in inbox for x in batch)

ENTERED = __file__ + ".entered"  # a run that is "running" may be stopped before a method was called

class Busy(lab.Worker):
    def work(self, out: lab.Outbox) -> None:
        open(ENTERED, "w").close()
        while True:
            time.sleep(0.01)

class Hogs(lab.Worker):
    def work(self, out: lab.Outbox) -> None:
        open(ENTERED, "w").close()
        sum(itertools.repeat(0))

def main(worker, executor):
    flow = lab.Workflow("goes on")
    items = flow.channel("items")
    made, sink = flow.worker(worker), flow.worker(Sink)

    @flow.iteration
    def iteration():
        made.work(items)
        return sink.sink(items)

    run = lab.run(flow, executor=executor)
    while not (run.iteration >= 1 or os.path.exists(ENTERED)):
        time.sleep(0.01)
    return run
"""
COMPUTES = """
import torch

class Computes(lab.Worker):
    def setup(self):
        self.layer = torch.nn.Linear(400, 400)
    def work(self, out: lab.Outbox) -> None:
        for i in range(200):
            self.layer(torch.randn(256, 400)).sum().backward()
            out.put(i)
    def close(self):
        print("closed", flush=True)

"""  # the others are started without torch, in half the time


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    def program(lines: str) -> tuple[int, str, str]:
        (tmp_path / "program.py").write_text(PROGRAM + (COMPUTES if "Computes" in lines else "") + lines)
        done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=200)
        return done.returncode, done.stdout, done.stderr

    return program


FORKS = "if os.fork() == 0:\n    sys.exit(0)\nassert os.wait()[1] == 0 and not run._stop.is_set()\nsys.exit(3)"


@pytest.mark.parametrize("last", ["forks", *(pytest.param(last, marks=pytest.mark.long) for last in ("", "run.pause(); time.sleep(0.3)", "del run"))])
def test_a_worker_that_computes_in_torch_does_not_take_the_program_down_however_it_ends(last: str, ends: Ends) -> None:
    """Nor does the end of a forked process, which leaves its parent's runs alone."""
    code, out, err = ends(f"run = main(Computes, 'local')\n{FORKS if last == 'forks' else last}")
    assert (code, out) == (3 if last == "forks" else 0, "closed\n") and (last == "forks" or err == ""), err


LEFT = [
    r"busy\[0\] did not end in time, and goes on in a thread of this process until it returns or the program ends. Next: .*self.cancelled",
    r"busy\[0\] did not end in time, and was ended together with its process. Next: .*self.cancelled",
]


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_who_did_not_end_is_told_at_the_end_of_the_program_too_and_once(executor: str, ends: Ends) -> None:
    """A busy machine may need more than the seconds that a program waits, which are more than it takes to kill who does not answer."""
    grace = inspect.signature(Host.stop).parameters["grace_seconds"].default
    assert grace + multi_process.STOP_SECONDS + child.DEATH_SECONDS < EXIT_SECONDS
    told = "run.stop()\nrun.wait()\nos.remove(ENTERED)\n" if executor == "local" else ""
    code, _, err = ends(
        f"from rlinf_lab.runtime.run import at_exit\nat_exit.EXIT_SECONDS = 60\nrun = main(Busy, {executor!r})\n{told}"
        + (f"again = main(Busy, {executor!r})" if told else "")
    )
    assert code == 0 and len(re.findall(LEFT[executor != "local"], err)) == (2 if told else 1), err


def test_a_method_that_does_not_end_is_told_and_not_waited_for_also_where_warnings_are_errors(ends: Ends) -> None:
    lines = "import warnings\nwarnings.simplefilter('error', RuntimeWarning)\nfrom rlinf_lab.runtime.run import at_exit\nat_exit.EXIT_SECONDS = 0.1\n"
    code, out, err = ends(f"{lines}runs = [(main(Busy, 'local'), os.remove(ENTERED)) for _ in range(3)]")
    assert (code, out) == (0, "") and err.count("RuntimeWarning: Run('goes on'") == err.count("goes on while the program ends. Next:") == 3, err


INTERRUPTED = """
import signal, subprocess
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background of a shell has it ignored
pressed = " ".join(f"sleep {seconds}; kill -INT {os.getpid()};" for seconds in (0.8, 0.2, 0.1))
subprocess.Popen(["sh", "-c", pressed], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
import psutil
print(*(child.pid for child in psutil.Process().children(recursive=True) if child.name() != "sh" and child.name() != "sleep"), flush=True)
"""


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_ctrl_c_while_the_program_ends_is_quiet_and_leaves_nothing_behind(executor: str, ends: Ends) -> None:
    """Before, Python printed "Exception ignored in atexit callback" with a traceback."""
    _, out, err = ends(f"run = main({'Busy' if executor == 'local' else 'Hogs'}, {executor!r})\n{INTERRUPTED}")
    assert err == ""
    left = [int(pid) for pid in out.split()]
    assert bool(left) == (executor == "processes")
    until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left))


def test_a_driver_that_is_killed_takes_who_holds_the_interpreters_lock_with_it_also_when_it_has_forked(ends: Ends) -> None:
    """Before, such a process computed on for ever: no thread of it could see that the driver was gone. It would hold standard error open.
    What was forked has the driver's end of the stream that says so."""
    forks = "if (forked := os.fork()) == 0:\n    os.closerange(0, 3)\n    time.sleep(250)\n    os._exit(0)\nprint(forked, flush=True)\n"
    code, out, err = ends(f"run = main(Hogs, 'processes')\ntime.sleep(0.5)\n{forks}os.kill(os.getpid(), 9)")
    os.kill(int(out), signal.SIGKILL)  # it is still there
    assert (code, err) == (-9, "")


def test_a_system_that_cannot_kill_a_child_with_its_driver_starts_it_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        monkeypatch.delattr(child.fcntl, "F_SETSIG")
        child._die_with(theirs)
        mine.send(b"x")
        assert theirs.recv(1) == b"x", "nothing was done to it"


def mock(kind: str, told: list[str]) -> Any:
    """A run that is over, or that does what ``kind`` says when it is stopped."""
    run, ended = type(kind, (), {})(), threading.Event()

    def waits(seconds: float | None = None) -> bool:
        del ended.wait
        raise KeyboardInterrupt

    def stop(wait: bool = True) -> None:
        told.append(f"stop {wait}")
        ended.set() if kind == "obeys" else None
        if kind == "threadless":
            raise RuntimeError

    ended.set() if kind == "over" else None
    vars(ended).update({"wait": waits} if kind == "interrupted" else {})
    vars(run).update(_ended=ended, stop=stop, _warn=lambda: told.append("warn"))
    return run


@pytest.mark.parametrize("kinds", itertools.product(["over", "obeys", "insists", "threadless", "interrupted"], repeat=2))
def test_all_that_go_on_are_stopped_and_told_of(kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    started: Any = weakref.WeakKeyDictionary()
    for name, value in (("_STARTED", started), ("EXIT_SECONDS", 0.01), ("IMPATIENT_SECONDS", 0.01)):
        monkeypatch.setattr(at_exit, name, value)
    told, is_interrupted = [list[str]() for _ in "123"], "interrupted" in kinds
    runs = [mock(kind, said) for kind, said in zip((*kinds, "a parent's"), told, strict=True)]
    for run in runs:
        at_exit.end_with_program(run)
    started[runs[2]] = os.getppid()
    with warnings.catch_warnings(record=True, action="always") as seen:
        at_exit._end_all()
        at_exit._end_all()
    assert [k for k in kinds if k in ("insists", "threadless") and not is_interrupted] == [str(w.message).partition(".")[2].split()[0] for w in seen]
    stops = ["stop False"] * (1 + is_interrupted)
    assert told == [*({"over": ["warn"], "obeys": [*stops, "warn"]}.get(kind, stops) for kind in kinds), []]
