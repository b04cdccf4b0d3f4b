"""SAPIEN's physics alone: the scenes of ManiSkill's tasks driven through a walk that was recorded, nothing looked at, nothing begun anew.

What no runner of the same simulator, control frequency and cores can pass. Run as a program it is one of the processes: it builds its scenes, and for
each line of its input goes through the walk once and writes the seconds that it took.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CONTROL_STEPS = 50  # an episode


class Floor:
    """Environment steps a second of ``processes`` at once, each with its share of the environments."""

    def __init__(self, task: str, num_envs: int, processes: int) -> None:
        self._num_envs = num_envs
        command = [sys.executable, "-W", "ignore", __file__, task, str(num_envs // processes)]
        self._children = [
            subprocess.Popen(command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        for child in self._children:
            assert child.stdout is not None
            while child.stdout.readline() not in ("ready\n", ""):
                pass

    def __call__(self) -> float:
        for child in self._children:
            print("go", file=child.stdin, flush=True)
        seconds = [float(child.stdout.readline()) for child in self._children if child.stdout is not None]
        return CONTROL_STEPS * self._num_envs / max(seconds)

    def close(self) -> None:
        for child in self._children:
            child.communicate()


def walk(task: str, num_envs: int) -> Callable[[], float]:
    """Goes through the same episode each time and gives its seconds."""
    from rlinf_lab.vecenv import make_vec

    env = make_vec(f"maniskill/{task}", num_envs, CONTROL_STEPS + 1)
    rng, recorded = np.random.default_rng(0), []

    def note(targets: list[list[float]]) -> list[list[float]]:
        recorded.append(targets)
        return targets

    found = env._targets  # type: ignore[attr-defined]
    env._targets = lambda *given: note(found(*given))  # type: ignore[attr-defined]
    env.reset(seed=0)
    for _ in range(CONTROL_STEPS):
        env.step(rng.uniform(-1, 1, (num_envs, 8)))
    substeps = env._substeps  # type: ignore[attr-defined]

    def measured() -> float:
        env.reset(seed=0)
        start = time.perf_counter()
        for targets in recorded:
            for scene, target_J in zip(env._scenes, targets, strict=True):  # type: ignore[attr-defined]
                scene.advance(target_J, substeps)
        return time.perf_counter() - start

    return measured


if __name__ == "__main__":
    measured = walk(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(measured(), flush=True)
