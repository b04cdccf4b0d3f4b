"""A disk without room for another state: what was kept stays, nothing half-written is left, it is said once, and the run goes on.

The limit is the system's own, on the size of files (RLIMIT_FSIZE): a write ends in the middle of a file. In a process of its own, for it holds for all files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, logging, resource, signal, sys, threading
from pathlib import Path

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError

logging.basicConfig(stream=sys.stdout, format="said: %(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def fills_up(row):
    if row["iteration"] == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))


run = lab.train("ppo", "numpy/ReachArm-v0", num_envs=8, n_steps=20, batch_size=80, iterations=4, plan=None, folder="kept", progress=False,
                checkpoint_minutes=1e-9, on_iteration=fills_up).wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for what, write in {"saving": lambda: run.save("copy"), "of another": lambda: lab.train("ppo", "numpy/ReachArm-v0", plan=None, folder="other", progress=False)}.items():
    try:
        write()
    except ConfigError as error:
        print(what, error)
for thread in (running := [thread for thread in threading.enumerate() if "run ppo" in thread.name]):
    thread.join(60)  # of the second run, which was stopped
print("threads", sum(thread.is_alive() for thread in running))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("unwritten", json.loads(Path("kept/run.json").read_text())["unwritten"])
print("state", run.state, run.iteration)
print("kept", [p.name for p in sorted(Path("kept/checkpoints").iterdir())])
print("parts", [p.name for p in Path("kept").rglob("*.part")])
print("loads", lab.load_policy("kept").version)
resumed = lab.resume("kept", total_timesteps=5 * run.config.env_steps, progress=False).wait()
print("resumed", resumed.iteration)
"""


@pytest.mark.long
def test_a_full_disk_loses_no_checkpoint(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert "state finished 4" in said and "parts []" in said and "loads 1" in said and "resumed 5" in said, done.stdout
    assert [line for line in said if line.startswith("kept")] == ["kept ['learner-000001.safetensors']"]
    assert sum(line.startswith("said: kept cannot be written") for line in said) == 2, "when it begins, and what is missing in the end"
    for what in ("saving The folder 'copy' cannot be written", "of another The folder 'other' cannot be written", "unwritten ", "threads 0"):
        assert any(line.startswith(what) and line != "unwritten " for line in said), done.stdout
