"""Tasks in numpy alone, for machines without a simulator.

Also for tests and for first steps in a notebook.

``ReachArm-v0``: a planar arm of two links (each 0.5 long) shall bring its fingertip to a target within its reach and keep it there.
Observation (8): cos and sin of both joint angles, both joint velocities / 4, vector from fingertip to target. Action (2): joint torques in
[-1, 1]. Reward per step: -distance - 0.01·|action|². Success: distance below 0.06. Episodes are cut after 60 steps of 0.05 s.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions

LINK, STEP_SECONDS, GAIN, DAMPING = 0.5, 0.05, 12.0, 3.0
NEAR = 0.06
PIXELS = 240
_STATE = ("_angle_N2", "_velocity_N2", "_target_N2", "_age_N", "_rngs", "_started")  # what a step depends on


def tasks() -> list[str]:
    return ["ReachArm-v0"]


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """See `vecenv.registry.Adapter`."""
    return {"numpy": False}


def has(task: str) -> bool:
    return task in tasks()


class ReachArm:
    """N arms as rows of one array. A step of a thousand costs little more than a step of one."""

    def __init__(self, num_envs: int, max_episode_steps: int) -> None:
        self.num_envs = num_envs
        self.spec = EnvSpec(
            "numpy/ReachArm-v0", Box(-np.inf, np.inf, (8,), np.float32), Box(-1.0, 1.0, (2,), np.float32), max_episode_steps,
            success=f"fingertip within {NEAR} of the target", renders=True,
        )  # fmt: skip
        self._limit = max_episode_steps
        self._angle_N2, self._velocity_N2, self._target_N2 = np.zeros((3, num_envs, 2))
        self._age_N = np.zeros(num_envs, np.int64)
        self._rngs = [np.random.default_rng() for _ in range(num_envs)]
        self._started = False

    def reset(self, *, seed: int | None = None) -> NDArray[np.float32]:
        if seed is not None:
            self._rngs = [np.random.default_rng(seed + i) for i in range(self.num_envs)]
        self._started = True
        self._begin(np.arange(self.num_envs))
        return self._observe()

    def step(self, action_N: NDArray) -> EnvStep:
        action_N = checked_actions(self.spec, self.num_envs, action_N, self._started)
        self._velocity_N2 += STEP_SECONDS * (GAIN * action_N - DAMPING * self._velocity_N2)
        self._angle_N2 += STEP_SECONDS * self._velocity_N2
        self._age_N += 1
        distance_N = np.linalg.norm(self._target_N2 - self._fingertip(), axis=1)
        reward_N = (-distance_N - 0.01 * np.square(action_N).sum(axis=1)).astype(np.float32)
        truncated_N = self._age_N >= self._limit
        final_N = self._observe()
        obs_N = final_N
        if truncated_N.any():
            self._begin(np.flatnonzero(truncated_N))
            obs_N = self._observe()
        return EnvStep(obs_N, reward_N, np.zeros(self.num_envs, bool), truncated_N, distance_N < NEAR, final_N)

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`."""
        return copy.deepcopy({name: getattr(self, name) for name in _STATE})

    def restore_state(self, state: dict[str, Any]) -> None:
        for name, value in copy.deepcopy(state).items():
            setattr(self, name, value)

    def _begin(self, rows: NDArray) -> None:
        for i in rows:
            rng = self._rngs[i]
            self._angle_N2[i] = rng.uniform(-np.pi, np.pi, 2)
            radius, direction = rng.uniform(0.3, 0.9), rng.uniform(-np.pi, np.pi)
            self._target_N2[i] = radius * np.cos(direction), radius * np.sin(direction)
        self._velocity_N2[rows] = 0.0
        self._age_N[rows] = 0

    def _elbow(self) -> NDArray:
        return LINK * np.stack([np.cos(self._angle_N2[:, 0]), np.sin(self._angle_N2[:, 0])], axis=1)

    def _fingertip(self) -> NDArray:
        total = self._angle_N2.sum(axis=1)
        return self._elbow() + LINK * np.stack([np.cos(total), np.sin(total)], axis=1)

    def _observe(self) -> NDArray[np.float32]:
        parts = (np.cos(self._angle_N2), np.sin(self._angle_N2), self._velocity_N2 / 4, self._target_N2 - self._fingertip())
        return np.concatenate(parts, axis=1).astype(np.float32)

    def render(self) -> NDArray[np.uint8]:
        """The first arm from above: target ring, two links, joints."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (2 * PIXELS, 2 * PIXELS), (246, 247, 249))  # drawn double and halved: smooth edges
        draw = ImageDraw.Draw(image)

        def at(point: NDArray) -> tuple[float, float]:
            return PIXELS + 0.9 * PIXELS * float(point[0]), PIXELS - 0.9 * PIXELS * float(point[1])

        def disc(point: NDArray, radius: float, colour: tuple[int, int, int]) -> None:
            x, y = at(point)
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

        base, elbow, tip, target = np.zeros(2), self._elbow()[0], self._fingertip()[0], self._target_N2[0]
        reached = float(np.linalg.norm(target - tip)) < NEAR
        draw.ellipse((0.1 * PIXELS, 0.1 * PIXELS, 1.9 * PIXELS, 1.9 * PIXELS), outline=(214, 218, 224), width=3)
        disc(target, 0.9 * PIXELS * NEAR + 8, (60, 150, 105) if reached else (225, 90, 60))
        disc(target, 0.9 * PIXELS * NEAR, (246, 247, 249))
        draw.line([at(base), at(elbow)], fill=(52, 92, 160), width=22)
        draw.line([at(elbow), at(tip)], fill=(86, 132, 204), width=18)
        for point, radius in ((base, 20), (elbow, 15), (tip, 11)):
            disc(point, radius, (32, 42, 68))
        return np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.LANCZOS))

    def close(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"numpy/ReachArm-v0 × {self.num_envs} (at most {self._limit} steps)"


def make(task: str, num_envs: int, max_episode_steps: int | None = None) -> ReachArm:
    return ReachArm(num_envs, max_episode_steps or 60)
