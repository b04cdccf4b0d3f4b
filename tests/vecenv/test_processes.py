"""Environments in processes: the same numbers as in this one, and every way of failing told with the environment's index, leaving nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from rlinf_lab.errors import ConfigError, EnvError
from rlinf_lab.trees import leaves
from rlinf_lab.vecenv import check_env, environment
from rlinf_lab.vecenv.processes import ProcessVecEnv

WELL, RAISE, EXIT, ASK, DIE, HANG, CRASH_OF_A_LIBRARY = range(7)


class Faulty(gymnasium.Env):
    """Does what its action says. Observations are a dict, rewards count steps."""

    observation_space = spaces.Dict({"steps": spaces.Box(-10, 10, (2,), np.float32), "drawn": spaces.Box(0, 1, (), np.float64)})
    action_space = spaces.Discrete(7)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        if action == RAISE:
            raise ValueError("a wheel came off")
        if action == EXIT:
            sys.exit(3)
        if action == ASK:
            input("Fetch the assets? ")
        if action == DIE:
            os.kill(os.getpid(), signal.SIGSEGV)
        if action == HANG:
            time.sleep(1000)
        return self._seen(), float(self.steps), self.steps == 3, False, {"success": self.steps == 3}

    def _seen(self) -> Any:
        return {"steps": np.full(2, self.steps, np.float32), "drawn": np.float64(self.np_random.random())}


class Mild(Faulty):
    action_space = spaces.Discrete(1)


def faulty(num_envs: int) -> Any:
    return environment(Faulty)(num_envs, 5)


def mild(num_envs: int) -> Any:
    return environment(Mild)(num_envs, 5)


@pytest.fixture
def made() -> Iterator[Callable[..., ProcessVecEnv]]:
    """What is made here leaves no process, whatever became of it."""
    children: list[psutil.Process] = []
    vectors = []

    def make(num_envs: int = 3, processes: int = 2, timeout: float = 60.0, of: Any = faulty) -> ProcessVecEnv:
        before = set(psutil.Process().children())  # this process may have others, of tests before
        vectors.append(ProcessVecEnv(of, num_envs, processes, timeout))
        children.extend(set(psutil.Process().children()) - before)
        return vectors[-1]

    yield make
    for vector in vectors:
        vector.close()
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not [file for file in Path("/proc/self/fd").iterdir() if "rlinf_lab environments" in _target(file)]


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""


def test_processes_keep_the_contract_and_give_the_loops_numbers(made: Any) -> None:
    check_env(lambda: made(3, 2, of=mild))
    there, here = made(3, 2, of=mild), mild(3)
    assert there.cores == 2 and "2 processes" in repr(there) and there.spec.observation_space == here.spec.observation_space
    for seen, expected in zip(leaves(there.reset(seed=7)), leaves(here.reset(seed=7)), strict=True):
        assert np.array_equal(seen, expected)
    for _ in range(7):  # two episodes and more
        step, expected = there.step(np.zeros(3, int)), here.step(np.zeros(3, int))
        for name in ("obs_N", "final_obs_N", "reward_N", "terminated_N", "truncated_N", "success_N"):
            for a, b in zip(leaves(getattr(step, name)), leaves(getattr(expected, name)), strict=True):
                assert a.dtype == b.dtype and np.array_equal(a, b), name


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (RAISE, r"environment 1 raised ValueError: a wheel came off"),
        (EXIT, r"environment 1 called exit\(3\)"),
        (ASK, r"environment 1 raised EOFError: .*asked for input"),
        (DIE, r"environment 1 ended its process with SIGSEGV"),
        (HANG, r"environment 1 has not come back for 0.5 s"),
    ],
)
def test_faults_name_the_environment(made: Any, fault: int, told: str) -> None:
    env = made(3, 2)
    env.reset(seed=0)
    env._timeout = 0.5 if fault == HANG else 60.0
    with pytest.raises(EnvError, match=told) as caught:
        env.step(np.array([WELL, fault, WELL]))
    assert ("wheel came off" in "".join(getattr(caught.value, "__notes__", []))) == (fault == RAISE)
    with pytest.raises(EnvError, match="environment 1 .*Next: make it anew"):
        env.step(np.zeros(3, int))
    env.close()


def test_what_cannot_be_made_says_why(made: Any) -> None:
    def broken(num_envs: int) -> Any:
        sys.exit("no assets")

    with pytest.raises(EnvError, match=r"environments 0 to 1 called exit\('no assets'\) while it was being made"):
        made(3, 2, of=broken)
    for processes in (0, 4):
        with pytest.raises(ConfigError, match="from 1 process to one for each environment"):
            made(3, processes)


PARENT = """
import sys, time
sys.path[:] = {path!r}
from test_processes import HANG, ProcessVecEnv, faulty
import psutil
env = ProcessVecEnv(faulty, 2, 2)
env.reset(seed=0)
print(*[child.pid for child in psutil.Process().children()], flush=True)
import numpy as np
env.step(np.array([0, HANG]))
"""


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    """One of the processes waits for an order, the other one hangs."""
    path = [str(Path(__file__).parent), *sys.path]
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(path=path)], stdout=subprocess.PIPE, text=True)
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
