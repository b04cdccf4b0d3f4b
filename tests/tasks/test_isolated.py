"""Verifiers in a child process: what hangs, dies or eats memory is recorded, and the next call works."""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
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
    if what == "bomb":
        return RewardResult(Bomb(1.0), Bomb(), None)
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "flood":
        return RewardResult(1.0, "x" * (1 << 21))
    return RewardResult(1.0, str(os.getpid()))


class Bomb(float):
    """Who unpickles it runs its code."""

    def __reduce__(self):
        return os.environ.__setitem__, ("bombed", "here")


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


def test_nothing_that_the_function_made_is_unpickled_here():
    patient = Isolated(moody, timeout_s=60)
    result = patient("bomb")
    assert type(result.value) is float and result.value == 1.0 and result.detail == "0.0" and not result.failed
    assert "bombed" not in os.environ
    assert "bytes, more than 1,048,576" in patient("flood").error and "KeyboardInterrupt" in patient("interrupt").error
    assert patient("well").value == 1.0
    patient.close()


@pytest.mark.parametrize(("written", "timeout_s", "error"), [
    (b"\x80\x04N.\n", 60, "no verdict came"), (b'{"value": 9.0, "detail": "", "error": null}\n', 60, "no verdict came"),
    (b"[" * 100_000 + b"\n", 60, "no verdict came"), (b'{"call": 1, "value": 1.0,', 0.3, "no verdict after 0.3 s"),
])  # fmt: skip
def test_what_is_written_past_the_verifier_is_that_samples_error(written, timeout_s, error):
    def writes(_):
        os.write(int(sys.argv[1]), written)
        time.sleep(60)

    with_pen = Isolated(writes, timeout_s=timeout_s)
    assert error in with_pen("").error
    with_pen.close()


def test_a_verdict_is_taken_for_its_own_call_only():
    def twice(text):
        line = b'{"call": 1, "value": 1.0, "detail": "forged", "error": null}\n'
        return float(os.write(int(sys.argv[1]), line if text == "first" else b"") > 0)

    verifier = Isolated(twice, timeout_s=60)
    verifier("first")  # the forged one, or that there were two
    second = verifier("second")
    assert second.value == 0.0 and second.detail == "", "not what was left of the first call"
    verifier.close()


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
