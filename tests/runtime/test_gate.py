"""Gates of ranks, with counters of the kernel and without; looking at what another thread executes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest

from rlinf_lab.runtime.threads import gate as gates
from rlinf_lab.runtime.threads.gate import Gate


@pytest.fixture(params=["file", "no file", "no more files"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """``file``: whatever gates other tests have left in this process."""

    def refuse(*_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(gates, "MOST", 0 if request.param == "no file" else 1 << 20)
    if request.param != "file":
        monkeypatch.setattr(gates, "_FREE", [])
        monkeypatch.setattr(os, "eventfd", refuse)
    made = Gate()
    assert (made._counter >= 0) == (request.param == "file")
    return made


def test_however_often_it_is_opened_it_is_passed_once(gate: Gate) -> None:
    assert not gate.wait(0.0), "closed at first"
    for times in (1, 2):
        for _ in range(times):
            gate.open()
        assert gate.wait() and not gate.wait(0.0)


def test_whoever_waits_passes_when_others_open_at_once(gate: Gate) -> None:
    passed, failed = list[bool](), list[BaseException]()
    waiting = threading.Thread(target=lambda: passed.extend(gate.wait(30.0) for _ in range(20)), daemon=True)

    def open_often() -> None:
        try:
            while waiting.is_alive():
                gate.open()
        except BaseException as error:
            failed.append(error)

    waiting.start()
    opening = [threading.Thread(target=open_often) for _ in range(3)]
    for thread in opening:
        thread.start()
    for thread in (waiting, *opening):
        thread.join(60)
    assert passed == [True] * 20 and not failed


def test_counters_are_used_again_and_never_more_than_a_few_are_made() -> None:
    many = [Gate() for _ in range(gates.MOST + 20)]
    assert Gate._made == gates.MOST and many[-1]._counter < 0
    many[0].open()
    counters = {gate._counter for gate in many} - {-1}
    assert 0 < len(counters) <= gates.MOST
    del many
    gc.collect()
    again = [Gate() for _ in counters]
    assert all(gate._counter >= 0 for gate in again) and Gate._made == gates.MOST, "no new ones"
    assert not any(gate.wait(0.0) for gate in again)  # what was open before is not open now


FORKED = """
import gc, os
from rlinf_lab.runtime.threads.gate import Gate

mine = Gate()
counter = mine._counter
child = os.fork()
if not child:  # its copy of ``mine`` goes, and it makes gates of its own
    del mine
    gc.collect()
    made = [Gate() for _ in range(3)]
    os._exit(int(any(gate._counter == counter for gate in made) or not made[0]._counter >= 0))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not mine.wait(0.0)
"""

COLLECTED = """
import gc, os, threading
from rlinf_lab.runtime.session.session import _frame_of

class Closes:
    def __init__(self):  # in a cycle: the collector ends it
        self.me, self.file = self, os.dup(0)

    def __del__(self):
        os.close(self.file)

over = threading.Event()

def come_and_go():
    while not over.is_set():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

coming = [threading.Thread(target=come_and_go) for _ in range(3)]
for thread in coming:
    thread.start()
gc.set_threshold(1)
for _ in range(1000):
    Closes()
    assert _frame_of(threading.get_ident()) is not None
assert gc.isenabled() and _frame_of(0) is None
over.set()
for thread in coming:
    thread.join()
"""


def test_a_forked_child_leaves_the_counters_of_its_parent_alone_and_the_interpreter_outlives_a_look_at_threads_that_end() -> None:
    """The garbage collector comes in between, and ends things whose ends let other threads run."""
    # In a process of their own: collecting what other tests have left of torch's process groups, whose threads no fork has, is a segmentation fault.
    for script in (FORKED, COLLECTED):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stdin=subprocess.DEVNULL)
