"""Gates of ranks, with counters of the kernel and without."""

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
    if request.param == "file":
        monkeypatch.setattr(gates, "MOST", 1 << 20)  # whatever gates other tests have left in this process
    if request.param == "no file":
        monkeypatch.setattr(gates, "MOST", 0)
        monkeypatch.setattr(gates, "_FREE", [])
    elif request.param == "no more files":
        monkeypatch.setattr(os, "eventfd", refuse)
        monkeypatch.setattr(gates, "_FREE", [])
    made = Gate()
    assert (made._counter >= 0) == (request.param == "file")
    return made


def refuse(*_: int) -> int:
    raise OSError(24, "Too many open files")


def test_it_is_closed_at_first_and_behind_each_passing(gate: Gate) -> None:
    assert not gate.wait(0.0)
    gate.open()
    assert gate.wait(0.0) and not gate.wait(0.0)


def test_opened_twice_it_is_passed_once(gate: Gate) -> None:
    gate.open()
    gate.open()
    assert gate.wait() and not gate.wait(0.0)


def test_whoever_waits_passes_when_another_thread_opens(gate: Gate) -> None:
    passed = []
    thread = threading.Thread(target=lambda: passed.append((gate.wait(), gate.wait(30.0))), daemon=True)
    thread.start()
    while thread.is_alive():
        gate.open()
    assert passed == [(True, True)]


def test_many_may_open_it_at_once(gate: Gate) -> None:
    failed: list[BaseException] = []

    def open_often() -> None:
        try:
            for _ in range(2000):
                gate.open()
        except BaseException as error:
            failed.append(error)

    opening = [threading.Thread(target=open_often) for _ in range(3)]
    for thread in opening:
        thread.start()
    while any(thread.is_alive() for thread in opening):
        gate.wait(0.01)
    assert not failed


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


def test_a_forked_child_leaves_the_counters_of_its_parent_alone() -> None:
    # In a process of its own: collecting what other tests have left of torch's process groups, whose threads no fork has, is a segmentation fault.
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
