"""How much `import rlinf_lab` costs above a bare Python."""

from __future__ import annotations

import subprocess
import sys
import time

from harness import Case


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def cases(smoke: bool) -> list[Case]:
    above = lambda: seconds("import rlinf_lab") - seconds("pass")  # noqa: E731
    return [Case("import_time", "s above bare Python", above, {"import ray": lambda: seconds("import ray") - seconds("pass")}, "<= 0.3", "value", runs=7)]
