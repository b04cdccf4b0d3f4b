"""Looking at what another thread executes, while the garbage collector ends things whose ends let other threads run."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
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


def test_the_interpreter_does_not_stop_when_the_collector_comes_in_between() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT], stdin=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
