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
from typing import Any

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


def per_cpu_second(task: str, num_envs: int) -> Callable[[], float]:
    """Environment steps per second of the processor, in this process."""
    measured = walk(task, num_envs, time.process_time)
    return lambda: CONTROL_STEPS * num_envs / measured()


def walk(task: str, num_envs: int, clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Goes through the same episode each time and gives its seconds, by this clock.

    ManiSkill's own environments take it once, and where their joints were driven to is written down. Raises `RuntimeError` where the walk through SAPIEN
    alone does not come out where theirs did, to the last bit: then it would not be the same work.
    """
    from rlinf_lab.vecenv import make_vec

    env: Any = make_vec(f"maniskill/{task}", num_envs, CONTROL_STEPS + 1, batched=False)
    stocks, rng = [single.stock for single in env.envs], np.random.default_rng(0)
    env.reset(seed=0)
    recorded = []
    for _ in range(CONTROL_STEPS):
        env.step(rng.uniform(-1, 1, (num_envs, 8)))
        recorded.append([[float(joint.drive_target[0]) for joint in joints(stock)] for stock in stocks])
    expected = [places(stock) for stock in stocks]
    substeps = stocks[0].sim_freq // stocks[0].control_freq

    def measured() -> float:
        env.reset(seed=0)
        work = [(stock.scene.px.step, [joint.set_drive_target for joint in joints(stock)]) for stock in stocks]
        start = clock()
        for targets in recorded:
            for (step, drives), target_J in zip(work, targets, strict=True):
                for drive, target in zip(drives, target_J, strict=True):
                    drive(target)
                for _ in range(substeps):
                    step()
        return clock() - start

    measured()
    if not all(np.array_equal(places(stock), there) for stock, there in zip(stocks, expected, strict=True)):
        raise RuntimeError(f"{task}: SAPIEN's physics alone came out elsewhere than ManiSkill's environments, so it is not the same work.")
    return measured


def joints(stock: Any) -> list[Any]:
    """SAPIEN's, of the robot, that can move."""
    from sapien.physx import PhysxArticulationLinkComponent as Link

    links = [part for entity in stock.scene.sub_scenes[0].entities for part in entity.components if isinstance(part, Link)]
    return [link.joint for link in links if link.joint.dof]


def places(stock: Any) -> np.ndarray:
    """Of everything in the scene."""
    return np.array([[*entity.pose.p, *entity.pose.q] for entity in stock.scene.sub_scenes[0].entities])


if __name__ == "__main__":
    measured = walk(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(measured(), flush=True)
