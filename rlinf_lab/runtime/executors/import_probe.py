"""Whether workers can be made in another process of this machine. One is asked that is started for it as the hosts of a
run are.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping

from rlinf_lab.errors import PlanError
from rlinf_lab.runtime.executors.device_host import import_path
from rlinf_lab.runtime.executors.node_probe import facts_here
from rlinf_lab.runtime.transport.pickling import Packed

SECONDS = 120.0  # for all imports
_START = (
    "import sys; sys.path[:] = {paths!r}; from rlinf_lab.runtime.executors.import_probe import answer; answer({fd})"
)


def problems_in_a_child(packed: Mapping[str, Packed]) -> dict[str, str]:
    """What keeps a new process from making these workers, by name. Raises `PlanError` when it does not answer."""
    reading, writing = os.pipe()
    with open(reading, "rb") as answers:
        command = [sys.executable, "-c", _START.format(paths=import_path(), fd=writing)]
        try:
            done = subprocess.run(
                command,
                input=pickle.dumps(dict(packed), protocol=5),
                pass_fds=[writing],
                capture_output=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise PlanError(
                f"a process that imports the workers' modules is not done after {SECONDS:g} s. Next: look at what they "
                "do at import."
            ) from None
        finally:
            os.close(writing)
        said = answers.read()
    if not said:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise PlanError(
            f"a process that imports the workers' modules ended before it could answer ({last[0]}). Next: import them "
            "in a Python of its own."
        )
    problems: dict[str, str] = pickle.loads(said)
    return problems


def answer(fd: int) -> None:
    """In the child: write what went wrong with each worker into the pipe. It is a few hundred bytes, so that nobody
    needs to read meanwhile.
    """
    packed: dict[str, Packed] = pickle.load(sys.stdin.buffer)
    problems = {name: problem[:300] for name, problem in list(facts_here(packed).problems.items())[:100]}
    with open(fd, "wb") as out:
        out.write(pickle.dumps(problems))
