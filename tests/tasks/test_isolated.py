"""Verifiers in a child process: what hangs, dies or eats memory is recorded, and the next call works."""

from __future__ import annotations

import ctypes
import os
import pickle
import time

import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.tasks import Isolated, RewardResult


def moody(what):
    if what == "hang":
        while True:
            time.sleep(60)
    if what == "die":
        ctypes.string_at(0)
    if what == "exit":
        os._exit(3)
    if what == "raise":
        raise KeyError("key")
    if what == "eat":
        return len(bytearray(1 << 31))
    return RewardResult(1.0, str(os.getpid()))


@pytest.fixture(scope="module")
def isolated():
    verifier = Isolated(moody, timeout_s=0.3, memory_mib=1500)
    yield verifier
    verifier.close()


@pytest.mark.parametrize(("what", "error"), [
    ("raise", "KeyError"), ("eat", "MemoryError"), ("hang", "no verdict after 0.3 s"), ("die", "SIGSEGV"), ("exit", "exit code 3"),
])  # fmt: skip
def test_failures_are_data_and_the_next_call_works(isolated, what, error):
    result = isolated(what)
    assert result.failed and error in result.error
    assert isolated("well").value == 1.0


def test_one_process_for_many_calls_which_ends(isolated):
    first, second = isolated("well"), isolated("well")
    assert first.detail == second.detail != str(os.getpid())
    again = pickle.loads(pickle.dumps(isolated))  # to another process: with a child of its own
    assert again("well").detail != first.detail
    again.close()
    isolated.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(first.detail), 0)


def test_closures_and_arguments():
    level = 0.5
    with_closure = Isolated(lambda x: x * level)
    assert with_closure(3).value == 1.5
    assert "does not pickle" in with_closure(iter(lambda: 0, 1), (x for x in "ab")).error
    with_closure.close()
    with pytest.raises(ConfigError, match="timeout_s=0"):
        Isolated(moody, timeout_s=0)
