"""How MuJoCo draws on this machine."""

from __future__ import annotations

import os
from ctypes.util import find_library
from pathlib import Path


def choose_renderer() -> str | None:
    """How MuJoCo can draw without a screen here.

    EGL on a GPU, OSMesa in software, None when neither is there. Set once, before MuJoCo loads.
    """
    if os.environ.get("MUJOCO_GL"):
        return os.environ["MUJOCO_GL"]
    if Path("/dev/nvidia0").exists() and find_library("EGL"):
        choice = "egl"
    elif find_library("OSMesa"):
        choice = "osmesa"
    else:
        return None
    os.environ["MUJOCO_GL"] = choice
    os.environ.setdefault("PYOPENGL_PLATFORM", choice)
    return choice
